"""mmTransformer (Liu et al., CVPR 2021): stacked transformers over motion, map and neighbors.

K learned queries per agent (proposals) pass a motion extractor (own history), a map aggregator
(lanes) and a social constructor (neighbors). Two heads predict offsets and a score.

Differences from the paper:
- Every agent is normalised in its own frame instead of the target's, so that all targets of a scene
  are predicted in one pass.
- Positional embeddings are learned and added in each attention (DETR style); queries are
  initialised orthogonally.
- Offsets from step to step are added to the positions at constant velocity.
- With `social_output: appended`, features reach the heads as in the released code.
- With `regions` (section 3.4), proposals k * N to (k + 1) * N - 1 belong to region k. Regions are a
  buffer of the model (`regions.py`); their loss is `region_loss.py`.
- With `joint` (not in the paper), proposal k of all targets is one world: in the social constructor
  it attends to the k-th proposals of the neighbors only, and the score of a world is computed from
  the mean feature of its targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.loading import TrainingScenes
from trajformer.errors import ConfigError
from trajformer.losses.world_loss import WorldLossConfig
from trajformer.models.attended import TargetAttention, to_agents_and_pieces
from trajformer.models.forecaster import Forecaster, TargetModelConfig
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.mmtransformer.region_loss import RegionLossConfig
from trajformer.models.mmtransformer.regions import fit_regions
from trajformer.models.modes import consensus, endpoint_nms
from trajformer.models.tokens import (
    MapTokenizer,
    MotionTokenizer,
    NeighborTokenizer,
    mlp,
    nearest_polylines,
    neighbors,
)


@dataclass(frozen=True)
class MMTransformerConfig(TargetModelConfig, positive=("proposals", "regions")):
    """Sizes and reach of mmTransformer.

    Attributes:
        modes: number of modes in evaluation; if it is less than `proposals`, modes are selected by
            end-point suppression.
        proposals: K, number of queries.
        nms_radius_m: end points closer than this to a more probable one are suppressed.
        motion_layers: numbers of encoder and decoder layers of the motion extractor.
        map_layers: the same for the map aggregator; None leaves it out.
        social_layers: the same for the social constructor; None leaves it out.
        neighbor_map: neighbors pass the map aggregator, as in the paper; otherwise their features
            contain motion only.
        social_output: decoded: proposals pass a social decoder (paper). appended: there is no
            social decoder, and the encoded target is concatenated to its proposals (released code).
        regions: M, number of regions of end points that proposals are divided between, fitted to
            the training data before training; the default loss is then `regions`. None: no regions.
        joint: proposal k of all targets is one world with one probability; the default loss is then
            `worlds`.
    """

    proposals: int = 6
    nms_radius_m: float = 2.0
    motion_layers: tuple[int, int] = (2, 2)
    map_layers: tuple[int, int] | None = (2, 2)
    social_layers: tuple[int, int] | None = (2, 4)
    neighbor_map: bool = False
    social_output: Literal["decoded", "appended"] = "decoded"
    regions: int | None = None
    joint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        decoders = {"motion_layers": self.motion_layers, "map_layers": self.map_layers}
        if self.social_output == "decoded":
            decoders["social_layers"] = self.social_layers
        for name, layers in decoders.items():
            if layers and layers[1] < 1:
                raise ConfigError(name, f"{layers}, expected at least one decoder layer")
        if self.social_output == "appended" and not self.social_layers:
            raise ConfigError("social_output", "appended needs social_layers")

        if self.modes > self.proposals:
            raise ConfigError(
                "modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals"
            )
        if self.regions is not None and self.proposals % self.regions:
            raise ConfigError(
                "proposals", f"{self.proposals}, expected a multiple of {self.regions} regions"
            )
        can_be_joint = self.social_layers and self.regions is None and self.modes == self.proposals
        if self.joint and not can_be_joint:
            raise ConfigError(
                "joint", "needs social_layers, modes equal to proposals, and no regions"
            )


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
        tokens, mask = self.tokens(observation)  # [B, A, L, D], [B, A, L]
        # Embeddings are counted back from the last observed step.
        time = self.time()[-tokens.shape[2] :]  # [L, D]
        memory_mask = mask[:, :, None]
        memory = self.encoder(tokens, memory_mask, time)
        layers = self.decoder(
            self.queries.expand(*mask.shape[:2], -1, -1),
            memory,
            memory_mask=memory_mask,
            position=self.queries,
            memory_position=time,
        )
        return layers[-1]


class MapAggregator(nn.Module):
    """Proposals attend to the lanes around their agent."""

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = MapTokenizer(
            config.block.width, config.map_width, config.map_radius_m, config.max_polylines
        )
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1])

    def forward(
        self, observation: Observation, proposals: Tensor, position: Tensor | None
    ) -> Tensor:
        """Proposals of the first N agents [B, N, K, D] to the same shape."""
        tokens, mask = self.tokens(observation, proposals.shape[1])  # [B, N, n, D], [B, N, n]
        memory_mask = mask[:, :, None]
        memory = self.encoder(tokens, memory_mask)
        layers = self.decoder(proposals, memory, memory_mask=memory_mask, position=position)
        return layers[-1]

    def attention_layers(self, observation: Observation) -> list[TargetAttention]:
        """The decoder layers, see `Forecaster.attention_layers`."""
        targets = observation.num_targets
        tokens = self.tokens
        index, _, _ = nearest_polylines(observation, targets, tokens.radius_m, tokens.count)

        def by_target(weights: Tensor) -> Tensor:
            of_targets = weights[:, :targets].mean(-2)  # [B, S, heads, n] of [B, N, heads, K, n]
            return to_agents_and_pieces(observation, pieces=(of_targets, index))

        return [
            TargetAttention(f"lanes {number}", layer, by_target)
            for number, layer in enumerate(self.decoder.cross_attentions(), 1)
        ]


class SocialConstructor(nn.Module):
    """Proposals of targets attend to the neighbors of the target.

    A neighbor is one token, an MLP of all its proposals. With `joint`, it is K tokens, one per
    proposal (world), and a proposal attends to tokens of the same world only.
    """

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        width = config.block.width
        self.joint = config.joint
        vehicle_inputs = width if config.joint else config.proposals * width
        self.vehicle = mlp(vehicle_inputs, width, width)
        self.tokens = NeighborTokenizer(width, config.social_radius_m, config.max_neighbors)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = None
        if config.social_output == "decoded":
            self.decoder = Decoder(config.block, layers[1])

    def forward(
        self,
        observation: Observation,
        all_proposals: Tensor,
        proposals: Tensor,
        position: Tensor | None,
    ) -> list[Tensor]:
        """Proposals of all agents [B, A, K, D] and of the targets [B, S, K, D] to features.

        `position` [K, D] are the positional embeddings of the queries. Returns a tensor [B, S, K,
        D] for each decoder layer; without a decoder, one tensor [B, S, K, 2 D]: encoded target,
        then proposal.
        """
        # A vehicle has W = K tokens (worlds) if joint, else W = 1 token from all K proposals.
        worlds = all_proposals
        if not self.joint:
            worlds = all_proposals.flatten(-2)[:, :, None]  # [B, A, 1, K * D]
        tokens, mask = self.tokens(observation, self.vehicle(worlds))  # [B, S, n, W, D], [B, S, n]
        tokens = tokens.transpose(2, 3).contiguous()  # [B, S, W, n, D]
        memory = self.encoder(tokens, mask[:, :, None, None])

        if self.decoder is None:
            # A target is its own nearest neighbor.
            target = memory[:, :, :, 0].expand_as(proposals)
            return [torch.cat([target, proposals], -1)]

        same_world = torch.eye(memory.shape[2], dtype=torch.bool, device=mask.device)
        memory_mask = same_world[:, :, None] & mask[:, :, None, None]  # [B, S, W, W, n]
        return self.decoder(
            proposals,
            memory.flatten(2, 3),
            memory_mask=memory_mask.flatten(-2),
            position=position,
        )

    def attention_layers(self, observation: Observation) -> list[TargetAttention]:
        """The decoder layers, or without a decoder the encoder layers, from the target."""
        tokens = self.tokens
        index, _ = neighbors(observation, tokens.radius_m, tokens.count)  # [B, S, n]

        def of_decoder(weights: Tensor) -> Tensor:
            """[B, S, heads, K, W * n]; a proposal attends to the tokens of its world only."""
            mean = weights.mean(-2).unflatten(-1, (-1, index.shape[-1]))  # [B, S, heads, W, n]
            return to_agents_and_pieces(observation, agents=(mean.sum(-2), index))

        def of_encoder(weights: Tensor) -> Tensor:
            """[B, S, W, heads, n, n]; the target is its own nearest neighbor."""
            of_target = weights[..., 0, :].mean(2)
            return to_agents_and_pieces(observation, agents=(of_target, index))

        if self.decoder is None:
            return [
                TargetAttention(f"neighbors {number}", layer, of_encoder)
                for number, layer in enumerate(self.encoder.attentions(), 1)
            ]
        return [
            TargetAttention(f"neighbors {number}", layer, of_decoder)
            for number, layer in enumerate(self.decoder.cross_attentions(), 1)
        ]


class MMTransformer(Forecaster, config=MMTransformerConfig):
    """Observation -> Forecast in the frame of each target.

    K is `proposals` in training, `modes` in evaluation. Forecasts of earlier social decoder layers
    are auxiliary, for the same losses.
    """

    regions: Tensor | None  # [M, 3], regions of end points (see `fit_regions`)

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.joint = config.joint
        if config.regions is not None:
            self.losses = (RegionLossConfig,)
        elif config.joint:
            self.losses = (WorldLossConfig,)

        self.motion = MotionExtractor(config)
        self.map = None
        if config.map_layers:
            self.map = MapAggregator(config, config.map_layers)
        self.social = None
        if config.social_layers:
            self.social = SocialConstructor(config, config.social_layers)

        # Positional embeddings of the proposals, for the decoders of map and neighbors.
        width = config.block.width
        appended = config.social_output == "appended"
        has_social_decoder = self.social is not None and not appended
        self.position = None
        if self.map is not None or has_social_decoder:
            self.position = nn.Parameter(torch.randn(config.proposals, width) * 0.02)

        inputs = 2 * width if appended else width
        self.trajectory = mlp(inputs, width, width, config.num_future * 2)
        self.score = mlp(inputs, width, width, 1)
        # Zeros until `prepare` fits the regions to the training data.
        regions = None if config.regions is None else torch.zeros(config.regions, 3)
        self.register_buffer("regions", regions)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        layers = self._proposal_features(observation)  # [B, S, K, ...] of each layer
        forecasts = [self._forecast(observation, features) for features in layers]
        forecast = replace(forecasts[-1], auxiliary=tuple(forecasts[:-1]))
        if self.training or self.config.joint:
            return forecast
        if self.config.modes < self.config.proposals:
            forecast = endpoint_nms(forecast, self.config.modes, self.config.nms_radius_m)
        return consensus(forecast, self.config.consensus_m)

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers of the map aggregator, to lanes only, and of the social constructor.

        Shares are the mean over proposals.
        """
        layers: list[TargetAttention] = []
        if self.map is not None:
            layers += self.map.attention_layers(observation)
        if self.social is not None:
            layers += self.social.attention_layers(observation)
        return layers

    def prepare(
        self, scenes: TrainingScenes, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Fit the regions to the end points of the training scenes, if the model has regions."""
        if self.regions is not None:
            self.regions.copy_(fit_regions(scenes, len(self.regions), seed))

    def _proposal_features(self, observation: Observation) -> list[Tensor]:
        """Features [B, S, K, ...] of the targets' proposals, for each social decoder layer."""
        num_targets = observation.num_targets
        proposals = self.motion(observation)  # [B, A, K, D]
        if self.map is None:
            targets = proposals[:, :num_targets]
        elif self.config.neighbor_map:
            proposals = self.map(observation, proposals, self.position)
            targets = proposals[:, :num_targets]
        else:
            targets = self.map(observation, proposals[:, :num_targets], self.position)
        if self.social is None:
            return [targets]

        if self.joint:
            # Neighbors that are targets are known by their features after the map aggregator.
            is_target = observation.target_mask[..., None, None]
            first = torch.where(is_target, targets, proposals[:, :num_targets])
            proposals = torch.cat([first, proposals[:, num_targets:]], 1)
        return self.social(observation, proposals, targets, self.position)

    def _forecast(self, observation: Observation, features: Tensor) -> Forecast:
        """The forecast from features [B, S, K, ...] of one layer."""
        scored = world_features(observation, features) if self.joint else features
        return forecast_from_offsets(observation, self.trajectory(features), self.score(scored))
