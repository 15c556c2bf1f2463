"""Several futures of one past: the focal vehicle takes each turn that is open to it, and the traffic around it answers.

All futures go on from the same moment of the simulation, just after the last observed step, and differ in the route of the
focal vehicle alone; what others do about it follows. So their pasts are the same to the last bit.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from data_prep.synthetic.curves import Array, smoothstep, wrap
from data_prep.synthetic.junction import Network
from data_prep.synthetic.motion import motion_of
from data_prep.synthetic.observe import Tracks
from data_prep.synthetic.paths import build_paths, speed_profiles
from data_prep.synthetic.routes import Route, random_route
from data_prep.synthetic.scene import (
    NUM_HISTORY,
    NUM_STEPS,
    Play,
    SyntheticScene,
    compose,
    focal_way,
    generators,
    play,
    scene_identity,
)
from data_prep.synthetic.world import World, build_world

_APART_M = 4.0  # at the end; futures that end nearer to each other are one
_FADE = 20  # steps over which what the future has changed of the last observed step is given back
_DRAWS = 400


def simulate_branches(seed: int | np.random.SeedSequence) -> list[SyntheticScene]:
    """Simulate one past and two or three futures of it.

    Args:
        seed: a non-negative number or a seed sequence, on which everything depends; of `simulate_scene` it gives another scene.

    Returns:
        Scenes whose ids are that of the seed, a dot and 0, 1 ..., with the same agents, roles, map and first 50 steps. Their
        focal vehicles end at least 4 m apart. Scene 0 is what would have happened anyway.

    Raises:
        ValueError: if ``seed`` is negative.
        RuntimeError: if 400 draws in a row give no scene with two futures, which would be a bug.
    """
    for rng in generators(seed, _DRAWS):
        played = play(rng)
        if played is not None:
            scenes = _branches(played, rng, scene_identity(seed))
            if len(scenes) > 1:
                return scenes
    raise RuntimeError(f"no scene with two futures from seed {seed} in {_DRAWS} draws")


def branch_id(scene_id: str, number: int) -> str:
    """Return the id of one future of a past."""
    return f"{scene_id}.{number}"


def _branches(played: Play, rng: np.random.Generator, scene_id: str) -> list[SyntheticScene]:
    focal = int(played.tracks.bodies[played.focal])
    if focal >= len(played.world.turn) or played.world.choices[focal] < 2:
        return []
    routes = _other_turns(played, focal, rng)
    if not routes:
        return []
    first = compose(played, rng, branch_id(scene_id, 0))
    worlds, scenes = [played.world], [first]
    for route in routes:
        world = _follow(played, focal, route)
        ends = [other.xy[focal, -1] - world.xy[focal, -1] for other in worlds]
        if world.present[focal].all() and min(np.hypot(*gap) for gap in ends) >= _APART_M:
            turn, choices = focal_way(world, focal)
            name, tracks = branch_id(scene_id, len(scenes)), _record_like(played.tracks, played.world, world)
            scenes.append(replace(first, scene_id=name, tracks=tracks, focal_turn=turn, focal_choices=choices))
            worlds.append(world)
    return scenes


def _other_turns(played: Play, who: int, rng: np.random.Generator) -> list[Route]:
    """Return routes that take the other turns at the next junction; none for who is in it already or has been let in."""
    now, network = played.now, played.now.network
    row, gate = int(now.row[who]), int(now.gate[who])
    inside = int(now.paths.gate[row, gate])
    if inside < 0 or now.granted[who] or now.paths.stop[row, gate] < now.at[who]:
        return []
    route = now.paths.routes[row]
    place = route.lanes.index(inside)
    if route.change is not None and route.change.number + 1 >= place:
        return []
    return [
        _turned(network, rng, route, place, [lane for lane in ways if network.lanes[lane].turn == turn])
        for ways in [network.lanes[route.lanes[place - 1]].successors]
        for turn in sorted({network.lanes[lane].turn for lane in ways} - {network.lanes[inside].turn})
    ]


def _turned(network: Network, rng: np.random.Generator, route: Route, place: int, ways: list[int]) -> Route:
    """Return the route that goes on from its lane ``place`` with one of ``ways`` instead."""
    tail = random_route(network, rng, ways[int(rng.integers(len(ways)))])
    starts = [route.starts[place] + start for start in tail.starts]
    return Route(route.lanes[:place] + tail.lanes, route.starts[:place] + starts, route.change)


def _follow(played: Play, who: int, route: Route) -> World:
    """Return what happens if ``who`` follows ``route`` from now on."""
    now = played.now
    routes = list(now.paths.routes)
    routes[int(now.row[who])] = route
    paths = build_paths(now.network, routes)
    simulation = now.fork(paths, speed_profiles(paths, now.fleet.factor, now.fleet.comfort))
    simulation.other[who] = -1
    history = [*played.history, *simulation.advance((NUM_STEPS - NUM_HISTORY + 1) // 2)]
    motion = motion_of(history, simulation.row, NUM_STEPS)
    rng = copy.deepcopy(played.wander)
    world = build_world(now.network, simulation.fleet, paths, now.walkers, motion, NUM_HISTORY - 1, rng)
    return _joined(played.world, world)


def _joined(past: World, future: World) -> World:
    """Return ``future`` with the steps observed in ``past``.

    Lanes and swerves are smoothed over some steps, so that another future changes the last observed ones a little.
    """
    last = NUM_HISTORY - 1
    rest = 1.0 - smoothstep((np.arange(NUM_STEPS) - last) / _FADE)

    def join(name: str) -> Array:
        before, after = getattr(past, name), getattr(future, name)
        weight = rest[:, None] if before.ndim == 3 else rest
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
