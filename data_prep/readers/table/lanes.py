"""Lanes, crosswalks and drivable areas of a table of tracks to `VectorMap`.

They are GeoJSON or a plain JSON list.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from data_prep.plausibility import check_lanes_near, look_like_degrees
from data_prep.readers.raw_file import cached_by_file, one_line, read_file
from data_prep.readers.vector_map import VectorMap, build_map, without_repeats
from trajformer.errors import SceneError
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind

ENDINGS = ("lanes.geojson", "lanes.json")
MAX_BYTES = 1 << 30
MAX_COORDINATE_M = 1e8
_KINDS = {
    "vehicle": PolylineKind.LANE_VEHICLE,
    "bus": PolylineKind.LANE_BUS,
    "bike": PolylineKind.LANE_BIKE,
    "crosswalk": PolylineKind.CROSSWALK,
    "drivable_area": PolylineKind.DRIVABLE_AREA,
}
_TURNS = {"none": LaneFlag.NONE, "left": LaneFlag.TURN_LEFT, "right": LaneFlag.TURN_RIGHT}
# GeoJSON geometries with the default kind of a feature.
_GEOMETRIES = {"LineString": "vehicle", "Polygon": "drivable_area"}
_Id = int | str | float
_Flag = bool | Literal[0, 1] | None
_Link = tuple[int, int, int]  # lane id, lane id, EdgeKind
_Meaning = TypeVar("_Meaning")


class _Lane(msgspec.Struct, gc=False):
    """An entry of `lanes`; msgspec checks the types."""

    points: list[Annotated[list[float], Meta(min_length=2, max_length=3)]]
    id: _Id | None = None
    kind: str | None = None
    successors: list[_Id] | None = None
    predecessors: list[_Id] | None = None
    left: _Id | None = None
    right: _Id | None = None
    intersection: _Flag = None
    traffic_control: _Flag = None
    turn: str | None = None


def find_lanes(path: Path, raw: Path) -> Path | None:
    """The lanes of a table.

    They are `<stem>.lanes.geojson` or `.json` in its folder, else `lanes.*` in its folder, else
    `lanes.*` in `raw`.
    """
    specific = [path.with_name(f"{path.stem}.{ending}") for ending in ENDINGS]
    shared = [folder / ending for folder in (path.parent, raw) for ending in ENDINGS]
    for file in (*specific, *shared):
        if file.is_file():
            return file
    return None


@cached_by_file(4)
def read_lanes(path: Path) -> VectorMap:
    """All polylines of a file; links to absent lanes are dropped.

    A SceneError names file, entry and field.
    """
    try:
        document = msgspec.json.decode(read_file(path, MAX_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: lanes cannot be read: {one_line(error)}") from error
    if not isinstance(document, dict):
        document = {}
    section = "lanes" if "lanes" in document else "features"
    if not isinstance(document.get(section), list):
        raise SceneError(f"{path}: lanes: no list 'lanes' and no list 'features' (GeoJSON)")

    heads: list[tuple[int, int, int]] = []  # id, kind, flags
    lines: list[np.ndarray] = []
    links: list[_Link] = []
    entry_of: dict[tuple[int, int], str] = {}  # by kind (0 for all lanes) and id
    for index, entry in enumerate(document[section]):
        where = f"{section}[{index}]"
        try:
            lane = _read_entry(entry, section)
            kind = _choice("kind", lane.kind or "vehicle", _KINDS)
            is_ring = kind >= PolylineKind.CROSSWALK
            number = _id(f"{where} without an id" if lane.id is None else lane.id)
            key = (int(kind) if is_ring else 0, number)
            if key in entry_of:
                raise ValueError(f"id: {str(lane.id)[:40]!r} is also the id of {entry_of[key]}")
            entry_of[key] = where
            heads.append((number, int(kind), _flags(lane)))
            lines.append(_line(lane.points, is_ring))
            if not is_ring:
                links += _links(lane, number)
        except (ValueError, OverflowError) as error:
            raise SceneError(f"{path}: {where}: {one_line(error)}") from error

    lengths = [len(line) for line in lines]
    points = np.concatenate([np.zeros((0, 2)), *lines])
    if look_like_degrees(points, np.array([_length(line) for line in lines])):
        raise SceneError(
            f"{path}: coordinates look like degrees, expected metres in the frame of the tracks"
        )
    return build_map(heads, lengths, points, links + _reverse_links(links))


def _read_entry(entry: Any, section: str) -> _Lane:
    """An entry of a list; ValueError names the field that cannot be used."""
    if section == "features" and isinstance(entry, dict):
        entry = _fields(entry)
    return msgspec.convert(entry, _Lane)


def _fields(feature: dict[str, Any]) -> dict[str, Any]:
    """The entry of `lanes` that equals a GeoJSON feature; holes of a polygon are ignored."""
    geometry = feature.get("geometry")
    if not isinstance(geometry, dict):
        raise ValueError("geometry: missing")
    kind = _choice("geometry", str(geometry.get("type")), _GEOMETRIES)
    fields = {"kind": kind, "id": feature.get("id")}
    properties = feature.get("properties")
    if isinstance(properties, dict):
        for name, value in properties.items():
            if value is not None:
                fields[name] = value
    points = geometry.get("coordinates")
    if kind == "drivable_area":
        if fields["kind"] not in ("crosswalk", "drivable_area"):
            raise ValueError("kind: a polygon is a crosswalk or a drivable_area")
        points = points[0] if isinstance(points, list) and points else []
    fields["points"] = points
    return fields


def _choice(field: str, value: str, allowed: dict[str, _Meaning]) -> _Meaning:
    if value not in allowed:
        raise ValueError(f"{field}: {value[:60]!r}, expected one of {', '.join(allowed)}")
    return allowed[value]


def _flags(lane: _Lane) -> int:
    """LaneFlag bits of a lane."""
    flags = _choice("turn", lane.turn or "none", _TURNS)
    if lane.intersection:
        flags |= LaneFlag.INTERSECTION
    if lane.traffic_control:
        flags |= LaneFlag.TRAFFIC_CONTROL
    return int(flags)


def _line(points: list[list[float]], is_ring: bool) -> np.ndarray:
    """Points float64 [p, 2] without consecutive duplicates; rings are closed."""
    positions = np.array([point[:2] for point in points], np.float64).reshape(-1, 2)
    line = without_repeats(positions)
    if not (np.abs(line) <= MAX_COORDINATE_M).all():
        raise ValueError("points: infinite or huge")
    min_points = 2
    if is_ring:
        min_points = 3
        if len(line) and (line[0] == line[-1]).all():
            line = line[:-1]
    if len(line) < min_points:
        raise ValueError(f"points: {len(line)} different ones, expected at least {min_points}")
    if is_ring:
        line = np.concatenate([line, line[:1]])
    return line


def _links(lane: _Lane, number: int) -> list[_Link]:
    """All links from a lane."""
    others_of: dict[EdgeKind, Sequence[_Id | None]] = {
        EdgeKind.SUCCESSOR: lane.successors or [],
        EdgeKind.PREDECESSOR: lane.predecessors or [],
        EdgeKind.LEFT: [lane.left],
        EdgeKind.RIGHT: [lane.right],
    }
    links = []
    for kind, others in others_of.items():
        for other in others:
            if other is not None:
                links.append((number, _id(other), int(kind)))
    return links


def _reverse_links(links: list[_Link]) -> list[_Link]:
    """The predecessors of all successors, then the successors of all predecessors."""
    successor = int(EdgeKind.SUCCESSOR)
    predecessor = int(EdgeKind.PREDECESSOR)
    reverse = [(b, a, predecessor) for a, b, kind in links if kind == successor]
    reverse += [(b, a, successor) for a, b, kind in links if kind == predecessor]
    return reverse


def _id(value: _Id) -> int:
    """An id as int64.

    Whole numbers, also as text, are kept; other text becomes 62 bits of its SHA-256.
    """
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"id: {value}, expected text or a whole number")
        value = int(value)
    text = str(value)
    if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):
        return int(text)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _length(line: np.ndarray) -> float:
    """Length of a polyline [p, 2]."""
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())


def lanes_near(path: Path, positions: np.ndarray, radius_m: float) -> VectorMap:
    """Polylines of a file within radius_m of any position (float64 [n, 2], n >= 1).

    Raises SceneError also for lanes in another frame.
    """
    kept = read_lanes(path).near(positions, radius_m, path)
    is_lane = kept.polyline_kind <= PolylineKind.LANE_BIKE
    if is_lane.any():
        low, high = kept.boxes
        check_lanes_near(path, (low[:, is_lane], high[:, is_lane]), positions)
    return kept
