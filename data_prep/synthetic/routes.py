"""Routes over the lane graph, and their geometry, relevant lanes, stop lines and speed profiles as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, at_length, headings, smoothstep, soften
from data_prep.synthetic.network import CROSSWALK_M, Lane, Network

UPSTREAM_M = 90  # paths are straight before their first lane, where vehicles wait to enter the map
DOWNSTREAM_M = 160  # and after their last lane
_BRAKE = 1.6  # comfortable deceleration before bends, m/s^2
_ZIPPER_M = 38.0  # vehicles on merging lanes arrange their order over this distance
_FAR = 1e9


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A lane change from the route's lane ``number``: from ``start`` metres along the path over ``length`` metres."""

    start: float
    length: float
    number: int


@dataclass(frozen=True, slots=True)
class Route:
    """Lanes [K] in driving order, the path length [K] at the start of each, and a lane change if there is one."""

    lanes: list[int]
    starts: list[float]
    change: LaneChange | None = None


def random_route(network: Network, rng: np.random.Generator, first: int, edge_rider: bool = False) -> Route:
    """Walk from lane ``first`` to the end of the network; turns at junctions are equally likely.

    An ``edge_rider``, a cyclist at the edge of the road, avoids left turns if another turn is possible.
    """
    lanes, starts, at = [first], [0.0], 0.0
    while network.lanes[lanes[-1]].successors:
        lane = network.lanes[lanes[-1]]
        options: dict[int, list[int]] = {}
        for index in lane.successors:
            options.setdefault(network.lanes[index].turn, []).append(index)
        turns = sorted(options)
        if edge_rider and len(turns) > 1 and 1 in turns:
            turns.remove(1)
        chosen = options[turns[int(rng.integers(len(turns)))]]
        at += float(lane.length[-1])
        lanes.append(chosen[int(rng.integers(len(chosen)))] if len(chosen) > 1 else chosen[0])
        starts.append(at)
    return Route(lanes, starts)


def with_lane_change(network: Network, rng: np.random.Generator, route: Route, after: float) -> Route | None:
    """Return ``route`` with a random lane change beyond ``after`` metres, None if impossible."""
    options = []
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        if lane.junction >= 0 or lane.kind != "VEHICLE" or lane.merging or start + lane.length[-1] < after + 45.0:
            continue
        for target in (lane.left_neighbor, lane.right_neighbor):
            if target is not None and _is_parallel(lane, network.lanes[target]):
                options.append((number, target))
    if not options:
        return None
    number, target = options[int(rng.integers(len(options)))]
    lane, start = network.lanes[route.lanes[number]], route.starts[number]
    earliest = max(after - start, 2.0)
    room = float(min(lane.length[-1], network.lanes[target].length[-1])) - earliest - 2.0
    length = min(float(rng.uniform(26.0, 45.0)), room)
    if length < 24.0:
        return None
    begin = earliest + float(rng.uniform(0.0, room - length))
    tail = random_route(network, rng, target)
    # Distances along the new lane and along the old one are the same.
    starts = [*route.starts[: number + 1], start, *(start + s for s in tail.starts[1:])]
    return Route(route.lanes[: number + 1] + tail.lanes, starts, LaneChange(start + begin, length, number))


def _is_parallel(lane: Lane, other: Lane) -> bool:
    """Return whether a vehicle can change from ``lane`` to ``other``."""
    along = float(((lane.center[-1] - lane.center[0]) * (other.center[-1] - other.center[0])).sum())
    return along > 0.0 and other.kind == "VEHICLE" and not other.merging


@dataclass(slots=True)
class Paths:
    """All routes as arrays; R routes, P samples 1 m apart, L lanes, K lanes a route, G junctions a route."""

    xy: Array  # [R, P, 2] positions; sample ``UPSTREAM_M`` is at path length 0
    heading: Array  # [R, P] unwrapped, radians
    bend: Array  # [R, P] curvature, 1/m
    limit: Array  # [R, P] speed limit of the road, m/s
    end: Array  # [R] path length of the last lane's end
    lane: Ints  # [R, K] padded with the last lane
    start: Array  # [R, K] path length at the lane's beginning, padded with infinity
    origin: Array  # [R, L] path length at which a lane begins, for lanes that are relevant to this route
    low: Array  # [R, L] begin of the relevant stretch of that lane (empty for irrelevant lanes)
    high: Array  # [R, L] and its end
    soft: Bools  # [R, L] only relevant because the lane merges with one of the route
    gate: Ints  # [R, G] junction lane entered, -1 for padding
    stop: Array  # [R, G] path length of the stop line
    enter: Array  # [R, G] and of the junction lane
    clear: Array  # [R, G] and behind the junction
    change: Array  # [R, 2] path length at which a lane change begins and ends, infinite without one
    change_from: Ints  # [R] lane that a lane change leaves, -1 without one
    routes: list[Route]


def build_paths(network: Network, routes: list[Route]) -> Paths:
    """Turn ``routes`` into arrays; see ``Paths``."""
    count, lanes = len(routes), len(network.lanes)
    max_lanes = max(len(route.lanes) for route in routes)
    end = np.array([r.starts[-1] + network.lanes[r.lanes[-1]].length[-1] for r in routes])
    samples = int(np.ceil(end.max() + UPSTREAM_M + DOWNSTREAM_M)) + 1
    paths = Paths(
        xy=np.zeros((count, samples, 2)), heading=np.zeros((count, samples)), bend=np.zeros((count, samples)),
        limit=np.zeros((count, samples)), end=end,
        lane=np.zeros((count, max_lanes), dtype=np.int64), start=np.full((count, max_lanes), np.inf),
        origin=np.zeros((count, lanes)), low=np.full((count, lanes), _FAR), high=np.full((count, lanes), -_FAR),
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
    paths.bend = np.asarray(np.gradient(paths.heading, axis=-1), dtype=np.float64)
    return paths


def speed_profiles(paths: Paths, factor: Array, comfort: Array) -> Array:
    """Return the desired speeds [R, P] in m/s, for speeds ``factor`` [R] relative to the limit.

    ``comfort`` [R] is the accepted lateral acceleration in m/s^2.
    """
    in_bends = np.sqrt(comfort[:, None] / np.maximum(np.abs(paths.bend), 1e-4))
    allowed = np.minimum(paths.limit * factor[:, None], in_bends)
    # Brake in time: v(s)^2 <= v(s')^2 + 2 b (s' - s) for every s' ahead.
    gained = 2.0 * _BRAKE * np.arange(allowed.shape[1])
    reachable = np.minimum.accumulate((allowed**2 + gained)[:, ::-1], axis=1)[:, ::-1] - gained
    return np.asarray(np.sqrt(reachable), dtype=np.float64)


def at_path(table: Array, row: Ints, where: Array) -> Array:
    """Interpolate ``table`` [R, P] on paths ``row`` [N] at path lengths ``where`` [N] (m); returns [N]."""
    from_start = np.clip(where + UPSTREAM_M, 0.0, table.shape[1] - 1.001)
    left = from_start.astype(np.int64)
    share = from_start - left
    return np.asarray((1.0 - share) * table[row, left] + share * table[row, left + 1], dtype=np.float64)


def _fill_geometry(network: Network, paths: Paths, row: int, route: Route) -> None:
    parts: list[Array] = []
    lengths: list[Array] = []
    limits: list[tuple[float, float]] = []
    change = route.change
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        points, along = lane.center, lane.length + start
        if change is not None and number == change.number:
            continue  # its remainder is blended into the next lane below
        if change is not None and number == change.number + 1:
            before = network.lanes[route.lanes[number - 1]]
            share = smoothstep((along - change.start) / change.length)[:, None]
            points = (1.0 - share) * at_length(before.center, before.length, lane.length) + share * points
        first = 1 if parts else 0
        parts.append(points[first:])
        lengths.append(along[first:])
        limits.append((float(along[0]), lane.speed))
    xy, length = np.concatenate(parts), np.concatenate(lengths)
    head = xy[0] - (xy[1] - xy[0]) / (length[1] - length[0]) * UPSTREAM_M
    beyond = paths.xy.shape[1] - UPSTREAM_M - length[-1]
    tail = xy[-1] + (xy[-1] - xy[-2]) / (length[-1] - length[-2]) * beyond
    xy = np.concatenate((head[None], xy, tail[None]))
    length = np.concatenate(([-UPSTREAM_M], length, [length[-1] + beyond]))
    grid = np.arange(paths.xy.shape[1], dtype=np.float64) - UPSTREAM_M
    paths.xy[row] = at_length(xy, length, grid)
    begins, speeds = np.array(limits).T
    paths.limit[row] = speeds[np.maximum(np.searchsorted(begins, grid, "right") - 1, 0)]


def _feeders(network: Network) -> dict[int, list[int]]:
    """Return, for each road lane that shares its successor with other lanes, the other lanes."""
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
            # Vehicles that arrive on the target lane from behind are relevant when looking for a gap.
            before = network.lanes[behind]
            paths.origin[row, behind] = route.starts[change.number] - before.length[-1]
            paths.low[row, behind], paths.high[row, behind] = -_FAR, _FAR
        # On this route the target lane begins with the lane change.
        paths.start[row, change.number + 1] = change.start


def _fill_gates(network: Network, paths: Paths, row: int, route: Route) -> None:
    gates = [(i, start) for i, start in zip(route.lanes, route.starts, strict=True) if network.lanes[i].junction >= 0]
    for number, (index, start) in enumerate(gates[: paths.gate.shape[1]]):
        lane = network.lanes[index]
        before, after = (network.arms[arm].crosswalk for arm in lane.arms)
        paths.gate[row, number] = index
        paths.stop[row, number] = start - (CROSSWALK_M[1] + 0.8 if before else 1.0)
        paths.enter[row, number] = start
        paths.clear[row, number] = start + lane.length[-1] + (CROSSWALK_M[1] if after else 0.5)
