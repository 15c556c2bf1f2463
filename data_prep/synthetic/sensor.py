"""The sensor model: the noisy, interrupted tracks that a recording vehicle measures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, distance, wrap
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS
from data_prep.synthetic.world import World

# Categories of tracks.
FRAGMENT = 0
UNSCORED = 1
SCORED = 2
FOCAL = 3

_NOW = NUM_HISTORY - 1
_LAST = NUM_STEPS - 1
_MIN_STEPS = 10  # shorter sightings are not kept as tracks
_MAX_SCORED = 8
# Relative probability to be the focal agent and minimum distance (m) in the future, by type.
_KIND_WEIGHT = {"pedestrian": 0.25, "cyclist": 0.6, "bus": 0.8}
_MIN_MOVED_M = {"pedestrian": 4.0}


@dataclass(frozen=True)
class RecordedTracks:
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


def observe(world: World, rng: np.random.Generator) -> RecordedTracks | None:
    """Record the tracks of ``world``.

    Returns None if no body can be the focal track or carry the sensors.
    """
    chosen = _choose_ego_and_focal(world, rng)
    if chosen is None:
        return None
    ego, focal, seen = chosen
    roles = dict.fromkeys(_choose_scored(world, rng, seen, [ego, focal]), SCORED)
    roles[focal] = FOCAL

    # First and last step of each track, and its body; the ego vehicle comes last.
    pieces: list[tuple[int, int, int]] = []
    for body in np.flatnonzero(seen.any(axis=1)).tolist():
        if body != ego:
            for first, last in _sightings(seen[body], rng, always_seen=body in roles):
                pieces.append((first, last, body))
    pieces.sort(key=lambda piece: (piece[0], piece[2]))
    pieces.append((0, _LAST, ego))

    categories = []
    for first, last, body in pieces:
        category = FRAGMENT
        if (first, last) == (0, _LAST):
            category = roles.get(body, UNSCORED)
        categories.append(category)
    first_id = int(rng.integers(1_000, 150_000))
    numbers = first_id + np.cumsum(rng.integers(1, 30, len(pieces) - 1))
    firsts, lasts, bodies = np.array(pieces, dtype=np.int64).T
    steps = np.arange(NUM_STEPS)
    valid = (steps >= firsts[:, None]) & (steps <= lasts[:, None])

    # Measurement errors, which are smaller for standing bodies.
    noise = _smooth_noise(rng, len(pieces), 5)
    stands = distance(world.xy[bodies, _LAST], world.xy[bodies, 0]) < 0.1
    scale = np.where(stands, 0.25, 1.0) * rng.uniform(0.5, 1.5, len(pieces))
    scale[-1] = 0.2  # the ego vehicle localizes itself more precisely
    noise = noise * scale[:, None, None]
    xy = world.xy[bodies] + 0.04 * np.moveaxis(noise[:, :2], 1, -1)
    velocity = world.velocity[bodies] + 0.06 * np.moveaxis(noise[:, 2:4], 1, -1)
    heading = wrap(world.heading[bodies] + 0.012 * noise[:, 4])
    return RecordedTracks(
        ids=[*map(str, numbers), "AV"],
        kinds=[world.kind[body] for body in bodies],
        categories=np.array(categories),
        xy=np.where(valid[..., None], xy, 0.0),
        heading=np.where(valid, heading, 0.0),
        velocity=np.where(valid[..., None], velocity, 0.0),
        valid=valid,
        bodies=bodies,
    )


def _choose_ego_and_focal(world: World, rng: np.random.Generator) -> tuple[int, int, Bools] | None:
    """Return the ego vehicle, the focal body and the bodies within sensor range [M, T]."""
    complete = world.present.all(axis=1)
    has_sensors = np.array([kind in ("vehicle", "bus") for kind in world.kind]) & complete
    has_sensors[len(world.turn) :] = False  # parked vehicles
    interest = _interest(world) * complete
    range_m = rng.uniform(65.0, 95.0)
    egos = rng.permutation(np.flatnonzero(has_sensors))
    # Vehicles near the middle of the scene see most; moving vehicles see more than queueing ones.
    queues = distance(world.xy[egos, _LAST], world.xy[egos, 0]) < 15.0
    x, y = world.xy[egos, _NOW].T
    rank = np.hypot(x, y) // 35.0 + 1.5 * queues
    order = egos[np.argsort(rank, kind="stable")]

    # The ego vehicle among the first six with the most interesting bodies in range.
    best = 0.0
    chosen = None
    for ego in order[:6].tolist():
        near = distance(world.xy, world.xy[ego]) < range_m
        weight = np.where(near.all(axis=1), interest, 0.0)
        weight[ego] = 0.0
        if weight.sum() > best:
            best = weight.sum()
            chosen = (ego, weight, near & world.present)
    if chosen is None:
        return None
    ego, weight, seen = chosen
    focal = int(rng.choice(len(weight), p=weight / best))
    return ego, focal, seen


def _interest(world: World) -> Array:
    """Return the relative probability [M] of each body to be the focal one.

    It is 0 for bodies that hardly move.
    """
    weight = np.array([_KIND_WEIGHT.get(kind, 1.0) for kind in world.kind])
    speed = np.hypot(world.velocity[..., 0], world.velocity[..., 1])[:, _NOW:]
    changes_speed = np.ptp(speed, axis=1) > 3.5
    weight = weight * np.where(changes_speed, 2.0, 1.0)
    turned = np.abs(world.heading[:, _LAST] - world.heading[:, _NOW])
    weight = weight * np.where(turned > 0.45, 2.5, 1.0)

    # Vehicles that reach a junction, above all if several turns are open to them.
    count = len(world.turn)
    reaches_junction = np.where(world.turn < 2, 3.0, 1.0)
    weight[:count] *= np.where(world.choices > 1, 10.0, reaches_junction)
    # Left turns wait for oncoming traffic, so that fewer left turns happen during the future.
    weight[:count] *= np.where(world.turn == 1, 1.8, 1.0)

    moved = distance(world.xy[:, _LAST], world.xy[:, _NOW])
    min_moved = np.array([_MIN_MOVED_M.get(kind, 9.0) for kind in world.kind])
    return np.where(moved > min_moved, weight, 0.0)


def _choose_scored(
    world: World, rng: np.random.Generator, seen: Bools, leaders: list[int]
) -> list[int]:
    """Return further bodies to be scored: always seen, moving, near a leader.

    ``leaders`` are the ego vehicle and the focal body.
    """
    now = world.xy[:, _NOW]
    ego, focal = leaders
    nearest = np.minimum(distance(now, now[ego]), distance(now, now[focal]))
    moves = distance(world.xy[:, _LAST], world.xy[:, 0]) > 2.5
    eligible = seen.all(axis=1) & moves
    eligible[leaders] = False
    ranked = [i for i in np.argsort(nearest, kind="stable").tolist() if eligible[i]]
    count = int(rng.integers(2, _MAX_SCORED + 1))
    return ranked[:count]


def _sightings(seen: Bools, rng: np.random.Generator, always_seen: bool) -> list[tuple[int, int]]:
    """Return the first and last steps of the tracks that a tracker reports of a body.

    ``seen`` [T] are the steps at which it is in range. If not ``always_seen``, it may also be
    hidden for a while or noticed late.
    """
    padded = np.concatenate(([False], seen, [False]))
    changes = np.flatnonzero(np.diff(padded.astype(np.int8)))
    sightings = []
    for first, stop in changes.reshape(-1, 2).tolist():
        gaps: list[tuple[int, int]] = []
        if not always_seen and rng.random() < 0.45:  # hidden for a while
            begin = int(rng.integers(first, stop))
            gaps.append((begin, begin + int(rng.integers(4, 45))))
        if not always_seen and rng.random() < 0.25:  # noticed late
            gaps.append((first, first + int(rng.integers(5, 50))))
        for part in _without_gaps((first, stop - 1), gaps):
            if part[1] - part[0] + 1 >= _MIN_STEPS:
                sightings.append(part)
    return sightings


def _without_gaps(sighting: tuple[int, int], gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a sighting between gaps; a part may be empty (last before first)."""
    parts = [sighting]
    for low, high in gaps:
        remaining = []
        for first, last in parts:
            remaining.append((first, min(last, low - 1)))
            remaining.append((max(first, high + 1), last))
        parts = remaining
    return parts


def _smooth_noise(rng: np.random.Generator, count: int, channels: int) -> Array:
    """Return Gaussian noise [count, channels, T] of unit variance, correlated over about 0.6 s."""
    radius = 12  # of the kernel, steps
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / 4.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    white = rng.standard_normal((count, channels, NUM_STEPS + 2 * radius))
    # A plain sum: the rounding of a matrix product differs between linear algebra libraries.
    noise = np.zeros((count, channels, NUM_STEPS))
    for shift, weight in enumerate(kernel):
        noise = noise + weight * white[..., shift : shift + NUM_STEPS]
    return noise
