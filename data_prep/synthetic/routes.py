"""Routes: the lanes that a vehicle follows, with at most one lane change."""

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.network import Lane, Network

_MIN_CHANGE_M = 24.0  # shortest lane change


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

    An ``edge_rider``, a cyclist at the edge of the road, avoids left turns if another turn is
    possible.
    """
    lanes = [first]
    starts = [0.0]
    while True:
        lane = network.lanes[lanes[-1]]
        if not lane.successors:
            return Route(lanes, starts)
        turns = sorted({network.lanes[index].turn for index in lane.successors})
        if edge_rider and len(turns) > 1 and 1 in turns:
            turns.remove(1)
        turn = turns[rng.integers(len(turns))]
        options = [index for index in lane.successors if network.lanes[index].turn == turn]
        starts.append(starts[-1] + lane.length)
        lanes.append(options[rng.integers(len(options))])


def with_lane_change(
    network: Network, rng: np.random.Generator, route: Route, after: float
) -> Route | None:
    """Return ``route`` with a random lane change beyond ``after`` metres, None if impossible."""
    options = []  # number of the lane to leave, the lane to enter
    for number, (index, start) in enumerate(zip(route.lanes, route.starts, strict=True)):
        lane = network.lanes[index]
        is_long_enough = start + lane.length >= after + 45.0
        if _allows_lane_change(lane) and not lane.arms and is_long_enough:
            for target in _parallel_lanes(network, lane):
                options.append((number, target))
    if not options:
        return None

    number, target = options[rng.integers(len(options))]
    start = route.starts[number]
    length = min(network.lanes[route.lanes[number]].length, target.length)
    earliest = max(after - start, 2.0)
    available_m = length - earliest - 2.0
    change_m = min(rng.uniform(26.0, 45.0), available_m)
    if change_m < _MIN_CHANGE_M:
        return None
    begin = earliest + rng.uniform(0.0, available_m - change_m)
    tail = random_route(network, rng, target.index)
    # Distances along the new lane and along the old one are the same.
    starts = [*route.starts[: number + 1], start]
    for tail_start in tail.starts[1:]:
        starts.append(start + tail_start)
    lanes = route.lanes[: number + 1] + tail.lanes
    return Route(lanes, starts, number, start + begin, change_m)


def _allows_lane_change(lane: Lane) -> bool:
    return lane.kind == "VEHICLE" and not lane.merging


def _parallel_lanes(network: Network, lane: Lane) -> list[Lane]:
    """Return the lanes next to ``lane`` with the same direction that cars may change to."""
    parallel = []
    for index in (lane.left_neighbor, lane.right_neighbor):
        if index is None:
            continue
        neighbor = network.lanes[index]
        axis = lane.center[-1] - lane.center[0]
        neighbor_axis = neighbor.center[-1] - neighbor.center[0]
        same_direction = float((axis * neighbor_axis).sum()) > 0.0
        if same_direction and _allows_lane_change(neighbor):
            parallel.append(neighbor)
    return parallel
