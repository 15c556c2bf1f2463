"""Synthetic scenes from a seed: one scene, or several futures of the same past."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from data_prep.synthetic.agents import populate, random_pedestrians
from data_prep.synthetic.curves import Array, smoothstep, wrap
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.network import Network
from data_prep.synthetic.observe import FOCAL, Tracks, observe
from data_prep.synthetic.routes import Route, build_paths, random_route, speed_profiles
from data_prep.synthetic.traffic import WARM_UP_STEPS, Simulation, Snapshot, motion_of
from data_prep.synthetic.world import World, build_world

NUM_HISTORY = 50
NUM_STEPS = 110
_FUTURE_TICKS = (NUM_STEPS - NUM_HISTORY + 1) // 2
# Approximate center of the mapped area of each city in its own frame (metres) and height of its streets.
_CITIES = {
    "austin": (1900.0, -1500.0, 150.0),
    "washington-dc": (4200.0, 2100.0, 20.0),
    "miami": (700.0, -2300.0, -20.0),
    "pittsburgh": (3900.0, 1800.0, 10.0),
    "dearborn": (8100.0, 4600.0, -35.0),
    "palo-alto": (-1800.0, 2100.0, 5.0),
}
_TURNS = {1: "left", 0: "straight", -1: "right", 2: "none"}
_MIN_GAP_M = 4.0  # futures with closer final positions of the focal vehicle count as one
_FADE_STEPS = 20
_MAX_DRAWS, _MAX_BRANCH_DRAWS = 50, 400


@dataclass(frozen=True, slots=True)
class SyntheticScene:
    """A recorded scene with the street map around it."""

    scene_id: str  # UUID, also the name of its folder
    city: str  # one of the six Argoverse 2 cities
    network: Network  # metres relative to ``origin``
    origin: Array  # [2] city coordinates of the scene's middle, metres
    ground: Array  # [3] height of the ground at the origin (m) and its slope along x and y
    tracks: Tracks  # metres relative to ``origin``
    focal_id: str  # of the focal track
    start_ns: float  # time of the first step in nanoseconds
    first_id: int  # smallest of the map element ids
    focal_turn: str  # "left", "right" or "straight" if it crosses a junction in its future, else "none"
    focal_choices: int  # number of turns open to it at the last observed step (0 without junction)


def simulate_scene(seed: int | np.random.SeedSequence) -> SyntheticScene:
    """Build streets, simulate 17 s of traffic and record the last 11 s (110 steps of 0.1 s, 50 are history).

    The scene depends on ``seed`` only. Its focal track is valid at all steps and moves in its future.

    Raises:
        ValueError: if ``seed`` is negative.
        RuntimeError: if 50 draws in a row give no scene with a focal track, which would be a bug.
    """
    for rng in _generators(seed, _MAX_DRAWS):
        recording = simulate_recording(rng)
        if recording is not None:
            return _to_scene(recording, rng, scene_identity(seed))
    raise RuntimeError(f"no usable scene from seed {seed} in {_MAX_DRAWS} draws")


def simulate_branches(seed: int | np.random.SeedSequence) -> list[SyntheticScene]:
    """Simulate one past and two or three futures: in each, the focal vehicle takes another turn and others react to it.

    All futures continue from the same state of the simulation, just after the last observed step, so that their pasts
    are bitwise equal. `simulate_scene` makes a different scene from the same seed.

    Returns:
        Scenes with the ids ``<id of the seed>.0``, ``.1`` ... and the same agents, roles, map and first 50 steps. Their
        focal vehicles end at least 4 m apart. Scene 0 is the original simulation.

    Raises:
        ValueError: if ``seed`` is negative.
        RuntimeError: if 400 draws in a row give no scene with two futures, which would be a bug.
    """
    for rng in _generators(seed, _MAX_BRANCH_DRAWS):
        recording = simulate_recording(rng)
        if recording is not None:
            scenes = _branches(recording, rng, scene_identity(seed))
            if len(scenes) > 1:
                return scenes
    raise RuntimeError(f"no scene with two futures from seed {seed} in {_MAX_BRANCH_DRAWS} draws")


def scene_identity(seed: int | np.random.SeedSequence) -> str:
    """Return the UUID of the scene of ``seed``, without simulating it."""
    return str(uuid.UUID(bytes=np.random.default_rng(_entropy(seed)).bytes(16), version=4))


def branch_id(scene_id: str, number: int) -> str:
    """Return the id of one future of a past."""
    return f"{scene_id}.{number}"


def _entropy(seed: int | np.random.SeedSequence) -> list[int]:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # Generators are made from the numbers in the sequence, because spawning would change the caller's object.
    return [int(word) for word in root.generate_state(8)]


def _generators(seed: int | np.random.SeedSequence, draws: int) -> Iterator[np.random.Generator]:
    entropy = _entropy(seed)
    return (np.random.default_rng([*entropy, attempt]) for attempt in range(draws))


@dataclass(frozen=True, slots=True)
class Recording:
    """A simulated scene and its record."""

    now: Simulation  # at the first moment after the last observed step
    history: list[Snapshot]  # states up to that moment, 0.2 s apart, from the first step on
    world: World
    tracks: Tracks
    world_rng: np.random.Generator  # as it was before ``world`` was built

    @property
    def focal(self) -> int:
        """Return the index of the focal track."""
        return int(np.flatnonzero(self.tracks.categories == FOCAL)[0])


def simulate_recording(rng: np.random.Generator) -> Recording | None:
    """Draw streets and traffic, simulate and record; None if there is no possible focal track."""
    network = random_network(rng)
    fleet, paths = populate(network, rng)
    if len(fleet.kind) < 4:
        return None
    simulation = Simulation(network, fleet, paths, random_pedestrians(network, rng))
    simulation.advance(WARM_UP_STEPS)
    history = [simulation.snapshot(), *simulation.advance(NUM_HISTORY // 2)]
    now = simulation.fork(paths, fleet.profile)
    motion = motion_of([*history, *simulation.advance(_FUTURE_TICKS)], simulation.row, NUM_STEPS)
    world_rng = copy.deepcopy(rng)
    world = build_world(network, fleet, paths, simulation.pedestrians, motion, NUM_HISTORY - 1, rng)
    tracks = observe(world, rng, NUM_HISTORY - 1)
    return None if tracks is None else Recording(now, history, world, tracks, world_rng)


def _to_scene(recording: Recording, rng: np.random.Generator, scene_id: str) -> SyntheticScene:
    """Add a name, a city and a time."""
    focal, tracks = recording.focal, recording.tracks
    turn, choices = _focal_turn(recording.world, int(tracks.bodies[focal]))
    city = str(rng.choice(list(_CITIES)))
    x, y, z = _CITIES[city]
    return SyntheticScene(
        scene_id=scene_id, city=city, network=recording.now.network,
        origin=np.round(np.array((x, y)) + rng.uniform(-900.0, 900.0, 2), 2),
        ground=np.array((z + rng.uniform(-5.0, 5.0), rng.normal(0.0, 0.012), rng.normal(0.0, 0.012))),
        tracks=tracks, focal_id=tracks.ids[focal],
        start_ns=float(315_960_000_000_000_000 + int(rng.integers(-10_000_000, 10_000_000)) * 1_000_000_00),
        first_id=int(rng.integers(190_000_000, 460_000_000)),
        focal_turn=turn, focal_choices=choices,
    )  # fmt: skip


def _focal_turn(world: World, body: int) -> tuple[str, int]:
    """Return the turn of a body and the number of turns that were open to it; "none" and 0 for pedestrians."""
    if body >= len(world.turn):
        return _TURNS[2], 0
    return _TURNS[int(world.turn[body])], int(world.choices[body])


# ---- several futures of one past -----------------------------------------------------------------------------------


def _branches(recording: Recording, rng: np.random.Generator, scene_id: str) -> list[SyntheticScene]:
    focal = int(recording.tracks.bodies[recording.focal])
    if focal >= len(recording.world.turn) or recording.world.choices[focal] < 2:
        return []
    routes = _other_turns(recording, focal, rng)
    if not routes:
        return []
    first = _to_scene(recording, rng, branch_id(scene_id, 0))
    worlds, scenes = [recording.world], [first]
    for route in routes:
        world = _continue_on(recording, focal, route)
        ends = [other.xy[focal, -1] - world.xy[focal, -1] for other in worlds]
        if world.present[focal].all() and min(np.hypot(*gap) for gap in ends) >= _MIN_GAP_M:
            turn, choices = _focal_turn(world, focal)
            name, tracks = branch_id(scene_id, len(scenes)), _record_like(recording.tracks, recording.world, world)
            scenes.append(replace(first, scene_id=name, tracks=tracks, focal_turn=turn, focal_choices=choices))
            worlds.append(world)
    return scenes


def _other_turns(recording: Recording, agent: int, rng: np.random.Generator) -> list[Route]:
    """Return routes with the other turns at the next junction; none if ``agent`` has already been granted entry."""
    now, network = recording.now, recording.now.network
    row, gate = int(now.row[agent]), int(now.gate[agent])
    inside = int(now.paths.gate[row, gate])
    if inside < 0 or now.granted[agent] or now.paths.stop[row, gate] < now.at[agent]:
        return []
    route = now.paths.routes[row]
    number = route.lanes.index(inside)
    if route.change is not None and route.change.number + 1 >= number:
        return []
    options = network.lanes[route.lanes[number - 1]].successors
    routes = []
    for turn in sorted({network.lanes[lane].turn for lane in options} - {network.lanes[inside].turn}):
        lanes = [lane for lane in options if network.lanes[lane].turn == turn]
        tail = random_route(network, rng, lanes[int(rng.integers(len(lanes)))])
        starts = [route.starts[number] + start for start in tail.starts]
        routes.append(Route(route.lanes[:number] + tail.lanes, route.starts[:number] + starts, route.change))
    return routes


def _continue_on(recording: Recording, agent: int, route: Route) -> World:
    """Return the world in which ``agent`` follows ``route`` from now on."""
    now = recording.now
    routes = list(now.paths.routes)
    routes[int(now.row[agent])] = route
    paths = build_paths(now.network, routes)
    simulation = now.fork(paths, speed_profiles(paths, now.fleet.factor, now.fleet.comfort))
    simulation.other[agent] = -1
    motion = motion_of([*recording.history, *simulation.advance(_FUTURE_TICKS)], simulation.row, NUM_STEPS)
    rng = copy.deepcopy(recording.world_rng)
    world = build_world(now.network, simulation.fleet, paths, now.pedestrians, motion, NUM_HISTORY - 1, rng)
    return _join(recording.world, world)


def _join(past: World, future: World) -> World:
    """Return ``future`` with the observed steps of ``past``.

    Paths and lateral deviations are smoothed over time, so that another future changes the last observed states a little;
    the difference at the last observed step fades out over the next 20 steps.
    """
    last = NUM_HISTORY - 1
    fade = 1.0 - smoothstep((np.arange(NUM_STEPS) - last) / _FADE_STEPS)

    def join(name: str) -> Array:
        before, after = getattr(past, name), getattr(future, name)
        weight = fade[:, None] if before.ndim == 3 else fade
        gap = before[:, last : last + 1] - after[:, last : last + 1]
        return np.concatenate((before[:, : last + 1], (after + weight * gap)[:, last + 1 :]), axis=1)

    present = np.concatenate((past.present[:, : last + 1], future.present[:, last + 1 :]), axis=1)
    return replace(future, present=present, xy=join("xy"), heading=join("heading"), velocity=join("velocity"))


def _record_like(tracks: Tracks, recorded: World, other: World) -> Tracks:
    """Return the record of another world by the same sensors: the same tracks with the same errors."""
    valid, bodies = tracks.valid, tracks.bodies
    gap = {name: (getattr(other, name) - getattr(recorded, name))[bodies] for name in ("xy", "velocity", "heading")}
    return replace(
        tracks,
        xy=np.where(valid[..., None], tracks.xy + gap["xy"], 0.0),
        velocity=np.where(valid[..., None], tracks.velocity + gap["velocity"], 0.0),
        heading=np.where(valid & (gap["heading"] != 0.0), wrap(tracks.heading + gap["heading"]), tracks.heading),
    )
