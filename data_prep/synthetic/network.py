"""Street networks: roads with their lanes, junctions with their arms and the lanes through them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from data_prep.synthetic.curves import (
    Array,
    Bools,
    arc_length,
    at_length,
    headings,
    offset,
    smoothstep,
)

BIKE_WIDTH_M = 1.7
PARKING_WIDTH_M = 2.4
EDGE_M = 0.4  # paved strip outside the outermost lane
# Distance from the mouth of the arm to the near and far edge of its crosswalk.
CROSSWALK_M = (1.2, 4.2)
_ALL_RED_S = 3.0  # at the end of each half of a signal cycle


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
    # Lateral distance in metres from which a merging lane arrives on the backward and on the
    # forward side; 0 for a plain lane drop, None without a merging lane.
    merge: tuple[float | None, float | None] = (None, None)

    @property
    def half_width(self) -> float:
        """Distance in metres from the middle to the edge of the outermost lane."""
        width = self.lanes * self.width
        if self.bike:
            width += BIKE_WIDTH_M
        if self.parking:
            width += PARKING_WIDTH_M
        return width


@dataclass(eq=False)
class Lane:
    """One lane segment, driven from its first to its last point; links are indices of lanes."""

    index: int  # position in ``Network.lanes``
    center: Array  # [N, 2] metres
    left: Array  # [N, 2] boundary, left in driving direction
    right: Array  # [N, 2]
    width: float  # at the start, metres
    kind: str  # "VEHICLE", "BIKE" or "BUS"
    speed: float  # speed limit, m/s
    marks: tuple[str, str] = ("NONE", "NONE")  # paint on the left and right boundary
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
    # Indices of the lanes by (section, forward?) and name "0", "1", ..., "merge" or "bike",
    # innermost first.
    lanes: dict[tuple[int, bool], dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.heading = headings(self.points)  # [N] direction of the reference line
        # [2, N] paved width in metres on the backward (left) and on the forward (right) side
        self.half = np.full((2, len(self.points)), self.spec.half_width + EDGE_M)
        for forward in (False, True):
            for section in range(self.num_sections):
                self._widen_for_merge(section, forward)

    @property
    def num_sections(self) -> int:
        """Number of lane segments along the road."""
        return len(self.cuts) - 1

    def section_slice(self, section: int) -> slice:
        """Return the slice of the vertices of a section, with both ends."""
        return slice(self.cuts[section], self.cuts[section + 1] + 1)

    def merge_profile(self, section: int, forward: bool) -> Array | None:
        """Return the distance [n] of the merging lane's center from the middle, None without one.

        In driving direction, a ramp approaches in the first section and the lane ends with the
        second one.
        """
        ramp_m = self.spec.merge[forward]
        sections_before = section if forward else self.num_sections - 1 - section
        if ramp_m is None or sections_before > 1:
            return None
        count = self.cuts[section + 1] - self.cuts[section] + 1
        progress = np.linspace(0.0, 1.0, count)
        if not forward:
            progress = 1.0 - progress
        remaining = 1.0 - smoothstep(progress)
        outermost = (self.spec.lanes - 0.5) * self.spec.width
        if sections_before == 1:
            return outermost + self.spec.width * remaining
        return outermost + self.spec.width + ramp_m * remaining

    def _widen_for_merge(self, section: int, forward: bool) -> None:
        """Make the paved width large enough for the merging lane, if there is one."""
        profile = self.merge_profile(section, forward)
        if profile is not None:
            half = self.half[int(forward), self.section_slice(section)]
            np.maximum(half, profile + self.spec.width / 2 + EDGE_M, out=half)


@dataclass(eq=False)
class Junction:
    """A junction: ``control`` is "signal", "stop" or "priority"; times of signals are in s."""

    center: Array  # [2] metres
    radius: float  # distance of the arms from the center, metres
    control: str
    cycle: float
    start: float  # time of the cycle at which the scene starts
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
        """Return whether agents may enter at ``time`` (s)."""
        junction = self.junction
        if junction.control != "signal":
            return True
        half_cycle = junction.cycle / 2
        begin = 0.0 if self.major else half_cycle
        cycle_time = (time + junction.start) % junction.cycle
        return begin <= cycle_time < begin + half_cycle - _ALL_RED_S

    def point(self, outward: ArrayLike, left: ArrayLike) -> Array:
        """Return points [N, 2], ``outward`` [N] m from the mouth, ``left`` [N] m of the axis."""
        road = self.road
        vertex = np.arange(len(road.points), dtype=np.float64)
        along = np.clip(outward, 0.0, vertex[-1])
        lateral = np.asarray(left)
        if not self.at_start:
            along = vertex[-1] - along
            lateral = -lateral
        on_axis = at_length(road.points, vertex, along)
        heading = np.interp(along, vertex, road.heading)
        return offset(on_axis, heading, lateral)

    def halves(self, outward: float) -> Array:
        """Return the paved metres [2] left and right of the axis, ``outward`` m from the mouth."""
        vertex = min(round(outward), len(self.road.points) - 1)
        if self.at_start:
            return self.road.half[:, vertex]
        return self.road.half[::-1, -1 - vertex]

    def crosswalk_edges(self) -> list[Array]:
        """Return the near and far edge [2, 2] of the crosswalk, from its left to its right kerb."""
        left, right = self.halves(CROSSWALK_M[1])
        kerbs = np.array((left, -right))
        return [self.point(np.full(2, outward), kerbs) for outward in CROSSWALK_M]

    def lanes(self, entering: bool) -> list[int]:
        """Return the lanes that enter or leave the junction here, innermost first."""
        road = self.road
        section = 0 if self.at_start else road.num_sections - 1
        forward = self.at_start != entering
        return list(road.lanes[section, forward].values())


@dataclass(eq=False)
class Network:
    """All streets of a scene; every ``index`` of a part is its position in one of these lists."""

    roads: list[Road] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    arms: list[Arm] = field(default_factory=list)
    junctions: list[Junction] = field(default_factory=list)
    # [L, L] whether two lanes inside junctions exclude each other
    conflict: Bools = field(init=False)
    # [L, L] metres that two lanes with the same predecessor run together before they part
    common_length_m: Array = field(init=False)
