"""One synthetic scene from one seed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.agents import populate
from data_prep.synthetic.curves import Array
from data_prep.synthetic.junction import Network
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.observe import FOCAL, Tracks, observe
from data_prep.synthetic.traffic import Simulation
from data_prep.synthetic.walkers import draw_walkers
from data_prep.synthetic.world import build_world

NUM_HISTORY = 50
NUM_STEPS = 110
# Rough middle of the mapped area of each city in its own frame (metres) and height of its streets.
_CITIES = {
    "austin": (1900.0, -1500.0, 150.0),
    "washington-dc": (4200.0, 2100.0, 20.0),
    "miami": (700.0, -2300.0, -20.0),
    "pittsburgh": (3900.0, 1800.0, 10.0),
    "dearborn": (8100.0, 4600.0, -35.0),
    "palo-alto": (-1800.0, 2100.0, 5.0),
}
_TURNS = {1: "left", 0: "straight", -1: "right", 2: "none"}


@dataclass(frozen=True, slots=True)
class SyntheticScene:
    """A recorded scene with the street map around it.

    Attributes:
        scene_id: UUID, also the name of its folder.
        city: one of the six Argoverse 2 cities.
        network: streets, in metres relative to ``origin``.
        origin: [2] city coordinates of the scene's middle, metres.
        ground: height of the ground at the origin (m) and its slope along x and y, [3].
        tracks: recorded tracks, in metres relative to ``origin``.
        focal_id: id of the focal track.
        start_ns: time of the first step in nanoseconds.
        first_id: smallest of the map element ids.
        focal_turn: "left", "right" or "straight" where it crosses a junction in its future, else "none".
        focal_choices: how many turns were open to it at the last observed step (0 without junction).
    """

    scene_id: str
    city: str
    network: Network
    origin: Array
    ground: Array
    tracks: Tracks
    focal_id: str
    start_ns: float
    first_id: int
    focal_turn: str
    focal_choices: int


def simulate_scene(seed: int | np.random.SeedSequence) -> SyntheticScene:
    """Build streets, simulate 17 s of traffic and record the last 11 s (110 steps of 0.1 s, 50 are history).

    A pure function: the scene depends on ``seed`` alone.

    Args:
        seed: a non-negative number or a seed sequence.

    Returns:
        The scene. Its focal track is valid at all steps and moves in its future.

    Raises:
        ValueError: if ``seed`` is negative.
        RuntimeError: if 50 draws in a row give no scene with a focal track, which would be a bug.
    """
    entropy, scene_id = _entropy(seed), scene_identity(seed)
    for attempt in range(50):
        scene = _attempt(np.random.default_rng([*entropy, attempt]), scene_id)
        if scene is not None:
            return scene
    raise RuntimeError(f"no usable scene from seed {seed} in 50 draws")


def scene_identity(seed: int | np.random.SeedSequence) -> str:
    """Return the UUID that the scene of ``seed`` has, without simulating it."""
    return str(uuid.UUID(bytes=np.random.default_rng(_entropy(seed)).bytes(16), version=4))


def _entropy(seed: int | np.random.SeedSequence) -> list[int]:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # Generators are made from the numbers in the sequence, because spawning would change the caller's object.
    return [int(word) for word in root.generate_state(8)]


def _attempt(rng: np.random.Generator, scene_id: str) -> SyntheticScene | None:
    network = random_network(rng)
    fleet, paths = populate(network, rng)
    if len(fleet.kind) < 4:
        return None
    walkers = draw_walkers(network, rng)
    motion = Simulation(network, fleet, paths, walkers).run(NUM_STEPS)
    world = build_world(network, fleet, paths, walkers, motion, NUM_HISTORY - 1, rng)
    tracks = observe(world, rng, NUM_HISTORY - 1)
    if tracks is None:
        return None
    focal = int(np.flatnonzero(tracks.categories == FOCAL)[0])
    body = int(tracks.bodies[focal])
    wheels = body < len(fleet.kind)
    city = str(rng.choice(list(_CITIES)))
    x, y, z = _CITIES[city]
    return SyntheticScene(
        scene_id=scene_id, city=city, network=network,
        origin=np.round(np.array((x, y)) + rng.uniform(-900.0, 900.0, 2), 2),
        ground=np.array((z + rng.uniform(-5.0, 5.0), rng.normal(0.0, 0.012), rng.normal(0.0, 0.012))),
        tracks=tracks, focal_id=tracks.ids[focal],
        start_ns=float(315_960_000_000_000_000 + int(rng.integers(-10_000_000, 10_000_000)) * 1_000_000_00),
        first_id=int(rng.integers(190_000_000, 460_000_000)),
        focal_turn=_TURNS[int(world.turn[body])] if wheels else "none",
        focal_choices=int(world.choices[body]) if wheels else 0,
    )  # fmt: skip
