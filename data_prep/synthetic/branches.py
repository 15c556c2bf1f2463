"""Several futures of one past."""

import copy
from dataclasses import replace

import numpy as np

from data_prep.synthetic.curves import Array, distance, smoothstep, wrap
from data_prep.synthetic.paths import build_paths
from data_prep.synthetic.routes import Route, random_route
from data_prep.synthetic.scene import Recording, SyntheticScene, recordings, scene_identity
from data_prep.synthetic.sensor import RecordedTracks
from data_prep.synthetic.traffic import FUTURE_TICKS, NUM_HISTORY, NUM_STEPS, Simulation
from data_prep.synthetic.world import World, build_world

_MIN_GAP_M = 4.0  # futures with closer final positions of the focal vehicle count as one
_FADE_STEPS = 20


def simulate_branches(seed: int | np.random.SeedSequence) -> list[SyntheticScene]:
    """Simulate one past and two or three futures.

    In each future, the focal vehicle takes another turn and others react to it. All futures
    continue from the same state of the simulation, just after the last observed step, so that their
    pasts are bitwise equal. `simulate_scene` makes a different scene from the same seed. The scenes
    have the ids ``<id of the seed>.0``, ``.1`` ... and the same agents, roles, map and first 50
    steps. Their focal vehicles end at least 4 m apart. Scene 0 is the original simulation. Raises
    as `simulate_scene`.
    """
    for recording in recordings(seed):
        scenes = _branches(recording, scene_identity(seed))
        if len(scenes) > 1:
            return scenes
    raise AssertionError("`recordings` ends with an error")


def _branches(recording: Recording, scene_id: str) -> list[SyntheticScene]:
    """Return the original scene and its other futures; none if no other turn is possible."""
    tracks = recording.tracks
    focal = int(tracks.bodies[tracks.focal])
    is_vehicle = focal < len(recording.world.turn)
    if not is_vehicle or recording.world.choices[focal] < 2:
        return []
    routes = _other_turns(recording.now, focal, recording.rng)
    if not routes:
        return []
    original = recording.scene(f"{scene_id}.0")
    scenes = [original]
    for route in routes:
        world = _continue_on(recording, focal, route)
        ends = np.array([scene.world.xy[focal, -1] for scene in scenes])
        is_different = distance(ends, world.xy[focal, -1]).min() >= _MIN_GAP_M
        if world.present[focal].all() and is_different:
            scene = replace(
                original,
                scene_id=f"{scene_id}.{len(scenes)}",
                world=world,
                tracks=_record_like(recording, world),
            )
            scenes.append(scene)
    return scenes


def _other_turns(now: Simulation, agent: int, rng: np.random.Generator) -> list[Route]:
    """Return routes with the other turns at the next junction.

    There are none if ``agent`` has already been granted entry.
    """
    lanes = now.network.lanes
    row = now.row[agent]
    gate = now.gate[agent]
    route = now.paths.routes[row]
    inside = int(now.paths.gate[row, gate])  # lane through the junction
    if inside < 0 or now.granted[agent] or now.paths.stop[row, gate] < now.at[agent]:
        return []
    number = route.lanes.index(inside)
    if route.change >= 0 and route.change + 1 >= number:
        return []
    options = lanes[route.lanes[number - 1]].successors
    other_turns = {lanes[i].turn for i in options} - {lanes[inside].turn}
    routes = []
    for turn in sorted(other_turns):
        first_lanes = [i for i in options if lanes[i].turn == turn]
        first_lane = first_lanes[rng.integers(len(first_lanes))]
        tail = random_route(now.network, rng, first_lane)
        tail_starts = [route.starts[number] + start for start in tail.starts]
        other_route = replace(
            route,
            lanes=route.lanes[:number] + tail.lanes,
            starts=route.starts[:number] + tail_starts,
        )
        routes.append(other_route)
    return routes


def _continue_on(recording: Recording, agent: int, route: Route) -> World:
    """Return the world in which ``agent`` follows ``route`` from now on.

    Paths and lateral deviations are smoothed over time, so that another future changes the last
    observed states a little; the difference in the last observed step fades out over the next 20
    steps.
    """
    now = recording.now
    routes = list(now.paths.routes)
    routes[now.row[agent]] = route
    paths = build_paths(now.network, routes, now.paths.factor, now.paths.comfort)
    simulation = now.fork(paths)
    simulation.other[agent] = -1
    simulation.advance(FUTURE_TICKS)

    past = recording.world
    future = build_world(simulation, copy.deepcopy(recording.world_rng))
    present_parts = (past.present[:, :NUM_HISTORY], future.present[:, NUM_HISTORY:])
    return replace(
        future,
        xy=_join(past.xy, future.xy),
        heading=_join(past.heading, future.heading),
        velocity=_join(past.velocity, future.velocity),
        present=np.concatenate(present_parts, axis=1),
    )


def _join(past: Array, future: Array) -> Array:
    """Join the history of ``past`` [M, T, ...] and the future of ``future`` without a step."""
    steps_after_history = np.arange(NUM_HISTORY, NUM_STEPS) - (NUM_HISTORY - 1)
    weight = 1.0 - smoothstep(steps_after_history / _FADE_STEPS)
    if past.ndim == 3:
        weight = weight[:, None]
    gap = (past - future)[:, NUM_HISTORY - 1, None]
    faded = future[:, NUM_HISTORY:] + weight * gap
    return np.concatenate((past[:, :NUM_HISTORY], faded), axis=1)


def _record_like(recording: Recording, world: World) -> RecordedTracks:
    """Return the record of another world by the same sensors.

    It has the same tracks with the same errors.
    """
    tracks = recording.tracks
    before = recording.world
    bodies = tracks.bodies
    valid = tracks.valid[..., None]
    xy_gap = (world.xy - before.xy)[bodies]
    velocity_gap = (world.velocity - before.velocity)[bodies]
    heading_gap = (world.heading - before.heading)[bodies]
    has_other_heading = tracks.valid & (heading_gap != 0.0)
    other_heading = wrap(tracks.heading + heading_gap)
    return replace(
        tracks,
        xy=np.where(valid, tracks.xy + xy_gap, 0.0),
        velocity=np.where(valid, tracks.velocity + velocity_gap, 0.0),
        heading=np.where(has_other_heading, other_heading, tracks.heading),
    )
