"""Junctions: which lane leads where, what crosses what, and where people walk across."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from data_prep.synthetic.curves import (
    Array,
    Bools,
    arc_length,
    at_length,
    bridge,
    headings,
    offset,
    wrap,
)
from data_prep.synthetic.road import Lane, Road

CROSSWALK_M = (1.2, 4.2)  # a crosswalk begins and ends this far from the mouth of its arm
CLEARANCE_M = 2.9  # two paths closer than this cannot be driven at the same time
_TURN_RAD = 0.6


@dataclass(slots=True)
class Arm:
    """One mouth of a junction.

    Attributes:
        index: position in ``Network.arms``.
        junction, road: indices of what it joins.
        at_start: whether the road begins here (otherwise it ends here).
        angle: direction in radians pointing away from the junction.
        crosswalk: whether a pedestrian crossing is painted across it.
        phase: 0 or 1, when its traffic lights are green (only under "signal" control).
        major: whether it has priority (only under "priority" control).
    """

    index: int
    junction: int
    road: int
    at_start: bool
    angle: float
    crosswalk: bool
    phase: int
    major: bool


@dataclass(slots=True)
class Junction:
    """A junction: ``control`` is "signal", "stop" or "priority"; signals have a cycle and an offset in s."""

    index: int
    control: str
    cycle: float
    start: float
    arms: list[int] = field(default_factory=list)

    def green(self, phase: int, time: float) -> bool:
        """Return whether arms of ``phase`` may enter at ``time`` (s); each half ends with 3 s for all."""
        if self.control != "signal":
            return True
        where = (time + self.start) % self.cycle
        half = self.cycle / 2
        return phase * half <= where < (phase + 1) * half - 3.0


@dataclass(slots=True)
class Network:
    """Everything built of concrete and paint.

    Attributes:
        roads, lanes, arms, junctions: the parts; every ``index`` is a position in these lists.
        conflict: [L, L] whether two lanes inside junctions exclude each other.
        shared: [L, L] metres that two lanes leaving the same lane run together before they part.
    """

    roads: list[Road]
    lanes: list[Lane]
    arms: list[Arm]
    junctions: list[Junction]
    conflict: Bools
    shared: Array

    def arm_point(self, arm: Arm, outward: ArrayLike, left: ArrayLike) -> Array:
        """Return points [N, 2], ``outward`` [N] m from the mouth of ``arm``, ``left`` [N] of its axis."""
        road = self.roads[arm.road]
        where = np.clip(np.asarray(outward, dtype=np.float64), 0.0, len(road.points) - 1.0)
        side = np.asarray(left, dtype=np.float64)
        if not arm.at_start:
            where, side = len(road.points) - 1.0 - where, -side
        vertex = np.arange(len(road.points), dtype=np.float64)
        return offset(at_length(road.points, vertex, where), np.interp(where, vertex, road.heading), side)

    def arm_halves(self, arm: Arm, outward: float) -> tuple[float, float]:
        """Return the paved metres left and right of the axis of ``arm``, ``outward`` metres along it."""
        road = self.roads[arm.road]
        vertex = min(round(outward), len(road.points) - 1)
        if arm.at_start:
            return float(road.half_in[vertex]), float(road.half_out[vertex])
        return float(road.half_out[-1 - vertex]), float(road.half_in[-1 - vertex])


def incoming(road: Road, arm: Arm) -> list[int]:
    """Return the lanes of ``road`` that enter the junction at ``arm``, innermost first."""
    return road.side(0, False) if arm.at_start else road.side(len(road.cuts) - 2, True)


def outgoing(road: Road, arm: Arm) -> list[int]:
    """Return the lanes of ``road`` that leave the junction at ``arm``, innermost first."""
    return road.side(0, True) if arm.at_start else road.side(len(road.cuts) - 2, False)


def connect(network: Network, junction: Junction) -> None:
    """Add the lanes inside ``junction`` for every permitted movement and link them to the roads."""
    lanes, arms = network.lanes, [network.arms[i] for i in junction.arms]
    for source in arms:
        entering = [lanes[i] for i in incoming(network.roads[source.road], source)]
        turns = {}
        for target in arms:
            angle = float(wrap(target.angle - source.angle - np.pi))
            if target is not source:
                turns[target.index] = 0 if abs(angle) < _TURN_RAD else 1 if angle > 0 else -1
        for target_index, turn in turns.items():
            target = network.arms[target_index]
            leaving = [lanes[i] for i in outgoing(network.roads[target.road], target)]
            for first, last in _movements(entering, leaving, turn, set(turns.values())):
                _add_connector(network, first, last, (source, target), turn)


def _movements(entering: list[Lane], leaving: list[Lane], turn: int, turns: set[int]) -> list[tuple[Lane, Lane]]:
    """Return the pairs of lanes that a turn connects: left from the inner lane, right from the outer one."""
    pairs = []
    cars_in = [lane for lane in entering if lane.kind == "VEHICLE"]
    cars_out = [lane for lane in leaving if lane.kind == "VEHICLE"]
    if turn == 1:
        # At the stem of a T every lane but the outermost may turn left, so that none is a dead end.
        number = 1 if 0 in turns else max(1, len(cars_in) - 1)
        pairs += [(lane, cars_out[min(i, len(cars_out) - 1)]) for i, lane in enumerate(cars_in[:number])]
    elif turn == -1:
        pairs.append((cars_in[-1], cars_out[-1]))
    else:
        # Where left turns are possible a wide road may keep its inner lane free for them.
        through = cars_in[1:] if len(cars_in) > 2 and 1 in turns else cars_in
        shift = len(cars_in) - len(through)
        pairs += [(lane, cars_out[min(i + shift, len(cars_out) - 1)]) for i, lane in enumerate(through)]
    for kind in ("BUS", "BIKE"):
        special_in = [lane for lane in entering if lane.kind == kind]
        special_out = [lane for lane in leaving if lane.kind == kind] or cars_out[-1:]
        if special_in and (turn == 0 or (kind == "BIKE" and turn == -1) or 0 not in turns):
            pairs.append((special_in[0], special_out[-1]))
    return pairs


def _add_connector(network: Network, first: Lane, last: Lane, arms: tuple[Arm, Arm], turn: int) -> None:
    lanes = network.lanes
    start, end = first.centre[-1], last.centre[0]
    heading_in, heading_out = arms[0].angle + np.pi, arms[1].angle
    centre = bridge(start, float(heading_in), end, float(heading_out), 1.0)
    length = arc_length(centre)
    direction = headings(centre)
    half = 0.5 * (first.width + (last.width - first.width) * length / length[-1])
    left, right = offset(centre, direction, half), offset(centre, direction, -half)
    left[0], left[-1], right[0], right[-1] = first.left[-1], last.left[0], first.right[-1], last.right[0]
    kind = "VEHICLE" if last.kind == "VEHICLE" else first.kind
    lane = Lane(len(lanes), centre, left, right, length, first.width, kind, first.speed, turn=turn)
    lane.junction, lane.arms = arms[0].junction, (arms[0].index, arms[1].index)
    lane.predecessors.append(first.index)
    lane.successors.append(last.index)
    first.successors.append(lane.index)
    last.predecessors.append(lane.index)
    lanes.append(lane)


def find_conflicts(network: Network) -> None:
    """Fill ``network.conflict`` and ``network.shared`` for all pairs of lanes inside the same junction."""
    lanes = network.lanes
    network.conflict = np.zeros((len(lanes), len(lanes)), dtype=np.bool_)
    network.shared = np.zeros((len(lanes), len(lanes)))
    for junction in network.junctions:
        inside = [lane for lane in lanes if lane.junction == junction.index]
        ids = np.array([lane.index for lane in inside])
        samples = np.stack([at_length(k.centre, k.length, np.linspace(0.0, k.length[-1], 14)) for k in inside])
        gap = samples[:, None, :, None] - samples[None, :, None, :]
        distance = np.hypot(gap[..., 0], gap[..., 1])  # [C, C, 14, 14]
        close = distance.min(axis=(2, 3)) < CLEARANCE_M
        source = np.array([lane.predecessors[0] for lane in inside])
        target = np.array([lane.successors[0] for lane in inside])
        siblings = source[:, None] == source[None, :]
        conflict = (close | (target[:, None] == target[None, :])) & ~siblings
        network.conflict[np.ix_(ids, ids)] = conflict
        apart = distance.min(axis=3) > CLEARANCE_M  # where on the first lane the second has gone its own way
        together = np.where(apart.any(axis=2), apart.argmax(axis=2), apart.shape[2] - 1) / (apart.shape[2] - 1)
        length = np.array([lane.length[-1] for lane in inside])
        np.fill_diagonal(siblings, False)
        network.shared[np.ix_(ids, ids)] = np.where(siblings, together * length[:, None], 0.0)


def crosswalk_edges(network: Network, arm: Arm) -> tuple[Array, Array]:
    """Return the two edges [2, 2] of the pedestrian crossing on ``arm``, from its left to its right kerb."""
    left, right = network.arm_halves(arm, CROSSWALK_M[1])
    near, far = (network.arm_point(arm, np.full(2, d), np.array((left, -right))) for d in CROSSWALK_M)
    return near, far
