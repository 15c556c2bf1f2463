"""Lane-set transformer (Huang, Mo, Lv, ICRA 2022): a graph of agents, a set of lanes, and separate attention for each mode.

An LSTM encodes the history of each agent. A target and the agents around it attend to each other. The target attends to the
waypoints of each lane nearby, which gives one feature per lane; then each mode has separate attention over the lanes, and all
modes share a feed-forward layer. Trajectory and score are decoded from [map feature of the mode || target feature]. The score
sends no gradient to these features.

Interpretation of the paper:
- Agents are encoded once, in their own frames, with relative poses; the paper normalizes a scene to one target.
- The LSTM reads displacement vectors (8 numbers), without unseen steps; the paper has states of 8 numbers.
- Attention to waypoints and lanes has no residual connection, since the decoder receives the target feature separately.
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
        consensus_m: temperature of `modes.consensus`, which scores the modes in evaluation (the temperature of the confidence
            loss); 0 keeps the scores of the network.
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
        self.steps, width = config.steps_per_token, config.block.width
        self.lstm = nn.LSTM(8 * self.steps, width, config.lstm_layers, batch_first=True)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> Tensor:
        """Features [B, A, D]; the embedding of the kind only for an agent without a displacement."""
        vector, seen = (x.flatten(0, 1) for x in motion_vectors(observation, self.steps))
        order = seen.int().argsort(dim=-1, descending=True, stable=True)
        # Seen steps are moved to the front; the states after the last seen step are not used.
        vector = vector.gather(1, order[..., None].expand_as(vector))
        with torch.autocast(
            vector.device.type, enabled=False
        ):  # not every CPU has an LSTM in bfloat16
            state, _ = self.lstm(vector.float())
        last = (seen.sum(-1) - 1).clamp(min=0)
        state = state[torch.arange(len(state), device=state.device), last] * seen.any(
            -1, keepdim=True
        )
        return state.unflatten(0, observation.agent_mask.shape) + self.kind(observation.agent_kind)


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
        token, mask = self.tokens(observation, self.history(observation))
        return self.encoder.token(token, 0, mask[:, :, None])  # the target itself


class LaneSet(nn.Module):
    """Features of the lanes around a target, one for each mode."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        block, self.config = config.block, config
        self.point, self.attribute = (
            nn.Linear(5, block.width),
            nn.Linear(NUM_ATTRIBUTES, block.width),
        )
        self.waypoint = nn.Sequential(
            nn.LayerNorm(block.width), nn.ReLU(), nn.Linear(block.width, block.width)
        )
        self.look, self.lane = block.attention(), Residual(block, FeedForward(block))
        self.norm = nn.LayerNorm(block.width)
        self.choose = SeparateAttention(
            block.width, block.heads, config.modes, dropout=block.attention_dropout
        )
        self.mode = Residual(block, FeedForward(block))

    def forward(self, observation: Observation, agent: Tensor) -> Tensor:
        """Features of the targets [B, S, D] to map features [B, S, K, D]."""
        waypoint, real = self._waypoints(observation)
        query = agent[:, :, None, None].repeat(1, 1, real.shape[2], 1, 1)  # [B, S, n, 1, D]
        lane = self.norm(self.lane(self.look(query, waypoint))).squeeze(3)  # [B, S, n, D]
        mode = self.choose(agent[:, :, None], lane, mask=real[:, :, None])  # [B, S, K, 1, D]
        return self.mode(mode.squeeze(-2))

    def _waypoints(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features of waypoints [B, S, n, P, D] and bool [B, S, n]: False for missing lanes."""
        limits = (self.config.map_radius_m, self.config.max_polylines)
        index, real, point = nearest_polylines(observation, observation.num_targets, *limits)
        step = point[..., 1:, :] - point[..., :-1, :]
        step = torch.cat([step, step[..., -1:, :]], -2)
        x = self.point(torch.cat([point, step, point.norm(dim=-1, keepdim=True)], -1))
        return self.waypoint(
            x + take(self.attribute(polyline_attributes(observation)), index)[..., None, :]
        ), real


class LaneSetTransformer(Forecaster, config=LaneSetConfig):
    """Observation -> Forecast in the frame of each target."""

    def __init__(self, config: LaneSetConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.agents, self.lanes = AgentGraph(config), LaneSet(config)
        self.trajectory = mlp(2 * width, width, config.num_future * 2)
        self.score = mlp(2 * width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future)
        agent = self.agents(observation)
        mode = self.lanes(observation, agent)
        x = torch.cat([mode, agent[:, :, None].expand_as(mode)], -1)
        forecast = forecast_from_offsets(observation, self.trajectory(x), self.score(x.detach()))
        return forecast if self.training else consensus(forecast, self.config.consensus_m)
