"""What a vehicle with sensors records of the world: whom it sees, how noisily, in tracks that break off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, wrap
from data_prep.synthetic.world import World

FRAGMENT, UNSCORED, SCORED, FOCAL = 0, 1, 2, 3
_SHORTEST = 10  # steps; shorter sightings are not kept as tracks
_MOST_SCORED = 8


@dataclass(frozen=True, slots=True)
class Tracks:
    """Recorded tracks; M tracks over T steps of 0.1 s. Where ``valid`` is False everything else is zero.

    Attributes:
        ids: unique names; the recording vehicle is "AV" and comes last.
        kinds: Argoverse object types.
        categories: [M] 0 = fragment, 1 = unscored, 2 = scored, 3 = focal.
        xy: [M, T, 2] metres; heading: [M, T] radians in [-pi, pi); velocity: [M, T, 2] m/s; valid: [M, T].
        bodies: [M] which body of the world each track is a record of.
    """

    ids: list[str]
    kinds: list[str]
    categories: Ints
    xy: Array
    heading: Array
    velocity: Array
    valid: Bools
    bodies: Ints


def observe(world: World, rng: np.random.Generator, now: int) -> Tracks | None:
    """Record ``world``; steps up to ``now`` are the history.

    Returns:
        The tracks, or None where nothing in the scene can be the focal track or carry the sensors.
    """
    chosen = _choose(world, rng, now)
    if chosen is None:
        return None
    ego, focal, seen = chosen
    complete: Bools = np.asarray(seen.all(axis=1), dtype=np.bool_)
    scored = _scored(world, rng, complete, (ego, focal), now)
    pieces: list[tuple[int, int, int]] = []  # body, first and last step
    for body in np.flatnonzero(seen.any(axis=1)):
        if body == ego:
            continue
        sure = body == focal or body in scored
        pieces += [(int(body), *piece) for piece in _sightings(seen[body], rng, sure)]
    pieces.sort(key=lambda piece: (piece[1], piece[0]))
    pieces.append((ego, 0, seen.shape[1] - 1))
    categories = np.array([_category(piece, focal, scored, seen.shape[1]) for piece in pieces], dtype=np.int64)
    number, ids = int(rng.integers(1_000, 150_000)), []
    for step in rng.integers(1, 30, len(pieces) - 1):
        number += int(step)
        ids.append(str(number))
    return _record(world, rng, pieces, [*ids, "AV"], categories)


def _category(piece: tuple[int, int, int], focal: int, scored: set[int], steps: int) -> int:
    body, first, last = piece
    if first > 0 or last < steps - 1:
        return FRAGMENT
    return FOCAL if body == focal else SCORED if body in scored else UNSCORED


def _choose(world: World, rng: np.random.Generator, now: int) -> tuple[int, int, Bools] | None:
    """Return the ego vehicle, the focal body and who is within sensor range [M, T]."""
    whole = world.present.all(axis=1)
    drivers = np.array([k in ("vehicle", "bus") for k in world.kind]) & whole
    drivers[len(world.turn) :] = False
    interest = _interest(world, now) * whole
    reach = float(rng.uniform(65.0, 95.0))
    egos = rng.permutation(np.flatnonzero(drivers))
    # Somebody near the middle of the scene sees most; somebody who drives sees more than somebody who queues.
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
    """Return how much [M] each body deserves to be predicted; 0 for what hardly moves."""
    moved = np.hypot(*(world.xy[:, -1] - world.xy[:, now]).T)
    weight = np.array([{"pedestrian": 0.25, "cyclist": 0.6, "bus": 0.8}.get(k, 1.0) for k in world.kind])
    least = np.array([4.0 if k == "pedestrian" else 9.0 for k in world.kind])
    speed = np.hypot(world.velocity[..., 0], world.velocity[..., 1])[:, now:]
    weight = weight * np.where(np.ptp(speed, axis=1) > 3.5, 2.0, 1.0)
    turned = np.abs(world.heading[:, -1] - world.heading[:, now])
    weight = weight * np.where(turned > 0.45, 2.5, 1.0)
    count = len(world.turn)
    weight[:count] *= np.where(world.choices > 1, 10.0, np.where(world.turn < 2, 3.0, 1.0))
    # Left turns wait for others, so that fewer of them fall into the future.
    weight[:count] *= np.where(world.turn == 1, 1.8, 1.0)
    return np.where(moved > least, weight, 0.0)


def _scored(world: World, rng: np.random.Generator, complete: Bools, leaders: tuple[int, int], now: int) -> set[int]:
    """Return further bodies to be scored: complete, moving, near the focal one or the ego."""
    ego, focal = leaders
    moved = np.hypot(*(world.xy[:, -1] - world.xy[:, 0]).T)
    near = np.minimum(*(np.hypot(*(world.xy[:, now] - world.xy[i, now]).T) for i in (ego, focal)))
    able = complete & (moved > 2.5)
    able[[ego, focal]] = False
    ranked = [int(i) for i in np.argsort(near, kind="stable") if able[i]]
    return set(ranked[: int(rng.integers(2, _MOST_SCORED + 1))])


def _sightings(seen: Bools, rng: np.random.Generator, sure: bool) -> list[tuple[int, int]]:
    """Split the steps [T] at which a body is in range into the tracks a tracker would report of it."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], seen, [False])).astype(np.int8)))
    out = []
    for first, stop in edges.reshape(-1, 2):
        last = int(stop) - 1
        cuts: list[tuple[int, int]] = []
        if not sure and rng.random() < 0.45:  # hidden for a while
            begin = int(rng.integers(first, last + 1))
            cuts.append((begin, begin + int(rng.integers(4, 45))))
        if not sure and rng.random() < 0.25:  # noticed late
            cuts.append((int(first), int(first) + int(rng.integers(5, 50))))
        parts = [(int(first), last)]
        for low, high in cuts:
            parts = [p for a, b in parts for p in ((a, min(b, low - 1)), (max(a, high + 1), b))]
        out += [(a, b) for a, b in parts if b - a + 1 >= _SHORTEST]
    return out


def _record(
    world: World,
    rng: np.random.Generator,
    pieces: list[tuple[int, int, int]],
    ids: list[str],
    categories: Ints,
) -> Tracks:
    """Return the tracks with smooth noise: a tracker's error changes slowly from one step to the next."""
    bodies = np.array([piece[0] for piece in pieces], dtype=np.int64)
    steps = world.xy.shape[1]
    when = np.arange(steps)
    valid = np.stack([(when >= first) & (when <= last) for _, first, last in pieces])
    noise = _smooth_noise(rng, len(pieces), 5, steps)
    still = np.hypot(*(world.xy[bodies, -1] - world.xy[bodies, 0]).T) < 0.1
    scale = np.where(still, 0.25, 1.0) * rng.uniform(0.5, 1.5, len(pieces))
    scale[-1] = 0.2  # the ego vehicle knows where it is
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
