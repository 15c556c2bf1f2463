"""Scenes on disk: memory-mapped Arrow IPC files (shards), `STORE/<split>/<number>.arrow`, one row per scene.

A shard stores positions, headings and velocities of valid steps only, agent-major, and the map once. Polyline lengths and edges
are unsigned integers of the smallest sufficient width, stored as bytes. The schema metadata has the schema version, the software
version, a digest of the inputs, and the skipped inputs with reasons; `manifest.py` only summarises it. Columns of the optional
fields of `Scene` exist if a scene of the shard has values for them. Shards are written under a
temporary name and then renamed, so a store can be read while it is prepared. Reading a damaged shard raises an error that names
the file or returns different values (the manifest has checksums), but never reads out of bounds.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trajformer
from trajformer.errors import StoreError
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import METRES, OPTIONAL_FIELDS, Scene

SCHEMA_VERSION = 2
SCALARS: dict[str, pa.DataType] = {
    "period_s": pa.float64(),
    "num_history": pa.int32(),
    "num_future": pa.int32(),
    "num_steps": pa.int32(),
    "origin_x": pa.float64(),
    "origin_y": pa.float64(),
}
STRINGS = ("scene_id", "source", "split", "city", "agent_id")  # agent ids are joined by newlines
LISTS: dict[str, pa.DataType] = {
    "agent_kind": pa.uint8(),
    "agent_role": pa.uint8(),
    "valid": pa.uint8(),  # np.packbits of [A, T]
    "position": pa.float32(),
    "heading": pa.float32(),
    "velocity": pa.float32(),
    "polyline_id": pa.int64(),
    "polyline_kind": pa.uint8(),
    "polyline_flags": pa.uint8(),
    "polyline_length": pa.uint8(),  # bytes of `np.min_scalar_type(P)`
    "point": pa.float32(),
    "edge": pa.uint8(),  # bytes of `np.min_scalar_type(M)`
    "edge_kind": pa.uint8(),
}
OPTIONAL: dict[str, pa.DataType] = dict(
    zip(OPTIONAL_FIELDS, (pa.float32(), pa.int32(), pa.uint8()), strict=True)
)
RAGGED = (*STRINGS, *LISTS, *OPTIONAL)
SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in STRINGS]
    + [pa.field(name, kind) for name, kind in SCALARS.items()]
    + [pa.field(name, pa.list_(kind)) for name, kind in LISTS.items()]
)
FULL_SCHEMA = pa.schema(
    [*SCHEMA, *(pa.field(name, pa.list_(kind)) for name, kind in OPTIONAL.items())]
)
_VALUE_BYTES = np.array(
    [1] * len(STRINGS) + [kind.bit_width // 8 for kind in (LISTS | OPTIONAL).values()]
)
_FIXED_BYTES = 4 * len((*STRINGS, *LISTS)) + sum(kind.bit_width // 8 for kind in SCALARS.values())
_NO_MEMORY = ("Cannot allocate memory", "Failed to launch worker thread")  # texts of pyarrow
_METADATA_KEY = b"trajformer"
# Copying the two float32 of a step as one integer is ten times faster.
_PACKED_TYPES: dict[str, type] = {"position": np.int64, "heading": np.int32, "velocity": np.int64}
_TRAILING_SHAPE = {"position": (2,), "heading": (), "velocity": (2,)}


@dataclass(frozen=True)
class ShardInfo:
    """Metadata of a shard."""

    source: str  # the data set
    split: str
    inputs: str = ""  # digest of the names of the inputs
    skipped: tuple[
        tuple[str, str], ...
    ] = ()  # input name and reason, of the inputs without a scene
    unit: str = METRES  # of the lengths in all scenes; shards of earlier versions have no entry
    schema_version: int = SCHEMA_VERSION
    software: str = trajformer.__version__


def shard_path(store: Path, split: str, index: int) -> Path:
    """Path of shard number `index` of a split."""
    return Path(store) / split / f"{index:05d}.arrow"


PackedScene = dict[str, Any]


def pack(scene: Scene) -> PackedScene:
    """The row of a scene in a shard, half as large as the scene: the form to keep until the shard is written."""
    valid, lengths = scene.valid, np.diff(scene.polyline_offset)
    row = {
        name: value
        for name, value in vars(scene).items()
        if name not in ("origin", "polyline_offset")
    }
    row |= {
        "agent_id": "\n".join(scene.agent_id),
        "origin_x": float(scene.origin[0]),
        "origin_y": float(scene.origin[1]),
    }
    for name, packed in _PACKED_TYPES.items():
        row[name] = (
            np.ascontiguousarray(getattr(scene, name))
            .view(packed)
            .reshape(valid.shape)[valid]
            .view(np.float32)
        )
    row |= {
        "num_steps": scene.num_steps,
        "valid": np.packbits(valid),
        "point": scene.point.reshape(-1),
    }
    row |= {
        "agent_size": scene.agent_size.reshape(-1),
        "light_state": scene.light_state.reshape(-1),
    }
    row["polyline_length"] = lengths.astype(np.min_scalar_type(len(scene.point))).view(np.uint8)
    row["edge"] = (
        scene.edge.reshape(-1).astype(np.min_scalar_type(scene.num_polylines)).view(np.uint8)
    )
    return row


def _index_bytes(largest: np.ndarray) -> np.ndarray:
    """Size in bytes of `np.min_scalar_type`, elementwise."""
    return np.where(largest < 1 << 8, 1, np.where(largest < 1 << 16, 2, 4))


def _numbers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array of numbers. It avoids `pa.array`, which imports pandas."""
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _column(name: str, rows: list[Any]) -> pa.Array:
    """The column of a shard with one value, text or array in each row (StoreError: more values than int32 can address)."""
    if name in SCALARS:
        return _numbers(np.array(rows), SCALARS[name])
    rows = [row.encode() for row in rows] if name in STRINGS else rows
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise StoreError(
            f"{offsets[-1]} values in one column of a shard: prepare with a smaller shard size"
        )
    bounds = _numbers(offsets, pa.int32())
    if name in STRINGS:
        return pa.StringArray.from_buffers(
            len(rows), bounds.buffers()[1], pa.py_buffer(b"".join(rows))
        )
    return pa.ListArray.from_arrays(
        bounds, _numbers(np.concatenate(rows) if rows else np.zeros(0), (LISTS | OPTIONAL)[name])
    )


def write_shard(path: Path, scenes: Sequence[Scene | PackedScene], info: ShardInfo) -> None:
    """Write scenes, in this order, as one shard, atomically; equal inputs give equal bytes. The scenes determine `info.unit`.

    Raises OSError: the folder cannot be written; the temporary file is removed. StoreError: the scenes are too many or too large
    for one shard, or have different units.
    """
    rows = [pack(scene) if isinstance(scene, Scene) else scene for scene in scenes]
    units = sorted({row["unit"] for row in rows})
    if len(units) > 1:
        raise StoreError(
            f"{path}: scenes in {' and in '.join(units)}: all scenes of a split must have one unit"
        )
    info = replace(info, unit=units[0] if units else METRES)
    schema = FULL_SCHEMA if any(len(row[name]) for row in rows for name in OPTIONAL) else SCHEMA
    columns = [_column(name, [row[name] for row in rows]) for name in schema.names]
    metadata = {
        _METADATA_KEY: json.dumps(asdict(info) | {"scenes": len(rows)}, sort_keys=True).encode()
    }
    batch = pa.record_batch(columns, schema=schema.with_metadata(metadata))
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
        full = isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)
        reason = (
            "cannot be opened, out of memory"
            if full
            else "not a readable shard (truncated or damaged)"
        )
        raise StoreError(f"{path}: {reason}: {error}") from error


def _info(path: Path, schema: pa.Schema) -> tuple[ShardInfo, int]:
    try:
        raw = json.loads((schema.metadata or {})[_METADATA_KEY])
        version, count = raw["schema_version"], int(raw.pop("scenes"))
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version}, this software reads {SCHEMA_VERSION}: preprocess again"
            )
        info = ShardInfo(
            **raw | {"skipped": tuple((str(name), str(reason)) for name, reason in raw["skipped"])}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: not a trajformer shard: no metadata") from error
    if not (schema.equals(SCHEMA) or schema.equals(FULL_SCHEMA)):
        raise StoreError(f"{path}: columns differ from schema version {SCHEMA_VERSION}")
    return info, count


def read_shard_info(path: Path) -> tuple[ShardInfo, int]:
    """Metadata and number of scenes of a shard; raises as `Shard`."""
    with _open_shard(path) as reader:
        return _info(path, reader.schema)


def read_scene_ids(path: Path) -> list[str]:
    """The ids of all scenes of a shard, in order; reads no other column; raises as `Shard`."""
    with _open_shard(path) as reader:
        _info(path, reader.schema)
        column = reader.get_batch(0).column("scene_id")
        column.validate(full=True)
        return _strings(column)


def _find_inconsistency(bounds: np.ndarray, num_steps: np.ndarray) -> str:
    """The first inconsistent row and column, or an empty text: every row of a damaged shard must be unpacked within bounds.

    `bounds` int32 [scenes + 1, columns] is the start of each scene in each ragged column; `num_steps` is T of each scene.
    """
    impossible = (bounds[0] != 0) | (bounds[1:] < bounds[:-1]).any(
        0
    )  # Arrow checks thin the last bound is in range
    if impossible.any():
        return f"column {RAGGED[int(impossible.argmax())]} has impossible offsets"
    length = dict(zip(RAGGED, np.diff(bounds, axis=0).T.astype(np.int64), strict=False))
    agents, steps, polylines = length["agent_kind"], length["heading"], length["polyline_kind"]
    expected = {
        "agent_role": agents,
        "valid": (agents * num_steps + 7) // 8,
        "position": 2 * steps,
        "velocity": 2 * steps,
        "polyline_id": polylines,
        "polyline_flags": polylines,
        "polyline_length": polylines * _index_bytes(length["point"] // 2),
        "point": length["point"] // 2 * 2,
        "edge": 2 * length["edge_kind"] * _index_bytes(polylines),
    }
    if "light_lane" in length:
        expected["agent_size"] = np.where(length["agent_size"] > 0, 2 * agents, 0)
        expected["light_state"] = length["light_lane"] * num_steps
    for name, value in expected.items():
        for row in np.flatnonzero(length[name] != value)[:1]:
            return f"row {row}: {name} has {length[name][row]} values, expected {value[row]}"
    return ""


def _strings(column: pa.Array) -> list[str]:
    if column.null_count:
        raise ValueError("an entry is null")
    return column.to_pylist()


class Shard:
    """One memory-mapped shard; scenes are views of its columns (StoreError: not a readable shard of this schema version)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_shard(path) as reader:
            self.info, self._size = _info(path, reader.schema)
            batch = reader.get_batch(0)
            batch.validate()  # checks the sizes of buffers
            if batch.num_rows != self._size:
                raise StoreError(
                    f"{path}: {batch.num_rows} scenes, expected {self._size} from the metadata"
                )
            self._scalars = [np.from_dlpack(batch.column(name)) for name in SCALARS]
            self._ragged = [name for name in RAGGED if name in batch.schema.names]
            columns = [batch.column(name) for name in self._ragged]
            offsets = [
                np.frombuffer(c.buffers()[1], np.int32, len(c) + 1, c.offset * 4) for c in columns
            ]
            self._bounds = np.stack(offsets, 1)  # [scenes + 1, columns], start of each scene
            self._text = [memoryview(c.buffers()[2] or b"") for c in columns[: len(STRINGS)]]
            self._values: list[np.ndarray] = [
                np.from_dlpack(c.values) for c in columns[len(STRINGS) :]
            ]
        self._strings = dict(zip(STRINGS, columns, strict=False))
        if problem := _find_inconsistency(
            self._bounds, self._scalars[list(SCALARS).index("num_steps")]
        ):
            raise StoreError(f"{path}: damaged: {problem}")

    def __len__(self) -> int:
        return self._size

    def texts(self, name: str) -> list[str]:
        """A text column, such as "scene_id" or "city", for all scenes in order (StoreError: the column is damaged)."""
        try:
            return _strings(self._strings[name])
        except ValueError as error:  # includes invalid UTF-8
            raise StoreError(f"{self.path}: damaged: {name}: {error}") from error

    def sizes(self) -> np.ndarray:
        """Numbers of agents, polylines and points of each scene, int64 [scenes, 3], without unpacking scenes."""
        per_scene = np.diff(self._bounds, axis=0)
        return per_scene[
            :, [RAGGED.index(name) for name in ("agent_kind", "polyline_kind", "point")]
        ] // [1, 1, 2]

    def summary(self) -> dict[str, np.ndarray]:
        """Texts, numbers and sizes of each scene by column name, each [scenes], without unpacking scenes."""
        texts = {
            name: np.array(self.texts(name), object)
            for name in ("scene_id", "source", "split", "city")
        }
        sizes = dict(
            zip(("num_agents", "num_polylines", "num_points"), self.sizes().T, strict=True)
        )
        return texts | dict(zip(SCALARS, self._scalars, strict=True)) | sizes

    def row_bytes(self) -> np.ndarray:
        """Bytes of each scene in the file, int64 [scenes]."""
        return np.diff(self._bounds, axis=0) @ _VALUE_BYTES[: len(self._ragged)] + _FIXED_BYTES

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that are not packed are read-only views of the file (StoreError: it cannot be unpacked)."""
        try:
            return self._unpack(row)
        except ValueError as error:
            raise StoreError(f"{self.path}: row {row}: damaged: {error}") from error

    def _unpack(self, row: int) -> Scene:
        start, end = self._bounds[row].tolist(), self._bounds[row + 1].tolist()
        text = [str(part[a:b], "utf-8") for part, a, b in zip(self._text, start, end, strict=False)]
        values: dict[str, Any] = dict(zip(STRINGS, text, strict=True))
        values |= dict(zip(SCALARS, [column[row].item() for column in self._scalars], strict=True))
        lists = zip(self._values, start[len(text) :], end[len(text) :], strict=True)
        array = dict(
            zip(self._ragged[len(text) :], [values[a:b] for values, a, b in lists], strict=True)
        )
        agent_id, shape = (
            tuple(values["agent_id"].split("\n")),
            (len(array["agent_kind"]), values.pop("num_steps")),
        )
        if len(agent_id) != shape[0]:
            raise ValueError(f"agent_id: {len(agent_id)} ids for {shape[0]} agents")
        valid = np.unpackbits(array["valid"], count=shape[0] * shape[1]).view(np.bool_)
        for name, packed in _PACKED_TYPES.items():
            dense: np.ndarray = np.zeros(len(valid), packed)
            dense[valid] = array[name].view(packed)
            array[name] = dense.view(np.float32).reshape(*shape, *_TRAILING_SHAPE[name])
        point, polylines = array["point"].reshape(-1, 2), len(array["polyline_kind"])
        offset = np.zeros(polylines + 1, np.int32)
        array.pop("polyline_length").view(np.min_scalar_type(len(point))).cumsum(out=offset[1:])
        edge = array["edge"].view(np.min_scalar_type(polylines)).reshape(2, -1).astype(np.int32)
        array |= {
            "valid": valid.reshape(shape),
            "point": point,
            "polyline_offset": offset,
            "edge": edge,
        }
        for name, length in (("agent_size", 2), ("light_state", shape[1])):
            if name in array and len(flat := array.pop(name)):
                array[name] = flat.reshape(-1, length)
        array["origin"] = np.array([values.pop("origin_x"), values.pop("origin_y")])
        return Scene(**values | array | {"agent_id": agent_id, "unit": self.info.unit})
