"""Lines and polygons of a GeoPackage: a header and well-known binary (OGC 12-128, 06-103).

A GeoPackage is a SQLite file. The few kinds of geometry in maps need no library, which would bring
GDAL.
"""

import struct
from collections.abc import Iterator

import numpy as np

MAX_PARTS = 10_000  # of a geometry
MAX_POINTS = 1_000_000
_ENVELOPE_BYTES = (0, 32, 48, 48, 64)
_LINE, _POLYGON = 2, 3
_MULTI = (4, 5, 6, 7)  # points, lines, polygons, collection
_POINT = 1


def lines_of(blob: bytes) -> list[np.ndarray]:
    """The lines and outer rings of a geometry, float64 [n, 2] each; holes are left out.

    Raises ValueError: not a geometry.
    """
    if blob[:2] != b"GP" or len(blob) < 8:
        raise ValueError("not a geometry of a GeoPackage")
    flags = blob[3]
    code = (flags >> 1) & 7
    if code >= len(_ENVELOPE_BYTES):
        raise ValueError("geometry: unknown envelope")
    if flags & 0x10:  # empty
        return []
    reader = _Reader(blob, 8 + _ENVELOPE_BYTES[code])
    return list(reader.geometry(0))


class _Reader:
    """Reads values from a position in a blob; ValueError at its end."""

    def __init__(self, blob: bytes, position: int) -> None:
        self.blob = blob
        self.position = position

    def geometry(self, depth: int) -> Iterator[np.ndarray]:
        """Lines of the geometry at the position."""
        if depth > 3:
            raise ValueError("geometry: nested too deeply")
        order = "<" if self._bytes(1) == b"\1" else ">"
        code = self._count(order, 1 << 32)
        has_z = bool(code & 0x80000000) or (code & 0xFFFF) // 1000 in (1, 3)
        has_m = bool(code & 0x40000000) or (code & 0xFFFF) // 1000 in (2, 3)
        if code & 0x20000000:  # a reference system
            self._bytes(4)
        kind = (code & 0xFFFF) % 1000
        width = 2 + has_z + has_m
        if kind == _POINT:
            self._bytes(8 * width)
        elif kind == _LINE:
            yield self._points(order, width)
        elif kind == _POLYGON:
            for ring in range(self._count(order, MAX_PARTS)):
                points = self._points(order, width)
                if ring == 0:
                    yield points
        elif kind in _MULTI:
            for _ in range(self._count(order, MAX_PARTS)):
                yield from self.geometry(depth + 1)
        else:
            raise ValueError(f"geometry: unknown type {kind}")

    def _points(self, order: str, width: int) -> np.ndarray:
        count = self._count(order, MAX_POINTS)
        data = self._bytes(8 * width * count)
        points = np.frombuffer(data, np.dtype(f"{order}f8")).reshape(count, width)[:, :2]
        return points.astype(np.float64)

    def _count(self, order: str, maximum: int) -> int:
        [count] = struct.unpack(f"{order}I", self._bytes(4))
        if count > maximum:
            raise ValueError(f"geometry: {count} parts, expected up to {maximum}")
        return int(count)

    def _bytes(self, count: int) -> bytes:
        data = self.blob[self.position : self.position + count]
        if len(data) < count:
            raise ValueError("geometry: ends early")
        self.position += count
        return data
