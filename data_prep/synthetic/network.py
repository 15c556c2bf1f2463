"""Street networks: plane curves, roads with their lanes, junctions and the lanes through them; and random layouts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# ---- plane curves as polylines: metres and radians -------------------------------------------------------------------

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def wrap(angle: ArrayLike) -> Array:
    """Return angles (radians, any shape) folded into [-pi, pi)."""
    return np.mod(np.asarray(angle) + np.pi, 2.0 * np.pi) - np.pi


def smoothstep(x: ArrayLike) -> Array:
    """Return the quintic ramp from 0 to 1, flat at both ends; ``x`` is clipped to [0, 1]."""
    t = np.clip(np.asarray(x), 0.0, 1.0)
    return t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


def direction(heading: ArrayLike) -> Array:
    """Return unit vectors [..., 2] in the directions ``heading`` [...] (radians)."""
    return np.stack((np.cos(heading), np.sin(heading)), axis=-1)


def offset(points: Array, heading: Array, lateral: ArrayLike) -> Array:
    """Return ``points`` [..., 2] moved by ``lateral`` metres [...] to the left of ``heading`` [...]."""
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    return points + normal * np.asarray(lateral)[..., None]


def headings(points: Array) -> Array:
    """Return the unwrapped tangent direction [..., N] in radians of the polylines ``points`` [..., N, 2]."""
    tangent = np.gradient(points, axis=-2)
    return np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=-1)


def arc_length(points: Array) -> Array:
    """Return the distance [N] in metres along the polyline ``points`` [N, 2] up to each vertex."""
    return np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))))


def at_length(points: Array, length: Array, where: Array) -> Array:
    """Interpolate ``points`` [N, 2] with arc lengths ``length`` [N] at the arc lengths ``where`` [M]; returns [M, 2]."""
    return np.stack(
        (np.interp(where, length, points[:, 0]), np.interp(where, length, points[:, 1])), axis=-1
    )


def resample(points: Array, step: float) -> Array:
    """Return ``points`` [N, 2] as [M, 2] with equal spacing close to ``step`` metres; both ends are kept."""
    length = arc_length(points)
    return at_length(
        points, length, np.linspace(0.0, length[-1], max(2, round(float(length[-1]) / step) + 1))
    )


def bridge(start: Array, heading_in: float, end: Array, heading_out: float, step: float) -> Array:
    """Return a cubic Bezier curve [N, 2] from ``start`` [2] to ``end`` [2] with the given directions at both ends.

    Vertices are about ``step`` metres apart.
    """
    # This handle length makes a quarter turn close to a circle, and a straight line without a turn.
    turn = abs(float(wrap(heading_out - heading_in)))
    handle = float(np.hypot(*(end - start))) * (1.0 / 3.0 + 0.035 * turn**2)
    inner, outer = start + handle * direction(heading_in), end - handle * direction(heading_out)
    t = np.linspace(0.0, 1.0, 40)[:, None]
    curve = (
        (1 - t) ** 3 * start
        + 3 * t * (1 - t) ** 2 * inner
        + 3 * t**2 * (1 - t) * outer
        + t**3 * end
    )
    return resample(curve, step)


def soften(points: Array) -> Array:
    """Return ``points`` [..., N, 2] (N > 4) smoothed over two vertices on either side; the two vertices at each end stay."""
    out, count = points.copy(), points.shape[-2] - 4
    shifted = [
        weight / 9.0 * points[..., i : i + count, :]
        for i, weight in enumerate((1.0, 2.0, 3.0, 2.0, 1.0))
    ]
    out[..., 2:-2, :] = sum(shifted)
    return out


# ---- roads, lanes and junctions --------------------------------------------------------------------------------------

BIKE_WIDTH_M = 1.7
PARKING_WIDTH_M = 2.4
CROSSWALK_M = (
    1.2,
    4.2,
)  # distance from the mouth of the arm to the near and far edge of its crosswalk
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
        self.half = np.full(
            (2, count),
            spec.lanes * spec.width
            + spec.bike * BIKE_WIDTH_M
            + spec.parking * PARKING_WIDTH_M
            + 0.4,
        )
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
        return (
            junction.control != "signal"
            or begin <= (time + junction.start) % junction.cycle < begin + half - 3.0
        )

    def point(self, outward: ArrayLike, left: ArrayLike) -> Array:
        """Return points [N, 2], ``outward`` [N] m from the mouth, ``left`` [N] m of the axis."""
        vertex = np.arange(len(self.road.points), dtype=np.float64)
        along, side = np.clip(outward, 0.0, vertex[-1]), np.asarray(left)
        if not self.at_start:
            along, side = vertex[-1] - along, -side
        return offset(
            at_length(self.road.points, vertex, along),
            np.interp(along, vertex, self.road.heading),
            side,
        )

    def halves(self, outward: float) -> Array:
        """Return the paved metres [2] left and right of the axis, ``outward`` metres along it."""
        vertex = min(round(outward), len(self.road.points) - 1)
        return self.road.half[:, vertex] if self.at_start else self.road.half[::-1, -1 - vertex]

    def crosswalk_edges(self) -> list[Array]:
        """Return the two edges [2, 2] of the pedestrian crossing, from its left to its right kerb."""
        left, right = self.halves(CROSSWALK_M[1])
        return [
            self.point(np.full(2, distance), np.array((left, -right))) for distance in CROSSWALK_M
        ]

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
    conflict: Bools = field(
        init=False
    )  # [L, L] whether two lanes inside junctions exclude each other
    shared: Array = field(
        init=False
    )  # [L, L] metres that two lanes with the same predecessor run together before they part

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
            lanes[index].merging = (
                name not in following
            )  # such a lane runs into the outermost motor lane
            _link(lanes[index], lanes[following.get(name, following[str(road.spec.lanes - 1)])])


def _add_section(road: Road, lanes: list[Lane], section: int, forward: bool) -> None:
    spec, stretch = road.spec, slice(road.cuts[section], road.cuts[section + 1] + 1)
    points, heading = road.points[stretch], road.heading[stretch]
    ones = np.ones(len(points))
    strips = {
        str(i): ("VEHICLE", ones * (i + 0.5) * spec.width, spec.width) for i in range(spec.lanes)
    }
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
        middle, inner, outer = (
            offset(points, heading, sign * (center + shift))[order]
            for shift in (0.0, -width / 2, width / 2)
        )
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
        entering, leaving = (
            [lanes[i] for i in arm.lanes(arm is source)] for arm in (source, target)
        )
        for first, last in _movements(entering, leaving, turn, set(turns.values())):
            center = bridge(
                first.center[-1],
                float(source.angle + np.pi),
                last.center[0],
                float(target.angle),
                1.0,
            )
            heading, along = headings(center), arc_length(center)
            half = 0.5 * (first.width + (last.width - first.width) * along / along[-1])
            left, right = offset(center, heading, half), offset(center, heading, -half)
            left[0], left[-1], right[0], right[-1] = (
                first.left[-1],
                last.left[0],
                first.right[-1],
                last.right[0],
            )
            kind = "VEHICLE" if last.kind == "VEHICLE" else first.kind
            lane = Lane(
                len(lanes),
                center,
                left,
                right,
                first.width,
                kind,
                first.speed,
                turn=turn,
                arms=(source, target),
            )
            lanes.append(lane)
            _link(first, lane)
            _link(lane, last)


def _movements(
    entering: list[Lane], leaving: list[Lane], turn: int, turns: set[int]
) -> list[tuple[Lane, Lane]]:
    """Return the pairs of lanes that a turn connects: left from the inner lane, right from the outer one."""
    cars_in, cars_out = (
        [lane for lane in lanes if lane.kind == "VEHICLE"] for lanes in (entering, leaving)
    )
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
    inside = [lane for lane in network.lanes if lane.arms and lane.arms[0].junction is junction]
    block = np.ix_(*[[lane.index for lane in inside]] * 2)
    samples = np.stack(
        [at_length(k.center, k.along, np.linspace(0.0, k.length, 14)) for k in inside]
    )
    gap = samples[:, None, :, None] - samples[None, :, None, :]
    distance = np.hypot(gap[..., 0], gap[..., 1])  # [C, C, 14, 14]
    close = distance.min(axis=(2, 3)) < _CLEARANCE_M
    source, target = np.array([(lane.predecessors[0], lane.successors[0]) for lane in inside]).T
    siblings = source[:, None] == source
    network.conflict[block] = (close | (target[:, None] == target)) & ~siblings
    apart = (
        distance.min(axis=3) > _CLEARANCE_M
    )  # samples of the first lane beyond the common stretch
    together = np.where(apart.any(axis=2), apart.argmax(axis=2), 13) / 13
    np.fill_diagonal(siblings, False)
    network.shared[block] = np.where(
        siblings, together * np.array([[lane.length] for lane in inside]), 0.0
    )


# ---- random layouts ------------------------------------------------------------------------------------------------

_Arms = list[
    tuple[float, RoadSpec]
]  # direction in radians and cross-section of each arm of a junction


def random_network(rng: np.random.Generator) -> Network:
    """Return a street network of about 250 m across around the origin, drawn from ``rng``.

    Layouts in which two roads come close to each other away from their junction are drawn again (2 %).
    """
    kind = str(rng.choice(["four", "three", "double", "open"], p=[0.36, 0.22, 0.30, 0.12]))
    while True:
        network = Network()
        if kind == "open":
            _add_open_road(network, rng)
        else:
            _add_junctions(network, rng, kind)
        if _fits(network):
            network.add_lanes()
            return network


def _random_street(rng: np.random.Generator, bike: bool, bus_share: float) -> RoadSpec:
    """Draw the cross-section of a street; ``bus_share`` of the streets with several lanes have a bus lane."""
    lanes = int(rng.choice([1, 2, 3], p=[0.52, 0.38, 0.10]))
    bus = lanes > 1 and rng.random() < bus_share
    speed = float(rng.choice([8.9, 11.2, 13.4, 15.6], p=[0.2, 0.4, 0.3, 0.1]))
    parking = rng.random() < 0.4 and lanes < 3
    return RoadSpec(
        lanes, rng.uniform(3.1, 3.7), speed, bike, bus, parking, double_line=rng.random() < 0.7
    )


def _add_open_road(network: Network, rng: np.random.Generator) -> None:
    lanes = int(rng.integers(1, 4))
    forward, backward = (
        float(rng.choice([0.0, rng.uniform(7.0, 13.0)])) if rng.random() < 0.75 else None
        for _ in range(2)
    )
    if forward is None and backward is None:
        forward = 0.0
    spec = RoadSpec(
        lanes, rng.uniform(3.3, 3.8), rng.uniform(11.0, 17.0), merge=(backward, forward)
    )
    points = _random_curve(
        rng, np.zeros(2), rng.uniform(-np.pi, np.pi), int(rng.integers(220, 280)), spec
    )
    last = len(points) - 1
    middle = [100, last - 100] if last >= 210 else [last - 100]
    network.roads.append(
        Road(spec, points - points[len(points) // 2], [0, 60, *middle, last - 60, last])
    )


def _add_junctions(network: Network, rng: np.random.Generator, kind: str) -> None:
    bike = rng.random() < 0.35
    bus_share = (
        0.4 if kind == "four" else 0.0
    )  # a bus lane must continue straight across the junction
    main = _random_street(rng, bike, bus_share)
    base = rng.uniform(-np.pi, np.pi)
    count = {"four": 4, "three": 3}.get(kind) or int(rng.choice([3, 4]))
    near, arms = _add_junction(
        network, rng, base, count, (main, _random_street(rng, bike, bus_share))
    )
    if kind != "double":
        _add_arm_roads(network, rng, near, arms)
        return
    _add_arm_roads(network, rng, near, arms[1:])
    angle, spec = arms[0]
    road = _add_road(network, rng, near, angle, spec, int(rng.integers(55, 95)))
    heading = float(road.heading[-1])
    count = int(rng.choice([3, 4]))
    far, arms = _add_junction(
        network, rng, heading + np.pi, count, (spec, _random_street(rng, bike, bus_share))
    )
    far.center = road.points[-1] + far.radius * direction(heading)
    _attach(network, far, road, False, heading + np.pi)
    _add_arm_roads(network, rng, far, arms[1:])


def _add_junction(
    network: Network,
    rng: np.random.Generator,
    base: float,
    count: int,
    specs: tuple[RoadSpec, RoadSpec],
) -> tuple[Junction, _Arms]:
    """Draw a junction at the origin with its first arm towards ``base``; arms alternate between the two cross-sections."""
    if count == 4:
        turns, kinds = [0.0, 0.5, 1.0, 1.5], [0, 1, 0, 1]
    elif rng.random() < 0.6:
        turns, kinds = [0.0, 1.0, float(rng.choice([0.5, 1.5]))], [0, 0, 1]
    else:  # the first arm is the stem of the T
        turns, kinds = [0.0, 0.5, 1.5], [0, 1, 1]
    skew = rng.normal(0.0, 0.12)
    angles = [base]
    for turn, kind in zip(turns[1:], kinds[1:], strict=True):
        jitter = float(np.clip(rng.normal(0.0, 0.07), -0.15, 0.15)) + skew * kind
        angles.append(base + turn * np.pi + jitter)
    half = max(spec.lanes * spec.width + 1.7 * spec.bike + 2.4 * spec.parking for spec in specs)
    narrowest = min(abs(float(wrap(b - a))) for a, b in combinations(angles, 2))
    radius = half / np.tan(min(narrowest, np.pi / 2) / 2) + rng.uniform(4.5, 8.0)
    control = str(rng.choice(["signal", "stop", "priority"], p=[0.4, 0.2, 0.4]))
    cycle = rng.uniform(24.0, 40.0)
    network.junctions.append(Junction(np.zeros(2), radius, control, cycle, rng.uniform(0.0, cycle)))
    return network.junctions[-1], [
        (angle, specs[kind]) for angle, kind in zip(angles, kinds, strict=True)
    ]


def _add_arm_roads(
    network: Network, rng: np.random.Generator, junction: Junction, arms: _Arms
) -> None:
    """Add a road to the border of the map for each arm."""
    for angle, spec in arms:
        if rng.random() < 0.15 and not (spec.bike or spec.bus or spec.parking) and spec.lanes < 3:
            drop, ramp = rng.random() < 0.6, rng.random() < 0.6
            spec = replace(
                spec, merge=(rng.uniform(0.0, 9.0) if ramp else None, 0.0 if drop else None)
            )
        _add_road(network, rng, junction, angle, spec, int(rng.integers(95, 140)))
        network.arms[-1].crosswalk = rng.random() < 0.75


def _add_road(
    network: Network,
    rng: np.random.Generator,
    junction: Junction,
    angle: float,
    spec: RoadSpec,
    length: int,
) -> Road:
    """Append a road that leaves a junction in a direction."""
    points = _random_curve(
        rng, junction.center + junction.radius * direction(angle), angle, length, spec
    )
    parts = [0.0, 0.55, 1.0] if spec.merge == (None, None) else [0.0, 0.4, 0.7, 1.0]
    network.roads.append(Road(spec, points, [round(part * length) for part in parts]))
    _attach(network, junction, network.roads[-1], True, angle)
    return network.roads[-1]


def _attach(network: Network, junction: Junction, road: Road, at_start: bool, angle: float) -> None:
    """Make one end of ``road`` an arm of ``junction``; its first arm and the one opposite have priority."""
    first = junction.arms[0].angle if junction.arms else angle
    network.arms.append(
        Arm(
            len(network.arms),
            junction,
            road,
            at_start,
            angle,
            major=abs(np.sin(angle - first)) <= 0.7,
        )
    )
    junction.arms.append(network.arms[-1])


def _random_curve(
    rng: np.random.Generator, start: Array, angle: float, length: int, spec: RoadSpec
) -> Array:
    """Draw a road's middle line [length + 1, 2]: gently curved or with one sharp bend."""
    along = np.arange(length) + 0.5
    # The kerb on the inside of a bend must still be a smooth curve, so wide roads bend less.
    tightest = 1.0 / (spec.lanes * spec.width + 2.4 * spec.parking + 16.0)
    if rng.random() < 0.3 and length > 90:
        middle, reach = rng.uniform(0.5, 0.65) * length, rng.uniform(15.0, 26.0)
        peak = float(rng.choice([-1.0, 1.0])) * rng.uniform(0.4, 1.0) * tightest
        profile = smoothstep((reach - np.abs(along - middle)) / 10.0)
    else:
        peak = float(np.clip(rng.normal(0.0, 0.0045), -0.009, 0.009))
        wave = np.sin(along / length * np.pi * float(rng.choice([1.0, 2.0])))
        profile = smoothstep((along - 10.0) / 20.0) * wave
    # The curvature in 1/m, positive to the left, is constant between two vertices; these are 1 m apart.
    turned = angle + np.concatenate(([0.0], np.cumsum(peak * profile)))
    moves = direction(0.5 * (turned[1:] + turned[:-1]))
    return start + np.concatenate((np.zeros((1, 2)), np.cumsum(moves, axis=0)))


def _fits(network: Network) -> bool:
    """Return whether roads are far enough apart except at the junctions that join them."""
    for one, other in combinations(network.roads, 2):
        points, other_points = one.points[::4], other.points[::4]
        for junction in network.junctions:
            at_start = {arm.road: arm.at_start for arm in junction.arms}
            if one in at_start and other in at_start:
                points = points[9:] if at_start[one] else points[:-9]
                other_points = other_points[9:] if at_start[other] else other_points[:-9]
        gap = points[:, None] - other_points[None, :]
        if np.hypot(gap[..., 0], gap[..., 1]).min() < one.half.max() + other.half.max() + 7.0:
            return False
    return True
