"""Base of readers of recordings: files with the tracks of all agents, cut into windows.

A reader turns the files of a recording into the columns of a table of tracks. Clock, windows,
missing velocities and headings, and scenes are then as for tables (`readers/table`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers.raw_file import list_parts
from data_prep.readers.table.estimates import RowEstimates, estimate_scenes
from data_prep.readers.table.scene import table_scene, tracks_of_cut
from data_prep.readers.table.table_file import TableColumns
from data_prep.readers.table.timeline import TimeOptions
from data_prep.readers.table.windows import Scenes, cut_scenes
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn
from trajformer.scenes.vector_map import NO_MAP, VectorMap

_LIMITS = {
    "period_s": (1e-3, 60.0),
    "num_history": (2, 10_000),
    "num_future": (1, 10_000),
    "stride": (1, 10**9),
    "map_radius_m": (0, np.inf),
}
_WHOLE = 1e-6  # tolerance of a whole number of frames
_OPTION = re.compile(r" \(--[^)]*\)")  # remedies for tables, which these readers do not have


class Recorded(NamedTuple):
    """The rows of a recording in the units and axes of a scene.

    With `is_resampled`, they have a time between the steps and are interpolated.
    """

    columns: TableColumns
    is_resampled: bool = False


@dataclass(frozen=True)
class TrackFiles(Config, limits=_LIMITS):
    """Base of readers of recordings; see the docstrings of its subclasses.

    A subclass defines `name`, `layout`, `recordings` and `tracks`, and overrides the other methods
    as needed.
    """

    period_s: float = 0.1
    num_history: int = 30
    num_future: int = 50
    stride: int = 10
    map_radius_m: float = 100.0
    name: ClassVar[str]
    layout: ClassVar[str]
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def recordings(self, raw: Path, split: str) -> Sequence[Path]:
        """The main file of each recording of a split, sorted."""
        raise NotImplementedError

    def files(self, path: Path) -> tuple[Path, ...]:
        """All files with tracks of a recording, the main file first."""
        return (path,)

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a recording; a SceneError names the file."""
        raise NotImplementedError

    def recording_name(self, path: Path) -> str:
        """Name of a recording, unique in its split."""
        return path.stem

    def map_near(self, path: Path, raw: Path, positions: np.ndarray) -> VectorMap:
        """Polylines within `map_radius_m` of positions float64 [n, 2]."""
        return NO_MAP

    @property
    def time_options(self) -> TimeOptions:
        """Period, horizon and windows."""
        return TimeOptions(
            period_s=self.period_s,
            time_unit="s",
            step_interval=1,
            num_history=self.num_history,
            num_future=self.num_future,
            stride=self.stride,
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows by recording and first step."""
        return list_parts(self.recordings(raw, split), self._windows)

    def _windows(self, path: Path) -> list[str]:
        return list(load_windows(self, *self.files(path)).cuts)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window, see `Reader.read`."""
        files = self.files(item.path)
        scenes = load_windows(self, *files)
        if item.part not in scenes.cuts:
            raise SceneError(f"{item.path}: there is no window {item.part!r}")
        if scenes.note:
            warn(f"{item.path}: {_OPTION.sub('', scenes.note)}")
        cut = scenes.cuts[item.part]
        options = self.time_options
        try:
            estimate = partial(_estimate, self, *files)
            tracks, estimates = tracks_of_cut(scenes, cut, options, estimate)
            map_near = partial(self.map_near, item.path, raw)
            head = (item.part, self.name, split)
            return table_scene(tracks, estimates, head, options, map_near).validate()
        except SceneError as error:
            where = str(item.path) if cut.problem else str(item)
            raise SceneError(f"{where}: {_OPTION.sub('', str(error))}") from error


@cached_by_file(2)
def load_windows(reader: TrackFiles, *files: Path) -> Scenes:
    """The windows of a recording."""
    columns, is_resampled = reader.tracks(*files)
    options = reader.time_options._replace(resample=is_resampled)
    return cut_scenes(columns, reader.recording_name(files[0]), options)


@cached_by_file(2)
def _estimate(reader: TrackFiles, *files: Path) -> RowEstimates:
    """Estimates for all rows of a recording."""
    return estimate_scenes(load_windows(reader, *files), reader.period_s)


def from_frames(columns: TableColumns, frame_rate: float, period_s: float) -> Recorded:
    """Rows at the steps of a clock, from the column `step` with numbers of frames.

    If a step is a whole number of frames, rows between two steps are left out, or the clock follows
    the frames of a recording that has a row for each step only. Otherwise, all rows are
    interpolated. `frame_rate` is in frames per second.
    """
    frame = columns.number["step"]
    number = {name: values for name, values in columns.number.items() if name != "step"}
    frames_per_step = frame_rate * period_s
    whole = round(frames_per_step)
    is_whole = whole >= 1 and abs(frames_per_step - whole) <= _WHOLE * frames_per_step
    interval = _frame_interval(columns)
    if not is_whole or interval > whole:
        number["timestamp"] = frame / frame_rate
        return Recorded(_with_numbers(columns, number), is_resampled=True)
    if interval == whole:
        # Some recordings skip frames, after which all rows are at other frames.
        number["timestamp"] = frame / frame_rate
        return Recorded(_with_numbers(columns, number))

    # The first frame of a recording, and so of the steps, may be any number.
    with np.errstate(invalid="ignore"):
        remainder = frame % whole
    known = remainder[np.isfinite(remainder)]
    residues, counts = np.unique(known, return_counts=True)
    offset = residues[counts.argmax()] if len(residues) else 0.0
    number["step"] = (frame - offset) / whole
    on_step = ~np.isfinite(remainder) | (remainder == offset)
    return Recorded(_with_numbers(columns, number).take(on_step))


def _frame_interval(columns: TableColumns) -> float:
    """The most frequent number of frames between two rows of a track, 1 without any."""
    frame = columns.number["step"]
    track = columns.code["track_id"]
    order = np.lexsort((frame, track))
    with np.errstate(invalid="ignore"):
        steps = np.diff(frame[order])[np.diff(track[order]) == 0]
    steps = steps[np.isfinite(steps) & (steps > 0)]
    if not len(steps):
        return 1.0
    intervals, counts = np.unique(steps, return_counts=True)
    return float(intervals[counts.argmax()])


def with_velocity(number: dict[str, np.ndarray], speed: np.ndarray) -> dict[str, np.ndarray]:
    """Columns float64 [n] with the velocity of a speed float64 [n] along the column `heading`.

    The heading becomes an angle in (-pi, pi].
    """
    heading = number["heading"]
    with np.errstate(invalid="ignore"):
        cosine = np.cos(heading)
        sine = np.sin(heading)
        velocity = {"vx": speed * cosine, "vy": speed * sine}
        return {**number, **velocity, "heading": np.arctan2(sine, cosine)}


def columns_of(
    number: dict[str, np.ndarray], track: Sequence[str], kind: Sequence[str]
) -> TableColumns:
    """A table of columns float64 [n] with the id and the kind of each of n rows."""
    word = {}
    code = {}
    for name, words in (("track_id", track), ("kind", kind)):
        word[name] = sorted(set(words))
        index = {text: place for place, text in enumerate(word[name])}
        code[name] = np.array([index[text] for text in words], np.int64)
    return TableColumns(number, word, code)


def _with_numbers(columns: TableColumns, number: dict[str, np.ndarray]) -> TableColumns:
    return TableColumns(number, columns.word, columns.code)


def with_word(columns: TableColumns, name: str, word: str) -> TableColumns:
    """The columns with a text column that has one word in all rows."""
    code = np.zeros(len(columns.code["track_id"]), np.int64)
    return TableColumns(columns.number, columns.word | {name: [word]}, columns.code | {name: code})


def concatenate(parts: Sequence[TableColumns]) -> TableColumns:
    """The rows of several tables; numbers that a table lacks are NaN, and its text is empty."""
    number: dict[str, list[np.ndarray]] = {}
    counts = [len(part.code["track_id"]) for part in parts]
    for name in dict.fromkeys(name for part in parts for name in part.number):
        pieces = []
        for part, count in zip(parts, counts, strict=True):
            pieces.append(part.number.get(name, np.full(count, np.nan)))
        number[name] = pieces
    word: dict[str, list[str]] = {}
    code: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for part in parts for name in part.word):
        words = sorted({text for part in parts for text in part.word.get(name, [""])})
        index = {text: place for place, text in enumerate(words)}
        codes = []
        for part, count in zip(parts, counts, strict=True):
            new = np.array([index[text] for text in part.word.get(name, [""])], np.int64)
            codes.append(new[part.code.get(name, np.zeros(count, np.int64))])
        word[name] = words
        code[name] = np.concatenate(codes)
    joined = {name: np.concatenate(pieces) for name, pieces in number.items()}
    return TableColumns(joined, word, code)
