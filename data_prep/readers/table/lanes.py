"""Lanes, crosswalks and drivable areas of a table of tracks, GeoJSON or a plain JSON list, to `VectorMap`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from data_prep.readers.raw_file import cached_by_file, one_line, read_file
from data_prep.readers.vector_map import VectorMap, build_map, without_repeats
from trajformer.errors import SceneError
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind

ENDINGS = ("lanes.geojson", "lanes.json")
MAX_BYTES = 1 << 30
MAX_COORDINATE_M = 1e8
MAX_DEGREES = 0.5  # coordinates are degrees if they are within +-180, +-90 and no polyline is longer than this
OTHER_FRAME_M = 10_000.0  # a map at a larger distance from the tracks is in another frame
_KINDS = {
    "vehicle": PolylineKind.LANE_VEHICLE,
    "bus": PolylineKind.LANE_BUS,
    "bike": PolylineKind.LANE_BIKE,
    "crosswalk": PolylineKind.CROSSWALK,
    "drivable_area": PolylineKind.DRIVABLE_AREA,
}
_TURNS = {"none": LaneFlag.NONE, "left": LaneFlag.TURN_LEFT, "right": LaneFlag.TURN_RIGHT}
_GEOMETRIES = {"LineString": "vehicle", "Polygon": "drivable_area"}  # and the default kind of a feature
_Links = list[tuple[int, int, int]]


def find_lanes(path: Path, raw: Path) -> Path | None:
    """The lanes of a table: `<stem>.lanes.geojson` or `.json` in its folder, else `lanes.*` there, else `lanes.*` in raw."""
    specific = [path.with_name(f"{path.stem}.{ending}") for ending in ENDINGS]
    shared = [folder / ending for folder in (path.parent, raw) for ending in ENDINGS]
    return next((file for file in (*specific, *shared) if file.is_file()), None)


@cached_by_file(4)
def read_lanes(path: Path) -> VectorMap:
    """All polylines of a file; links to absent lanes are dropped.

    Raises:
        SceneError: the file cannot be read, an entry lacks something or has a wrong value, an id occurs twice, or
            the coordinates are degrees; names file, entry and field.
    """
    try:
        document = msgspec.json.decode(read_file(path, MAX_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: lanes cannot be read: {one_line(error)}") from error
    heads: _Links = []
    lines: list[np.ndarray] = []
    links: _Links = []
    entry_of: dict[tuple[int, int], str] = {}  # by kind (0 for all lanes) and id
    where = "lanes"
    try:
        for where, entry in _entries(document):
            fields, points, closed = _feature(entry) if where.startswith("features") else (entry, entry.get("points"), False)
            kind = _choice(fields, "kind", _KINDS, "vehicle")
            is_ring = kind >= PolylineKind.CROSSWALK
            if closed and not is_ring:
                raise ValueError("kind: a polygon is a crosswalk or a drivable_area")
            number = _id(fields.get("id", f"{where} without an id"), "id")
            if (other := entry_of.setdefault((kind if is_ring else 0, number), where)) != where:
                raise ValueError(f"id: {_short(fields['id'])} is also the id of {other}")
            heads.append((number, int(kind), _flags(fields)))
            lines.append(_line(points, is_ring))
            links += [] if is_ring else _links_of(fields, number)
    except (ValueError, OverflowError) as error:
        raise SceneError(f"{path}: {where}: {error}") from error
    links += [(b, a, int(EdgeKind.PREDECESSOR)) for a, b, kind in links if kind == EdgeKind.SUCCESSOR]
    links += [(b, a, int(EdgeKind.SUCCESSOR)) for a, b, kind in links if kind == EdgeKind.PREDECESSOR]
    if lines and all(map(_looks_like_degrees, lines)):
        raise SceneError(f"{path}: coordinates look like degrees, expected metres in the frame of the tracks")
    return build_map(heads, [len(line) for line in lines], np.concatenate([np.zeros((0, 2)), *lines]), links)


def _entries(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location for messages, content) of each entry, in both formats."""
    section = next((name for name in ("lanes", "features") if isinstance(document, dict) and name in document), None)
    if section is None or not isinstance(document[section], list):
        raise ValueError("no list 'lanes' and no list 'features' (GeoJSON)")
    for index, entry in enumerate(document[section]):
        yield f"{section}[{index}]", entry if isinstance(entry, dict) else {}


def _feature(feature: dict[str, Any]) -> tuple[dict[str, Any], Any, bool]:
    """(fields, points, whether it is a polygon) of a GeoJSON feature; holes of a polygon are ignored."""
    geometry, fields = feature.get("geometry"), feature.get("properties")
    shape = geometry.get("type") if isinstance(geometry, dict) else None
    if not isinstance(geometry, dict) or not isinstance(shape, str) or shape not in _GEOMETRIES:
        raise ValueError(f"geometry: {_short(shape)}, expected one of {', '.join(_GEOMETRIES)}")
    points = geometry.get("coordinates")
    if shape == "Polygon" and isinstance(points, list):
        points = points[0] if points else []
    shared = {"kind": _GEOMETRIES[shape]} | ({"id": feature["id"]} if "id" in feature else {})
    return shared | (fields if isinstance(fields, dict) else {}), points, shape == "Polygon"


def _line(points: Any, is_ring: bool) -> np.ndarray:
    """Points float64 [p, 2] without consecutive duplicates; rings are closed."""
    if not isinstance(points, list):
        raise ValueError("points: missing, expected a list of [x, y]")
    try:
        array = np.asarray(points, np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError("points: expected a list of [x, y]") from error
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise ValueError(f"points: expected a list of [x, y], found shape {list(array.shape)}")
    if not (np.abs(array[:, :2]) <= MAX_COORDINATE_M).all():
        raise ValueError("points: NaN, infinite or huge")
    line = without_repeats(array[:, :2])
    if is_ring and (line[0] != line[-1]).any():
        line = np.concatenate([line, line[:1]])
    if len(line) < (4 if is_ring else 2):
        raise ValueError(f"points: {len(line) - is_ring} different ones, expected at least {3 if is_ring else 2}")
    return line


def _choice(entry: dict[str, Any], field: str, allowed: dict[str, Any], default: str) -> Any:
    value = default if entry.get(field) is None else entry[field]
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{field}: {_short(value)}, expected one of {', '.join(allowed)}")
    return allowed[value]


def _flags(entry: dict[str, Any]) -> int:
    """LaneFlag bits."""
    flags = _choice(entry, "turn", _TURNS, "none")
    for field, flag in (("intersection", LaneFlag.INTERSECTION), ("traffic_control", LaneFlag.TRAFFIC_CONTROL)):
        value = entry.get(field)
        if value not in (None, False, True):  # 0 and 1 equal False and True
            raise ValueError(f"{field}: {_short(value)}, expected true or false")
        flags |= flag if value else LaneFlag.NONE
    return int(flags)


def _links_of(entry: dict[str, Any], number: int) -> _Links:
    """(lane id, lane id, EdgeKind) of all links of a lane."""
    links = []
    for field, kind in (("successors", EdgeKind.SUCCESSOR), ("predecessors", EdgeKind.PREDECESSOR)):
        others = [] if entry.get(field) is None else entry[field]
        if not isinstance(others, list):
            raise ValueError(f"{field}: expected a list of ids")
        links += [(number, _id(other, field), int(kind)) for other in others]
    for field, kind in (("left", EdgeKind.LEFT), ("right", EdgeKind.RIGHT)):
        if entry.get(field) is not None:
            links.append((number, _id(entry[field], field), int(kind)))
    return links


def _id(value: Any, field: str) -> int:
    """An id as int64: whole numbers, also as text, are kept; other text becomes 62 bits of its SHA-256."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{field}: {_short(value)}, expected text or a whole number")
    text = str(value)
    if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):
        return int(text)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big") >> 2


def _short(value: Any) -> str:
    """A value for a message: its first characters, or its type if it is nested."""
    return repr(value)[:60] if value is None or isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"


def _looks_like_degrees(line: np.ndarray) -> bool:
    inside = (np.abs(line) <= (180.0, 90.0)).all()
    return bool(inside and np.linalg.norm(np.diff(line, axis=0), axis=1).sum() < MAX_DEGREES)


def lanes_near(path: Path, positions: np.ndarray, radius_m: float) -> VectorMap:
    """Polylines of a file within radius_m of any of the positions (float64 [n, 2], n >= 1).

    Raises:
        SceneError: see `read_lanes`; or the map is so far away that it must be in another frame.
    """
    lanes = read_lanes(path)
    if len(lanes.point):
        gap = np.maximum(np.maximum(lanes.point.min(0) - positions.max(0), positions.min(0) - lanes.point.max(0)), 0.0)
        if np.hypot(*gap) > OTHER_FRAME_M:
            raise SceneError(f"{path}: the lanes are {np.hypot(*gap) / 1e3:.0f} km from the tracks: not the same frame")
    return lanes.near(positions, radius_m)
