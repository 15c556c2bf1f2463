"""Sensor model: the tracks that a recording vehicle reports of the world, noisy, limited in range and interrupted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, wrap
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS
from data_prep.synthetic.world import World

FRAGMENT, UNSCORED, SCORED, FOCAL = 0, 1, 2, 3
_NOW, _LAST = NUM_HISTORY - 1, NUM_STEPS - 1
_MIN_STEPS = 10  # shorter sightings are not kept as tracks
_MAX_SCORED = 8


@dataclass(frozen=True)
class Tracks:
    """M recorded tracks over T steps of 0.1 s. Where ``valid`` is False everything else is zero."""

    ids: list[str]  # unique; the recording vehicle is "AV" and comes last
    kinds: list[str]  # Argoverse object types
    categories: Ints  # [M] 0 = fragment, 1 = unscored, 2 = scored, 3 = focal
    xy: Array  # [M, T, 2] metres
    heading: Array  # [M, T] radians in [-pi, pi)
    velocity: Array  # [M, T, 2] m/s
    valid: Bools  # [M, T]
    bodies: Ints  # [M] index of the recorded body in the world

    @property
    def focal(self) -> int:
        """Index of the focal track."""
        return self.categories.tolist().index(FOCAL)


def observe(world: World, rng: np.random.Generator) -> Tracks | None:
    """Record ``world``.

    Returns:
        The tracks, or None if no body can be the focal track or carry the sensors.
    """
    chosen = _choose_ego_and_focal(world, rng)
    if chosen is None:
        return None
    ego, focal, seen = chosen
    roles = dict.fromkeys(_choose_scored(world, rng, seen, [ego, focal]), SCORED) | {focal: FOCAL}
    pieces: list[tuple[int, int, int]] = []  # first and last step of a track, and its body
    for body in np.flatnonzero(seen.any(axis=1)).tolist():
        if body != ego:
            pieces += [(*piece, body) for piece in _sightings(seen[body], rng, always_seen=body in roles)]
    pieces.sort(key=lambda piece: (piece[0], piece[2]))
    pieces.append((0, _LAST, ego))
    categories = [roles.get(body, UNSCORED) if (first, last) == (0, _LAST) else FRAGMENT for first, last, body in pieces]
    first_id = int(rng.integers(1_000, 150_000))
    ids = [str(number) for number in first_id + np.cumsum(rng.integers(1, 30, len(pieces) - 1))]
    first, last, bodies = np.array(pieces, dtype=np.int64).T
    steps = np.arange(NUM_STEPS)
    valid = (steps >= first[:, None]) & (steps <= last[:, None])
    noise = _smooth_noise(rng, len(pieces), 5)
    still = _distance(world.xy[bodies, _LAST], world.xy[bodies, 0]) < 0.1
    scale = np.where(still, 0.25, 1.0) * rng.uniform(0.5, 1.5, len(pieces))
    scale[-1] = 0.2  # the ego vehicle localizes itself more precisely
    noise = noise * scale[:, None, None]
    xy = world.xy[bodies] + 0.04 * np.moveaxis(noise[:, :2], 1, -1)
    velocity = world.velocity[bodies] + 0.06 * np.moveaxis(noise[:, 2:4], 1, -1)
    heading = wrap(world.heading[bodies] + 0.012 * noise[:, 4])
    return Tracks(
        [*ids, "AV"], [world.kind[b] for b in bodies], np.array(categories), np.where(valid[..., None], xy, 0.0),
        np.where(valid, heading, 0.0), np.where(valid[..., None], velocity, 0.0), valid, bodies,
    )  # fmt: skip


def _distance(points: Array, other: Array) -> Array:
    """Return the distances [...] between points [..., 2]."""
    gap = points - other
    return np.hypot(gap[..., 0], gap[..., 1])


def _choose_ego_and_focal(world: World, rng: np.random.Generator) -> tuple[int, int, Bools] | None:
    """Return the ego vehicle, the focal body and the bodies within sensor range [M, T]."""
    complete = world.present.all(axis=1)
    drivers = np.array([k in ("vehicle", "bus") for k in world.kind]) & complete
    drivers[len(world.turn) :] = False
    interest = _interest(world) * complete
    reach = rng.uniform(65.0, 95.0)
    egos = rng.permutation(np.flatnonzero(drivers))
    # Vehicles near the middle of the scene see most; moving vehicles see more than queueing ones.
    queues = _distance(world.xy[egos, _LAST], world.xy[egos, 0]) < 15.0
    order = egos[np.argsort(np.hypot(*world.xy[egos, _NOW].T) // 35.0 + 1.5 * queues, kind="stable")]
    best, chosen = 0.0, None
    for ego in order[:6].tolist():
        near = _distance(world.xy, world.xy[ego]) < reach
        weight = np.where(near.all(axis=1), interest, 0.0)
        weight[ego] = 0.0
        if weight.sum() > best:
            best, chosen = weight.sum(), (ego, weight, near & world.present)
    if chosen is None:
        return None
    ego, weight, seen = chosen
    return ego, int(rng.choice(len(weight), p=weight / best)), seen


def _interest(world: World) -> Array:
    """Return the relative probability [M] of each body to be the focal one; 0 for bodies that hardly move."""
    moved = _distance(world.xy[:, _LAST], world.xy[:, _NOW])
    weight = np.array([{"pedestrian": 0.25, "cyclist": 0.6, "bus": 0.8}.get(k, 1.0) for k in world.kind])
    min_moved = np.array([4.0 if k == "pedestrian" else 9.0 for k in world.kind])
    speed = np.hypot(world.velocity[..., 0], world.velocity[..., 1])[:, _NOW:]
    weight = weight * np.where(np.ptp(speed, axis=1) > 3.5, 2.0, 1.0)
    weight = weight * np.where(np.abs(world.heading[:, _LAST] - world.heading[:, _NOW]) > 0.45, 2.5, 1.0)
    count = len(world.turn)
    weight[:count] *= np.where(world.choices > 1, 10.0, np.where(world.turn < 2, 3.0, 1.0))
    # Left turns wait for oncoming traffic, so that fewer left turns happen during the future.
    weight[:count] *= np.where(world.turn == 1, 1.8, 1.0)
    return np.where(moved > min_moved, weight, 0.0)


def _choose_scored(world: World, rng: np.random.Generator, seen: Bools, leaders: list[int]) -> list[int]:
    """Return further bodies to be scored: always seen, moving, near the focal one or the ego."""
    near = np.minimum(*(_distance(world.xy[:, _NOW], world.xy[i, _NOW]) for i in leaders))
    able = seen.all(axis=1) & (_distance(world.xy[:, _LAST], world.xy[:, 0]) > 2.5)
    able[leaders] = False
    ranked = [i for i in np.argsort(near, kind="stable").tolist() if able[i]]
    return ranked[: int(rng.integers(2, _MAX_SCORED + 1))]


def _sightings(seen: Bools, rng: np.random.Generator, always_seen: bool) -> list[tuple[int, int]]:
    """Split the steps [T] at which a body is in range into (first, last) steps of the tracks that a tracker reports."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], seen, [False])).astype(np.int8)))
    out = []
    for first, stop in edges.reshape(-1, 2).tolist():
        parts = [(first, stop - 1)]
        gaps: list[tuple[int, int]] = []
        if not always_seen and rng.random() < 0.45:  # hidden for a while
            begin = int(rng.integers(first, stop))
            gaps.append((begin, begin + int(rng.integers(4, 45))))
        if not always_seen and rng.random() < 0.25:  # noticed late
            gaps.append((first, first + int(rng.integers(5, 50))))
        for low, high in gaps:
            parts = [part for a, b in parts for part in ((a, min(b, low - 1)), (max(a, high + 1), b))]
        out += [(a, b) for a, b in parts if b - a + 1 >= _MIN_STEPS]
    return out


def _smooth_noise(rng: np.random.Generator, count: int, channels: int) -> Array:
    """Return Gaussian noise [count, channels, T] of unit variance, correlated over about 0.6 s."""
    reach = 12
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / 4.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    white = rng.standard_normal((count, channels, NUM_STEPS + 2 * reach))
    # A plain sum: the rounding of a matrix product differs between linear algebra libraries.
    return sum(weight * white[..., shift : shift + NUM_STEPS] for shift, weight in enumerate(kernel))
