"""The columns of a shard: names, types, conversion to Arrow, and consistency checks of row lengths.

A shard stores positions, headings and velocities of valid steps only, agent-major, and the map once. Polyline lengths and edges
are unsigned integers of the smallest sufficient width, stored as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np
import pyarrow as pa

from trajformer.errors import StoreError

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
    "polyline_length": pa.uint8(),  # bytes of `index_dtype(P)`
    "point": pa.float32(),
    "edge": pa.uint8(),  # bytes of `index_dtype(M)`
    "edge_kind": pa.uint8(),
}
RAGGED = (*STRINGS, *LISTS)
SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in STRINGS]
    + [pa.field(name, kind) for name, kind in SCALARS.items()]
    + [pa.field(name, pa.list_(kind)) for name, kind in LISTS.items()]
)
_VALUE_BYTES = np.array([1] * len(STRINGS) + [kind.bit_width // 8 for kind in LISTS.values()])
_FIXED_BYTES = 4 * len(RAGGED) + sum(kind.bit_width // 8 for kind in SCALARS.values())


def index_dtype(largest: int) -> type[np.unsignedinteger]:
    """The smallest unsigned integer type that holds 0 to `largest`."""
    return np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32


def _index_bytes(largest: np.ndarray) -> np.ndarray:
    """Size in bytes of `index_dtype`, elementwise."""
    return np.where(largest < 1 << 8, 1, np.where(largest < 1 << 16, 2, 4))


def number_column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A column of numbers. It avoids `pa.array`, which imports pandas."""
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _offsets(rows: Sequence[Sized]) -> pa.Array:
    """Start of each row and end of the last row, int32 [rows + 1]."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise StoreError(f"{offsets[-1]} values in one column of a shard: prepare with a smaller shard size")
    return number_column(offsets, pa.int32())


def list_column(rows: list[np.ndarray], kind: pa.DataType) -> pa.Array:
    """A column with an array in each row.

    Raises:
        StoreError: more values than int32 offsets can address.
    """
    values = np.concatenate(rows) if rows else np.zeros(0)
    return pa.ListArray.from_arrays(_offsets(rows), number_column(values, kind))


def text_column(rows: list[str]) -> pa.Array:
    """A column of text; raises as `list_column`."""
    encoded = [row.encode() for row in rows]
    return pa.StringArray.from_buffers(len(rows), _offsets(encoded).buffers()[1], pa.py_buffer(b"".join(encoded)))


def row_bytes(bounds: np.ndarray) -> np.ndarray:
    """Bytes of each scene in a shard, int64 [scenes].

    Args:
        bounds: start of each scene in each ragged column, int32 [scenes + 1, columns].
    """
    return np.diff(bounds, axis=0) @ _VALUE_BYTES + _FIXED_BYTES


def find_inconsistency(bounds: np.ndarray, num_steps: np.ndarray) -> str:
    """Check row lengths, so that every row of a damaged shard can be unpacked without reading out of bounds.

    Args:
        bounds: start of each scene in each ragged column, int32 [scenes + 1, columns].
        num_steps: T of each scene, int32 [scenes].

    Returns:
        A description of the first inconsistent row and column; empty if all lengths are consistent.
    """
    impossible = (bounds[0] != 0) | (bounds[1:] < bounds[:-1]).any(0)  # Arrow checks that the last bound is in range
    if impossible.any():
        return f"column {RAGGED[int(impossible.argmax())]} has impossible offsets"
    length = dict(zip(RAGGED, np.diff(bounds, axis=0).T.astype(np.int64), strict=True))
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
    for name, value in expected.items():
        wrong = np.flatnonzero(length[name] != value)
        if len(wrong):
            return f"row {wrong[0]}: {name} has {length[name][wrong[0]]} values, expected {value[wrong[0]]}"
    return ""
