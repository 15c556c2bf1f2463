"""Lane-set transformer (Huang, Mo, Lv, ICRA 2022): a graph of agents, a set of lanes, and a separate attention for each mode.

Every agent's history is encoded by an LSTM; a target and the agents around it attend to one another. Each lane near the
target is summed up by the target's attention to its waypoints; each mode then has an attention of its own over the lanes, a
feed-forward layer is shared. A trajectory is decoded from [mode's map feature || target's feature], and so is its score, which
sends no gradient back to these features.

Readings taken. All agents of a scene are encoded once, in their own frames, and placed by relative poses where a target sees
them; the paper normalises a scene to one target. The LSTM reads the eight numbers of a displacement vector, earliest first,
those of steps unseen left out; the paper's eight are those of a state. Attention to waypoints and to lanes has no residual,
since a target's feature is given to the decoder beside them. An output is two offsets a step, summed up and added to the place
where the target would be at constant velocity. Where no lane is near, modes differ by what they have learned alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Encoder, FeedForward, Residual
from trajformer.core.separate import SeparateAttention
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths, forecast_from_offsets
from trajformer.models.modes import consensus
from trajformer.models.tokens import (
    NUM_ATTRIBUTES,
    NeighborTokenizer,
    mlp,
    motion_vectors,
    nearest_polylines,
    polyline_attributes,
    take,
)
from trajformer.scenes.scene import AgentKind


@dataclass(frozen=True)
class LaneSetConfig:
    """Sizes and reach of the lane-set transformer; those of the paper by default, as far as it gives them.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        consensus_m: in evaluation modes are scored anew by `forecast.consensus` at this temperature, that of the confidence
            loss; 0 keeps the scores of the network.
        steps_per_token: displacement vectors that the LSTM reads at once; the paper has 1.
        lstm_layers: its depth.
        block: shape of all attention and feed-forward layers.
        agent_layers: depth of the encoder over a target and the agents around it.
        social_radius_m, max_neighbors: agents that are seen, the target itself included.
        map_radius_m, max_polylines: lanes that are seen.
    """

    num_future: int
    modes: int = 6
    consensus_m: float = 1.0
    steps_per_token: int = 1
    lstm_layers: int = 2
    block: BlockConfig = field(default_factory=lambda: BlockConfig(width=256, heads=8, feedforward=1024))
    agent_layers: int = 2
    social_radius_m: float = 56.0
    max_neighbors: int = 24
    map_radius_m: float = 65.0
    max_polylines: int = 80

    def __post_init__(self) -> None:
        check_numbers(self, positive=("num_future", "modes", "steps_per_token", "lstm_layers", "max_neighbors", "max_polylines"))

    def build(self) -> LaneSetTransformer:
        """The model, with random weights."""
        return LaneSetTransformer(self)


class History(nn.Module):
    """An LSTM over the displacement vectors of every agent, and what kind of agent it is."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.steps, width = config.steps_per_token, config.block.width
        self.lstm = nn.LSTM(8 * self.steps, width, config.lstm_layers, batch_first=True)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> Tensor:
        """[B, A, D]; of an agent without a displacement, its kind alone."""
        vector, seen = (x.flatten(0, 1) for x in motion_vectors(observation, self.steps))
        order = seen.int().argsort(dim=-1, descending=True, stable=True)
        # What was seen comes first: behind it the LSTM runs on over zeros, to states that nobody reads.
        state, _ = self.lstm(vector.gather(1, order[..., None].expand_as(vector)))
        last = (seen.sum(-1) - 1).clamp(min=0)
        state = state[torch.arange(len(state), device=state.device), last] * seen.any(-1, keepdim=True)
        return state.unflatten(0, observation.agent_mask.shape) + self.kind(observation.agent_kind)


class AgentGraph(nn.Module):
    """Targets with the agents around them attend to one another."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.history = History(config)
        self.tokens = NeighborTokenizer(config.block.width, config.social_radius_m, config.max_neighbors)
        self.encoder = Encoder(config.block, config.agent_layers)

    def forward(self, observation: Observation) -> Tensor:
        """[B, S, D], of the targets."""
        token, mask = self.tokens(observation, self.history(observation))
        out = self.encoder(token.flatten(0, 1), mask.flatten(0, 1)[:, None])[:, 0]  # who is nearest to a target: itself
        return out.unflatten(0, token.shape[:2])


class LaneSet(nn.Module):
    """A target's view of the lanes around it: one feature a mode."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        block, self.config = config.block, config
        self.point, self.attribute = nn.Linear(5, block.width), nn.Linear(NUM_ATTRIBUTES, block.width)
        self.waypoint = nn.Sequential(nn.LayerNorm(block.width), nn.ReLU(), nn.Linear(block.width, block.width))
        self.look, self.lane = block.attention(), Residual(block, FeedForward(block))
        self.norm = nn.LayerNorm(block.width)
        self.choose = SeparateAttention(block.width, block.heads, config.modes, dropout=block.attention_dropout)
        self.mode = Residual(block, FeedForward(block))

    def forward(self, observation: Observation, agent: Tensor) -> Tensor:
        """[B, S, D] of the targets to [B, S, K, D]."""
        waypoint, real = self._waypoints(observation)
        query = agent[:, :, None].expand(*real.shape, -1).flatten(0, 2)[:, None]  # [B * S * n, 1, D]
        lane = self.norm(self.lane(self.look(query, waypoint.flatten(0, 2)))).squeeze(1).unflatten(0, real.shape)
        found = self.choose(agent[:, :, None], lane, mask=real[:, :, None])  # [B, S, K, 1, D]
        return self.mode(found.squeeze(-2))

    def _waypoints(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features [B, S, n, P, D] of the waypoints of lanes and bool [B, S, n], which lanes are real."""
        reach = (self.config.map_radius_m, self.config.max_polylines)
        index, real, point = nearest_polylines(observation, observation.num_targets, *reach)
        ahead = point[..., 1:, :] - point[..., :-1, :]
        ahead = torch.cat([ahead, ahead[..., -1:, :]], -2)
        x = self.point(torch.cat([point, ahead, point.norm(dim=-1, keepdim=True)], -1))
        return self.waypoint(x + take(self.attribute(polyline_attributes(observation)), index)[..., None, :]), real


class LaneSetTransformer(Forecaster):
    """Observation -> Forecast in each target's own frame.

    Raises:
        TrajformerError: a size that must be at least 1 is not.
    """

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.agents, self.lanes = AgentGraph(config), LaneSet(config)
        self.trajectory = mlp(2 * width, width, config.num_future * 2)
        self.score = mlp(2 * width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for.
        """
        check_lengths(observation, self.config.num_future)
        agent = self.agents(observation)
        mode = self.lanes(observation, agent)
        x = torch.cat([mode, agent[:, :, None].expand_as(mode)], -1)
        forecast = forecast_from_offsets(observation, self.trajectory(x), self.score(x.detach()))
        return forecast if self.training else consensus(forecast, self.config.consensus_m)
