"""Tracks of a table at the steps of a grid, by linear interpolation between two rows."""

from typing import NamedTuple

import numpy as np

from data_prep.readers.table.clock import EQUAL
from data_prep.readers.table.table_file import SIZE, TableColumns
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap

# A longer gap of a track stays a gap, but a gap of two periods is filled.
MAX_GAP_S = 1.0
MAX_ROWS = 50_000_000
LINEAR = ("x", "y", "vx", "vy")
_TURN = 2 * np.pi


class Resampled(NamedTuple):
    """Rows at the steps of a grid.

    Attributes:
        columns: n rows; `step` and `timestamp` are left out.
        group: recording of each row, int64 [n].
        step: int64 [n].
        known_step: int64 [n], the step from which on both rows of the interpolation are known.
        is_isolated: bool [m], True for original rows without a neighbor or a step of their own.
    """

    columns: TableColumns
    group: np.ndarray
    step: np.ndarray
    known_step: np.ndarray
    is_isolated: np.ndarray


def resample(
    columns: TableColumns, group: np.ndarray, time: np.ndarray, period_s: float, keep_first: bool
) -> Resampled:
    """Positions, headings and velocities of each track at all steps between two of its rows.

    `group` (int64 [m]) is the recording of each row and `time` (float64 [m]) its time in periods.
    Nothing is extrapolated. Text and sizes come from the row before. Two rows of a track at one
    time stay two rows of a step, or one with `keep_first`. Raises SceneError: too many steps.
    """
    track = columns.code["track_id"]
    order = np.lexsort((time, track, group))
    is_next = (np.diff(group[order]) == 0) & (np.diff(track[order]) == 0)
    is_twin = np.append(False, is_next & (np.diff(time[order]) <= EQUAL))
    twins = order[is_twin]
    order = order[~is_twin]
    is_next = (np.diff(group[order]) == 0) & (np.diff(track[order]) == 0)
    time_of_row = time[order]

    # Row i gives the steps from the first one at its time or later, up to the next row's first one.
    first = np.ceil(time_of_row - EQUAL).astype(np.int64)
    max_gap = max(MAX_GAP_S / period_s, 2.0) + EQUAL
    is_linked = np.append(is_next & (np.diff(time_of_row) <= max_gap), False)
    is_on_step = first - time_of_row <= EQUAL
    count = is_on_step.astype(np.int64)
    count[is_linked] = np.diff(first)[is_linked[:-1]]
    if count.sum() > MAX_ROWS:
        raise SceneError(
            f"timestamp: {count.sum()} rows at steps of {period_s:g} s, expected at most "
            f"{MAX_ROWS}; --period-s sets the period"
        )
    left = np.repeat(np.arange(len(order)), count)
    ahead = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
    step = first[left] + ahead

    # Rows at a step are copied, so that a next row does not matter.
    is_between = step - time_of_row[left] > EQUAL
    right = np.where(is_between, left + 1, left)
    fraction = np.zeros(len(left))
    length = time_of_row[right] - time_of_row[left]
    fraction[is_between] = ((step - time_of_row[left])[is_between]) / length[is_between]
    known_step = np.where(is_between, first[right], step)

    is_isolated = np.zeros(len(time), bool)
    has_neighbor = is_linked | np.append(False, is_linked[:-1])
    is_isolated[order] = ~has_neighbor & ~is_on_step
    resampled = _interpolate(columns, order[left], order[right], fraction)
    new_group = group[order[left]]
    if len(twins) and not keep_first:
        # Kept as second rows of a step, which makes an error of their windows only.
        twin_step = np.rint(time[twins]).astype(np.int64)
        second_rows = _interpolate(columns, twins, twins, np.zeros(len(twins)))
        resampled = _concatenate(resampled, second_rows)
        new_group = np.concatenate([new_group, group[twins]])
        step = np.concatenate([step, twin_step])
        known_step = np.concatenate([known_step, twin_step])
    return Resampled(resampled, new_group, step, known_step, is_isolated)


def _interpolate(
    columns: TableColumns, left: np.ndarray, right: np.ndarray, fraction: np.ndarray
) -> TableColumns:
    """Rows between the rows `left` and `right` [n], at `fraction` float64 [n] of the way."""
    before = columns.take(left)
    number = {}
    with np.errstate(invalid="ignore"):
        for name, values in before.number.items():
            if name in LINEAR:
                change = columns.number[name][right] - values
                number[name] = np.where(fraction > 0, values + fraction * change, values)
            elif name == "heading":
                # On the circle, the shorter way round.
                change = wrap(columns.number[name][right] - values)
                heading = values + fraction * change
                has_wrapped = (np.abs(heading) > _TURN) & (np.abs(values) <= _TURN)
                heading = np.where(has_wrapped, wrap(heading), heading)
                number[name] = np.where(fraction > 0, heading, values)
            elif name in SIZE:
                number[name] = values
    return TableColumns(number, before.word, before.code, before.has_dates)


def _concatenate(first: TableColumns, second: TableColumns) -> TableColumns:
    number = {}
    for name, values in first.number.items():
        number[name] = np.concatenate([values, second.number[name]])
    code = {}
    for name, values in first.code.items():
        code[name] = np.concatenate([values, second.code[name]])
    return TableColumns(number, first.word, code, first.has_dates)
