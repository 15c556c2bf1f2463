"""mmTransformer (Liu et al., CVPR 2021): stacked transformers over motion, map and neighbours.

K learned queries per agent (proposals) pass a motion extractor (own history), a map aggregator (lanes) and a social constructor
(neighbours). Two heads predict offsets and a score.

Differences from the paper:
- Every agent is normalised in its own frame instead of the target's, so that all targets of a scene are predicted in one pass.
- Positional embeddings are learned and added in each attention (DETR style); queries are initialised orthogonally.
- Offsets from step to step are added to the positions at constant velocity.
- With `social_output: appended`, features reach the heads as in the released code.
- With `regions` (section 3.4), proposals k * N to (k + 1) * N - 1 belong to region k. Regions are a buffer of the model.
- With `joint` (not in the paper), proposal k of all targets is one world: in the social constructor it attends to the k-th
  proposals of the neighbours only, and the score of a world is computed from the mean feature of its targets.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.errors import ConfigError
from trajformer.losses.set_loss import WorldLossConfig
from trajformer.models.forecaster import Forecaster, TargetModelConfig
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.mmtransformer.regions import RegionConfig, RegionLossConfig, fit_regions, initial_regions
from trajformer.models.modes import consensus, endpoint_nms
from trajformer.models.tokens import MapTokenizer, MotionTokenizer, NeighborTokenizer, mlp


@dataclass(frozen=True)
class MMTransformerConfig(TargetModelConfig, positive=("proposals",)):
    """Sizes and reach of mmTransformer.

    Attributes:
        modes: number of modes in evaluation; if it is less than `proposals`, modes are selected by end-point suppression.
        proposals: K, number of queries.
        nms_radius_m: end points closer than this to a more probable one are suppressed.
        motion_layers: numbers of encoder and decoder layers of the motion extractor.
        map_layers: the same for the map aggregator; None leaves it out.
        social_layers: the same for the social constructor; None leaves it out.
        neighbour_map: neighbours pass the map aggregator, as in the paper; otherwise their features contain motion only.
        social_output: decoded: proposals pass a social decoder (paper). appended: there is no social decoder, and the encoded
            target is concatenated to its proposals (released code).
        regions: proposals are divided between regions of end points; the default loss is then `regions`.
        joint: proposal k of all targets is one world with one probability; the default loss is then `worlds`.
    """

    proposals: int = 6
    nms_radius_m: float = 2.0
    motion_layers: tuple[int, int] = (2, 2)
    map_layers: tuple[int, int] | None = (2, 2)
    social_layers: tuple[int, int] | None = (2, 4)
    neighbour_map: bool = False
    social_output: Literal["decoded", "appended"] = "decoded"
    regions: RegionConfig | None = None
    joint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        decoded = self.social_output == "decoded"
        for name in ("motion_layers", "map_layers", "social_layers"):
            layers = getattr(self, name)
            if layers and layers[1] < 1 and (decoded or name != "social_layers"):
                raise ConfigError(name, f"{layers}, expected at least one decoder layer")
        if self.modes > self.proposals:
            raise ConfigError("modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals")
        if self.regions is not None and self.proposals % self.regions.count:
            raise ConfigError("proposals", f"{self.proposals}, expected a multiple of {self.regions.count} regions")
        if not decoded and not self.social_layers:
            raise ConfigError("social_output", "appended needs social_layers")
        if self.joint and (self.modes < self.proposals or self.regions is not None or not self.social_layers):
            raise ConfigError("joint", "needs social_layers, modes equal to proposals, and no regions")


class MotionExtractor(nn.Module):
    """K queries per agent attend to the agent's history."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.tokens = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.motion_layers[0])
        self.decoder = Decoder(config.block, config.motion_layers[1])
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, width)))

    def forward(self, observation: Observation) -> Tensor:
        """Proposals of all agents [B, A, K, D]."""
        tokens, mask = self.tokens(observation)
        time = self.time()[-tokens.shape[2] :]  # embeddings are counted back from the last observed step
        key_mask = mask.flatten(0, 1)[:, None]
        memory = self.encoder(tokens.flatten(0, 1), key_mask, time)
        queries = self.queries.expand(len(memory), -1, -1)
        proposals = self.decoder(queries, memory, memory_mask=key_mask, position=self.queries, memory_position=time)[-1]
        return proposals.unflatten(0, tokens.shape[:2])


class MapAggregator(nn.Module):
    """Proposals attend to the lanes around their agent."""

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = MapTokenizer(config.block.width, config.map_width, config.map_radius_m, config.max_polylines)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1])

    def forward(self, observation: Observation, proposals: Tensor, position: Tensor | None) -> Tensor:
        """Proposals of the first N agents [B, N, K, D] to the same shape."""
        tokens, mask = self.tokens(observation, proposals.shape[1])
        key_mask = mask.flatten(0, 1)[:, None]
        memory = self.encoder(tokens.flatten(0, 1), key_mask)
        out = self.decoder(proposals.flatten(0, 1), memory, memory_mask=key_mask, position=position)[-1]
        return out.unflatten(0, proposals.shape[:2])


class SocialConstructor(nn.Module):
    """Proposals of targets attend to the neighbours of the target.

    A neighbour is one token, an MLP of all its proposals. With `joint`, it is K tokens, one per proposal (world), and a
    proposal attends to tokens of the same world only.
    """

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        width = config.block.width
        self.joint = config.joint
        self.vehicle = mlp((1 if config.joint else config.proposals) * width, width, width)
        self.tokens = NeighborTokenizer(width, config.social_radius_m, config.max_neighbors)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1]) if config.social_output == "decoded" else None

    def forward(
        self, observation: Observation, all_proposals: Tensor, proposals: Tensor, position: Tensor | None
    ) -> list[Tensor]:
        """Proposals of all agents [B, A, K, D] and of the targets [B, S, K, D], to features after each decoder layer.

        `position` [K, D] are the positional embeddings of the queries. Returns a tensor [B, S, K, D] per layer; without a
        decoder, one tensor [B, S, K, 2 D]: encoded target, then proposal.
        """
        worlds = all_proposals if self.joint else all_proposals.flatten(-2)[:, :, None]  # [B, A, W, ...], W = K or 1
        tokens, mask = self.tokens(observation, self.vehicle(worlds))  # [B, S, n, W, D], [B, S, n]
        key_mask = mask[:, :, None].expand(-1, -1, tokens.shape[3], -1)  # [B, S, W, n]
        memory = self.encoder(tokens.transpose(2, 3).flatten(0, 2), key_mask.flatten(0, 2)[:, None])
        memory = memory.unflatten(0, key_mask.shape[:3])  # [B, S, W, n, D]
        if self.decoder is None:
            target = memory[:, :, :, 0].expand_as(proposals)  # a target is its own nearest neighbour
            return [torch.cat([target, proposals], -1)]
        same_world = torch.eye(key_mask.shape[2], dtype=torch.bool, device=key_mask.device)[:, :, None]  # [W, W, 1]
        memory_mask = (same_world & key_mask[:, :, None]).flatten(-2).flatten(0, 1)  # [B * S, W, W * n]
        queries, memory = proposals.flatten(0, 1), memory.flatten(2, 3).flatten(0, 1)
        layers = self.decoder(queries, memory, memory_mask=memory_mask, position=position)
        return [layer.unflatten(0, proposals.shape[:2]) for layer in layers]


class MMTransformer(Forecaster, config=MMTransformerConfig):
    """Observation -> Forecast in the frame of each target. K is `proposals` in training, `modes` in evaluation.

    Forecasts of earlier social decoder layers are auxiliary, for the same losses.

    Attributes:
        regions: [M, 3], regions of end points (see `regions.py`), or None.
    """

    regions: Tensor | None

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.joint
        if config.regions is not None:
            self.losses = (RegionLossConfig,)
        elif config.joint:
            self.losses = (WorldLossConfig,)
        width, decoded = config.block.width, config.social_output == "decoded"
        self.motion = MotionExtractor(config)
        self.map = MapAggregator(config, config.map_layers) if config.map_layers else None
        self.social = SocialConstructor(config, config.social_layers) if config.social_layers else None
        queried = self.map is not None or (self.social is not None and decoded)
        self.position = nn.Parameter(torch.randn(config.proposals, width) * 0.02) if queried else None
        inputs = width if decoded else 2 * width
        self.trajectory = mlp(inputs, width, width, config.num_future * 2)
        self.score = mlp(inputs, width, width, 1)
        self.register_buffer("regions", initial_regions(config.regions) if config.regions else None)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        *earlier, last = [self._decode(observation, layer) for layer in self._layers(observation)]
        forecast = replace(last, auxiliary=tuple(earlier))
        if self.training or self.config.joint:
            return forecast
        if self.config.modes < self.config.proposals:
            forecast = endpoint_nms(forecast, self.config.modes, self.config.nms_radius_m)
        return consensus(forecast, self.config.consensus_m)

    def prepare(self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None) -> None:
        """Fit the regions to the end points of the training scenes, unless the config gives them."""
        if self.regions is not None and self.config.regions is not None and self.config.regions.fan is None:
            self.regions.copy_(fit_regions(scenes, self.config.regions.count, seed))

    def _layers(self, observation: Observation) -> list[Tensor]:
        """Features [B, S, K, ...] of the targets' proposals, for each social decoder layer."""
        count = observation.num_targets
        all_proposals = self.motion(observation)
        if self.map is not None and self.config.neighbour_map:
            all_proposals = self.map(observation, all_proposals, self.position)
        targets = all_proposals[:, :count]
        if self.map is not None and not self.config.neighbour_map:
            targets = self.map(observation, targets, self.position)
        if self.social is None:
            return [targets]
        if self.config.joint:  # neighbours that are targets are known by their features after the map aggregator
            first = torch.where(observation.target_mask[..., None, None], targets, all_proposals[:, :count])
            all_proposals = torch.cat([first, all_proposals[:, count:]], 1)
        return self.social(observation, all_proposals, targets, self.position)

    def _decode(self, observation: Observation, x: Tensor) -> Forecast:
        """Features [B, S, K, ...] to a forecast; with `joint`, scores are per world [B, K]."""
        scored = world_features(observation, x) if self.config.joint else x
        return forecast_from_offsets(observation, self.trajectory(x), self.score(scored))
