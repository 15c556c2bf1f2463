"""Argoverse 2 vector maps, `log_map_archive_*.json` of scenarios and sensor logs, to `VectorMap`.

Centerlines equal the results of `ArgoverseStaticMap.get_lane_segment_centerline` in av2: ten points
midway between the two evenly resampled boundaries. Like av2, the reader ignores the stored
`centerline`: sensor maps lack it, and in forecasting maps it is rounded to a centimetre and differs
by up to 0.4 m in tight turns.
"""

from collections import Counter
from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Raw

from data_prep.readers.raw_file import read_file
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.vector_map import VectorMap, join_map

CENTERLINE_POINTS = 10
_FRACTIONS = np.linspace(0.0, 1.0, CENTERLINE_POINTS)  # of the length of a boundary
MAX_BYTES = 16 << 20  # about a hundred times the usual size
_KINDS = {
    "VEHICLE": int(PolylineKind.LANE_VEHICLE),
    "BUS": int(PolylineKind.LANE_BUS),
    "BIKE": int(PolylineKind.LANE_BIKE),
}
_CROSSWALK = int(PolylineKind.CROSSWALK)
_DRIVABLE_AREA = int(PolylineKind.DRIVABLE_AREA)
# Plain numbers, because arithmetic with members of an enumeration is slow.
_SUCCESSOR = int(EdgeKind.SUCCESSOR)
_PREDECESSOR = int(EdgeKind.PREDECESSOR)
_LEFT = int(EdgeKind.LEFT)
_RIGHT = int(EdgeKind.RIGHT)
_Id = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# A lane has a few neighbors. Decoded lists take far more memory than their text.
_Ids = Annotated[list[_Id], Meta(max_length=100)]


class _Point(msgspec.Struct, gc=False):
    x: float
    y: float
    z: float


_Line = Annotated[list[_Point], Meta(min_length=1)]


class _Lane(msgspec.Struct, gc=False):
    id: _Id
    lane_type: Literal["VEHICLE", "BUS", "BIKE"]
    is_intersection: bool
    left_lane_boundary: _Line
    right_lane_boundary: _Line
    successors: _Ids
    predecessors: _Ids
    left_neighbor_id: _Id | None
    right_neighbor_id: _Id | None


class _Crossing(msgspec.Struct, gc=False):
    id: _Id
    edge1: Annotated[list[_Point], Meta(min_length=2)]
    edge2: Annotated[list[_Point], Meta(min_length=2)]


class _Area(msgspec.Struct, gc=False):
    id: _Id
    area_boundary: Annotated[list[_Point], Meta(min_length=3)]


class _Archive(msgspec.Struct, gc=False):
    lane_segments: dict[str, _Lane]
    pedestrian_crossings: dict[str, _Crossing]
    drivable_areas: dict[str, _Area]


_Entry: TypeAlias = _Lane | _Crossing | _Area
_SECTIONS: dict[type[_Entry], str] = {
    _Lane: "lane_segments",
    _Crossing: "pedestrian_crossings",
    _Area: "drivable_areas",
}
_decoder = msgspec.json.Decoder(_Archive)  # also checks every field
_encoder = msgspec.msgpack.Encoder()
# A point as MessagePack: the mark of a map (1 byte), then for each of x, y and z a key (2 bytes),
# the mark of a float (1 byte) and the float (8 bytes).
_PACKED_POINT = np.dtype(
    {
        "names": ["x", "y", "z"],
        "formats": [">f8", ">f8", ">f8"],
        "offsets": [4, 15, 26],
        "itemsize": 34,
    }
)


def read_map(path: Path) -> VectorMap:
    """Lanes with edges, crosswalks and drivable areas (closed rings) of a map file.

    Entries that cannot be used are dropped and counted by cause. A SceneError names the file, and
    the first entry if no lane can be used.
    """
    try:
        data = read_file(path, MAX_BYTES)
        archive = _decode(data)
        if archive is not None:
            polylines = _Polylines(archive)
            if _are_near(polylines.points):
                return polylines.join()
        return _Polylines(_decode_entries(data, path)).join()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: map cannot be read: {one_line(error)}") from error


class _Polylines:
    """The boundaries of all lanes of a map, then its crosswalks and areas as rings."""

    def __init__(self, archive: _Archive) -> None:
        self._lanes = archive.lane_segments.values()
        self._heads = []  # id, kind and flags of each polyline
        lines: list[list[_Point]] = []  # the boundaries of all lanes, then the rings
        for lane in self._lanes:
            flags = int(LaneFlag.INTERSECTION) if lane.is_intersection else 0
            self._heads.append((lane.id, _KINDS[lane.lane_type], flags))
            lines.append(lane.left_lane_boundary)
            lines.append(lane.right_lane_boundary)
        for crossing in archive.pedestrian_crossings.values():
            self._heads.append((crossing.id, _CROSSWALK, 0))
            lines.append([*crossing.edge1, *crossing.edge2[::-1], crossing.edge1[0]])
        for area in archive.drivable_areas.values():
            self._heads.append((area.id, _DRIVABLE_AREA, 0))
            lines.append([*area.area_boundary, area.area_boundary[0]])
        self._num_points = np.array([len(line) for line in lines], np.int64)
        self.points = _points(list(chain.from_iterable(lines)))

    def join(self) -> VectorMap:
        """The map, with a centerline for each lane."""
        num_lanes = len(self._lanes)
        boundary_points = self._num_points[: 2 * num_lanes]
        ring_points = self._num_points[2 * num_lanes :]
        split = int(boundary_points.sum())  # points of boundaries, then points of rings
        even = resample_boundaries(self.points[:, :split], boundary_points)
        left = even[::2]
        right = even[1::2]
        center = (left + right) / 2
        ring = self.points[:2, split:].T
        lengths = [CENTERLINE_POINTS] * num_lanes + ring_points.tolist()
        point = np.concatenate([center.reshape(-1, 2), ring])
        keys = _link_keys(self._lanes, len(self._heads))
        return join_map(self._heads, lengths, point, keys)


def _link_keys(lanes: Collection[_Lane], num_polylines: int) -> list[int]:
    """The links of lanes as numbers for `join_map`; links to absent lanes are left out.

    The lanes are the first of `num_polylines` polylines.
    """
    column: dict[int | None, int] = {lane.id: 4 * index for index, lane in enumerate(lanes)}
    keys: list[int] = []
    for index, lane in enumerate(lanes):
        row = 4 * num_polylines * index
        for lane_id in lane.successors:
            if lane_id in column:
                keys.append(row + column[lane_id] + _SUCCESSOR)
        for lane_id in lane.predecessors:
            if lane_id in column:
                keys.append(row + column[lane_id] + _PREDECESSOR)
        if lane.left_neighbor_id in column:
            keys.append(row + column[lane.left_neighbor_id] + _LEFT)
        if lane.right_neighbor_id in column:
            keys.append(row + column[lane.right_neighbor_id] + _RIGHT)
    return keys


def _decode(data: bytes) -> _Archive | None:
    """The entries of a map file; None if an entry cannot be used."""
    try:
        archive = _decoder.decode(data)
    except msgspec.ValidationError:
        return None
    for section in (archive.lane_segments, archive.pedestrian_crossings, archive.drivable_areas):
        entries: Collection[_Entry] = section.values()
        if len({entry.id for entry in entries}) < len(entries):
            return None
    return archive


def _lines(entry: _Entry) -> tuple[list[_Point], ...]:
    if isinstance(entry, _Lane):
        return entry.left_lane_boundary, entry.right_lane_boundary
    if isinstance(entry, _Crossing):
        return entry.edge1, entry.edge2
    return (entry.area_boundary,)


def _decode_entries(data: bytes, path: Path) -> _Archive:
    """The usable entries of a JSON document, which are decoded one by one.

    SceneError if there are lanes, and none is usable.
    """
    archive = _Archive({}, {}, {})
    dropped = Counter[str]()
    try:
        document = msgspec.json.decode(data, type=dict[str, Raw])
        lanes = msgspec.json.decode(document.get("lane_segments", b"null"), type=dict[str, Raw])
    except msgspec.ValidationError as error:
        raise SceneError(f"{path}: lane_segments: {one_line(error)}") from error
    problem = _add_entries(archive.lane_segments, lanes, _Lane, dropped)
    if problem and not archive.lane_segments:
        raise SceneError(f"{path}: no usable lane: {problem}")

    others: tuple[tuple[str, dict[str, Any], type[_Entry]], ...] = (
        ("pedestrian_crossings", archive.pedestrian_crossings, _Crossing),
        ("drivable_areas", archive.drivable_areas, _Area),
    )
    for section, entries, kind in others:
        try:
            texts = msgspec.json.decode(document.get(section, b"null"), type=dict[str, Raw])
            _add_entries(entries, texts, kind, dropped)
        except msgspec.ValidationError as error:
            dropped[f"{section}: {one_line(error)}"] += 1
    report_dropped(path, dropped)
    return archive


def _add_entries(
    entries: dict[str, Any], texts: dict[str, Raw], kind: type[_Entry], dropped: Counter[str]
) -> str:
    """Decode the entries of a section and add the usable ones; return the first problem."""
    ids: set[int] = set()
    problem = ""
    for key, text in texts.items():
        try:
            entry = msgspec.json.decode(text, type=kind)
            if entry.id in ids:
                raise ValueError("id: also the id of another entry")
            if not _are_near(_points(list(chain.from_iterable(_lines(entry))))):
                raise ValueError(f"a point over {MAX_ORIGIN_M:g} m from zero")
            ids.add(entry.id)
            entries[key] = entry
        except ValueError as error:  # also of msgspec
            cause = f"{_SECTIONS[kind]}: {one_line(error)}"
            dropped[cause] += 1
            printable_key = repr(key[:40])[1:-1]
            problem = problem or f"{_SECTIONS[kind]}[{printable_key}]: {one_line(error)}"
    return problem


def _are_near(points: np.ndarray) -> bool:
    """Whether all points [3, P] are within the limit of coordinates."""
    return bool(np.abs(points).max(initial=0.0) <= MAX_ORIGIN_M)


def _points(points: list[_Point]) -> np.ndarray:
    """x, y and z, float64 [3, P].

    The detour over MessagePack is several times faster than the conversion of a list.
    """
    packed = _encoder.encode(points)
    header_bytes = len(packed) - _PACKED_POINT.itemsize * len(points)
    fields = np.frombuffer(packed, _PACKED_POINT, len(points), header_bytes)
    point = np.empty((3, len(points)))
    point[0] = fields["x"]
    point[1] = fields["y"]
    point[2] = fields["z"]
    return point


def resample_boundaries(point: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Ten points on each of L lines, evenly spaced by arc length; a line of one point repeats it.

    Args:
        point: float64 [3, P], x, y and z of the concatenated lines. As in av2, the arc length
            includes the slope.
        length: int64 [L], number of points of each line, at least one.

    Returns:
        x and y, float64 [L, 10, 2].
    """
    if not len(length):
        return np.zeros((0, CENTERLINE_POINTS, 2))
    first = length.cumsum() - length
    along = point[:, 1:] - point[:, :-1]
    along *= along
    step = np.zeros(point.shape[1])
    np.sqrt(along[0] + along[1] + along[2], out=step[1:])
    step[first] = 0.0
    arc = step.cumsum()
    begin = arc[first]
    total = arc[first + length - 1] - begin
    # All lines share one axis, so that one interpolation is enough: line i is at 2 i to 2 i + 1,
    # where the fractional part is the relative arc length.
    base = 2.0 * np.arange(len(length))
    arc -= begin.repeat(length)
    arc /= np.maximum(total, 1e-9).repeat(length)
    arc += base.repeat(length)
    has_length = total[:, None] > 0
    sampled = base[:, None] + _FRACTIONS * has_length
    plane = np.empty(point.shape[1], np.complex128)  # x and y share one search
    plane.real = point[0]
    plane.imag = point[1]
    even = np.interp(sampled, arc, plane)
    return even.view(np.float64).reshape(-1, CENTERLINE_POINTS, 2)
