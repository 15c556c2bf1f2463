"""Scenes on disk: memory-mapped Arrow IPC shards, `STORE/<split>/<number>.arrow`, one row a scene.

A shard holds valid steps only (positions, headings and velocities of `valid` entries, agent-major) and the map
once. Polyline lengths and edges are unsigned integers as narrow as the scene allows, kept as bytes. Its schema
metadata says which schema version and software wrote it, from which inputs, and which inputs were skipped and why,
so that a shard is complete in itself: `manifest.py` only sums shards up. Shards are written to a temporary name and
renamed, so a store can be read while it is being built.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trajformer
from trajformer.errors import StoreError
from trajformer.scene import Scene

SCHEMA_VERSION = 2
_METADATA_KEY = b"trajformer"
_SCALARS: dict[str, pa.DataType] = {
    "period_s": pa.float64(),
    "num_history": pa.int32(),
    "num_future": pa.int32(),
    "num_steps": pa.int32(),
    "origin_x": pa.float64(),
    "origin_y": pa.float64(),
}
_STRINGS = ("scene_id", "source", "split", "city", "agent_id")  # agent ids are joined by newlines
_LISTS: dict[str, pa.DataType] = {
    "agent_kind": pa.uint8(),
    "agent_role": pa.uint8(),
    "valid": pa.uint8(),  # np.packbits of [A, T]
    "position": pa.float32(),
    "heading": pa.float32(),
    "velocity": pa.float32(),
    "polyline_id": pa.int64(),
    "polyline_kind": pa.uint8(),
    "polyline_flags": pa.uint8(),
    "polyline_length": pa.uint8(),  # bytes of unsigned integers wide enough for P
    "point": pa.float32(),
    "edge": pa.uint8(),  # bytes of unsigned integers wide enough for M
    "edge_kind": pa.uint8(),
}
# A step's two float32 move as one integer: ten times faster.
_STATES: dict[str, type] = {"position": np.int64, "heading": np.int32, "velocity": np.int64}
_WIDTH = {"position": (2,), "heading": (), "velocity": (2,)}
_RAGGED = (*_STRINGS, *_LISTS)
_SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in _STRINGS]
    + [pa.field(name, kind) for name, kind in _SCALARS.items()]
    + [pa.field(name, pa.list_(kind)) for name, kind in _LISTS.items()]
)


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


def _narrowest(largest: int) -> type[np.unsignedinteger]:
    """The narrowest type of index that can hold 0 to `largest`."""
    return np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32


def _row(scene: Scene) -> dict[str, Any]:
    valid, lengths = scene.valid, np.diff(scene.polyline_offset)
    row = {name: getattr(scene, name) for name in (*_STRINGS, "period_s", "num_history", "num_future")}
    row |= {"agent_id": "\n".join(scene.agent_id), "num_steps": scene.num_steps}
    row |= {"origin_x": float(scene.origin[0]), "origin_y": float(scene.origin[1])}
    row |= {name: getattr(scene, name) for name in ("agent_kind", "agent_role", "edge_kind")}
    row |= {name: getattr(scene, name) for name in ("polyline_id", "polyline_kind", "polyline_flags")}
    for name, packed in _STATES.items():
        row[name] = np.ascontiguousarray(getattr(scene, name)).view(packed).reshape(valid.shape)[valid].view(np.float32)
    row |= {"valid": np.packbits(valid), "point": scene.point.reshape(-1)}
    row["polyline_length"] = lengths.astype(_narrowest(len(scene.point))).view(np.uint8)
    row["edge"] = scene.edge.reshape(-1).astype(_narrowest(scene.num_polylines)).view(np.uint8)
    return row


def _list_column(rows: list[Any], kind: pa.DataType) -> pa.Array:
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise StoreError(f"{offsets[-1]} values in one column of a shard: prepare with a smaller shard size")
    values = np.concatenate(rows) if rows else np.zeros(0, kind.to_pandas_dtype())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, kind))


def write_shard(path: Path, scenes: Sequence[Scene], info: ShardInfo) -> None:
    """Write scenes (in this order) as one shard, atomically; the same input gives the same bytes.

    Raises:
        OSError: the folder cannot be written; no temporary file is left behind.
        StoreError: the scenes are too many or too large for one shard.
    """
    rows = [_row(scene) for scene in scenes]
    columns = [
        _list_column([row[f.name] for row in rows], f.type.value_type)
        if f.name in _LISTS
        else pa.array([row[f.name] for row in rows], f.type)
        for f in _SCHEMA
    ]
    metadata = {_METADATA_KEY: json.dumps(asdict(info) | {"scenes": len(rows)}, sort_keys=True).encode()}
    batch = pa.record_batch(columns, schema=_SCHEMA.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as sink:
            with pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            sink.flush()
            os.fsync(sink.fileno())  # a shard under its own name is whole, even after a power cut
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _open(path: Path) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path), "r"))
    except (pa.ArrowInvalid, OSError) as error:
        raise StoreError(f"{path}: not a readable shard (cut short or damaged): {error}") from error


def _metadata(path: Path, schema: pa.Schema) -> dict[str, Any]:
    try:
        raw = json.loads((schema.metadata or {})[_METADATA_KEY])
    except (KeyError, ValueError) as error:
        raise StoreError(f"{path}: not a trajformer shard: no metadata") from error
    if raw.get("schema_version") != SCHEMA_VERSION:
        found = raw.get("schema_version")
        raise StoreError(f"{path}: schema version {found}, this software reads {SCHEMA_VERSION}: preprocess again")
    if not schema.equals(_SCHEMA):
        raise StoreError(f"{path}: columns are not those of schema version {SCHEMA_VERSION}")
    return raw


def read_shard_info(path: Path) -> tuple[ShardInfo, int]:
    """What a shard says of itself, and its number of scenes.

    Raises:
        StoreError: the file is cut short, foreign, or of another schema version.
    """
    raw = _metadata(path, _open(path).schema)
    count = int(raw.pop("scenes"))
    return ShardInfo(**raw | {"skipped": tuple((name, reason) for name, reason in raw["skipped"])}), count


class Shard:
    """One shard, memory-mapped; scenes are built from views of its columns, without parsing."""

    def __init__(self, path: Path) -> None:
        reader = _open(path)
        self.info = _metadata(path, reader.schema)
        try:
            batch = reader.get_batch(0)
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(f"{path}: cut short or damaged: {error}") from error
        if batch.num_rows != self.info["scenes"]:
            raise StoreError(f"{path}: {batch.num_rows} scenes, its metadata says {self.info['scenes']}")
        self._size = batch.num_rows
        self._scalars = [batch.column(name).to_numpy() for name in _SCALARS]
        columns = [batch.column(name) for name in _RAGGED]
        offsets = [np.frombuffer(c.buffers()[1], np.int32, self._size + 1, c.offset * 4) for c in columns]
        self._bounds = np.stack(offsets, 1)  # [scenes + 1, columns]: where each scene begins in each column
        self._text = [memoryview(c.buffers()[2] or b"") for c in columns[: len(_STRINGS)]]
        self._values = [c.values.to_numpy() for c in columns[len(_STRINGS) :]]

    def __len__(self) -> int:
        return self._size

    def scene_ids(self) -> list[str]:
        """The ids of all its scenes, in order."""
        at = self._bounds[:, _RAGGED.index("scene_id")].tolist()
        return [str(self._text[0][start:end], "utf-8") for start, end in pairwise(at)]

    def sizes(self) -> np.ndarray:
        """Agents, polylines and points of every scene, int64 [scenes, 3], without reading any."""
        per_scene = np.diff(self._bounds, axis=0)
        return per_scene[:, [_RAGGED.index(name) for name in ("agent_kind", "polyline_kind", "point")]] // [1, 1, 2]

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that need no unpacking are read-only views of the file."""
        start, end = self._bounds[row].tolist(), self._bounds[row + 1].tolist()
        text = [str(part[a:b], "utf-8") for part, a, b in zip(self._text, start, end, strict=False)]
        lists = zip(self._values, start[len(text) :], end[len(text) :], strict=True)
        array = dict(zip(_LISTS, [values[a:b] for values, a, b in lists], strict=True))
        number = [column[row].item() for column in self._scalars]
        period_s, num_history, num_future, num_steps, *origin = number
        agent_id = tuple(text[-1].split("\n"))
        shape = (len(agent_id), num_steps)
        valid = np.unpackbits(array["valid"], count=shape[0] * shape[1]).view(np.bool_)
        for name, packed in _STATES.items():
            dense: np.ndarray = np.zeros(len(valid), packed)
            dense[valid] = array[name].view(packed)
            array[name] = dense.view(np.float32).reshape(*shape, *_WIDTH[name])
        point, polylines = array["point"].reshape(-1, 2), len(array["polyline_kind"])
        offset = np.zeros(polylines + 1, np.int32)
        array.pop("polyline_length").view(_narrowest(len(point))).cumsum(out=offset[1:])
        edge = array["edge"].view(_narrowest(polylines)).reshape(2, -1).astype(np.int32)
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
