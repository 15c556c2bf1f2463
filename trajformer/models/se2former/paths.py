"""Paths of SE2Former: a base path plus smooth components, and their fit to the training data.

A path is the sum of constant velocity, a mean path, and C smooth components per axis. The
components are the principal components of the residuals from constant velocity in the training
data, so forecasts are smooth by construction. For an agent at rest, velocity and mean count as
zero (`motion_scale`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trajformer.core.pose import Frames
from trajformer.data.batch import Observation, SceneBatch
from trajformer.data.distances import half_second
from trajformer.data.loading import TrainingScenes
from trajformer.errors import TrajformerError
from trajformer.models.horizon import future_time
from trajformer.models.se2former.features import Motion
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole

_REST_M = 0.5  # an agent that moves less in its history is at rest
_MOVING_M = 1.0  # an agent that moves more is moving
_REST_S = 1.5  # both distances are for this time: the history of two seconds less half a second
_MIN_PATH_M = 3.0  # shorter futures are not used for components: most of their residual is noise
_OUTLIER_M = 40.0  # larger residuals are errors of tracking
_CHUNK = 256  # scenes that are read together to fit components
_TAIL_STEPS = 5  # the direction of a path is the one of its last steps
_MIN_TAIL_M = 0.5  # a shorter tail has no direction


@dataclass(frozen=True, eq=False)
class PathProposals:
    """The output of the network: K modes and a median path of each target, in its own frame.

    The loss compares proposed and refined paths with the truth. `final_modes` in
    `single_forecast.py` turns the refined paths and scores into the modes of a forecast.
    """

    proposed: Tensor  # [B, S, K + 1, F, 2], metres, before the refinement; the last is the median
    refined: Tensor  # [B, S, K + 1, F, 2], after it; a median without a query is not refined
    logit: Tensor  # [B, S, K], or [B, K] of joint modes, before division by the temperature
    motion_scale: Tensor  # [B, S, 1, 1, 1], 0 at rest to 1 in motion
    feature: Tensor  # [B, S, K, D] of modes, from which `WorldMixture` predicts joint futures
    frames: Frames  # [B, S] of the targets

    @property
    def modes(self) -> Tensor:
        """The refined paths of the modes [B, S, K, F, 2]."""
        return self.refined[:, :, :-1]

    @property
    def median(self) -> Tensor:
        """The refined median path [B, S, 1, F, 2]."""
        return self.refined[:, :, -1:]

    @property
    def is_joint(self) -> bool:
        """True if mode k of all targets is one joint future."""
        return self.logit.ndim == 2


class BasePath(NamedTuple):
    """The path to which components are added, and the scale of motion."""

    position: Tensor  # [B, S, 1, F, 2], metres, in the frame of each target
    motion_scale: Tensor  # [B, S, 1, 1, 1]


def base_path(observation: Observation, motion: Motion, mean: Tensor | float = 0.0) -> BasePath:
    """Constant velocity plus `mean` [F, 2] for a moving target, its mean position for one at rest.

    The last velocity of an agent at rest is noise, and its last position is noisy. So the path of
    an agent at rest is the mean position of the last half second in which it was seen.
    `motion_scale` interpolates between both paths.
    """
    first, last = _half_second_means(observation, motion)
    scale = _motion_scale(first, last, observation.period_s)[..., None, None, None]
    velocity = motion.velocity[:, : observation.num_targets, None, None]
    moving = velocity * future_time(observation)[:, None] + mean
    resting = last[:, :, None, None, :2]
    return BasePath(scale * moving + (1 - scale) * resting, scale)


def _half_second_means(observation: Observation, motion: Motion) -> tuple[Tensor, Tensor]:
    """Mean position and time of the first and of the last half second in which a target was seen.

    Each is [B, S, 3]: x and y in metres in the frame of the target, and seconds; zeros if no step
    counts. If a target was seen for less than a second, the first half of its steps counts for
    the first mean, and the second half for the last.
    """
    targets = observation.num_targets
    seen = observation.valid[:, :targets]
    time = torch.arange(observation.num_history, device=seen.device) * observation.period_s
    time = time[:, None].expand(*seen.shape, 1)
    point = torch.cat([motion.position[:, :targets], time], -1)  # [B, S, H, 3]

    number = seen.cumsum(-1)  # of each seen step, from 1
    total = number[..., -1:]
    steps = half_second(observation.period_s)
    late = number > total // 2
    first = ~late & (number <= steps)
    last = late & (number > total - steps)
    counted = torch.stack([first, last], -2) & seen[..., None, :]  # [B, S, 2, H]
    sums = (point[:, :, None] * counted[..., None]).sum(-2)
    means = sums / counted.sum(-1, keepdim=True).clamp(min=1)
    return means[:, :, 0], means[:, :, 1]


def _motion_scale(first: Tensor, last: Tensor, period_s: float) -> Tensor:
    """Scale of motion [...] between two means [..., 3] of `_half_second_means`.

    It rises from 0 for agents that moved less than .5 m in their history to 1 for those that moved
    more than 1 m. A distance in less than 1.5 s is divided by the square root of this fraction of
    1.5 s, because motion grows with time and noise does not. An agent that was seen once has
    scale 0.
    """
    gap = last - first
    time_fraction = gap[..., 2].clamp(min=period_s) / _REST_S
    moved = gap[..., :2].norm(dim=-1) * time_fraction.clamp(max=1).rsqrt()
    return ((moved - _REST_M) / (_MOVING_M - _REST_M)).clamp(0, 1)


def sum_components(coefficient: Tensor, basis: Tensor) -> Tensor:
    """Sums [..., F, 2] in metres of components [2, C, F] with coefficients [..., 2 C].

    Also under autocast, they are computed in single precision.
    """
    with torch.autocast(coefficient.device.type, enabled=False):
        return torch.einsum("...ac,acf->...fa", coefficient.unflatten(-1, (2, -1)), basis)


def path_ends(path: Tensor) -> tuple[Tensor, Tensor]:
    """Last positions and directions (cosine, sine), each [..., 2], of paths [..., F, 2].

    A path that ends at rest has the direction (1, 0).
    """
    end = path[..., -1, :]
    steps = min(_TAIL_STEPS + 1, path.shape[-2])
    tail = end - path[..., -steps, :]
    length = tail.norm(dim=-1, keepdim=True)
    ahead = torch.zeros_like(tail)
    ahead[..., 0] = 1.0
    direction = torch.where(length > _MIN_TAIL_M, tail / length.clamp(min=0.1), ahead)
    return end, direction


def turn(vector: Tensor, direction: Tensor) -> Tensor:
    """Vectors [..., 2] rotated by the angle of directions (cosine, sine) [..., 2]."""
    x, y = vector.unbind(-1)
    cos, sin = direction.unbind(-1)
    turned_x = torch.addcmul(x * cos, y, sin, value=-1)
    turned_y = torch.addcmul(y * cos, x, sin)
    return torch.stack([turned_x, turned_y], -1)


def turn_back(vector: Tensor, direction: Tensor) -> Tensor:
    """The inverse of `turn`."""
    opposite = torch.stack([direction[..., 0], -direction[..., 1]], -1)
    return turn(vector, opposite)


def residual_basis(scenes: TrainingScenes, components: int) -> tuple[Tensor, Tensor]:
    """Fit the mean [F, 2] and the components [2, C, F] to the residuals from base paths.

    Residuals are in metres, in the frame of the target, of all targets that move and have a
    complete future. Focal agents count twice. Each axis has its own components, scaled by their
    standard deviation. Raises TrajformerError: there are not more residuals than components.
    """
    parts: list[Tensor] = []
    for start in range(0, len(scenes), _CHUNK):
        indices = range(start, min(start + _CHUNK, len(scenes)))
        parts += _residuals(scenes[list(indices)])
    residual = torch.cat(parts)
    residual = residual[residual.abs().amax((1, 2)) < _OUTLIER_M]
    if len(residual) <= components:
        raise TrajformerError(
            f"only {len(residual)} training futures are complete and at least {_MIN_PATH_M:g} m "
            f"long, too few for {components} components; use more scenes"
        )
    mean = residual.mean(0)
    centered = residual - mean
    basis = [_principal_components(axis, components) for axis in centered.unbind(-1)]
    return mean, torch.stack(basis)


def _residuals(batch: SceneBatch) -> tuple[Tensor, Tensor]:
    """Residuals [N, F, 2] of the targets that count, then of the focal agents again."""
    observation = batch.observation
    truth = batch.truth
    targets = observation.num_targets
    path = to_frame(truth.position, observation.pose[:, :targets, None])
    moves = path[..., -1, :].norm(dim=-1) > _MIN_PATH_M
    counts = truth.valid.all(-1) & moves
    base = base_path(observation, Motion.of(observation))
    residual = path - base.position[:, :, 0]
    focal = observation.agent_role[:, :targets] == int(AgentRole.FOCAL)
    return residual[counts], residual[counts & focal]


def _principal_components(values: Tensor, count: int) -> Tensor:
    """The first `count` components [count, F] of centered values [N, F], times their deviation."""
    _, size, component = torch.linalg.svd(values, full_matrices=False)
    deviation = size[:count] / math.sqrt(len(values))
    return component[:count] * deviation[:, None]
