"""The vehicles and cyclists of a scene."""

from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.network import Lane, Network
from data_prep.synthetic.paths import UPSTREAM_M, Paths, at_sample, build_paths
from data_prep.synthetic.routes import random_route, with_lane_change

_MAX_VEHICLES = 42
_UPSTREAM_START_M = 75.0
_LANE_CHANGE_PROBABILITY = 0.5
_KINDS = ["vehicle", "bus", "motorcyclist", "cyclist"]
_KIND_PROBABILITIES = [0.88, 0.035, 0.035, 0.05]


class _Body(NamedTuple):
    """The dimensions of a type of vehicle."""

    length: float  # mean, metres
    length_spread: float
    width: float  # metres
    accel: float  # mean, m/s^2


_BODY = {
    "vehicle": _Body(4.7, 0.35, 1.9, 1.7),
    "bus": _Body(11.8, 0.5, 2.55, 1.0),
    "motorcyclist": _Body(2.2, 0.1, 0.8, 2.2),
    "cyclist": _Body(1.8, 0.05, 0.6, 0.9),
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
    lateral: Array  # [N] constant offset from the lane center, metres, positive to the left
    edge: Bools  # [N] rides at the edge of the lane, so that cars may pass
    other: Ints  # [N] index of a path with a lane change that it may switch to, -1 for none
    at: Array  # [N] path length at the beginning, metres
    speed: Array  # [N] speed at the beginning, m/s


class _Start(NamedTuple):
    """A vehicle at the beginning."""

    lane: int
    at: float  # metres along the lane
    kind: str
    edge: bool  # rides at the edge of the lane


def populate(network: Network, rng: np.random.Generator) -> tuple[Fleet, Paths]:
    """Put up to 42 vehicles and cyclists on the lanes; the paths are their routes as arrays."""
    starts = _random_starts(network, rng)
    count = len(starts)

    # A route for each vehicle, then alternatives with a lane change for some vehicles.
    routes = [random_route(network, rng, start.lane, start.edge) for start in starts]
    drivers = list(range(count))  # of each route
    other = np.full(count, -1, dtype=np.int64)
    for number, start in enumerate(starts):
        on_motor_lane = network.lanes[start.lane].kind == "VEHICLE"
        may_change = start.kind != "cyclist" and on_motor_lane
        if may_change and rng.random() < _LANE_CHANGE_PROBABILITY:
            changed = with_lane_change(network, rng, routes[number], start.at + 20.0)
            if changed is not None:
                other[number] = len(routes)
                routes.append(changed)
                drivers.append(number)

    # The properties of drivers and vehicles.
    kinds = [start.kind for start in starts]
    edge = np.array([start.edge for start in starts], dtype=np.bool_)
    at = np.array([start.at for start in starts])
    bodies = np.array([_BODY[kind] for kind in kinds])
    mean_length, length_spread, width, mean_accel = bodies.reshape(count, 4).T
    lanes = [network.lanes[start.lane] for start in starts]
    lane_width = np.array([lane.width for lane in lanes])
    limit = np.array([lane.speed for lane in lanes])
    factor = rng.uniform(0.82, 1.12, count)
    comfort = rng.uniform(1.6, 2.9, count)
    cycling = np.clip(rng.normal(5.0, 1.0, count), 3.0, 7.5)  # m/s
    factor = np.where(np.array(kinds) == "cyclist", cycling / limit, factor)
    length = mean_length + length_spread * np.clip(rng.normal(size=count), -2, 2)
    accel = mean_accel * rng.uniform(0.8, 1.25, count)
    brake = rng.uniform(1.4, 2.2, count)
    headway = rng.uniform(0.9, 1.7, count)
    standstill = rng.uniform(1.6, 3.0, count)
    edge_lateral = 0.45 - lane_width / 2
    random_lateral = np.clip(rng.normal(0.0, 0.12, count), -0.25, 0.25)

    paths = build_paths(network, routes, factor[drivers], comfort[drivers])
    desired = at_sample(paths.profile, np.arange(count), at + UPSTREAM_M)
    desired = desired * rng.uniform(0.8, 1.0, count)
    fleet = Fleet(
        kind=kinds,
        length=length,
        width=width,
        accel=accel,
        brake=brake,
        headway=headway,
        standstill=standstill,
        lateral=np.where(edge, edge_lateral, random_lateral),
        edge=edge,
        other=other,
        at=at,
        speed=np.minimum(desired, _safe_speed(starts, at, length, paths.stop[:count, 0])),
    )
    return fleet, paths


def _safe_speed(starts: list[_Start], at: Array, length: Array, stop: Array) -> Array:
    """Return speeds [N] at which agents can still stop for the line or the vehicle in front.

    ``at`` [N] and ``stop`` [N] are the path lengths at the beginning and of the first stop line,
    ``length`` [N] are the lengths of the vehicles.
    """
    free = stop - at - length / 2
    for i in range(len(starts) - 1):
        if starts[i + 1].lane == starts[i].lane:
            gap = at[i + 1] - at[i] - (length[i] + length[i + 1]) / 2
            free[i] = min(free[i], 1.5 * gap)
    braking_m = np.clip(free - 1.0, 0.0, 1e6)
    return np.sqrt(2.0 * 1.5 * braking_m)


class _Stretch(NamedTuple):
    """A stretch of road on which agents may start."""

    lane: int  # the first one
    low: float  # path lengths
    high: float


def _stretches(network: Network) -> list[_Stretch]:
    """Return the stretches of road on which agents may start."""
    leaving = {i for arm in network.arms for i in arm.lanes(entering=False)}
    stretches = []
    for lane in network.lanes:
        begins_here = not lane.predecessors or lane.index in leaving
        if lane.arms or not begins_here:
            continue
        low = -_UPSTREAM_START_M
        if lane.index in leaving:
            low = 6.0
        end = lane.length
        last = lane
        while len(last.successors) == 1 and not network.lanes[last.successors[0]].arms:
            last = network.lanes[last.successors[0]]
            end += last.length
        # No agent starts on a stop line, or so close to the border of the map that it would leave
        # at once.
        margin_m = 9.0 if last.successors else 60.0
        high = end - margin_m
        if high > low:
            stretches.append(_Stretch(lane.index, low, high))
    return stretches


def _random_starts(network: Network, rng: np.random.Generator) -> list[_Start]:
    """Draw the position and type of each agent, at most ``_MAX_VEHICLES``."""
    stretches = _stretches(network)
    motor_stretches = [s for s in stretches if network.lanes[s.lane].kind == "VEHICLE"]
    total_m = sum(stretch.high - stretch.low for stretch in motor_stretches)
    min_gap = total_m / (_MAX_VEHICLES - 8) - 10.0
    mean_gap = max(rng.uniform(14.0, 48.0), min_gap)
    starts = []
    for stretch in stretches:
        lane = network.lanes[stretch.lane]
        mean = mean_gap if lane.kind == "VEHICLE" else 110.0
        at = stretch.low + rng.exponential(mean)
        while at < stretch.high:
            kind, edge = _random_kind(lane, rng)
            starts.append(_Start(stretch.lane, at, kind, edge))
            occupied_m = 20.0 if kind == "bus" else 11.0
            at += occupied_m + rng.exponential(mean)
    if len(starts) > _MAX_VEHICLES:
        kept = np.sort(rng.permutation(len(starts))[:_MAX_VEHICLES])
        starts = [starts[i] for i in kept]
    return starts


def _random_kind(lane: Lane, rng: np.random.Generator) -> tuple[str, bool]:
    """Draw the type of an agent on a lane, and whether it rides at the edge of the lane."""
    if lane.kind == "BIKE":
        return "cyclist", False
    if lane.kind == "BUS":
        return "bus", False
    kind = str(rng.choice(_KINDS, p=_KIND_PROBABILITIES))
    if kind != "cyclist":
        return kind, False
    if lane.right_neighbor is None and not lane.merging:
        return "cyclist", True
    return "vehicle", False  # no edge to ride at
