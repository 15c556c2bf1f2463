"""Paths: routes over the lane graph as arrays of equal size."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, Ints, at_length, headings, smooth, smoothstep
from data_prep.synthetic.network import CROSSWALK_M, Lane, Network
from data_prep.synthetic.routes import Route

UPSTREAM_M = 90  # paths are straight before their first lane, where vehicles wait to enter the map
_DOWNSTREAM_M = 160  # and after their last lane
_MAX_GATES = 3  # a route has two junctions at most, one entry is padding
_BRAKE = 1.6  # comfortable deceleration before bends, m/s^2
_ZIPPER_M = 38.0  # vehicles on merging lanes arrange their order over this distance
_FAR = 1e9


class Paths(NamedTuple):
    """All routes as arrays.

    R routes, P samples 1 m apart, L lanes of the network, K lanes a route, G junctions a route.
    """

    routes: list[Route]
    factor: Array  # [R] speed of the path's driver relative to the limit
    comfort: Array  # [R] lateral acceleration that the driver accepts, m/s^2
    xy: Array  # [R, P, 2] positions; sample ``UPSTREAM_M`` is at path length 0
    heading: Array  # [R, P] unwrapped, radians
    profile: Array  # [R, P] desired speed, m/s
    end: Array  # [R] path length of the last lane's end
    lane: Ints  # [R, K]
    start: Array  # [R, K] path length at the lane's beginning, padded with infinity
    # [4, R, L] for lanes that are relevant to a route: path length at which the lane begins, begin
    # and end of its relevant stretch (empty for irrelevant lanes), 1 if it is only relevant because
    # it merges with a lane of the route.
    relevant: Array
    gate: Ints  # [R, G] junction lane entered, -1 for padding
    stop: Array  # [R, G] path length of the stop line
    enter: Array  # [R, G] and of the junction lane
    clear: Array  # [R, G] and behind the junction
    change: Array  # [R, 2] path length at which a lane change begins and ends, infinite without one
    change_from: Ints  # [R] lane that a lane change leaves, -1 without one


class _Gate(NamedTuple):
    """A junction on a route, see the fields of `Paths`."""

    gate: float
    stop: float
    enter: float
    clear: float


_NO_GATE = _Gate(-1, np.inf, np.inf, np.inf)


def build_paths(network: Network, routes: list[Route], factor: Array, comfort: Array) -> Paths:
    """Turn ``routes`` into arrays; see ``Paths``."""
    last_starts = np.array([route.starts[-1] for route in routes])
    last_lengths = np.array([network.lanes[route.lanes[-1]].length for route in routes])
    end = last_starts + last_lengths
    num_samples = int(np.ceil(end.max() + UPSTREAM_M + _DOWNSTREAM_M)) + 1
    grid = np.arange(num_samples, dtype=np.float64) - UPSTREAM_M
    positions = []
    limits = []
    for route in routes:
        xy, limit = _geometry(network, route, grid)
        positions.append(xy)
        limits.append(limit)
    xy = smooth(np.stack(positions))
    heading = headings(xy)
    desired_limit = np.stack(limits) * factor[:, None]

    lane, start = _lanes_and_starts(routes)
    relevant = np.zeros((4, len(routes), len(network.lanes)))
    relevant[1] = _FAR
    relevant[2] = -_FAR
    change = np.full((len(routes), 2), np.inf)
    change_from = np.full(len(routes), -1, dtype=np.int64)
    gates = []
    for row, route in enumerate(routes):
        _find_relevant(network, route, relevant[:, row])
        if route.change >= 0:
            change[row] = route.change_at, route.change_at + route.change_m
            change_from[row] = route.lanes[route.change]
        padded = [*_gates(network, route), _NO_GATE, _NO_GATE, _NO_GATE]
        gates.append(padded[:_MAX_GATES])
    gate, stop, enter, clear = np.moveaxis(np.array(gates), -1, 0)
    return Paths(
        routes=routes,
        factor=factor,
        comfort=comfort,
        xy=xy,
        heading=heading,
        profile=_speed_profile(heading, desired_limit, comfort),
        end=end,
        lane=lane,
        start=start,
        relevant=relevant,
        gate=gate.astype(np.int64),
        stop=stop,
        enter=enter,
        clear=clear,
        change=change,
        change_from=change_from,
    )


def at_sample(table: Array, row: Ints, index: Array) -> Array:
    """Interpolate ``table`` [R, P, ...] in rows ``row`` [N] at real ``index`` [N].

    Both may have further axes of the same shape. Returns [N, ...].
    """
    index = np.clip(index, 0.0, table.shape[1] - 1.001)
    left = index.astype(np.int64)
    weight = index - left
    weight = weight.reshape(weight.shape + (1,) * (table.ndim - 2))
    return (1.0 - weight) * table[row, left] + weight * table[row, left + 1]


def _lanes_and_starts(routes: list[Route]) -> tuple[Ints, Array]:
    """Return ``Paths.lane`` and ``Paths.start``."""
    max_lanes = max(len(route.lanes) for route in routes)
    lane = np.zeros((len(routes), max_lanes), dtype=np.int64)
    start = np.full(lane.shape, np.inf)
    for row, route in enumerate(routes):
        count = len(route.lanes)
        lane[row, :count] = route.lanes
        start[row, :count] = route.starts
        if route.change >= 0:  # the target lane begins with the lane change
            start[row, route.change + 1] = route.change_at
    return lane, start


def _speed_profile(heading: Array, limit: Array, comfort: Array) -> Array:
    """Return the desired speeds [R, P] in m/s.

    ``heading`` [R, P] and ``limit`` [R, P] are directions and speed limits along the paths.
    """
    curvature = np.gradient(heading, axis=-1)  # 1/m
    allowed_in_bend = np.sqrt(comfort[:, None] / np.maximum(np.abs(curvature), 1e-4))
    allowed = np.minimum(limit, allowed_in_bend)
    # Brake in time: v(s)^2 <= v(s')^2 + 2 b (s' - s) for every s' ahead.
    gained = 2.0 * _BRAKE * np.arange(allowed.shape[1])
    backward = (allowed**2 + gained)[:, ::-1]
    lowest_ahead = np.minimum.accumulate(backward, axis=1)[:, ::-1]
    return np.sqrt(lowest_ahead - gained)


def _geometry(network: Network, route: Route, grid: Array) -> tuple[Array, Array]:
    """Return positions [P, 2] and speed limit [P] at the path lengths ``grid`` [P]."""
    points_of_lanes: list[Array] = []
    lengths: list[Array] = []
    limits: list[tuple[float, float]] = []  # path length at which a limit begins, limit
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        if number == route.change:
            continue  # its remainder is blended into the next lane below
        lane = network.lanes[index]
        points = lane.center
        along = lane.along + start
        if route.change >= 0 and number == route.change + 1:
            before = network.lanes[route.lanes[route.change]]
            progress = smoothstep((along - route.change_at) / route.change_m)[:, None]
            old_points = at_length(before.center, before.along, lane.along)
            points = (1.0 - progress) * old_points + progress * points
        limits.append((float(along[0]), lane.speed))
        if points_of_lanes:  # the first point of a lane is the last of the previous one
            points = points[1:]
            along = along[1:]
        points_of_lanes.append(points)
        lengths.append(along)
    xy = np.concatenate(points_of_lanes)
    length = np.concatenate(lengths)

    # Straight ends before the first lane and after the last one.
    head = xy[0] - (xy[1] - xy[0]) / (length[1] - length[0]) * UPSTREAM_M
    beyond = len(grid) - UPSTREAM_M - length[-1]
    tail = xy[-1] + (xy[-1] - xy[-2]) / (length[-1] - length[-2]) * beyond
    xy = np.concatenate((head[None], xy, tail[None]))
    length = np.concatenate(([-UPSTREAM_M], length, [length[-1] + beyond]))

    begins, speeds = np.array(limits).T
    section = np.searchsorted(begins, grid, "right") - 1
    limit = speeds[np.maximum(section, 0)]
    return at_length(xy, length, grid), limit


def _find_relevant(network: Network, route: Route, relevant: Array) -> None:
    """Fill one route's part [4, L] of ``Paths.relevant``."""
    for index, start in zip(route.lanes, route.starts, strict=True):
        lane = network.lanes[index]
        relevant[:3, index] = start, -_FAR, _FAR
        for rival in _merging_rivals(network, index):
            begin = start + lane.length - rival.length
            relevant[:, rival.index] = begin, rival.length - _ZIPPER_M, _FAR, 1.0
        for sibling in np.flatnonzero(network.common_length_m[index] > 0.0):
            # A vehicle still blocks its siblings while its rear has not left the common stretch.
            end = network.common_length_m[index, sibling] + 2.5
            relevant[:3, sibling] = start, -_FAR, end
    if route.change >= 0:
        start = route.starts[route.change]
        relevant[2, route.lanes[route.change]] = route.change_at + route.change_m - start + 3.0
        for behind in network.lanes[route.lanes[route.change + 1]].predecessors:
            # Vehicles that arrive on the target lane from behind are relevant for finding a gap.
            relevant[:3, behind] = start - network.lanes[behind].length, -_FAR, _FAR


def _merging_rivals(network: Network, index: int) -> Iterator[Lane]:
    """Yield the other lanes of a road that run into the same lane as lane ``index``."""
    lane = network.lanes[index]
    if lane.arms:
        return
    for successor in lane.successors:
        following = network.lanes[successor]
        if following.arms:
            continue
        for rival in following.predecessors:
            if rival != index:
                yield network.lanes[rival]


def _gates(network: Network, route: Route) -> Iterator[_Gate]:
    """Yield the junctions on a route."""
    for index, start in zip(route.lanes, route.starts, strict=True):
        lane = network.lanes[index]
        if lane.arms:
            entry_arm, exit_arm = lane.arms
            stop_m = 1.0
            exit_m = 0.5
            if entry_arm.crosswalk:
                stop_m = CROSSWALK_M[1] + 0.8
            if exit_arm.crosswalk:
                exit_m = CROSSWALK_M[1]
            yield _Gate(
                gate=lane.index,
                stop=start - stop_m,
                enter=start,
                clear=start + lane.length + exit_m,
            )
