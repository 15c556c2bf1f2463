"""Street networks: roads with their lanes, junctions, the lanes through them, and crosswalks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from data_prep.synthetic.curves import Array, Bools, arc_length, at_length, bridge, headings, offset, smoothstep, wrap

BIKE_WIDTH_M = 1.7
PARKING_WIDTH_M = 2.4
CROSSWALK_M = (1.2, 4.2)  # distance from the mouth of the arm to the near and far edge of its crosswalk
_CLEARANCE_M = 2.9  # two vehicles cannot use two paths at the same time that come closer than this
_STRAIGHT_RAD = 0.6  # movements with a smaller change of direction count as straight


@dataclass(frozen=True, slots=True)
class RoadSpec:
    """Cross-section of a two-way road; both directions have the same."""

    lanes: int  # motor lanes per direction, at least 1
    width: float  # of a motor lane, metres
    speed: float  # speed limit, m/s
    bike: bool = False  # a bicycle lane outside the motor lanes
    bus: bool = False  # the outermost motor lane is reserved for buses (needs two lanes)
    parking: bool = False  # cars park at the edge of the road
    # Lateral distance in metres from which a merging lane arrives on the forward and on the backward side; 0 for a
    # plain lane drop, None without a merging lane.
    merge_out: float | None = None
    merge_in: float | None = None
    double_line: bool = True  # the middle is a double solid line (dashed otherwise)


@dataclass(slots=True)
class Lane:
    """One lane segment, driven from its first to its last point; other lanes are given by their index."""

    index: int  # position in ``Network.lanes``
    center: Array  # [N, 2] metres
    left: Array  # [N, 2] boundary, left in driving direction
    right: Array  # [N, 2]
    length: Array  # [N] arc length of the centreline
    width: float  # at the start, metres
    kind: str  # "VEHICLE", "BIKE" or "BUS"
    speed: float  # speed limit, m/s
    marks: tuple[str, str] = ("NONE", "NONE")  # paint on the left and right boundary
    road: int = -1  # -1 inside a junction
    junction: int = -1  # -1 on a road
    turn: int = 0  # inside a junction 1 = left, 0 = straight, -1 = right; 0 on roads
    arms: tuple[int, int] = (-1, -1)  # inside a junction the arms at its start and end
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    left_neighbor: int | None = None  # of an innermost lane: the oncoming lane
    right_neighbor: int | None = None
    merging: bool = False  # ends by joining another lane


@dataclass(slots=True)
class Road:
    """A road with its lanes; "forward" is the direction of its reference line."""

    index: int  # position in ``Network.roads``
    spec: RoadSpec
    points: Array  # [N, 2] reference line between the two directions, vertices 1 m apart
    heading: Array  # [N] direction of the reference line
    cuts: list[int]  # [S + 1] vertex numbers at which lane segments begin and end
    half_out: Array  # [N] paved width in metres on the forward (right) side
    half_in: Array  # [N] and on the backward (left) side
    # Lane index by (section, forward?, name), name "0", "1", ..., "bike" or "merge".
    slots: dict[tuple[int, bool, str], int] = field(default_factory=dict)

    def side(self, section: int, forward: bool) -> list[int]:
        """Return the lane indices of one direction in one section, innermost first."""
        lanes = ((name, lane) for (s, f, name), lane in self.slots.items() if s == section and f == forward)
        order = {"merge": 98, "bike": 99}
        return [lane for _, lane in sorted(lanes, key=lambda item: order.get(item[0]) or int(item[0]))]


@dataclass(slots=True)
class Arm:
    """One mouth of a junction."""

    index: int  # position in ``Network.arms``
    junction: int
    road: int
    at_start: bool  # the road begins here (otherwise it ends here)
    angle: float  # radians, pointing away from the junction
    crosswalk: bool  # a pedestrian crossing is painted across it
    phase: int  # 0 or 1, the half of the signal cycle with green light (only under "signal" control)
    major: bool  # has priority (only under "priority" control)


@dataclass(slots=True)
class Junction:
    """A junction: ``control`` is "signal", "stop" or "priority"; signals have a cycle and an offset in s."""

    index: int
    control: str
    cycle: float
    start: float
    arms: list[int] = field(default_factory=list)

    def green(self, phase: int, time: float) -> bool:
        """Return whether arms of ``phase`` may enter at ``time`` (s); each half ends with 3 s of red for all."""
        if self.control != "signal":
            return True
        in_cycle = (time + self.start) % self.cycle
        half = self.cycle / 2
        return phase * half <= in_cycle < (phase + 1) * half - 3.0


@dataclass(slots=True)
class Network:
    """All streets of a scene; every ``index`` of a part is its position in one of these lists."""

    roads: list[Road]
    lanes: list[Lane]
    arms: list[Arm]
    junctions: list[Junction]
    conflict: Bools  # [L, L] whether two lanes inside junctions exclude each other
    shared: Array  # [L, L] metres that two lanes with the same predecessor run together before they part

    def arm_point(self, arm: Arm, outward: ArrayLike, left: ArrayLike) -> Array:
        """Return points [N, 2], ``outward`` [N] m from the mouth of ``arm``, ``left`` [N] m of its axis."""
        road = self.roads[arm.road]
        along = np.clip(np.asarray(outward, dtype=np.float64), 0.0, len(road.points) - 1.0)
        side = np.asarray(left, dtype=np.float64)
        if not arm.at_start:
            along, side = len(road.points) - 1.0 - along, -side
        vertex = np.arange(len(road.points), dtype=np.float64)
        return offset(at_length(road.points, vertex, along), np.interp(along, vertex, road.heading), side)

    def arm_halves(self, arm: Arm, outward: float) -> tuple[float, float]:
        """Return the paved metres left and right of the axis of ``arm``, ``outward`` metres along it."""
        road = self.roads[arm.road]
        vertex = min(round(outward), len(road.points) - 1)
        if arm.at_start:
            return float(road.half_in[vertex]), float(road.half_out[vertex])
        return float(road.half_out[-1 - vertex]), float(road.half_in[-1 - vertex])

    def crosswalk_edges(self, arm: Arm) -> tuple[Array, Array]:
        """Return the two edges [2, 2] of the pedestrian crossing on ``arm``, from its left to its right kerb."""
        left, right = self.arm_halves(arm, CROSSWALK_M[1])
        near, far = (self.arm_point(arm, np.full(2, d), np.array((left, -right))) for d in CROSSWALK_M)
        return near, far

    def incoming(self, arm: Arm) -> list[int]:
        """Return the lanes that enter the junction at ``arm``, innermost first."""
        road = self.roads[arm.road]
        return road.side(0, False) if arm.at_start else road.side(len(road.cuts) - 2, True)

    def outgoing(self, arm: Arm) -> list[int]:
        """Return the lanes that leave the junction at ``arm``, innermost first."""
        road = self.roads[arm.road]
        return road.side(0, True) if arm.at_start else road.side(len(road.cuts) - 2, False)


# ---- roads ---------------------------------------------------------------------------------------------------------


def make_road(index: int, spec: RoadSpec, points: Array, cuts: list[int]) -> Road:
    """Return a road along ``points`` [N, 2] (1 m apart) without lanes."""
    base = spec.lanes * spec.width + spec.bike * BIKE_WIDTH_M + spec.parking * PARKING_WIDTH_M + 0.4
    road = Road(index, spec, points, headings(points), cuts, np.full(len(points), base), np.full(len(points), base))
    for forward, half in ((True, road.half_out), (False, road.half_in)):
        for section in range(len(cuts) - 1):
            profile = _merge_profile(road, section, forward)
            if profile is not None:
                stretch = slice(cuts[section], cuts[section + 1] + 1)
                half[stretch] = np.maximum(half[stretch], profile + spec.width / 2 + 0.4)
    return road


def add_lanes(road: Road, lanes: list[Lane]) -> None:
    """Append all lane segments of ``road`` to ``lanes`` and link them along and across the road."""
    sections = range(len(road.cuts) - 1)
    for section in sections:
        for forward in (True, False):
            _add_section(road, lanes, section, forward)
    for (section, forward, name), index in road.slots.items():
        following = section + 1 if forward else section - 1
        if following not in sections:
            continue
        target = road.slots.get((following, forward, name))
        if target is None:  # a merging lane runs into the outermost lane
            target = road.slots[(following, forward, str(road.spec.lanes - 1))]
            lanes[index].merging = True
        lanes[index].successors.append(target)
        lanes[target].predecessors.append(index)


def _merge_profile(road: Road, section: int, forward: bool) -> Array | None:
    """Return the distance [n] of the merging lane's centre from the middle, None without one."""
    reach = road.spec.merge_out if forward else road.spec.merge_in
    if reach is None:
        return None
    last = len(road.cuts) - 2
    sections_before = section if forward else last - section
    along = np.linspace(0.0, 1.0, road.cuts[section + 1] - road.cuts[section] + 1)
    if not forward:
        along = 1.0 - along
    inner = (road.spec.lanes - 0.5) * road.spec.width
    if sections_before == 0:
        return inner + road.spec.width + reach * (1.0 - smoothstep(along))
    if sections_before == 1:
        return inner + road.spec.width * (1.0 - smoothstep(along))
    return None


def _strips(road: Road, section: int, forward: bool) -> list[tuple[str, str, Array, float]]:
    """Return (name, kind, centre distance [n], width) of each lane of one direction, innermost first."""
    spec = road.spec
    ones = np.ones(road.cuts[section + 1] - road.cuts[section] + 1)
    strips = []
    for number in range(spec.lanes):
        kind = "BUS" if spec.bus and number == spec.lanes - 1 else "VEHICLE"
        strips.append((str(number), kind, ones * (number + 0.5) * spec.width, spec.width))
    profile = _merge_profile(road, section, forward)
    if profile is not None:
        strips.append(("merge", "VEHICLE", profile, spec.width))
    if spec.bike:
        strips.append(("bike", "BIKE", ones * (spec.lanes * spec.width + BIKE_WIDTH_M / 2), BIKE_WIDTH_M))
    return strips


def _add_section(road: Road, lanes: list[Lane], section: int, forward: bool) -> None:
    stretch = slice(road.cuts[section], road.cuts[section + 1] + 1)
    points, heading = road.points[stretch], road.heading[stretch]
    sign = -1.0 if forward else 1.0
    order = slice(None) if forward else slice(None, None, -1)
    strips = _strips(road, section, forward)
    previous: int | None = None
    for number, (name, kind, center, width) in enumerate(strips):
        middle, inner, outer = (offset(points, heading, sign * (center + shift))[order] for shift in (0.0, -width / 2, width / 2))
        lane = Lane(len(lanes), middle, inner, outer, arc_length(middle), width, kind, road.spec.speed, road=road.index)
        lane.marks = _marks(road.spec, kind, number == 0, number == len(strips) - 1)
        lane.left_neighbor = previous
        if previous is not None:
            lanes[previous].right_neighbor = lane.index
        road.slots[(section, forward, name)] = previous = lane.index
        lanes.append(lane)
    if not forward:
        backward_lane, forward_lane = road.slots[(section, False, "0")], road.slots[(section, True, "0")]
        lanes[backward_lane].left_neighbor, lanes[forward_lane].left_neighbor = forward_lane, backward_lane


def _marks(spec: RoadSpec, kind: str, innermost: bool, outermost: bool) -> tuple[str, str]:
    middle = "DOUBLE_SOLID_YELLOW" if spec.double_line else "DASHED_YELLOW"
    left = middle if innermost else "SOLID_WHITE" if kind != "VEHICLE" else "DASHED_WHITE"
    right = ("NONE" if spec.parking else "SOLID_WHITE") if outermost else "DASHED_WHITE"
    return left, right


# ---- junctions -----------------------------------------------------------------------------------------------------


def connect(network: Network, junction: Junction) -> None:
    """Add the lanes inside ``junction`` for every permitted movement and link them to the roads."""
    lanes, arms = network.lanes, [network.arms[i] for i in junction.arms]
    for source in arms:
        entering = [lanes[i] for i in network.incoming(source)]
        turns = {}
        for target in arms:
            angle = float(wrap(target.angle - source.angle - np.pi))
            if target is not source:
                turns[target.index] = 0 if abs(angle) < _STRAIGHT_RAD else 1 if angle > 0 else -1
        for target_index, turn in turns.items():
            target = network.arms[target_index]
            leaving = [lanes[i] for i in network.outgoing(target)]
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
        # With left turns, a wide road may reserve its inner lane for them.
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
    heading_in, heading_out = float(arms[0].angle + np.pi), float(arms[1].angle)
    center = bridge(first.center[-1], heading_in, last.center[0], heading_out, 1.0)
    length = arc_length(center)
    direction = headings(center)
    half = 0.5 * (first.width + (last.width - first.width) * length / length[-1])
    left, right = offset(center, direction, half), offset(center, direction, -half)
    left[0], left[-1], right[0], right[-1] = first.left[-1], last.left[0], first.right[-1], last.right[0]
    kind = "VEHICLE" if last.kind == "VEHICLE" else first.kind
    lane = Lane(len(network.lanes), center, left, right, length, first.width, kind, first.speed, turn=turn)
    lane.junction, lane.arms = arms[0].junction, (arms[0].index, arms[1].index)
    lane.predecessors.append(first.index)
    lane.successors.append(last.index)
    first.successors.append(lane.index)
    last.predecessors.append(lane.index)
    network.lanes.append(lane)


def find_conflicts(network: Network) -> None:
    """Fill ``network.conflict`` and ``network.shared`` for all pairs of lanes inside the same junction."""
    lanes = network.lanes
    network.conflict = np.zeros((len(lanes), len(lanes)), dtype=np.bool_)
    network.shared = np.zeros((len(lanes), len(lanes)))
    for junction in network.junctions:
        inside = [lane for lane in lanes if lane.junction == junction.index]
        ids = np.array([lane.index for lane in inside])
        samples = np.stack([at_length(k.center, k.length, np.linspace(0.0, k.length[-1], 14)) for k in inside])
        gap = samples[:, None, :, None] - samples[None, :, None, :]
        distance = np.hypot(gap[..., 0], gap[..., 1])  # [C, C, 14, 14]
        close = distance.min(axis=(2, 3)) < _CLEARANCE_M
        source = np.array([lane.predecessors[0] for lane in inside])
        target = np.array([lane.successors[0] for lane in inside])
        siblings = source[:, None] == source[None, :]
        conflict = (close | (target[:, None] == target[None, :])) & ~siblings
        network.conflict[np.ix_(ids, ids)] = conflict
        apart = distance.min(axis=3) > _CLEARANCE_M  # samples of the first lane beyond the common stretch
        together = np.where(apart.any(axis=2), apart.argmax(axis=2), apart.shape[2] - 1) / (apart.shape[2] - 1)
        length = np.array([lane.length[-1] for lane in inside])
        np.fill_diagonal(siblings, False)
        network.shared[np.ix_(ids, ids)] = np.where(siblings, together * length[:, None], 0.0)
