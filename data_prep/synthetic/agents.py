"""Vehicles, cyclists and pedestrians: sizes, driving styles, start positions and routes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, resample, soften
from data_prep.synthetic.network import CROSSWALK_M, Arm, Network
from data_prep.synthetic.routes import Paths, at_path, build_paths, random_route, speed_profiles, with_lane_change

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


@dataclass(slots=True)
class Fleet:
    """Moving vehicles and cyclists; N agents on R paths with P samples."""

    kind: list[str]  # Argoverse object type
    length: Array  # [N] metres
    width: Array  # [N] metres
    accel: Array  # [N] comfortable acceleration, m/s^2
    brake: Array  # [N] comfortable deceleration, m/s^2
    headway: Array  # [N] desired time gap, s
    standstill: Array  # [N] desired distance to a standing vehicle in front, metres
    lateral: Array  # [N] constant offset from the lane centre, metres, positive to the left
    edge: Bools  # [N] rides at the edge of the lane, so that cars may pass
    row: Ints  # [N] index of its path
    other: Ints  # [N] index of a path with a lane change that it may switch to, -1 for none
    factor: Array  # [R] speed of the path's driver relative to the limit
    comfort: Array  # [R] lateral acceleration that the driver accepts, m/s^2
    profile: Array  # [R, P] desired speed, m/s
    at: Array  # [N] path length at the beginning, metres
    speed: Array  # [N] speed at the beginning, m/s


@dataclass(frozen=True, slots=True)
class _Start:
    """Start of an agent: first lane of its route, distance along it in metres, object type, and whether at the edge."""

    lane: int
    at: float
    kind: str
    edge: bool


def populate(network: Network, rng: np.random.Generator) -> tuple[Fleet, Paths]:
    """Put up to 42 vehicles and cyclists on the lanes, with routes; the paths are the routes as arrays."""
    starts = _random_starts(network, rng)
    other = np.full(len(starts), -1, dtype=np.int64)
    routes = [random_route(network, rng, start.lane, start.edge) for start in starts]
    for number, start in enumerate(starts):
        if start.kind != "cyclist" and network.lanes[start.lane].kind == "VEHICLE" and rng.random() < 0.5:
            changed = with_lane_change(network, rng, routes[number], start.at + 20.0)
            if changed is not None:
                other[number] = len(routes)
                routes.append(changed)
    paths = build_paths(network, routes)
    return _random_fleet(network, rng, starts, paths, other), paths


def _stretches(network: Network) -> list[tuple[int, float, float]]:
    """Return (first lane, lowest, highest path length) of each stretch of road on which agents may start."""
    inner = {i for arm in network.arms for i in network.outgoing(arm)}
    stretches = []
    for lane in network.lanes:
        if lane.road < 0 or (lane.predecessors and lane.index not in inner):
            continue
        low = 6.0 if lane.index in inner else -_UPSTREAM_START_M
        end, last = float(lane.length[-1]), lane
        while len(last.successors) == 1 and network.lanes[last.successors[0]].road >= 0:
            last = network.lanes[last.successors[0]]
            end += float(last.length[-1])
        # No agent starts on a stop line, or so close to the border of the map that it would leave at once.
        high = end - (9.0 if last.successors else 60.0)
        if high > low:
            stretches.append((lane.index, low, high))
    return stretches


def _random_starts(network: Network, rng: np.random.Generator) -> list[_Start]:
    stretches = _stretches(network)
    total = sum(high - low for i, low, high in stretches if network.lanes[i].kind == "VEHICLE")
    mean_gap = max(float(rng.uniform(14.0, 48.0)), total / (_MAX_VEHICLES - 8) - 10.0)
    starts = []
    for index, low, high in stretches:
        lane = network.lanes[index]
        mean = mean_gap if lane.kind == "VEHICLE" else 110.0
        has_edge = lane.right_neighbor is None and lane.kind == "VEHICLE" and not lane.merging
        at = low + float(rng.exponential(mean))
        while at < high:
            kind, edge = {"BIKE": "cyclist", "BUS": "bus"}.get(lane.kind, "vehicle"), False
            if lane.kind == "VEHICLE":
                kind = str(rng.choice(["vehicle", "bus", "motorcyclist", "cyclist"], p=[0.88, 0.035, 0.035, 0.05]))
                edge = kind == "cyclist"
                if edge and not has_edge:
                    kind, edge = "vehicle", False
            starts.append(_Start(index, at, kind, edge))
            at += 11.0 + 9.0 * (kind == "bus") + float(rng.exponential(mean))
    if len(starts) > _MAX_VEHICLES:
        keep = np.sort(rng.permutation(len(starts))[:_MAX_VEHICLES])
        starts = [starts[i] for i in keep]
    return starts


def _random_fleet(network: Network, rng: np.random.Generator, starts: list[_Start], paths: Paths, other: Ints) -> Fleet:
    count = len(starts)
    body = np.array([_BODY[s.kind] for s in starts]).reshape(count, 4)
    edge = np.array([s.edge for s in starts], dtype=np.bool_)
    lane_width = np.array([network.lanes[s.lane].width for s in starts])
    cyclist = np.array([s.kind == "cyclist" for s in starts])
    factor = rng.uniform(0.82, 1.12, count)
    comfort = rng.uniform(1.6, 2.9, count)
    cycling = np.clip(rng.normal(5.0, 1.0, count), 3.0, 7.5)  # m/s
    limit = np.array([network.lanes[s.lane].speed for s in starts])
    factor = np.where(cyclist, cycling / limit, factor)
    driver = np.arange(len(paths.end))  # of each path
    driver[other[other >= 0]] = np.flatnonzero(other >= 0)
    factor, comfort = factor[driver], comfort[driver]
    fleet = Fleet(
        kind=[s.kind for s in starts],
        length=body[:, 0] + body[:, 1] * np.clip(rng.normal(size=count), -2, 2), width=body[:, 2],
        accel=body[:, 3] * rng.uniform(0.8, 1.25, count), brake=rng.uniform(1.4, 2.2, count),
        headway=rng.uniform(0.9, 1.7, count), standstill=rng.uniform(1.6, 3.0, count),
        lateral=np.where(edge, 0.45 - lane_width / 2, np.clip(rng.normal(0.0, 0.12, count), -0.25, 0.25)),
        edge=edge, row=np.arange(count), other=other,
        factor=factor, comfort=comfort, profile=speed_profiles(paths, factor, comfort),
        at=np.array([s.at for s in starts]), speed=np.zeros(count),
    )  # fmt: skip
    fleet.speed = _initial_speed(rng, fleet, paths, starts)
    return fleet


def _initial_speed(rng: np.random.Generator, fleet: Fleet, paths: Paths, starts: list[_Start]) -> Array:
    """Return speeds [N] in m/s from which each agent can still stop for the line or the vehicle in front."""
    desired = at_path(fleet.profile, fleet.row, fleet.at) * rng.uniform(0.8, 1.0, len(starts))
    free = paths.stop[fleet.row, 0] - fleet.at - fleet.length / 2
    for i, start in enumerate(starts[:-1]):
        if starts[i + 1].lane == start.lane:
            gap = starts[i + 1].at - start.at - (fleet.length[i] + fleet.length[i + 1]) / 2
            free[i] = min(free[i], 1.5 * gap)
    possible = np.sqrt(2.0 * 1.5 * np.clip(free - 1.0, 0.0, 1e6))
    return np.asarray(np.minimum(desired, possible), dtype=np.float64)


# ---- pedestrians ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pedestrians:
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
    paths: list[Array] = []
    kerbs: list[tuple[float, float]] = []
    arms: list[int] = []
    busy = float(rng.uniform(0.0, 1.0))
    for arm in network.arms:
        for _ in range(int(rng.poisson(0.9 * busy))):
            if arm.crosswalk:
                points, kerb, across = _crossing(network, rng, arm)
                paths.append(points)
                kerbs.append((kerb, across))
                arms.append(arm.index)
        for _ in range(int(rng.poisson(0.8 * busy))):
            paths.append(_along_pavement(network, rng, arm))
            kerbs.append((np.inf, np.inf))
            arms.append(-1)
    paths, kerbs, arms = paths[:_MAX_PEDESTRIANS], kerbs[:_MAX_PEDESTRIANS], arms[:_MAX_PEDESTRIANS]
    count = len(paths)
    samples = max((len(p) for p in paths), default=2) + 2
    xy = np.zeros((count, samples, 2))
    for i, points in enumerate(paths):
        xy[i, : len(points)] = points
        xy[i, len(points) :] = points[-1]
    begin, end = np.array(kerbs).reshape(count, 2).T
    crosses = np.isfinite(begin)
    speed = np.clip(rng.normal(1.35, 0.2, count), 0.8, 2.0) * np.where(rng.random(count) < 0.06, 1.9, 1.0)
    stands = (rng.random(count) < 0.2) & ~crosses
    # Pedestrians that cross reach the kerb some time during the scene; the others start anywhere.
    until_kerb = np.minimum(np.where(crosses, begin, 0.0) - 1.0, speed * 15.0)
    start = np.where(crosses, begin - rng.uniform(0.0, 1.0, count) * until_kerb - 1.0, 0.0)
    at = np.where(crosses, np.maximum(start, 0.0), rng.uniform(0, 8, count))
    length = np.array([len(p) - 1.0 for p in paths])
    return Pedestrians(xy, length, np.where(stands, 0.0, speed), begin, end, np.array(arms, dtype=np.int64), at)


def _pavement(network: Network, arm: Arm, outward: Array, side: float, beyond: float) -> Array:
    """Return points [N, 2] ``beyond`` metres outside the kerb, left (side 1) or right (-1) of ``arm``."""
    halves = np.array([network.arm_halves(arm, float(distance)) for distance in outward]).reshape(-1, 2)
    return network.arm_point(arm, outward, side * (halves[:, 0 if side > 0 else 1] + beyond))


def _crossing(network: Network, rng: np.random.Generator, arm: Arm) -> tuple[Array, float, float]:
    """Return a path over the crosswalk of ``arm`` and the path lengths at which it enters and leaves the road."""
    side = float(rng.choice([-1.0, 1.0]))
    middle = float(rng.uniform(CROSSWALK_M[0] + 0.5, CROSSWALK_M[1] - 0.5))
    walk_in, walk_out = rng.uniform(8.0, 26.0), rng.uniform(10.0, 30.0)
    before = _pavement(network, arm, middle + np.arange(walk_in, 0.0, -1.0), side, _KERB_M)
    ends = np.concatenate([_pavement(network, arm, np.array([middle]), s, _KERB_M) for s in (side, -side)])
    after = _pavement(network, arm, middle + np.arange(1.0, walk_out), -side, _KERB_M)
    over = resample(ends, 1.0)
    points = np.concatenate((before, over, after)) + rng.normal(0.0, 0.25, 2)
    # Vertices are about a metre apart, so that a vertex number serves as path length.
    return soften(points), float(len(before)), float(len(before) + len(over) - 1)


def _along_pavement(network: Network, rng: np.random.Generator, arm: Arm) -> Array:
    """Return a path along the pavement of ``arm``, towards the junction or away from it."""
    side = float(rng.choice([-1.0, 1.0]))
    last = float(len(network.roads[arm.road].points) - 1)
    begin = float(rng.uniform(6.0, max(7.0, last - 45.0)))
    outward = begin + np.arange(0.0, min(44.0, last - begin), 1.0)
    points = _pavement(network, arm, outward, side, float(rng.uniform(1.2, 3.0)))
    return soften(points[::-1] if rng.random() < 0.5 else points)
