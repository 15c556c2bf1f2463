"""Wayformer (Nayakanti et al. 2022): one attention encoder of a target's surroundings, learned queries, a Gaussian mixture.

Every target is a scene in its own frame: its history, the histories of the nearest agents, and the nearest polylines. They are
projected to a common width by relu(Wx + b), and learned positional embeddings, initialised to zero, are added. After one of the
encoders of `fusion.py`, K learned queries cross-attend to the memory and become the components of a Gaussian mixture. All targets
of all scenes are one batch.

Readings of the paper:
- Steps are counted back from the last one; agents and polylines are ordered by distance. Half of the channels of a positional
  embedding encode the step, half the slot.
- The features of a polyline are pooled over its segments (VectorNet's subgraph).
- Traffic lights are left out, because Argoverse has none.
- The decoder has self-attention among its queries.
- In evaluation, components are merged to `modes` (`aggregation.py`); the paper aggregates ensembles in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import ConfigError, check_numbers
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths, constant_velocity_path
from trajformer.models.tokens import MapTokenizer, agent_states, neighbors, state_width
from trajformer.models.wayformer.aggregation import AggregationConfig, aggregate
from trajformer.models.wayformer.fusion import Grid, SceneEncoder, SceneEncoderConfig

_MAX_LOG_SIGMA = 5.0  # sigma is between 7 mm and 150 m


@dataclass(frozen=True)
class WayformerConfig:
    """Sizes and reach of Wayformer.

    Attributes:
        num_future: F, steps to predict.
        proposals: K, number of decoder queries and components of the mixture.
        modes: number of modes in evaluation; if it is less than `proposals`, components are merged.
        aggregation: how components are merged.
        max_history: longest history that has positional embeddings.
        steps_per_token: number of states of an agent in a token; the paper has 1.
        encoder: fusion, attention, latents, depth and blocks.
        decoder_layers: number of layers of the decoder.
        decoder: shape of its blocks, by default as in the encoder.
        social_radius_m: largest distance of an agent that is an input.
        max_neighbors: largest number of agents that are inputs, including the target.
        map_radius_m: largest distance of a polyline that is an input.
        max_polylines: largest number of polylines that are inputs.
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
    max_neighbors: int = 65
    map_radius_m: float = 80.0
    max_polylines: int = 256
    map_width: int = 64

    def __post_init__(self) -> None:
        sizes = ("num_future", "proposals", "modes", "max_history", "steps_per_token", "decoder_layers")
        check_numbers(self, positive=(*sizes, "max_neighbors", "max_polylines", "map_width"))
        if self.modes > self.proposals:
            raise ConfigError("modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals")

    def build(self) -> Wayformer:
        """The model, with random weights."""
        return Wayformer(self)


class TargetScenes(nn.Module):
    """Tokens of the three modalities around each target."""

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.encoder.block.width
        features, steps = state_width(config.steps_per_token), -(-config.max_history // config.steps_per_token)
        self.history, self.agents = nn.Linear(features, width), nn.Linear(features, width)
        self.road = MapTokenizer(width, config.map_width, config.map_radius_m, config.max_polylines)
        self.sizes = [(steps, 1), (steps, config.max_neighbors - 1), (1, config.max_polylines)]
        self.positions = nn.ModuleList(LearnedPosition(size, width, std=0.0) for size in self.sizes)

    def forward(self, observation: Observation) -> list[Grid]:
        """Grids of history, agents and road; N = B * S."""
        index, near = neighbors(observation, self.config.social_radius_m, self.config.max_neighbors)
        state, seen = agent_states(observation, index, self.config.steps_per_token)
        road, real = self.road(observation, observation.num_targets)
        seen = seen & near[:, :, None]
        history, agents = self.history(state[..., :1, :]), self.agents(state[..., 1:, :])
        parts = [(history, seen[..., :1]), (agents, seen[..., 1:]), (road[:, :, None], real[:, :, None])]
        grids = [Grid(token.flatten(0, 1).relu(), mask.flatten(0, 1)) for token, mask in parts]
        return [
            Grid(grid.token + position(*grid.token.shape[1:3]).flip(0), grid.real)
            for grid, position in zip(grids, self.positions, strict=True)
        ]


class MixtureHead(nn.Module):
    """Two linear layers: the logit of a mode, and mean and log sigma of both coordinates at each step (diagonal covariance).

    The mean is the sum of the predicted offsets from step to step plus the position at constant velocity. Log sigma is bounded
    smoothly by 5 tanh(x / 5), so that it always has a gradient.
    """

    def __init__(self, width: int, num_future: int) -> None:
        super().__init__()
        self.num_future = num_future
        self.score = nn.Linear(width, 1)
        self.gaussian = nn.Linear(width, num_future * 4)

    def forward(self, observation: Observation, x: Tensor) -> Forecast:
        """Features [B, S, K, D] of modes to a forecast in the frame of each target; `scale` is sigma."""
        step, log_sigma = self.gaussian(x).float().unflatten(-1, (self.num_future, 4)).chunk(2, -1)
        sigma = (_MAX_LOG_SIGMA * (log_sigma / _MAX_LOG_SIGMA).tanh()).exp()
        logit, pose = self.score(x).squeeze(-1).float(), observation.pose[:, : observation.num_targets]
        return Forecast(constant_velocity_path(observation) + step.cumsum(-2), logit, Frame.AGENT, pose, sigma)


class Wayformer(Forecaster):
    """Observation -> Forecast in the frame of each target, with sigma as `scale`.

    K is `proposals` in training and `modes` in evaluation.
    """

    losses = (SetLossConfig, MixtureLossConfig)

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        self.config = config
        block = config.decoder or config.encoder.block
        self.scenes = TargetScenes(config)
        self.encoder = SceneEncoder(config.encoder, self.scenes.sizes)
        width = config.encoder.block.width
        self.bridge = nn.Identity() if block.width == width else nn.Linear(width, block.width)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, block.width)))
        self.decoder = Decoder(block, config.decoder_layers)
        self.head = MixtureHead(block.width, config.num_future)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets.

        Raises:
            TrajformerError: the horizon differs from `num_future`, or the history is longer than `max_history`.
        """
        check_lengths(observation, self.config.num_future, self.config.max_history)
        forecast = self.head(observation, self._components(observation))
        if self.training or self.config.modes == self.config.proposals:
            return forecast
        return aggregate(forecast, self.config.modes, self.config.aggregation)

    def _components(self, observation: Observation) -> Tensor:
        """Features of the components [B, S, K, D]."""
        memory, real = self.encoder(self.scenes(observation))
        queries = self.queries.expand(len(memory), -1, -1)
        x = self.decoder(queries, self.bridge(memory), memory_mask=real[:, None])[-1]
        return x.unflatten(0, (observation.num_scenes, observation.num_targets))
