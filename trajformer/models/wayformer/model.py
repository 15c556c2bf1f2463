"""Wayformer (Nayakanti et al. 2022): one attention encoder of everything around a target, learned queries, a mixture.

Every target is a scene of its own, seen from it: its history, the nearest agents' histories at the same steps, the nearest
polylines. Projected to a common width by relu(Wx + b) and given learned positions that start at zero, they pass one of the
family's encoders (`fusion.py`); K learned queries read what comes out and become the components of a Gaussian mixture
(`mixture.py`). All targets of all scenes are one batch of such scenes.

Readings taken. Steps are counted back from the last one, agents and polylines by their distance; a position's channels are
half of the step, half of the slot. A polyline's features x are the pooled ones of its segments (VectorNet's subgraph), not
a segment alone. Traffic lights are left out: Argoverse has none. The decoder has self-attention among the queries, as
usual. In evaluation more components than wanted are merged (`aggregation.py`); the paper aggregates ensembles alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.models.horizon import at_least_one, check_lengths
from trajformer.models.tokens import MapTokenizer, agent_states, neighbours, state_width
from trajformer.models.wayformer.aggregation import AggregationConfig, aggregate
from trajformer.models.wayformer.fusion import Grid, SceneEncoder, SceneEncoderConfig
from trajformer.models.wayformer.mixture import MixtureHead


@dataclass(frozen=True)
class WayformerConfig:
    """Sizes and reach of Wayformer.

    Attributes:
        num_future: F, steps to predict.
        proposals: K queries of the decoder, components of the mixture.
        modes: modes of a forecast in evaluation; more components are merged into so many.
        aggregation: how they are.
        max_history: longest history that has learned positions.
        steps_per_token: states of an agent in a token; the paper has 1.
        encoder: fusion, attention and latents, depth and blocks.
        decoder_layers: depth of the decoder.
        decoder: shape of its blocks; the encoder's by default.
        social_radius_m, max_neighbours: agents that are seen, the target itself included.
        map_radius_m, max_polylines: polylines that are seen.
        map_width: width inside the polyline subgraph.
    """

    num_future: int
    proposals: int = 6
    modes: int = 6
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    max_history: int = 50
    steps_per_token: int = 1
    encoder: SceneEncoderConfig = field(default_factory=SceneEncoderConfig)
    decoder_layers: int = 6
    decoder: BlockConfig | None = None
    social_radius_m: float = 80.0
    max_neighbours: int = 65
    map_radius_m: float = 80.0
    max_polylines: int = 256
    map_width: int = 64


class TargetScenes(nn.Module):
    """The three modalities around every target as tokens."""

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.encoder.block.width
        features, steps = state_width(config.steps_per_token), -(-config.max_history // config.steps_per_token)
        self.history, self.agents = nn.Linear(features, width), nn.Linear(features, width)
        self.road = MapTokenizer(width, config.map_width, config.map_radius_m, config.max_polylines)
        self.sizes = [(steps, 1), (steps, config.max_neighbours - 1), (1, config.max_polylines)]
        self.positions = nn.ModuleList(LearnedPosition(size, width, std=0.0) for size in self.sizes)

    def forward(self, batch: SceneBatch) -> list[Grid]:
        """Grids of history, agents and road, N = B x S."""
        index, near = neighbours(batch, self.config.social_radius_m, self.config.max_neighbours)
        state, seen = agent_states(batch, index, self.config.steps_per_token)
        road, real = self.road(batch, batch.num_targets)
        seen = seen & near[:, :, None]
        history, agents = self.history(state[..., :1, :]), self.agents(state[..., 1:, :])
        parts = [(history, seen[..., :1]), (agents, seen[..., 1:]), (road[:, :, None], real[:, :, None])]
        grids = [Grid(token.flatten(0, 1).relu(), mask.flatten(0, 1)) for token, mask in parts]
        return [
            Grid(grid.token + position(*grid.token.shape[1:3]).flip(0), grid.real)
            for grid, position in zip(grids, self.positions, strict=True)
        ]


class Wayformer(nn.Module):
    """SceneBatch -> Forecast in each target's own frame, `scale` is sigma; K = `proposals` in training, `modes` in evaluation.

    Raises:
        TrajformerError: a size that must be at least 1 is not, more modes are wanted than there are components, or latents do
            not go with the attention.
    """

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        at_least_one("wayformer", config, "modes", "steps_per_token", "decoder_layers", "max_neighbours")
        if config.modes > config.proposals:
            raise TrajformerError(f"wayformer.modes: {config.modes} of only {config.proposals} proposals")
        self.config = config
        block = config.decoder or config.encoder.block
        self.scenes = TargetScenes(config)
        self.encoder = SceneEncoder(config.encoder, self.scenes.sizes)
        same = block.width == config.encoder.block.width
        self.bridge = nn.Identity() if same else nn.Linear(config.encoder.block.width, block.width)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, block.width)))
        self.decoder = Decoder(block, config.decoder_layers)
        self.head = MixtureHead(block.width, config.num_future)

    def forward(self, batch: SceneBatch) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        check_lengths(batch, self.config.num_future, self.config.max_history)
        forecast = self.head(batch, self._components(batch))
        if self.training or self.config.modes == self.config.proposals:
            return forecast
        return aggregate(forecast, self.config.modes, self.config.aggregation)

    def _components(self, batch: SceneBatch) -> Tensor:
        """[B, S, K, D]."""
        memory, real = self.encoder(self.scenes(batch))
        queries = self.queries.expand(len(memory), -1, -1)
        x = self.decoder(queries, self.bridge(memory), memory_mask=real[:, None])[-1]
        return x.unflatten(0, (batch.num_scenes, batch.num_targets))
