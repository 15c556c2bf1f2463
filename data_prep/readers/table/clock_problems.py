"""Why the times of a table fit no grid, in words, with the option that fixes it."""

from typing import NamedTuple

import numpy as np

from data_prep.readers.table.clock import EQUAL, MAX_DRIFT, MAX_OFF_GRID
from data_prep.readers.table.dates import date_text

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # per second
# Recordings have periods of 5 ms to 10 s. Another unit makes a thousand times more or less.
_MIN_PERIOD_S = 0.005
_MAX_PERIOD_S = 10.0
_SAME_PERIOD = 0.25  # relative difference of two periods
_DRIFT = 0.03  # a larger relative difference is another period
_OTHER_PERIOD = 1.15  # ratio of the periods of two sensors
_MIN_GAPS = 10  # of a track, to know its period
_NUM_COMPARED = 5  # times before and after a leap
_SHARP = 0.9  # mean resultant length of phases that are alike
_RESAMPLE = "--resample true interpolates the tracks"


class TimeColumn(NamedTuple):
    """What messages on times need.

    Attributes:
        period_s: period of the steps (option).
        unit: unit of the timestamps (option), one of UNITS.
        has_dates: timestamps were written as dates; they have no other unit.
        first: the first timestamp of the recording.
    """

    period_s: float
    unit: str
    has_dates: bool
    first: float

    @property
    def per_period(self) -> float:
        """Timestamps per period; dates are in seconds."""
        if self.has_dates:
            return self.period_s
        return self.period_s * UNITS[self.unit]

    def text(self, periods: float) -> str:
        """The timestamp at this number of periods after the first one."""
        value = self.first + periods * self.per_period
        if self.has_dates:
            return date_text(value)
        return f"{value:.12g}"

    def unit_hint(self, gap_s: float) -> str:
        """The options for times `gap_s` apart if they are probably in another unit, else ""."""
        if self.has_dates or _MIN_PERIOD_S <= gap_s <= _MAX_PERIOD_S:
            return ""
        for unit, per_second in UNITS.items():
            period_s = gap_s * UNITS[self.unit] / per_second
            if unit != self.unit and _MIN_PERIOD_S <= period_s <= _MAX_PERIOD_S:
                options = f"--time-unit {unit}"
                if abs(period_s / self.period_s - 1) > _SAME_PERIOD:
                    options += f" --period-s {period_s:.4g}"
                return f"timestamps are {period_s:.4g} s apart if they are in {unit}: {options}"
        return ""


def usual_gap(time: np.ndarray, track: np.ndarray) -> float:
    """Median time in periods between two rows of a track, 0 if no track has two rows."""
    gap = _gaps(time, track)
    if not len(gap):
        return 0.0
    return float(np.median(gap))


def _gaps(time: np.ndarray, track: np.ndarray) -> np.ndarray:
    order = np.lexsort((time, track))
    gap = np.diff(time[order])[np.diff(track[order]) == 0]
    return gap[gap > EQUAL]


def clock_problem(
    column: TimeColumn, time: np.ndarray, track: np.ndarray, names: list[str], is_off: np.ndarray
) -> str:
    """Why many of the times float64 [n] (periods) of tracks int64 [n] are off the grid, bool [n].

    The cause is the unit, the period, a drift, several phases or jitter; `names` are the tracks'.
    """
    # With a wrong period, rows on the grid count as off, too.
    is_far = is_off & (np.abs(time - np.rint(time)) > MAX_OFF_GRID)
    row = int(np.where(is_far.any(), is_far, is_off).argmax())
    value = column.text(float(time[row]))
    gap = usual_gap(time, track) * column.period_s
    start = (
        f"timestamp: {value} is no multiple of the period of {column.period_s:g} s after the "
        f"scene's first, {column.text(0.0)}"
    )
    if gap == 0:
        return f"{start}; no track has two times"
    hint = column.unit_hint(gap)
    if hint:
        return f"{start} (they are mostly {gap:.4g} s apart; {hint})"

    periods = _periods(column, time, track, names)
    if periods:
        return f"{start} ({periods}; {_RESAMPLE})"
    gaps = _gaps(time, track)
    usual = np.median(gaps)
    regular = gaps[np.abs(gaps - usual) < 0.5 * usual]
    period = float(regular.mean())
    uncertainty = 2 * float(regular.std()) / np.sqrt(len(regular))
    difference = abs(period - 1)
    if difference > max(MAX_DRIFT, uncertainty):
        fitting = f"{period * column.period_s:.4g}"
        cause = f"they are mostly {gap:.4g} apart; --period-s {fitting} fits"
        if difference < _DRIFT:
            cause = f"the clock drifts: they are {fitting} s apart on average; "
            cause += f"--period-s {fitting} fits"
        return f"{start} ({cause}, or {_RESAMPLE})"
    phases = _phases(column, time, track, names)
    if phases:
        return f"{start} ({phases}; {_RESAMPLE})"
    share = f"{is_off.mean():.0%} of the rows are over a quarter of a period off"
    return f"{start} (jitter: {share}; {_RESAMPLE})"


def _periods(column: TimeColumn, time: np.ndarray, track: np.ndarray, names: list[str]) -> str:
    """Two tracks with different periods, else ""."""
    order = np.lexsort((time, track))
    is_same = np.diff(track[order]) == 0
    gap = np.diff(time[order])[is_same]
    track_of_gap = track[order][1:][is_same]
    shortest = (np.inf, "")
    longest = (0.0, "")
    for code in np.unique(track_of_gap).tolist():
        gaps = gap[track_of_gap == code]
        if len(gaps) < _MIN_GAPS:
            continue
        period = float(np.median(gaps))
        shortest = min(shortest, (period, names[code][:40]))
        longest = max(longest, (period, names[code][:40]))
    if longest[0] < _OTHER_PERIOD * shortest[0]:
        return ""
    one = f"{longest[0] * column.period_s:.4g} s ({longest[1]!r})"
    other = f"{shortest[0] * column.period_s:.4g} s ({shortest[1]!r})"
    return f"tracks have periods of {one} and {other}, as from several sensors"


def _phases(column: TimeColumn, time: np.ndarray, track: np.ndarray, names: list[str]) -> str:
    """Two tracks whose times have different phases, if each track has one phase, else ""."""
    present, index = np.unique(track, return_inverse=True)
    count = np.bincount(index)
    vector = np.exp(2j * np.pi * time)
    mean = np.bincount(index, vector.real) + 1j * np.bincount(index, vector.imag)
    mean /= count
    is_sharp = (count >= 3) & (np.abs(mean) > _SHARP)
    if count[is_sharp].sum() < 0.5 * len(time):
        return ""
    sharp = np.flatnonzero(is_sharp)
    first = sharp[0]
    offset = np.angle(mean[sharp] / mean[first]) / (2 * np.pi)
    farthest = np.abs(offset).argmax()
    if np.abs(offset[farthest]) < 0.1:
        return ""
    apart = abs(offset[farthest]) * column.period_s
    one = names[present[first]][:40]
    other = names[present[sharp[farthest]]][:40]
    return (
        f"tracks have their own phases, {one!r} and {other!r} are {apart:.2g} s apart, "
        "as from several sensors"
    )


def precision_problem(column: TimeColumn, stamp: np.ndarray, track: np.ndarray) -> str:
    """The problem of timestamps float64 [n] that were rounded to float32, else "".

    Then they are whole multiples of a large number, or, if they were also rounded to the digits of
    float32, tracks (int64 [n]) have many rows at one time.
    """
    spacing = float(np.spacing(np.float32(np.abs(stamp).max())))
    if column.has_dates or spacing < column.per_period / 4:
        return ""
    _, codes = np.unique(track, return_inverse=True)
    rows_of_track = int(np.bincount(codes).max())
    is_repeated = rows_of_track > 2 * len(np.unique(stamp))
    if not is_repeated and (stamp.astype(np.float32) != stamp).any():
        return ""
    return (
        f"timestamp: precision was lost: {stamp[0]:.12g} in single precision is exact to "
        f"{spacing:g} only; write it with 64 bits and all digits, or subtract the first timestamp"
    )


def _leaps(offset: np.ndarray) -> list[int]:
    """Indices from which on the offset float64 [n] of two clocks, in periods, is another one."""
    leaps = []
    for index in (np.flatnonzero(np.abs(np.diff(offset)) > 1.0) + 1).tolist():
        # A single time may be wrong, or late.
        before = np.median(offset[max(index - _NUM_COMPARED, 0) : index])
        after = np.median(offset[index : index + _NUM_COMPARED])
        if abs(after - before) > 1.0:
            leaps.append(index)
    return leaps


def compare_clocks(step: np.ndarray, stamp: np.ndarray, period_s: float) -> tuple[str, np.ndarray]:
    """Compare timestamps float64 [n], in any unit, with ascending steps int64 [n].

    Returns the problem, "" if the period is right; and the steps before which timestamps leap by
    more than a period, int64, ascending.
    """
    no_leaps = np.zeros(0, np.int64)
    is_known = np.isfinite(stamp)
    present, row = np.unique(step[is_known], return_index=True)
    if len(present) < 2:
        return "", no_leaps
    num_steps = np.diff(present)
    gap = np.diff(stamp[is_known][row])
    usual = float(np.median(gap / num_steps))
    for per_second in UNITS.values():
        if abs(usual / (per_second * period_s) - 1) < _SAME_PERIOD:
            offset = stamp[is_known][row] / (per_second * period_s) - present
            return "", present[_leaps(offset)]
    if usual <= 0:
        return "", no_leaps
    problem = (
        f"timestamp: {usual:.4g} apart from step to step, expected {period_s:g} s; "
        "--period-s and --step-interval set the clock, or remove the column"
    )
    return problem, no_leaps
