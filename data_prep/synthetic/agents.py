"""Vehicles, cyclists and pedestrians: sizes, driving styles, start positions and routes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, resample, soften
from data_prep.synthetic.network import CROSSWALK_M, Arm, Network
from data_prep.synthetic.routes import UPSTREAM_M, Paths, at_sample, build_paths, random_route, with_lane_change

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


@dataclass(frozen=True)
class Fleet:
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
    mean_length, spread, width, mean_accel = np.array([_BODY[kind] for kind in kinds]).reshape(count, 4).T
    lane_width, limit = np.array([(network.lanes[i].width, network.lanes[i].speed) for i, *_ in starts]).reshape(count, 2).T
    factor = rng.uniform(0.82, 1.12, count)
    comfort = rng.uniform(1.6, 2.9, count)
    cycling = np.clip(rng.normal(5.0, 1.0, count), 3.0, 7.5)  # m/s
    factor = np.where(np.array(kinds) == "cyclist", cycling / limit, factor)
    length = mean_length + spread * np.clip(rng.normal(size=count), -2, 2)
    accel = mean_accel * rng.uniform(0.8, 1.25, count)
    brake, headway, standstill = (rng.uniform(low, high, count) for low, high in ((1.4, 2.2), (0.9, 1.7), (1.6, 3.0)))
    lateral = np.where(edge, 0.45 - lane_width / 2, np.clip(rng.normal(0.0, 0.12, count), -0.25, 0.25))
    paths = build_paths(network, routes, factor[drivers], comfort[drivers])
    # Agents can still stop for the line or the vehicle in front.
    desired = at_sample(paths.profile, np.arange(count), at + UPSTREAM_M) * rng.uniform(0.8, 1.0, count)
    free = paths.stop[:count, 0] - at - length / 2
    for i in range(count - 1):
        if starts[i + 1][0] == starts[i][0]:
            free[i] = min(free[i], 1.5 * (at[i + 1] - at[i] - (length[i] + length[i + 1]) / 2))
    speed = np.minimum(desired, np.sqrt(2.0 * 1.5 * np.clip(free - 1.0, 0.0, 1e6)))
    return Fleet(kinds, length, width, accel, brake, headway, standstill, lateral, edge, other, at, speed), paths


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


def _random_starts(network: Network, rng: np.random.Generator) -> list[tuple[int, float, str, bool]]:
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
                kind = str(rng.choice(["vehicle", "bus", "motorcyclist", "cyclist"], p=[0.88, 0.035, 0.035, 0.05]))
                edge = kind == "cyclist" and has_edge
                if kind == "cyclist" and not edge:
                    kind = "vehicle"
            starts.append((index, at, kind, edge))
            at += 11.0 + 9.0 * (kind == "bus") + rng.exponential(mean)
    if len(starts) > _MAX_VEHICLES:
        starts = [starts[i] for i in np.sort(rng.permutation(len(starts))[:_MAX_VEHICLES])]
    return starts


# ---- pedestrians ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
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
    drawn: list[tuple[Array, float, float, int]] = []  # path, kerb, across, arm
    busy = rng.uniform(0.0, 1.0)
    for arm in network.arms:
        drawn += [(*_crossing(rng, arm), arm.index) for _ in range(rng.poisson(0.9 * busy)) if arm.crosswalk]
        drawn += [(_along_pavement(rng, arm), np.inf, np.inf, -1) for _ in range(rng.poisson(0.8 * busy))]
    drawn = drawn[:_MAX_PEDESTRIANS]
    count = len(drawn)
    length = np.array([len(path) - 1.0 for path, *_ in drawn])
    samples = int(length.max(initial=1.0)) + 3
    xy = np.zeros((count, samples, 2))
    for i, (path, *_) in enumerate(drawn):
        xy[i] = np.pad(path, ((0, samples - len(path)), (0, 0)), mode="edge")
    begin, end, arms = np.array([values for _, *values in drawn]).reshape(count, 3).T
    crosses = np.isfinite(begin)
    speed = np.clip(rng.normal(1.35, 0.2, count), 0.8, 2.0) * np.where(rng.random(count) < 0.06, 1.9, 1.0)
    stands = (rng.random(count) < 0.2) & ~crosses
    # Pedestrians that cross reach the kerb some time during the scene; the others start anywhere.
    until_kerb = np.minimum(np.where(crosses, begin, 0.0) - 1.0, speed * 15.0)
    start = np.where(crosses, begin - rng.uniform(0.0, 1.0, count) * until_kerb - 1.0, 0.0)
    at = np.where(crosses, np.maximum(start, 0.0), rng.uniform(0, 8, count))
    return Pedestrians(xy, length, np.where(stands, 0.0, speed), begin, end, arms.astype(np.int64), at)


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
    over = resample(np.concatenate([_pavement(arm, np.array([middle]), s, _KERB_M) for s in (side, -side)]), 1.0)
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
