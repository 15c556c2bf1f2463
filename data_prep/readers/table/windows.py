"""Scenes and windows of a table: which rows and steps belong to each scene."""

from typing import NamedTuple

import numpy as np

from data_prep.readers.table.table_file import TableColumns

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # per second
# A larger distance of a timestamp from the grid, in periods, means that the period is wrong.
MAX_OFF_GRID = 0.25
MAX_STEP = 2.0**52  # larger whole numbers are not exact in float64
MAX_NAME_BYTES = 150
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


class Cut(NamedTuple):
    """One scene: the sorted rows `begin` to `end`, its first step and its T; or its problem."""

    begin: int
    end: int
    first_step: int = 0
    num_steps: int = 0
    problem: str = ""


def cut_scenes(
    columns: TableColumns, stem: str, options: TimeOptions
) -> tuple[np.ndarray, np.ndarray, dict[str, Cut]]:
    """Find the scenes of a file from its columns `scene_id` and time.

    A scene of more than H + F steps is cut into windows of H + F steps, named
    `<scene>-t<first step>`. A window without an agent in the last observed step is left out,
    because there is nothing to predict. `stem` is the name of the scene if there is no `scene_id`.

    Returns:
        the rows by scene and step, int64 [n]; their steps, int64 [n]; and the scenes by id, sorted
        by id and first step.
    """
    time_column = "step" if "step" in columns.number else "timestamp"
    time = columns.number[time_column]
    scene = columns.code.get("scene_id", np.zeros(len(time), np.int64))
    order = np.lexsort((time, scene))  # NaN comes last within its scene
    time = time[order]
    scene = scene[order]
    begins = np.flatnonzero(np.concatenate([[True], np.diff(scene) != 0]))
    ends = np.append(begins[1:], len(time))
    step, is_wrong = _steps(time_column, time, begins, ends, options)

    words = columns.word.get("scene_id", [stem])
    scenes: dict[str, Cut] = {}
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        name = words[scene[begin]]
        rows = slice(begin, end)
        if not _is_file_name(name):
            cuts = {ascii(name): Cut(begin, end, problem=_NO_FILE_NAME)}
        elif is_wrong[rows].any():
            problem = _time_problem(time_column, time[rows], is_wrong[rows], options)
            cuts = {name: Cut(begin, end, problem=problem)}
        else:
            cuts = _cut_scene(name, step[rows], begin, options)
        for key, cut in cuts.items():
            if key in scenes:
                cut = cut._replace(problem="scene_id: also the name of a window")
            scenes[key] = cut
    return order, step, scenes


def _steps(
    time_column: str,
    time: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    options: TimeOptions,
) -> tuple[np.ndarray, np.ndarray]:
    """The step int64 [n] of each row, and bool [n], True if its time float64 [n] fits no step.

    The rows `begins[i]` to `ends[i]` are scene i; timestamps are counted from its first one.
    """
    lengths = ends - begins
    with np.errstate(invalid="ignore", over="ignore"):
        if time_column == "step":
            grid = np.repeat(time[begins] % options.step_interval, lengths)
            is_whole = time == np.rint(time)
            exact = np.where(is_whole, (time - grid) / options.step_interval, np.nan)
            tolerance = 0.0
        else:
            period = options.period_s * UNITS[options.time_unit]
            exact = (time - np.repeat(time[begins], lengths)) / period
            tolerance = MAX_OFF_GRID
        step = np.rint(exact)
        fits = (np.abs(exact - step) <= tolerance) & (np.abs(step) <= MAX_STEP)
    return np.where(fits, step, 0.0).astype(np.int64), ~fits


def _is_file_name(name: str) -> bool:
    """Whether a scene id can be the name of a file."""
    if not name.isprintable() or name.startswith(".") or "/" in name or "\\" in name:
        return False
    return 0 < len(name.encode()) <= MAX_NAME_BYTES


def _cut_scene(name: str, step: np.ndarray, begin: int, options: TimeOptions) -> dict[str, Cut]:
    """The scene or its windows, from its sorted steps [n]."""
    history = options.num_history
    window = history + options.num_future
    first = int(step[0])
    last = int(step[-1])
    end = begin + len(step)
    present = np.unique(step)
    interval = np.median(np.diff(present)) if first < last else 1
    if interval > 1:
        problem = (
            f"most steps are missing: steps with rows are {interval:g} apart; --step-interval "
            "sets their interval, --period-s and --time-unit the clock of timestamps"
        )
        return {name: Cut(begin, end, problem=problem)}

    length = last - first + 1
    if length < history:
        problem = (
            f"{length} steps from its first to its last row, "
            f"expected at least the {history} of the history"
        )
        return {name: Cut(begin, end, problem=problem)}
    if length <= window:
        return {name: Cut(begin, end, first, history if length == history else window)}

    starts = present - (history - 1)  # of windows with a row at their last observed step
    is_inside = (starts >= first) & (starts + window - 1 <= last)
    starts = starts[is_inside & ((starts - first) % options.stride == 0)]
    if not len(starts):
        return {name: Cut(begin, end, problem="no window has an agent at its last observed step")}
    begins = begin + np.searchsorted(step, starts)
    ends = begin + np.searchsorted(step, starts + window)
    cuts = {}
    for start, begin_row, end_row in np.stack([starts, begins, ends], -1).tolist():
        cuts[f"{name}-t{start}"] = Cut(begin_row, end_row, start, window)
    return cuts


def _time_problem(
    time_column: str, time: np.ndarray, is_wrong: np.ndarray, options: TimeOptions
) -> str:
    """Message for the first time of a scene that fits no step."""
    value = float(time[is_wrong.argmax()])
    if np.isnan(value):
        return f"{time_column}: empty or NaN"
    if np.isinf(value):
        return f"{time_column}: infinite or no number"
    if time_column == "step":
        if value.is_integer() and abs(value) <= MAX_STEP:
            return (
                f"step: {value:.12g} is no multiple of {options.step_interval} (--step-interval) "
                f"after the first, {time[0]:.12g}"
            )
        return f"step: {value:.12g}, expected a whole number of at most 2^52"
    known = np.unique(time[np.isfinite(time)])
    usual = 0.0
    if len(known) > 1:
        with np.errstate(over="ignore"):
            usual = np.median(np.diff(known))
    return (
        f"timestamp: {value:.12g} is no multiple of the period of {options.period_s:g} s after the "
        f"scene's first, {known[0]:.12g} (they are mostly {usual:.4g} apart; --period-s sets the "
        "period)"
    )
