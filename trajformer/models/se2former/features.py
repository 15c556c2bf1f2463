"""Features of lane pieces and agents, each in its own frame, so that they are SE(2)-invariant."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.blocks import masked_mean
from trajformer.data.batch import Observation
from trajformer.models.tokens import NUM_ATTRIBUTES, last_velocity, polyline_attributes
from trajformer.scenes.geometry import on_grid, rotate, to_frame
from trajformer.scenes.scene import AgentKind, LightState

LANE_POINTS = 8  # a lane piece is resampled to this number of points
_MIDDLE = slice(LANE_POINTS // 2 - 1, LANE_POINTS // 2 + 1)  # the two points around the middle
_LENGTH_M, _WIDTH_M = 10.0, 2.0  # units of lane points along and across the lane
_SIZE_M = 5.0  # unit of the sizes of agents
_CLIP = 20.0  # features of agents are clipped, because single positions can be far off


def resample_lanes(point: Tensor) -> Tensor:
    """Polylines [B, M, P, 2] to [B, M, 8, 2] by linear interpolation between their points.

    Points on the grid of scenes stay on it, so the result does not depend on the origin.
    """
    count = point.shape[2]
    if count == LANE_POINTS:
        return point
    index = torch.linspace(0, count - 1, LANE_POINTS, device=point.device)
    before = index.long().clamp(max=count - 2)
    fraction = (index - before)[:, None]
    begin = point[:, :, before]
    step = point[:, :, before + 1] - begin
    return begin + on_grid(step * fraction)


def map_center(point: Tensor, mask: Tensor) -> Tensor:
    """Mean [B, 2] of the middle points of lane pieces [B, M, 8, 2], `mask` bool [B, M].

    It is rounded to metres: differences of positions to it are exact.
    """
    return masked_mean(point[:, :, LANE_POINTS // 2], mask[..., None], 1).round()


def lane_poses(point: Tensor) -> Tensor:
    """Poses [B, M, 3] at the middle of lane pieces [B, M, 8, 2], in the frame of the points."""
    before, after = point[:, :, _MIDDLE].unbind(2)
    along = after - before
    heading = torch.atan2(along[..., 1], along[..., 0])
    return torch.cat([(before + after) / 2, heading[..., None]], -1)


def num_lane_features(lights: bool) -> int:
    """Number of features C of `lane_features`."""
    count = 2 * LANE_POINTS + NUM_ATTRIBUTES
    return count + len(LightState) if lights else count


def lane_features(observation: Observation, point: Tensor, pose: Tensor, lights: bool) -> Tensor:
    """Features [B, M, C] of lane pieces: points [B, M, 8, 2] in their frames, kind and flags.

    With `lights` also the state of the traffic light at the present: all zero without a light.
    """
    x, y = to_frame(point, pose[:, :, None]).unbind(-1)
    parts = [x / _LENGTH_M, y / _WIDTH_M, polyline_attributes(observation)]
    if lights:
        state = torch.arange(1, 1 + len(LightState), device=point.device)
        parts.append((observation.polyline_light[..., None] == state).to(point.dtype))
    return torch.cat(parts, -1)


class Motion(NamedTuple):
    """Observed motion of agents, each in its own frame."""

    position: Tensor  # [B, A, H, 2], metres
    velocity: Tensor  # [B, A, 2] at the present, m/s

    @classmethod
    def of(cls, observation: Observation) -> Motion:
        """The motion of all agents."""
        pose = observation.pose
        position = to_frame(observation.position, pose[:, :, None])
        velocity = rotate(last_velocity(observation), -pose[..., 2])
        return cls(position, velocity)


def num_agent_features(max_history: int, sizes: bool) -> int:
    """Number of features C of `agent_features`."""
    count = 5 * max_history + 2 + len(AgentKind)
    return count + 3 if sizes else count


def agent_features(
    observation: Observation, motion: Motion, max_history: int, sizes: bool
) -> Tensor:
    """Features [B, A, C] of agents in their own frames.

    For each of `max_history` steps, the last one being the present: the residual from a constant
    velocity in metres / 2, the displacement from the step before in metres * 2, and whether the
    step was recorded, so that the last ones say for how long the agent has been lost. Then the
    velocity in m/s / 10, and the type of the agent; with `sizes` also length and width in metres /
    5, and whether they are known.
    """
    position, velocity = motion
    seen = observation.recorded[..., None].float()
    straight = velocity[:, :, None] * observation.step_time[:, None]
    residual = (position - straight) / 2 * seen

    both_seen = seen[:, :, 1:] * seen[:, :, :-1]
    displacement = (position[:, :, 1:] - position[:, :, :-1]) * 2 * both_seen
    displacement = nn.functional.pad(displacement, (0, 0, 1, 0))

    steps = torch.cat([residual, displacement], -1).clamp(-_CLIP, _CLIP)
    steps = torch.cat([steps, seen], -1)  # [B, A, H, 5]
    missing = max_history - observation.num_history
    steps = nn.functional.pad(steps, (0, 0, missing, 0)).flatten(2)

    kind = nn.functional.one_hot(observation.agent_kind, len(AgentKind)).float()
    parts = [steps, velocity / 10, kind]
    if sizes:
        is_known = (observation.agent_size > 0).all(-1, keepdim=True)
        size = observation.agent_size / _SIZE_M * is_known
        parts += [size.clamp(max=_CLIP), is_known.to(size.dtype)]
    return torch.cat(parts, -1)
