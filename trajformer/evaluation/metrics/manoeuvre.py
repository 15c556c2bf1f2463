"""The manoeuvre of an agent: stop, turn, lane change or straight, to report errors by manoeuvre.

Only the recorded path is used, neither map nor forecast. It starts in the last observed position.
The first rule that applies decides:

stop         the path stays within 2 m of its start, or the mean speed of the last second is below
             0.5 m/s.
turn         the last direction differs from the first by more than 30 degrees.
lane change  the directions differ by at most 15 degrees, and the path ends 1.5 to 5.5 m to the same
             side of the first and the last direction. A gentle curve ends on different sides, and
             an error of one direction, to which long paths are sensitive, is not enough. A lane
             change that starts before or ends after the horizon is not found.
straight     everything else, including gentle curves.

The last direction is the direction of the last 3 m of the path. The first direction is the observed
heading, or the direction of the first 3 m if they differ by more than 90 degrees (reversing, or a
noisy heading while standing). Sums of small steps are not used, because they accumulate noise.
"""

import math
from enum import IntEnum

import torch
from torch import Tensor

from trajformer.scenes.geometry import rotate, wrap

STILL_M = 2.0
STILL_M_S = 0.5
STILL_S = 1.0
TURN_RAD = math.radians(30)
PARALLEL_RAD = math.radians(15)
MIN_ASIDE_M = 1.5  # less than half a lane
MAX_ASIDE_M = 5.5  # more than a wide lane
CHORD_M = 3.0  # length of path for a direction, accurate to some degrees with 0.1 m of noise


class Manoeuvre(IntEnum):
    """Manoeuvre of an agent within the horizon."""

    STRAIGHT = 0
    TURN = 1
    STOP = 2
    LANE_CHANGE = 3

    @property
    def label(self) -> str:
        """For tables."""
        return self.name.lower().replace("_", " ")


def manoeuvres(
    target: Tensor, valid: Tensor, pose: Tensor, period_s: float
) -> tuple[Tensor, Tensor]:
    """The manoeuvre of each agent, int64 [B, S], and bool [B, S]: agents that have one.

    These are the agents with a known last future step; the values of others are meaningless.
    `target` is the recorded future [B, S, F, 2] in metres, `valid` bool [B, S, F]; `pose` [B, S, 3]
    is position and heading (radians) in the last observed step, in the same frame.
    """
    start = pose[..., :2]
    heading = pose[..., 2]
    known = valid[..., -1]
    path = torch.cat([start[..., None, :], target], -2)  # [B, S, 1 + F, 2]
    real = torch.cat([torch.ones_like(known)[..., None], valid], -1)
    end = path[..., -1, :]
    from_start = _distance(path, start).masked_fill(~real, 0.0)
    to_end = _distance(path, end).masked_fill(~real, 0.0)

    # directions over the first and the last 3 m
    first_chord = _at(path, _leaving(from_start)) - start
    last_chord = end - _at(path.flip(-2), _leaving(to_end.flip(-1)))
    path_direction = torch.atan2(first_chord[..., 1], first_chord[..., 0])
    last_direction = torch.atan2(last_chord[..., 1], last_chord[..., 0])
    reverses = wrap(path_direction - heading).abs() > math.pi / 2
    first_direction = torch.where(reverses, path_direction, heading)
    turned = wrap(last_direction - first_direction).abs()

    speed = _last_speed(to_end, real, period_s)
    stop = (speed < STILL_M_S) | (from_start.amax(-1) < STILL_M)
    aside_of_first = rotate(end - start, -first_direction)[..., 1]
    aside_of_last = rotate(end - start, -last_direction)[..., 1]
    aside = torch.stack([aside_of_first, aside_of_last])
    one_side = aside_of_first * aside_of_last > 0
    beyond_lane = aside.abs().amin(0) >= MIN_ASIDE_M
    within_lanes = aside.abs().amax(0) <= MAX_ASIDE_M
    parallel = turned <= PARALLEL_RAD
    change = parallel & one_side & beyond_lane & within_lanes

    # the first rule of the list above decides, so it is applied last
    kind = torch.zeros_like(known, dtype=torch.int64)
    kind = torch.where(change & known, int(Manoeuvre.LANE_CHANGE), kind)
    kind = torch.where((turned > TURN_RAD) & known, int(Manoeuvre.TURN), kind)
    kind = torch.where(stop & known, int(Manoeuvre.STOP), kind)
    return kind, known


def _last_speed(to_end: Tensor, real: Tensor, period_s: float) -> Tensor:
    """Mean speed in m/s of the last second.

    It is measured from the last real point that is a second or more before the end, or from the
    beginning of shorter paths.
    """
    steps = real.shape[-1] - 1
    second = math.ceil(STILL_S / period_s - 1e-6)
    early = torch.arange(steps + 1, device=real.device) <= max(steps - second, 0)
    index = steps - (real & early).flip(-1).int().argmax(-1)
    distance = to_end.gather(-1, index[..., None]).squeeze(-1)
    return distance / ((steps - index) * period_s)


def _distance(path: Tensor, point: Tensor) -> Tensor:
    """Distances [..., T] of paths [..., T, 2] from points [..., 2]."""
    return (path - point[..., None, :]).norm(dim=-1)


def _leaving(distance: Tensor) -> Tensor:
    """Index of the first point that is CHORD_M away, or else the farthest.

    Distances [..., T] of missing points are 0.
    """
    away = distance >= CHORD_M
    return torch.where(away.any(-1), away.int().argmax(-1), distance.argmax(-1))


def _at(path: Tensor, index: Tensor) -> Tensor:
    """Points [..., 2] of paths [..., T, 2] at [...]."""
    expanded = index[..., None, None].expand(*index.shape, 1, 2)
    return path.gather(-2, expanded).squeeze(-2)
