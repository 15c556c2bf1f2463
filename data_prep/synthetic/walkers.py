"""Pedestrians: along the pavement, waiting at the kerb, over the crosswalk, or just standing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Ints, resample, soften
from data_prep.synthetic.junction import CROSSWALK_M, Arm, Network

_KERB_M = 1.3  # distance from the kerb to where people wait


@dataclass(slots=True)
class Walkers:
    """Pedestrians; arrays over W people.

    Attributes:
        xy: [W, P, 2] paths sampled every metre (the last point is repeated).
        end: [W] length of each path in metres.
        speed: [W] walking speed in m/s, 0 for people who stand.
        kerb, across: [W] path length at which they step on and off a crosswalk, infinite without one.
        arm: [W] arm whose crosswalk they use, -1 for none.
        at: [W] path length at the beginning.
    """

    xy: Array
    end: Array
    speed: Array
    kerb: Array
    across: Array
    arm: Ints
    at: Array


def draw_walkers(network: Network, rng: np.random.Generator, most: int = 16) -> Walkers:
    """Draw up to ``most`` pedestrians around the junctions of ``network``; none without junction."""
    paths: list[Array] = []
    kerbs: list[tuple[float, float]] = []
    arms: list[int] = []
    busy = float(rng.uniform(0.0, 1.0))
    for arm in network.arms:
        for _ in range(int(rng.poisson(0.9 * busy))):
            if arm.crosswalk:
                points, kerb, across = _crossing(network, rng, arm)
                paths.append(points)
                kerbs.append((kerb, across))
                arms.append(arm.index)
        for _ in range(int(rng.poisson(0.8 * busy))):
            paths.append(_along(network, rng, arm))
            kerbs.append((np.inf, np.inf))
            arms.append(-1)
    paths, kerbs, arms = paths[:most], kerbs[:most], arms[:most]
    count = len(paths)
    longest = max((len(p) for p in paths), default=2) + 2
    xy = np.zeros((count, longest, 2))
    for i, points in enumerate(paths):
        xy[i, : len(points)] = points
        xy[i, len(points) :] = points[-1]
    gates = np.array(kerbs).reshape(count, 2)
    speed = np.clip(rng.normal(1.35, 0.2, count), 0.8, 2.0) * np.where(rng.random(count) < 0.06, 1.9, 1.0)
    stands = (rng.random(count) < 0.2) & ~np.isfinite(gates[:, 0])
    # Those who cross reach the kerb some time during the scene; the others are anywhere on their way.
    until_kerb = np.minimum(np.where(np.isfinite(gates[:, 0]), gates[:, 0], 0.0) - 1.0, speed * 15.0)
    length = np.array([len(p) - 1.0 for p in paths])
    start = np.where(np.isfinite(gates[:, 0]), gates[:, 0] - rng.uniform(0.0, 1.0, count) * until_kerb - 1.0, 0.0)
    return Walkers(
        xy, length, np.where(stands, 0.0, speed), gates[:, 0], gates[:, 1],
        np.array(arms, dtype=np.int64),
        np.where(np.isfinite(gates[:, 0]), np.maximum(start, 0.0), rng.uniform(0, 8, count)),
    )  # fmt: skip


def _pavement(network: Network, arm: Arm, outward: Array, side: float, beyond: float) -> Array:
    """Return points [N, 2] ``beyond`` metres outside the kerb, left (side 1) or right (-1) of ``arm``."""
    lateral = np.empty(len(outward))
    for i, distance in enumerate(outward):
        left, right = network.arm_halves(arm, float(distance))
        lateral[i] = side * ((left if side > 0 else right) + beyond)
    return network.arm_point(arm, outward, lateral)


def _crossing(network: Network, rng: np.random.Generator, arm: Arm) -> tuple[Array, float, float]:
    """Return a path over the crosswalk of ``arm`` and the path lengths of stepping on and off the road."""
    side = float(rng.choice([-1.0, 1.0]))
    middle = float(rng.uniform(CROSSWALK_M[0] + 0.5, CROSSWALK_M[1] - 0.5))
    walk_in, walk_out = rng.uniform(8.0, 26.0), rng.uniform(10.0, 30.0)
    before = _pavement(network, arm, middle + np.arange(walk_in, 0.0, -1.0), side, _KERB_M)
    ends = np.concatenate([_pavement(network, arm, np.array([middle]), s, _KERB_M) for s in (side, -side)])
    after = _pavement(network, arm, middle + np.arange(1.0, walk_out), -side, _KERB_M)
    over = resample(ends, 1.0)
    points = np.concatenate((before, over, after))
    points = points + rng.normal(0.0, 0.25, 2)
    # Vertices are about a metre apart, so that a vertex number serves as path length.
    kerb, across = float(len(before)), float(len(before) + len(over) - 1)
    return soften(points), kerb, across


def _along(network: Network, rng: np.random.Generator, arm: Arm) -> Array:
    """Return a path along the pavement of ``arm``, towards the junction or away from it."""
    side = float(rng.choice([-1.0, 1.0]))
    last = float(len(network.roads[arm.road].points) - 1)
    begin = float(rng.uniform(6.0, max(7.0, last - 45.0)))
    outward = begin + np.arange(0.0, min(44.0, last - begin), 1.0)
    points = _pavement(network, arm, outward, side, float(rng.uniform(1.2, 3.0)))
    if rng.random() < 0.5:
        points = points[::-1]
    return soften(points)
