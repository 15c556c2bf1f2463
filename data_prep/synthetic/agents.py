"""Who drives: vehicle sizes, driver temperaments, where everybody starts and where they want to go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.junction import Network, outgoing
from data_prep.synthetic.paths import Paths, at_path, build_paths, speed_profiles
from data_prep.synthetic.routes import Route, random_route, with_lane_change

_MOST = 42
_UPSTREAM_START_M = 75.0
# kind: mean length, its spread, width, mean acceleration in m/s^2
_BODY = {
    "vehicle": (4.7, 0.35, 1.9, 1.7),
    "bus": (11.8, 0.5, 2.55, 1.0),
    "motorcyclist": (2.2, 0.1, 0.8, 2.2),
    "cyclist": (1.8, 0.05, 0.6, 0.9),
}


@dataclass(slots=True)
class Fleet:
    """Everything on wheels that moves; arrays over N agents.

    Attributes:
        kind: Argoverse object type of each.
        length, width: size in metres.
        accel, brake: comfortable acceleration and deceleration in m/s^2.
        headway: desired time gap in s.
        standstill: desired distance to the vehicle in front when standing, metres.
        lateral: offset in metres from the lane centre that it keeps, positive to the left.
        edge: whether it rides at the edge of the lane, so that cars may pass.
        row: path it follows; other: path with a lane change that it may switch to, -1 for none.
        factor, comfort: [R] of each path's driver: speed relative to the limit, accepted lateral acceleration in m/s^2.
        profile: [R, P] desired speed along each path in m/s.
        at, speed: path length (m) and speed (m/s) at the beginning.
    """

    kind: list[str]
    length: Array
    width: Array
    accel: Array
    brake: Array
    headway: Array
    standstill: Array
    lateral: Array
    edge: Bools
    row: Ints
    other: Ints
    factor: Array
    comfort: Array
    profile: Array
    at: Array
    speed: Array


@dataclass(frozen=True, slots=True)
class _Place:
    """A starting place: first lane of the route, distance along it in metres, and who it is."""

    lane: int
    at: float
    kind: str
    edge: bool


def populate(network: Network, rng: np.random.Generator) -> tuple[Fleet, Paths]:
    """Put up to 42 vehicles and cyclists on the lanes, with routes; the paths are those routes as arrays."""
    places = _places(network, rng)
    count = len(places)
    routes: list[Route] = []
    other = np.full(count, -1, dtype=np.int64)
    for place in places:
        routes.append(random_route(network, rng, place.lane, place.edge))
    for number, place in enumerate(places):
        if place.kind != "cyclist" and network.lanes[place.lane].kind == "VEHICLE" and rng.random() < 0.5:
            changed = with_lane_change(network, rng, routes[number], place.at + 20.0)
            if changed is not None:
                other[number] = len(routes)
                routes.append(changed)
    paths = build_paths(network, routes)
    return _draw_fleet(network, rng, places, paths, other), paths


def _chains(network: Network) -> list[tuple[int, float, float]]:
    """Return (first lane, lowest, highest path length) of each stretch of road where agents may start."""
    inner = {i for arm in network.arms for i in outgoing(network.roads[arm.road], arm)}
    chains = []
    for lane in network.lanes:
        if lane.road < 0 or (lane.predecessors and lane.index not in inner):
            continue
        low = 6.0 if lane.index in inner else -_UPSTREAM_START_M
        end, last = float(lane.length[-1]), lane
        while len(last.successors) == 1 and network.lanes[last.successors[0]].road >= 0:
            last = network.lanes[last.successors[0]]
            end += float(last.length[-1])
        # What starts near an exit would leave at once, what starts at a junction on the stop line.
        high = end - (9.0 if last.successors else 60.0)
        if high > low:
            chains.append((lane.index, low, high))
    return chains


def _places(network: Network, rng: np.random.Generator) -> list[_Place]:
    chains = _chains(network)
    total = sum(high - low for i, low, high in chains if network.lanes[i].kind == "VEHICLE")
    mean_gap = max(float(rng.uniform(14.0, 48.0)), total / (_MOST - 8) - 10.0)
    places = []
    for index, low, high in chains:
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
            places.append(_Place(index, at, kind, edge))
            at += 11.0 + 9.0 * (kind == "bus") + float(rng.exponential(mean))
    if len(places) > _MOST:
        keep = np.sort(rng.permutation(len(places))[:_MOST])
        places = [places[i] for i in keep]
    return places


def _draw_fleet(network: Network, rng: np.random.Generator, places: list[_Place], paths: Paths, other: Ints) -> Fleet:
    count = len(places)
    body = np.array([_BODY[p.kind] for p in places]).reshape(count, 4)
    edge = np.array([p.edge for p in places], dtype=np.bool_)
    room = np.array([network.lanes[p.lane].width for p in places])
    row = np.arange(count)
    cyclist = np.array([p.kind == "cyclist" for p in places])
    factor = rng.uniform(0.82, 1.12, count)
    comfort = rng.uniform(1.6, 2.9, count)
    pedalling = np.clip(rng.normal(5.0, 1.0, count), 3.0, 7.5)
    limit = np.array([network.lanes[p.lane].speed for p in places])
    factor = np.where(cyclist, pedalling / limit, factor)
    owner = np.arange(len(paths.end))  # the driver of each path
    owner[other[other >= 0]] = np.flatnonzero(other >= 0)
    factor, comfort = factor[owner], comfort[owner]
    fleet = Fleet(
        kind=[p.kind for p in places],
        length=body[:, 0] + body[:, 1] * np.clip(rng.normal(size=count), -2, 2), width=body[:, 2],
        accel=body[:, 3] * rng.uniform(0.8, 1.25, count), brake=rng.uniform(1.4, 2.2, count),
        headway=rng.uniform(0.9, 1.7, count), standstill=rng.uniform(1.6, 3.0, count),
        lateral=np.where(edge, 0.45 - room / 2, np.clip(rng.normal(0.0, 0.12, count), -0.25, 0.25)),
        edge=edge, row=row, other=other,
        factor=factor, comfort=comfort, profile=speed_profiles(paths, factor, comfort),
        at=np.array([p.at for p in places]), speed=np.zeros(count),
    )  # fmt: skip
    fleet.speed = _first_speed(rng, fleet, paths, places)
    return fleet


def _first_speed(rng: np.random.Generator, fleet: Fleet, paths: Paths, places: list[_Place]) -> Array:
    """Return speeds [N] in m/s from which everybody can still stop for the line or the vehicle in front."""
    wanted = at_path(fleet.profile, fleet.row, fleet.at) * rng.uniform(0.8, 1.0, len(places))
    free = paths.stop[fleet.row, 0] - fleet.at - fleet.length / 2
    for i, place in enumerate(places[:-1]):
        if places[i + 1].lane == place.lane:
            gap = places[i + 1].at - place.at - (fleet.length[i] + fleet.length[i + 1]) / 2
            free[i] = min(free[i], 1.5 * gap)
    possible = np.sqrt(2.0 * 1.5 * np.clip(free - 1.0, 0.0, 1e6))
    return np.asarray(np.minimum(wanted, possible), dtype=np.float64)
