"""The map of a record: lanes, road lines, road edges and crosswalks as a `VectorMap`."""

import numpy as np

from data_prep.readers.thinning import thin_polylines
from data_prep.readers.waymo.features import (
    CROSSWALK,
    ENTRIES,
    EXITS,
    LANE,
    LEFT,
    RIGHT,
    ROAD_EDGE,
    ROAD_LINE,
)
from data_prep.readers.waymo.record import Record
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.vector_map import NO_MAP, VectorMap

# Points are 0.5 m apart, which would take half of a store.
TOLERANCE_M = 0.05
# In the order of a lane's edges, with the fields of lanes.
_LINKS = {
    EXITS: EdgeKind.SUCCESSOR,
    ENTRIES: EdgeKind.PREDECESSOR,
    LEFT: EdgeKind.LEFT,
    RIGHT: EdgeKind.RIGHT,
}
_EDGE_KINDS = np.array(list(_LINKS.values()), np.uint8)
_RANKS = np.zeros(RIGHT + 1, np.int64)  # by field
_RANKS[list(_LINKS)] = np.arange(len(_LINKS))
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
    kind = _KINDS[record.feature_kind]
    is_bike = (record.feature_kind == LANE) & (record.feature_type == _BIKE_LANE)
    kind[is_bike] = PolylineKind.LANE_BIKE
    count = np.diff(record.feature_offset)
    chosen = ((kind != _NONE) & (count >= 2)).nonzero()[0]
    if not len(chosen):
        return NO_MAP

    index, offset = _points(record, chosen)
    x = record.point[:, 0].take(index)
    y = record.point[:, 1].take(index)
    kept = thin_polylines(x, y, offset, TOLERANCE_M)
    thinned = kept.searchsorted(offset).astype(np.int32)

    edge, edge_kind = _edges(record, chosen)
    return VectorMap(
        polyline_id=record.feature_id[chosen],
        polyline_kind=kind[chosen],
        polyline_flags=_flags(record)[chosen],
        polyline_offset=thinned,
        point=np.stack([x.take(kept), y.take(kept)], 1),
        edge=edge,
        edge_kind=edge_kind,
    )


def _points(record: Record, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices [P] of the points of features and offsets [M + 1]; crosswalks become closed rings."""
    start = record.feature_offset[chosen]
    end = record.feature_offset[chosen + 1]
    is_open = (record.point[start, :2] != record.point[end - 1, :2]).any(1)
    is_crosswalk = record.feature_kind[chosen] == CROSSWALK
    closes = (is_open & is_crosswalk).astype(np.int64)
    offset = np.zeros(len(chosen) + 1, np.int64)
    (end - start + closes).cumsum(out=offset[1:])
    index = np.arange(offset[-1]) + (start - offset[:-1]).repeat(np.diff(offset))
    is_closing = closes.nonzero()[0]
    index[offset[1:][is_closing] - 1] = start[is_closing]
    return index, offset


def _flags(record: Record) -> np.ndarray:
    """LaneFlag uint8 of each feature."""
    is_lane = record.feature_kind == LANE
    flags = np.where(record.interpolating, np.uint8(LaneFlag.INTERSECTION), np.uint8(0))
    has_stop_sign = is_lane & np.isin(record.feature_id, record.stop_lanes)
    flags[has_stop_sign] |= np.uint8(LaneFlag.TRAFFIC_CONTROL)
    return flags


def _edges(record: Record, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges int32 [2, E] between the chosen features, and their kinds; each edge once.

    They are sorted by lane, then by kind.
    """
    lane = (record.feature_kind[chosen] == LANE).nonzero()[0]
    lane_id = record.feature_id[chosen[lane]]
    if not len(lane):
        return np.zeros((2, 0), np.int32), np.zeros(0, np.uint8)
    order = lane_id.argsort(kind="stable")
    sorted_id = lane_id[order]

    def polyline_of(ids: np.ndarray) -> np.ndarray:
        """Index of the lanes with these ids, -1 if missing; the last one of equal lanes."""
        index = np.maximum(sorted_id.searchsorted(ids, side="right") - 1, 0)
        return np.where(sorted_id[index] == ids, lane[order[index]], -1)

    links = record.links
    source = polyline_of(record.feature_id[links.feature])
    target = polyline_of(links.lane_id)
    rank = _RANKS[links.kind]
    row = np.lexsort([rank, links.feature])
    row = row[(source[row] >= 0) & (target[row] >= 0)]
    key = (source[row] * len(chosen) + target[row]) * len(_EDGE_KINDS) + rank[row]
    _, first = np.unique(key, return_index=True)
    row = row[np.sort(first)]
    return np.stack([source[row], target[row]]).astype(np.int32), _EDGE_KINDS[rank[row]]
