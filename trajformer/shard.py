"""Scenes on disk: memory-mapped Arrow IPC shards, `STORE/<split>/<number>.arrow`, one row a scene.

A shard holds valid steps only (positions, headings and velocities of `valid` entries, agent-major) and the map
once. Its schema metadata says which schema version and software wrote it, from which inputs, and which inputs
were skipped and why, so that a shard is complete in itself: `manifest.py` only sums shards up. Shards are written
to a temporary name and renamed, so a store can be read while it is being built.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trajformer
from trajformer.errors import StoreError
from trajformer.scene import Scene

SCHEMA_VERSION = 1
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
    "polyline_offset": pa.int32(),
    "point": pa.float32(),
    "edge": pa.int32(),
    "edge_kind": pa.uint8(),
}
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


def _row(scene: Scene) -> dict[str, Any]:
    valid = scene.valid
    row = {name: getattr(scene, name) for name in (*_STRINGS, "period_s", "num_history", "num_future")}
    row |= {"agent_id": "\n".join(scene.agent_id), "num_steps": scene.num_steps}
    row |= {"origin_x": float(scene.origin[0]), "origin_y": float(scene.origin[1])}
    row |= {name: getattr(scene, name).reshape(-1) for name in _LISTS}
    row["valid"] = np.packbits(valid)
    row |= {name: getattr(scene, name)[valid].reshape(-1) for name in ("position", "heading", "velocity")}
    return row


def _list_column(rows: list[Any], kind: pa.DataType) -> pa.Array:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    values = np.concatenate(rows) if rows else np.zeros(0, kind.to_pandas_dtype())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def write_shard(path: Path, scenes: Sequence[Scene], info: ShardInfo) -> None:
    """Write scenes (in this order) as one shard, atomically; the same input gives the same bytes.

    Raises:
        OSError: the folder cannot be written; no temporary file is left behind.
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
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
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
        self._scalars = {name: batch.column(name).to_numpy() for name in _SCALARS}
        self._strings = {name: batch.column(name) for name in _STRINGS}
        self._offsets = {name: batch.column(name).offsets.to_numpy() for name in _LISTS}
        self._values = {name: batch.column(name).values.to_numpy() for name in _LISTS}

    def __len__(self) -> int:
        return self._size

    def scene_ids(self) -> list[str]:
        """The ids of all its scenes, in order."""
        return self._strings["scene_id"].to_pylist()

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that need no unpacking are read-only views of the file."""
        text = {name: column[row].as_py() for name, column in self._strings.items()}
        array = {n: self._values[n][o[row] : o[row + 1]] for n, o in self._offsets.items()}
        number = {name: column[row] for name, column in self._scalars.items()}
        agent_id = tuple(text.pop("agent_id").split("\n"))
        shape = (len(agent_id), int(number["num_steps"]))
        bits = np.unpackbits(array["valid"], count=shape[0] * shape[1])
        valid = bits.view(np.bool_).reshape(shape)
        for name, extra in (("position", (2,)), ("heading", ()), ("velocity", (2,))):
            dense = np.zeros((*shape, *extra), np.float32)
            dense[valid] = array[name].reshape(-1, *extra)
            array[name] = dense
        array |= {"valid": valid, "point": array["point"].reshape(-1, 2), "edge": array["edge"].reshape(2, -1)}
        return Scene(
            **text,
            **array,
            agent_id=agent_id,
            period_s=float(number["period_s"]),
            num_history=int(number["num_history"]),
            num_future=int(number["num_future"]),
            origin=np.array([number["origin_x"], number["origin_y"]]),
        )
