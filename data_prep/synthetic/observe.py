"""Sensor model: the tracks that a recording vehicle reports of the world, noisy, limited in range and interrupted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, wrap
from data_prep.synthetic.world import World

FRAGMENT, UNSCORED, SCORED, FOCAL = 0, 1, 2, 3
_MIN_STEPS = 10  # shorter sightings are not kept as tracks
_MAX_SCORED = 8

_Piece = tuple[int, int, int]  # body, first and last step of a track


@dataclass(frozen=True, slots=True)
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


def observe(world: World, rng: np.random.Generator, now: int) -> Tracks | None:
    """Record ``world``; steps up to ``now`` are the history.

    Returns:
        The tracks, or None if no body can be the focal track or carry the sensors.
    """
    chosen = _choose_ego_and_focal(world, rng, now)
    if chosen is None:
        return None
    ego, focal, seen = chosen
    complete: Bools = np.asarray(seen.all(axis=1), dtype=np.bool_)
    scored = _choose_scored(world, rng, complete, (ego, focal), now)
    pieces: list[_Piece] = []
    for body in np.flatnonzero(seen.any(axis=1)):
        if body != ego:
            always_seen = body == focal or body in scored
            pieces += [(int(body), *piece) for piece in _sightings(seen[body], rng, always_seen)]
    pieces.sort(key=lambda piece: (piece[1], piece[0]))
    pieces.append((ego, 0, seen.shape[1] - 1))
    by_body = dict.fromkeys(scored, SCORED) | {focal: FOCAL}
    whole = [0, seen.shape[1] - 1]
    category = [by_body.get(body, UNSCORED) if span == whole else FRAGMENT for body, *span in pieces]
    categories = np.array(category, dtype=np.int64)
    first = int(rng.integers(1_000, 150_000))
    ids = [str(number) for number in first + np.cumsum(rng.integers(1, 30, len(pieces) - 1))]
    return _record(world, rng, pieces, [*ids, "AV"], categories)


def _choose_ego_and_focal(world: World, rng: np.random.Generator, now: int) -> tuple[int, int, Bools] | None:
    """Return the ego vehicle, the focal body and the bodies within sensor range [M, T]."""
    complete = world.present.all(axis=1)
    drivers = np.array([k in ("vehicle", "bus") for k in world.kind]) & complete
    drivers[len(world.turn) :] = False
    interest = _interest(world, now) * complete
    reach = float(rng.uniform(65.0, 95.0))
    egos = rng.permutation(np.flatnonzero(drivers))
    # Vehicles near the middle of the scene see most; moving vehicles see more than queueing ones.
    queues = np.hypot(*(world.xy[egos, -1] - world.xy[egos, 0]).T) < 15.0
    order = egos[np.argsort(np.hypot(*world.xy[egos, now].T) // 35.0 + 1.5 * queues, kind="stable")]
    best: tuple[float, int, Array, Bools] | None = None
    for ego in order[:6]:
        gap = world.xy - world.xy[ego]
        near = np.hypot(gap[..., 0], gap[..., 1]) < reach
        weight = np.where(near.all(axis=1), interest, 0.0)
        weight[ego] = 0.0
        if weight.sum() > (best[0] if best else 0.0):
            best = float(weight.sum()), int(ego), weight, near & world.present
    if best is None:
        return None
    total, ego, weight, seen = best
    return ego, int(rng.choice(len(weight), p=weight / total)), seen


def _interest(world: World, now: int) -> Array:
    """Return the relative probability [M] of each body to be the focal one; 0 for bodies that hardly move."""
    moved = np.hypot(*(world.xy[:, -1] - world.xy[:, now]).T)
    weight = np.array([{"pedestrian": 0.25, "cyclist": 0.6, "bus": 0.8}.get(k, 1.0) for k in world.kind])
    min_moved = np.array([4.0 if k == "pedestrian" else 9.0 for k in world.kind])
    speed = np.hypot(world.velocity[..., 0], world.velocity[..., 1])[:, now:]
    weight = weight * np.where(np.ptp(speed, axis=1) > 3.5, 2.0, 1.0)
    turned = np.abs(world.heading[:, -1] - world.heading[:, now])
    weight = weight * np.where(turned > 0.45, 2.5, 1.0)
    count = len(world.turn)
    weight[:count] *= np.where(world.choices > 1, 10.0, np.where(world.turn < 2, 3.0, 1.0))
    # Left turns wait for oncoming traffic, so that fewer left turns happen during the future.
    weight[:count] *= np.where(world.turn == 1, 1.8, 1.0)
    return np.where(moved > min_moved, weight, 0.0)


def _choose_scored(world: World, rng: np.random.Generator, complete: Bools, leaders: tuple[int, int], now: int) -> set[int]:
    """Return further bodies to be scored: complete, moving, near the focal one or the ego."""
    ego, focal = leaders
    moved = np.hypot(*(world.xy[:, -1] - world.xy[:, 0]).T)
    near = np.minimum(*(np.hypot(*(world.xy[:, now] - world.xy[i, now]).T) for i in (ego, focal)))
    able = complete & (moved > 2.5)
    able[[ego, focal]] = False
    ranked = [int(i) for i in np.argsort(near, kind="stable") if able[i]]
    return set(ranked[: int(rng.integers(2, _MAX_SCORED + 1))])


def _sightings(seen: Bools, rng: np.random.Generator, always_seen: bool) -> list[tuple[int, int]]:
    """Split the steps [T] at which a body is in range into (first, last) steps of the tracks that a tracker reports."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], seen, [False])).astype(np.int8)))
    out = []
    for first, stop in edges.reshape(-1, 2).tolist():
        last = stop - 1
        gaps: list[tuple[int, int]] = []
        if not always_seen and rng.random() < 0.45:  # hidden for a while
            begin = int(rng.integers(first, last + 1))
            gaps.append((begin, begin + int(rng.integers(4, 45))))
        if not always_seen and rng.random() < 0.25:  # noticed late
            gaps.append((first, first + int(rng.integers(5, 50))))
        parts = [(first, last)]
        for low, high in gaps:
            parts = [p for a, b in parts for p in ((a, min(b, low - 1)), (max(a, high + 1), b))]
        out += [(a, b) for a, b in parts if b - a + 1 >= _MIN_STEPS]
    return out


def _record(world: World, rng: np.random.Generator, pieces: list[_Piece], ids: list[str], categories: Ints) -> Tracks:
    """Return the tracks with smooth noise: a tracker's error changes slowly from one step to the next."""
    bodies, first, last = np.array(pieces, dtype=np.int64).T
    steps = world.xy.shape[1]
    valid = (np.arange(steps) >= first[:, None]) & (np.arange(steps) <= last[:, None])
    noise = _smooth_noise(rng, len(pieces), 5, steps)
    still = np.hypot(*(world.xy[bodies, -1] - world.xy[bodies, 0]).T) < 0.1
    scale = np.where(still, 0.25, 1.0) * rng.uniform(0.5, 1.5, len(pieces))
    scale[-1] = 0.2  # the ego vehicle localizes itself more precisely
    noise = noise * scale[:, None, None]
    xy = world.xy[bodies] + 0.04 * np.moveaxis(noise[:, :2], 1, -1)
    velocity = world.velocity[bodies] + 0.06 * np.moveaxis(noise[:, 2:4], 1, -1)
    heading = wrap(world.heading[bodies] + 0.012 * noise[:, 4])
    keep = valid[..., None]
    return Tracks(
        ids, [world.kind[b] for b in bodies], categories, np.where(keep, xy, 0.0),
        np.where(valid, heading, 0.0), np.where(keep, velocity, 0.0), valid, bodies,
    )  # fmt: skip


def _smooth_noise(rng: np.random.Generator, count: int, channels: int, steps: int) -> Array:
    """Return Gaussian noise [count, channels, steps] of unit variance, correlated over about 0.6 s."""
    reach = 12
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / 4.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    white = rng.standard_normal((count, channels, steps + 2 * reach))
    # A plain sum: the rounding of a matrix product differs between linear algebra libraries.
    out = np.zeros((count, channels, steps))
    for shift, weight in enumerate(kernel):
        out += weight * white[..., shift : shift + steps]
    return out
