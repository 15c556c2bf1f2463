"""Text recordings with a row of words for every agent and frame, and their windows as scenes.

A scene is a window of consecutive frames, or of times between them if a recording is replayed at
another tempo. Agents with a position in all frames are SCORED: protocols for pedestrians score
them. **The role therefore depends on the future**: it selects the agents to predict and score, and
must never be an input of a model. The other agents of the observed frames are CONTEXT; agents
without an observed frame are left out.

Files hold positions only. Velocity is the difference to the previous step. Of the estimates tried,
it is the most accurate on the UCY recordings, which were smoothed; on eth and hotel longer means
are better. Constant-velocity predictions over the five test scenes of ETH/UCY have a final error of
1.15 m, with means over more steps or a fit 1.12 to 1.23 m.
"""

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers.columns import Agents, cells, fill
from data_prep.readers.raw_file import list_parts
from data_prep.readers.text_rows import NumberColumn, TextRows
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.kinematics import copy_to_first_step, difference_velocity
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, METRES, AgentKind, AgentRole, Scene
from trajformer.scenes.vector_map import NO_MAP

_LONG_RUN = 4  # equal steps of a track in sequence that are another interval, not wrong frames


class Layout(NamedTuple):
    """The columns of a recording: frame and id in columns 0 and 1, positions in `x` and `y`."""

    num_columns: int
    x: int
    y: int
    noun: str  # of the unit of positions
    # Index of a column with the same word in all rows, and the word.
    constant: tuple[int, str] | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """The R rows of a file, sorted by frame and by agent."""

    path: Path
    agent_id: tuple[str, ...]  # A ids as written in the file, in numerical order
    frame: np.ndarray  # int64 [R]
    agent: np.ndarray  # int64 [R], index into `agent_id`
    position: np.ndarray  # float64 [R, 2], metres or pixels
    # Between annotated frames: the most frequent (smallest) step between two rows of one agent.
    interval: int
    kind: np.ndarray | None = None  # AgentKind uint8 [A], if the file has types

    def first_frames(self, steps: int) -> np.ndarray:
        """First frames int64 [n], ascending, of the windows with an agent in all `steps` frames.

        The frames of a window are consecutive, `interval` apart, so a window never spans a gap.
        SceneError without such a window.
        """
        order = np.lexsort((self.frame, self.frame % self.interval, self.agent))
        frame = self.frame[order]
        agent = self.agent[order]
        is_linked = (agent[1:] == agent[:-1]) & (np.diff(frame) == self.interval)
        links = np.concatenate([[0], np.cumsum(is_linked)])
        num_windows = max(len(links) - steps + 1, 0)
        is_complete = links[steps - 1 :] - links[:num_windows] == steps - 1
        if not is_complete.any():
            count = len(np.unique(self.frame))
            raise SceneError(
                f"{self.path}: frame: no agent is present in {steps} consecutive frames, "
                f"of {count} in all"
            )
        return np.unique(frame[: len(is_complete)][is_complete])

    def window(self, first: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of `steps` consecutive frames from the frame number `first`.

        Returns agent [n], step [n] counted from 0, and position [n, 2].
        """
        last = first + (steps - 1) * self.interval
        begin, end = np.searchsorted(self.frame, (first, last + 1))
        rows = slice(begin, end)
        step, remainder = np.divmod(self.frame[rows] - first, self.interval)
        on_grid = remainder == 0
        return self.agent[rows][on_grid], step[on_grid], self.position[rows][on_grid]


@cached_by_file(16)
def read_recording(path: Path, *layouts: Layout) -> Recording:
    """Parse a text file with a row for every agent and frame.

    The number of columns selects one of the layouts. Unusable rows are dropped and counted. A
    SceneError names the file, the line and the column.
    """
    rows = TextRows(path, *(layout.num_columns for layout in layouts))
    [layout] = [layout for layout in layouts if layout.num_columns == rows.num_columns]
    id_column = NumberColumn("id", 1, 1e15)
    frame = rows.numbers(NumberColumn("frame", 0, 1e15)).astype(np.int64)
    agent_number = rows.numbers(id_column)
    x = rows.numbers(NumberColumn("x", layout.x, MAX_EXTENT_M, layout.noun))
    y = rows.numbers(NumberColumn("y", layout.y, MAX_EXTENT_M, layout.noun))
    position = np.stack([x, y], -1)
    name = f"column {id_column.number} (id)"
    rows.check.drop_repeated(
        np.stack([frame, agent_number.astype(np.int64)]),
        position,
        f"{name}: twice in a frame",
        lambda row: (
            f"line {rows.line[row]}, {name}: "
            f"{rows.words[row][id_column.number][:40]} is twice in frame {rows.words[row][0][:40]}"
        ),
    )
    interval = _drop_other_intervals(rows, frame, agent_number)
    kept = np.flatnonzero(rows.check.finish())
    if layout.constant:
        _count_other_words(rows, kept, *layout.constant)

    # Sort by frame and agent.
    _, first_row, agent = np.unique(agent_number[kept], return_index=True, return_inverse=True)
    order = np.lexsort((agent, frame[kept]))
    words = rows.column(id_column.number)
    return Recording(
        path=path,
        agent_id=tuple(words[kept[row]] for row in first_row.tolist()),
        frame=frame[kept][order],
        agent=agent[order],
        position=position[kept][order],
        interval=interval,
    )


def _count_other_words(rows: TextRows, kept: np.ndarray, index: int, word: str) -> None:
    """Report the labels of a column that has the same word in all rows of published files.

    `kept` are the usable rows, int64 [n].
    """
    words = rows.column(index)
    others = Counter(words[row] for row in kept.tolist() if words[row] != word)
    causes = {}
    for other, count in others.items():
        label = f"column {index} (type): {one_line(other[:40])!r}"
        causes[f"{label}, expected {word!r}; used as {word!r}"] = count
    report_dropped(rows.path, causes)


def _drop_other_intervals(rows: TextRows, frame: np.ndarray, agent: np.ndarray) -> int:
    """Drop the rows off the interval between annotated frames, and return this interval.

    `frame` and `agent` are [R]. A frame is off the interval if it is no whole number of intervals
    from the previous or next frame of any of its agents. Parts of a recording with another
    interval have no windows; they do not make the recording unusable.
    """
    usable = np.flatnonzero(rows.check.is_usable)
    order = usable[np.lexsort((frame[usable], agent[usable]))]
    is_same_agent = np.diff(agent[order]) == 0
    steps = np.diff(frame[order])
    interval = _frame_interval(steps[is_same_agent])

    # Steps of one agent between two of its rows, in whole intervals or not.
    is_whole = is_same_agent & (steps % interval == 0)
    is_odd = is_same_agent & ~is_whole
    has_whole = _either_side(is_whole)
    has_odd = _either_side(is_odd)
    frames, number = np.unique(frame[order], return_inverse=True)
    is_on_grid = np.bincount(number, has_whole) > 0
    is_off = has_odd & ~is_on_grid[number]
    if is_off.any():
        is_in_run = _either_side(is_odd & _is_long_run(np.where(is_odd, steps, 0), _LONG_RUN))
        _drop_off_grid(rows, order, is_off, is_in_run, interval)

    # So are frames that are several intervals apart: without neighbors they are in no window.
    gaps = np.diff(frames)
    is_sparse = _is_long_run(gaps, 2 * _LONG_RUN) & (gaps > interval) & (gaps % interval == 0)
    is_inside = np.zeros(len(frames), bool)
    is_inside[1:-1] = is_sparse[1:] & is_sparse[:-1]
    is_out = np.zeros(len(frame), bool)
    is_out[order] = is_inside[number]
    rows.check.leave_out(is_out, _other_interval(interval))
    return interval


def _drop_off_grid(
    rows: TextRows, order: np.ndarray, is_off: np.ndarray, is_in_run: np.ndarray, interval: int
) -> None:
    """Drop rows off the interval. `order` are the usable rows [n], the flags are bool [n]."""
    is_other_interval = np.zeros(len(rows.words), bool)
    is_other_interval[order] = is_off & is_in_run
    rows.check.leave_out(is_other_interval, _other_interval(interval))
    is_wrong = np.zeros(len(rows.words), bool)
    is_wrong[order] = is_off & ~is_in_run
    expected = f"expected steps of {interval}"
    rows.check.drop(
        is_wrong,
        f"column 0 (frame): off the interval of the recording, {expected}",
        lambda row: (
            f"line {rows.line[row]}, column 0 (frame): {rows.words[row][0][:40]}, {expected}"
        ),
    )


def _other_interval(interval: int) -> str:
    return f"column 0 (frame): another interval than most rows, which have steps of {interval}"


def _either_side(is_step: np.ndarray) -> np.ndarray:
    """Rows bool [n + 1] before or after a step with `is_step`, bool [n]."""
    sides = np.zeros(len(is_step) + 1, bool)
    sides[1:] = is_step
    sides[:-1] |= is_step
    return sides


def _is_long_run(values: np.ndarray, length: int) -> np.ndarray:
    """Whether a value, int64 [n], is one of at least `length` equal ones in sequence; bool [n]."""
    is_first = np.ones(len(values), bool)
    is_first[1:] = np.diff(values) != 0
    run = np.cumsum(is_first) - 1
    return np.bincount(run)[run] >= length


def _frame_interval(steps: np.ndarray) -> int:
    """The most frequent step int64 [n] between two rows of one agent, 1 without steps."""
    if not len(steps):
        return 1
    intervals, counts = np.unique(steps, return_counts=True)
    return int(intervals[counts.argmax()])


def window_inputs(
    paths: Iterable[Path],
    layouts: tuple[Layout, ...],
    steps: int,
    stride: int = 1,
    tempo: float = 1.0,
) -> list[Input]:
    """Windows of files, by file name and first frame, which is the part.

    A file without windows is one input. Every `stride`-th window is used. If `tempo` is more than
    1, windows of the recording replayed this much faster follow: their steps are `tempo` frames
    apart, every round(stride * tempo)-th is used, and their part is "<first frame>x<tempo>".
    """

    def parts(path: Path) -> list[str]:
        recording = read_recording(path, *layouts)
        first_frames = recording.first_frames(steps)[::stride]
        windows = [str(first) for first in first_frames.tolist()]
        if tempo > 1:
            with suppress(SceneError):  # the recording is too short
                first_frames = recording.first_frames(_span(steps, tempo))
                for first in first_frames[:: round(stride * tempo)].tolist():
                    windows.append(f"{first}x{float(tempo)}")
        return windows

    return list_parts(sorted(paths), parts)


def _span(steps: int, tempo: float) -> int:
    """Consecutive frames of a window of `steps` steps."""
    return math.ceil((steps - 1) * tempo) + 1


def window_of(item: Input, recording: Recording, steps: int) -> tuple[int, float]:
    """First frame and tempo of an input of `window_inputs`.

    Raises the error of `first_frames` if the file has no window.
    """
    if not item.part:
        recording.first_frames(steps)
        raise SceneError(f"{item.path}: the input names no first frame")
    first, _, tempo = item.part.partition("x")
    return int(first), float(tempo or 1)


def window_scene(
    recording: Recording,
    first: int,
    clock: tuple[float, int, int],
    name: tuple[str, str, str, str],
    kind: AgentKind,
    *,
    direction: float,
    unit: str = METRES,
    tempo: float = 1.0,
) -> Scene:
    """The scene of the window that begins at the frame number `first`.

    `clock` is the period in seconds, H and F; `name` scene id, source, split and city; `kind` the
    type of the agents of a recording without types; `direction` the shortest displacement that has
    a direction; `unit` is the unit of positions. Steps are `tempo` frames apart; positions between
    frames are interpolated, and valid if both frames are. Raises SceneError: no agent has all H + F
    steps.
    """
    where = f"{recording.path}: {name[0]}"
    period_s, num_history, num_future = clock
    num_steps = num_history + num_future
    span = _span(num_steps, tempo)
    agent, frame, xy = recording.window(first, span)
    if not len(agent):
        raise SceneError(f"{where}: no agent is present in its frames")
    present, row = np.unique(agent, return_inverse=True)
    agent_id = [recording.agent_id[index] for index in present.tolist()]
    cell, valid = cells(agent_id, row, frame, span, where)
    position = fill(valid, cell, xy)
    if tempo != 1:
        position, valid = _between_frames(position, valid, tempo * np.arange(num_steps))

    kinds = np.full(len(present), kind, np.uint8)
    if recording.kind is not None:
        kinds = recording.kind[present]

    # Agents that are first seen in the future are left out.
    is_observed = valid[:, :num_history].any(1)
    agent_id = [agent_id[index] for index in np.flatnonzero(is_observed)]
    position = position[is_observed]
    valid = valid[is_observed]
    is_scored = valid.all(1)
    if not is_scored.any():
        raise SceneError(f"{where}: no agent is present in all {span} frames")
    role = np.where(is_scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)

    velocity = difference_velocity(position, valid, num_history, period_s)
    heading = _heading(position, valid, direction)
    copy_to_first_step(heading, valid, num_history)
    # The center is the mean of all agents in the last observed step, not only of the scored ones.
    last = num_history - 1
    center = position[valid[:, last], last].mean(0)
    agents = Agents(
        agent_id=agent_id,
        kind=kinds[is_observed],
        role=role,
        position=position,
        heading=heading,
        velocity=velocity,
        valid=valid,
    )
    return agents.scene(name, clock, center, NO_MAP, unit)


def _between_frames(
    position: np.ndarray, valid: np.ndarray, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions [A, T, 2] and validity [A, T] at times [T] in frames.

    They are interpolated between frames [A, n, 2] and [A, n].
    """
    before = np.floor(time).astype(np.int64)
    after = np.ceil(time).astype(np.int64)
    fraction = (time - before)[:, None]
    valid = valid[:, before] & valid[:, after]
    position = position[:, before] * (1 - fraction) + position[:, after] * fraction
    return position * valid[..., None], valid


def _heading(position: np.ndarray, valid: np.ndarray, direction: float) -> np.ndarray:
    """Heading [A, T] at every valid step, from this step and earlier ones.

    It is the direction from the latest position at least `direction` away, so that a pedestrian
    keeps its direction after a stop; 0 without such a position. `position` is [A, T, 2] and `valid`
    [A, T].
    """
    steps = np.arange(valid.shape[1])
    offset = position[:, :, None] - position[:, None]  # [A, T, S, 2], from step s to step t
    is_far = np.hypot(offset[..., 0], offset[..., 1]) >= direction
    is_usable = valid[:, :, None] & valid[:, None] & (steps < steps[:, None])
    is_far &= is_usable
    latest = len(steps) - 1 - is_far[..., ::-1].argmax(-1)  # [A, T]
    rows = np.arange(len(valid))[:, None]
    along = offset[rows, steps, latest]
    return np.where(is_far.any(-1), np.arctan2(along[..., 1], along[..., 0]), 0.0)
