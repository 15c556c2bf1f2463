"""mmTransformer (Liu et al., CVPR 2021): stacked transformers over motion, map and neighbours.

K proposals per agent are queries that pass through a motion extractor (its own history), a map aggregator (lanes) and
a social constructor (neighbours). Read as the paper has it, with these choices of ours: every agent is normalised in
its own frame instead of one target's, so that all targets of a scene are predicted in one pass; positions of the
history are learned and added at each attention (DETR style); proposals start from orthogonal learned queries; offsets
are cumulated on top of constant velocity. The released code's way to the heads is `social_output: appended`.

With `regions` proposals k * N to (k + 1) * N - 1 are those of region k, whose borders are part of the model.

With `joint` (ours, not the paper's) proposal k of all targets is one world: in the social constructor it meets the others'
k-th proposals only, and a world's score is that of its targets' mean feature.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.errors import ConfigError, check_numbers
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.mmtransformer.loss import RegionLossConfig
from trajformer.models.mmtransformer.regions import RegionConfig, first_regions, fit_regions
from trajformer.models.modes import consensus, endpoint_nms
from trajformer.models.tokens import MapTokenizer, MotionTokenizer, NeighborTokenizer, mlp


@dataclass(frozen=True)
class MMTransformerConfig:
    """Sizes and reach of mmTransformer.

    Attributes:
        num_future: F, steps to predict.
        proposals: K queries of the network.
        modes: modes of a forecast in evaluation; fewer than `proposals` are chosen by end-point suppression.
        nms_radius_m: end points nearer than this to a more probable one are suppressed.
        consensus_m: in evaluation modes are scored anew by `forecast.consensus` at this temperature, that of the
            confidence loss; 0 keeps the scores of the network.
        max_history: longest history that has learned positions.
        steps_per_token: displacement vectors in a motion token; the paper has 1.
        block: shape of every transformer block.
        motion_layers, map_layers, social_layers: encoder and decoder layers of the three parts; the last two may be left out.
        map_radius_m, max_polylines: lanes an agent attends to.
        map_width: width inside the polyline subgraph.
        social_radius_m, max_neighbors: neighbours a target attends to, itself included.
        neighbour_map: neighbours, too, pass the map aggregator (the paper); else they are known by their motion.
        social_output: proposals pass a social decoder (the paper), or go to the heads side by side with what the social encoder
            made of their target, without one (the released code).
        regions: proposals are divided between regions of end points; recipes then train with `region_loss`.
        joint: proposal k of all targets is one world, with one probability; recipes then train with `world_loss`.
    """

    num_future: int
    proposals: int = 6
    modes: int = 6
    nms_radius_m: float = 2.0
    consensus_m: float = 1.0
    max_history: int = 50
    steps_per_token: int = 1
    block: BlockConfig = field(default_factory=BlockConfig)
    motion_layers: tuple[int, int] = (2, 2)
    map_layers: tuple[int, int] | None = (2, 2)
    social_layers: tuple[int, int] | None = (2, 4)
    map_radius_m: float = 65.0
    max_polylines: int = 80
    map_width: int = 64
    social_radius_m: float = 56.0
    max_neighbors: int = 24
    neighbour_map: bool = False
    social_output: Literal["decoded", "appended"] = "decoded"
    regions: RegionConfig | None = None
    joint: bool = False

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=(
                "num_future",
                "proposals",
                "modes",
                "max_history",
                "steps_per_token",
                "max_polylines",
                "map_width",
                "max_neighbors",
            ),
        )
        decoded = self.social_output == "decoded"
        stacks = {"motion_layers": self.motion_layers, "map_layers": self.map_layers}
        for name, layers in (stacks | {"social_layers": self.social_layers if decoded else None}).items():
            if layers and layers[1] < 1:
                raise ConfigError(name, f"{layers}, expected at least one decoder layer")
        if self.modes > self.proposals:
            raise ConfigError("modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals")
        if self.regions is not None and self.proposals % self.regions.count:
            raise ConfigError("proposals", f"{self.proposals}, expected a multiple of {self.regions.count} regions")
        if not decoded and not self.social_layers:
            raise ConfigError("social_output", "appended needs social_layers")
        if self.joint and (self.modes < self.proposals or self.regions is not None or not self.social_layers):
            raise ConfigError("joint", "needs social_layers, as many modes as proposals, and no regions")

    def build(self) -> MMTransformer:
        """The model, with random weights."""
        return MMTransformer(self)


class MotionExtractor(nn.Module):
    """History of every agent to K proposal features."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.tokens = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.motion_layers[0])
        self.decoder = Decoder(config.block, config.motion_layers[1])
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, width)))

    def forward(self, observation: Observation) -> Tensor:
        """[B, A, K, D]."""
        tokens, mask = self.tokens(observation)
        time = self.time()[-tokens.shape[2] :]  # positions count back from the last observed step
        keys, shape = mask.flatten(0, 1)[:, None], tokens.shape[:2]
        memory = self.encoder(tokens.flatten(0, 1), keys, time)
        queries = self.queries.expand(len(memory), -1, -1)
        proposals = self.decoder(queries, memory, memory_mask=keys, position=self.queries, memory_position=time)[-1]
        return proposals.unflatten(0, shape)


class MapAggregator(nn.Module):
    """Proposals attend to the lanes around their agent."""

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = MapTokenizer(config.block.width, config.map_width, config.map_radius_m, config.max_polylines)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1])

    def forward(self, observation: Observation, proposals: Tensor, position: Tensor | None) -> Tensor:
        """[B, N, K, D] of the first N agents to the same shape."""
        tokens, mask = self.tokens(observation, proposals.shape[1])
        keys = mask.flatten(0, 1)[:, None]
        memory = self.encoder(tokens.flatten(0, 1), keys)
        out = self.decoder(proposals.flatten(0, 1), memory, memory_mask=keys, position=position)[-1]
        return out.unflatten(0, proposals.shape[:2])


class SocialConstructor(nn.Module):
    """Targets' proposals attend to their neighbours.

    A neighbour is one token made of all its proposals. Of joint worlds it is K tokens, one of each proposal, and a target's
    proposal sees only those of its own world: what the others do there.
    """

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        width = config.block.width
        self.joint = config.joint
        self.vehicle = mlp((1 if config.joint else config.proposals) * width, width, width)
        self.tokens = NeighborTokenizer(width, config.social_radius_m, config.max_neighbors)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1]) if config.social_output == "decoded" else None

    def forward(self, observation: Observation, everyone: Tensor, proposals: Tensor, position: Tensor | None) -> list[Tensor]:
        """All agents' proposals [B, A, K, D] and the targets' [B, S, K, D] to every layer's [B, S, K, D].

        Without a decoder it is one layer [B, S, K, 2 D]: a target's social memory, then its proposals.
        """
        worlds = everyone if self.joint else everyone.flatten(-2)[:, :, None]  # [B, A, W, ...], W = K or 1
        tokens, mask = self.tokens(observation, self.vehicle(worlds))  # [B, S, n, W, D], [B, S, n]
        keys = mask[:, :, None].expand(-1, -1, tokens.shape[3], -1)  # [B, S, W, n]
        memory = self.encoder(tokens.transpose(2, 3).flatten(0, 2), keys.flatten(0, 2)[:, None]).unflatten(0, keys.shape[:3])
        if self.decoder is None:
            own = memory[:, :, :, 0].expand_as(proposals)  # a target is its own nearest neighbour
            return [torch.cat([own, proposals], -1)]
        same = torch.eye(keys.shape[2], dtype=torch.bool, device=keys.device)[:, :, None]  # [W, W, 1]
        seen = (same & keys[:, :, None]).flatten(-2).flatten(0, 1)  # [B * S, W, W * n]
        layers = self.decoder(proposals.flatten(0, 1), memory.flatten(2, 3).flatten(0, 1), memory_mask=seen, position=position)
        return [layer.unflatten(0, proposals.shape[:2]) for layer in layers]


class MMTransformer(Forecaster):
    """Observation -> Forecast in each target's own frame, K = `proposals` in training, `modes` in evaluation.

    Every social decoder layer's forecast is kept as auxiliary, for the same losses. `regions` [M, 3] is what
    `models.regions` says, None without them.

    Raises:
        TrajformerError: parts or sizes that do not go together.
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
        self.register_buffer("regions", first_regions(config.regions) if config.regions else None)

    def forward(self, observation: Observation) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
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
        """Features [B, S, K, ...] of the targets' proposals after each social decoder layer, or after the part before."""
        everyone = self.motion(observation)
        targets = everyone[:, : observation.num_targets]
        if self.map is not None and self.config.neighbour_map:
            everyone = self.map(observation, everyone, self.position)
            targets = everyone[:, : observation.num_targets]
        elif self.map is not None:
            targets = self.map(observation, targets, self.position)
        if self.social is None:
            return [targets]
        if self.config.joint:  # what a target is about to do on its lane is what the others must know
            first = torch.where(observation.target_mask[..., None, None], targets, everyone[:, : observation.num_targets])
            everyone = torch.cat([first, everyone[:, observation.num_targets :]], 1)
        return self.social(observation, everyone, targets, self.position)

    def _decode(self, observation: Observation, x: Tensor) -> Forecast:
        """Features [B, S, K, ...] to a forecast, whose scores are of worlds [B, K] with `joint`."""
        scored = world_features(observation, x) if self.config.joint else x
        return forecast_from_offsets(observation, self.trajectory(x), self.score(scored))
