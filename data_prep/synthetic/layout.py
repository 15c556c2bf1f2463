"""Random street layouts: one or two junctions, or an open road with merging lanes; bends everywhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from data_prep.synthetic.curves import Array, direction, integrate, smoothstep, wrap
from data_prep.synthetic.network import Arm, Junction, Network, Road, RoadSpec

_Arms = list[tuple[float, RoadSpec]]  # direction in radians and cross-section of each arm of a junction


def random_network(rng: np.random.Generator) -> Network:
    """Return a street network of about 250 m across around the origin, drawn from ``rng``.

    Layouts in which two roads come close to each other away from their junction are drawn again (2 % of them).
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
    return RoadSpec(lanes, rng.uniform(3.1, 3.7), speed, bike, bus, parking, double_line=rng.random() < 0.7)


def _add_open_road(network: Network, rng: np.random.Generator) -> None:
    lanes = int(rng.integers(1, 4))
    forward, backward = (float(rng.choice([0.0, rng.uniform(7.0, 13.0)])) if rng.random() < 0.75 else None for _ in range(2))
    if forward is None and backward is None:
        forward = 0.0
    spec = RoadSpec(lanes, rng.uniform(3.3, 3.8), rng.uniform(11.0, 17.0), merge=(backward, forward))
    points = _random_curve(rng, np.zeros(2), rng.uniform(-np.pi, np.pi), int(rng.integers(220, 280)), spec)
    last = len(points) - 1
    middle = [100, last - 100] if last >= 210 else [last - 100]
    network.roads.append(Road(spec, points - points[len(points) // 2], [0, 60, *middle, last - 60, last]))


def _add_junctions(network: Network, rng: np.random.Generator, kind: str) -> None:
    bike = rng.random() < 0.35
    bus_share = 0.4 if kind == "four" else 0.0  # a bus lane must continue straight across the junction
    main = _random_street(rng, bike, bus_share)
    base = rng.uniform(-np.pi, np.pi)
    count = {"four": 4, "three": 3}.get(kind) or int(rng.choice([3, 4]))
    near, arms = _add_junction(network, rng, base, count, (main, _random_street(rng, bike, bus_share)))
    if kind != "double":
        _add_arm_roads(network, rng, near, arms)
        return
    _add_arm_roads(network, rng, near, arms[1:])
    angle, spec = arms[0]
    road = _add_road(network, rng, near, angle, spec, int(rng.integers(55, 95)))
    heading = float(road.heading[-1])
    count = int(rng.choice([3, 4]))
    far, arms = _add_junction(network, rng, heading + np.pi, count, (spec, _random_street(rng, bike, bus_share)))
    far.center = road.points[-1] + far.radius * direction(heading)
    _attach(network, far, road, False, heading + np.pi)
    _add_arm_roads(network, rng, far, arms[1:])


def _add_junction(
    network: Network, rng: np.random.Generator, base: float, count: int, specs: tuple[RoadSpec, RoadSpec]
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
    return network.junctions[-1], [(angle, specs[kind]) for angle, kind in zip(angles, kinds, strict=True)]


def _add_arm_roads(network: Network, rng: np.random.Generator, junction: Junction, arms: _Arms) -> None:
    """Add a road to the border of the map for each arm."""
    for angle, spec in arms:
        if rng.random() < 0.15 and not (spec.bike or spec.bus or spec.parking) and spec.lanes < 3:
            drop, ramp = rng.random() < 0.6, rng.random() < 0.6
            spec = replace(spec, merge=(rng.uniform(0.0, 9.0) if ramp else None, 0.0 if drop else None))
        _add_road(network, rng, junction, angle, spec, int(rng.integers(95, 140)))
        network.arms[-1].crosswalk = rng.random() < 0.75


def _add_road(network: Network, rng: np.random.Generator, junction: Junction, angle: float, spec: RoadSpec, length: int) -> Road:
    """Append a road that leaves a junction in a direction."""
    points = _random_curve(rng, junction.center + junction.radius * direction(angle), angle, length, spec)
    parts = [0.0, 0.55, 1.0] if spec.merge == (None, None) else [0.0, 0.4, 0.7, 1.0]
    network.roads.append(Road(spec, points, [round(part * length) for part in parts]))
    _attach(network, junction, network.roads[-1], True, angle)
    return network.roads[-1]


def _attach(network: Network, junction: Junction, road: Road, at_start: bool, angle: float) -> None:
    """Make one end of ``road`` an arm of ``junction``; its first arm and the one opposite have priority."""
    first = junction.arms[0].angle if junction.arms else angle
    network.arms.append(Arm(len(network.arms), junction, road, at_start, angle, major=abs(np.sin(angle - first)) <= 0.7))
    junction.arms.append(network.arms[-1])


def _random_curve(rng: np.random.Generator, start: Array, angle: float, length: int, spec: RoadSpec) -> Array:
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
    return integrate(start, angle, peak * profile)


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
