"""A forecaster for crowds: K futures of everybody in one pass, in each agent's own frame and at its own pace.

An agent's observed steps attend to one another, the agent then attends to its neighbours, and one linear map gives all K
modes at once; no sampling, no rollout. Lengths are divided by the length of the agent's mean observed step, directions are
turned by that of its net displacement: walking fast is walking, whatever way. There is no map and no kind of agent in it.

Modes are trained by winner-takes-all, which is the set loss with one known future. Augmentation matters more than size:
recordings differ in how noisy they are, and whoever has seen smooth ones only trusts the last step (`AugmentConfig.noise_m`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Encoder, FeedForward, Residual
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import check_numbers
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths
from trajformer.models.modes import consensus
from trajformer.models.tokens import mlp, neighbors, take
from trajformer.scenes.geometry import rotate, to_frame


@dataclass(frozen=True)
class CrowdConfig:
    """Sizes and reach.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        block: shape of every transformer block.
        time_layers: encoder layers over an agent's observed steps.
        social_layers: layers in which agents attend to their neighbours; 0 for every agent by itself.
        radius_m, max_neighbors: whom an agent attends to, itself included.
        max_history: longest history that has learned positions.
        step_m: added (as squares) to the mean length of a step, so that standing is no division by zero.
        consensus_m: in evaluation modes are scored by `forecast.consensus` at this temperature.
        first: the first mode is trained as the best single guess (`SetLossConfig.single`): in evaluation it is the most probable.
        trust: share of the first mode's offset from constant velocity that is kept in evaluation. Crowds that were never seen
            go their own ways: between the two, the error is smaller there than that of either, and no larger elsewhere.
    """

    num_future: int = 12
    modes: int = 20
    block: BlockConfig = field(default_factory=lambda: BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0))
    time_layers: int = 2
    social_layers: int = 1
    radius_m: float = 4.0
    max_neighbors: int = 8
    max_history: int = 20
    step_m: float = 0.1
    consensus_m: float = 1.0
    first: bool = True
    trust: float = 0.7

    def __post_init__(self) -> None:
        check_numbers(self, positive=("num_future", "modes", "time_layers", "max_neighbors", "max_history"), shares=("trust",))

    def build(self) -> CrowdForecaster:
        """The model, with random weights."""
        return CrowdForecaster(self)


@dataclass(frozen=True, eq=False)
class Own:
    """Agents in their own frames.

    Attributes:
        pose: [B, A, 3] of each agent's frame in the batch frame: last observed position, direction of its net displacement.
        unit: [B, A], length of its mean step, in metres.
        step: [B, A, H, 2], displacements since the step before in metres, zero where unknown.
        known: bool [B, A, H], where they are not.
        xy: [B, A, H, 2], positions in metres.
    """

    pose: Tensor
    unit: Tensor
    step: Tensor
    known: Tensor
    xy: Tensor


def own_frames(observation: Observation, step_m: float) -> Own:
    """What every agent did, seen from where it was last and looking where it went."""
    valid, place = observation.valid, observation.pose[..., :2]
    index = torch.arange(observation.num_history, device=valid.device)
    first = torch.where(valid, index, observation.num_history).amin(-1).clamp(max=observation.num_history - 1)
    last = torch.where(valid, index, 0).amax(-1)
    begin = observation.position.gather(2, first[..., None, None].expand(*first.shape, 1, 2)).squeeze(2)
    travel = (place - begin) / (last - first).clamp(min=1)[..., None]
    pace = travel.norm(dim=-1)
    moved = pace > 1e-3  # who stands has no direction
    angle = torch.where(moved, torch.atan2(travel[..., 1], torch.where(moved, travel[..., 0], 1.0)), 0.0)
    pose = torch.cat([place, angle[..., None]], -1)
    known = valid & torch.cat([torch.zeros_like(valid[..., :1]), valid[..., :-1]], -1)
    xy = to_frame(observation.position, pose[:, :, None]) * valid[..., None]
    step = torch.cat([torch.zeros_like(xy[:, :, :1]), xy[:, :, 1:] - xy[:, :, :-1]], 2) * known[..., None]
    return Own(pose, (pace.square() + step_m**2).sqrt(), step, known, xy)


class History(nn.Module):
    """Observed steps of every agent to one feature."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        width = config.block.width
        self.token = nn.Linear(6, width)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.time_layers)

    def forward(self, own: Own, valid: Tensor) -> Tensor:
        """[B, A, D]: the token of the last step, which an agent that left before does not have."""
        unit = own.unit[..., None, None]
        pace = unit.log().expand(*own.known.shape, 1)
        tokens = self.token(torch.cat([0.3 * own.xy / unit, own.step / unit, own.known[..., None].float(), pace], -1))
        tokens = (tokens + self.time()[-tokens.shape[2] :]).flatten(0, 1)  # positions count back from the last observed step
        return self.encoder(tokens, valid.flatten(0, 1)[:, None])[:, -1].unflatten(0, valid.shape[:2])


class Neighbours(nn.Module):
    """Agents attend to those near them, who are told by place and velocity as the agent sees them."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        self.config = config
        self.token = mlp(8, config.block.width, config.block.width)
        self.attention = Residual(config.block, config.block.attention())
        self.feedforward = Residual(config.block, FeedForward(config.block))

    def forward(self, x: Tensor, own: Own, observation: Observation) -> Tensor:
        """[B, S, D] of the targets to the same."""
        index, near = neighbors(observation, self.config.radius_m, self.config.max_neighbors)
        pose = own.pose[:, : observation.num_targets]
        velocity = rotate(own.step[:, :, -1], own.pose[..., 2]) / observation.period_s  # in the batch frame
        theirs = rotate(take(velocity, index), -pose[:, :, None, 2])
        relative = theirs - (own.step[:, : observation.num_targets, -1] / observation.period_s)[:, :, None]
        point = to_frame(take(own.pose[..., :2], index), pose[:, :, None])
        distance = point.norm(dim=-1, keepdim=True)
        tokens = self.token(torch.cat([point / 3, distance / 3, 1 / (distance + 0.3), theirs, relative], -1))
        query = self.attention.pre(x)[:, :, None]
        found = self.attention.sublayer(query.flatten(0, 1), tokens.flatten(0, 1), mask=near.flatten(0, 1)[:, None])
        return self.feedforward(self.attention.post(x, found.view_as(x)))


class CrowdForecaster(Forecaster):
    """Observation -> Forecast in each target's own frame."""

    def __init__(self, config: CrowdConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.history = History(config)
        self.social = nn.ModuleList(Neighbours(config) for _ in range(config.social_layers))
        self.norm = nn.LayerNorm(width)
        self.trajectory = mlp(width, 2 * width, config.modes * config.num_future * 2, norm=False)
        self.score = mlp(width, width, config.modes, norm=False)

    def forward(self, observation: Observation) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        check_lengths(observation, self.config.num_future, self.config.max_history)
        own, targets = own_frames(observation, self.config.step_m), observation.num_targets
        x = self.history(own, observation.valid)[:, :targets]
        for layer in self.social:
            x = layer(x, own, observation)
        x = self.norm(x)
        offset = self.trajectory(x).float().unflatten(-1, (self.config.modes, self.config.num_future, 2)).cumsum(-2)
        ahead = torch.arange(1, self.config.num_future + 1, device=x.device)[:, None] * own.step[:, :targets, -1:]
        offset = offset * own.unit[:, :targets, None, None, None]
        if self.config.first and not self.training:
            offset = torch.cat([self.config.trust * offset[:, :, :1], offset[:, :, 1:]], 2)
        forecast = Forecast(ahead[:, :, None] + offset, self.score(x).float(), Frame.AGENT, own.pose[:, :targets])
        if self.training:
            return forecast
        forecast = consensus(forecast, self.config.consensus_m)
        return _first_first(forecast) if self.config.first else forecast


def _first_first(forecast: Forecast) -> Forecast:
    """With the first mode's score raised just above all others'."""
    logit = forecast.logit
    best = logit.amax(-1, keepdim=True) + 1e-3
    return replace(forecast, logit=torch.cat([best, logit[..., 1:]], -1))
