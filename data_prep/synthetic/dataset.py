"""Synthetic data sets: scenes from seeds, several futures of one past, and files in the Argoverse 2 motion-forecasting layout."""

import copy
import os
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.synthetic.agents import (
    Route,
    build_paths,
    populate,
    random_pedestrians,
    random_route,
)
from data_prep.synthetic.network import (
    Array,
    Junction,
    Network,
    Road,
    bridge,
    offset,
    random_network,
    smoothstep,
    wrap,
)
from data_prep.synthetic.traffic import (
    FUTURE_TICKS,
    NUM_HISTORY,
    NUM_STEPS,
    WARM_UP_TICKS,
    Simulation,
)
from data_prep.synthetic.world import Tracks, World, build_world, observe
from trajformer.errors import TrajformerError

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

    The scene depends on ``seed`` only. Its focal track is valid at all steps and moves in its future. Raises ValueError: if
    ``seed`` is negative. RuntimeError: if 400 draws in a row give no scene with a focal track, which would be a bug.
    """
    return next(_recordings(seed)).scene(scene_identity(seed))


def simulate_branches(seed: int | np.random.SeedSequence) -> list[SyntheticScene]:
    """Simulate one past and two or three futures: in each, the focal vehicle takes another turn and others react to it.

    All futures continue from the same state of the simulation, just after the last observed step, so that their pasts are bitwise
    equal. `simulate_scene` makes a different scene from the same seed. The scenes have the ids ``<id of the seed>.0``, ``.1`` ...
    and the same agents, roles, map and first 50 steps. Their focal vehicles end at least 4 m apart. Scene 0 is the original
    simulation. Raises as `simulate_scene`.
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


class _Recording(NamedTuple):
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
            scenes.append(
                replace(scenes[0], scene_id=f"{scene_id}.{len(scenes)}", world=world, tracks=tracks)
            )
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
        routes.append(
            replace(
                route,
                lanes=route.lanes[:number] + tail.lanes,
                starts=route.starts[:number] + starts,
            )
        )
    return routes


def _continue_on(recording: _Recording, agent: int, route: Route) -> World:
    """Return the world in which ``agent`` follows ``route`` from now on.

    Paths and lateral deviations are smoothed over time, so that another future changes the last observed states a little;
    the difference in the last observed step fades out over the next 20 steps.
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
        joined[name] = np.concatenate(
            (before[:, :NUM_HISTORY], after[:, NUM_HISTORY:] + weight * gap), axis=1
        )
    present = np.concatenate(
        (past.present[:, :NUM_HISTORY], future.present[:, NUM_HISTORY:]), axis=1
    )
    return replace(future, present=present, **joined)


def _record_like(recording: _Recording, world: World) -> Tracks:
    """Return the record of another world by the same sensors: the same tracks with the same errors."""
    tracks, valid, bodies = recording.tracks, recording.tracks.valid, recording.tracks.bodies
    gap = {
        name: (getattr(world, name) - getattr(recording.world, name))[bodies]
        for name in ("xy", "velocity", "heading")
    }
    return replace(
        tracks,
        xy=np.where(valid[..., None], tracks.xy + gap["xy"], 0.0),
        velocity=np.where(valid[..., None], tracks.velocity + gap["velocity"], 0.0),
        heading=np.where(
            valid & (gap["heading"] != 0.0), wrap(tracks.heading + gap["heading"]), tracks.heading
        ),
    )


# ---- data sets on disk ---------------------------------------------------------------------------------------------

SPLITS = ("train", "val", "test")


def synthesize(
    out: Path,
    num_scenes: int,
    seed: int,
    *,
    val_fraction: float = 0.2,
    test_fraction: float = 0.05,
    workers: int = 1,
    progress: bool = True,
    branches: bool = False,
) -> dict[str, int]:
    """Simulate scenes and write them as ``out/{train,val,test}/<uuid>/`` in the Argoverse 2 layout; returns the pasts by split.

    Scene number i depends on ``(seed, i)`` only: the same arguments give the same bytes for any number of workers. After an
    interruption, calling it again writes the missing scenes and keeps the finished ones. Test scenes hold the 50 observed steps
    only (5 s at 10 Hz), the others all 110. Of three scenes or more each split gets at least one. With ``branches``, two or three
    futures of each past are separate scenes with ids that differ after the last dot (in "test", which has no futures, only one).
    Raises ValueError: negative numbers, fractions outside [0, 1), or no training scene is left. TrajformerError: a
    worker was killed.
    """
    splits = assign_splits(num_scenes, val_fraction, test_fraction)
    if seed < 0 or workers < 1:
        raise ValueError(
            f"seed must be at least 0 and workers at least 1, got seed={seed}, workers={workers}"
        )
    for split in SPLITS:
        (Path(out) / split).mkdir(parents=True, exist_ok=True)
    write = partial(_simulate_and_write, Path(out), seed, branches)
    # "spawn": forking a process that has threads (pyarrow, torch) may deadlock. One process is this one.
    # A terminal sends Ctrl-C to all processes; only this one handles it.
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    try:
        run = map if workers == 1 else pool.map
        for _ in tqdm(
            run(write, range(num_scenes), splits),
            "synthesize",
            num_scenes,
            unit="scene",
            disable=not progress,
        ):
            pass
    except BrokenProcessPool as error:
        raise TrajformerError(
            "a worker ended unexpectedly, killed for memory for example; run the same command again"
        ) from error
    finally:
        pool.shutdown(
            cancel_futures=True
        )  # after an interruption, a process finishes the scenes it has received
    return {split: splits.count(split) for split in SPLITS}


def assign_splits(num_scenes: int, val_fraction: float, test_fraction: float) -> list[str]:
    """Return the split of each scene, arguments and ValueError as in ``synthesize``: first train, then val, then test."""
    if num_scenes < 1:
        raise ValueError(f"num_scenes must be at least 1, got {num_scenes}")
    if not (
        0.0 <= val_fraction < 1.0
        and 0.0 <= test_fraction < 1.0
        and val_fraction + test_fraction < 1.0
    ):
        raise ValueError(
            f"fractions must be in [0, 1) and sum to less than 1, got {val_fraction} and {test_fraction}"
        )
    minimum = 1 if num_scenes >= 3 else 0
    val, test = (
        max(minimum, round(num_scenes * fraction)) for fraction in (val_fraction, test_fraction)
    )
    while val + test >= num_scenes and val + test > 0:  # rounding must leave a training scene
        val, test = (val - 1, test) if val >= test else (val, test - 1)
    return ["train"] * (num_scenes - val - test) + ["val"] * val + ["test"] * test


def _simulate_and_write(out: Path, seed: int, branches: bool, number: int, split: str) -> None:
    sequence, folder = np.random.SeedSequence([seed, number]), out / split
    if _is_written(_table_path(folder, scene_identity(sequence) + (".0" if branches else ""))):
        return
    scenes = simulate_branches(sequence) if branches else [simulate_scene(sequence)]
    for scene in reversed(
        scenes[:1] if split == "test" else scenes
    ):  # scene 0 last: then all are written
        _write(
            scene,
            _table_path(folder, scene.scene_id),
            NUM_HISTORY if split == "test" else NUM_STEPS,
        )


def _table_path(folder: Path, scene_id: str) -> Path:
    return folder / scene_id / f"scenario_{scene_id}.parquet"


def _is_written(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _write(scene: SyntheticScene, path: Path, steps: int) -> None:
    """Write the map, then the first ``steps`` steps under a temporary name, so that a scenario file is complete."""
    if _is_written(path):
        return
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"log_map_archive_{scene.scene_id}.json").write_bytes(
        msgspec.json.encode(_map_document(scene))
    )
    temporary = path.with_name(".scenario.tmp")
    try:
        pq.write_table(_scenario_table(scene, steps), temporary, compression="snappy")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _scenario_table(scene: SyntheticScene, steps: int) -> pa.Table:
    """Return the first ``steps`` steps in the columns of an Argoverse 2 scenario file, one row per track and step."""
    tracks = scene.tracks
    track, step = np.nonzero(tracks.valid[:, :steps])
    x, y = (tracks.xy[track, step] + scene.origin).T
    velocity_x, velocity_y = tracks.velocity[track, step].T
    count = len(track)
    return pa.table(
        {
            "observed": step < NUM_HISTORY,
            "track_id": pa.array(tracks.ids).take(pa.array(track)),
            "object_type": pa.array(tracks.kinds).take(pa.array(track)),
            "object_category": tracks.categories[track],
            "timestep": step,
            "position_x": x,
            "position_y": y,
            "heading": tracks.heading[track, step],
            "velocity_x": velocity_x,
            "velocity_y": velocity_y,
            "scenario_id": pa.repeat(scene.scene_id, count),
            "start_timestamp": np.full(count, scene.start_ns),
            "end_timestamp": np.full(count, scene.start_ns + (NUM_STEPS - 1) * 1e8),
            "num_timestamps": np.full(count, NUM_STEPS),
            "focal_track_id": pa.repeat(tracks.ids[tracks.focal], count),
            "city": pa.repeat(scene.city, count),
        }
    )


def _map_document(scene: SyntheticScene) -> dict[str, dict[str, Any]]:
    """Return the street map as the JSON document of an Argoverse 2 map archive."""
    network, first = scene.network, scene.first_id
    lanes = {}
    for lane in network.lanes:
        every = 2 if lane.arms else 4  # boundaries have fewer points than centrelines
        left, right = lane.left_neighbor, lane.right_neighbor
        lanes[str(first + lane.index)] = {
            "centerline": [point | {"z": 0.0} for point in _points(scene, _thin(lane.center, 2))],
            "id": first + lane.index,
            "is_intersection": bool(lane.arms),
            "lane_type": lane.kind,
            "left_lane_boundary": _points(scene, _thin(lane.left, every)),
            "left_lane_mark_type": lane.marks[0],
            "left_neighbor_id": None if left is None else first + left,
            "predecessors": [first + i for i in lane.predecessors],
            "right_lane_boundary": _points(scene, _thin(lane.right, every)),
            "right_lane_mark_type": lane.marks[1],
            "right_neighbor_id": None if right is None else first + right,
            "successors": [first + i for i in lane.successors],
        }
    crossings, areas = {}, {}
    for number, arm in enumerate(
        (arm for arm in network.arms if arm.crosswalk), first + len(lanes)
    ):
        one, other = (_points(scene, edge) for edge in arm.crosswalk_edges())
        crossings[str(number)] = {"edge1": one, "edge2": other, "id": number}
    outlines = [*map(_road_outline, network.roads), *map(_junction_outline, network.junctions)]
    for number, outline in enumerate(outlines, first + len(lanes) + len(crossings)):
        areas[str(number)] = {"area_boundary": _points(scene, outline), "id": number}
    return {"drivable_areas": areas, "lane_segments": lanes, "pedestrian_crossings": crossings}


def _thin(points: Array, every: int) -> Array:
    """Return about every ``every``-th of ``points`` [N, 2], always with both ends."""
    last = len(points) - 1
    count = max(1, last // every)
    return points[(np.arange(count + 1) * last + count // 2) // count]


def _points(scene: SyntheticScene, shape: Array) -> list[dict[str, float]]:
    """Return the polyline ``shape`` [N, 2] in city coordinates, rounded to centimetres."""
    height, slope_x, slope_y = scene.ground
    z = height + shape[:, 0] * slope_x + shape[:, 1] * slope_y
    points = np.round(np.column_stack((shape + scene.origin, z)), 2) + 0.0  # not -0.0
    return [{"x": x, "y": y, "z": z} for x, y, z in points.tolist()]


def _road_outline(road: Road) -> Array:
    left, right = (
        _thin(offset(road.points, road.heading, lateral), 3)
        for lateral in (road.half[0], -road.half[1])
    )
    return np.concatenate((left, right[::-1]))


def _junction_outline(junction: Junction) -> Array:
    """Return the paved area of a junction: from arm to arm counter-clockwise, with rounded corners."""
    arms = sorted(junction.arms, key=lambda arm: float(arm.angle % (2.0 * np.pi)))
    mouths = [arm.point(np.zeros(2), arm.halves(0.0)[::-1] * (-1.0, 1.0)) for arm in arms]
    parts = []
    for i, (arm, mouth) in enumerate(zip(arms, mouths, strict=True)):
        following = (i + 1) % len(arms)
        corner = bridge(
            mouth[1], arm.angle + np.pi, mouths[following][0], arms[following].angle, 2.0
        )
        parts += [mouth, corner[1:-1]]
    return np.concatenate(parts)
