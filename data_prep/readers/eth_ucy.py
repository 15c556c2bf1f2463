"""ETH/UCY pedestrians: `RAW/<set>/<recording>[_train|_val].txt`, five leave-one-out sets, to `Scene`.

A scene is a window of consecutive frames, 8 observed and 12 to predict. The protocol scores the pedestrians with a
position in all 20 frames, and uses windows with at least one such pedestrian. **The role SCORED therefore depends on the
future**: it selects the agents to predict and score, and must never be an input of a model. The other pedestrians of
the 8 observed frames are CONTEXT; pedestrians without an observed frame are left out.

Files hold positions only. Velocity is the difference to the previous step. Of the estimates tried, it is the most accurate on
the UCY recordings, which were smoothed; on eth and hotel longer means are better. Constant-velocity predictions over the
five test scenes have a final error of 1.15 m, with means over more steps or a fit 1.12 to 1.23 m.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input, check_options
from data_prep.readers.columns import Agents, cells, fill
from data_prep.readers.kinematics import copy_to_first_step, difference_velocity
from data_prep.readers.raw_file import cached_by_file, one_line, read_file
from data_prep.readers.vector_map import NO_MAP
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind, AgentRole, Scene

PERIOD_S = 0.4
DIRECTION_M = 0.2  # standing pedestrians: 99 % of the steps are shorter, on eth and hotel by a small margin
_PARTS = ("test", "train", "val")
_WINDOWS = {
    "eth": (253, 3283, 733),
    "hotel": (445, 3118, 688),
    "univ": (947, 2719, 622),
    "zara1": (705, 2889, 671),
    "zara2": (998, 2681, 590),
}
MAX_BYTES = 16 << 20  # eight times the largest recording
NUM_COLUMNS, TYPE_COLUMN, PEDESTRIAN = 17, 2, "Pedestrian"
_COLUMNS = {"frame": 0, "id": 1, "x": 13, "y": 15}
_LIMITS = {"frame": 1e15, "id": 1e15, "x": MAX_EXTENT_M, "y": MAX_EXTENT_M}  # largest absolute values


@dataclass(frozen=True)
class EthUcy:
    """Reader of the ETH and UCY pedestrian recordings, cut for leave-one-out evaluation.

    Attributes:
        stride: of the windows of a recording, every `stride`-th is used; published figures use 1.
        num_history: observed frames of a window, 0.4 s apart; published figures use 8.
        num_future: frames to predict; published figures use 12.
    """

    stride: int = 1
    num_history: int = 8
    num_future: int = 12
    name: ClassVar[str] = "eth_ucy"
    layout: ClassVar[str] = (
        "RAW/<set>/<recording>_train.txt, <recording>_val.txt and, of the test scene, <recording>.txt: "
        "splits <set>_train, <set>_val and <set>_test, sets eth, hotel, univ, zara1 and zara2"
    )
    published: ClassVar[dict[str, int]] = {
        f"{name}_{part}": count for name, counts in _WINDOWS.items() for part, count in zip(_PARTS, counts, strict=True)
    }

    def __post_init__(self) -> None:
        check_options(self, stride=1, num_history=2, num_future=1)

    def splits(self, raw: Path) -> list[str]:
        """`<set>_<part>` for every part (test, train, val) with a file in the folder of the set."""
        return sorted({f"{path.parent.name}_{_name_and_part(path)[1]}" for path in raw.glob("[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all files of a split, by file name and first frame; the first frame is the part of the input."""
        name, part = split.rsplit("_", 1)
        windows: list[Input] = []
        for path in sorted(path for path in (raw / name).glob("[!.]*.txt") if _name_and_part(path)[1] == part):
            try:
                frames = read_recording(path).first_frames(self.num_history + self.num_future)
                windows += [Input(path, str(frame)) for frame in frames[:: self.stride].tolist()]
            except SceneError:
                windows.append(Input(path))
        return windows

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window; SceneError also if it has no scored agent."""
        recording, num_steps = read_recording(item.path), self.num_history + self.num_future
        if not item.part:  # `inputs` found no window
            recording.first_frames(num_steps)
            raise SceneError(f"{item.path}: the input names no first frame")
        first, name = int(item.part), _name_and_part(item.path)[0]
        agent, step, xy = recording.window(first, num_steps)
        present, row = np.unique(agent, return_inverse=True)
        agent_id = [recording.agent_id[index] for index in present.tolist()]
        cell, valid = cells(agent_id, row, step, num_steps, str(item))
        observed = valid[:, : self.num_history].any(1)
        position, valid = fill(valid, cell, xy)[observed], valid[observed]
        scored = valid.all(1)
        if not scored.any():
            raise SceneError(f"{item}: no pedestrian is present in all {num_steps} frames")
        velocity, heading = difference_velocity(position, valid, PERIOD_S), _heading(position, valid)
        copy_to_first_step(valid, self.num_history, velocity, heading)
        last = self.num_history - 1
        origin = position[valid[:, last], last].mean(0)  # of all present agents, not only of the scored ones
        agent_id = [agent_id[index] for index in np.flatnonzero(observed)]
        kind = np.full(len(valid), AgentKind.PEDESTRIAN, np.uint8)
        role = np.where(scored, int(AgentRole.SCORED), int(AgentRole.CONTEXT)).astype(np.uint8)
        agents = Agents(agent_id, kind, role, position - origin, heading, velocity, valid)
        clock = PERIOD_S, self.num_history, self.num_future
        return agents.scene((f"{name}-{first}", self.name, split, name), clock, origin, NO_MAP)


def _name_and_part(path: Path) -> tuple[str, str]:
    """Name of the recording, and the part of its set that a file belongs to: train or val by the end of its name, else test."""
    name, _, part = path.stem.rpartition("_")
    return (name, part) if part in ("train", "val") else (path.stem, "test")


def _heading(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Heading [A, T] at every valid step, from this step and earlier ones.

    It is the direction from the latest position at least 0.2 m away, so that a pedestrian who stops keeps the direction; 0
    without such a position. Arguments as in `difference_velocity`.
    """
    rows, steps = np.arange(len(valid))[:, None], np.arange(valid.shape[1])
    offset = position[:, :, None] - position[:, None]  # [A, T, S, 2], from step s to step t
    far = np.hypot(offset[..., 0], offset[..., 1]) >= DIRECTION_M
    far &= valid[:, :, None] & valid[:, None] & (steps < steps[:, None])
    direction = offset[rows, steps, len(steps) - 1 - far[..., ::-1].argmax(-1)]
    return np.where(far.any(-1), np.arctan2(direction[..., 1], direction[..., 0]), 0.0)


# ---- recordings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recording:
    """The R rows of a file, sorted by frame and by pedestrian."""

    path: Path
    agent_id: tuple[str, ...]  # A ids as written in the file, in numerical order
    frame: np.ndarray  # int64 [R]
    agent: np.ndarray  # int64 [R], index into `agent_id`
    position: np.ndarray  # float64 [R, 2], metres
    interval: int  # between annotated frames: the most frequent (smallest) step between two rows of one pedestrian

    def first_frames(self, steps: int) -> np.ndarray:
        """First frames int64 [n], ascending, of the windows with at least one pedestrian in `steps` consecutive frames.

        Frames are consecutive if they are `interval` apart, so a window never spans a gap. SceneError without such a window.
        """
        order = np.lexsort((self.frame, self.frame % self.interval, self.agent))
        frame, agent = self.frame[order], self.agent[order]
        linked = (agent[1:] == agent[:-1]) & (np.diff(frame) == self.interval)
        links = np.concatenate([[0], np.cumsum(linked)])
        complete = links[steps - 1 :] - links[: max(len(links) - steps + 1, 0)] == steps - 1
        if not complete.any():
            count = len(np.unique(self.frame))
            raise SceneError(f"{self.path}: frame: no pedestrian is present in {steps} consecutive frames, of {count} in all")
        return np.unique(frame[: len(complete)][complete])

    def window(self, first: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of `steps` consecutive frames: pedestrian [n], step [n] counted from 0, and position [n, 2]."""
        begin, end = np.searchsorted(self.frame, (first, first + (steps - 1) * self.interval + 1))
        step, remainder = np.divmod(self.frame[begin:end] - first, self.interval)
        on_grid = remainder == 0
        return self.agent[begin:end][on_grid], step[on_grid], self.position[begin:end][on_grid]


@cached_by_file(16)
def read_recording(path: Path) -> Recording:
    """Parse a text file with a row for every pedestrian and frame; a SceneError names the file, the line and the column."""
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: not a readable text file: {one_line(error)}") from error
    if "\0" in text:  # a lost block; the remains of the lines around it may look like a valid line
        raise SceneError(f"{path}: not a readable text file: it has zero bytes")
    lines = enumerate(io.StringIO(text, newline=None), 1)
    rows = [(number, words) for number, line in lines if (words := line.split())]
    if not rows:
        raise SceneError(f"{path}: no rows, so no pedestrian")
    for number, row in rows:
        if len(row) != NUM_COLUMNS:
            raise SceneError(f"{path}: line {number}: {len(row)} columns, expected {NUM_COLUMNS}")
        if row[TYPE_COLUMN] != PEDESTRIAN:
            problem = f"{row[TYPE_COLUMN]!r}, expected {PEDESTRIAN!r}"
            raise SceneError(f"{path}: line {number}, column {TYPE_COLUMN} (type): {problem}")
    value = {name: _numbers(path, name, rows) for name in _COLUMNS}
    _, first, agent = np.unique(value["id"], return_index=True, return_inverse=True)
    order = np.lexsort((agent, value["frame"]))
    frame, agent = value["frame"].astype(np.int64)[order], agent[order]
    if (twice := (np.diff(frame) == 0) & (np.diff(agent) == 0)).any():
        number, row = rows[order[1:][twice].min()]
        raise SceneError(f"{path}: line {number}, column {_COLUMNS['id']} (id): {row[1]} is twice in frame {row[0]}")
    by_agent = np.lexsort((frame, agent))
    intervals, counts = np.unique(np.diff(frame[by_agent])[np.diff(agent[by_agent]) == 0], return_counts=True)
    return Recording(
        path=path,
        agent_id=tuple(rows[row][1][_COLUMNS["id"]] for row in first),
        frame=frame,
        agent=agent,
        position=np.stack([value["x"], value["y"]], -1)[order],
        interval=int(intervals[counts.argmax()]) if len(intervals) else 1,
    )


def _numbers(path: Path, name: str, rows: list[tuple[int, list[str]]]) -> np.ndarray:
    """A column as float64 [R], finite and within its limit, of rows (line for messages, words)."""
    column = _COLUMNS[name]
    words = [row[column] for _, row in rows]
    try:
        values = np.array(words, np.float64)
    except ValueError:
        values = np.array([_number(word) for word in words])
    is_whole = name in ("frame", "id")
    wrong = ~(np.abs(values) <= _LIMITS[name])  # also refuses NaN
    if is_whole:
        wrong |= values != np.rint(values)
    if wrong.any():
        row = int(wrong.argmax())
        expected = "a whole number" if is_whole else f"a number of metres up to {MAX_EXTENT_M:g}"
        raise SceneError(f"{path}: line {rows[row][0]}, column {column} ({name}): {words[row]!r}, expected {expected}")
    return values


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan
