"""Routes over the lane graph as arrays, and the vehicles, cyclists and pedestrians of a scene."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.network import (
    CROSSWALK_M,
    Arm,
    Array,
    Bools,
    Ints,
    Network,
    at_length,
    headings,
    resample,
    smoothstep,
    soften,
)

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


def random_route(
    network: Network, rng: np.random.Generator, first: int, edge_rider: bool = False
) -> Route:
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


def with_lane_change(
    network: Network, rng: np.random.Generator, route: Route, after: float
) -> Route | None:
    """Return ``route`` with a random lane change beyond ``after`` metres, None if impossible."""
    options = []
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        if (
            lane.arms
            or lane.kind != "VEHICLE"
            or lane.merging
            or start + lane.length < after + 45.0
        ):
            continue
        for target in (
            network.lanes[i] for i in (lane.left_neighbor, lane.right_neighbor) if i is not None
        ):
            along = float(
                ((lane.center[-1] - lane.center[0]) * (target.center[-1] - target.center[0])).sum()
            )
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


class Paths(NamedTuple):
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
    grid = (
        np.arange(int(np.ceil(end.max() + UPSTREAM_M + _DOWNSTREAM_M)) + 1, dtype=np.float64)
        - UPSTREAM_M
    )
    xy, limit = (
        np.stack(part)
        for part in zip(*(_geometry(network, route, grid) for route in routes), strict=True)
    )
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
    gates = np.array(
        [[*_gates(network, route), *padding][:3] for route in routes]
    )  # a route has two at most
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
            points = (1.0 - share) * at_length(
                before.center, before.along, lane.along
            ) + share * points
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
        following = [
            network.lanes[i] for i in lane.successors if not lane.arms and not network.lanes[i].arms
        ]
        for rival in (
            network.lanes[i] for after in following for i in after.predecessors if i != index
        ):
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
    for lane, start in (
        (network.lanes[i], start) for i, start in zip(route.lanes, route.starts, strict=True)
    ):
        if lane.arms:
            before, after = (arm.crosswalk for arm in lane.arms)
            stop = start - (CROSSWALK_M[1] + 0.8 if before else 1.0)
            yield lane.index, stop, start, start + lane.length + (CROSSWALK_M[1] if after else 0.5)


# ---- vehicles and cyclists -----------------------------------------------------------------------------------------

_MAX_VEHICLES = 42
_MAX_PEDESTRIANS = 16
_UPSTREAM_START_M = 75.0
_KERB_M = 1.3  # distance from the kerb at which pedestrians wait
# kind: mean length, its spread, width, mean acceleration in m/s^2
_BODY = {
    "vehicle": (4.7, 0.35, 1.9, 1.7),
    "bus": (11.8, 0.5, 2.55, 1.0),
    "motorcyclist": (2.2, 0.1, 0.8, 2.2),
    "cyclist": (1.8, 0.05, 0.6, 0.9),
}


class Fleet(NamedTuple):
    """N moving vehicles and cyclists; number i begins on path i."""

    kind: list[str]  # Argoverse object type
    length: Array  # [N] metres
    width: Array  # [N] metres
    accel: Array  # [N] comfortable acceleration, m/s^2
    brake: Array  # [N] comfortable deceleration, m/s^2
    headway: Array  # [N] desired time gap, s
    standstill: Array  # [N] desired distance to a standing vehicle in front, metres
    lateral: Array  # [N] constant offset from the lane centre, metres, positive to the left
    edge: Bools  # [N] rides at the edge of the lane, so that cars may pass
    other: Ints  # [N] index of a path with a lane change that it may switch to, -1 for none
    at: Array  # [N] path length at the beginning, metres
    speed: Array  # [N] speed at the beginning, m/s


def populate(network: Network, rng: np.random.Generator) -> tuple[Fleet, Paths]:
    """Put up to 42 vehicles and cyclists on the lanes, with routes; the paths are the routes as arrays."""
    starts = _random_starts(network, rng)
    count = len(starts)
    other = np.full(count, -1, dtype=np.int64)
    routes = [random_route(network, rng, lane, edge) for lane, _, _, edge in starts]
    drivers = list(range(count))  # of each route
    for number, (lane, start, kind, _) in enumerate(starts):
        if kind != "cyclist" and network.lanes[lane].kind == "VEHICLE" and rng.random() < 0.5:
            changed = with_lane_change(network, rng, routes[number], start + 20.0)
            if changed is not None:
                other[number] = len(routes)
                routes.append(changed)
                drivers.append(number)
    edge = np.array([rides for *_, rides in starts], dtype=np.bool_)
    at = np.array([start for _, start, _, _ in starts])
    kinds = [kind for *_, kind, _ in starts]
    mean_length, spread, width, mean_accel = (
        np.array([_BODY[kind] for kind in kinds]).reshape(count, 4).T
    )
    lane_width, limit = (
        np.array([(network.lanes[i].width, network.lanes[i].speed) for i, *_ in starts])
        .reshape(count, 2)
        .T
    )
    factor = rng.uniform(0.82, 1.12, count)
    comfort = rng.uniform(1.6, 2.9, count)
    cycling = np.clip(rng.normal(5.0, 1.0, count), 3.0, 7.5)  # m/s
    factor = np.where(np.array(kinds) == "cyclist", cycling / limit, factor)
    length = mean_length + spread * np.clip(rng.normal(size=count), -2, 2)
    accel = mean_accel * rng.uniform(0.8, 1.25, count)
    brake, headway, standstill = (
        rng.uniform(low, high, count) for low, high in ((1.4, 2.2), (0.9, 1.7), (1.6, 3.0))
    )
    lateral = np.where(
        edge, 0.45 - lane_width / 2, np.clip(rng.normal(0.0, 0.12, count), -0.25, 0.25)
    )
    paths = build_paths(network, routes, factor[drivers], comfort[drivers])
    # Agents can still stop for the line or the vehicle in front.
    desired = at_sample(paths.profile, np.arange(count), at + UPSTREAM_M) * rng.uniform(
        0.8, 1.0, count
    )
    free = paths.stop[:count, 0] - at - length / 2
    for i in range(count - 1):
        if starts[i + 1][0] == starts[i][0]:
            free[i] = min(free[i], 1.5 * (at[i + 1] - at[i] - (length[i] + length[i + 1]) / 2))
    speed = np.minimum(desired, np.sqrt(2.0 * 1.5 * np.clip(free - 1.0, 0.0, 1e6)))
    return Fleet(
        kinds, length, width, accel, brake, headway, standstill, lateral, edge, other, at, speed
    ), paths


def _stretches(network: Network) -> list[tuple[int, float, float]]:
    """Return (first lane, lowest, highest path length) of each stretch of road on which agents may start."""
    inner = {i for arm in network.arms for i in arm.lanes(entering=False)}
    stretches = []
    for lane in network.lanes:
        if lane.arms or (lane.predecessors and lane.index not in inner):
            continue
        low = 6.0 if lane.index in inner else -_UPSTREAM_START_M
        end, last = lane.length, lane
        while len(last.successors) == 1 and not network.lanes[last.successors[0]].arms:
            last = network.lanes[last.successors[0]]
            end += last.length
        # No agent starts on a stop line, or so close to the border of the map that it would leave at once.
        high = end - (9.0 if last.successors else 60.0)
        if high > low:
            stretches.append((lane.index, low, high))
    return stretches


def _random_starts(
    network: Network, rng: np.random.Generator
) -> list[tuple[int, float, str, bool]]:
    """Draw the first lane of each agent, its distance along it (m), its type, and whether it rides at the edge."""
    stretches = _stretches(network)
    total = sum(high - low for i, low, high in stretches if network.lanes[i].kind == "VEHICLE")
    mean_gap = max(rng.uniform(14.0, 48.0), total / (_MAX_VEHICLES - 8) - 10.0)
    starts = []
    for index, low, high in stretches:
        lane = network.lanes[index]
        mean = mean_gap if lane.kind == "VEHICLE" else 110.0
        has_edge = lane.right_neighbor is None and lane.kind == "VEHICLE" and not lane.merging
        at = low + rng.exponential(mean)
        while at < high:
            kind, edge = {"BIKE": "cyclist", "BUS": "bus"}.get(lane.kind, "vehicle"), False
            if lane.kind == "VEHICLE":
                kind = str(
                    rng.choice(
                        ["vehicle", "bus", "motorcyclist", "cyclist"], p=[0.88, 0.035, 0.035, 0.05]
                    )
                )
                edge = kind == "cyclist" and has_edge
                if kind == "cyclist" and not edge:
                    kind = "vehicle"
            starts.append((index, at, kind, edge))
            at += 11.0 + 9.0 * (kind == "bus") + rng.exponential(mean)
    if len(starts) > _MAX_VEHICLES:
        starts = [starts[i] for i in np.sort(rng.permutation(len(starts))[:_MAX_VEHICLES])]
    return starts


# ---- pedestrians ---------------------------------------------------------------------------------------------------


class Pedestrians(NamedTuple):
    """W pedestrians: along the pavement, over a crosswalk, or standing."""

    xy: Array  # [W, P, 2] paths sampled every metre (the last point is repeated)
    end: Array  # [W] length of the path, metres
    speed: Array  # [W] walking speed in m/s, 0 for standing pedestrians
    kerb: Array  # [W] path length at which the crosswalk begins, infinite without one
    across: Array  # [W] and at which it ends
    arm: Ints  # [W] arm of the crosswalk, -1 for none
    at: Array  # [W] path length at the beginning


def random_pedestrians(network: Network, rng: np.random.Generator) -> Pedestrians:
    """Draw up to 16 pedestrians around the junctions of ``network``; none without junction."""
    drawn: list[tuple[Array, float, float, int]] = []  # path, kerb, across, arm
    busy = rng.uniform(0.0, 1.0)
    for arm in network.arms:
        drawn += [
            (*_crossing(rng, arm), arm.index)
            for _ in range(rng.poisson(0.9 * busy))
            if arm.crosswalk
        ]
        drawn += [
            (_along_pavement(rng, arm), np.inf, np.inf, -1) for _ in range(rng.poisson(0.8 * busy))
        ]
    drawn = drawn[:_MAX_PEDESTRIANS]
    count = len(drawn)
    length = np.array([len(path) - 1.0 for path, *_ in drawn])
    samples = int(length.max(initial=1.0)) + 3
    xy = np.zeros((count, samples, 2))
    for i, (path, *_) in enumerate(drawn):
        xy[i] = np.pad(path, ((0, samples - len(path)), (0, 0)), mode="edge")
    begin, end, arms = np.array([values for _, *values in drawn]).reshape(count, 3).T
    crosses = np.isfinite(begin)
    speed = np.clip(rng.normal(1.35, 0.2, count), 0.8, 2.0) * np.where(
        rng.random(count) < 0.06, 1.9, 1.0
    )
    stands = (rng.random(count) < 0.2) & ~crosses
    # Pedestrians that cross reach the kerb some time during the scene; the others start anywhere.
    until_kerb = np.minimum(np.where(crosses, begin, 0.0) - 1.0, speed * 15.0)
    start = np.where(crosses, begin - rng.uniform(0.0, 1.0, count) * until_kerb - 1.0, 0.0)
    at = np.where(crosses, np.maximum(start, 0.0), rng.uniform(0, 8, count))
    return Pedestrians(
        xy, length, np.where(stands, 0.0, speed), begin, end, arms.astype(np.int64), at
    )


def _pavement(arm: Arm, outward: Array, side: float, beyond: float) -> Array:
    """Return points [N, 2] ``beyond`` metres outside the kerb, left (side 1) or right (-1) of ``arm``."""
    half = np.array([arm.halves(distance)[0 if side > 0 else 1] for distance in outward.tolist()])
    return arm.point(outward, side * (half + beyond))


def _crossing(rng: np.random.Generator, arm: Arm) -> tuple[Array, float, float]:
    """Return a path over the crosswalk of ``arm`` and the path lengths at which it enters and leaves the road."""
    side = float(rng.choice([-1.0, 1.0]))
    middle = rng.uniform(CROSSWALK_M[0] + 0.5, CROSSWALK_M[1] - 0.5)
    walk_in, walk_out = rng.uniform(8.0, 26.0), rng.uniform(10.0, 30.0)
    before = _pavement(arm, middle + np.arange(walk_in, 0.0, -1.0), side, _KERB_M)
    over = resample(
        np.concatenate([_pavement(arm, np.array([middle]), s, _KERB_M) for s in (side, -side)]), 1.0
    )
    after = _pavement(arm, middle + np.arange(1.0, walk_out), -side, _KERB_M)
    points = np.concatenate((before, over, after)) + rng.normal(0.0, 0.25, 2)
    # Vertices are about a metre apart, so that a vertex number serves as path length.
    return soften(points), float(len(before)), float(len(before) + len(over) - 1)


def _along_pavement(rng: np.random.Generator, arm: Arm) -> Array:
    """Return a path along the pavement of ``arm``, towards the junction or away from it."""
    side = float(rng.choice([-1.0, 1.0]))
    last = float(len(arm.road.points) - 1)
    begin = rng.uniform(6.0, max(7.0, last - 45.0))
    outward = begin + np.arange(0.0, min(44.0, last - begin), 1.0)
    points = _pavement(arm, outward, side, rng.uniform(1.2, 3.0))
    return soften(points[::-1] if rng.random() < 0.5 else points)
