"""Routes over the lane graph, and their geometry, relevant lanes, stop lines and speed profiles as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Ints, at_length, headings, smoothstep, soften
from data_prep.synthetic.network import CROSSWALK_M, Network

UPSTREAM_M = 90  # paths are straight before their first lane, where vehicles wait to enter the map
_DOWNSTREAM_M = 160  # and after their last lane
_BRAKE = 1.6  # comfortable deceleration before bends, m/s^2
_ZIPPER_M = 38.0  # vehicles on merging lanes arrange their order over this distance
_FAR = 1e9


@dataclass(frozen=True)
class Route:
    """Lanes in driving order, with at most one lane change."""

    lanes: list[int]  # [K]
    starts: list[float]  # [K] path length at the start of each lane
    change: int = -1  # number of the lane that a lane change leaves, -1 without one
    change_at: float = np.inf  # path length at which it begins
    change_m: float = 0.0  # and the distance that it takes


def random_route(network: Network, rng: np.random.Generator, first: int, edge_rider: bool = False) -> Route:
    """Walk from lane ``first`` to the end of the network; turns at junctions are equally likely.

    An ``edge_rider``, a cyclist at the edge of the road, avoids left turns if another turn is possible.
    """
    lanes, starts = [first], [0.0]
    while successors := network.lanes[lanes[-1]].successors:
        turns = sorted({network.lanes[index].turn for index in successors})
        if edge_rider and len(turns) > 1 and 1 in turns:
            turns.remove(1)
        turn = turns[rng.integers(len(turns))]
        options = [index for index in successors if network.lanes[index].turn == turn]
        starts.append(starts[-1] + network.lanes[lanes[-1]].length)
        lanes.append(options[rng.integers(len(options))])
    return Route(lanes, starts)


def with_lane_change(network: Network, rng: np.random.Generator, route: Route, after: float) -> Route | None:
    """Return ``route`` with a random lane change beyond ``after`` metres, None if impossible."""
    options = []
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        if lane.arms or lane.kind != "VEHICLE" or lane.merging or start + lane.length < after + 45.0:
            continue
        for target in (network.lanes[i] for i in (lane.left_neighbor, lane.right_neighbor) if i is not None):
            along = float(((lane.center[-1] - lane.center[0]) * (target.center[-1] - target.center[0])).sum())
            if along > 0.0 and target.kind == "VEHICLE" and not target.merging:
                options.append((number, start, min(lane.length, target.length), target.index))
    if not options:
        return None
    number, start, length, index = options[rng.integers(len(options))]
    earliest = max(after - start, 2.0)
    room = length - earliest - 2.0
    change_m = min(rng.uniform(26.0, 45.0), room)
    if change_m < 24.0:
        return None
    begin = earliest + rng.uniform(0.0, room - change_m)
    tail = random_route(network, rng, index)
    # Distances along the new lane and along the old one are the same.
    starts = [*route.starts[: number + 1], start, *(start + s for s in tail.starts[1:])]
    return Route(route.lanes[: number + 1] + tail.lanes, starts, number, start + begin, change_m)


@dataclass(frozen=True)
class Paths:
    """All routes as arrays; R routes, P samples 1 m apart, L lanes, K lanes a route, G junctions a route."""

    routes: list[Route]
    factor: Array  # [R] speed of the path's driver relative to the limit
    comfort: Array  # [R] lateral acceleration that the driver accepts, m/s^2
    xy: Array  # [R, P, 2] positions; sample ``UPSTREAM_M`` is at path length 0
    heading: Array  # [R, P] unwrapped, radians
    profile: Array  # [R, P] desired speed, m/s
    end: Array  # [R] path length of the last lane's end
    lane: Ints  # [R, K]
    start: Array  # [R, K] path length at the lane's beginning, padded with infinity
    # [4, R, L] for lanes that are relevant to a route: path length at which the lane begins, begin and end of its
    # relevant stretch (empty for irrelevant lanes), 1 if it is only relevant because it merges with a lane of the route.
    relevant: Array
    gate: Ints  # [R, G] junction lane entered, -1 for padding
    stop: Array  # [R, G] path length of the stop line
    enter: Array  # [R, G] and of the junction lane
    clear: Array  # [R, G] and behind the junction
    change: Array  # [R, 2] path length at which a lane change begins and ends, infinite without one
    change_from: Ints  # [R] lane that a lane change leaves, -1 without one


def build_paths(network: Network, routes: list[Route], factor: Array, comfort: Array) -> Paths:
    """Turn ``routes`` into arrays; see ``Paths``."""
    end = np.array([route.starts[-1] + network.lanes[route.lanes[-1]].length for route in routes])
    grid = np.arange(int(np.ceil(end.max() + UPSTREAM_M + _DOWNSTREAM_M)) + 1, dtype=np.float64) - UPSTREAM_M
    xy, limit = (np.stack(part) for part in zip(*(_geometry(network, route, grid) for route in routes), strict=True))
    xy = soften(xy)
    heading = headings(xy)
    lane = np.zeros((len(routes), max(len(route.lanes) for route in routes)), dtype=np.int64)
    start = np.full(lane.shape, np.inf)
    relevant = np.zeros((4, len(routes), len(network.lanes)))
    relevant[1:3] = np.array((_FAR, -_FAR))[:, None, None]
    for row, route in enumerate(routes):
        lane[row, : len(route.lanes)], start[row, : len(route.lanes)] = route.lanes, route.starts
        if route.change >= 0:  # the target lane begins with the lane change
            start[row, route.change + 1] = route.change_at
        _find_relevant(network, route, relevant[:, row])
    padding = [(-1, np.inf, np.inf, np.inf)] * 3
    gates = np.array([[*_gates(network, route), *padding][:3] for route in routes])  # a route has two at most
    return Paths(
        routes, factor, comfort, xy, heading, _speed_profile(heading, limit * factor[:, None], comfort), end,
        lane, start, relevant, gates[..., 0].astype(np.int64), gates[..., 1], gates[..., 2], gates[..., 3],
        change=np.array([(route.change_at, route.change_at + route.change_m) for route in routes]),
        change_from=np.array([-1 if route.change < 0 else route.lanes[route.change] for route in routes]),
    )  # fmt: skip


def at_sample(table: Array, row: Ints, where: Array) -> Array:
    """Interpolate ``table`` [R, P, ...] in rows ``row`` [N] at sample numbers ``where`` [N]; returns [N, ...]."""
    where = np.clip(where, 0.0, table.shape[1] - 1.001)
    left = where.astype(np.int64)
    share = (where - left)[(...,) + (None,) * (table.ndim - 2)]
    return (1.0 - share) * table[row, left] + share * table[row, left + 1]


def _speed_profile(heading: Array, limit: Array, comfort: Array) -> Array:
    """Return the desired speeds [R, P] in m/s on paths with directions ``heading`` [R, P] and limits [R, P]."""
    bend = np.gradient(heading, axis=-1)  # 1/m
    allowed = np.minimum(limit, np.sqrt(comfort[:, None] / np.maximum(np.abs(bend), 1e-4)))
    # Brake in time: v(s)^2 <= v(s')^2 + 2 b (s' - s) for every s' ahead.
    gained = 2.0 * _BRAKE * np.arange(allowed.shape[1])
    return np.sqrt(np.minimum.accumulate((allowed**2 + gained)[:, ::-1], axis=1)[:, ::-1] - gained)


def _geometry(network: Network, route: Route, grid: Array) -> tuple[Array, Array]:
    """Return positions [P, 2] and speed limit [P] at the path lengths ``grid`` [P]."""
    parts: list[Array] = []
    lengths: list[Array] = []
    limits: list[tuple[float, float]] = []
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        points, along = lane.center, lane.along + start
        if number == route.change:
            continue  # its remainder is blended into the next lane below
        if route.change >= 0 and number == route.change + 1:
            before = network.lanes[route.lanes[route.change]]
            share = smoothstep((along - route.change_at) / route.change_m)[:, None]
            points = (1.0 - share) * at_length(before.center, before.along, lane.along) + share * points
        first = 1 if parts else 0
        parts.append(points[first:])
        lengths.append(along[first:])
        limits.append((float(along[0]), lane.speed))
    xy, length = np.concatenate(parts), np.concatenate(lengths)
    head = xy[0] - (xy[1] - xy[0]) / (length[1] - length[0]) * UPSTREAM_M
    beyond = len(grid) - UPSTREAM_M - length[-1]
    tail = xy[-1] + (xy[-1] - xy[-2]) / (length[-1] - length[-2]) * beyond
    length = np.concatenate(([-UPSTREAM_M], length, [length[-1] + beyond]))
    begins, speeds = np.array(limits).T
    limit = speeds[np.maximum(np.searchsorted(begins, grid, "right") - 1, 0)]
    return at_length(np.concatenate((head[None], xy, tail[None])), length, grid), limit


def _find_relevant(network: Network, route: Route, relevant: Array) -> None:
    """Fill one route's part [4, L] of ``Paths.relevant``."""
    for index, start in zip(route.lanes, route.starts, strict=True):
        lane = network.lanes[index]
        relevant[:3, index] = start, -_FAR, _FAR
        following = [network.lanes[i] for i in lane.successors if not lane.arms and not network.lanes[i].arms]
        for rival in (network.lanes[i] for after in following for i in after.predecessors if i != index):
            begin = start + lane.length - rival.length
            relevant[:, rival.index] = begin, rival.length - _ZIPPER_M, _FAR, 1.0
        for sibling in np.flatnonzero(network.shared[index] > 0.0):
            # A vehicle still blocks its siblings while its rear has not left the common stretch.
            relevant[:3, sibling] = start, -_FAR, network.shared[index, sibling] + 2.5
    if route.change >= 0:
        start = route.starts[route.change]
        relevant[2, route.lanes[route.change]] = route.change_at + route.change_m - start + 3.0
        for behind in network.lanes[route.lanes[route.change + 1]].predecessors:
            # Vehicles that arrive on the target lane from behind are relevant when looking for a gap.
            relevant[:3, behind] = start - network.lanes[behind].length, -_FAR, _FAR


def _gates(network: Network, route: Route) -> Iterator[tuple[float, float, float, float]]:
    """Yield ``gate``, ``stop``, ``enter`` and ``clear`` of each junction on a route."""
    for lane, start in ((network.lanes[i], start) for i, start in zip(route.lanes, route.starts, strict=True)):
        if lane.arms:
            before, after = (arm.crosswalk for arm in lane.arms)
            stop = start - (CROSSWALK_M[1] + 0.8 if before else 1.0)
            yield lane.index, stop, start, start + lane.length + (CROSSWALK_M[1] if after else 0.5)
