"""Motion of agents in their own frames, for SE2Former: features, and the paths and components that forecasts are sums of."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajformer.data.batch import Observation
from trajformer.data.distances import half_second
from trajformer.data.loading import SceneDataset
from trajformer.errors import TrajformerError
from trajformer.models.tokens import last_velocity
from trajformer.scenes.geometry import rotate, to_frame
from trajformer.scenes.scene import AgentKind, AgentRole

_LIMIT = 20.0  # features of agents are clipped; single positions of recordings can be far off
_REST_M = 0.5, 1.0  # agents that move less are at rest, others move, if they were seen long enough
_REST_S = 1.5  # between the centres of the first and the last half second of two seconds
MOVED_M = 3.0  # agents that move less in their future are not used for components: most of their residual is noise
_OUTLIER_M = 40.0  # errors of tracking
_CHUNK = 256  # scenes that are read together to fit components


class Motion(NamedTuple):
    """Observed motion of agents, each in its own frame."""

    position: Tensor  # [B, A, H, 2], metres
    velocity: Tensor  # [B, A, 2] in the last step, m/s

    @classmethod
    def of(cls, o: Observation) -> Motion:
        """The motion of all agents."""
        return cls(
            to_frame(o.position, o.pose[:, :, None]), rotate(last_velocity(o), -o.pose[..., 2])
        )


def agent_features(observation: Observation, motion: Motion, max_history: int) -> Tensor:
    """Features [B, A, C] of agents in their own frames.

    For each of `max_history` steps, the last one being the present: the residual from a constant velocity in metres / 2, the
    displacement from the step before in metres * 2, and whether the step was seen. Then the velocity in m/s / 10, whether the
    agent is a focal one, and its type.
    """
    (xy, velocity), seen = motion, observation.valid[..., None].float()
    time = torch.arange(1 - observation.num_history, 1, device=xy.device) * observation.period_s
    residual = (xy - velocity[:, :, None] * time[:, None]) / 2 * seen
    step = nn.functional.pad(
        (xy[:, :, 1:] - xy[:, :, :-1]) * 2 * seen[:, :, 1:] * seen[:, :, :-1], (0, 0, 1, 0)
    )
    steps = torch.cat([residual.clamp(-_LIMIT, _LIMIT), step.clamp(-_LIMIT, _LIMIT), seen], -1)
    steps = nn.functional.pad(steps, (0, 0, max_history - observation.num_history, 0)).flatten(2)
    focal = (observation.agent_role == int(AgentRole.FOCAL))[..., None].float()
    kind = nn.functional.one_hot(observation.agent_kind, len(AgentKind)).float()
    return torch.cat([steps, velocity / 10, focal, kind], -1)


def base_path(
    observation: Observation, motion: Motion, mean: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """The path [B, S, 1, F, 2] to which components are added, in frames of targets, and the share [B, S, 1, 1, 1] of motion.

    The last velocity of an agent at rest is noise, and its last position is noisy. So the share rises from 0 for agents that
    moved less than .5 m in their history to 1 for those that moved more than 1 m. A distance in less than 1.5 s is divided by
    the square root of this share of time, because motion grows with time and noise does not. An agent that was seen once counts
    as at rest. The path is constant velocity plus `mean` [F, 2] times the share, plus the centre of the last half second times
    the rest.
    """
    targets = slice(0, observation.num_targets)
    seen, period_s = observation.valid[:, targets], observation.period_s
    position, velocity = (part[:, targets] for part in motion)
    past = torch.arange(observation.num_history, device=seen.device) * period_s
    future = torch.arange(1, observation.num_future + 1, device=seen.device) * period_s
    point = torch.cat([position, past[:, None].expand(*seen.shape, 1)], -1)
    number, steps = seen.cumsum(-1), half_second(period_s)
    seen_steps = number[..., -1:]
    late = number > seen_steps // 2
    counted = (
        torch.stack([~late & (number <= steps), late & (number > seen_steps - steps)], -2)
        & seen[..., None, :]
    )
    centres = (point[:, :, None] * counted[..., None]).sum(-2) / counted.sum(
        -1, keepdim=True
    ).clamp(min=1)
    first, last = centres.unbind(2)  # [B, S, 3] with times, zeros if no step counts
    gap = last - first
    part = gap[..., 2].clamp(min=period_s) / _REST_S
    moved = gap[..., :2].norm(dim=-1) * part.clamp(max=1).rsqrt()
    share = ((moved - _REST_M[0]) / (_REST_M[1] - _REST_M[0])).clamp(0, 1)[..., None, None, None]
    return share * (velocity[:, :, None, None] * future[:, None] + mean) + (1 - share) * last[
        :, :, None, None, :2
    ], share


def residual_basis(scenes: SceneDataset, components: int) -> tuple[Tensor, Tensor]:
    """Mean [F, 2] and components [2, C, F] of the residuals of all targets with a complete future that move.

    Residuals are in metres in the frame of the target. Focal agents count twice. Each axis has its own components, scaled by
    their standard deviation. Raises TrajformerError: there are not more residuals than components.
    """
    parts: list[Tensor] = []
    for start in range(0, len(scenes), _CHUNK):
        batch = scenes[list(range(start, min(start + _CHUNK, len(scenes))))]
        observation, truth = batch.observation, batch.truth
        pose = observation.pose[:, : observation.num_targets]
        path = to_frame(truth.position, pose[:, :, None])
        complete = truth.valid.all(-1) & (path[..., -1, :].norm(dim=-1) > MOVED_M)
        residual = path - base_path(observation, Motion.of(observation))[0][:, :, 0]
        focal = observation.agent_role[:, : observation.num_targets] == int(AgentRole.FOCAL)
        parts += [residual[complete], residual[complete & focal]]
    residual = torch.cat(parts)
    residual = residual[residual.abs().amax((1, 2)) < _OUTLIER_M]
    if len(residual) <= components:
        raise TrajformerError(
            f"only {len(residual)} training futures are complete and at least {MOVED_M:g} m long, too few for {components} "
            "components; use more scenes"
        )
    mean = residual.mean(0)
    basis = []
    for axis in (residual - mean).unbind(-1):
        _, size, component = torch.linalg.svd(axis, full_matrices=False)
        basis.append(component[:components] * (size[:components] / math.sqrt(len(axis)))[:, None])
    return mean, torch.stack(basis)
