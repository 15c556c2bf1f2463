"""Which scenes a table of tracks holds: rows sorted by scene and step, whole scenes or windows of long ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.readers.table.file import Columns

OFF_GRID = 0.25  # of a period; a timestamp farther from the grid than this says that the period is another
LARGEST_STEP = 2.0**52  # up to here float64 tells neighbouring whole numbers apart
LONGEST_NAME = 150  # bytes


class Cutting(NamedTuple):
    """The clock of the scenes: seconds between steps, H, F, and steps between the starts of windows."""

    period_s: float
    num_history: int
    num_future: int
    stride: int


class Cut(NamedTuple):
    """One scene: the sorted rows `begin` to `end`, its first step, its T; or the problem that it has."""

    begin: int
    end: int
    first: int = 0
    num_steps: int = 0
    problem: str = ""


@dataclass(frozen=True, eq=False)
class Cuts:
    """Rows of a file in order of scene and step: `order` int64 [n], their `step` int64 [n], and the scenes by id."""

    order: np.ndarray
    step: np.ndarray
    scenes: dict[str, Cut]


def cut_scenes(columns: Columns, stem: str, cutting: Cutting) -> Cuts:
    """Find the scenes of a file, in order of their ids and first steps.

    A scene of more than H + F steps is cut into windows of so many, named `<scene>-t<first step>`. A window is left
    out when nobody is seen at its last observed step, for then there is nothing to predict.

    Args:
        columns: of the file; `scene_id` and the time columns are looked at.
        stem: what a scene is called where there is no `scene_id`.
        cutting: the clock.
    """
    name = "step" if "step" in columns.number else "timestamp"
    time, count = columns.number[name], len(columns.number[name])
    scene = columns.code.get("scene_id", np.zeros(count, np.int64))
    order = np.lexsort((time, scene))  # NaN comes last within its scene
    time, scene = time[order], scene[order]
    start = np.flatnonzero(np.concatenate([[True], np.diff(scene) != 0]))
    end = np.append(start[1:], count)
    step, bad = _steps(name, time, np.repeat(time[start], end - start), cutting)
    broken = np.logical_or.reduceat(bad, start).tolist()
    words = columns.word.get("scene_id", [stem])
    scenes: dict[str, Cut] = {}
    for code, begin, stop, is_broken in zip(scene[start].tolist(), start.tolist(), end.tolist(), broken, strict=True):
        word, problem = words[code], _name_problem(words[code])
        if problem:
            cuts = {ascii(word): Cut(begin, stop, problem=problem)}
        elif is_broken:
            value = float(time[begin + int(bad[begin:stop].argmax())])
            cuts = {word: Cut(begin, stop, problem=_time_problem(name, time[begin:stop], value, cutting))}
        else:
            cuts = _cut_scene(word, step[begin:stop], begin, cutting)
        for key, cut in cuts.items():
            scenes[key] = cut if key not in scenes else cut._replace(problem="scene_id: also the name of a window")
    return Cuts(order, step, scenes)


def _steps(name: str, time: np.ndarray, first: np.ndarray, cutting: Cutting) -> tuple[np.ndarray, np.ndarray]:
    """Step int64 [n] of every row and where there is none, bool [n]; `first` is the first timestamp of a row's scene."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (time - first) / cutting.period_s if name == "timestamp" else time
        step = np.rint(exact)
        fits = np.abs(exact - step) <= (OFF_GRID if name == "timestamp" else 0.0)
    bad = ~(fits & (np.abs(step) <= LARGEST_STEP))
    return np.where(bad, 0.0, step).astype(np.int64), bad


def _cut_scene(name: str, step: np.ndarray, begin: int, cutting: Cutting) -> dict[str, Cut]:
    """The scene itself, or its windows, from its sorted steps."""
    history, window = cutting.num_history, cutting.num_history + cutting.num_future
    first, last, end = int(step[0]), int(step[-1]), begin + len(step)
    length = last - first + 1
    if length < history:
        problem = f"{length} steps from its first to its last row, expected at least the {history} of the history"
        return {name: Cut(begin, end, problem=problem)}
    if length <= window:
        return {name: Cut(begin, end, first, history if length == history else window)}
    starts = np.unique(step) - (history - 1)  # of windows that have somebody at their last observed step
    starts = starts[(starts >= first) & (starts + window - 1 <= last) & ((starts - first) % cutting.stride == 0)]
    if not len(starts):
        return {name: Cut(begin, end, problem="nobody is seen at the last observed step of any window")}
    edges = begin + np.searchsorted(step, np.stack([starts, starts + window]))
    return {f"{name}-t{s}": Cut(a, b, s, window) for s, a, b in zip(starts.tolist(), *edges.tolist(), strict=True)}


def _name_problem(name: str) -> str:
    """Why a scene's name cannot become the name of a file, or nothing."""
    if not name:
        return "scene_id: empty"
    if name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        return "scene_id: not fit for a file name (a slash, a dot in front, or a control character)"
    return f"scene_id: longer than {LONGEST_NAME} bytes" if len(name.encode()) > LONGEST_NAME else ""


def _time_problem(name: str, time: np.ndarray, value: float, cutting: Cutting) -> str:
    """What is wrong with a time that fits no step."""
    if not np.isfinite(value):
        return f"{name}: {'empty or NaN' if np.isnan(value) else 'infinite or no number'}"
    if name == "step":
        return f"step: {value:.12g}, expected a whole number of at most 2^52"
    known = np.unique(time[np.isfinite(time)])
    with np.errstate(over="ignore"):
        usual = float(np.median(np.diff(known))) if len(known) > 1 else 0.0
    return (
        f"timestamp: {value:.12g} is no multiple of the period of {cutting.period_s:g} s after the scene's first, "
        f"{known[0]:.12g} (they are mostly {usual:.4g} apart; --period-s sets the period)"
    )
