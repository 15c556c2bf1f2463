"""The sweeps of a sensor log in time: steps of 0.1 s, and sweeps that have none."""

from typing import NamedTuple

import numpy as np

from data_prep.readers.row_check import RowCheck
from data_prep.readers.table.clock import MAX_OFF_GRID, follow, repeats_step
from trajformer.errors import SceneError

PERIOD_NS = 100_000_000
MAX_STEPS_PER_SWEEP = 10  # on average; sparser sweeps mean that a timestamp is wrong
POSES = "city_SE3_egovehicle.feather"


class Sweeps(NamedTuple):
    """The S usable sweeps of a log."""

    time: np.ndarray  # int64 [S], nanoseconds, ascending
    step: np.ndarray  # int64 [S], ascending
    stretch: np.ndarray  # int64 [S], ascending; steps of different stretches have no exact distance
    row_sweep: np.ndarray  # int64 [n], sweep of each row of the annotations

    def first_steps(self, num_steps: int, stride: int) -> list[int]:
        """First steps of the windows of `num_steps` steps: they are parts of one stretch."""
        _, first = np.unique(self.stretch, return_index=True)
        begin = self.step[first]
        end = self.step[np.append(first[1:], len(self.step)) - 1]
        starts = np.arange(0, max(int(end[-1]) - num_steps + 2, 0), stride)
        stretch = np.searchsorted(begin, starts, "right") - 1
        return starts[starts + num_steps - 1 <= end[stretch]].tolist()


def find_sweeps(row_time: np.ndarray, poses: np.ndarray, check: RowCheck) -> Sweeps:
    """The sweeps of rows with timestamps int64 [n]; other rows are dropped.

    A sweep needs one of the timestamps of `poses`, int64 [N], a step of its own, and a clock of
    0.1 s. SceneError if too many rows have none.
    """
    times, sweep = np.unique(row_time, return_inverse=True)
    index = np.minimum(np.searchsorted(poses, times), len(poses) - 1)
    has_pose = poses[index] == times
    check.drop(
        ~has_pose[sweep],
        f"timestamp_ns: no pose in {POSES}",
        lambda row: f"timestamp_ns: no pose at {row_time[row]} in {POSES}",
    )
    used = np.flatnonzero(has_pose)
    step = np.zeros(0, np.int64)
    stretch = step
    if len(used):
        used, step, stretch = _on_grid(times, sweep, used, check)
    problem = check.problem(np.arange(len(row_time)))
    if problem:
        raise SceneError(f"{check.path}: {problem}")
    number = np.zeros(len(times), np.int64)
    number[used] = np.arange(len(used))
    return Sweeps(times[used], step, stretch, number[sweep])


def _on_grid(
    times: np.ndarray, sweep: np.ndarray, used: np.ndarray, check: RowCheck
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sweeps of `used` with no other sweep on their step, and their steps and stretches, int64.

    The rows of the others are dropped. `times` belong to all sweeps, `sweep` is the sweep of
    each row, int64 [n].
    """
    known = times[used]
    span = int(known[-1]) - int(known[0])
    if span > MAX_STEPS_PER_SWEEP * len(known) * PERIOD_NS:
        raise SceneError(
            f"{check.path}: timestamp_ns: {len(known)} sweeps spread over {span / 1e9:g} s"
        )
    step = (known - known[0] + PERIOD_NS // 2) // PERIOD_NS
    periods = (known - known[0]) / PERIOD_NS
    is_far = np.abs(periods - step) > MAX_OFF_GRID
    if not is_far.any() and (np.diff(step) > 0).all():
        return used, step, np.zeros(len(step), np.int64)

    # Sweeps that the grid from the first one misses: another grid may fit them.
    steps = follow(periods, MAX_OFF_GRID)
    group = np.zeros(len(step), np.int64)
    is_off = steps.is_off | repeats_step(group, group, periods, steps)
    is_dropped = np.zeros(len(times), bool)
    is_dropped[used[is_off]] = True
    check.drop(
        is_dropped[sweep],
        "timestamp_ns: no step of 0.1 s of its own",
        lambda row: (
            f"timestamp_ns: {times[sweep[row]]} is between two steps of 0.1 s, "
            "or falls on the same step as another sweep"
        ),
    )
    kept = np.flatnonzero(~is_off)
    return used[kept], steps.step[kept] - steps.step[kept[:1]], steps.stretch[kept]
