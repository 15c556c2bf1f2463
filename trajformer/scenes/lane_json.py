"""Lanes, crosswalks and drivable areas from GeoJSON or a plain JSON list to `VectorMap`."""

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.files import read_file
from trajformer.scenes.lane_checks import look_like_degrees
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.vector_map import VectorMap, build_map, without_repeats

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
_GEOMETRIES = {
    "LineString": "vehicle",
    "MultiLineString": "vehicle",
    "Polygon": "drivable_area",
    "MultiPolygon": "drivable_area",
}
_KEY = re.compile(rb'(?<!\\)"\s*:')  # the end of a key of a JSON document
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


_FIELDS = frozenset(_Lane.__struct_fields__)


@cached_by_file(4)
def read_lanes(path: Path) -> VectorMap:
    """All usable polylines of a file; links to absent lanes are dropped.

    Entries that cannot be used are dropped and counted by cause. A SceneError names the file, and
    the first entry if none can be used.
    """
    return lanes_of_document(_read_document(path), path)


def lanes_of_document(document: dict[str, Any], path: Path) -> VectorMap:
    """The polylines of a decoded JSON document; arguments and errors as for `read_lanes`.

    `path` is the name of the document in messages.
    """
    section = "lanes" if "lanes" in document else "features"
    entries = document.get(section)
    if not isinstance(entries, list):
        raise SceneError(f"{path}: lanes: no list 'lanes' and no list 'features' (GeoJSON)")
    polylines = _Polylines()
    dropped = Counter[str]()
    problem = ""  # of the first dropped entry
    for index, entry in enumerate(entries):
        parts = [entry]
        try:
            if section == "features" and isinstance(entry, dict):
                parts = _parts_of_feature(entry)
        except ValueError as error:
            parts = [error]
        for number, part in enumerate(parts):
            where = f"{section}[{index}]"
            if number:
                where += f" part {number}"
            try:
                polylines.add(part, where)
                dropped.update(_unknown_fields(part, section))
            except (ValueError, OverflowError) as error:
                cause = one_line(error)
                dropped[f"{section}: {cause}"] += 1
                problem = problem or f"{where}: {cause}"
    lines = polylines.lines
    if problem and not lines:
        raise SceneError(f"{path}: no usable entry: {problem}")
    report_dropped(path, dropped)
    lengths = [len(line) for line in lines]
    points = np.concatenate([np.zeros((0, 2)), *lines])
    if look_like_degrees(points, np.array([_length(line) for line in lines])):
        raise SceneError(
            f"{path}: coordinates look like degrees, expected metres in the frame of the tracks"
        )
    links = polylines.links
    return build_map(polylines.heads, lengths, points, links + _reverse_links(links))


class _Polylines:
    """The usable polylines of a file."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, int, int]] = []  # id, kind, flags
        self.lines: list[np.ndarray] = []
        self.links: list[_Link] = []
        self._keys: set[tuple[int, int]] = set()  # kind (0 for all lanes) and id

    def add(self, fields: Any, where: str) -> None:
        """Add an entry of `lanes`; ValueError or OverflowError names a field that is unusable."""
        if isinstance(fields, ValueError):
            raise fields
        if isinstance(fields, _WithRepeatedKey):
            raise ValueError(f"{fields.key}: twice in one object")
        lane = msgspec.convert(fields, _Lane)
        kind = _choice("kind", lane.kind or "vehicle", _KINDS)
        is_ring = kind >= PolylineKind.CROSSWALK
        number = _id(f"{where} without an id" if lane.id is None else lane.id)
        key = (int(kind) if is_ring else 0, number)
        if key in self._keys:
            raise ValueError("id: also the id of another entry")
        head = (number, int(kind), _flags(lane))
        line = _line(lane.points, is_ring)
        if not is_ring:
            self.links += _links(lane, number)
        self._keys.add(key)
        self.heads.append(head)
        self.lines.append(line)


def _read_document(path: Path) -> dict[str, Any]:
    """The JSON object of a file."""
    try:
        data = read_file(path, MAX_BYTES).removeprefix(codecs.BOM_UTF8)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise OSError("text in UTF-16: save it as UTF-8")
        document = msgspec.json.decode(data)
        # A key that occurs twice in an object is once in the decoded document.
        if len(_KEY.findall(data)) != len(_KEY.findall(msgspec.json.encode(document))):
            document = json.loads(data, object_pairs_hook=_mark_repeated_keys)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: lanes cannot be read: {one_line(error)}") from error
    if not isinstance(document, dict):
        document = {}
    if isinstance(document, _WithRepeatedKey):
        raise SceneError(f"{path}: {document.key}: twice in one object")
    return document


class _WithRepeatedKey(dict[str, Any]):
    """An object of a JSON document with a key that occurs twice."""

    key: str


def _mark_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    name, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
    if count < 2:
        return dict(pairs)
    marked = _WithRepeatedKey(pairs)
    marked.key = name
    return marked


def _unknown_fields(fields: dict[str, Any], section: str) -> Iterator[str]:
    """Causes for the fields of an entry that have no meaning.

    A property of a GeoJSON feature may have any name, so only misspelt ones count.
    """
    for name in fields.keys() - _FIELDS:
        field = f"{section}: unknown field {one_line(name[:40])!r}"
        similar = get_close_matches(name.lower()[:40], _FIELDS, 1, 0.8)
        if similar:
            yield f"{field}, expected {similar[0]!r}"
        elif section == "lanes":
            yield field


def _parts_of_feature(feature: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of `lanes` that equal a GeoJSON feature; holes of a polygon are ignored.

    The first part of a geometry with several parts has the id of the feature.
    """
    geometry = feature.get("geometry")
    properties = feature.get("properties")
    for part in (feature, geometry, properties):
        if isinstance(part, _WithRepeatedKey):
            raise ValueError(f"{part.key}: twice in one object")
    if not isinstance(geometry, dict):
        raise ValueError("geometry: missing")
    geometry_type = str(geometry.get("type"))
    kind = _choice("geometry", geometry_type, _GEOMETRIES)
    fields = {"kind": kind, "id": feature.get("id")}
    if isinstance(properties, dict):
        for name, value in properties.items():
            if value is not None:
                fields[name] = value
    is_area = kind == "drivable_area"
    if is_area and fields["kind"] not in ("crosswalk", "drivable_area"):
        raise ValueError("kind: a polygon is a crosswalk or a drivable_area")

    coordinates = geometry.get("coordinates")
    parts = [coordinates]
    if geometry_type.startswith("Multi"):
        parts = coordinates if isinstance(coordinates, list) else []
        if not parts:
            raise ValueError("geometry: empty")
    entries = []
    for number, points in enumerate(parts):
        if is_area:
            points = points[0] if isinstance(points, list) and points else []
        entry = fields | {"points": points}
        if number and fields["id"] is not None:
            entry["id"] = f"{fields['id']} part {number}"
        entries.append(entry)
    return entries


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
