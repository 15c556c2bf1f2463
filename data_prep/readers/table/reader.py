"""Your tracks: a table of (track, time, x, y) as CSV or Parquet, with optional lanes, to `Scene`.

A wrong cell affects its own scene only. `docs/your-data.md` describes the columns and the lanes.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from data_prep.plausibility import check_recorded
from data_prep.reader import Input
from data_prep.readers.columns import Agents
from data_prep.readers.table.estimates import RowEstimates, estimate_scenes
from data_prep.readers.table.lanes import find_lanes, is_lanes_file, lane_files, lanes_near
from data_prep.readers.table.table_file import (
    MAX_BYTES,
    REQUIRED,
    SUFFIXES,
    TIME,
    read_table,
    table_stem,
)
from data_prep.readers.table.timeline import TimeOptions
from data_prep.readers.table.tracks import KINDS, TableTracks
from data_prep.readers.table.windows import Scenes, cut_scenes
from trajformer.config import Config
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.files import open_file
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn
from trajformer.scenes.vector_map import NO_MAP

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
                columns = read_table(path, ("scene_id", *REQUIRED, *TIME))
                scenes = cut_scenes(columns, stem, self._time_options).cuts
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

    @property
    def _time_options(self) -> TimeOptions:
        return TimeOptions(
            period_s=self.period_s,
            time_unit=self.time_unit,
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
        scenes = _load(path, self._time_options)
        columns = scenes.columns
        step = scenes.step
        if name not in scenes.cuts:
            raise SceneError(f"{path}: scene_id: there is no scene {name!r}")
        if scenes.note:
            warn(f"{path}: {scenes.note}")
        cut = scenes.cuts[name]
        rows = scenes.rows(cut, self.num_history)
        if self.drop_duplicates:
            keys = np.stack([step[rows], columns.code["track_id"][rows]])
            _, first = np.unique(keys, axis=1, return_index=True)
            rows = rows[np.sort(first)]
        if cut.problem:
            where = f"{path}: scene {cut.recording}" if item.part else str(path)
            raise SceneError(f"{where}: {cut.problem}")
        try:
            scene_columns = columns.take(rows)
            tracks = TableTracks(scene_columns, step[rows], cut, self.num_history)
            estimates = None
            if not tracks.has_motion():
                estimates = _estimate(path, self._time_options).take(rows)
            lanes = find_lanes(path, raw)
            return self._scene(tracks, estimates, name, split, lanes).validate()
        except SceneError as error:
            where = f"{path}: scene {name}" if item.part else str(path)
            raise SceneError(f"{where}: {error}") from error

    def _scene(
        self,
        tracks: TableTracks,
        estimates: RowEstimates | None,
        name: str,
        split: str,
        lanes: Path | None,
    ) -> Scene:
        xy = tracks.position()
        kind = tracks.words("kind", KINDS)
        role = tracks.role(kind, self._time_options.short_loss)

        # The origin is the last observed position of the focal agent, else of a scored one.
        last = tracks.last_observed
        rank = np.where(last >= 0, role.astype(np.int64), -1)
        origin = xy[last[rank.argmax()]]
        position = tracks.fill(xy - origin)
        heading, velocity, length = tracks.motion(position, self.period_s, estimates)

        polylines = NO_MAP
        if lanes:
            polylines = lanes_near(lanes, xy[last[last >= 0]], self.map_radius_m)
        heading = tracks.face_lanes(heading, length, xy, kind, polylines)
        agents = Agents(tracks.agent_id, kind, role, position, heading, velocity, tracks.valid)
        clock = (self.period_s, self.num_history, self.num_future)
        scene = agents.scene((name, self.name, split, tracks.city()), clock, origin, polylines)
        has_heading = "heading" in tracks.columns.number
        has_velocity = "vx" in tracks.columns.number
        check_recorded(scene, heading=has_heading, velocity=has_velocity)
        return scene


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


@cached_by_file(2)
def _load(path: Path, options: TimeOptions) -> Scenes:
    """The scenes of a file."""
    return cut_scenes(read_table(path), table_stem(path), options)


@cached_by_file(2)
def _estimate(path: Path, options: TimeOptions) -> RowEstimates:
    """Estimates for the rows of a file."""
    return estimate_scenes(_load(path, options), options.period_s)
