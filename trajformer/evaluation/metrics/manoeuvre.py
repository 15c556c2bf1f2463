"""The manoeuvre of an agent: stop, turn, lane change or straight, to report errors by manoeuvre.

Only the recorded path is used, neither map nor forecast. It starts in the last observed position. The first rule that applies
decides:

stop         the path stays within 2 m of its start, or the mean speed of the last second is below 0.5 m/s.
turn         the last direction differs from the first by more than 30 degrees.
lane change  the directions differ by at most 15 degrees, and the path ends 1.5 to 5.5 m to the same side of the first and the
             last direction. A gentle curve ends on different sides, and an error of one direction, to which long paths are
             sensitive, is not enough. A lane change that starts before or ends after the horizon is not found.
straight     everything else, including gentle curves.

The last direction is the direction of the last 3 m of the path. The first direction is the observed heading, or the direction of
the first 3 m if they differ by more than 90 degrees (reversing, or a noisy heading while standing). Sums of small steps are not
used, because they accumulate noise.
"""

import math
from enum import IntEnum

import torch
from torch import Tensor

from trajformer.scenes.geometry import rotate, wrap

STILL_M, STILL_M_S, STILL_S = 2.0, 0.5, 1.0
TURN_RAD, PARALLEL_RAD = math.radians(30), math.radians(15)
ASIDE_M = (1.5, 5.5)  # from less than half a lane to more than a wide one
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
    """The manoeuvre of each agent, int64 [B, S], and bool [B, S]: agents with a known last future step; others are meaningless.

    `target` is the recorded future [B, S, F, 2] in metres, `valid` bool [B, S, F]; `pose` [B, S, 3] is position and heading
    (radians) in the last observed step, in the same frame.
    """
    start, heading, known = pose[..., :2], pose[..., 2], valid[..., -1]
    path = torch.cat([start[..., None, :], target], -2)
    real = torch.cat([torch.ones_like(known)[..., None], valid], -1)
    end = path[..., -1, :]
    from_start, to_end = (
        (path - point[..., None, :]).norm(dim=-1).masked_fill(~real, 0.0) for point in (start, end)
    )

    first = _at(path, _leaving(from_start)) - start
    last = end - _at(path.flip(-2), _leaving(to_end.flip(-1)))
    sets_off, heads_for = (torch.atan2(way[..., 1], way[..., 0]) for way in (first, last))
    begins = torch.where(wrap(sets_off - heading).abs() > math.pi / 2, sets_off, heading)
    turned = wrap(heads_for - begins)
    aside = torch.stack([rotate(end - start, -way)[..., 1] for way in (begins, heads_for)])
    nearer, one_side = aside.abs().amin(0), aside.prod(0) > 0

    # Mean speed from the last real point that is a second or more before the end, or else from the beginning.
    steps = real.shape[-1] - 1
    early = torch.arange(steps + 1, device=real.device) <= max(
        steps - math.ceil(STILL_S / period_s - 1e-6), 0
    )
    index = steps - (real & early).flip(-1).int().argmax(-1)
    speed = to_end.gather(-1, index[..., None]).squeeze(-1) / ((steps - index) * period_s)
    stop = (speed < STILL_M_S) | (from_start.amax(-1) < STILL_M)
    turn = turned.abs() > TURN_RAD
    change = (
        (turned.abs() <= PARALLEL_RAD)
        & one_side
        & (nearer >= ASIDE_M[0])
        & (aside.abs().amax(0) <= ASIDE_M[1])
    )
    kind = torch.zeros_like(known, dtype=torch.int64)
    for holds, name in (
        (change, Manoeuvre.LANE_CHANGE),
        (turn, Manoeuvre.TURN),
        (stop, Manoeuvre.STOP),
    ):
        kind = torch.where(holds & known, int(name), kind)
    return kind, known


def _leaving(distance: Tensor) -> Tensor:
    """Index of the first point that is CHORD_M away, or else the farthest; distances [..., T] of missing points are 0."""
    away = distance >= CHORD_M
    return torch.where(away.any(-1), away.int().argmax(-1), distance.argmax(-1))


def _at(path: Tensor, index: Tensor) -> Tensor:
    """Points [..., 2] of paths [..., T, 2] at [...]."""
    return path.gather(-2, index[..., None, None].expand(*index.shape, 1, 2)).squeeze(-2)
