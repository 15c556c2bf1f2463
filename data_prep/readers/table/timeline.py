"""The rows of a table in time: recordings, steps, and rows that have none."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from data_prep.readers.table.clock import (
    MAX_OFF_GRID,
    Steps,
    follow,
    repeats_step,
)
from data_prep.readers.table.clock_problems import (
    TimeColumn,
    clock_problem,
    compare_clocks,
    precision_problem,
    usual_gap,
)
from data_prep.readers.table.dates import EXAMPLE
from data_prep.readers.table.resample import Resampled, resample
from data_prep.readers.table.restarts import MIXED, recordings
from data_prep.readers.table.table_file import TableColumns
from trajformer.scenes.scene import SHORT_LOSS_S

MAX_STEP = 2.0**52  # larger whole numbers are not exact in float64
MAX_NAME_BYTES = 150
# A recording or window is used if at most this fraction of its rows has no step.
MAX_UNUSED = 0.1
_ISOLATED = "between two steps and over a second from the next row of their track"
_NO_FILE_NAME = (
    f"scene_id: no file name (1 to {MAX_NAME_BYTES} bytes, no slash, dot in front "
    "or control character)"
)


class TimeOptions(NamedTuple):
    """The options of `Table` that arrange rows in time."""

    period_s: float
    time_unit: str
    step_interval: int
    num_history: int
    num_future: int
    stride: int
    resample: bool = False
    drop_duplicates: bool = False

    @property
    def short_loss(self) -> int:
        """Steps between the last row of a lost agent and a step at which it is still there."""
        steps = int(SHORT_LOSS_S / self.period_s + 1e-6)
        return min(steps, self.num_history - 1)


class Timeline:
    """The n rows of a file with a time, sorted by recording and time.

    A recording is a scene of the file, or a part of it if its clock was set back.

    Attributes:
        names: ids of the recordings, in the order of `group`.
        problems: problem of a recording that cannot be used, by its number.
        row: index in the table, int64 [n].
        group: recording, int64 [n], ascending.
        time: float64 [n], periods after the first time of the recording.
    """

    def __init__(self, columns: TableColumns, stem: str, options: TimeOptions) -> None:
        """Sort the rows; `stem` is the name of the scene if there is no `scene_id`."""
        self.columns = columns
        self.options = options
        self.names: list[str] = []
        self.problems: dict[int, str] = {}
        self._unused: Counter[str] = Counter()  # by reason
        self._notes: list[str] = []

        self._name = "step"
        if "step" not in columns.number or (options.resample and "timestamp" in columns.number):
            self._name = "timestamp"
        self._time = columns.number[self._name]
        self._clock = TimeColumn(options.period_s, options.time_unit, columns.has_dates, 0.0)
        self._per_period = self._clock.per_period
        is_timed = np.isfinite(self._time)
        if self._name == "step":
            self._per_period = float(options.step_interval)
            with np.errstate(invalid="ignore"):
                is_timed &= self._time == np.rint(self._time)
            is_timed &= np.abs(self._time) <= MAX_STEP

        self._group = self._recordings(stem, is_timed)
        row = np.flatnonzero(is_timed)
        row = row[np.lexsort((self._time[row], self._group[row]))]
        self.row = row[self._is_near(row)]
        self.group = self._group[self.row]
        self._note_missing_times()
        self._first_time = np.zeros(len(self.names))
        begin = np.searchsorted(self.group, np.arange(len(self.names)))
        has_rows = np.bincount(self.group, minlength=len(self.names)) > 0
        self._first_time[has_rows] = self._time[self.row[begin[has_rows]]]
        stamp = self._time[self.row]
        self.time = (stamp - self._first_time[self.group]) / self._per_period
        if self._name == "timestamp" and len(stamp):
            self._check_precision(stamp)

    def _check_precision(self, stamp: np.ndarray) -> None:
        """Note the problem of all recordings if their timestamps [n] were rounded."""
        clock = self._clock._replace(first=float(stamp[0]))
        track = self.columns.code["track_id"][self.row]
        problem = precision_problem(clock, stamp, self.group * (int(track.max()) + 1) + track)
        if problem:
            self.problems = dict.fromkeys(range(len(self.names)), problem) | self.problems

    def _recordings(self, stem: str, is_timed: np.ndarray) -> np.ndarray:
        """The recording of each row of the table, int64; adds the names of the recordings."""
        scene = self.columns.code.get("scene_id", np.zeros(len(self._time), np.int64))
        words = self.columns.word.get("scene_id", [stem])
        number = np.zeros(len(scene), np.int64)
        if not self.options.drop_duplicates:
            time = np.where(is_timed, self._time, np.nan) / self._per_period
            position = np.stack([self.columns.number["x"], self.columns.number["y"]], -1)
            track = self.columns.code["track_id"]
            number = recordings(scene, track, time, position, self.options.num_history)
        size = int(number.max()) - MIXED + 1
        keys, group = np.unique(scene * size + number - MIXED, return_inverse=True)
        for index, key in enumerate(keys.tolist()):
            code, number_of_scene = divmod(key, size)
            number_of_scene += MIXED
            name = words[code]
            if number_of_scene > 0:
                name = f"{name}-p{number_of_scene + 1}"
                self._notes.append(
                    f"{self._name}: goes back, so the rows after it are the recording {name[:60]!r}"
                )
            if not _is_file_name(name):
                self.problems[index] = _NO_FILE_NAME
                name = ascii(name)
            elif number_of_scene == MIXED:
                self.problems[index] = (
                    f"{self._name}: times of a track are repeated with other positions: the clock "
                    "was set back, or two recordings are mixed; write the rows in order of time "
                    "or with a scene_id for each (--drop-duplicates true uses the first rows)"
                )
            self.names.append(name)
        return group

    def _is_near(self, row: np.ndarray) -> np.ndarray:
        """Whether the times of the sorted rows are near the middle one of their recording."""
        group = self._group[row]
        bounds = np.searchsorted(group, np.arange(len(self.names) + 1))
        middle = (bounds[:-1] + bounds[1:]) // 2
        middle_time = self._time[row[middle[group]]]
        with np.errstate(over="ignore"):
            return np.abs(self._time[row] - middle_time) <= MAX_STEP * self._per_period

    def _note_missing_times(self) -> None:
        """Note recordings with many rows without a usable time, count the rows of the others."""
        num_rows = np.bincount(self._group, minlength=len(self.names))
        num_missing = num_rows - np.bincount(self.group, minlength=len(self.names))
        if not num_missing.any():
            return
        is_missing = np.ones(len(self._time), bool)
        is_missing[self.row] = False
        for index in np.flatnonzero(num_missing).tolist():
            first = np.flatnonzero(is_missing & (self._group == index))[0]
            problem = f"{self._name}: {self._problem_of_time(float(self._time[first]))}"
            if num_missing[index] > MAX_UNUSED * num_rows[index]:
                count = f"{num_missing[index]} of {num_rows[index]} rows"
                self.problems.setdefault(index, f"{problem} ({count})")
            else:
                self.count_unused(int(num_missing[index]), f"with {problem}")

    def _problem_of_time(self, value: float) -> str:
        if np.isnan(value):
            return "empty or NaN"
        if np.isinf(value) and self._name == "timestamp" and self.columns.has_dates:
            return f"no ISO date, such as {EXAMPLE}"
        if np.isinf(value) and self._name == "timestamp":
            return f"infinite, or neither a number nor an ISO date, such as {EXAMPLE}"
        if np.isinf(value):
            return "infinite or no number"
        if self._name == "step":
            return f"{value:.12g}, expected a whole number of at most 2^52"
        return f"{value:.12g}, far from all other times"

    def steps(self) -> Steps:
        """Steps of the rows on a grid from the first time, which follows the clock if it must."""
        tolerance = MAX_OFF_GRID
        if self._name == "step":
            tolerance = 0.0
        nearest = np.rint(self.time)
        distance = np.abs(self.time - nearest)
        is_off = distance > tolerance
        step = nearest.astype(np.int64)
        stretch = np.zeros(len(step), np.int64)
        for index in np.unique(self.group[is_off]).tolist():
            rows = self.rows_of(index)
            followed = follow(self.time[rows], tolerance)
            step[rows] = followed.step
            stretch[rows] = followed.stretch
            is_off[rows] = followed.is_off
            distance[rows] = followed.distance
        track = self.columns.code["track_id"][self.row]
        step += self._first_step()
        if self._name == "step" and "timestamp" in self.columns.number:
            stretch += self._leaps(step)
        steps = Steps(step, stretch, is_off, distance)
        is_off |= repeats_step(self.group, track, self.time, steps)
        return steps

    def _leaps(self, step: np.ndarray) -> np.ndarray:
        """Number of leaps of the timestamps before each row, int64 [n], for steps [n] of the table.

        Notes recordings with timestamps of another period than the option's.
        """
        num_leaps = np.zeros(len(step), np.int64)
        stamp = self.columns.number["timestamp"][self.row]
        for index in range(len(self.names)):
            rows = self.rows_of(index)
            problem, leaps = compare_clocks(step[rows], stamp[rows], self.options.period_s)
            if problem:
                self.problems.setdefault(index, problem)
            num_leaps[rows] = np.searchsorted(leaps, step[rows], "right")
        return num_leaps

    def _first_step(self) -> np.ndarray | int:
        """Number of the first step of each row's recording: 0 unless steps are given."""
        if self._name == "timestamp":
            return 0
        first_step = self._first_time // self._per_period
        return first_step.astype(np.int64)[self.group]

    def rows_of(self, index: int) -> slice:
        """The rows of a recording."""
        begin, end = np.searchsorted(self.group, (index, index + 1))
        return slice(begin, end)

    def resample(self) -> Resampled:
        """The tracks at the steps of a grid from the first time of each recording."""
        columns = self.columns.take(self.row)
        keep_first = self.options.drop_duplicates
        rows = resample(columns, self.group, self.time, self.options.period_s, keep_first)
        self.count_unused(int(rows.is_isolated.sum()), _ISOLATED)
        return rows

    def count_unused(self, number: int, reason: str) -> None:
        """Count rows that are in no scene."""
        if number:
            self._unused[reason] += number

    def note(self) -> str:
        """One line on the rows that are in no scene and on a clock set back, "" without any."""
        notes = self._notes[:1]
        if len(self._notes) > 1:
            notes.append(f"{len(self._notes) - 1} more such recordings")
        if self._unused:
            reasons = [f"{number} {reason}" for reason, number in self._unused.most_common()]
            total = self._unused.total()
            rows = f"{total} of {len(self._time)} rows are not used"
            notes.append(f"{rows}: {'; '.join(reasons)}")
        return "; ".join(notes)

    def problem(self, index: int, is_off: np.ndarray) -> str:
        """Why the rows of a recording with `is_off`, bool [n] of all rows, fit no step."""
        rows = self.rows_of(index)
        off = is_off[rows]
        if self._name == "step":
            value = self._time[self.row[rows]][off.argmax()]
            return (
                f"step: {value:.12g} is no multiple of {self.options.step_interval} "
                f"(--step-interval) after the first, {self._first_time[index]:.12g}"
            )
        clock = self._clock._replace(first=float(self._first_time[index]))
        track = self.columns.code["track_id"]
        names = self.columns.word["track_id"]
        return clock_problem(clock, self.time[rows], track[self.row[rows]], names, off)

    def interval_problem(self, index: int, interval: float) -> str:
        """The problem of a recording with an interval of `interval` between steps with rows."""
        start = f"most steps are missing: steps with rows are {interval:g} apart"
        if self._name == "step":
            return f"{start}; --step-interval {interval * self._per_period:g} fits"
        rows = self.rows_of(index)
        track = self.columns.code["track_id"][self.row[rows]]
        gap = usual_gap(self.time[rows], track) or interval
        gap_s = gap * self.options.period_s
        hint = self._clock.unit_hint(gap_s)
        if hint:
            return f"{start}; {hint}"
        return f"{start}; --period-s {gap_s:.4g} fits, or --resample true interpolates the tracks"


def _is_file_name(name: str) -> bool:
    """Whether a scene id can be the name of a file."""
    if not name.isprintable() or name.startswith(".") or "/" in name or "\\" in name:
        return False
    return 0 < len(name.encode()) <= MAX_NAME_BYTES
