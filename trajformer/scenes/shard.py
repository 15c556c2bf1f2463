"""Scenes on disk: memory-mapped Arrow IPC shards, `STORE/<split>/<number>.arrow`, one row a scene.

The columns are those of `shard_schema.py`. A shard's schema metadata says which schema version and software wrote it,
from which inputs, and which inputs were skipped and why, so that a shard is complete in itself: `manifest.py` only sums
shards up. Shards are written to a temporary name and renamed, so a store can be read while it is being built. A damaged
shard is an error that names it, or gives scenes that differ (the manifest has checksums), never a read out of bounds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trajformer
from trajformer.errors import StoreError
from trajformer.scenes.columns import (
    LISTS,
    RAGGED,
    SCALARS,
    SCHEMA,
    SCHEMA_VERSION,
    STRINGS,
    find_inconsistency,
    index_dtype,
    list_column,
    number_column,
    row_bytes,
    text_column,
)
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import Scene

_METADATA_KEY = b"trajformer"
# A step's two float32 move as one integer: ten times faster.
_STATES: dict[str, type] = {"position": np.int64, "heading": np.int32, "velocity": np.int64}
_WIDTH = {"position": (2,), "heading": (), "velocity": (2,)}


@dataclass(frozen=True)
class ShardInfo:
    """What a shard says of itself. `skipped` holds [input name, reason]; `inputs` is a digest of the input names."""

    source: str
    split: str
    inputs: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    schema_version: int = SCHEMA_VERSION
    software: str = trajformer.__version__


def shard_path(store: Path, split: str, index: int) -> Path:
    """Where shard number `index` of a split lies."""
    return Path(store) / split / f"{index:05d}.arrow"


PackedScene = dict[str, Any]


def pack(scene: Scene) -> PackedScene:
    """A scene as it will lie in a shard, half as large: what to keep of it until its shard is written."""
    valid, lengths = scene.valid, np.diff(scene.polyline_offset)
    row = {name: getattr(scene, name) for name in (*STRINGS, "period_s", "num_history", "num_future")}
    row |= {"agent_id": "\n".join(scene.agent_id), "num_steps": scene.num_steps}
    row |= {"origin_x": float(scene.origin[0]), "origin_y": float(scene.origin[1])}
    row |= {name: getattr(scene, name) for name in ("agent_kind", "agent_role", "edge_kind")}
    row |= {name: getattr(scene, name) for name in ("polyline_id", "polyline_kind", "polyline_flags")}
    for name, packed in _STATES.items():
        row[name] = np.ascontiguousarray(getattr(scene, name)).view(packed).reshape(valid.shape)[valid].view(np.float32)
    row |= {"valid": np.packbits(valid), "point": scene.point.reshape(-1)}
    row["polyline_length"] = lengths.astype(index_dtype(len(scene.point))).view(np.uint8)
    row["edge"] = scene.edge.reshape(-1).astype(index_dtype(scene.num_polylines)).view(np.uint8)
    return row


def write_shard(path: Path, scenes: Sequence[Scene | PackedScene], info: ShardInfo) -> None:
    """Write scenes (in this order) as one shard, atomically; the same input gives the same bytes.

    Raises:
        OSError: the folder cannot be written; no temporary file is left behind.
        StoreError: the scenes are too many or too large for one shard.
    """
    rows = [pack(scene) if isinstance(scene, Scene) else scene for scene in scenes]
    values = {name: [row[name] for row in rows] for name in SCHEMA.names}
    columns = [text_column(values[name]) for name in STRINGS]
    columns += [number_column(np.array(values[name]), kind) for name, kind in SCALARS.items()]
    columns += [list_column(values[name], kind) for name, kind in LISTS.items()]
    metadata = {_METADATA_KEY: json.dumps(asdict(info) | {"scenes": len(rows)}, sort_keys=True).encode()}
    batch = pa.record_batch(columns, schema=SCHEMA.with_metadata(metadata))
    with atomically(path) as temporary, temporary.open("wb") as sink:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        sink.flush()
        os.fsync(sink.fileno())  # a shard under its own name is whole, even after a power cut


@contextmanager
def _opened(path: Path) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """A reader of a mapped shard. What it gave stays mapped afterwards, without holding a file descriptor."""
    try:
        with pa.memory_map(str(path), "r") as file:
            yield pa.ipc.open_file(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path}: not a readable shard (cut short or damaged): {error}") from error


def _info(path: Path, schema: pa.Schema) -> tuple[ShardInfo, int]:
    try:
        raw = json.loads((schema.metadata or {})[_METADATA_KEY])
        found, count = raw["schema_version"], int(raw.pop("scenes"))
        if found != SCHEMA_VERSION:
            raise StoreError(f"{path}: schema version {found}, this software reads {SCHEMA_VERSION}: preprocess again")
        info = ShardInfo(**raw | {"skipped": tuple((str(name), str(reason)) for name, reason in raw["skipped"])})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: not a trajformer shard: no metadata") from error
    if not schema.equals(SCHEMA):
        raise StoreError(f"{path}: columns are not those of schema version {SCHEMA_VERSION}")
    return info, count


def read_shard_info(path: Path) -> tuple[ShardInfo, int]:
    """What a shard says of itself, and its number of scenes.

    Raises:
        StoreError: the file is cut short, damaged, foreign, or of another schema version.
    """
    with _opened(path) as reader:
        return _info(path, reader.schema)


def read_scene_ids(path: Path) -> list[str]:
    """The ids of all scenes of a shard, in order, without touching its other columns.

    Raises:
        StoreError: the file is cut short, damaged, foreign, or of another schema version.
    """
    with _opened(path) as reader:
        _info(path, reader.schema)
        column = reader.get_batch(0).column("scene_id")
        column.validate(full=True)
        return _strings(column)


def _strings(column: pa.Array) -> list[str]:
    if column.null_count:
        raise ValueError("an entry is null")
    return column.to_pylist()


def _offsets(column: pa.Array) -> np.ndarray:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


class Shard:
    """One shard, memory-mapped; scenes are built from views of its columns, without parsing.

    Raises:
        StoreError: the file is cut short, damaged, foreign, or of another schema version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as reader:
            self.info, self._size = _info(path, reader.schema)
            batch = reader.get_batch(0)
            batch.validate()  # the sizes of its buffers
            if batch.num_rows != self._size:
                raise StoreError(f"{path}: {batch.num_rows} scenes, its metadata says {self._size}")
            self._scalars = [np.from_dlpack(batch.column(name)) for name in SCALARS]
            columns = [batch.column(name) for name in RAGGED]
            self._bounds = np.stack([_offsets(c) for c in columns], 1)  # [scenes + 1, columns]: where each scene begins
            self._text = [memoryview(c.buffers()[2] or b"") for c in columns[: len(STRINGS)]]
            self._values: list[np.ndarray] = [np.from_dlpack(c.values) for c in columns[len(STRINGS) :]]
        self._ids = columns[RAGGED.index("scene_id")]
        misfit = find_inconsistency(self._bounds, self._scalars[list(SCALARS).index("num_steps")])
        if misfit:
            raise StoreError(f"{path}: damaged: {misfit}")

    def __len__(self) -> int:
        return self._size

    def scene_ids(self) -> list[str]:
        """The ids of all its scenes, in order."""
        try:
            return _strings(self._ids)
        except ValueError as error:  # not UTF-8, too
            raise StoreError(f"{self.path}: damaged: scene_id: {error}") from error

    def sizes(self) -> np.ndarray:
        """Agents, polylines and points of every scene, int64 [scenes, 3], without reading any."""
        per_scene = np.diff(self._bounds, axis=0)
        return per_scene[:, [RAGGED.index(name) for name in ("agent_kind", "polyline_kind", "point")]] // [1, 1, 2]

    def row_bytes(self) -> np.ndarray:
        """Bytes that every scene takes in the file, int64 [scenes]."""
        return row_bytes(self._bounds)

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that need no unpacking are read-only views of the file.

        Raises:
            StoreError: the row is damaged such that it cannot be unpacked (values can be wrong all the same).
        """
        try:
            return self._scene(row)
        except ValueError as error:
            raise StoreError(f"{self.path}: row {row}: damaged: {error}") from error

    def _scene(self, row: int) -> Scene:
        start, end = self._bounds[row].tolist(), self._bounds[row + 1].tolist()
        text = [str(part[a:b], "utf-8") for part, a, b in zip(self._text, start, end, strict=False)]
        lists = zip(self._values, start[len(text) :], end[len(text) :], strict=True)
        array = dict(zip(LISTS, [values[a:b] for values, a, b in lists], strict=True))
        number = [column[row].item() for column in self._scalars]
        period_s, num_history, num_future, num_steps, *origin = number
        agent_id = tuple(text[-1].split("\n"))
        shape = (len(array["agent_kind"]), num_steps)
        if len(agent_id) != shape[0]:
            raise ValueError(f"agent_id: {len(agent_id)} ids of {shape[0]} agents")
        valid = np.unpackbits(array["valid"], count=shape[0] * shape[1]).view(np.bool_)
        for name, packed in _STATES.items():
            dense: np.ndarray = np.zeros(len(valid), packed)
            dense[valid] = array[name].view(packed)
            array[name] = dense.view(np.float32).reshape(*shape, *_WIDTH[name])
        point, polylines = array["point"].reshape(-1, 2), len(array["polyline_kind"])
        offset = np.zeros(polylines + 1, np.int32)
        array.pop("polyline_length").view(index_dtype(len(point))).cumsum(out=offset[1:])
        edge = array["edge"].view(index_dtype(polylines)).reshape(2, -1).astype(np.int32)
        array |= {"valid": valid.reshape(shape), "point": point, "polyline_offset": offset, "edge": edge}
        return Scene(
            scene_id=text[0],
            source=text[1],
            split=text[2],
            city=text[3],
            period_s=float(period_s),
            num_history=int(num_history),
            num_future=int(num_future),
            origin=np.array(origin),
            agent_id=agent_id,
            **array,
        )
