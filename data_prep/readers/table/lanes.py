"""Lanes, crosswalks and drivable areas of a table of tracks, GeoJSON or a plain JSON list, to `VectorMap`."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

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
_GEOMETRIES = {
    "LineString": "vehicle",
    "Polygon": "drivable_area",
}  # and the default kind of a feature
_Id = int | str | float
_Flag = bool | Literal[0, 1] | None
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
    """The lanes of a table: `<stem>.lanes.geojson` or `.json` in its folder, else `lanes.*` there, else `lanes.*` in raw."""
    specific = [path.with_name(f"{path.stem}.{ending}") for ending in ENDINGS]
    shared = [folder / ending for folder in (path.parent, raw) for ending in ENDINGS]
    return next((file for file in (*specific, *shared) if file.is_file()), None)


@cached_by_file(4)
def read_lanes(path: Path) -> VectorMap:
    """All polylines of a file; links to absent lanes are dropped. A SceneError names file, entry and field."""
    try:
        document = msgspec.json.decode(read_file(path, MAX_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: lanes cannot be read: {one_line(error)}") from error
    document = document if isinstance(document, dict) else {}
    section = "lanes" if "lanes" in document else "features"
    if not isinstance(document.get(section), list):
        raise SceneError(f"{path}: lanes: no list 'lanes' and no list 'features' (GeoJSON)")
    heads: list[tuple[int, int, int]] = []  # id, kind, flags
    lines: list[np.ndarray] = []
    links: list[tuple[int, int, int]] = []
    entry_of: dict[tuple[int, int], str] = {}  # by kind (0 for all lanes) and id
    for index, entry in enumerate(document[section]):
        where = f"{section}[{index}]"
        try:
            lane = msgspec.convert(
                _fields(entry) if section == "features" and isinstance(entry, dict) else entry,
                _Lane,
            )
            kind = _choice("kind", lane.kind or "vehicle", _KINDS)
            is_ring = kind >= PolylineKind.CROSSWALK
            number = _id(f"{where} without an id" if lane.id is None else lane.id)
            if (other := entry_of.setdefault((kind if is_ring else 0, number), where)) != where:
                raise ValueError(f"id: {str(lane.id)[:40]!r} is also the id of {other}")
            flags = _choice("turn", lane.turn or "none", _TURNS)
            flags |= LaneFlag.INTERSECTION if lane.intersection else LaneFlag.NONE
            flags |= LaneFlag.TRAFFIC_CONTROL if lane.traffic_control else LaneFlag.NONE
            heads.append((number, int(kind), int(flags)))
            lines.append(_line(lane.points, is_ring))
            links += [] if is_ring else _links(lane, number)
        except (ValueError, OverflowError) as error:
            raise SceneError(f"{path}: {where}: {one_line(error)}") from error
    if lines and all(map(_looks_like_degrees, lines)):
        raise SceneError(
            f"{path}: coordinates look like degrees, expected metres in the frame of the tracks"
        )
    successor, predecessor = int(EdgeKind.SUCCESSOR), int(EdgeKind.PREDECESSOR)
    reverse = [(b, a, predecessor) for a, b, kind in links if kind == successor]
    links += reverse + [(b, a, successor) for a, b, kind in links if kind == predecessor]
    return build_map(
        heads, [len(line) for line in lines], np.concatenate([np.zeros((0, 2)), *lines]), links
    )


def _fields(feature: dict[str, Any]) -> dict[str, Any]:
    """The entry of `lanes` that equals a GeoJSON feature; holes of a polygon are ignored."""
    geometry, properties = feature.get("geometry"), feature.get("properties")
    if not isinstance(geometry, dict):
        raise ValueError("geometry: missing")
    kind = _choice("geometry", str(geometry.get("type")), _GEOMETRIES)
    own = properties if isinstance(properties, dict) else {}
    fields = {"kind": kind, "id": feature.get("id")} | {
        name: value for name, value in own.items() if value is not None
    }
    fields["points"] = points = geometry.get("coordinates")
    if kind == "drivable_area":
        if fields["kind"] not in ("crosswalk", "drivable_area"):
            raise ValueError("kind: a polygon is a crosswalk or a drivable_area")
        fields["points"] = points[0] if isinstance(points, list) and points else []
    return fields


def _choice(field: str, value: str, allowed: dict[str, _Meaning]) -> _Meaning:
    if value not in allowed:
        raise ValueError(f"{field}: {value[:60]!r}, expected one of {', '.join(allowed)}")
    return allowed[value]


def _line(points: list[list[float]], is_ring: bool) -> np.ndarray:
    """Points float64 [p, 2] without consecutive duplicates; rings are closed."""
    line = without_repeats(np.array([point[:2] for point in points], np.float64).reshape(-1, 2))
    if not (np.abs(line) <= MAX_COORDINATE_M).all():
        raise ValueError("points: infinite or huge")
    if is_ring and len(line) and (line[0] != line[-1]).any():
        line = np.concatenate([line, line[:1]])
    if len(line) < (4 if is_ring else 2):
        raise ValueError(
            f"points: {max(len(line) - is_ring, 0)} different ones, expected at least {3 if is_ring else 2}"
        )
    return line


def _links(lane: _Lane, number: int) -> list[tuple[int, int, int]]:
    """(lane id, lane id, EdgeKind) of all links of a lane."""
    neighbors = ([] if other is None else [other] for other in (lane.left, lane.right))
    others = zip(
        EdgeKind, (lane.successors or [], lane.predecessors or [], *neighbors), strict=True
    )
    return [(number, _id(other), int(kind)) for kind, ids in others for other in ids]


def _id(value: _Id) -> int:
    """An id as int64: whole numbers, also as text, are kept; other text becomes 62 bits of its SHA-256."""
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"id: {value}, expected text or a whole number")
        value = int(value)
    text = str(value)
    if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):
        return int(text)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big") >> 2


def _looks_like_degrees(line: np.ndarray) -> bool:
    inside = (np.abs(line) <= (180.0, 90.0)).all()
    return bool(inside and np.linalg.norm(np.diff(line, axis=0), axis=1).sum() < MAX_DEGREES)


def lanes_near(path: Path, positions: np.ndarray, radius_m: float) -> VectorMap:
    """Polylines of a file within radius_m of any position (float64 [n, 2], n >= 1); SceneError also for another frame."""
    lanes = read_lanes(path)
    if len(lanes.point):
        gap = np.maximum(
            np.maximum(
                lanes.point.min(0) - positions.max(0), positions.min(0) - lanes.point.max(0)
            ),
            0.0,
        )
        if np.hypot(*gap) > OTHER_FRAME_M:
            raise SceneError(
                f"{path}: the lanes are {np.hypot(*gap) / 1e3:.0f} km from the tracks: not the same frame"
            )
    return lanes.near(positions, radius_m)
