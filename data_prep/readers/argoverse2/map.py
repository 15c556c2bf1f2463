"""Argoverse 2 vector maps, `log_map_archive_*.json` of forecasting scenarios and sensor logs, to `VectorMap`.

Centerlines equal the results of `ArgoverseStaticMap.get_lane_segment_centerline` in av2: ten points midway between the two
evenly resampled boundaries. Like av2, the reader ignores the stored `centerline`: sensor maps lack it, and in forecasting
maps it is rounded to a centimetre and differs by up to 0.4 m in tight turns.
"""

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Raw

from data_prep.readers.raw_file import one_line, read_file
from data_prep.readers.vector_map import VectorMap, join_map
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind

CENTERLINE_POINTS = 10
_SHARES = np.linspace(0.0, 1.0, CENTERLINE_POINTS)
MAX_BYTES = 16 << 20  # about a hundred times the usual size
_KINDS = {
    "VEHICLE": int(PolylineKind.LANE_VEHICLE),
    "BUS": int(PolylineKind.LANE_BUS),
    "BIKE": int(PolylineKind.LANE_BIKE),
}
_CROSSWALK, _DRIVABLE_AREA = int(PolylineKind.CROSSWALK), int(PolylineKind.DRIVABLE_AREA)
_SUCCESSOR, _PREDECESSOR, _LEFT, _RIGHT = map(int, EdgeKind)
_FLAGS = (0, int(LaneFlag.INTERSECTION))  # index: `is_intersection`
_Id = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Ids = Annotated[
    list[_Id], Meta(max_length=100)
]  # lanes have a few; decoded lists take far more memory than the text


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


_decoder = msgspec.json.Decoder(_Archive)  # also checks every field
_encoder = msgspec.msgpack.Encoder()
# A point as MessagePack: the mark of a map, then for each of x, y, z a key of two bytes, the mark of a float and the float.
_PACKED_POINT = np.dtype(
    {"names": ["x", "y", "z"], "formats": [">f8"] * 3, "offsets": [4, 15, 26], "itemsize": 34}
)


def read_map(path: Path) -> VectorMap:
    """Lanes with edges, crosswalks and drivable areas (closed rings) of a map file; a SceneError names file and entry."""
    archive = _decode(path)
    sections = {name: getattr(archive, name).values() for name in _Archive.__struct_fields__}
    for name, entries in sections.items():
        if (distinct := len({entry.id for entry in entries})) < len(entries):
            raise SceneError(f"{path}: {name}: {len(entries)} entries with {distinct} ids")
    lanes, crossings, areas = sections.values()
    heads = [(lane.id, _KINDS[lane.lane_type], _FLAGS[lane.is_intersection]) for lane in lanes]
    heads += [(crossing.id, _CROSSWALK, 0) for crossing in crossings] + [
        (area.id, _DRIVABLE_AREA, 0) for area in areas
    ]
    boundaries = [
        line for lane in lanes for line in (lane.left_lane_boundary, lane.right_lane_boundary)
    ]
    rings = [[*crossing.edge1, *crossing.edge2[::-1], crossing.edge1[0]] for crossing in crossings]
    rings += [[*area.area_boundary, area.area_boundary[0]] for area in areas]
    counts = np.array([len(line) for line in boundaries], np.int64)
    points, split = _points([*chain(*boundaries, *rings)], path), int(counts.sum())
    even = resample(points[:, :split], counts)
    center = (even[::2] + even[1::2]) / 2  # boundaries alternate: left, right
    lengths = [CENTERLINE_POINTS] * len(lanes) + [len(ring) for ring in rings]
    point = np.concatenate([center.reshape(-1, 2), points[:2, split:].T])
    return join_map(heads, lengths, point, _link_keys(lanes, len(heads)))


def _link_keys(lanes: Collection[_Lane], count: int) -> list[int]:
    """The links of lanes, the first ones of `count` polylines, as `join_map` needs them; links to absent lanes are left out."""
    column: dict[int | None, int] = {lane.id: 4 * index for index, lane in enumerate(lanes)}
    find = column.get
    keys: list[int] = []
    for index, lane in enumerate(lanes):
        row = 4 * count * index
        for other in lane.successors:
            if (to := find(other)) is not None:
                keys.append(row + to + _SUCCESSOR)
        for other in lane.predecessors:
            if (to := find(other)) is not None:
                keys.append(row + to + _PREDECESSOR)
        if (to := find(lane.left_neighbor_id)) is not None:
            keys.append(row + to + _LEFT)
        if (to := find(lane.right_neighbor_id)) is not None:
            keys.append(row + to + _RIGHT)
    return keys


def _decode(path: Path) -> _Archive:
    try:
        data = read_file(path, MAX_BYTES)
        try:
            return _decoder.decode(data)
        except msgspec.ValidationError as error:
            raise SceneError(f"{path}: {_locate_error(data, one_line(error))}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{path}: map cannot be read: {one_line(error)}") from error


def _locate_error(data: bytes, message: str) -> str:
    """The first error of a JSON document that is no map, with the key of the invalid entry; else the message."""
    where = "map"
    kinds = {"lane_segments": _Lane, "pedestrian_crossings": _Crossing, "drivable_areas": _Area}
    try:
        sections = msgspec.json.decode(data, type=dict[str, Raw])
        for where, kind in kinds.items():
            for key, entry in msgspec.json.decode(
                sections.get(where, b"null"), type=dict[str, Raw]
            ).items():
                where = f"{where.partition('[')[0]}[{repr(key[:40])[1:-1]}]"
                msgspec.json.decode(entry, type=kind)
    except msgspec.ValidationError as error:
        return f"{where}: {one_line(error)}"
    return message


def _points(points: list[_Point], path: Path) -> np.ndarray:
    """x, y and z [3, P] of the points."""
    packed = _encoder.encode(points)  # several times faster than converting a list
    fields = np.frombuffer(
        packed, _PACKED_POINT, len(points), len(packed) - _PACKED_POINT.itemsize * len(points)
    )
    point = np.empty((3, len(points)))
    point[0], point[1], point[2] = fields["x"], fields["y"], fields["z"]
    if not np.abs(point).max(initial=0.0) <= MAX_ORIGIN_M:
        raise SceneError(f"{path}: a point over {MAX_ORIGIN_M:g} m from zero")
    return point


def resample(point: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Ten points [L, 10, 2], evenly spaced by arc length along each of L lines; a line of one point repeats it.

    Args:
        point: float64 [3, P], x, y and z of the concatenated lines; as in av2, the arc length includes the slope.
        length: int64 [L], points of each, at least one.
    """
    if not len(length):
        return np.zeros((0, CENTERLINE_POINTS, 2))
    start = length.cumsum() - length
    along = point[:, 1:] - point[:, :-1]
    along *= along
    step = np.zeros(point.shape[1])
    np.sqrt(along[0] + along[1] + along[2], out=step[1:])
    step[start] = 0.0
    arc = step.cumsum()
    begin, total = arc[start], arc[start + length - 1]
    total -= begin
    # one common axis for all lines: the relative arc length of line i, 0 to 1, is at 2 i to 2 i + 1
    base = 2.0 * np.arange(len(length))
    arc -= begin.repeat(length)
    arc /= np.maximum(total, 1e-9).repeat(length)
    arc += base.repeat(length)
    sampled = base[:, None] + _SHARES * (total[:, None] > 0)
    plane = np.empty(point.shape[1], np.complex128)  # x and y share one search
    plane.real, plane.imag = point[0], point[1]
    return np.interp(sampled, arc, plane).view(np.float64).reshape(-1, CENTERLINE_POINTS, 2)
