"""Map compliance of paths: off the road, off all lanes, against the lanes, distance to a lane.

All values are float arrays: 1 for a violation, 0 for none, and NaN where the map gives no answer.
The share of values that are not NaN is the coverage of the map. The center of an agent counts, not
its outline. Definitions, with the constants of this module:

lane_distance  metres from each step to the nearest centerline of any kind of lane; NaN in scenes
               without lanes.
off_lane       the last step is more than 3 m from every centerline, the definition of the metric of
               the same name in `plausibility`; NaN in scenes without lanes.
off_road       a step is more than 0.3 m outside of all drivable areas: Argoverse's drivable area
               compliance (Chang et al. 2019, section 4.2) with a tolerance for noise at curbs and
               gaps between areas. It is known for road users whose last observed position is inside
               of an area: an agent on a sidewalk or in a yard is outside already. Paths that leave
               the map count as off the road; the value of the recorded paths shows how often this
               happens.
wrong_way      over half of the steps with a known answer run against the lanes: a lane is within
               3 m, and the direction of motion deviates by more than 120 degrees from all lanes
               within 3 m, so that crossing traffic is not counted. It is known for road users with
               such a step that move at least 5 m away from their last observed position. Steps
               below 1 m/s have no direction.

Example, for predicted paths [N, K, F, 2] and the recorded ones of the agents `rows` of a scene, all
relative to `scene.origin`:

    scene_map = SceneMap.of(scene)
    predicted = compliance(scene_map, scene, rows, paths)
    future = slice(scene.num_history, None)
    recorded = compliance(
        scene_map, scene, rows, scene.position[rows, None, future], scene.valid[rows, None, future]
    )
    np.nanmean(predicted.off_road), np.isfinite(predicted.off_road).mean()
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trajformer.scenes.scene import AgentKind, PolylineKind, Scene, is_lane

MOVING_M_S = 1.0  # slower agents have no direction that could turn
OFF_LANE_M = 3.0  # between half of a lane and a whole one
AGAINST_RAD = math.radians(120)
AGAINST_SHARE = 0.5
OFF_ROAD_M = 0.3
MIN_TRAVEL_M = 5.0  # noise of standing agents stays within
ROAD_USERS = (  # UNKNOWN: data sets without types, such as Argoverse 1, have vehicles
    AgentKind.UNKNOWN,
    AgentKind.VEHICLE,
    AgentKind.MOTORCYCLIST,
    AgentKind.CYCLIST,
    AgentKind.BUS,
)
_CELL_M = 4.0  # of the grid of lanes
_MAX_M = 1e9  # larger coordinates of a forecast are cut, so that numbers of cells fit into int64
_ROW_M = 1.0  # height of the rows of edges of areas
_PAIRS = 1 << 20  # pairs of points and segments in memory


class Compliance(NamedTuple):
    """Map compliance of paths [...] with F steps, float64; NaN where unknown."""

    lane_distance: np.ndarray  # [..., F], metres
    off_lane: np.ndarray  # [...], 1 or 0
    off_road: np.ndarray  # [...], 1 or 0
    wrong_way: np.ndarray  # [...], 1 or 0


class Segments(NamedTuple):
    """Straight pieces of lines, except pieces of length zero."""

    start: np.ndarray  # float64 [S, 2], metres
    step: np.ndarray  # float64 [S, 2], from the start to the end
    length: np.ndarray  # float64 [S], metres


class AreaEdges(NamedTuple):
    """The edges of closed rings, by rows of the grid that they reach."""

    border: Segments
    start: np.ndarray  # float64 [E, 2], metres
    end: np.ndarray  # float64 [E, 2]
    area: np.ndarray  # int64 [E], index of the ring
    num_areas: int
    first_row: int  # the grid has rows first_row, first_row + 1, ...
    row_offset: np.ndarray  # int64 [R + 1], row r has the edges row_edge[offset[r]:offset[r + 1]]
    row_edge: np.ndarray  # int64


class SceneMap(NamedTuple):
    """Lanes and drivable areas of a scene, arranged for many points.

    `lanes` or `areas` is None if the map has none.
    """

    lanes: Segments | None
    areas: AreaEdges | None

    @classmethod
    def of(cls, scene: Scene) -> SceneMap:
        """The map of a scene; lanes of all kinds."""
        is_area = scene.polyline_kind == int(PolylineKind.DRIVABLE_AREA)
        lanes = _lane_segments(scene, is_lane(scene.polyline_kind))
        areas = _area_edges(scene, np.flatnonzero(is_area))
        return cls(lanes, areas)


def compliance(
    scene_map: SceneMap,
    scene: Scene,
    rows: np.ndarray,
    path: np.ndarray,
    valid: np.ndarray | None = None,
) -> Compliance:
    """Map compliance [N, K] of the paths of N agents, see the text of this module.

    Args:
        scene_map: of the scene.
        scene: gives the types and the last observed positions of the agents.
        rows: int64 [N], the agents.
        path: [N, K, F, 2], metres relative to `scene.origin`. NaN counts as unknown.
        valid: bool [N, K, F] or broadcastable, steps that are known; all steps by default.
    """
    path = np.asarray(path, np.float64)
    known = np.asarray(np.isfinite(path).all(-1))
    if valid is not None:
        known = known & valid
    path = np.where(known[..., None], path.clip(-_MAX_M, _MAX_M), np.nan)
    is_road_user = np.isin(scene.agent_kind[rows, None], ROAD_USERS)  # [N, 1]

    velocity = _velocity(path, scene.period_s)
    distance, against = lane_relation(scene_map.lanes, path, velocity)
    last = distance[..., -1]
    off_lane = np.where(np.isnan(last), np.nan, last > OFF_LANE_M)

    start = last_observed(scene, rows)
    share = _known_mean(against)
    travels = _farthest(path, start) >= MIN_TRAVEL_M
    has_direction = np.isfinite(share) & travels & is_road_user
    wrong_way = np.where(has_direction, share > AGAINST_SHARE, np.nan)

    off_area = area_distance(scene_map.areas, path)
    starts_inside = in_areas(scene_map.areas, start) == 1
    has_answer = is_road_user & starts_inside[:, None] & known.any(-1)
    off_road = np.where(has_answer, (off_area > OFF_ROAD_M).any(-1), np.nan)
    return Compliance(distance, off_lane, off_road, wrong_way)


def last_observed(scene: Scene, rows: np.ndarray) -> np.ndarray:
    """The last observed positions float64 [N, 2] of agents; NaN without any observed step."""
    observed = scene.valid[rows, : scene.num_history]
    steps_back = observed[:, ::-1].argmax(1)
    step = scene.num_history - 1 - steps_back
    position = scene.position[rows, step].astype(np.float64)
    return np.where(observed.any(1, keepdims=True), position, np.nan)


def _farthest(path: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Largest distance [N, K] of paths [N, K, F, 2] from starts [N, 2]; 0 without known steps."""
    offset = path - start[:, None, None]
    distance = np.hypot(offset[..., 0], offset[..., 1])
    return np.where(np.isfinite(distance), distance, 0.0).max(-1, initial=0.0)


def lane_relation(
    lanes: Segments | None, point: np.ndarray, velocity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distance to the nearest centerline, and motion against the lanes, both float64 [...].

    Args:
        lanes: of a map, None without lanes.
        point: [..., 2], metres; NaN is unknown.
        velocity: [..., 2], metres per second; NaN is unknown.

    Returns:
        Metres, NaN for unknown points or without lanes. 1 if all lanes within 3 m deviate by more
        than 120 degrees from the velocity, 0 if one does not, and NaN without a lane within 3 m or
        below 1 m/s. The results are exact; a grid only limits the segments that are compared.
    """
    shape = point.shape[:-1]
    distance = np.full(point[..., 0].size, np.nan)
    against = np.full(distance.size, np.nan)
    flat = point.reshape(-1, 2)
    known = np.flatnonzero(np.isfinite(flat).all(1))
    if lanes is None or not len(known):
        return distance.reshape(shape), against.reshape(shape)

    direction = _directions(velocity.reshape(-1, 2)[known])
    offset, candidate, cell = _near_segments(lanes, flat[known])
    for part, segment, pair_start in _pairs(offset, candidate, cell):
        indices = known[part]
        count = np.diff(pair_start)
        gap = _gap(lanes, np.repeat(flat[indices], count, 0), segment)
        distance[indices] = np.minimum.reduceat(gap, pair_start[:-1])
        unit = lanes.step[segment] / lanes.length[segment, None]
        cosine = (unit * np.repeat(direction[part], count, 0)).sum(-1)
        is_close = gap <= OFF_LANE_M
        is_allowed = is_close & (cosine >= math.cos(AGAINST_RAD))
        any_allowed = np.logical_or.reduceat(is_allowed, pair_start[:-1])
        any_close = np.logical_or.reduceat(is_close, pair_start[:-1])
        has_answer = any_close & np.isfinite(direction[part]).all(-1)
        against[indices] = np.where(has_answer, ~any_allowed, np.nan)
    return distance.reshape(shape), against.reshape(shape)


def in_areas(areas: AreaEdges | None, point: np.ndarray) -> np.ndarray:
    """1 for points [..., 2] inside of an area, 0 for others, float64 [...].

    NaN for points that are NaN and for maps without areas. A ring is a polygon by the even-odd
    rule; a point is inside if any ring contains it.
    """
    result = np.full(point[..., 0].size, np.nan)
    flat = np.asarray(point, np.float64).reshape(-1, 2)
    known = np.flatnonzero(np.isfinite(flat).all(1))
    if areas is None or not len(known):
        return result.reshape(point.shape[:-1])

    # Points above or below all areas are in the empty rows at the ends.
    num_rows = len(areas.row_offset) - 1
    row = np.floor(flat[known, 1] / _ROW_M) - areas.first_row
    row = np.clip(row, 0, num_rows - 1).astype(np.int64)
    result[known] = 0.0
    for part, edge, pair_start in _pairs(areas.row_offset, areas.row_edge, row):
        count = np.diff(pair_start)
        pair_point = np.repeat(np.arange(len(part)), count)
        x, y = flat[known[part]][pair_point].T
        start_x, start_y = areas.start[edge].T
        end_x, end_y = areas.end[edge].T
        # edges that a ray in the direction of +x crosses
        spans = (start_y <= y) != (end_y <= y)
        rise = np.where(spans, end_y - start_y, 1.0)
        crossing_x = start_x + (y - start_y) / rise * (end_x - start_x)
        crosses = spans & (x < crossing_x)
        key = pair_point[crosses] * areas.num_areas + areas.area[edge[crosses]]
        crossings = np.bincount(key, minlength=len(part) * areas.num_areas)
        is_odd = crossings.reshape(len(part), -1) % 2 == 1
        result[known[part]] = is_odd.any(1)
    return result.reshape(point.shape[:-1])


def area_distance(areas: AreaEdges | None, point: np.ndarray) -> np.ndarray:
    """Distance float64 [...] in metres from points [..., 2] to the nearest area, 0 inside.

    NaN for points that are NaN and for maps without areas.
    """
    distance = in_areas(areas, point) - 1.0
    outside = distance == -1.0
    if areas is not None and outside.any():
        points = np.asarray(point, np.float64)[outside]
        distance[outside] = _nearest_gap(areas.border, points)
    return distance


def _nearest_gap(segments: Segments, point: np.ndarray) -> np.ndarray:
    """Distances float64 [n] of points [n, 2] from the nearest segment."""
    distance = np.zeros(len(point))
    offset, candidate, cell = _near_segments(segments, point)
    for part, segment, pair_start in _pairs(offset, candidate, cell):
        gap = _gap(segments, np.repeat(point[part], np.diff(pair_start), 0), segment)
        distance[part] = np.minimum.reduceat(gap, pair_start[:-1])
    return distance


def _velocity(path: np.ndarray, period_s: float) -> np.ndarray:
    """Mean velocities [..., F, 2] of paths from half a second before to half a second after.

    Differences of single steps are noise in recordings. The windows are cut at both ends of the
    path. NaN if one of the two ends of the window is unknown.
    """
    num_steps = path.shape[-2]
    half = max(round(0.5 / period_s), 1)
    step = np.arange(num_steps)
    first = np.maximum(step - half, 0)
    last = np.minimum(step + half, num_steps - 1)
    duration_s = np.maximum(last - first, 1) * period_s
    velocity = (path[..., last, :] - path[..., first, :]) / duration_s[:, None]
    return np.where((last > first)[:, None], velocity, np.nan)


def _directions(velocity: np.ndarray) -> np.ndarray:
    """Unit vectors [n, 2] of velocities; NaN below 1 m/s."""
    speed = np.hypot(velocity[:, 0], velocity[:, 1])
    moves = speed >= MOVING_M_S
    return velocity / np.where(moves, speed, np.nan)[:, None]


def _known_mean(value: np.ndarray) -> np.ndarray:
    """Means over the last axis of the values that are not NaN; NaN if there are none."""
    known = np.isfinite(value)
    count = known.sum(-1)
    total = np.where(known, value, 0.0).sum(-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _lane_segments(scene: Scene, is_lane: np.ndarray) -> Segments | None:
    """The pieces of the polylines with `is_lane` bool [M]; None without any."""
    point = scene.point.astype(np.float64)
    polyline = np.repeat(np.arange(scene.num_polylines), np.diff(scene.polyline_offset))
    in_lane = (polyline[1:] == polyline[:-1]) & is_lane[polyline[:-1]]
    lanes = _segments(point[:-1][in_lane], np.diff(point, axis=0)[in_lane])
    return lanes if len(lanes.length) else None


def _segments(start: np.ndarray, step: np.ndarray) -> Segments:
    """Segments with starts and steps [n, 2], except segments of length zero."""
    length = np.hypot(step[:, 0], step[:, 1])
    kept = length > 0
    return Segments(start[kept], step[kept], length[kept])


def _area_edges(scene: Scene, polylines: np.ndarray) -> AreaEdges | None:
    """The edges of the rings `polylines`, arranged by rows; None without any."""
    if not len(polylines):
        return None
    starts = [scene.polyline(index) for index in polylines]
    ends = [np.roll(ring, -1, axis=0) for ring in starts]  # closes rings that are not closed
    start = np.concatenate(starts).astype(np.float64)
    end = np.concatenate(ends).astype(np.float64)
    area = np.repeat(np.arange(len(polylines)), [len(ring) for ring in starts])
    first = np.floor(np.minimum(start[:, 1], end[:, 1]) / _ROW_M).astype(np.int64)
    last = np.floor(np.maximum(start[:, 1], end[:, 1]) / _ROW_M).astype(np.int64)

    # every edge once in each row that it reaches, with an empty row at both ends
    first_row = int(first.min()) - 1
    num_rows = int(last.max()) - first_row + 2
    count = last - first + 1
    edge = np.repeat(np.arange(len(start)), count)
    position = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    row = first[edge] + position - first_row
    order = row.argsort(kind="stable")
    offset = np.searchsorted(row[order], np.arange(num_rows + 1))
    border = _segments(start, end - start)
    if not len(border.length):
        return None  # rings of a single point
    return AreaEdges(border, start, end, area, len(polylines), first_row, offset, edge[order])


def _gap(segments: Segments, point: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Distances [n] of points [n, 2] from segments int64 [n]."""
    step = segments.step[segment]
    offset = point - segments.start[segment]
    along = (offset[..., 0] * step[..., 0] + offset[..., 1] * step[..., 1]) / (
        segments.length[segment] ** 2
    )
    nearest = offset - along.clip(0.0, 1.0)[..., None] * step
    return np.hypot(nearest[..., 0], nearest[..., 1])


def _near_segments(
    segments: Segments, point: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The segments to compare with points [n, 2], by cells of a grid.

    They include the nearest segment of every point in the cell, and all segments within 3 m.

    Returns:
        offset int64 [C + 1] and segment int64: cell c has segment[offset[c]:offset[c + 1]], at
        least one; and the cell int64 [n] of each point.
    """
    index = np.floor(point / _CELL_M).astype(np.int64)
    corner = index.min(0)
    height = int(np.ptp(index[:, 1])) + 1
    key = (index[:, 0] - corner[0]) * height + index[:, 1] - corner[1]
    keys, cell = np.unique(key, return_inverse=True)
    center = np.stack([keys // height, keys % height], -1) + corner + 0.5
    center = center * _CELL_M

    # If the center is d from its nearest segment, a point in the cell is at most d + r from it, and
    # the nearest segment of this point at most d + 2 r from the center.
    r = _CELL_M / math.sqrt(2)
    num_segments = len(segments.length)
    cells_at_once = max(_PAIRS // num_segments, 1)
    counts = []
    near = []
    for begin in range(0, len(center), cells_at_once):
        centers = center[begin : begin + cells_at_once, None]
        gap = _gap(segments, centers, np.arange(num_segments))
        reach = np.maximum(gap.min(1) + 2 * r, OFF_LANE_M + r) * (1 + 1e-9)
        is_near = gap <= reach[:, None]
        counts.append(is_near.sum(1))
        near.append(is_near.nonzero()[1])
    offset = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return offset, np.concatenate(near), cell


def _pairs(
    offset: np.ndarray, item: np.ndarray, group: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pairs of points with the items of their groups, a limited number at a time.

    Group g has the items item[offset[g]:offset[g + 1]]; `group` int64 [n] is the group of each
    point. Points in groups without items are left out.

    Yields:
        part int64 [p], some points; the items int64 of all their pairs; and start int64 [p + 1]:
        point part[i] has the pairs start[i] to start[i + 1].
    """
    count = np.diff(offset)[group]
    points = np.flatnonzero(count)
    total = np.concatenate([[0], np.cumsum(count[points])])
    begin = 0
    while begin < len(points):
        stop = int(np.searchsorted(total, total[begin] + _PAIRS))
        stop = max(stop, begin + 1)
        part = points[begin:stop]
        start = total[begin : begin + len(part) + 1] - total[begin]
        shift = np.repeat(offset[group[part]] - start[:-1], np.diff(start))
        yield part, item[np.arange(start[-1]) + shift], start
        begin = stop
