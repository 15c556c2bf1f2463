"""ETH/UCY pedestrians: `RAW/<set>/<recording>[_train|_val].txt`, five leave-one-out sets, to `Scene`.

A scene is a window of consecutive frames, 8 observed and 12 to predict. The protocol scores the pedestrians with a
position in all 20 frames, and uses windows with at least one such pedestrian. **The role SCORED therefore depends on the
future**: it selects the agents to predict and score, and must never be an input of a model. The other pedestrians of
the 8 observed frames are CONTEXT; pedestrians without an observed frame are left out. Files hold positions only; `_motion`
estimates velocity and heading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers.raw_file import cached_by_file, one_line, read_file
from data_prep.readers.vector_map import NO_MAP
from trajformer.errors import SceneError, TrajformerError
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
NUM_COLUMNS = 17
MAX_BYTES = 16 << 20  # eight times the largest recording
TYPE_COLUMN, PEDESTRIAN = 2, "Pedestrian"
_COLUMNS = {"frame": 0, "id": 1, "x": 13, "y": 15}
_LIMITS = {"frame": 1e15, "id": 1e15, "x": MAX_EXTENT_M, "y": MAX_EXTENT_M}


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
        for name, minimum in (("stride", 1), ("num_history", 2), ("num_future", 1)):
            if getattr(self, name) < minimum:
                raise TrajformerError(f"{self.name}: {name} must be at least {minimum}, not {getattr(self, name)}")

    @property
    def num_steps(self) -> int:
        """Frames of a window."""
        return self.num_history + self.num_future

    def splits(self, raw: Path) -> list[str]:
        """`<set>_<part>` for every part (test, train, val) with a file in the folder of the set."""
        return sorted({f"{path.parent.name}_{_part(path)}" for path in raw.glob("[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all files of a split, by file name and first frame; the first frame is the part of the input."""
        name, part = split.rsplit("_", 1)
        windows: list[Input] = []
        for path in sorted(path for path in (raw / name).glob("[!.]*.txt") if _part(path) == part):
            try:
                frames = read_recording(path).first_frames(self.num_steps)
                windows += [Input(path, str(frame)) for frame in frames[:: self.stride].tolist()]
            except SceneError:
                windows.append(Input(path))
        return windows

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window.

        Raises:
            SceneError: names the file with the line and column that cannot be used, or the window without a scored agent.
        """
        recording = read_recording(item.path)
        if not item.part:  # `inputs` found no window
            recording.first_frames(self.num_steps)
            raise SceneError(f"{item.path}: the input names no first frame")
        first = int(item.part)
        agent, step, xy = recording.window(first, self.num_steps)
        present, row = np.unique(agent, return_inverse=True)
        valid, position = np.zeros((len(present), self.num_steps), bool), np.zeros((len(present), self.num_steps, 2))
        valid[row, step], position[row, step] = True, xy
        observed = valid[:, : self.num_history].any(1)
        present, valid, position = present[observed], valid[observed], position[observed]
        scored = valid.all(1)
        if not scored.any():
            raise SceneError(f"{item}: no pedestrian is present in all {self.num_steps} frames")
        velocity, heading = _motion(position, valid, self.num_history)
        last = self.num_history - 1
        origin = position[valid[:, last], last].mean(0)  # of all present agents, not only of the scored ones
        return Scene(
            scene_id=f"{_recording_name(item.path)}-{first}",
            source=self.name,
            split=split,
            city=_recording_name(item.path),
            period_s=PERIOD_S,
            num_history=self.num_history,
            num_future=self.num_future,
            origin=origin,
            agent_id=tuple(recording.agent_id[index] for index in present),
            agent_kind=np.full(len(present), AgentKind.PEDESTRIAN, np.uint8),
            agent_role=np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8),
            position=np.where(valid[..., None], position - origin, 0.0).astype(np.float32),
            heading=heading.astype(np.float32),
            velocity=velocity.astype(np.float32),
            valid=valid,
            **NO_MAP.scene_fields(origin),
        )


def _part(path: Path) -> str:
    """The part of its set that a file belongs to: train or val by the end of its name, else test."""
    return next((part for part in ("train", "val") if path.stem.endswith(f"_{part}")), "test")


def _recording_name(path: Path) -> str:
    return path.stem.removesuffix("_train").removesuffix("_val")


def _motion(position: np.ndarray, valid: np.ndarray, num_history: int) -> tuple[np.ndarray, np.ndarray]:
    """Velocity [A, T, 2] and heading [A, T] at every valid step, from this step and earlier ones.

    Velocity is the displacement since the previous step, divided by the time. Of the estimates tried, it is the most
    accurate on the UCY recordings, which were smoothed; on eth and hotel longer means are better. Constant-velocity
    predictions over the five test scenes have a final error of 1.15 m, with means over more steps or a fit 1.12 to
    1.23 m. Heading is the direction from the latest position at least 0.2 m away, so that a pedestrian who stops keeps
    the direction; 0 without such a position.

    The first step of a track shares the estimates of its second step, but never across the end of the history.

    Args:
        position: float64 [A, T, 2], metres, zero where not valid.
        valid: bool [A, T]; every pedestrian has an observed step.
        num_history: H.
    """
    rows, steps = np.arange(len(valid))[:, None], np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), axis=1)
    previous = np.concatenate([np.full_like(rows, -1), latest[:, :-1]], axis=1)
    moved = valid & (previous >= 0)
    travel, time = position - position[rows, previous], (steps - previous) * PERIOD_S
    velocity = np.where(moved[..., None], travel / time[..., None], 0.0)
    offset = position[:, :, None] - position[:, None]  # [A, T, S, 2], from step s to step t
    far = np.hypot(offset[..., 0], offset[..., 1]) >= DIRECTION_M
    far &= valid[:, :, None] & valid[:, None] & (steps < steps[:, None])
    chosen = len(steps) - 1 - far[..., ::-1].argmax(-1)
    direction = offset[rows, steps, chosen]
    heading = np.where(far.any(-1), np.arctan2(direction[..., 1], direction[..., 0]), 0.0)
    first, second = valid.argmax(1), moved.argmax(1)
    second = np.where(moved[:, :num_history].any(1), second, first)
    row = rows[:, 0]
    velocity[row, first], heading[row, first] = velocity[row, second], heading[row, second]
    return velocity, heading


# ---- recordings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recording:
    """The R rows of a file, sorted by frame and by pedestrian.

    Attributes:
        path: the file.
        agent_id: the A ids as written in the file, in numerical order.
        frame: int64 [R].
        agent: int64 [R], index into `agent_id`.
        position: float64 [R, 2], metres.
        interval: difference between annotated frames: the most frequent step between two rows of one pedestrian.
    """

    path: Path
    agent_id: tuple[str, ...]
    frame: np.ndarray
    agent: np.ndarray
    position: np.ndarray
    interval: int

    def first_frames(self, steps: int) -> np.ndarray:
        """First frames int64 [n], ascending, of the windows with at least one pedestrian in `steps` consecutive frames.

        Frames are consecutive if they are `interval` apart, so a window never spans a gap of the recording.

        Raises:
            SceneError: there is no such window.
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
    """Parse a text file with a row for every pedestrian and frame.

    Raises:
        SceneError: names the file and the line and column that cannot be used.
    """
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: not a readable text file: {one_line(error)}") from error
    if "\0" in text:  # a lost block; the remains of the lines around it may look like a valid line
        raise SceneError(f"{path}: not a readable text file: it has zero bytes")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    numbered = [(n, words) for n, line in enumerate(lines, 1) if (words := line.split())]
    if not numbered:
        raise SceneError(f"{path}: no rows, so no pedestrian")
    number, rows = zip(*numbered, strict=True)
    for n, row in zip(number, rows, strict=True):
        if len(row) != NUM_COLUMNS:
            raise SceneError(f"{path}: line {n}: {len(row)} columns, expected {NUM_COLUMNS}")
        if row[TYPE_COLUMN] != PEDESTRIAN:
            raise SceneError(f"{path}: line {n}, column {TYPE_COLUMN} (type): {row[TYPE_COLUMN]!r}, expected {PEDESTRIAN!r}")
    value = {name: _numbers(path, name, number, [row[index] for row in rows]) for name, index in _COLUMNS.items()}
    _, first, agent = np.unique(value["id"], return_index=True, return_inverse=True)
    order = np.lexsort((agent, value["frame"]))
    frame, agent = value["frame"].astype(np.int64)[order], agent[order]
    if (twice := (np.diff(frame) == 0) & (np.diff(agent) == 0)).any():
        row = order[1:][twice].min()
        column = f"column {_COLUMNS['id']} (id)"
        raise SceneError(f"{path}: line {number[row]}, {column}: {rows[row][1]} is twice in frame {rows[row][0]}")
    return Recording(
        path=path,
        agent_id=tuple(rows[row][_COLUMNS["id"]] for row in first),
        frame=frame,
        agent=agent,
        position=np.stack([value["x"], value["y"]], -1)[order],
        interval=_interval(frame, agent),
    )


def _numbers(path: Path, name: str, number: Sequence[int], words: Sequence[str]) -> np.ndarray:
    """A column as float64 [R], finite and within its limits; `number` holds the line numbers for messages."""
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
        raise SceneError(f"{path}: line {number[row]}, column {_COLUMNS[name]} ({name}): {words[row]!r}, expected {expected}")
    return values


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


def _interval(frame: np.ndarray, agent: np.ndarray) -> int:
    """The most frequent step between rows of one pedestrian, the smallest of equally frequent ones; 1 without such rows."""
    order = np.lexsort((frame, agent))
    step = np.diff(frame[order])[np.diff(agent[order]) == 0]
    values, counts = np.unique(step, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 1
