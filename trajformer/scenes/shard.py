"""Scenes on disk: memory-mapped Arrow IPC files (shards), one row per scene.

A shard is `STORE/<split>/<number>.arrow`. It stores positions, headings and velocities of valid
steps only, agent-major, and the map once. Polyline lengths and edges are unsigned integers of the
smallest sufficient width, stored as bytes. Columns of the optional fields of `Scene` exist if a
scene of the shard has values for them. The schema metadata has the schema version, the software
version, a digest of the inputs, the skipped inputs with reasons, the warnings of the others, and
the number of dropped details; `manifest.py` only summarises it. Shards are written under a
temporary name and then renamed, so a store can be read while it is prepared. Reading a damaged
shard raises an error that names the file or returns different values (the manifest has checksums),
but never reads out of bounds.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import trajformer
from trajformer.errors import StoreError
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import METRES, Scene

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
OPTIONAL: dict[str, pa.DataType] = {
    "agent_size": pa.float32(),
    "light_lane": pa.int32(),
    "light_state": pa.uint8(),
}
ALL_LISTS = LISTS | OPTIONAL
RAGGED = (*STRINGS, *ALL_LISTS)  # columns with offsets, in this order


def _schema(lists: dict[str, pa.DataType]) -> pa.Schema:
    columns = dict.fromkeys(STRINGS, pa.string()) | SCALARS
    for name, kind in lists.items():
        columns[name] = pa.list_(kind)
    return pa.schema(columns)


SCHEMA = _schema(LISTS)
FULL_SCHEMA = _schema(ALL_LISTS)

_METADATA_KEY = b"trajformer"
_NO_MEMORY = ("Cannot allocate memory", "Failed to launch worker thread")  # texts of pyarrow
# Copying the two float32 of a step as one integer is ten times faster.
_PACKED_TYPES: dict[str, type] = {"position": np.int64, "heading": np.int32, "velocity": np.int64}
_TRAILING_SHAPE = {"position": (2,), "heading": (), "velocity": (2,)}


@dataclass(frozen=True)
class ShardInfo:
    """Metadata of a shard."""

    source: str  # the data set
    split: str
    inputs: str = ""  # digest of the names of the inputs
    # input name and reason, of the inputs without a scene
    skipped: tuple[tuple[str, str], ...] = ()
    # input name and message, of the inputs with a scene that may be wrong
    warnings: tuple[tuple[str, str], ...] = ()
    # file, cause and number, of the details that were dropped, such as lanes of one point
    dropped: tuple[tuple[str, str, int], ...] = ()
    unit: str = METRES  # of the lengths in all scenes
    schema_version: int = SCHEMA_VERSION
    software: str = trajformer.__version__


def shard_path(store: Path, split: str, index: int) -> Path:
    """Path of shard number `index` of a split."""
    return Path(store) / split / f"{index:05d}.arrow"


# ---- writing ---------------------------------------------------------------------------------

PackedScene = dict[str, Any]  # the value of each column, and the unit


def pack(scene: Scene) -> PackedScene:
    """The row of a scene in a shard.

    It is half as large as the scene: the form to keep until the shard is written.
    """
    row = dict(vars(scene))
    del row["origin"], row["polyline_offset"]
    row["origin_x"] = float(scene.origin[0])
    row["origin_y"] = float(scene.origin[1])
    row["num_steps"] = scene.num_steps
    row["agent_id"] = "\n".join(scene.agent_id)
    row["valid"] = np.packbits(scene.valid)
    for name, packed_type in _PACKED_TYPES.items():
        steps: np.ndarray = np.ascontiguousarray(getattr(scene, name)).view(packed_type)
        valid_steps = steps.reshape(scene.valid.shape)[scene.valid]
        row[name] = valid_steps.view(np.float32)
    for name in ("point", "agent_size", "light_state"):
        row[name] = getattr(scene, name).reshape(-1)
    length_type = np.min_scalar_type(len(scene.point))
    row["polyline_length"] = np.diff(scene.polyline_offset).astype(length_type).view(np.uint8)
    edge_type = np.min_scalar_type(scene.num_polylines)
    row["edge"] = scene.edge.reshape(-1).astype(edge_type).view(np.uint8)
    return row


def _numbers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """An array of numbers. It avoids `pa.array`, which imports pandas."""
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _column(name: str, rows: list[Any]) -> pa.Array:
    """The column of a shard with one value, text or array in each row.

    Raises StoreError: there are more values than int32 can address.
    """
    if name in SCALARS:
        return _numbers(np.array(rows), SCALARS[name])
    if name in STRINGS:
        rows = [row.encode() for row in rows]
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    count = offsets[-1]
    if count > np.iinfo(np.int32).max:
        reason = f"{count} values in one column of a shard"
        raise StoreError(f"{reason}: prepare with a smaller shard size")
    bounds = _numbers(offsets, pa.int32())
    if name in STRINGS:
        text = pa.py_buffer(b"".join(rows))
        return pa.StringArray.from_buffers(len(rows), bounds.buffers()[1], text)
    values = np.concatenate(rows) if rows else np.zeros(0)
    return pa.ListArray.from_arrays(bounds, _numbers(values, ALL_LISTS[name]))


def write_shard(path: Path, scenes: Sequence[Scene | PackedScene], info: ShardInfo) -> None:
    """Write scenes, in this order, as one shard, atomically; equal inputs give equal bytes.

    The scenes determine `info.unit`. Raises OSError: the folder cannot be written; the temporary
    file is removed. StoreError: the scenes are too many or too large for one shard, or have
    different units.
    """
    rows = [pack(scene) if isinstance(scene, Scene) else scene for scene in scenes]
    units = sorted({row["unit"] for row in rows})
    if len(units) > 1:
        reason = f"scenes in {' and in '.join(units)}"
        raise StoreError(f"{path}: {reason}: all scenes of a split must have one unit")
    info = replace(info, unit=units[0] if units else METRES)
    metadata = asdict(info) | {"scenes": len(rows)}
    for name in ("warnings", "dropped"):  # shards without them have the bytes of older versions
        if not metadata[name]:
            del metadata[name]

    has_optional = any(len(row[name]) > 0 for row in rows for name in OPTIONAL)
    schema = FULL_SCHEMA if has_optional else SCHEMA
    schema = schema.with_metadata({_METADATA_KEY: json.dumps(metadata, sort_keys=True).encode()})
    columns = []
    for name in schema.names:
        columns.append(_column(name, [row[name] for row in rows]))
    batch = pa.record_batch(columns, schema=schema)
    with atomically(path) as temporary, temporary.open("wb") as sink:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        sink.flush()
        os.fsync(sink.fileno())  # the renamed shard is complete even after a power failure


# ---- reading ---------------------------------------------------------------------------------


@contextmanager
def _open_shard(path: Path) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """A reader of a mapped shard.

    Its buffers stay mapped after the context, without a file descriptor.
    """
    try:
        with pa.memory_map(os.fsencode(path), "r") as file:
            yield pa.ipc.open_file(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = "not a readable shard (truncated or damaged)"
        no_memory = any(text in str(error) for text in _NO_MEMORY)
        if no_memory or isinstance(error, MemoryError):
            reason = "cannot be opened, out of memory"
        raise StoreError(f"{path}: {reason}: {error}") from error


def _info(path: Path, schema: pa.Schema) -> tuple[ShardInfo, int]:
    """Metadata and number of scenes of a shard with this schema."""
    try:
        metadata = json.loads((schema.metadata or {})[_METADATA_KEY])
        version = metadata["schema_version"]
        if version != SCHEMA_VERSION:
            versions = f"schema version {version}, this software reads {SCHEMA_VERSION}"
            raise StoreError(f"{path}: {versions}: preprocess again")
        count = int(metadata.pop("scenes"))
        skipped = _text_pairs(metadata.pop("skipped"))
        warnings = _text_pairs(metadata.pop("warnings", []))  # none in older shards
        dropped = []
        for file, cause, number in metadata.pop("dropped", []):
            dropped.append((str(file), str(cause), int(number)))
        info = ShardInfo(**metadata, skipped=skipped, warnings=warnings, dropped=tuple(dropped))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: not a trajformer shard: no metadata") from error
    if not (schema.equals(SCHEMA) or schema.equals(FULL_SCHEMA)):
        raise StoreError(f"{path}: columns differ from schema version {SCHEMA_VERSION}")
    return info, count


def _text_pairs(entries: Iterable[tuple[object, object]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(text)) for name, text in entries)


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


def _strings(column: pa.Array) -> list[str]:
    if column.null_count:
        raise ValueError("an entry is null")
    return column.to_pylist()


def _index_bytes(largest: np.ndarray) -> np.ndarray:
    """Size in bytes of `np.min_scalar_type`, elementwise."""
    sizes = np.where(largest < 1 << 16, 2, 4)
    return np.where(largest < 1 << 8, 1, sizes)


def _find_inconsistency(bounds: np.ndarray, num_steps: np.ndarray) -> str:
    """The first inconsistent row and column, or an empty text.

    Every row of a damaged shard must be unpacked within bounds. `bounds` int32
    [scenes + 1, columns] is the start of each scene in each ragged column; `num_steps` is T of each
    scene.
    """
    # Arrow has checked that the last bound is in range.
    impossible = (bounds[0] != 0) | (bounds[1:] < bounds[:-1]).any(0)
    if impossible.any():
        return f"column {RAGGED[int(impossible.argmax())]} has impossible offsets"
    lengths = np.diff(bounds, axis=0).T.astype(np.int64)  # [columns, scenes]
    length = dict(zip(RAGGED, lengths, strict=False))
    agents = length["agent_kind"]
    steps = length["heading"]
    polylines = length["polyline_kind"]
    points = length["point"] // 2
    expected = {
        "agent_role": agents,
        "valid": (agents * num_steps + 7) // 8,
        "position": 2 * steps,
        "velocity": 2 * steps,
        "polyline_id": polylines,
        "polyline_flags": polylines,
        "polyline_length": polylines * _index_bytes(points),
        "point": 2 * points,
        "edge": 2 * length["edge_kind"] * _index_bytes(polylines),
    }
    if "light_lane" in length:
        expected["agent_size"] = np.where(length["agent_size"] > 0, 2 * agents, 0)
        expected["light_state"] = length["light_lane"] * num_steps
    for name, count in expected.items():
        different = np.flatnonzero(length[name] != count)
        if len(different) > 0:
            row = different[0]
            return f"row {row}: {name} has {length[name][row]} values, expected {count[row]}"
    return ""


def _offsets(column: pa.Array) -> np.ndarray:
    """The start of each row of a text or list column, and the end: int32 [rows + 1]."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


class Shard:
    """One memory-mapped shard; scenes are views of its columns.

    Raises StoreError: not a readable shard of this schema version.
    """

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
            self._map_columns(batch)
        problem = _find_inconsistency(self._bounds, self._scalars["num_steps"])
        if problem:
            raise StoreError(f"{path}: damaged: {problem}")

    def _map_columns(self, batch: pa.RecordBatch) -> None:
        """Views of the buffers of all columns."""
        self._scalars = {name: np.from_dlpack(batch.column(name)) for name in SCALARS}
        self._strings: dict[str, pa.Array] = {}
        self._text: dict[str, memoryview] = {}  # the bytes of all rows
        self._values: dict[str, np.ndarray] = {}  # the numbers of all rows
        offsets = []
        for name in STRINGS:
            column = batch.column(name)
            self._strings[name] = column
            self._text[name] = memoryview(column.buffers()[2] or b"")
            offsets.append(_offsets(column))
        for name in ALL_LISTS:
            if name in batch.schema.names:
                column = batch.column(name)
                self._values[name] = np.from_dlpack(column.values)
                offsets.append(_offsets(column))
        self._bounds = np.stack(offsets, 1)  # [scenes + 1, columns], start of each scene

    def __len__(self) -> int:
        return self._size

    def texts(self, name: str) -> list[str]:
        """A text column, such as "scene_id" or "city", for all scenes in order.

        Raises StoreError: the column is damaged.
        """
        try:
            return _strings(self._strings[name])
        except ValueError as error:  # includes invalid UTF-8
            raise StoreError(f"{self.path}: damaged: {name}: {error}") from error

    def sizes(self) -> np.ndarray:
        """Numbers of agents, polylines and points of each scene, without unpacking scenes.

        Returns int64 [scenes, 3].
        """
        columns = [RAGGED.index(name) for name in ("agent_kind", "polyline_kind", "point")]
        num_values = np.diff(self._bounds, axis=0)[:, columns]
        return num_values // [1, 1, 2]  # a point has two values

    def summary(self) -> dict[str, np.ndarray]:
        """Texts, numbers and sizes of each scene by column name, without unpacking scenes.

        All arrays are [scenes].
        """
        table: dict[str, np.ndarray] = {}
        for name in ("scene_id", "source", "split", "city"):
            table[name] = np.array(self.texts(name), object)
        table |= self._scalars
        size_names = ("num_agents", "num_polylines", "num_points")
        return table | dict(zip(size_names, self.sizes().T, strict=True))

    def row_bytes(self) -> np.ndarray:
        """Bytes of each scene in the file, int64 [scenes]."""
        value_bytes = [1] * len(STRINGS)
        value_bytes += [values.itemsize for values in self._values.values()]
        offset_bytes = 4 * len((*STRINGS, *LISTS))
        scalar_bytes = sum(kind.bit_width // 8 for kind in SCALARS.values())
        return np.diff(self._bounds, axis=0) @ value_bytes + offset_bytes + scalar_bytes

    def scene(self, row: int) -> Scene:
        """Scene number `row`; arrays that are not packed are read-only views of the file.

        Raises StoreError: the scene cannot be unpacked.
        """
        try:
            return self._unpack(row)
        except ValueError as error:
            raise StoreError(f"{self.path}: row {row}: damaged: {error}") from error

    def _unpack(self, row: int) -> Scene:
        starts = self._bounds[row].tolist()
        ends = self._bounds[row + 1].tolist()
        fields: dict[str, Any] = {"unit": self.info.unit}
        for name, column in self._scalars.items():
            fields[name] = column[row].item()
        # The bounds have the order of `RAGGED`: texts, then lists.
        bounds = list(zip(starts, ends, strict=True))
        num_texts = len(self._text)
        texts = zip(self._text.items(), bounds[:num_texts], strict=True)
        for (name, text), (start, end) in texts:
            fields[name] = str(text[start:end], "utf-8")
        lists = zip(self._values.items(), bounds[num_texts:], strict=True)
        for (name, values), (start, end) in lists:
            fields[name] = values[start:end]
        fields["origin"] = np.array([fields.pop("origin_x"), fields.pop("origin_y")])
        _unpack_agents(fields)
        _unpack_map(fields)
        return Scene(**fields)


def _unpack_agents(fields: dict[str, Any]) -> None:
    """Restore the shapes of the agents' fields, with zeros at steps that are not valid."""
    num_agents = len(fields["agent_kind"])
    num_steps = fields.pop("num_steps")
    fields["agent_id"] = tuple(fields["agent_id"].split("\n"))
    if len(fields["agent_id"]) != num_agents:
        raise ValueError(f"agent_id: {len(fields['agent_id'])} ids for {num_agents} agents")
    valid = np.unpackbits(fields["valid"], count=num_agents * num_steps).view(np.bool_)
    fields["valid"] = valid.reshape(num_agents, num_steps)
    for name, packed_type in _PACKED_TYPES.items():
        steps: np.ndarray = np.zeros(len(valid), packed_type)
        steps[valid] = fields[name].view(packed_type)
        shape = (num_agents, num_steps, *_TRAILING_SHAPE[name])
        fields[name] = steps.view(np.float32).reshape(shape)
    # An empty optional field has the default shape of `Scene`.
    for name, length in (("agent_size", 2), ("light_state", num_steps)):
        values = fields.pop(name, ())
        if len(values) > 0:
            fields[name] = values.reshape(-1, length)


def _unpack_map(fields: dict[str, Any]) -> None:
    """Restore offsets of polylines, points and edges."""
    num_polylines = len(fields["polyline_kind"])
    fields["point"] = fields["point"].reshape(-1, 2)
    length_type = np.min_scalar_type(len(fields["point"]))
    offset = np.zeros(num_polylines + 1, np.int32)
    fields.pop("polyline_length").view(length_type).cumsum(out=offset[1:])
    fields["polyline_offset"] = offset
    edge = fields["edge"].view(np.min_scalar_type(num_polylines))
    fields["edge"] = edge.reshape(2, -1).astype(np.int32)
