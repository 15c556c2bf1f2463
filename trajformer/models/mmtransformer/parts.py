"""The three stacked parts of mmTransformer, and its config: motion extractor, map aggregator, social constructor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import SceneBatch
from trajformer.models.mmtransformer.regions import RegionConfig
from trajformer.models.tokens import MapTokenizer, MotionTokenizer, NeighbourTokenizer, mlp


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
        social_radius_m, max_neighbours: neighbours a target attends to, itself included.
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
    max_neighbours: int = 24
    neighbour_map: bool = False
    social_output: Literal["decoded", "appended"] = "decoded"
    regions: RegionConfig | None = None
    joint: bool = False


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

    def forward(self, batch: SceneBatch) -> Tensor:
        """[B, A, K, D]."""
        tokens, mask = self.tokens(batch)
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

    def forward(self, batch: SceneBatch, proposals: Tensor, position: Tensor | None) -> Tensor:
        """[B, N, K, D] of the first N agents to the same shape."""
        tokens, mask = self.tokens(batch, proposals.shape[1])
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
        self.tokens = NeighbourTokenizer(width, config.social_radius_m, config.max_neighbours)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1]) if config.social_output == "decoded" else None

    def forward(self, batch: SceneBatch, everyone: Tensor, proposals: Tensor, position: Tensor | None) -> list[Tensor]:
        """All agents' proposals [B, A, K, D] and the targets' [B, S, K, D] to every layer's [B, S, K, D].

        Without a decoder it is one layer [B, S, K, 2 D]: a target's social memory, then its proposals.
        """
        worlds = everyone if self.joint else everyone.flatten(-2)[:, :, None]  # [B, A, W, ...], W = K or 1
        tokens, mask = self.tokens(batch, self.vehicle(worlds))  # [B, S, n, W, D], [B, S, n]
        keys = mask[:, :, None].expand(-1, -1, tokens.shape[3], -1)  # [B, S, W, n]
        memory = self.encoder(tokens.transpose(2, 3).flatten(0, 2), keys.flatten(0, 2)[:, None]).unflatten(0, keys.shape[:3])
        if self.decoder is None:
            own = memory[:, :, :, 0].expand_as(proposals)  # a target is its own nearest neighbour
            return [torch.cat([own, proposals], -1)]
        same = torch.eye(keys.shape[2], dtype=torch.bool, device=keys.device)[:, :, None]  # [W, W, 1]
        seen = (same & keys[:, :, None]).flatten(-2).flatten(0, 1)  # [B * S, W, W * n]
        layers = self.decoder(proposals.flatten(0, 1), memory.flatten(2, 3).flatten(0, 1), memory_mask=seen, position=position)
        return [layer.unflatten(0, proposals.shape[:2]) for layer in layers]
