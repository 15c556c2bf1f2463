"""Forecaster for crowds of pedestrians: K futures of all agents in one pass.

The observed steps of an agent attend to each other, the agent attends to its neighbors, and an MLP gives all K modes. Positions
are in the frame of the agent (x along its net displacement), divided by its mean step length, so that the model is independent of
direction and, to some extent, of speed. It uses neither a map nor the kind of agent.

Modes are trained by winner-takes-all, which is the set loss with one future. Augmentation with position noise
(`AugmentConfig.noise_m`) is important, because data sets differ in their noise.
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
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.losses.displacement import last_valid
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.horizon import check_lengths
from trajformer.models.modes import consensus
from trajformer.models.tokens import mlp, neighbors, take
from trajformer.scenes.geometry import rotate, to_frame


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
        radius_m, max_neighbors: maximum distance and number of neighbors, including the agent itself.
        max_history: longest history, which determines the number of learned positions.
        step_m: lower bound of the unit of length: unit^2 = (mean step length)^2 + step_m^2. An agent is at rest if no
            known step is longer than a fifth of it.
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
    """Tracks of agents, each in the frame of the agent."""

    pose: Tensor  # [B, A, 3], in the batch frame: last observed position; direction of the net displacement, or the heading
    unit: Tensor  # [B, A], unit of length in metres, about the mean step length
    rest: Tensor  # bool [B, A], steps are known, and none is longer than a fifth of `step_m`
    step: (
        Tensor  # [B, A, H, 2], displacements of a step in metres; means over gaps, zero if unknown
    )
    known: Tensor  # bool [B, A, H], True for known displacements
    xy: Tensor  # [B, A, H, 2], positions in metres


def agent_tracks(observation: Observation, step_m: float) -> AgentTracks:
    """Transform the observed track of each agent to its frame; `step_m` is the lower bound of the unit of length."""
    valid, end = observation.valid, observation.pose[..., :2]
    first, last = valid.int().argmax(-1), last_valid(valid)
    start = observation.position.take_along_dim(first[..., None, None], 2).squeeze(2)
    mean_step = (end - start) / (last - first).clamp(min=1)[..., None]
    length = mean_step.norm(dim=-1)
    moved = length > 1e-3  # others have no direction and keep their heading
    angle = torch.atan2(mean_step[..., 1], torch.where(moved, mean_step[..., 0], 1.0))
    angle = torch.where(moved, angle, observation.pose[..., 2])
    pose = torch.cat([end, angle[..., None]], -1)
    number = torch.arange(valid.shape[-1], device=valid.device)
    before = F.pad(
        torch.where(valid, number, -1).cummax(-1).values[..., :-1], (1, 0), value=-1
    )  # step in which it was seen last
    known = valid & (before >= 0)
    xy = to_frame(observation.position, pose[:, :, None]) * valid[..., None]
    step = (
        (xy - xy.take_along_dim(before.clamp(min=0)[..., None], 2))
        / (number - before)[..., None]
        * known[..., None]
    )
    rest = known.any(-1) & (step.norm(dim=-1).amax(-1) <= step_m / 5)
    return AgentTracks(pose, (length.square() + step_m**2).sqrt(), rest, step, known, xy)


class History(nn.Module):
    """Encodes the observed steps of each agent to one feature."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        width = config.block.width
        self.token = nn.Linear(6, width)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.time_layers)

    def forward(self, tracks: AgentTracks, valid: Tensor) -> Tensor:
        """The token of the last step [B, A, D]; `valid` [B, A, H] masks unseen steps."""
        unit, known = tracks.unit[..., None, None], tracks.known[..., None].float()
        scale = unit.log().expand_as(known)
        tokens = self.token(
            torch.cat([0.3 * tracks.xy / unit, tracks.step / unit, known, scale], -1)
        )  # [B, A, H, D]
        tokens = (
            tokens + self.time()[-tokens.shape[2] :]
        )  # positions count back from the last observed step
        return self.encoder.token(tokens, -1, valid[:, :, None])


class NeighborAttention(nn.Module):
    """Targets attend to the agents near them; keys encode relative position and velocity in the frame of the target."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        self.config = config
        self.token = mlp(8, config.block.width, config.block.width)
        self.attention = Residual(config.block, config.block.attention())
        self.feedforward = Residual(config.block, FeedForward(config.block))

    def forward(self, x: Tensor, tracks: AgentTracks, observation: Observation) -> Tensor:
        """Features of the targets [B, S, D] to the same shape."""
        index, near = neighbors(observation, self.config.radius_m, self.config.max_neighbors)
        pose = tracks.pose[:, : observation.num_targets]
        velocity = (
            rotate(tracks.step[:, :, -1], tracks.pose[..., 2]) / observation.period_s
        )  # in the batch frame
        velocity = rotate(
            take(velocity, index), -pose[:, :, None, 2]
        )  # [B, S, n, 2], in the frame of the target
        relative = (
            velocity
            - (tracks.step[:, : observation.num_targets, -1] / observation.period_s)[:, :, None]
        )
        point = to_frame(take(tracks.pose[..., :2], index), pose[:, :, None])
        distance = point.norm(dim=-1, keepdim=True)
        tokens = self.token(
            torch.cat([point / 3, distance / 3, 1 / (distance + 0.3), velocity, relative], -1)
        )
        out = self.attention.sublayer(
            self.attention.pre(x)[:, :, None], tokens, mask=near[:, :, None]
        )
        return self.feedforward(self.attention.post(x, out.squeeze(2)))


class CrowdForecaster(Forecaster, config=CrowdConfig):
    """Observation -> Forecast in the frame of each target."""

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
        """The set loss has to train the first mode as the single prediction (TrajformerError: `single` is 0)."""
        config = SetLossConfig(single=0.1) if config is None else config
        if not config.single:
            raise TrajformerError(
                "loss.set.single: 0, but the first mode of this model is its single prediction; use 0.1"
            )
        return config

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        tracks, targets = agent_tracks(observation, self.config.step_m), observation.num_targets
        x = self.history(tracks, observation.valid)[:, :targets]
        for layer in self.social:
            x = layer(x, tracks, observation)
        x = self.norm(x)
        offset = (
            self.trajectory(x)
            .float()
            .unflatten(-1, (self.config.modes, self.config.num_future, 2))
            .cumsum(-2)
        )
        straight = (
            torch.arange(1, self.config.num_future + 1, device=x.device)[:, None]
            * tracks.step[:, :targets, -1:]
        )
        if not self.training:  # a network moves agents at rest a little, which makes mode 0 worse than constant velocity
            none = tracks.rest[:, :targets, None] & (
                torch.arange(self.config.modes, device=x.device) == 0
            )
            offset = offset.masked_fill(none[..., None, None], 0.0)
        offset = offset * tracks.unit[:, :targets, None, None, None]  # [B, S, K, F, 2]
        forecast = Forecast(
            straight[:, :, None] + offset,
            self.score(x).float(),
            Frame.AGENT,
            tracks.pose[:, :targets],
        )
        if self.training:
            return forecast
        logit = consensus(forecast, self.config.consensus_m).logit
        most = logit.amax(-1, keepdim=True) + 1e-3  # mode 0 is the most probable mode
        return replace(forecast, logit=torch.cat([most, logit[..., 1:]], -1))
