"""The clock of a table: from times to steps.

Times are counted in periods here. The steps of a recording are a grid with one period. A real clock
pauses, drifts and jitters: the grid follows drift and small jitter, begins again after a leap, and
leaves out times that fit no step.
"""

from typing import NamedTuple

import numpy as np

# A time farther from the grid, in periods, fits no step.
MAX_OFF_GRID = 0.25
# A relative difference of the mean period and the stated one up to this is a drift that is
# followed; velocities are wrong by as much.
MAX_DRIFT = 0.01
# Times of one track closer than this, in periods, are equal.
EQUAL = 1e-3
_GAIN = 0.1  # of the error of a time, by which the grid is shifted
_LEAP_STEPS = 4  # a grid beside the present one is the new one after this number of steps


class Steps(NamedTuple):
    """The steps of the n rows of one recording, in order of time.

    Attributes:
        step: int64 [n], from 0; for a row off the grid, the last step before it.
        stretch: int64 [n], number of the grid. Steps of different grids have no exact distance.
        is_off: bool [n], True for rows that fit no step.
        distance: float64 [n], periods from the grid; infinite for a row that fits no step.
    """

    step: np.ndarray
    stretch: np.ndarray
    is_off: np.ndarray
    distance: np.ndarray


def follow(time: np.ndarray, tolerance: float) -> Steps:
    """Steps of ascending times float64 [n], in periods, with a grid that follows the clock.

    A time is on the grid if its distance is at most `tolerance` (periods). The grid moves by a
    tenth of the mean distance at a step. If several steps in sequence fit another phase and none
    fits the grid, the clock has leaped or paused: a new stretch begins with the first of them.
    """
    known, index = np.unique(time, return_inverse=True)
    step = np.zeros(len(known), np.int64)
    stretch = np.zeros(len(known), np.int64)
    is_off = np.zeros(len(known), bool)
    distance = np.zeros(len(known))
    grid = _Grid(float(known[0]), 0)
    other: _Grid | None = None  # another phase, possibly the new grid
    begin = 0  # of its times
    for number, value in enumerate(known.tolist()):
        if grid.accepts(value, tolerance):
            step[number] = grid.step
            distance[number] = grid.distance
            other = None
            continue
        is_off[number] = True
        distance[number] = np.inf
        step[number] = grid.step_before(value)
        if other is None or not other.accepts(value, tolerance):
            other = _Grid(value, grid.step_before(value) + 1)
            begin = number
            other_steps = []
        other_steps.append(other.step)
        if other.step - other_steps[0] >= _LEAP_STEPS:
            part = slice(begin, number + 1)
            step[part] = other_steps
            is_off[part] = False
            distance[part] = 0.0
            stretch[begin:] += 1
            grid = other
            other = None
    is_off |= _has_wrong_period(known, step, stretch, is_off)
    return Steps(step[index], stretch[index], is_off[index], distance[index])


class _Grid:
    """A grid of steps that is shifted by the times that it accepts.

    The shift is made after a step, by the mean of its times: many agents may have their own times.
    """

    def __init__(self, time: float, step: int) -> None:
        self.step = step  # of the last accepted time
        self.distance = 0.0  # of this time from the grid
        self._time = time  # of this step on the grid
        self._num_steps = 1  # with accepted times
        self._error = 0.0  # sum over the times of this step
        self._count = 1  # times of this step

    def step_before(self, time: float) -> int:
        """The last step before a time."""
        return self.step + int(np.floor(time - self._time))

    def accepts(self, time: float, tolerance: float) -> bool:
        """Whether a time is on the grid; then it is the last accepted one."""
        # At first, the phase of the grid is the mean of the times.
        gain = max(_GAIN, 1 / self._num_steps)
        shift = gain * self._error / self._count
        ahead = round(time - self._time - shift)
        if ahead == 0:
            shift = 0.0  # a time of the present step
        error = time - self._time - shift - ahead
        if abs(error) > tolerance:
            return False
        if ahead != 0:
            self.step += ahead
            self._time += ahead + shift
            self._num_steps += 1
            self._error = 0.0
            self._count = 0
        self.distance = abs(error)
        self._error += error
        self._count += 1
        return True


def _has_wrong_period(
    time: np.ndarray, step: np.ndarray, stretch: np.ndarray, is_off: np.ndarray
) -> np.ndarray:
    """Whether a time belongs to a stretch with another period than 1, bool [n]."""
    is_wrong = np.zeros(len(time), bool)
    for number in range(int(stretch[-1]) + 1):
        is_used = (stretch == number) & ~is_off
        # The period is the slope of a line through the times.
        steps = step[is_used] - step[is_used].mean()
        squares = (steps**2).sum()
        if squares == 0:
            continue
        slope = (steps * time[is_used]).sum() / squares
        length = np.ptp(steps)
        if abs(slope - 1) * length > max(MAX_DRIFT * length, MAX_OFF_GRID):
            is_wrong |= stretch == number
    return is_wrong


def repeats_step(
    group: np.ndarray, track: np.ndarray, time: np.ndarray, steps: Steps
) -> np.ndarray:
    """Rows for which the track has a row nearer to the same step, at another time; bool [n].

    Rows are in order of recordings (`group`, int64 [n]) and time (float64 [n], in periods). Rows of
    a track with one time are duplicates, which are not changed here.
    """
    is_repeated = np.zeros(len(time), bool)
    is_later = (np.diff(group) == 0) & (np.diff(time) > EQUAL)
    if not (is_later & (np.diff(steps.step) == 0)).any():
        return is_repeated
    keys = np.stack([group, track, steps.step])
    order = np.lexsort((steps.distance, *keys[::-1]))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(keys[:, order]) != 0).any(0)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    is_repeated[order] = np.abs(time[order] - time[order[first]]) > EQUAL
    return is_repeated
