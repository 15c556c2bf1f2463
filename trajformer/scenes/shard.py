"""Scenes on disk: memory-mapped Arrow IPC files (shards), `STORE/<split>/<number>.arrow`, one row per scene.

`columns.py` defines the columns. The schema metadata of a shard has the schema version, the software version, a digest of the
inputs, and the skipped inputs with reasons; `manifest.py` only summarises it. Shards are written under a temporary name and then
renamed, so a store can be read while it is prepared. Reading a damaged shard raises an error that names the file or returns
different values (the manifest has checksums), but never reads out of bounds.
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
# Copying the two float32 of a step as one integer is ten times faster.
_PACKED_TYPES: dict[str, type] = {"position": np.int64, "heading": np.int32, "velocity": np.int64}
_TRAILING_SHAPE = {"position": (2,), "heading": (), "velocity": (2,)}


@dataclass(frozen=True)
class ShardInfo:
    """Metadata of a shard.

    Attributes:
        source: the data set.
        split: the split.
        inputs: digest of the names of the inputs.
        skipped: (input name, reason) of the inputs without a scene.
        schema_version: version of the columns.
        software: version of trajformer.
    """

    source: str
    split: str
    inputs: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    schema_version: int = SCHEMA_VERSION
    software: str = trajformer.__version__


def shard_path(store: Path, split: str, index: int) -> Path:
    """Path of shard number `index` of a split."""
    return Path(store) / split / f"{index:05d}.arrow"


PackedScene = dict[str, Any]


def pack(scene: Scene) -> PackedScene:
    """The row of a scene in a shard, half as large as the scene: the form to keep until the shard is written."""
    valid, lengths = scene.valid, np.diff(scene.polyline_offset)
    row = {name: getattr(scene, name) for name in (*STRINGS, "period_s", "num_history", "num_future")}
    row |= {"agent_id": "\n".join(scene.agent_id), "num_steps": scene.num_steps}
    row |= {"origin_x": float(scene.origin[0]), "origin_y": float(scene.origin[1])}
    row |= {name: getattr(scene, name) for name in ("agent_kind", "agent_role", "edge_kind")}
    row |= {name: getattr(scene, name) for name in ("polyline_id", "polyline_kind", "polyline_flags")}
    for name, packed in _PACKED_TYPES.items():
        row[name] = np.ascontiguousarray(getattr(scene, name)).view(packed).reshape(valid.shape)[valid].view(np.float32)
    row |= {"valid": np.packbits(valid), "point": scene.point.reshape(-1)}
    row["polyline_length"] = lengths.astype(index_dtype(len(scene.point))).view(np.uint8)
    row["edge"] = scene.edge.reshape(-1).astype(index_dtype(scene.num_polylines)).view(np.uint8)
    return row


def write_shard(path: Path, scenes: Sequence[Scene | PackedScene], info: ShardInfo) -> None:
    """Write scenes, in this order, as one shard, atomically; equal inputs give equal bytes.

    Raises:
        OSError: the folder cannot be written. The temporary file is removed.
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
        os.fsync(sink.fileno())  # the renamed shard is complete even after a power failure


@contextmanager
def _open_shard(path: Path) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """A reader of a mapped shard. Its buffers stay mapped after the context, without a file descriptor."""
    try:
        with pa.memory_map(str(path), "r") as file:
            yield pa.ipc.open_file(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path}: not a readable shard (truncated or damaged): {error}") from error


def _info(path: Path, schema: pa.Schema) -> tuple[ShardInfo, int]:
    try:
        raw = json.loads((schema.metadata or {})[_METADATA_KEY])
        version, count = raw["schema_version"], int(raw.pop("scenes"))
        if version != SCHEMA_VERSION:
            raise StoreError(f"{path}: schema version {version}, this software reads {SCHEMA_VERSION}: preprocess again")
        info = ShardInfo(**raw | {"skipped": tuple((str(name), str(reason)) for name, reason in raw["skipped"])})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: not a trajformer shard: no metadata") from error
    if not schema.equals(SCHEMA):
        raise StoreError(f"{path}: columns differ from schema version {SCHEMA_VERSION}")
    return info, count


def read_shard_info(path: Path) -> tuple[ShardInfo, int]:
    """Metadata and number of scenes of a shard.

    Raises:
        StoreError: the file is truncated, damaged, not a shard, or has another schema version.
    """
    with _open_shard(path) as reader:
        return _info(path, reader.schema)


def read_scene_ids(path: Path) -> list[str]:
    """The ids of all scenes of a shard, in order; reads no other column.

    Raises:
        StoreError: the file is truncated, damaged, not a shard, or has another schema version.
    """
    with _open_shard(path) as reader:
        _info(path, reader.schema)
        column = reader.get_batch(0).column("scene_id")
        column.validate(full=True)
        return _strings(column)


def _strings(column: pa.Array) -> list[str]:
    if column.null_count:
        raise ValueError("an entry is null")
    return column.to_pylist()


def _row_offsets(column: pa.Array) -> np.ndarray:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


class Shard:
    """One memory-mapped shard; scenes are views of its columns.

    Raises:
        StoreError: the file is truncated, damaged, not a shard, or has another schema version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_shard(path) as reader:
            self.info, self._size = _info(path, reader.schema)
            batch = reader.get_batch(0)
            batch.validate()  # checks the sizes of buffers
            if batch.num_rows != self._size:
                raise StoreError(f"{path}: {batch.num_rows} scenes, expected {self._size} from the metadata")
            self._scalars = [np.from_dlpack(batch.column(name)) for name in SCALARS]
            columns = [batch.column(name) for name in RAGGED]
            self._bounds = np.stack([_row_offsets(c) for c in columns], 1)  # [scenes + 1, columns], start of each scene
            self._text = [memoryview(c.buffers()[2] or b"") for c in columns[: len(STRINGS)]]
            self._values: list[np.ndarray] = [np.from_dlpack(c.values) for c in columns[len(STRINGS) :]]
        self._strings = dict(zip(STRINGS, columns, strict=False))
        problem = find_inconsistency(self._bounds, self._scalars[list(SCALARS).index("num_steps")])
        if problem:
            raise StoreError(f"{path}: damaged: {problem}")

    def __len__(self) -> int:
        return self._size

    def texts(self, name: str) -> list[str]:
        """A text column, such as "scene_id" or "city", for all scenes in order.

        Raises:
            StoreError: the column is damaged.
        """
        try:
            return _strings(self._strings[name])
        except ValueError as error:  # includes invalid UTF-8
            raise StoreError(f"{self.path}: damaged: {name}: {error}") from error

    def scene_ids(self) -> list[str]:
        """The ids of all scenes, in order; raises as `texts`."""
        return self.texts("scene_id")

    def sizes(self) -> np.ndarray:
        """Numbers of agents, polylines and points of each scene, int64 [scenes, 3], without unpacking scenes."""
        per_scene = np.diff(self._bounds, axis=0)
        return per_scene[:, [RAGGED.index(name) for name in ("agent_kind", "polyline_kind", "point")]] // [1, 1, 2]

    def summary(self) -> dict[str, np.ndarray]:
        """Texts, numbers and sizes of each scene by column name, each [scenes], without unpacking scenes."""
        texts = {name: np.array(self.texts(name), object) for name in ("scene_id", "source", "split", "city")}
        sizes = dict(zip(("num_agents", "num_polylines", "num_points"), self.sizes().T, strict=True))
        return texts | dict(zip(SCALARS, self._scalars, strict=True)) | sizes

    def row_bytes(self) -> np.ndarray:
        """Bytes of each scene in the file, int64 [scenes]."""
        return row_bytes(self._bounds)

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that are not packed are read-only views of the file.

        Raises:
            StoreError: the row cannot be unpacked. Other damage can change values without an error.
        """
        try:
            return self._unpack(row)
        except ValueError as error:
            raise StoreError(f"{self.path}: row {row}: damaged: {error}") from error

    def _unpack(self, row: int) -> Scene:
        start, end = self._bounds[row].tolist(), self._bounds[row + 1].tolist()
        text = [str(part[a:b], "utf-8") for part, a, b in zip(self._text, start, end, strict=False)]
        lists = zip(self._values, start[len(text) :], end[len(text) :], strict=True)
        array = dict(zip(LISTS, [values[a:b] for values, a, b in lists], strict=True))
        period_s, num_history, num_future, num_steps, *origin = [column[row].item() for column in self._scalars]
        agent_id = tuple(text[-1].split("\n"))
        shape = (len(array["agent_kind"]), num_steps)
        if len(agent_id) != shape[0]:
            raise ValueError(f"agent_id: {len(agent_id)} ids for {shape[0]} agents")
        valid = np.unpackbits(array["valid"], count=shape[0] * shape[1]).view(np.bool_)
        for name, packed in _PACKED_TYPES.items():
            dense: np.ndarray = np.zeros(len(valid), packed)
            dense[valid] = array[name].view(packed)
            array[name] = dense.view(np.float32).reshape(*shape, *_TRAILING_SHAPE[name])
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
