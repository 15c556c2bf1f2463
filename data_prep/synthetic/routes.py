"""Where a vehicle may go: a random walk over the lane graph, with a lane change perhaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.junction import Network
from data_prep.synthetic.road import Lane


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A lane change ``start`` metres along the path, ``length`` metres long, off its ``number``-th lane."""

    start: float
    length: float
    number: int


@dataclass(frozen=True, slots=True)
class Route:
    """The lanes [K] a vehicle follows, the path length [K] at which each begins, and its lane change."""

    lanes: list[int]
    starts: list[float]
    change: LaneChange | None = None


def random_route(network: Network, rng: np.random.Generator, first: int, edge_rider: bool = False) -> Route:
    """Walk from lane ``first`` to the end of the network; turns at junctions are equally likely.

    Args:
        network: the streets.
        rng: source of the turn choices.
        first: lane on which the route begins.
        edge_rider: never turn left where another way exists (for cyclists at the edge of the road).
    """
    lanes, starts, at = [first], [0.0], 0.0
    while network.lanes[lanes[-1]].successors:
        here = network.lanes[lanes[-1]]
        options: dict[int, list[int]] = {}
        for index in here.successors:
            options.setdefault(network.lanes[index].turn, []).append(index)
        turns = sorted(options)
        if edge_rider and len(turns) > 1 and 1 in turns:
            turns.remove(1)
        chosen = options[turns[int(rng.integers(len(turns)))]]
        at += float(here.length[-1])
        lanes.append(chosen[int(rng.integers(len(chosen)))] if len(chosen) > 1 else chosen[0])
        starts.append(at)
    return Route(lanes, starts)


def with_lane_change(network: Network, rng: np.random.Generator, route: Route, after: float) -> Route | None:
    """Return ``route`` with a lane change somewhere beyond ``after`` metres, None where impossible."""
    places = []
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        if lane.junction >= 0 or lane.kind != "VEHICLE" or lane.merging or start + lane.length[-1] < after + 45.0:
            continue
        for target in (lane.left_neighbor, lane.right_neighbor):
            if target is not None and _same_way(lane, network.lanes[target]):
                places.append((number, target))
    if not places:
        return None
    number, target = places[int(rng.integers(len(places)))]
    lane, start = network.lanes[route.lanes[number]], route.starts[number]
    earliest = max(after - start, 2.0)
    room = float(min(lane.length[-1], network.lanes[target].length[-1])) - earliest - 2.0
    length = min(float(rng.uniform(26.0, 45.0)), room)
    if length < 24.0:
        return None
    begin = earliest + float(rng.uniform(0.0, room - length))
    tail = random_route(network, rng, target)
    lanes = route.lanes[: number + 1] + tail.lanes
    # On the new lane the same distance from its beginning has been covered.
    starts = [*route.starts[: number + 1], start, *(start + s for s in tail.starts[1:])]
    return Route(lanes, starts, LaneChange(start + begin, length, number))


def _same_way(lane: Lane, other: Lane) -> bool:
    along = float(((lane.centre[-1] - lane.centre[0]) * (other.centre[-1] - other.centre[0])).sum())
    return along > 0.0 and other.kind == "VEHICLE" and not other.merging
