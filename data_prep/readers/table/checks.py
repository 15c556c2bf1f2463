"""Checks of the units of a table: wrong ones are seen in the observed motion of a scene."""

import numpy as np

from data_prep.readers.table.clock import MAX_OFF_GRID
from data_prep.readers.table.clock_problems import UNITS
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap

MOVING_M_S = 0.3  # minimum speed to compare recorded speeds with displacements
MIN_MOVING = 8  # number of steps at this speed
FAST_M_S = 3.0  # displacements of this speed are not noise: recorded speeds must not be zero
MAX_RATIO = 2.5  # feet and metres differ by 3.3, km/h and m/s by 3.6
MOVED_M = 2.0  # in about a second
MAX_ACROSS_DEGREES = 50.0  # a compass has 90 degrees of difference on most roads


def check_clock(step: np.ndarray, timestamp: np.ndarray, period_s: float) -> None:
    """SceneError if timestamps next to steps have another period than `period_s`, in every unit."""
    known = np.flatnonzero(np.isfinite(timestamp))
    if not len(known):
        return
    first = known[0]
    last = known[-1]
    num_steps = step[last] - step[first]
    if num_steps <= 0:
        return
    apart = (timestamp[last] - timestamp[first]) / num_steps
    if apart <= 0:
        return
    for unit in UNITS.values():
        if abs(apart / (unit * period_s) - 1) < MAX_OFF_GRID:
            return
    raise SceneError(
        f"timestamp: {apart:.4g} apart from step to step, expected {period_s:g} s; "
        "--period-s and --step-interval set the clock, or remove the column"
    )


def check_velocity(
    position: np.ndarray, velocity: np.ndarray, valid: np.ndarray, period_s: float
) -> None:
    """SceneError if recorded velocities and the displacements per second have different units.

    `position` and `velocity` are [A, T, 2], `valid` is [A, T].
    """
    pairs = valid[:, 1:] & valid[:, :-1]
    moved = np.linalg.norm(np.diff(position, axis=1), axis=-1)[pairs] / period_s
    recorded = np.linalg.norm(velocity[:, 1:], axis=-1)[pairs]
    is_moving = (np.minimum(moved, recorded) > MOVING_M_S) | (moved > FAST_M_S)
    if is_moving.sum() < MIN_MOVING:
        return
    ratio = np.median(recorded[is_moving] / moved[is_moving])
    if not 1 / MAX_RATIO < ratio < MAX_RATIO:
        raise SceneError(
            f"vx: speeds are {ratio:.3g} times the displacements per second (median); "
            "check the units of x, y, vx, vy and time, or remove vx and vy"
        )


def check_velocity_direction(
    position: np.ndarray, velocity: np.ndarray, valid: np.ndarray, period_s: float
) -> None:
    """SceneError if velocities [A, T, 2] are mostly across the displacements."""
    vx = velocity[..., 0]
    vy = velocity[..., 1]
    is_moving = valid & (np.hypot(vx, vy) > MOVING_M_S)
    across = _median_across(np.arctan2(vy, vx), position, is_moving, period_s)
    if across > MAX_ACROSS_DEGREES:
        raise SceneError(
            f"vx: differs from the direction of motion by {across:.0f} degrees (median); "
            "are vx and vy exchanged?; correct it, or remove the column"
        )


def check_heading(
    position: np.ndarray, heading: np.ndarray, valid: np.ndarray, period_s: float
) -> None:
    """SceneError if headings [A, T] are mostly across the displacements."""
    across = _median_across(heading, position, valid, period_s)
    if across > MAX_ACROSS_DEGREES:
        raise SceneError(
            f"heading: differs from the direction of motion by {across:.0f} degrees (median); "
            "expected radians counter-clockwise from +x; correct it, or remove the column"
        )


def _median_across(
    angle: np.ndarray, position: np.ndarray, valid: np.ndarray, period_s: float
) -> float:
    """Median angle, in degrees, between angles [A, T] and the axes of the displacements.

    Displacements [A, T, 2] take about a second, and backwards is no difference. The median of too
    few displacements is 0.
    """
    steps = min(max(round(1 / period_s), 1), position.shape[1] - 1)
    moved = position[:, steps:] - position[:, :-steps]
    is_used = valid[:, steps:] & valid[:, :-steps] & (np.linalg.norm(moved, axis=-1) > MOVED_M)
    if is_used.sum() < MIN_MOVING:
        return 0.0
    direction = np.arctan2(moved[..., 1], moved[..., 0])
    across = wrap(2 * (angle[:, steps:] - direction))[is_used] / 2
    return float(np.degrees(np.median(np.abs(across))))
