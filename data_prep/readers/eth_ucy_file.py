"""One ETH/UCY recording, a text file with a row for every pedestrian in every frame, parsed once a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.readers.raw_file import read_file, told
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_EXTENT_M

NUM_COLUMNS = 17
MAX_BYTES = 16 << 20  # eight times the largest recording
TYPE_COLUMN, PEDESTRIAN = 2, "Pedestrian"
_COLUMNS = {"frame": 0, "id": 1, "x": 13, "y": 15}
_LARGEST = {"frame": 1e15, "id": 1e15, "x": MAX_EXTENT_M, "y": MAX_EXTENT_M}


@dataclass(frozen=True, eq=False)
class Recording:
    """The rows of a file, by frame and, in a frame, by pedestrian.

    Attributes:
        path: the file.
        agent_id: the A ids as they stand in the file, in the order of their numbers.
        frame: int64 [R].
        agent: int64 [R], index into `agent_id`.
        position: float64 [R, 2], metres.
        interval: from one annotated frame to the next: the commonest step between two rows of one pedestrian.
    """

    path: Path
    agent_id: tuple[str, ...]
    frame: np.ndarray
    agent: np.ndarray
    position: np.ndarray
    interval: int

    def first_frames(self, steps: int) -> np.ndarray:
        """Frames int64 [n], ascending, from which at least one pedestrian is there in `steps` consecutive frames.

        Frames are consecutive if they are `interval` apart, so a window never spans a gap of the recording.

        Raises:
            SceneError: there is none.
        """
        order = np.lexsort((self.frame, self.frame % self.interval, self.agent))
        frame, agent = self.frame[order], self.agent[order]
        linked = (agent[1:] == agent[:-1]) & (np.diff(frame) == self.interval)
        links = np.concatenate([[0], np.cumsum(linked)])
        whole = links[steps - 1 :] - links[: max(len(links) - steps + 1, 0)] == steps - 1
        if not whole.any():
            count = len(np.unique(self.frame))
            raise SceneError(f"{self.path}: frame: no pedestrian is there in {steps} consecutive frames, of {count} in all")
        return np.unique(frame[: len(whole)][whole])

    def window(self, first: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of `steps` consecutive frames: pedestrian [n], step [n] from 0 on, and position [n, 2]."""
        begin, end = np.searchsorted(self.frame, (first, first + (steps - 1) * self.interval + 1))
        step, off = np.divmod(self.frame[begin:end] - first, self.interval)
        on = off == 0
        return self.agent[begin:end][on], step[on], self.position[begin:end][on]


def read_recording(path: Path) -> Recording:
    """Parse a file, or take it from the cache of this process if it has not changed since.

    Raises:
        SceneError: names the file and the line and column that cannot be used.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {error.strerror}") from error
    return _parse(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _parse(path: Path, size: int, mtime_ns: int) -> Recording:
    """Size and time of change are there for the cache alone."""
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: not a readable text file: {told(error)}") from error
    if "\0" in text:  # a lost block; what is left of the lines around it may look like one
        raise SceneError(f"{path}: not a readable text file: it has zero bytes")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = [line.split() for line in lines]
    number = [n for n, row in enumerate(rows, 1) if row]
    rows = [row for row in rows if row]
    if not rows:
        raise SceneError(f"{path}: no rows, so no pedestrian")
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
    """A column as float64 [R], finite and within its limits; `number` has the lines it comes from."""
    place = f"column {_COLUMNS[name]} ({name})"
    try:
        values = np.array(words, np.float64)
    except ValueError:
        values = np.array([_number(word) for word in words])
    wrong = ~(np.abs(values) <= _LARGEST[name])  # NaN, too
    if name in ("frame", "id"):
        wrong |= values != np.rint(values)
    if wrong.any():
        row = int(wrong.argmax())
        kind = "a whole number" if name in ("frame", "id") else f"a number of metres up to {MAX_EXTENT_M:g}"
        raise SceneError(f"{path}: line {number[row]}, {place}: {words[row]!r}, expected {kind}")
    return values


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


def _interval(frame: np.ndarray, agent: np.ndarray) -> int:
    """The commonest step, the smallest of several, between rows of one pedestrian; 1 where nobody has two rows."""
    order = np.lexsort((frame, agent))
    step = np.diff(frame[order])[np.diff(agent[order]) == 0]
    values, counts = np.unique(step, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 1
