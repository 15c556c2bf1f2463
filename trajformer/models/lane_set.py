"""Lane-set transformer (Huang, Mo, Lv, ICRA 2022): agents, a set of lanes, attention per mode.

An LSTM encodes the history of each agent. A target and the agents around it attend to each other.
The target attends to the waypoints of each lane nearby, which gives one feature per lane; then each
mode has separate attention over the lanes, and all modes share a feed-forward layer. Trajectory and
score are decoded from [map feature of the mode || target feature]. The score sends no gradient to
these features.

Interpretation of the paper:
- Agents are encoded once, in their own frames, with relative poses; the paper normalizes a scene to
  one target.
- The LSTM reads displacement vectors (8 numbers), without unseen steps; the paper has states of 8
  numbers.
- Attention to waypoints and lanes has no residual connection, since the decoder receives the target
  feature separately.
- Predicted offsets are cumulated and added to constant velocity.
- Without lanes nearby, modes differ by learned biases only.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Encoder, FeedForward, Residual
from trajformer.core.multihead import SeparateAttention
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.models.forecaster import Forecaster, ModelConfig
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
class LaneSetConfig(
    ModelConfig,
    positive=(
        "num_future",
        "modes",
        "steps_per_token",
        "lstm_layers",
        "max_neighbors",
        "max_polylines",
    ),
):
    """Sizes and radii of the lane-set transformer, by default as in the paper.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        consensus_m: temperature of `modes.consensus`, which scores the modes in evaluation (the
            temperature of the confidence loss); 0 keeps the scores of the network.
        steps_per_token: displacement vectors in each input of the LSTM; the paper has 1.
        lstm_layers: layers of the LSTM.
        block: shape of all attention and feed-forward layers.
        agent_layers: encoder layers over a target and the agents around it.
        social_radius_m, max_neighbors: maximum distance and number of agents, including the target.
        map_radius_m, max_polylines: maximum distance and number of lanes.
    """

    num_future: int
    modes: int = 6
    consensus_m: float = 1.0
    steps_per_token: int = 1
    lstm_layers: int = 2
    block: BlockConfig = field(
        default_factory=lambda: BlockConfig(width=256, heads=8, feedforward=1024)
    )
    agent_layers: int = 2
    social_radius_m: float = 56.0
    max_neighbors: int = 24
    map_radius_m: float = 65.0
    max_polylines: int = 80


class History(nn.Module):
    """LSTM over the displacement vectors of each agent, plus an embedding of the agent's kind."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.steps = config.steps_per_token
        width = config.block.width
        self.lstm = nn.LSTM(8 * self.steps, width, config.lstm_layers, batch_first=True)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> Tensor:
        """Features [B, A, D]; without a displacement, only the embedding of the agent's kind."""
        vectors, mask = motion_vectors(observation, self.steps)
        vector = vectors.flatten(0, 1)  # [B * A, L, 8 * steps]
        seen = mask.flatten(0, 1)  # [B * A, L]
        # Seen steps are moved to the front; the states after the last seen step are not used.
        order = seen.int().argsort(dim=-1, descending=True, stable=True)
        vector = vector.gather(1, order[..., None].expand_as(vector))
        # Not every CPU has an LSTM in bfloat16.
        with torch.autocast(vector.device.type, enabled=False):
            states, _ = self.lstm(vector.float())  # [B * A, L, D]

        last = (seen.sum(-1) - 1).clamp(min=0)
        agent = torch.arange(len(states), device=states.device)
        state = states[agent, last] * seen.any(-1, keepdim=True)
        state = state.unflatten(0, observation.agent_mask.shape)  # [B, A, D]
        return state + self.kind(observation.agent_kind)


class AgentGraph(nn.Module):
    """Attention between a target and the agents around it."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.history = History(config)
        self.tokens = NeighborTokenizer(
            config.block.width, config.social_radius_m, config.max_neighbors
        )
        self.encoder = Encoder(config.block, config.agent_layers)

    def forward(self, observation: Observation) -> Tensor:
        """Features of the targets [B, S, D]."""
        agents = self.history(observation)  # [B, A, D]
        tokens, mask = self.tokens(observation, agents)  # [B, S, n, D], [B, S, n]
        return self.encoder.token(tokens, 0, mask[:, :, None])  # token 0 is the target itself


class LaneSet(nn.Module):
    """Features of the lanes around a target, one for each mode."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.config = config
        block = config.block
        width = block.width
        self.point = nn.Linear(5, width)
        self.attribute = nn.Linear(NUM_ATTRIBUTES, width)
        self.waypoint = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width))
        self.look = block.attention()
        self.lane = Residual(block, FeedForward(block))
        self.norm = nn.LayerNorm(width)
        self.choose = SeparateAttention(
            width, block.heads, config.modes, dropout=block.attention_dropout
        )
        self.mode = Residual(block, FeedForward(block))

    def forward(self, observation: Observation, agent: Tensor) -> Tensor:
        """Features of the targets [B, S, D] to map features [B, S, K, D]."""
        waypoints, real = self._waypoints(observation)  # [B, S, n, P, D], [B, S, n]
        query = agent[:, :, None, None].repeat(1, 1, real.shape[2], 1, 1)  # [B, S, n, 1, D]
        lanes = self.lane(self.look(query, waypoints))
        lanes = self.norm(lanes).squeeze(3)  # [B, S, n, D]
        modes = self.choose(agent[:, :, None], lanes, mask=real[:, :, None])  # [B, S, K, 1, D]
        return self.mode(modes.squeeze(-2))

    def _waypoints(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features of waypoints [B, S, n, P, D] and bool [B, S, n]: False for missing lanes."""
        index, real, point = nearest_polylines(
            observation,
            observation.num_targets,
            self.config.map_radius_m,
            self.config.max_polylines,
        )
        # Waypoint, step to the next one (the last step is repeated), distance from the target.
        step = point[..., 1:, :] - point[..., :-1, :]
        step = torch.cat([step, step[..., -1:, :]], -2)
        distance = point.norm(dim=-1, keepdim=True)
        x = self.point(torch.cat([point, step, distance], -1))
        attribute = self.attribute(polyline_attributes(observation))  # [B, M, D]
        x = x + take(attribute, index)[..., None, :]
        return self.waypoint(x), real


class LaneSetTransformer(Forecaster, config=LaneSetConfig):
    """Observation -> Forecast in the frame of each target."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.agents = AgentGraph(config)
        self.lanes = LaneSet(config)
        self.trajectory = mlp(2 * width, width, config.num_future * 2)
        self.score = mlp(2 * width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future)
        agent = self.agents(observation)  # [B, S, D]
        modes = self.lanes(observation, agent)  # [B, S, K, D]
        x = torch.cat([modes, agent[:, :, None].expand_as(modes)], -1)  # [B, S, K, 2 D]
        forecast = forecast_from_offsets(observation, self.trajectory(x), self.score(x.detach()))
        if self.training:
            return forecast
        return consensus(forecast, self.config.consensus_m)
