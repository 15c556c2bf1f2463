"""Your tracks: a table of (track, time, x, y) as CSV or Parquet, with optional lanes, to `Scene`.

`docs/your-data.md` describes the columns and the lanes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers.raw_file import cached_by_file
from data_prep.readers.table.lanes import find_lanes, lanes_near
from data_prep.readers.table.tracks import MAX_BYTES, SUFFIXES, TIME, Columns, Cuts, Cutting, Tracks, cut_scenes, read_columns
from data_prep.readers.vector_map import NO_MAP
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import Scene

ALL = "all"  # the split of tables directly in RAW


@dataclass(frozen=True)
class Table:
    """Reader of tables of tracks.

    Attributes:
        period_s: seconds between steps; timestamps are rounded to multiples of it.
        num_history: observed steps of a scene.
        num_future: steps to predict.
        stride: steps between the starts of windows, into which a scene of more than history + future steps is cut.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
    """

    period_s: float = 0.1
    num_history: int = 50
    num_future: int = 60
    stride: int = 10
    map_radius_m: float = 100.0
    name: ClassVar[str] = "table"
    layout: ClassVar[str] = "RAW/<split>/*.csv or *.parquet with columns track_id, x, y and step or timestamp"
    published: ClassVar[dict[str, int]] = {}

    def __post_init__(self) -> None:
        for field, minimum in (("num_history", 2), ("num_future", 1), ("stride", 1), ("map_radius_m", 0)):
            if not getattr(self, field) >= minimum:
                raise TrajformerError(f"{self.name}: {field}: {getattr(self, field)}, expected at least {minimum}")
        if not 0.0 < self.period_s < 60.0:
            raise TrajformerError(f"{self.name}: period_s: {self.period_s}, expected more than 0 and less than 60 seconds")

    @property
    def _cutting(self) -> Cutting:
        return Cutting(self.period_s, self.num_history, self.num_future, self.stride)

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with tables, and "all" for tables directly in the raw folder."""
        names = {path.name for path in raw.iterdir() if path.is_dir() and next(_tables(path), None)}
        return sorted(names | ({ALL} if next(_tables(raw), None) else set()))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes and windows, by file and scene id; the part is the scene's id, or "" if a file is one scene.

        Raises:
            TrajformerError: two files hold scenes of the same name, so their forecasts would be ambiguous.
        """
        inputs: list[Input] = []
        owner: dict[str, Path] = {}
        for path in sorted({*_tables(raw / split), *(_tables(raw) if split == ALL else ())}):
            stamp = _stamp(path, find_lanes(path, raw))
            try:
                columns = read_columns(path, ("scene_id", *TIME))
            except SceneError:
                inputs.append(Input(path, "", stamp))
                continue
            scenes = cut_scenes(columns, path.stem, self._cutting).scenes
            if twice := next((name for name in scenes if name in owner), None):
                reason = f"scene {twice!r} is also in {owner[twice]}: every scene of a split needs a unique name"
                raise TrajformerError(f"{path}: scene_id: {reason}")
            owner |= dict.fromkeys(scenes, path)
            inputs += [Input(path, "" if name == path.stem and len(scenes) == 1 else name, stamp) for name in scenes]
        return inputs

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene or window.

        Raises:
            SceneError: names the file, the scene and the column, or the lanes and the field, that cannot be used.
        """
        path, name = item.path, item.part or item.path.stem
        columns, cuts = _load(path, self._cutting)
        cut = cuts.scenes.get(name)
        if cut is None:
            raise SceneError(f"{path}: scene_id: there is no scene {name!r}")
        where = f"{path}: scene {name}" if item.part else str(path)
        try:
            if cut.problem:
                raise SceneError(cut.problem)
            tracks = Tracks.of(columns, cuts, cut, self.num_history)
            return self._scene(tracks, name, split, find_lanes(path, raw)).validate()
        except SceneError as error:
            raise SceneError(f"{where}: {error}") from error

    def _scene(self, tracks: Tracks, name: str, split: str, lanes: Path | None) -> Scene:
        xy, kind = tracks.position(), tracks.kind()
        role, last = tracks.role(kind), tracks.last_observed()
        origin = xy[last[np.where(last >= 0, role.astype(np.int64), -1).argmax()]]  # of the focal agent, else of a scored one
        position = tracks.dense(xy - origin)
        heading, velocity = tracks.motion(position, self.period_s)
        polylines = lanes_near(lanes, xy[last[last >= 0]], self.map_radius_m) if lanes else NO_MAP
        return Scene(
            scene_id=name,
            source=self.name,
            split=split,
            city=tracks.city(),
            period_s=self.period_s,
            num_history=self.num_history,
            num_future=self.num_future,
            origin=origin,
            agent_id=tracks.agent_id,
            agent_kind=kind,
            agent_role=role,
            position=position.astype(np.float32),
            heading=heading.astype(np.float32),
            velocity=velocity.astype(np.float32),
            valid=tracks.valid,
            **polylines.scene_fields(origin),
        )


def _stamp(*files: Path | None) -> str:
    """Digest of the contents of files, because users edit their tables."""
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        try:
            if path and (size := path.stat().st_size) > MAX_BYTES:
                digest.update(str(size).encode())
            elif path:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            digest.update(repr(error.errno).encode())
    return digest.hexdigest()


@cached_by_file(2)
def _load(path: Path, cutting: Cutting) -> tuple[Columns, Cuts]:
    """A file with its rows sorted by scene and step, and its scenes."""
    columns = read_columns(path)
    cuts = cut_scenes(columns, path.stem, cutting)
    return columns.take(cuts.order), cuts


def _tables(folder: Path) -> Iterator[Path]:
    """Tables of a folder, without hidden files."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file():
                yield path
