"""Random street layouts: one or two junctions, or an open road with merging lanes; bends everywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_prep.synthetic.curves import Array, integrate, smoothstep, wrap
from data_prep.synthetic.junction import Arm, Junction, Network, connect, find_conflicts
from data_prep.synthetic.road import Road, RoadSpec, add_lanes, make_road

_ATTEMPTS = 40


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a junction goes: centre [2], direction of each arm in radians, cross-section of each arm."""

    centre: Array
    angles: list[float]
    specs: list[RoadSpec]
    radius: float


def random_network(rng: np.random.Generator) -> Network:
    """Return a street network of about 250 m across around the origin, drawn from ``rng``.

    Layouts in which two roads come close to each other away from their junction are drawn again; after 40
    failures a straight crossing is returned, which always fits.
    """
    kind = str(rng.choice(["four", "three", "double", "open"], p=[0.36, 0.22, 0.30, 0.12]))
    for attempt in range(_ATTEMPTS):
        bend = 1.0 if attempt < _ATTEMPTS - 1 else 0.0
        network = Network([], [], [], [], np.zeros((0, 0), dtype=np.bool_), np.zeros((0, 0)))
        if kind == "open":
            _open_road(network, rng)
        else:
            _junctions(network, rng, "four" if bend == 0.0 else kind, bend)
        if bend == 0.0 or _fits(network):
            break
    for road in network.roads:
        add_lanes(road, network.lanes)
    for junction in network.junctions:
        connect(network, junction)
    if network.junctions:
        find_conflicts(network)
    else:
        network.conflict = np.zeros((len(network.lanes),) * 2, dtype=np.bool_)
        network.shared = np.zeros((len(network.lanes),) * 2)
    return network


def _street(rng: np.random.Generator, bike: bool, bus_share: float) -> RoadSpec:
    """Draw the cross-section of a street; ``bus_share`` of those with several lanes have a bus lane."""
    lanes = int(rng.choice([1, 2, 3], p=[0.52, 0.38, 0.10]))
    bus = bool(lanes > 1 and rng.random() < bus_share)
    speed = float(rng.choice([8.9, 11.2, 13.4, 15.6], p=[0.2, 0.4, 0.3, 0.1]))
    parking = bool(rng.random() < 0.4 and lanes < 3)
    return RoadSpec(lanes, float(rng.uniform(3.1, 3.7)), speed, bike, bus, parking, double_line=bool(rng.random() < 0.7))


def _open_road(network: Network, rng: np.random.Generator) -> None:
    lanes = int(rng.integers(1, 4))
    merges = [float(rng.choice([0.0, rng.uniform(7.0, 13.0)])) if rng.random() < 0.75 else None for _ in range(2)]
    if merges == [None, None]:
        merges[0] = 0.0
    spec = RoadSpec(lanes, float(rng.uniform(3.3, 3.8)), float(rng.uniform(11.0, 17.0)))
    spec = replace(spec, merge_out=merges[0], merge_in=merges[1])
    start = np.zeros(2)
    points = _curve(rng, start, float(rng.uniform(-np.pi, np.pi)), int(rng.integers(220, 280)), spec, 1.0)
    points = points - points[len(points) // 2]
    last = len(points) - 1
    cuts = [0, 60, 100, last - 100, last - 60, last]
    if last - 200 < 10:
        cuts = [0, 60, last - 100, last - 60, last]
    network.roads.append(make_road(0, spec, points, cuts))


def _junctions(network: Network, rng: np.random.Generator, kind: str, bend: float) -> None:
    bike = bool(rng.random() < 0.35)
    bus_share = 0.4 if kind == "four" else 0.0  # a bus lane must go on across the junction
    main = _street(rng, bike, bus_share)
    base = float(rng.uniform(-np.pi, np.pi))
    count = {"four": 4, "three": 3}.get(kind) or int(rng.choice([3, 4]))
    first = _site(rng, np.zeros(2), base, count, (main, _street(rng, bike, bus_share)))
    joint = _add_junction(network, rng)
    if kind != "double":
        for angle, spec in zip(first.angles, first.specs, strict=True):
            _add_arm_road(network, rng, first, (joint, angle, spec), bend)
        return
    for angle, spec in zip(first.angles[1:], first.specs[1:], strict=True):
        _add_arm_road(network, rng, first, (joint, angle, spec), bend)
    spec = replace(first.specs[0], merge_out=None, merge_in=None)
    length = int(rng.integers(55, 95))
    road = _lay(network, rng, (first, first.angles[0], spec), length, bend)
    _attach(network, joint, road, True, first.angles[0])
    heading = float(road.heading[-1])
    second = _site(rng, road.points[-1], heading + np.pi, int(rng.choice([3, 4])), (spec, _street(rng, bike, bus_share)))
    centre = road.points[-1] + second.radius * np.array((np.cos(heading), np.sin(heading)))
    second = replace(second, centre=centre)
    far = _add_junction(network, rng)
    _attach(network, far, road, False, heading + np.pi)
    for angle, arm_spec in zip(second.angles[1:], second.specs[1:], strict=True):
        _add_arm_road(network, rng, second, (far, angle, arm_spec), bend)


def _site(rng: np.random.Generator, centre: Array, base: float, count: int, specs: tuple[RoadSpec, RoadSpec]) -> _Site:
    """Draw a junction whose first arm points to ``base``; arms alternate between the two cross-sections."""
    if count == 4:
        turns, kinds = [0.0, 0.5, 1.0, 1.5], [0, 1, 0, 1]
    elif rng.random() < 0.6:
        turns, kinds = [0.0, 1.0, float(rng.choice([0.5, 1.5]))], [0, 0, 1]
    else:  # the first arm is the stem of the T
        turns, kinds = [0.0, 0.5, 1.5], [0, 1, 1]
    skew = float(rng.normal(0.0, 0.12))
    angles = []
    for place, (turn, kind) in enumerate(zip(turns, kinds, strict=True)):
        jitter = 0.0 if place == 0 else float(np.clip(rng.normal(0.0, 0.07), -0.15, 0.15)) + skew * kind
        angles.append(base + turn * np.pi + jitter)
    half = max(spec.lanes * spec.width + 1.7 * spec.bike + 2.4 * spec.parking for spec in specs)
    narrowest = min(abs(float(wrap(a - b))) for i, a in enumerate(angles) for b in angles[:i])
    radius = half / np.tan(min(narrowest, np.pi / 2) / 2) + float(rng.uniform(4.5, 8.0))
    return _Site(centre, angles, [specs[kind] for kind in kinds], float(radius))


def _add_junction(network: Network, rng: np.random.Generator) -> Junction:
    control = str(rng.choice(["signal", "stop", "priority"], p=[0.4, 0.2, 0.4]))
    cycle = float(rng.uniform(24.0, 40.0))
    junction = Junction(len(network.junctions), control, cycle, float(rng.uniform(0.0, cycle)))
    network.junctions.append(junction)
    return junction


def _attach(network: Network, junction: Junction, road: Road, at_start: bool, angle: float) -> None:
    """Make one end of ``road`` an arm of ``junction``; its first arm and the one opposite have priority."""
    first = network.arms[junction.arms[0]].angle if junction.arms else angle
    across = abs(np.sin(angle - first)) > 0.7
    arm = Arm(len(network.arms), junction.index, road.index, at_start, angle, True, int(across), not across)
    network.arms.append(arm)
    junction.arms.append(arm.index)


def _add_arm_road(
    network: Network,
    rng: np.random.Generator,
    site: _Site,
    what: tuple[Junction, float, RoadSpec],
    bend: float,
) -> None:
    junction, angle, spec = what
    if rng.random() < 0.15 and not (spec.bike or spec.bus or spec.parking) and spec.lanes < 3:
        drop, ramp = rng.random() < 0.6, rng.random() < 0.6
        spec = replace(spec, merge_out=0.0 if drop else None, merge_in=float(rng.uniform(0.0, 9.0)) if ramp else None)
    road = _lay(network, rng, (site, angle, spec), int(rng.integers(95, 140)), bend)
    _attach(network, junction, road, True, angle)
    network.arms[-1].crosswalk = bool(rng.random() < 0.75)


def _lay(network: Network, rng: np.random.Generator, what: tuple[_Site, float, RoadSpec], length: int, bend: float) -> Road:
    """Append the road that leaves a site in a direction."""
    site, angle, spec = what
    start = site.centre + site.radius * np.array((np.cos(angle), np.sin(angle)))
    points = _curve(rng, start, angle, length, spec, bend)
    parts = [0.0, 0.4, 0.7, 1.0] if spec.merge_out is not None or spec.merge_in is not None else [0.0, 0.55, 1.0]
    road = make_road(len(network.roads), spec, points, [round(p * length) for p in parts])
    network.roads.append(road)
    return road


def _curve(rng: np.random.Generator, start: Array, angle: float, length: int, spec: RoadSpec, bend: float) -> Array:
    """Draw a road's middle line [length + 1, 2]: gently curved or with one sharp bend."""
    where = np.arange(length) + 0.5
    # Inside of a bend the kerb must still be a sensible curve, so wide roads bend less.
    tightest = 1.0 / (spec.lanes * spec.width + 2.4 * spec.parking + 16.0)
    if rng.random() < 0.3 and length > 90:
        middle, reach = float(rng.uniform(0.5, 0.65)) * length, float(rng.uniform(15.0, 26.0))
        peak = float(rng.choice([-1.0, 1.0])) * float(rng.uniform(0.4, 1.0)) * tightest
        profile = smoothstep((reach - np.abs(where - middle)) / 10.0)
    else:
        peak = float(np.clip(rng.normal(0.0, 0.0045), -0.009, 0.009))
        wave = np.sin(where / length * np.pi * float(rng.choice([1.0, 2.0])))
        profile = smoothstep((where - 10.0) / 20.0) * wave
    return integrate(start, angle, bend * peak * profile, 1.0)[0]


def _fits(network: Network) -> bool:
    """Return whether roads keep clear of each other except at the junctions that join them."""
    ends = {road.index: {} for road in network.roads}  # type: dict[int, dict[int, bool]]
    for arm in network.arms:
        ends[arm.road][arm.junction] = arm.at_start
    for road in network.roads:
        for other in network.roads[: road.index]:
            own, their = road.points[::4], other.points[::4]
            for junction in ends[road.index].keys() & ends[other.index].keys():
                own = own[9:] if ends[road.index][junction] else own[:-9]
                their = their[9:] if ends[other.index][junction] else their[:-9]
            gap = own[:, None] - their[None, :]
            near = float(np.hypot(gap[..., 0], gap[..., 1]).min())
            widest = float(max(road.half_out.max(), road.half_in.max()))
            if near < widest + float(max(other.half_out.max(), other.half_in.max())) + 7.0:
                return False
    return True
