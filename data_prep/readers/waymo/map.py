"""The map of a record: lanes, road lines, road edges and crosswalks as a `VectorMap`."""

import numpy as np

from data_prep.readers.thinning import thin_polylines
from data_prep.readers.waymo.features import CROSSWALK, LANE, ROAD_EDGE, ROAD_LINE
from data_prep.readers.waymo.record import Record
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.vector_map import NO_MAP, VectorMap

# Points are 0.5 m apart, which would take half of a store.
TOLERANCE_M = 0.05
_EDGE_KINDS = (
    int(EdgeKind.SUCCESSOR),
    int(EdgeKind.PREDECESSOR),
    int(EdgeKind.LEFT),
    int(EdgeKind.RIGHT),
)
_BIKE_LANE = 3  # type of a lane
_NONE = 255
_KINDS = np.full(16, _NONE, np.uint8)  # PolylineKind by kind of feature
_KINDS[LANE] = PolylineKind.LANE_VEHICLE
_KINDS[ROAD_LINE] = PolylineKind.ROAD_LINE
_KINDS[ROAD_EDGE] = PolylineKind.ROAD_EDGE
_KINDS[CROSSWALK] = PolylineKind.CROSSWALK


def vector_map(record: Record) -> VectorMap:
    """The polylines of a record, thinned to `TOLERANCE_M`, and the links between its lanes.

    Features with a single point are left out. Raises SceneError: a point is far off.
    """
    if not np.abs(record.point).max(initial=0.0) <= MAX_ORIGIN_M:  # also NaN
        raise SceneError(f"map_features: a point is NaN or over {MAX_ORIGIN_M:g} m")
    feature_kind = np.array(record.feature_kind, np.int64)
    kind = _KINDS[feature_kind]
    is_bike = (feature_kind == LANE) & (np.array(record.feature_type) == _BIKE_LANE)
    kind[is_bike] = PolylineKind.LANE_BIKE
    count = np.diff(record.feature_offset)
    chosen = ((kind != _NONE) & (count >= 2)).nonzero()[0]
    if not len(chosen):
        return NO_MAP

    point, offset = _points(record, chosen)
    keep = thin_polylines(point, offset, TOLERANCE_M)
    num_kept = np.append(0, keep.cumsum())  # before each point
    thinned = num_kept[offset].astype(np.int32)

    edge, edge_kind = _edges(record, chosen)
    return VectorMap(
        polyline_id=np.array(record.feature_id, np.int64)[chosen],
        polyline_kind=kind[chosen],
        polyline_flags=_flags(record)[chosen],
        polyline_offset=thinned,
        point=point[keep],
        edge=edge,
        edge_kind=edge_kind,
    )


def _points(record: Record, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points float64 [P, 2] and offsets [M + 1] of features; crosswalks become closed rings."""
    start = record.feature_offset[chosen]
    end = record.feature_offset[chosen + 1]
    is_open = (record.point[start, :2] != record.point[end - 1, :2]).any(1)
    is_crosswalk = np.array(record.feature_kind)[chosen] == CROSSWALK
    closes = (is_open & is_crosswalk).astype(np.int64)
    offset = np.zeros(len(chosen) + 1, np.int64)
    (end - start + closes).cumsum(out=offset[1:])
    index = np.arange(offset[-1]) + (start - offset[:-1]).repeat(np.diff(offset))
    is_closing = closes.nonzero()[0]
    index[offset[1:][is_closing] - 1] = start[is_closing]
    return np.ascontiguousarray(record.point[:, :2].take(index, 0)), offset


def _flags(record: Record) -> np.ndarray:
    """LaneFlag uint8 of each feature."""
    flags = np.zeros(len(record.feature_id), np.uint8)
    stop_lanes = set(record.stop_lanes)
    for index, lane in record.lanes.items():
        if lane.interpolating:
            flags[index] |= int(LaneFlag.INTERSECTION)
        if record.feature_id[index] in stop_lanes:
            flags[index] |= int(LaneFlag.TRAFFIC_CONTROL)
    return flags


def _edges(record: Record, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges int32 [2, E] between the chosen features, and their kinds; each edge once."""
    polyline_of = {}  # index by id of a lane
    for polyline, feature in enumerate(chosen.tolist()):
        if feature in record.lanes:
            polyline_of[record.feature_id[feature]] = polyline
    count = len(chosen)
    keys: dict[int, None] = {}  # a number for each edge, in order
    for feature, lane in record.lanes.items():
        source = polyline_of.get(record.feature_id[feature])
        if source is None:
            continue
        links = (lane.exits, lane.entries, lane.left, lane.right)
        for kind, others in zip(_EDGE_KINDS, links, strict=True):
            for other in others:
                target = polyline_of.get(other)
                if target is not None:
                    keys[(source * count + target) * 4 + kind] = None
    key = np.fromiter(keys, np.int64, len(keys))
    pair = np.divmod(key >> 2, max(count, 1))
    return np.array(pair, np.int32), (key & 3).astype(np.uint8)
