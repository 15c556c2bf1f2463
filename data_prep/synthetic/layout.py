"""Random street layouts: one or two junctions, or an open road with merging lanes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, direction, distance, smoothstep, wrap
from data_prep.synthetic.lanes import add_lanes
from data_prep.synthetic.network import PARKING_WIDTH_M, Arm, Junction, Network, Road, RoadSpec

_MIN_GAP_M = 7.0  # between the paved surfaces of two roads


class _ArmSpec(NamedTuple):
    """An arm of a junction before its road is drawn."""

    angle: float  # radians, pointing away from the junction
    road: RoadSpec


def random_network(rng: np.random.Generator) -> Network:
    """Return a street network of about 250 m across around the origin, drawn from ``rng``.

    Layouts in which two roads come close to each other away from their junction are drawn again
    (2 %).
    """
    kind = str(rng.choice(["four", "three", "double", "open"], p=[0.36, 0.22, 0.30, 0.12]))
    while True:
        network = Network()
        if kind == "open":
            _add_open_road(network, rng)
        else:
            _add_junctions(network, rng, kind)
        if _fits(network):
            add_lanes(network)
            return network


def _add_open_road(network: Network, rng: np.random.Generator) -> None:
    """Add a road without junctions, with a merging lane on at least one side."""
    lanes = int(rng.integers(1, 4))
    forward = _random_ramp(rng)
    backward = _random_ramp(rng)
    if forward is None and backward is None:
        forward = 0.0
    width = rng.uniform(3.3, 3.8)
    speed = rng.uniform(11.0, 17.0)
    spec = RoadSpec(lanes, width, speed, merge=(backward, forward))
    angle = rng.uniform(-np.pi, np.pi)
    length = int(rng.integers(220, 280))
    points = _random_curve(rng, np.zeros(2), angle, length, spec)
    last = len(points) - 1
    cuts = [0, 60, last - 100, last - 60, last]
    if last >= 210:
        cuts.insert(2, 100)
    network.roads.append(Road(spec, points - points[len(points) // 2], cuts))


def _random_ramp(rng: np.random.Generator) -> float | None:
    """Draw one side of ``RoadSpec.merge``."""
    if rng.random() < 0.75:
        return float(rng.choice([0.0, rng.uniform(7.0, 13.0)]))
    return None


def _add_junctions(network: Network, rng: np.random.Generator, kind: str) -> None:
    """Add one junction with "three" or "four" arms, or a "double" junction joined by a road."""
    bike = rng.random() < 0.35
    # A bus lane must continue straight across the junction.
    bus_probability = 0.4 if kind == "four" else 0.0
    main = _random_street(rng, bike, bus_probability)
    base = rng.uniform(-np.pi, np.pi)
    count = {"four": 4, "three": 3}.get(kind) or int(rng.choice([3, 4]))
    side = _random_street(rng, bike, bus_probability)
    junction, arms = _add_junction(network, rng, base, count, (main, side))
    if kind != "double":
        _add_arm_roads(network, rng, junction, arms)
        return

    _add_arm_roads(network, rng, junction, arms[1:])
    angle, spec = arms[0]
    road = _add_road(network, rng, junction, angle, spec, int(rng.integers(55, 95)))
    heading = float(road.heading[-1])
    count = int(rng.choice([3, 4]))
    side = _random_street(rng, bike, bus_probability)
    second, arms = _add_junction(network, rng, heading + np.pi, count, (spec, side))
    second.center = road.points[-1] + second.radius * direction(heading)
    _attach(network, second, road, False, heading + np.pi)
    _add_arm_roads(network, rng, second, arms[1:])


def _random_street(rng: np.random.Generator, bike: bool, bus_probability: float) -> RoadSpec:
    """Draw a cross-section; streets with several lanes may have a bus lane."""
    lanes = int(rng.choice([1, 2, 3], p=[0.52, 0.38, 0.10]))
    bus = lanes > 1 and rng.random() < bus_probability
    speed = float(rng.choice([8.9, 11.2, 13.4, 15.6], p=[0.2, 0.4, 0.3, 0.1]))
    parking = rng.random() < 0.4 and lanes < 3
    width = rng.uniform(3.1, 3.7)
    double_line = rng.random() < 0.7
    return RoadSpec(lanes, width, speed, bike, bus, parking, double_line)


def _add_junction(
    network: Network,
    rng: np.random.Generator,
    base: float,
    count: int,
    specs: tuple[RoadSpec, RoadSpec],
) -> tuple[Junction, list[_ArmSpec]]:
    """Draw a junction at the origin with its first arm towards ``base``.

    Arms alternate between the two cross-sections. Returns the junction and the arms to add.
    """
    # Directions of the arms in half turns, and the cross-section of each.
    if count == 4:
        turns = [0.0, 0.5, 1.0, 1.5]
        kinds = [0, 1, 0, 1]
    elif rng.random() < 0.6:
        turns = [0.0, 1.0, float(rng.choice([0.5, 1.5]))]
        kinds = [0, 0, 1]
    else:  # the first arm is the stem of the T
        turns = [0.0, 0.5, 1.5]
        kinds = [0, 1, 1]

    skew = rng.normal(0.0, 0.12)  # of the crossing road
    angles = [base]
    for turn, kind in zip(turns[1:], kinds[1:], strict=True):
        jitter = float(np.clip(rng.normal(0.0, 0.07), -0.15, 0.15)) + skew * kind
        angles.append(base + turn * np.pi + jitter)

    # The radius is so large that the roads do not overlap.
    half_width = max(spec.half_width for spec in specs)
    narrowest = min(abs(float(wrap(b - a))) for a, b in combinations(angles, 2))
    overlap_m = half_width / np.tan(min(narrowest, np.pi / 2) / 2)
    radius = overlap_m + rng.uniform(4.5, 8.0)
    control = str(rng.choice(["signal", "stop", "priority"], p=[0.4, 0.2, 0.4]))
    cycle = rng.uniform(24.0, 40.0)
    junction = Junction(np.zeros(2), radius, control, cycle, rng.uniform(0.0, cycle))
    network.junctions.append(junction)
    arms = [_ArmSpec(angle, specs[kind]) for angle, kind in zip(angles, kinds, strict=True)]
    return junction, arms


def _add_arm_roads(
    network: Network, rng: np.random.Generator, junction: Junction, arms: list[_ArmSpec]
) -> None:
    """Add a road to the border of the map for each arm; plain roads may have merging lanes."""
    for angle, spec in arms:
        merges = rng.random() < 0.15
        is_plain = spec.lanes < 3 and not (spec.bike or spec.bus or spec.parking)
        if merges and is_plain:
            spec = replace(spec, merge=_random_merge(rng))
        _add_road(network, rng, junction, angle, spec, int(rng.integers(95, 140)))
        network.arms[-1].crosswalk = rng.random() < 0.75


def _random_merge(rng: np.random.Generator) -> tuple[float | None, float | None]:
    """Draw ``RoadSpec.merge``: a ramp towards the junction, a lane drop away from it."""
    backward = None
    forward = None
    drops_lane = rng.random() < 0.6
    has_ramp = rng.random() < 0.6
    if has_ramp:
        backward = rng.uniform(0.0, 9.0)
    if drops_lane:
        forward = 0.0
    return backward, forward


def _add_road(
    network: Network,
    rng: np.random.Generator,
    junction: Junction,
    angle: float,
    spec: RoadSpec,
    length: int,
) -> Road:
    """Append a road of ``length`` metres that leaves a junction in a direction."""
    start = junction.center + junction.radius * direction(angle)
    points = _random_curve(rng, start, angle, length, spec)
    fractions = [0.0, 0.55, 1.0]
    if spec.merge != (None, None):  # three sections: the lane approaches, ends, and is gone
        fractions = [0.0, 0.4, 0.7, 1.0]
    road = Road(spec, points, [round(fraction * length) for fraction in fractions])
    network.roads.append(road)
    _attach(network, junction, road, True, angle)
    return road


def _attach(network: Network, junction: Junction, road: Road, at_start: bool, angle: float) -> None:
    """Make one end of ``road`` an arm of ``junction``.

    The first arm of a junction and the opposite one have priority.
    """
    first_angle = junction.arms[0].angle if junction.arms else angle
    major = abs(np.sin(angle - first_angle)) <= 0.7
    arm = Arm(len(network.arms), junction, road, at_start, angle, major)
    network.arms.append(arm)
    junction.arms.append(arm)


def _random_curve(
    rng: np.random.Generator, start: Array, angle: float, length: int, spec: RoadSpec
) -> Array:
    """Draw a road's middle line [length + 1, 2]: gently curved or with one sharp bend."""
    along = np.arange(length) + 0.5
    # The kerb on the inside of a bend must still be a smooth curve, so wide roads bend less.
    min_radius = spec.lanes * spec.width + PARKING_WIDTH_M * spec.parking + 16.0
    max_curvature = 1.0 / min_radius
    if rng.random() < 0.3 and length > 90:
        middle = rng.uniform(0.5, 0.65) * length
        reach = rng.uniform(15.0, 26.0)
        peak = float(rng.choice([-1.0, 1.0])) * rng.uniform(0.4, 1.0) * max_curvature
        profile = smoothstep((reach - np.abs(along - middle)) / 10.0)
    else:
        peak = float(np.clip(rng.normal(0.0, 0.0045), -0.009, 0.009))
        wave = np.sin(along / length * np.pi * float(rng.choice([1.0, 2.0])))
        profile = smoothstep((along - 10.0) / 20.0) * wave
    # The curvature in 1/m, positive to the left, is constant between two vertices 1 m apart.
    turned = np.concatenate(([0.0], np.cumsum(peak * profile)))
    heading = angle + turned
    moves = direction(0.5 * (heading[1:] + heading[:-1]))
    return start + np.concatenate((np.zeros((1, 2)), np.cumsum(moves, axis=0)))


def _fits(network: Network) -> bool:
    """Return whether roads are far enough apart except at the junctions that join them."""
    for first, second in combinations(network.roads, 2):
        first_points = first.points[::4]
        second_points = second.points[::4]
        for junction in network.junctions:
            at_start = {arm.road: arm.at_start for arm in junction.arms}
            if first in at_start and second in at_start:
                first_points = _without_mouth(first_points, at_start[first])
                second_points = _without_mouth(second_points, at_start[second])
        gap = distance(first_points[:, None], second_points[None, :]).min()
        if gap < first.half.max() + second.half.max() + _MIN_GAP_M:
            return False
    return True


def _without_mouth(points: Array, at_start: bool) -> Array:
    """Leave out the points [N, 2], 4 m apart, next to a junction."""
    return points[9:] if at_start else points[:-9]
