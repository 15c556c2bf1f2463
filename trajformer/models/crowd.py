"""Forecaster for crowds of pedestrians: K futures of all agents in one pass.

The observed steps of an agent attend to each other, the agent attends to its neighbors, and an MLP
gives all K modes. Positions are in the frame of the agent (x along its net displacement), divided
by its mean step length, so that the model is independent of direction and, to some extent, of
speed. It uses neither a map nor the kind of agent.

Modes are trained by winner-takes-all, which is the set loss with one future. Augmentation with
position noise (`AugmentConfig.noise_m`) is important, because data sets differ in their noise.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig, Encoder, FeedForward, Residual
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.indexing import take_along
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.losses.displacement import last_valid
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.horizon import check_lengths
from trajformer.models.modes import consensus
from trajformer.models.tokens import mlp, neighbors, take
from trajformer.scenes.geometry import rotate, to_frame

_MIN_STEP_M = 1e-3  # a shorter mean step has no direction
_POSITION_SCALE = 0.3  # of positions in units of the mean step, for features of the order of one
_DISTANCE_SCALE_M = 3.0  # relative positions of neighbors are divided by it
_NEAR_M = 0.3  # added to the distance of a neighbor before its inverse is taken
_LOGIT_LEAD = 1e-3  # of mode 0 over the best other mode
_SINGLE_WEIGHT = 0.1  # default weight of the single prediction in the set loss


@dataclass(frozen=True)
class CrowdConfig(
    ModelConfig, positive=("num_future", "modes", "time_layers", "max_neighbors", "max_history")
):
    """Sizes and reach.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        block: shape of all transformer blocks.
        time_layers: encoder layers over the observed steps of an agent.
        social_layers: layers of attention to neighbors; 0 predicts each agent independently.
        radius_m, max_neighbors: maximum distance and number of neighbors, including the agent
            itself.
        max_history: longest history, which determines the number of learned positions.
        step_m: lower bound of the unit of length: unit^2 = (mean step length)^2 + step_m^2. An
            agent is at rest if no known step is longer than a fifth of it.
        consensus_m: temperature of `modes.consensus`, which scores the modes in evaluation.
    """

    num_future: int = 12
    modes: int = 20
    block: BlockConfig = field(
        default_factory=lambda: BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    )
    time_layers: int = 2
    social_layers: int = 1
    radius_m: float = 4.0
    max_neighbors: int = 8
    max_history: int = 20
    step_m: float = 0.1
    consensus_m: float = 1.0


@dataclass(frozen=True, eq=False)
class AgentTracks:
    """Tracks of agents, each in the frame of the agent.

    Attributes:
        pose: [B, A, 3], in the batch frame: the present position, and the direction of the
            net displacement, or the heading of an agent without displacement.
        unit: [B, A], unit of length in metres, about the mean step length.
        rest: bool [B, A], steps are known, and none is longer than a fifth of `step_m`.
        step: [B, A, H, 2], displacements of a step in metres; means over gaps, zero if unknown.
        known: bool [B, A, H], True for known displacements.
        position: [B, A, H, 2], metres.
    """

    pose: Tensor
    unit: Tensor
    rest: Tensor
    step: Tensor
    known: Tensor
    position: Tensor


def agent_tracks(observation: Observation, step_m: float) -> AgentTracks:
    """Transform the observed track of each agent to its frame.

    `step_m` is the lower bound of the unit of length, in metres.
    """
    valid = observation.valid

    # The frame: x is along the mean step from the first to the last observed position.
    first = valid.int().argmax(-1)
    last = last_valid(valid)
    start = take_along(observation.position, first[..., None, None], 2).squeeze(2)
    end = observation.pose[..., :2]
    mean_step = (end - start) / (last - first).clamp(min=1)[..., None]
    length = mean_step.norm(dim=-1)
    moved = length > _MIN_STEP_M
    # The gradient of atan2 is not finite at the origin.
    angle = torch.atan2(mean_step[..., 1], torch.where(moved, mean_step[..., 0], 1.0))
    angle = torch.where(moved, angle, observation.pose[..., 2])
    pose = torch.cat([end, angle[..., None]], -1)
    position = to_frame(observation.position, pose[:, :, None]) * valid[..., None]

    # Displacements from the step in which the agent was seen before, per step of the gap.
    index = torch.arange(valid.shape[-1], device=valid.device)
    last_seen = torch.where(valid, index, -1).cummax(-1).values
    before = F.pad(last_seen[..., :-1], (1, 0), value=-1)
    known = valid & (before >= 0)
    position_before = take_along(position, before.clamp(min=0)[..., None], 2)
    step = (position - position_before) / (index - before)[..., None] * known[..., None]

    rest = known.any(-1) & (step.norm(dim=-1).amax(-1) <= step_m / 5)
    unit = (length.square() + step_m**2).sqrt()
    return AgentTracks(pose, unit, rest, step, known, position)


class History(nn.Module):
    """Encodes the observed steps of each agent to one feature."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        width = config.block.width
        self.token = nn.Linear(6, width)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.time_layers)

    def forward(self, tracks: AgentTracks, observation: Observation) -> Tensor:
        """The token of the last step [B, A, D]."""
        unit = tracks.unit[..., None, None]
        known = (tracks.known & observation.recorded)[..., None].float()
        position = _POSITION_SCALE * tracks.position / unit
        features = [position, tracks.step / unit, known, unit.log().expand_as(known)]
        tokens = self.token(torch.cat(features, -1))  # [B, A, H, D]
        # Learned positions count back from the last observed step.
        tokens = tokens + self.time()[-tokens.shape[2] :]
        return self.encoder.token(tokens, -1, observation.valid[:, :, None])


class NeighborAttention(nn.Module):
    """Targets attend to the agents near them.

    Keys encode relative position and velocity in the frame of the target.
    """

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        self.config = config
        self.token = mlp(8, config.block.width, config.block.width)
        self.attention = Residual(config.block, config.block.attention())
        self.feedforward = Residual(config.block, FeedForward(config.block))

    def forward(self, x: Tensor, tracks: AgentTracks, observation: Observation) -> Tensor:
        """Features of the targets [B, S, D] to the same shape."""
        index, near = neighbors(observation, self.config.radius_m, self.config.max_neighbors)
        tokens = self.token(_neighbor_features(tracks, index, observation.period_s))
        query = self.attention.pre(x)[:, :, None]
        out = self.attention.sublayer(query, tokens, mask=near[:, :, None])
        x = self.attention.post(x, out.squeeze(2))
        return self.feedforward(x)


def _neighbor_features(tracks: AgentTracks, index: Tensor, period_s: float) -> Tensor:
    """Features [B, S, n, 8] of neighbors `index` [B, S, n] in the frame of the target.

    They are position, distance, inverse distance, velocity and relative velocity.
    """
    targets = index.shape[1]
    pose = tracks.pose[:, :targets, None]
    point = to_frame(take(tracks.pose[..., :2], index), pose)
    distance = point.norm(dim=-1, keepdim=True)
    inverse = 1 / (distance + _NEAR_M)

    last_step = tracks.step[:, :, -1]
    in_batch_frame = rotate(last_step, tracks.pose[..., 2]) / period_s
    velocity = rotate(take(in_batch_frame, index), -pose[..., 2])  # [B, S, n, 2]
    target_velocity = last_step[:, :targets] / period_s
    relative = velocity - target_velocity[:, :, None]

    features = [point / _DISTANCE_SCALE_M, distance / _DISTANCE_SCALE_M, inverse]
    return torch.cat([*features, velocity, relative], -1)


class CrowdForecaster(Forecaster, config=CrowdConfig):
    """Observation -> Forecast in the frame of each target; mode 0 is the single prediction."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.history = History(config)
        self.social = nn.ModuleList(NeighborAttention(config) for _ in range(config.social_layers))
        self.norm = nn.LayerNorm(width)
        self.trajectory = mlp(width, 2 * width, config.modes * config.num_future * 2, norm=False)
        self.score = mlp(width, width, config.modes, norm=False)

    def choose_loss(self, config: Any | None) -> Any:
        """The set loss has to train the first mode as the single prediction.

        Raises TrajformerError: `single` is 0.
        """
        if config is None:
            return SetLossConfig(single=_SINGLE_WEIGHT)
        if not config.single:
            raise TrajformerError(
                "loss.set.single: 0, but the first mode of this model is its single prediction; "
                f"use {_SINGLE_WEIGHT}"
            )
        return config

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        tracks = agent_tracks(observation, self.config.step_m)
        targets = observation.num_targets
        x = self.history(tracks, observation)[:, :targets]
        for layer in self.social:
            x = layer(x, tracks, observation)
        x = self.norm(x)

        # Offsets from the path that repeats the last step.
        steps = self.trajectory(x).float()
        offset = steps.unflatten(-1, (self.config.modes, self.config.num_future, 2)).cumsum(-2)
        if not self.training:
            # A network moves agents at rest a little, so that mode 0 would be worse than rest.
            first_mode = torch.arange(self.config.modes, device=x.device) == 0
            rests = tracks.rest[:, :targets, None] & first_mode
            offset = offset.masked_fill(rests[..., None, None], 0.0)
        offset = offset * tracks.unit[:, :targets, None, None, None]  # [B, S, K, F, 2]
        number = torch.arange(1, self.config.num_future + 1, device=x.device)
        straight = number[:, None] * tracks.step[:, :targets, -1:]  # [B, S, F, 2]
        position = straight[:, :, None] + offset

        pose = tracks.pose[:, :targets]
        forecast = Forecast(position, self.score(x).float(), Frame.AGENT, pose)
        if self.training:
            return forecast
        return _with_first_mode_best(consensus(forecast, self.config.consensus_m))


def _with_first_mode_best(forecast: Forecast) -> Forecast:
    """The forecast with mode 0 as the most probable mode."""
    logit = forecast.logit
    highest = logit.amax(-1, keepdim=True) + _LOGIT_LEAD
    return replace(forecast, logit=torch.cat([highest, logit[..., 1:]], -1))
