"""Routes as arrays: smooth geometry, who matters to whom on which lane, stop lines and speed profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, at_length, curvature, headings, smoothstep, soften
from data_prep.synthetic.junction import CROSSWALK_M, Network
from data_prep.synthetic.routes import Route

UPSTREAM_M = 90  # paths go on straight before their first lane, where vehicles wait for their entrance
DOWNSTREAM_M = 160  # and after their last lane
_BRAKE = 1.6  # comfortable deceleration before bends, m/s^2
_ZIPPER_M = 38.0  # vehicles on merging lanes arrange themselves over this distance
_FAR = 1e9


@dataclass(slots=True)
class Paths:
    """All routes as arrays; R routes, P samples 1 m apart, L lanes, K lanes a route, G junctions a route.

    Attributes:
        xy: [R, P, 2] positions; sample ``UPSTREAM_M`` is at path length 0.
        heading: [R, P] unwrapped, radians.
        bend: [R, P] curvature, 1/m.
        limit: [R, P] speed limit of the road, m/s.
        end: [R] path length of the last lane's end.
        lane, start: [R, K] lane and path length at its beginning (padded with the last lane and infinity).
        origin: [R, L] path length at which a lane begins, for lanes that matter to this route.
        low, high: [R, L] stretch of that lane that matters (empty where the lane does not).
        soft: [R, L] whether it only matters because the lane merges with one of the route.
        gate: [R, G] junction lane entered, -1 for padding.
        stop, enter, clear: [R, G] path length of the stop line, of the junction lane and of having left.
        change: [R, 2] path length at which a lane change begins and ends, infinite without one.
        change_from: [R] lane that a lane change leaves, -1 without one.
        routes: what all this is made of, R of them.
    """

    xy: Array
    heading: Array
    bend: Array
    limit: Array
    end: Array
    lane: Ints
    start: Array
    origin: Array
    low: Array
    high: Array
    soft: Bools
    gate: Ints
    stop: Array
    enter: Array
    clear: Array
    change: Array
    change_from: Ints
    routes: list[Route]


def build_paths(network: Network, routes: list[Route]) -> Paths:
    """Turn ``routes`` into arrays; see ``Paths``."""
    count, lanes = len(routes), len(network.lanes)
    most = max(len(route.lanes) for route in routes)
    end = np.array([r.starts[-1] + network.lanes[r.lanes[-1]].length[-1] for r in routes])
    samples = int(np.ceil(end.max() + UPSTREAM_M + DOWNSTREAM_M)) + 1
    paths = Paths(
        xy=np.zeros((count, samples, 2)), heading=np.zeros((count, samples)), bend=np.zeros((count, samples)),
        limit=np.zeros((count, samples)), end=end,
        lane=np.zeros((count, most), dtype=np.int64), start=np.full((count, most), np.inf),
        origin=np.zeros((count, lanes)), low=np.full((count, lanes), _FAR),
        high=np.full((count, lanes), -_FAR),
        soft=np.zeros((count, lanes), dtype=np.bool_),
        gate=np.full((count, 5), -1, dtype=np.int64), stop=np.full((count, 5), np.inf),
        enter=np.full((count, 5), np.inf), clear=np.full((count, 5), np.inf),
        change=np.full((count, 2), np.inf), change_from=np.full(count, -1, dtype=np.int64), routes=routes,
    )  # fmt: skip
    feeders = _feeders(network)
    for row, route in enumerate(routes):
        _fill_geometry(network, paths, row, route)
        _fill_lanes(network, paths, row, route, feeders)
        _fill_gates(network, paths, row, route)
    paths.xy = soften(paths.xy)
    paths.heading = headings(paths.xy)
    paths.bend = curvature(paths.heading, 1.0)
    return paths


def speed_profiles(paths: Paths, factor: Array, comfort: Array) -> Array:
    """Return the speeds [R, P] in m/s that drivers want along their routes.

    Args:
        paths: all routes.
        factor: [R] speed relative to the speed limit.
        comfort: [R] accepted lateral acceleration in m/s^2.
    """
    in_bends = np.sqrt(comfort[:, None] / np.maximum(np.abs(paths.bend), 1e-4))
    allowed = np.minimum(paths.limit * factor[:, None], in_bends)
    # Brake in time: v(s)^2 <= v(s')^2 + 2 b (s' - s) for every s' ahead.
    travelled = 2.0 * _BRAKE * np.arange(allowed.shape[1])
    reachable = np.minimum.accumulate((allowed**2 + travelled)[:, ::-1], axis=1)[:, ::-1] - travelled
    return np.asarray(np.sqrt(reachable), dtype=np.float64)


def _fill_geometry(network: Network, paths: Paths, row: int, route: Route) -> None:
    parts: list[Array] = []
    where: list[Array] = []
    limits: list[tuple[float, float]] = []
    change = route.change
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        points, along = lane.centre, lane.length + start
        if change is not None and number == change.number:
            continue  # its remainder is blended into the next lane below
        if change is not None and number == change.number + 1:
            before = network.lanes[route.lanes[number - 1]]
            share = smoothstep((along - change.start) / change.length)[:, None]
            points = (1.0 - share) * at_length(before.centre, before.length, lane.length) + share * points
        first = 1 if parts else 0
        parts.append(points[first:])
        where.append(along[first:])
        limits.append((float(along[0]), lane.speed))
    xy, length = np.concatenate(parts), np.concatenate(where)
    head = xy[0] - (xy[1] - xy[0]) / (length[1] - length[0]) * UPSTREAM_M
    beyond = paths.xy.shape[1] - UPSTREAM_M - length[-1]
    tail = xy[-1] + (xy[-1] - xy[-2]) / (length[-1] - length[-2]) * beyond
    xy = np.concatenate((head[None], xy, tail[None]))
    length = np.concatenate(([-UPSTREAM_M], length, [length[-1] + beyond]))
    grid = np.arange(paths.xy.shape[1], dtype=np.float64) - UPSTREAM_M
    paths.xy[row] = at_length(xy, length, grid)
    begins = np.array([a for a, _ in limits])
    paths.limit[row] = np.array([v for _, v in limits])[np.maximum(np.searchsorted(begins, grid, "right") - 1, 0)]


def _feeders(network: Network) -> dict[int, list[int]]:
    """Return, for each road lane that shares its successor with others, those others."""
    rivals: dict[int, list[int]] = {}
    for lane in network.lanes:
        road_feeders = [p for p in lane.predecessors if network.lanes[p].junction < 0 and lane.junction < 0]
        if len(road_feeders) > 1:
            for feeder in road_feeders:
                rivals[feeder] = [other for other in road_feeders if other != feeder]
    return rivals


def _fill_lanes(network: Network, paths: Paths, row: int, route: Route, feeders: dict[int, list[int]]) -> None:
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        paths.lane[row, number:] = index
        paths.start[row, number] = start
        paths.origin[row, index], paths.low[row, index], paths.high[row, index] = start, -_FAR, _FAR
        for rival in feeders.get(index, []):
            other = float(network.lanes[rival].length[-1])
            paths.origin[row, rival] = start + lane.length[-1] - other
            paths.low[row, rival], paths.high[row, rival] = other - _ZIPPER_M, _FAR
            paths.soft[row, rival] = True
        for sibling in np.flatnonzero(network.shared[index] > 0.0):
            paths.origin[row, sibling], paths.low[row, sibling] = start, -_FAR
            # A vehicle still blocks its siblings while its rear has not left the common stretch.
            paths.high[row, sibling] = network.shared[index, sibling] + 2.5
    if route.change is not None:
        left, change = route.lanes[route.change.number], route.change
        paths.change[row] = change.start, change.start + change.length
        paths.change_from[row] = left
        paths.high[row, left] = change.start + change.length - route.starts[change.number] + 3.0
        for behind in network.lanes[route.lanes[change.number + 1]].predecessors:
            # Others arrive on the target lane from behind, which matters when looking for room.
            before = network.lanes[behind]
            paths.origin[row, behind] = route.starts[change.number] - before.length[-1]
            paths.low[row, behind], paths.high[row, behind] = -_FAR, _FAR
        # The lane it moves to begins at the moment of moving, not where the lane itself begins.
        paths.start[row, change.number + 1] = change.start


def _fill_gates(network: Network, paths: Paths, row: int, route: Route) -> None:
    place = 0
    for index, start in zip(route.lanes, route.starts, strict=True):
        lane = network.lanes[index]
        if lane.junction < 0 or place >= paths.gate.shape[1]:
            continue
        before, after = (network.arms[arm].crosswalk for arm in lane.arms)
        paths.gate[row, place] = index
        paths.stop[row, place] = start - (CROSSWALK_M[1] + 0.8 if before else 1.0)
        paths.enter[row, place] = start
        paths.clear[row, place] = start + lane.length[-1] + (CROSSWALK_M[1] if after else 0.5)
        place += 1


def at_path(table: Array, row: Ints, where: Array) -> Array:
    """Return ``table`` [R, P] on paths ``row`` [N] at path lengths ``where`` [N] (m), [N]."""
    from_start = np.clip(where + UPSTREAM_M, 0.0, table.shape[1] - 1.001)
    left = from_start.astype(np.int64)
    share = from_start - left
    return np.asarray((1.0 - share) * table[row, left] + share * table[row, left + 1], dtype=np.float64)
