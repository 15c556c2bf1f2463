"""The pedestrians of a scene."""

from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, Ints, equally_spaced, smooth
from data_prep.synthetic.network import CROSSWALK_M, Arm, Network

_MAX_PEDESTRIANS = 16
_KERB_M = 1.3  # distance from the kerb at which pedestrians wait


class Pedestrians(NamedTuple):
    """W pedestrians: along the pavement, over a crosswalk, or standing."""

    xy: Array  # [W, P, 2] paths sampled every metre (the last point is repeated)
    end: Array  # [W] length of the path, metres
    speed: Array  # [W] walking speed in m/s, 0 for standing pedestrians
    kerb: Array  # [W] path length at which the crosswalk begins, infinite without one
    across: Array  # [W] and at which it ends
    arm: Ints  # [W] arm of the crosswalk, -1 for none
    at: Array  # [W] path length at the beginning


class _Walk(NamedTuple):
    """One pedestrian: a row of `Pedestrians`."""

    path: Array  # [P, 2] points 1 m apart
    kerb: float = np.inf
    across: float = np.inf
    arm: int = -1


def random_pedestrians(network: Network, rng: np.random.Generator) -> Pedestrians:
    """Draw up to 16 pedestrians around the junctions of ``network``; none without junction."""
    walks: list[_Walk] = []
    busy = rng.uniform(0.0, 1.0)
    for arm in network.arms:
        num_crossing = rng.poisson(0.9 * busy)
        if arm.crosswalk:
            for _ in range(num_crossing):
                walks.append(_crossing(rng, arm))
        for _ in range(rng.poisson(0.8 * busy)):
            walks.append(_along_pavement(rng, arm))
    walks = walks[:_MAX_PEDESTRIANS]
    count = len(walks)

    # Paths as one array of equal lengths.
    length = np.array([len(walk.path) - 1.0 for walk in walks])
    num_samples = int(length.max(initial=1.0)) + 3
    xy = np.zeros((count, num_samples, 2))
    for i, walk in enumerate(walks):
        missing = num_samples - len(walk.path)
        xy[i] = np.pad(walk.path, ((0, missing), (0, 0)), mode="edge")

    crosswalks = np.array([(walk.kerb, walk.across, walk.arm) for walk in walks])
    kerb, across, arm_index = crosswalks.reshape(count, 3).T
    crosses = np.isfinite(kerb)
    speed = np.clip(rng.normal(1.35, 0.2, count), 0.8, 2.0)
    runs = rng.random(count) < 0.06
    speed = speed * np.where(runs, 1.9, 1.0)
    stands = (rng.random(count) < 0.2) & ~crosses
    # Pedestrians that cross reach the kerb some time during the scene; the others start anywhere.
    until_kerb = np.minimum(np.where(crosses, kerb, 0.0) - 1.0, speed * 15.0)
    start = kerb - rng.uniform(0.0, 1.0, count) * until_kerb - 1.0
    anywhere = rng.uniform(0, 8, count)
    return Pedestrians(
        xy=xy,
        end=length,
        speed=np.where(stands, 0.0, speed),
        kerb=kerb,
        across=across,
        arm=arm_index.astype(np.int64),
        at=np.where(crosses, np.maximum(start, 0.0), anywhere),
    )


def _pavement(arm: Arm, outward: Array, side: float, beyond: float) -> Array:
    """Return points [N, 2] ``beyond`` metres outside the kerb.

    ``outward`` [N] is the distance from the mouth of ``arm``, ``side`` 1 (left) or -1 (right).
    """
    side_index = 0 if side > 0 else 1
    half = np.array([arm.halves(distance)[side_index] for distance in outward.tolist()])
    return arm.point(outward, side * (half + beyond))


def _crossing(rng: np.random.Generator, arm: Arm) -> _Walk:
    """Draw a walk over the crosswalk of ``arm``."""
    side = float(rng.choice([-1.0, 1.0]))
    middle = rng.uniform(CROSSWALK_M[0] + 0.5, CROSSWALK_M[1] - 0.5)
    walk_in = rng.uniform(8.0, 26.0)
    walk_out = rng.uniform(10.0, 30.0)
    before = _pavement(arm, middle + np.arange(walk_in, 0.0, -1.0), side, _KERB_M)
    near_kerb = _pavement(arm, np.array([middle]), side, _KERB_M)
    far_kerb = _pavement(arm, np.array([middle]), -side, _KERB_M)
    over = equally_spaced(np.concatenate([near_kerb, far_kerb]), 1.0)
    after = _pavement(arm, middle + np.arange(1.0, walk_out), -side, _KERB_M)
    points = np.concatenate((before, over, after)) + rng.normal(0.0, 0.25, 2)
    # Vertices are about a metre apart, so that a vertex number serves as path length.
    return _Walk(
        path=smooth(points),
        kerb=float(len(before)),
        across=float(len(before) + len(over) - 1),
        arm=arm.index,
    )


def _along_pavement(rng: np.random.Generator, arm: Arm) -> _Walk:
    """Draw a walk along the pavement of ``arm``, towards the junction or away from it."""
    side = float(rng.choice([-1.0, 1.0]))
    last = float(len(arm.road.points) - 1)
    begin = rng.uniform(6.0, max(7.0, last - 45.0))
    outward = begin + np.arange(0.0, min(44.0, last - begin), 1.0)
    points = _pavement(arm, outward, side, rng.uniform(1.2, 3.0))
    if rng.random() < 0.5:
        points = points[::-1]
    return _Walk(smooth(points))
