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


@dataclass(frozen=True)
class RoadSpec:
    """Cross-section of a two-way road; both directions have the same."""

    lanes: int  # motor lanes per direction, at least 1
    width: float  # of a motor lane, metres
    speed: float  # speed limit, m/s
    bike: bool = False  # a bicycle lane outside the motor lanes
    bus: bool = False  # the outermost motor lane is reserved for buses (needs two lanes)
    parking: bool = False  # cars park at the edge of the road
    double_line: bool = True  # the middle is a double solid line (dashed otherwise)
    # Lateral distance in metres from which a merging lane arrives on the backward and on the forward side; 0 for a
    # plain lane drop, None without a merging lane.
    merge: tuple[float | None, float | None] = (None, None)


@dataclass(eq=False)
class Lane:
    """One lane segment, driven from its first to its last point; other lanes are given by their index."""

    index: int  # position in ``Network.lanes``
    center: Array  # [N, 2] metres
    left: Array  # [N, 2] boundary, left in driving direction
    right: Array  # [N, 2]
    width: float  # at the start, metres
    kind: str  # "VEHICLE", "BIKE" or "BUS"
    speed: float  # speed limit, m/s
    marks: tuple[str, str] = ("NONE", "NONE")  # paint on the left and right boundary
    junction: Junction | None = None  # that the lane crosses, None on a road
    turn: int = 0  # inside a junction 1 = left, 0 = straight, -1 = right; 0 on roads
    arms: tuple[Arm, ...] = ()  # inside a junction the arms at its start and end
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    left_neighbor: int | None = None  # of an innermost lane: the oncoming lane
    right_neighbor: int | None = None
    merging: bool = False  # ends by joining another lane

    def __post_init__(self) -> None:
        self.along = arc_length(self.center)  # [N] metres
        self.length = float(self.along[-1])


@dataclass(eq=False)
class Road:
    """A road with its lanes; "forward" is the direction of its reference line."""

    spec: RoadSpec
    points: Array  # [N, 2] reference line between the two directions, vertices 1 m apart
    cuts: list[int]  # [S + 1] vertex numbers at which lane segments begin and end
    # Indices of the lanes by (section, forward?) and name "0", "1", ..., "merge" or "bike", innermost first.
    lanes: dict[tuple[int, bool], dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec, count = self.spec, len(self.points)
        self.heading = headings(self.points)  # [N] direction of the reference line
        # [2, N] paved width in metres on the backward (left) and on the forward (right) side
        self.half = np.full((2, count), spec.lanes * spec.width + spec.bike * BIKE_WIDTH_M + spec.parking * PARKING_WIDTH_M + 0.4)
        for forward in (False, True):
            for section in range(len(self.cuts) - 1):
                profile = self.merge_profile(section, forward)
                if profile is not None:
                    half = self.half[int(forward), self.cuts[section] : self.cuts[section + 1] + 1]
                    np.maximum(half, profile + spec.width / 2 + 0.4, out=half)

    def merge_profile(self, section: int, forward: bool) -> Array | None:
        """Return the distance [n] of the merging lane's centre from the middle, None without one."""
        reach = self.spec.merge[forward]
        sections_before = section if forward else len(self.cuts) - 2 - section
        if reach is None or sections_before > 1:
            return None
        along = np.linspace(0.0, 1.0, self.cuts[section + 1] - self.cuts[section] + 1)
        share = 1.0 - smoothstep(along if forward else 1.0 - along)
        width, inner = self.spec.width, (self.spec.lanes - 0.5) * self.spec.width
        return inner + width * share if sections_before else inner + width + reach * share


@dataclass(eq=False)
class Junction:
    """A junction: ``control`` is "signal", "stop" or "priority"; signals have a cycle and an offset in s."""

    center: Array  # [2] metres
    radius: float  # distance of the arms from the center, metres
    control: str
    cycle: float
    start: float
    arms: list[Arm] = field(default_factory=list)


@dataclass(eq=False)
class Arm:
    """One mouth of a junction."""

    index: int  # position in ``Network.arms``
    junction: Junction
    road: Road
    at_start: bool  # the road begins here (otherwise it ends here)
    angle: float  # radians, pointing away from the junction
    major: bool  # has priority (under "priority" control), or the first half of the signal cycle
    crosswalk: bool = True  # a pedestrian crossing is painted across it

    def green(self, time: float) -> bool:
        """Return whether agents may enter at ``time`` (s); each half of a cycle ends with 3 s of red for all."""
        junction, half = self.junction, self.junction.cycle / 2
        begin = 0.0 if self.major else half
        return junction.control != "signal" or begin <= (time + junction.start) % junction.cycle < begin + half - 3.0

    def point(self, outward: ArrayLike, left: ArrayLike) -> Array:
        """Return points [N, 2], ``outward`` [N] m from the mouth, ``left`` [N] m of the axis."""
        vertex = np.arange(len(self.road.points), dtype=np.float64)
        along, side = np.clip(outward, 0.0, vertex[-1]), np.asarray(left)
        if not self.at_start:
            along, side = vertex[-1] - along, -side
        return offset(at_length(self.road.points, vertex, along), np.interp(along, vertex, self.road.heading), side)

    def halves(self, outward: float) -> Array:
        """Return the paved metres [2] left and right of the axis, ``outward`` metres along it."""
        vertex = min(round(outward), len(self.road.points) - 1)
        return self.road.half[:, vertex] if self.at_start else self.road.half[::-1, -1 - vertex]

    def crosswalk_edges(self) -> list[Array]:
        """Return the two edges [2, 2] of the pedestrian crossing, from its left to its right kerb."""
        left, right = self.halves(CROSSWALK_M[1])
        return [self.point(np.full(2, distance), np.array((left, -right))) for distance in CROSSWALK_M]

    def lanes(self, entering: bool) -> list[int]:
        """Return the lanes that enter or leave the junction here, innermost first."""
        section = 0 if self.at_start else len(self.road.cuts) - 2
        return list(self.road.lanes[section, self.at_start != entering].values())


@dataclass(eq=False)
class Network:
    """All streets of a scene; every ``index`` of a part is its position in one of these lists."""

    roads: list[Road] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    junctions: list[Junction] = field(default_factory=list)
    conflict: Bools = field(init=False)  # [L, L] whether two lanes inside junctions exclude each other
    shared: Array = field(init=False)  # [L, L] metres that two lanes with the same predecessor run together before they part

    def add_lanes(self) -> None:
        """Add the lanes of all roads and junctions, and compare the lanes inside each junction."""
        for road in self.roads:
            _add_road_lanes(road, self.lanes)
        for junction in self.junctions:
            for source in junction.arms:
                _add_connectors(source, self.lanes)
        self.shared = np.zeros((len(self.lanes), len(self.lanes)))
        self.conflict = self.shared > 0.0
        for junction in self.junctions:
            _compare_lanes(self, junction)


def _add_road_lanes(road: Road, lanes: list[Lane]) -> None:
    """Append all lane segments of ``road`` to ``lanes`` and link them along and across the road."""
    for section in range(len(road.cuts) - 1):
        for forward in (True, False):
            _add_section(road, lanes, section, forward)
        one, other = (road.lanes[section, forward]["0"] for forward in (True, False))
        lanes[one].left_neighbor, lanes[other].left_neighbor = other, one
    for (section, forward), names in road.lanes.items():
        following = road.lanes.get((section + 1 if forward else section - 1, forward), {})
        for name, index in names.items() if following else ():
            lanes[index].merging = name not in following  # such a lane runs into the outermost motor lane
            _link(lanes[index], lanes[following.get(name, following[str(road.spec.lanes - 1)])])


def _add_section(road: Road, lanes: list[Lane], section: int, forward: bool) -> None:
    spec, stretch = road.spec, slice(road.cuts[section], road.cuts[section + 1] + 1)
    points, heading = road.points[stretch], road.heading[stretch]
    ones = np.ones(len(points))
    strips = {str(i): ("VEHICLE", ones * (i + 0.5) * spec.width, spec.width) for i in range(spec.lanes)}
    if spec.bus:
        strips[str(spec.lanes - 1)] = ("BUS", *strips[str(spec.lanes - 1)][1:])
    profile = road.merge_profile(section, forward)
    if profile is not None:
        strips["merge"] = ("VEHICLE", profile, spec.width)
    if spec.bike:
        strips["bike"] = ("BIKE", ones * (spec.lanes * spec.width + BIKE_WIDTH_M / 2), BIKE_WIDTH_M)
    sign, order = (-1.0, slice(None)) if forward else (1.0, slice(None, None, -1))
    names = road.lanes[section, forward] = {name: len(lanes) + i for i, name in enumerate(strips)}
    first, last = len(lanes), len(lanes) + len(strips) - 1
    for index, (kind, center, width) in zip(names.values(), strips.values(), strict=True):
        middle, inner, outer = (offset(points, heading, sign * (center + shift))[order] for shift in (0.0, -width / 2, width / 2))
        left = "SOLID_WHITE" if kind != "VEHICLE" else "DASHED_WHITE"
        if index == first:
            left = "DOUBLE_SOLID_YELLOW" if spec.double_line else "DASHED_YELLOW"
        right = "DASHED_WHITE" if index < last else "NONE" if spec.parking else "SOLID_WHITE"
        lanes.append(Lane(index, middle, inner, outer, width, kind, spec.speed, (left, right)))
        lanes[index].left_neighbor = index - 1 if index > first else None
        lanes[index].right_neighbor = index + 1 if index < last else None


def _link(before: Lane, after: Lane) -> None:
    before.successors.append(after.index)
    after.predecessors.append(before.index)


def _add_connectors(source: Arm, lanes: list[Lane]) -> None:
    """Append a lane for every permitted movement from ``source`` through its junction, linked to the roads."""
    turns: dict[Arm, int] = {}
    for target in source.junction.arms:
        angle = float(wrap(target.angle - source.angle - np.pi))
        if target is not source:
            turns[target] = 0 if abs(angle) < _STRAIGHT_RAD else 1 if angle > 0 else -1
    for target, turn in turns.items():
        entering, leaving = ([lanes[i] for i in arm.lanes(arm is source)] for arm in (source, target))
        for first, last in _movements(entering, leaving, turn, set(turns.values())):
            center = bridge(first.center[-1], float(source.angle + np.pi), last.center[0], float(target.angle), 1.0)
            heading, along = headings(center), arc_length(center)
            half = 0.5 * (first.width + (last.width - first.width) * along / along[-1])
            left, right = offset(center, heading, half), offset(center, heading, -half)
            left[0], left[-1], right[0], right[-1] = first.left[-1], last.left[0], first.right[-1], last.right[0]
            kind = "VEHICLE" if last.kind == "VEHICLE" else first.kind
            lane = Lane(len(lanes), center, left, right, first.width, kind, first.speed, turn=turn, arms=(source, target))
            lane.junction = source.junction
            lanes.append(lane)
            _link(first, lane)
            _link(lane, last)


def _movements(entering: list[Lane], leaving: list[Lane], turn: int, turns: set[int]) -> list[tuple[Lane, Lane]]:
    """Return the pairs of lanes that a turn connects: left from the inner lane, right from the outer one."""
    cars_in, cars_out = ([lane for lane in lanes if lane.kind == "VEHICLE"] for lanes in (entering, leaving))
    if turn == 1:
        # At the stem of a T every lane but the outermost may turn left, so that none is a dead end.
        chosen = range(1 if 0 in turns else max(1, len(cars_in) - 1))
    else:
        # With left turns, a wide road may reserve its inner lane for them.
        chosen = range(1 if len(cars_in) > 2 and 1 in turns else 0, len(cars_in))
    pairs = [(cars_in[i], cars_out[min(i, len(cars_out) - 1)]) for i in chosen]
    if turn == -1:
        pairs = [(cars_in[-1], cars_out[-1])]
    for kind in ("BUS", "BIKE"):
        special_in = [lane for lane in entering if lane.kind == kind]
        special_out = [lane for lane in leaving if lane.kind == kind] or cars_out[-1:]
        if special_in and (turn == 0 or (kind == "BIKE" and turn == -1) or 0 not in turns):
            pairs.append((special_in[0], special_out[-1]))
    return pairs


def _compare_lanes(network: Network, junction: Junction) -> None:
    """Fill ``network.conflict`` and ``network.shared`` for all pairs of lanes inside ``junction``."""
    inside = [lane for lane in network.lanes if lane.junction is junction]
    block = np.ix_(*[[lane.index for lane in inside]] * 2)
    samples = np.stack([at_length(k.center, k.along, np.linspace(0.0, k.length, 14)) for k in inside])
    gap = samples[:, None, :, None] - samples[None, :, None, :]
    distance = np.hypot(gap[..., 0], gap[..., 1])  # [C, C, 14, 14]
    close = distance.min(axis=(2, 3)) < _CLEARANCE_M
    source, target = np.array([(lane.predecessors[0], lane.successors[0]) for lane in inside]).T
    siblings = source[:, None] == source
    network.conflict[block] = (close | (target[:, None] == target)) & ~siblings
    apart = distance.min(axis=3) > _CLEARANCE_M  # samples of the first lane beyond the common stretch
    together = np.where(apart.any(axis=2), apart.argmax(axis=2), 13) / 13
    np.fill_diagonal(siblings, False)
    network.shared[block] = np.where(siblings, together * np.array([[lane.length] for lane in inside]), 0.0)
