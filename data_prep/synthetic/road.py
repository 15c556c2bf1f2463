"""Roads and the lanes painted on them: cross-section, merging lanes, neighbours and successors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from data_prep.synthetic.curves import Array, arc_length, headings, offset, smoothstep

BIKE_WIDTH_M = 1.7
PARKING_WIDTH_M = 2.4


@dataclass(frozen=True, slots=True)
class RoadSpec:
    """Cross-section of a two-way road; both directions look alike.

    Attributes:
        lanes: motor lanes per direction, at least 1.
        width: motor lane width in metres.
        speed: speed limit in m/s.
        bike: whether a bicycle lane runs outside the motor lanes.
        bus: whether the outermost motor lane is reserved for buses (needs two lanes).
        parking: whether cars park outside everything else.
        merge_out: lateral distance in metres from which a merging lane arrives on the forward side, 0 for a
            plain lane drop, None for no such lane.
        merge_in: the same on the backward side.
        double_line: whether the middle is a double solid line (dashed otherwise).
    """

    lanes: int
    width: float
    speed: float
    bike: bool = False
    bus: bool = False
    parking: bool = False
    merge_out: float | None = None
    merge_in: float | None = None
    double_line: bool = True


@dataclass(slots=True)
class Lane:
    """One lane segment, driven from its first to its last point.

    Attributes:
        index: position in ``Network.lanes``.
        centre, left, right: centreline and boundaries [N, 2] in metres, as the driver sees them.
        length: arc length of the centreline [N].
        width: width in metres at the start of the lane.
        kind: "VEHICLE", "BIKE" or "BUS".
        speed: speed limit in m/s.
        marks: paint on the left and right boundary.
        road: road index, -1 inside a junction.
        junction: junction index, -1 on a road.
        turn: inside a junction 1 = left, 0 = straight, -1 = right; 0 on roads.
        arms: inside a junction the arms (global indices) it comes from and leads to.
        predecessors, successors: lane indices.
        left_neighbor, right_neighbor: lane indices; left of an innermost lane is the oncoming one.
        merging: whether this lane ends by joining another.
    """

    index: int
    centre: Array
    left: Array
    right: Array
    length: Array
    width: float
    kind: str
    speed: float
    marks: tuple[str, str] = ("NONE", "NONE")
    road: int = -1
    junction: int = -1
    turn: int = 0
    arms: tuple[int, int] = (-1, -1)
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    left_neighbor: int | None = None
    right_neighbor: int | None = None
    merging: bool = False


@dataclass(slots=True)
class Road:
    """A road with its lanes; "forward" is the direction of its reference line.

    Attributes:
        index: position in ``Network.roads``.
        spec: cross-section.
        points: reference line [N, 2] between the two directions, vertices 1 m apart.
        heading: direction of the reference line [N].
        cuts: vertex numbers at which lane segments begin and end, [S + 1].
        half_out, half_in: paved width in metres on the forward (right) and backward (left) side [N].
        slots: lane index by (section, forward?, name), name "0", "1", ..., "bike" or "merge".
    """

    index: int
    spec: RoadSpec
    points: Array
    heading: Array
    cuts: list[int]
    half_out: Array
    half_in: Array
    slots: dict[tuple[int, bool, str], int] = field(default_factory=dict)

    def side(self, section: int, forward: bool) -> list[int]:
        """Return the lane indices of one direction in one section, innermost first."""
        found = ((name, lane) for (s, f, name), lane in self.slots.items() if s == section and f == forward)
        order = {"merge": 98, "bike": 99}
        return [lane for _, lane in sorted(found, key=lambda item: order.get(item[0]) or int(item[0]))]


def make_road(index: int, spec: RoadSpec, points: Array, cuts: list[int]) -> Road:
    """Return the road of cross-section ``spec`` along ``points`` [N, 2] (1 m apart), still without lanes."""
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
        if target is None:
            # A merging lane has no continuation of its own: it runs into the outermost lane.
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
    travelled = section if forward else last - section
    count = road.cuts[section + 1] - road.cuts[section] + 1
    along = np.linspace(0.0, 1.0, count)
    if not forward:
        along = 1.0 - along
    inner = (road.spec.lanes - 0.5) * road.spec.width
    if travelled == 0:
        return inner + road.spec.width + reach * (1.0 - smoothstep(along))
    if travelled == 1:
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
    spec = road.spec
    stretch = slice(road.cuts[section], road.cuts[section + 1] + 1)
    points, heading = road.points[stretch], road.heading[stretch]
    sign = -1.0 if forward else 1.0
    order = slice(None) if forward else slice(None, None, -1)
    strips = _strips(road, section, forward)
    previous: int | None = None
    for place, (name, kind, centre, width) in enumerate(strips):
        middle, inner, outer = (offset(points, heading, sign * (centre + shift))[order] for shift in (0.0, -width / 2, width / 2))
        lane = Lane(len(lanes), middle, inner, outer, arc_length(middle), width, kind, spec.speed, road=road.index)
        lane.marks = _marks(spec, strips[place][1], place == 0, place == len(strips) - 1)
        lane.left_neighbor = previous
        if previous is not None:
            lanes[previous].right_neighbor = lane.index
        road.slots[(section, forward, name)] = previous = lane.index
        lanes.append(lane)
    if not forward:
        ours, theirs = road.slots[(section, False, "0")], road.slots[(section, True, "0")]
        lanes[ours].left_neighbor, lanes[theirs].left_neighbor = theirs, ours


def _marks(spec: RoadSpec, kind: str, innermost: bool, outermost: bool) -> tuple[str, str]:
    middle = "DOUBLE_SOLID_YELLOW" if spec.double_line else "DASHED_YELLOW"
    left = middle if innermost else "SOLID_WHITE" if kind != "VEHICLE" else "DASHED_WHITE"
    right = ("NONE" if spec.parking else "SOLID_WHITE") if outermost else "DASHED_WHITE"
    return left, right
