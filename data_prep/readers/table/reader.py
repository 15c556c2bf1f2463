"""Your tracks: a table of (track, time, x, y) as CSV or Parquet, with optional lanes, to `Scene`.

A wrong cell affects its own scene only. `docs/your-data.md` describes the columns and the lanes.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from data_prep.reader import Input
from data_prep.readers.table.conventions import Conventions
from data_prep.readers.table.estimates import RowEstimates, estimate_scenes
from data_prep.readers.table.lanes import find_lanes, is_lanes_file, lane_files, lanes_near
from data_prep.readers.table.presets import PRESETS
from data_prep.readers.table.scene import table_scene, tracks_of_cut
from data_prep.readers.table.table_file import (
    MAX_BYTES,
    NUMBERS,
    REQUIRED,
    SUFFIXES,
    TEXT,
    TIME,
    TableColumns,
    read_table,
    table_stem,
)
from data_prep.readers.table.timeline import TimeOptions
from data_prep.readers.table.windows import Scenes, cut_scenes
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError, TrajformerError
from trajformer.scenes.files import open_file
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn
from trajformer.scenes.vector_map import NO_MAP, VectorMap

ALL = "all"  # the split of tables directly in RAW
_LIMITS = {
    "period_s": (1e-9, 60.0),
    "map_radius_m": (0, np.inf),
    "num_history": (2, 10_000),
    "num_future": (1, 10_000),
    "step_interval": (1, 10**9),
    "stride": (1, 10**9),
}


@dataclass(frozen=True)
class Table(Config, limits=_LIMITS):
    """Reader of tables of tracks.

    Attributes:
        period_s: seconds between steps; timestamps are rounded to multiples of it.
        time_unit: unit of the column `timestamp`.
        step_interval: difference of the column `step` between two steps of a scene, 10 for example
            if every tenth frame has rows.
        drop_duplicates: use the first row of a track and step; otherwise a second row is an error.
        resample: interpolate each track at the steps, for irregular timestamps, several sensors or
            another period; otherwise rows between two steps are not used. Gaps over a second stay.
        num_history: observed steps of a scene.
        num_future: steps to predict.
        stride: steps between the starts of windows, into which a scene of more than history +
            future steps is cut.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
        preset: a published format, whose names, units and axes replace the defaults of the options
            below and of `time_unit`.
        columns: other names of columns in the file, as in `x=xCenter,y=yCenter`.
        unit: of positions, velocities and sizes; `px` stays, `ft` becomes metres.
        angle_unit: of headings.
        heading_from: direction of the heading 0: `east` is +x, `north` is +y (up).
        clockwise: headings increase clockwise, as seen from above.
        y_down: y increases downwards, as in images.
    """

    period_s: float = 0.1
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    step_interval: int = 1
    drop_duplicates: bool = False
    resample: bool = False
    num_history: int = 50
    num_future: int = 60
    stride: int = 10
    map_radius_m: float = 100.0
    preset: Literal["none", "ngsim"] = "none"
    columns: str = ""
    unit: Literal["m", "ft", "px"] = "m"
    angle_unit: Literal["rad", "deg"] = "rad"
    heading_from: Literal["east", "north"] = "east"
    clockwise: bool = False
    y_down: bool = False
    name: ClassVar[str] = "table"
    layout: ClassVar[str] = (
        "RAW/<split>/*.csv, *.csv.gz or *.parquet with columns track_id, x, y and step or "
        "timestamp, and lanes in lanes.geojson, lanes.json, lanes.osm (Lanelet2), or the same "
        "names after <table>."
    )
    published: ClassVar[dict[str, int]] = {}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with tables, and "all" for tables directly in the raw folder."""
        names = {path.name for path in raw.iterdir() if path.is_dir() and any(_tables(path))}
        if any(_tables(raw)):
            names.add(ALL)
        return sorted(names)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes and windows, by file and scene id.

        The part is the scene's id, or "" if a file is one scene. Raises TrajformerError: two files
        hold scenes of the same name, so their forecasts would be ambiguous.
        """
        paths = {*_tables(raw / split)}
        if split == ALL:
            paths |= {*_tables(raw)}
        inputs: list[Input] = []
        file_of: dict[str, Path] = {}  # by scene
        lanes_of_folder = cache(lane_files)
        for path in sorted(paths):
            stamp = _stamp(path, find_lanes(path, raw, lanes_of_folder))
            stem = table_stem(path)
            try:
                columns = _read(path, self.conventions, ("scene_id", *REQUIRED, *TIME))
                scenes = cut_scenes(columns, stem, self.time_options).cuts
            except SceneError:
                inputs.append(Input(path, "", stamp))
                continue
            is_one_scene = list(scenes) == [stem]
            for name in scenes:
                if name in file_of:
                    raise TrajformerError(
                        f"{path}: scene_id: scene {name!r} is also in {file_of[name]}: "
                        "every scene of a split needs a unique name"
                    )
                inputs.append(Input(path, "" if is_one_scene else name, stamp))
            file_of |= dict.fromkeys(scenes, path)
        return inputs

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file holds the lanes of a table."""
        if not is_lanes_file(path):
            return False
        folders = [path.parent]
        if path.parent == raw:
            folders += sorted(folder for folder in raw.iterdir() if folder.is_dir())
        for folder in folders:
            lanes_of_folder = cache(lane_files)
            for table in _tables(folder):
                if find_lanes(table, raw, lanes_of_folder) == path:
                    return True
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        _other_names(self.columns)

    @property
    def conventions(self) -> Conventions:
        """Units, axes and names of the preset, and of options that differ from their default."""
        preset = PRESETS[self.preset].conventions
        changed: dict[str, Any] = {}
        for name in ("unit", "angle_unit", "heading_from", "clockwise", "y_down"):
            value = getattr(self, name)
            if value != getattr(Conventions, name):
                changed[name] = value
        columns = {**preset.columns, **_other_names(self.columns)}
        return replace(preset, columns=columns, **changed)

    @property
    def time_options(self) -> TimeOptions:
        """Period, horizon and clock."""
        time_unit: str = self.time_unit
        if time_unit == "s":
            time_unit = PRESETS[self.preset].time_unit
        return TimeOptions(
            period_s=self.period_s,
            time_unit=time_unit,
            step_interval=self.step_interval,
            num_history=self.num_history,
            num_future=self.num_future,
            stride=self.stride,
            resample=self.resample,
            drop_duplicates=self.drop_duplicates,
        )

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene or window, see `Reader.read`."""
        path = item.path
        name = item.part or table_stem(path)
        scenes = _load(path, self)
        if name not in scenes.cuts:
            raise SceneError(f"{path}: scene_id: there is no scene {name!r}")
        if scenes.note:
            warn(f"{path}: {scenes.note}")
        cut = scenes.cuts[name]
        options = self.time_options
        try:
            tracks, estimates = tracks_of_cut(scenes, cut, options, partial(_estimate, path, self))
            map_near = partial(self._lanes_near, find_lanes(path, raw))
            head = (name, self.name, split)
            unit = self.conventions.scene_unit
            return table_scene(tracks, estimates, head, options, map_near, unit).validate()
        except SceneError as error:
            shown = cut.recording if cut.problem else name
            where = f"{path}: scene {shown}" if item.part else str(path)
            raise SceneError(f"{where}: {error}") from error

    def _lanes_near(self, lanes: Path | None, positions: np.ndarray) -> VectorMap:
        """Lanes near positions [n, 2]; none without a file."""
        if not lanes:
            return NO_MAP
        return lanes_near(lanes, positions, self.map_radius_m)


def _stamp(*files: Path | None) -> str:
    """Digest of the contents of files, because users edit their tables."""
    digest = hashlib.blake2b(digest_size=8)
    for path in filter(None, files):
        try:
            with open_file(path, MAX_BYTES) as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            digest.update(str(error.strerror or error).encode())
    return digest.hexdigest()


def _tables(folder: Path) -> Iterator[Path]:
    """Tables of a folder, without hidden files and folders; also those that cannot be opened."""
    try:
        names = os.listdir(folder)
    except OSError:  # the engine lists the folder
        return
    for name in names:
        path = folder / name
        is_hidden = name.startswith(".")
        if name.lower().endswith(SUFFIXES) and not is_hidden and not path.is_dir():
            yield path


def _other_names(text: str) -> dict[str, str]:
    """Names of columns in a file by the name of a table column, from `x=xCenter,y=yCenter`."""
    names: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, written = (word.strip() for word in part.partition("="))
        if name not in (*TEXT, *NUMBERS) or not written or name in names:
            expected = f"NAME=COLUMN with a NAME of {', '.join((*TEXT, *NUMBERS))}"
            raise ConfigError("columns", f"{part.strip()[:40]!r}, expected {expected}, each once")
        names[name] = written
    if len(set(names.values())) < len(names):
        raise ConfigError("columns", "a column of the file is used twice")
    return names


def _read(
    path: Path, conventions: Conventions, requested: Sequence[str] = (*TEXT, *NUMBERS)
) -> TableColumns:
    """The columns of a file in the units and axes of a scene."""
    columns = read_table(path, requested, conventions.columns, conventions.optional)
    return conventions.convert(columns)


@cached_by_file(2)
def _load(path: Path, reader: Table) -> Scenes:
    """The scenes of a file."""
    columns = _read(path, reader.conventions)
    return cut_scenes(columns, table_stem(path), reader.time_options)


@cached_by_file(2)
def _estimate(path: Path, reader: Table) -> RowEstimates:
    """Estimates for the rows of a file."""
    return estimate_scenes(_load(path, reader), reader.period_s)
