"""Synthetic scenes from a seed: one scene, or several futures of the same past."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data_prep.synthetic.agents import populate, random_pedestrians
from data_prep.synthetic.curves import Array, smoothstep, wrap
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.network import Network
from data_prep.synthetic.observe import Tracks, observe
from data_prep.synthetic.routes import Route, build_paths, random_route
from data_prep.synthetic.traffic import FUTURE_TICKS, NUM_HISTORY, NUM_STEPS, WARM_UP_TICKS, Simulation
from data_prep.synthetic.world import World, build_world

# Approximate center of the mapped area of each city in its own frame (metres) and height of its streets.
_CITIES = {
    "austin": (1900.0, -1500.0, 150.0),
    "washington-dc": (4200.0, 2100.0, 20.0),
    "miami": (700.0, -2300.0, -20.0),
    "pittsburgh": (3900.0, 1800.0, 10.0),
    "dearborn": (8100.0, 4600.0, -35.0),
    "palo-alto": (-1800.0, 2100.0, 5.0),
}
_MIN_GAP_M = 4.0  # futures with closer final positions of the focal vehicle count as one
_FADE_STEPS = 20
_MAX_DRAWS = 400


@dataclass(frozen=True)
class SyntheticScene:
    """A recorded scene with the street map around it."""

    scene_id: str  # UUID, also the name of its folder
    network: Network  # metres relative to ``origin``
    world: World  # true states, metres relative to ``origin``
    tracks: Tracks  # metres relative to ``origin``
    city: str  # one of the six Argoverse 2 cities
    origin: Array  # [2] city coordinates of the scene's middle, metres
    ground: Array  # [3] height of the ground at the origin (m) and its slope along x and y
    start_ns: float  # time of the first step in nanoseconds
    first_id: int  # smallest of the map element ids


def simulate_scene(seed: int | np.random.SeedSequence) -> SyntheticScene:
    """Build streets, simulate 17 s of traffic and record the last 11 s (110 steps of 0.1 s, 50 are history).

    The scene depends on ``seed`` only. Its focal track is valid at all steps and moves in its future.

    Raises:
        ValueError: if ``seed`` is negative.
        RuntimeError: if 400 draws in a row give no scene with a focal track, which would be a bug.
    """
    return next(_recordings(seed)).scene(scene_identity(seed))


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
    branches = (_branches(recording, scene_identity(seed)) for recording in _recordings(seed))
    return next(scenes for scenes in branches if len(scenes) > 1)


def scene_identity(seed: int | np.random.SeedSequence) -> str:
    """Return the UUID of the scene of ``seed``, without simulating it."""
    return str(uuid.UUID(bytes=np.random.default_rng(_entropy(seed)).bytes(16), version=4))


def _entropy(seed: int | np.random.SeedSequence) -> list[int]:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # Generators are made from the numbers in the sequence, because spawning would change the caller's object.
    return root.generate_state(8).tolist()


@dataclass(frozen=True)
class _Recording:
    """A simulated scene and its record."""

    rng: np.random.Generator
    now: Simulation  # at the first moment after the last observed step
    world: World
    tracks: Tracks
    world_rng: np.random.Generator  # as it was before ``world`` was built

    def scene(self, scene_id: str) -> SyntheticScene:
        """Draw a city and a time."""
        rng, city = self.rng, str(self.rng.choice(list(_CITIES)))
        x, y, z = _CITIES[city]
        return SyntheticScene(
            scene_id, self.now.network, self.world, self.tracks, city,
            origin=np.round(np.array((x, y)) + rng.uniform(-900.0, 900.0, 2), 2),
            ground=np.array((z + rng.uniform(-5.0, 5.0), rng.normal(0.0, 0.012), rng.normal(0.0, 0.012))),
            start_ns=float(315_960_000_000_000_000 + int(rng.integers(-10_000_000, 10_000_000)) * 1_000_000_00),
            first_id=int(rng.integers(190_000_000, 460_000_000)),
        )  # fmt: skip


def _recordings(seed: int | np.random.SeedSequence) -> Iterator[_Recording]:
    """Yield recordings; draws of streets and traffic without a possible focal track are left out."""
    for attempt in range(_MAX_DRAWS):
        rng = np.random.default_rng([*_entropy(seed), attempt])
        network = random_network(rng)
        fleet, paths = populate(network, rng)
        if len(fleet.kind) < 4:
            continue
        simulation = Simulation(network, fleet, paths, random_pedestrians(network, rng))
        simulation.advance(WARM_UP_TICKS + NUM_HISTORY // 2)
        now = simulation.fork(paths)
        simulation.advance(FUTURE_TICKS)
        world_rng = copy.deepcopy(rng)
        world = build_world(simulation, rng)
        tracks = observe(world, rng)
        if tracks is not None:
            yield _Recording(rng, now, world, tracks, world_rng)
    raise RuntimeError(f"no usable scene from seed {seed} in {_MAX_DRAWS} draws")


# ---- several futures of one past -----------------------------------------------------------------------------------


def _branches(recording: _Recording, scene_id: str) -> list[SyntheticScene]:
    world, focal = recording.world, int(recording.tracks.bodies[recording.tracks.focal])
    if focal >= len(world.turn) or world.choices[focal] < 2:
        return []
    routes = _other_turns(recording.now, focal, recording.rng)
    scenes = [recording.scene(f"{scene_id}.0")] if routes else []
    for route in routes:
        world = _continue_on(recording, focal, route)
        gaps = [world.xy[focal, -1] - scene.world.xy[focal, -1] for scene in scenes]
        if world.present[focal].all() and np.hypot(*np.transpose(gaps)).min() >= _MIN_GAP_M:
            tracks = _record_like(recording, world)
            scenes.append(replace(scenes[0], scene_id=f"{scene_id}.{len(scenes)}", world=world, tracks=tracks))
    return scenes


def _other_turns(now: Simulation, agent: int, rng: np.random.Generator) -> list[Route]:
    """Return routes with the other turns at the next junction; none if ``agent`` has already been granted entry."""
    lanes, row, gate = now.network.lanes, now.row[agent], now.gate[agent]
    inside, route = int(now.paths.gate[row, gate]), now.paths.routes[row]
    if inside < 0 or now.granted[agent] or now.paths.stop[row, gate] < now.at[agent]:
        return []
    number = route.lanes.index(inside)
    if route.change >= 0 and route.change + 1 >= number:
        return []
    options = lanes[route.lanes[number - 1]].successors
    routes = []
    for turn in sorted({lanes[i].turn for i in options} - {lanes[inside].turn}):
        first = [i for i in options if lanes[i].turn == turn]
        tail = random_route(now.network, rng, first[rng.integers(len(first))])
        starts = [route.starts[number] + start for start in tail.starts]
        routes.append(replace(route, lanes=route.lanes[:number] + tail.lanes, starts=route.starts[:number] + starts))
    return routes


def _continue_on(recording: _Recording, agent: int, route: Route) -> World:
    """Return the world in which ``agent`` follows ``route`` from now on.

    Paths and lateral deviations are smoothed over time, so that another future changes the last observed states a little;
    the difference at the last observed step fades out over the next 20 steps.
    """
    now, past = recording.now, recording.world
    routes = list(now.paths.routes)
    routes[now.row[agent]] = route
    simulation = now.fork(build_paths(now.network, routes, now.paths.factor, now.paths.comfort))
    simulation.other[agent] = -1
    simulation.advance(FUTURE_TICKS)
    future = build_world(simulation, copy.deepcopy(recording.world_rng))
    fade = 1.0 - smoothstep((np.arange(NUM_HISTORY, NUM_STEPS) - (NUM_HISTORY - 1)) / _FADE_STEPS)
    joined: dict[str, Any] = {}
    for name in ("xy", "heading", "velocity"):
        before, after = getattr(past, name), getattr(future, name)
        gap = (before - after)[:, NUM_HISTORY - 1, None]
        weight = fade[:, None] if before.ndim == 3 else fade
        joined[name] = np.concatenate((before[:, :NUM_HISTORY], after[:, NUM_HISTORY:] + weight * gap), axis=1)
    present = np.concatenate((past.present[:, :NUM_HISTORY], future.present[:, NUM_HISTORY:]), axis=1)
    return replace(future, present=present, **joined)


def _record_like(recording: _Recording, world: World) -> Tracks:
    """Return the record of another world by the same sensors: the same tracks with the same errors."""
    tracks, valid, bodies = recording.tracks, recording.tracks.valid, recording.tracks.bodies
    gap = {name: (getattr(world, name) - getattr(recording.world, name))[bodies] for name in ("xy", "velocity", "heading")}
    return replace(
        tracks,
        xy=np.where(valid[..., None], tracks.xy + gap["xy"], 0.0),
        velocity=np.where(valid[..., None], tracks.velocity + gap["velocity"], 0.0),
        heading=np.where(valid & (gap["heading"] != 0.0), wrap(tracks.heading + gap["heading"]), tracks.heading),
    )
