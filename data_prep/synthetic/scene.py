"""One synthetic scene from one seed."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.agents import populate
from data_prep.synthetic.curves import Array
from data_prep.synthetic.junction import Network
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.motion import STEP_S, Snapshot, motion_of
from data_prep.synthetic.observe import FOCAL, Tracks, observe
from data_prep.synthetic.traffic import WARM_UP_S, Simulation
from data_prep.synthetic.walkers import draw_walkers
from data_prep.synthetic.world import World, build_world

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
    for rng in generators(seed, 50):
        played = play(rng)
        if played is not None:
            return compose(played, rng, scene_identity(seed))
    raise RuntimeError(f"no usable scene from seed {seed} in 50 draws")


def generators(seed: int | np.random.SeedSequence, draws: int) -> Iterator[np.random.Generator]:
    """Return the generator of each draw of the scene of ``seed``."""
    entropy = _entropy(seed)
    return (np.random.default_rng([*entropy, attempt]) for attempt in range(draws))


def scene_identity(seed: int | np.random.SeedSequence) -> str:
    """Return the UUID that the scene of ``seed`` has, without simulating it."""
    return str(uuid.UUID(bytes=np.random.default_rng(_entropy(seed)).bytes(16), version=4))


def _entropy(seed: int | np.random.SeedSequence) -> list[int]:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # Generators are made from the numbers in the sequence, because spawning would change the caller's object.
    return [int(word) for word in root.generate_state(8)]


@dataclass(frozen=True, slots=True)
class Play:
    """What happens in a scene, and what is recorded of it.

    Attributes:
        now: the simulation at the first moment after the last observed step.
        history: moments up to that one, 0.2 s apart, from the first step on.
        world, tracks: what really happened, and the record.
        wander: the generator as it was before ``world`` was laid out.
    """

    now: Simulation
    history: list[Snapshot]
    world: World
    tracks: Tracks
    wander: np.random.Generator

    @property
    def focal(self) -> int:
        """Return the number of the focal track."""
        return int(np.flatnonzero(self.tracks.categories == FOCAL)[0])


def play(rng: np.random.Generator) -> Play | None:
    """Draw streets and traffic, simulate and record; None where nothing can be the focal track."""
    network = random_network(rng)
    fleet, paths = populate(network, rng)
    if len(fleet.kind) < 4:
        return None
    simulation = Simulation(network, fleet, paths, draw_walkers(network, rng))
    simulation.advance(round(WARM_UP_S / STEP_S))
    history = [simulation.snapshot(), *simulation.advance(NUM_HISTORY // 2)]
    now = simulation.fork(paths, fleet.profile)
    motion = motion_of([*history, *simulation.advance((NUM_STEPS - NUM_HISTORY + 1) // 2)], simulation.row, NUM_STEPS)
    wander = copy.deepcopy(rng)
    world = build_world(network, fleet, paths, simulation.walkers, motion, NUM_HISTORY - 1, rng)
    tracks = observe(world, rng, NUM_HISTORY - 1)
    return None if tracks is None else Play(now, history, world, tracks, wander)


def compose(played: Play, rng: np.random.Generator, scene_id: str) -> SyntheticScene:
    """Give what was played a name, a city and a time."""
    focal, tracks = played.focal, played.tracks
    turn, choices = focal_way(played.world, int(tracks.bodies[focal]))
    city = str(rng.choice(list(_CITIES)))
    x, y, z = _CITIES[city]
    return SyntheticScene(
        scene_id=scene_id, city=city, network=played.now.network,
        origin=np.round(np.array((x, y)) + rng.uniform(-900.0, 900.0, 2), 2),
        ground=np.array((z + rng.uniform(-5.0, 5.0), rng.normal(0.0, 0.012), rng.normal(0.0, 0.012))),
        tracks=tracks, focal_id=tracks.ids[focal],
        start_ns=float(315_960_000_000_000_000 + int(rng.integers(-10_000_000, 10_000_000)) * 1_000_000_00),
        first_id=int(rng.integers(190_000_000, 460_000_000)),
        focal_turn=turn, focal_choices=choices,
    )  # fmt: skip


def focal_way(world: World, body: int) -> tuple[str, int]:
    """Return the turn that a body takes and how many were open to it; pedestrians take "none"."""
    if body >= len(world.turn):
        return _TURNS[2], 0
    return _TURNS[int(world.turn[body])], int(world.choices[body])
