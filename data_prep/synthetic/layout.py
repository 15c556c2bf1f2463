"""Random street layouts: one or two junctions, or an open road with merging lanes; bends everywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_prep.synthetic.curves import Array, integrate, smoothstep, wrap
from data_prep.synthetic.network import Arm, Junction, Network, Road, RoadSpec, add_lanes, connect, find_conflicts, make_road

_ATTEMPTS = 40


@dataclass(frozen=True, slots=True)
class _Site:
    """Plan of a junction: center [2], direction of each arm in radians, cross-section of each arm, radius in metres."""

    center: Array
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
            _add_open_road(network, rng)
        else:
            _add_junctions(network, rng, "four" if bend == 0.0 else kind, bend)
        if bend == 0.0 or _fits(network):
            break
    for road in network.roads:
        add_lanes(road, network.lanes)
    for junction in network.junctions:
        connect(network, junction)
    find_conflicts(network)
    return network


def _random_street(rng: np.random.Generator, bike: bool, bus_share: float) -> RoadSpec:
    """Draw the cross-section of a street; ``bus_share`` of the streets with several lanes have a bus lane."""
    lanes = int(rng.choice([1, 2, 3], p=[0.52, 0.38, 0.10]))
    bus = bool(lanes > 1 and rng.random() < bus_share)
    speed = float(rng.choice([8.9, 11.2, 13.4, 15.6], p=[0.2, 0.4, 0.3, 0.1]))
    parking = bool(rng.random() < 0.4 and lanes < 3)
    return RoadSpec(lanes, float(rng.uniform(3.1, 3.7)), speed, bike, bus, parking, double_line=bool(rng.random() < 0.7))


def _add_open_road(network: Network, rng: np.random.Generator) -> None:
    lanes = int(rng.integers(1, 4))
    merges = [float(rng.choice([0.0, rng.uniform(7.0, 13.0)])) if rng.random() < 0.75 else None for _ in range(2)]
    if merges == [None, None]:
        merges[0] = 0.0
    spec = RoadSpec(lanes, float(rng.uniform(3.3, 3.8)), float(rng.uniform(11.0, 17.0)))
    spec = replace(spec, merge_out=merges[0], merge_in=merges[1])
    points = _random_curve(rng, np.zeros(2), float(rng.uniform(-np.pi, np.pi)), int(rng.integers(220, 280)), spec, 1.0)
    points = points - points[len(points) // 2]
    last = len(points) - 1
    cuts = [0, 60, 100, last - 100, last - 60, last]
    if last - 200 < 10:
        cuts = [0, 60, last - 100, last - 60, last]
    network.roads.append(make_road(0, spec, points, cuts))


def _add_junctions(network: Network, rng: np.random.Generator, kind: str, bend: float) -> None:
    bike = bool(rng.random() < 0.35)
    bus_share = 0.4 if kind == "four" else 0.0  # a bus lane must continue straight across the junction
    main = _random_street(rng, bike, bus_share)
    base = float(rng.uniform(-np.pi, np.pi))
    count = {"four": 4, "three": 3}.get(kind) or int(rng.choice([3, 4]))
    first = _random_site(rng, np.zeros(2), base, count, (main, _random_street(rng, bike, bus_share)))
    near = _add_junction(network, rng)
    if kind != "double":
        _add_arm_roads(network, rng, near, first, 0, bend)
        return
    _add_arm_roads(network, rng, near, first, 1, bend)
    spec = replace(first.specs[0], merge_out=None, merge_in=None)
    length = int(rng.integers(55, 95))
    road = _add_road(network, rng, (first, first.angles[0], spec), length, bend)
    _attach(network, near, road, True, first.angles[0])
    heading = float(road.heading[-1])
    count = int(rng.choice([3, 4]))
    second = _random_site(rng, road.points[-1], heading + np.pi, count, (spec, _random_street(rng, bike, bus_share)))
    center = road.points[-1] + second.radius * np.array((np.cos(heading), np.sin(heading)))
    second = replace(second, center=center)
    far = _add_junction(network, rng)
    _attach(network, far, road, False, heading + np.pi)
    _add_arm_roads(network, rng, far, second, 1, bend)


def _random_site(rng: np.random.Generator, center: Array, base: float, count: int, specs: tuple[RoadSpec, RoadSpec]) -> _Site:
    """Draw a junction with its first arm towards ``base``; arms alternate between the two cross-sections."""
    if count == 4:
        turns, kinds = [0.0, 0.5, 1.0, 1.5], [0, 1, 0, 1]
    elif rng.random() < 0.6:
        turns, kinds = [0.0, 1.0, float(rng.choice([0.5, 1.5]))], [0, 0, 1]
    else:  # the first arm is the stem of the T
        turns, kinds = [0.0, 0.5, 1.5], [0, 1, 1]
    skew = float(rng.normal(0.0, 0.12))
    angles = []
    for arm, (turn, kind) in enumerate(zip(turns, kinds, strict=True)):
        jitter = 0.0 if arm == 0 else float(np.clip(rng.normal(0.0, 0.07), -0.15, 0.15)) + skew * kind
        angles.append(base + turn * np.pi + jitter)
    half = max(spec.lanes * spec.width + 1.7 * spec.bike + 2.4 * spec.parking for spec in specs)
    narrowest = min(abs(float(wrap(a - b))) for i, a in enumerate(angles) for b in angles[:i])
    radius = half / np.tan(min(narrowest, np.pi / 2) / 2) + float(rng.uniform(4.5, 8.0))
    return _Site(center, angles, [specs[kind] for kind in kinds], float(radius))


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


def _add_arm_roads(network: Network, rng: np.random.Generator, junction: Junction, site: _Site, first: int, bend: float) -> None:
    """Add a road to the border of the map for each arm from number ``first`` on."""
    for angle, spec in zip(site.angles[first:], site.specs[first:], strict=True):
        if rng.random() < 0.15 and not (spec.bike or spec.bus or spec.parking) and spec.lanes < 3:
            drop, ramp = rng.random() < 0.6, rng.random() < 0.6
            spec = replace(spec, merge_out=0.0 if drop else None, merge_in=float(rng.uniform(0.0, 9.0)) if ramp else None)
        road = _add_road(network, rng, (site, angle, spec), int(rng.integers(95, 140)), bend)
        _attach(network, junction, road, True, angle)
        network.arms[-1].crosswalk = bool(rng.random() < 0.75)


def _add_road(network: Network, rng: np.random.Generator, arm: tuple[_Site, float, RoadSpec], length: int, bend: float) -> Road:
    """Append a road that leaves a site in a direction."""
    site, angle, spec = arm
    start = site.center + site.radius * np.array((np.cos(angle), np.sin(angle)))
    points = _random_curve(rng, start, angle, length, spec, bend)
    parts = [0.0, 0.4, 0.7, 1.0] if spec.merge_out is not None or spec.merge_in is not None else [0.0, 0.55, 1.0]
    road = make_road(len(network.roads), spec, points, [round(p * length) for p in parts])
    network.roads.append(road)
    return road


def _random_curve(rng: np.random.Generator, start: Array, angle: float, length: int, spec: RoadSpec, bend: float) -> Array:
    """Draw a road's middle line [length + 1, 2]: gently curved or with one sharp bend."""
    along = np.arange(length) + 0.5
    # The kerb on the inside of a bend must still be a smooth curve, so wide roads bend less.
    tightest = 1.0 / (spec.lanes * spec.width + 2.4 * spec.parking + 16.0)
    if rng.random() < 0.3 and length > 90:
        middle, reach = float(rng.uniform(0.5, 0.65)) * length, float(rng.uniform(15.0, 26.0))
        peak = float(rng.choice([-1.0, 1.0])) * float(rng.uniform(0.4, 1.0)) * tightest
        profile = smoothstep((reach - np.abs(along - middle)) / 10.0)
    else:
        peak = float(np.clip(rng.normal(0.0, 0.0045), -0.009, 0.009))
        wave = np.sin(along / length * np.pi * float(rng.choice([1.0, 2.0])))
        profile = smoothstep((along - 10.0) / 20.0) * wave
    return integrate(start, angle, bend * peak * profile)


def _fits(network: Network) -> bool:
    """Return whether roads are far enough apart except at the junctions that join them."""
    ends: dict[int, dict[int, bool]] = {road.index: {} for road in network.roads}
    for arm in network.arms:
        ends[arm.road][arm.junction] = arm.at_start
    for road in network.roads:
        for other in network.roads[: road.index]:
            points, other_points = road.points[::4], other.points[::4]
            for junction in ends[road.index].keys() & ends[other.index].keys():
                points = points[9:] if ends[road.index][junction] else points[:-9]
                other_points = other_points[9:] if ends[other.index][junction] else other_points[:-9]
            gap = points[:, None] - other_points[None, :]
            nearest = float(np.hypot(gap[..., 0], gap[..., 1]).min())
            half_widths = (max(r.half_out.max(), r.half_in.max()) for r in (road, other))
            if nearest < float(sum(half_widths)) + 7.0:
                return False
    return True
