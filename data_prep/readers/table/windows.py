"""Scenes and windows of a table: which rows and steps belong to each scene."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data_prep.readers.table.table_file import TableColumns
from data_prep.readers.table.timeline import MAX_UNUSED, Timeline, TimeOptions

_OFF_GRID = "between two steps (--resample true interpolates them)"
_SHORT = "in parts shorter than the history (--resample true keeps one grid over pauses)"
_REFUSED = "where many rows are between two steps (--resample true interpolates them)"


class Cut(NamedTuple):
    """One scene: the sorted rows `begin` to `end`, its first step and its T; or its problem.

    `recording` is the name of the scene before it was cut into windows. Windows with one problem
    are listed in one line.
    """

    begin: int
    end: int
    first_step: int = 0
    num_steps: int = 0
    problem: str = ""
    recording: str = ""


class Scenes(NamedTuple):
    """The scenes of a file.

    Attributes:
        columns: the n usable rows, sorted by scene and step.
        recording: number of the recording and its stretch of each row, int64 [n].
        step: int64 [n].
        known_step: int64 [n], the step at which the values of a row are known: later than `step`
            for interpolated values.
        cuts: the scenes by id, sorted by recording and first step.
        note: one line on rows without a scene and on a clock set back, "" without any. Rows of
            scenes with a problem and rows after the last window are not counted.
    """

    columns: TableColumns
    recording: np.ndarray
    step: np.ndarray
    known_step: np.ndarray
    cuts: dict[str, Cut]
    note: str

    def rows(self, cut: Cut, num_history: int) -> np.ndarray:
        """Rows of a scene, int64.

        An interpolated value of the history is used if it is known one step after the present at
        the latest: it is as good as measured, and a longer gap would show where its agent will be.
        """
        rows = np.arange(cut.begin, cut.end)
        present = cut.first_step + num_history - 1
        is_history = self.step[rows] <= present
        return rows[~is_history | (self.known_step[rows] <= present + 1)]


def cut_scenes(columns: TableColumns, stem: str, options: TimeOptions) -> Scenes:
    """Find the scenes of a file from its columns `scene_id`, time and `track_id`, `x`, `y`.

    A scene of more than H + F steps is cut into windows of H + F steps, named
    `<scene>-t<first step>`. A window without a row in the last second of its history is left out,
    because there is nothing to predict. Windows do not reach over leaps of the clock. `stem` is the
    name of the scene if there is no `scene_id`.
    """
    timeline = Timeline(columns, stem, options)
    rows = _used_rows(timeline)
    cuts: dict[str, Cut] = {}
    for index, name in enumerate(timeline.names):
        begin, end = np.searchsorted(rows.group, (index, index + 1)).tolist()
        if index in timeline.problems:
            made = {name: Cut(begin, end, problem=timeline.problems[index])}
        else:
            made = _cut_recording(timeline, rows, index, begin, end)
        for key, cut in made.items():
            if key in cuts:
                cut = cut._replace(problem="scene_id: also the name of a window")
            cuts[key] = cut._replace(recording=name)
    # Distances in time between two stretches are not known.
    num_stretches = int(rows.stretch.max(initial=0)) + 1
    return Scenes(
        columns=rows.columns,
        recording=rows.group * num_stretches + rows.stretch,
        step=rows.step,
        known_step=rows.known_step,
        cuts=cuts,
        note=timeline.note(),
    )


class _Rows(NamedTuple):
    """The n rows with a step, sorted by recording and step, and the m rows between two steps.

    Attributes:
        columns: of the n rows.
        group: recording, int64 [n].
        step: int64 [n].
        known_step: int64 [n], see `Scenes`.
        stretch: grid of the step, int64 [n].
        is_twin: bool [n], True for a row of a track that has another row for the step.
        is_off: bool, True for each row of the timeline between two steps.
        off_group: recording, int64 [m].
        off_step: the step before, int64 [m].
    """

    columns: TableColumns
    group: np.ndarray
    step: np.ndarray
    known_step: np.ndarray
    stretch: np.ndarray
    is_twin: np.ndarray
    is_off: np.ndarray
    off_group: np.ndarray
    off_step: np.ndarray


def _used_rows(timeline: Timeline) -> _Rows:
    """Rows with a step: the rows on the grid of their recording, or interpolated ones."""
    if timeline.options.resample:
        resampled = timeline.resample()
        order = np.lexsort((resampled.step, resampled.group))
        columns = resampled.columns.take(order)
        group = resampled.group[order]
        step = resampled.step[order]
        known_step = resampled.known_step[order]
        stretch = np.zeros(len(order), np.int64)
        is_off = np.zeros(len(timeline.row), bool)
        off_step = np.zeros(0, np.int64)
    else:
        steps = timeline.steps()
        is_off = steps.is_off
        columns = timeline.columns.take(timeline.row[~is_off])
        group = timeline.group[~is_off]
        step = steps.step[~is_off]
        known_step = step
        stretch = steps.stretch[~is_off]
        off_step = steps.step[is_off]
    is_twin = np.zeros(len(step), bool)
    if not timeline.options.drop_duplicates:
        is_twin = _twins(group, step, columns.code["track_id"])
    off_group = timeline.group[is_off]
    return _Rows(columns, group, step, known_step, stretch, is_twin, is_off, off_group, off_step)


def _twins(group: np.ndarray, step: np.ndarray, track: np.ndarray) -> np.ndarray:
    """Rows for which the track has an earlier row for the step, bool [n]; all arguments are [n]."""
    is_twin = np.zeros(len(step), bool)
    order = np.lexsort((track, step, group))
    keys = np.stack([group, step, track])[:, order]
    is_twin[order[1:]] = (np.diff(keys) == 0).all(0)
    return is_twin


def _cut_recording(
    timeline: Timeline, rows: _Rows, index: int, begin: int, end: int
) -> dict[str, Cut]:
    """The scene of a recording or its windows, from its rows `begin` to `end`."""
    options = timeline.options
    name = timeline.names[index]
    off_begin, off_end = np.searchsorted(rows.off_group, (index, index + 1)).tolist()
    off_step = rows.off_step[off_begin:off_end]
    present = np.unique(rows.step[begin:end])
    is_regular = len(off_step) <= MAX_UNUSED * (len(off_step) + end - begin)
    if is_regular and len(present) > 1:
        interval = float(np.median(np.diff(present)))
        if interval > 1:
            problem = timeline.interval_problem(index, interval)
            return {name: Cut(begin, end, problem=problem)}

    # Each stretch has its own grid.
    bounds = begin + np.flatnonzero(np.diff(rows.stretch[begin:end])) + 1
    bounds = np.concatenate([[begin], bounds, [end]])
    cuts: dict[str, Cut] = {}
    longest = 0
    num_short = 0
    num_refused = 0
    for first_row, last_row in pairwise(bounds.tolist()):
        step = rows.step[first_row:last_row]
        if not len(step):
            continue
        length = int(step[-1] - step[0]) + 1
        longest = max(longest, length)
        if length < options.num_history:
            num_short += len(step)
            continue
        made, is_refused = _windows(step, off_step, options)
        num_refused += int(is_refused.sum())
        for cut in made:
            key = f"{name}-t{cut.first_step}"
            if len(bounds) == 2 and length <= options.num_history + options.num_future:
                key = name
            cuts[key] = cut._replace(begin=first_row + cut.begin, end=first_row + cut.end)
    if cuts:
        cuts = _without_twins(cuts, rows, begin, end)
        timeline.count_unused(num_short, _SHORT)
        timeline.count_unused(num_refused, _REFUSED)
        timeline.count_unused(len(off_step), _OFF_GRID)
        return cuts

    if not is_regular or num_refused:
        problem = timeline.problem(index, rows.is_off)
    elif longest < options.num_history:
        where = "from its first to its last row"
        if len(bounds) > 2:
            where = "between pauses of the clock at most (--resample true keeps one grid)"
        problem = (
            f"{longest} steps {where}, expected at least the {options.num_history} of the history"
        )
    else:
        problem = "no window has an agent in the last second of its history"
    return {name: Cut(begin, end, problem=problem)}


def _without_twins(cuts: dict[str, Cut], rows: _Rows, begin: int, end: int) -> dict[str, Cut]:
    """Scenes of a recording with rows `begin` to `end`; two rows for one step are a problem."""
    twins = begin + np.flatnonzero(rows.is_twin[begin:end])
    if not len(twins):
        return cuts
    code = rows.columns.code["track_id"][twins[0]]
    track = rows.columns.word["track_id"][code]
    problem = (
        "track_id (--drop-duplicates true uses the first row): two rows for step "
        f"{rows.step[twins[0]]} of track {track[:40]!r}"
    )
    if len(twins) > 1:
        problem += f", and {len(twins) - 1} other rows twice"
    checked = {}
    for name, cut in cuts.items():
        first, last = np.searchsorted(twins, (cut.begin, cut.end))
        if first < last:
            cut = cut._replace(problem=problem)
        checked[name] = cut
    return checked


def _windows(
    step: np.ndarray, off_step: np.ndarray, options: TimeOptions
) -> tuple[list[Cut], np.ndarray]:
    """Windows of a stretch from its sorted steps [n].

    Returns windows, with rows from 0; and bool [n], True for rows that are in no window because
    too many rows around them have no step (`off_step`, int64 [m]).
    """
    history = options.num_history
    window = history + options.num_future
    first = int(step[0])
    length = int(step[-1]) - first + 1
    if length <= window:
        num_steps = window
        if length == history:
            num_steps = history
        starts = np.array([first])
    else:
        num_steps = window
        starts = _starts(np.unique(step), options)
    begins = np.searchsorted(step, starts)
    ends = np.searchsorted(step, starts + window)
    off_begins = np.searchsorted(off_step, starts)
    off_ends = np.searchsorted(off_step, starts + window)
    num_off = off_ends - off_begins
    is_used = num_off <= MAX_UNUSED * (num_off + ends - begins)

    cuts = []
    refused = np.zeros(len(step), bool)
    kept = np.zeros(len(step), bool)
    columns = (starts.tolist(), begins.tolist(), ends.tolist(), is_used.tolist())
    for start, begin, end, is_good in zip(*columns, strict=True):
        if is_good:
            cuts.append(Cut(begin, end, start, num_steps))
            kept[begin:end] = True
        else:
            refused[begin:end] = True
    return cuts, refused & ~kept


def _starts(present: np.ndarray, options: TimeOptions) -> np.ndarray:
    """First steps of windows, int64, for a stretch with rows at the ascending steps `present`.

    A row is at most a short loss before the last observed step.
    """
    history = options.num_history
    first = int(present[0])
    last = int(present[-1]) - (history + options.num_future) + 1
    loss = options.short_loss
    # Runs of last observed steps with such a row.
    ends = np.flatnonzero(np.diff(present) > loss + 1)
    run_first = present[np.concatenate([[0], ends + 1])] - (history - 1)
    run_last = present[np.append(ends, len(present) - 1)] + loss - (history - 1)
    run_first = np.maximum(run_first, first)
    run_last = np.minimum(run_last, last)
    starts = [np.zeros(0, np.int64)]
    for low, high in zip(run_first.tolist(), run_last.tolist(), strict=True):
        wait = (first - low) % options.stride  # until the next multiple of the stride
        starts.append(np.arange(low + wait, high + 1, options.stride))
    return np.concatenate(starts)
