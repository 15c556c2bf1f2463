"""Synthetic data sets on disk: splits, worker processes, and files in the Argoverse 2 motion-forecasting layout."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.synthetic.curves import Array, Ints, bridge, offset
from data_prep.synthetic.network import Junction, Road
from data_prep.synthetic.scene import SyntheticScene, scene_identity, simulate_branches, simulate_scene
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS

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
    """Simulate scenes and write them as ``out/{train,val,test}/<uuid>/`` in the Argoverse 2 layout.

    Scene number i depends on ``(seed, i)`` only: the same arguments give the same bytes for any number of workers.
    After an interruption, calling it again writes the missing scenes and keeps the finished ones. Test
    scenes hold the 50 observed steps only (5 s at 10 Hz), the others all 110.

    Args:
        out: folder to write to, created if missing.
        num_scenes: number of scenes over all splits; of three scenes or more each split gets at least one.
        branches: whether to write two or three futures of each past as separate scenes with ids that differ after
            the last dot (in "test", which has no futures, only one).

    Returns:
        The number of pasts in each split.

    Raises:
        ValueError: for negative numbers, fractions outside [0, 1), or if no training scene is left.
        OSError: if ``out`` cannot be written.
    """
    splits = assign_splits(num_scenes, val_fraction, test_fraction)
    if seed < 0 or workers < 1:
        raise ValueError(f"seed must be at least 0 and workers at least 1, got seed={seed}, workers={workers}")
    for split in SPLITS:
        (Path(out) / split).mkdir(parents=True, exist_ok=True)
    write = partial(_simulate_and_write, Path(out), seed, branches)
    # "spawn": forking a process that has threads (pyarrow, torch) may deadlock. One process is this one.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        chunk = max(1, min(16, num_scenes // (4 * workers)))
        run = map if workers == 1 else partial(pool.map, chunksize=chunk)
        for _ in tqdm(run(write, range(num_scenes), splits), "synthesize", num_scenes, unit="scene", disable=not progress):
            pass
    return {split: splits.count(split) for split in SPLITS}


def assign_splits(num_scenes: int, val_fraction: float, test_fraction: float) -> list[str]:
    """Return the split of each scene, arguments and ValueError as in ``synthesize``: first train, then val, then test."""
    if num_scenes < 1:
        raise ValueError(f"num_scenes must be at least 1, got {num_scenes}")
    if not (0.0 <= val_fraction < 1.0 and 0.0 <= test_fraction < 1.0 and val_fraction + test_fraction < 1.0):
        raise ValueError(f"fractions must be in [0, 1) and sum to less than 1, got {val_fraction} and {test_fraction}")
    minimum = 1 if num_scenes >= 3 else 0
    val, test = (max(minimum, round(num_scenes * fraction)) for fraction in (val_fraction, test_fraction))
    while val + test >= num_scenes and val + test > 0:  # rounding must leave a training scene
        val, test = (val - 1, test) if val >= test else (val, test - 1)
    return ["train"] * (num_scenes - val - test) + ["val"] * val + ["test"] * test


def _simulate_and_write(out: Path, seed: int, branches: bool, number: int, split: str) -> None:
    sequence, folder = np.random.SeedSequence([seed, number]), out / split
    if _is_written(folder, scene_identity(sequence) + (".0" if branches else "")):
        return
    scenes = simulate_branches(sequence) if branches else [simulate_scene(sequence)]
    for scene in reversed(scenes[:1] if split == "test" else scenes):  # scene 0 last: then all are written
        if not _is_written(folder, scene.scene_id):
            _write(scene, folder, NUM_HISTORY if split == "test" else NUM_STEPS)


def _table_path(folder: Path, scene_id: str) -> Path:
    return folder / scene_id / f"scenario_{scene_id}.parquet"


def _is_written(folder: Path, scene_id: str) -> bool:
    path = _table_path(folder, scene_id)
    return path.is_file() and path.stat().st_size > 0


def _write(scene: SyntheticScene, folder: Path, steps: int) -> None:
    """Write the map, then the first ``steps`` steps under a temporary name, so that a scenario file is complete."""
    path = _table_path(folder, scene.scene_id)
    path.parent.mkdir(exist_ok=True)
    path.with_name(f"log_map_archive_{scene.scene_id}.json").write_bytes(msgspec.json.encode(_map_document(scene)))
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
    all_rows = np.zeros_like(track)
    return pa.table(
        {
            "observed": step < NUM_HISTORY,
            "track_id": _text(tracks.ids, track),
            "object_type": _text(tracks.kinds, track),
            "object_category": tracks.categories[track],
            "timestep": step,
            "position_x": x,
            "position_y": y,
            "heading": tracks.heading[track, step],
            "velocity_x": velocity_x,
            "velocity_y": velocity_y,
            "scenario_id": _text([scene.scene_id], all_rows),
            "start_timestamp": np.full(len(track), scene.start_ns),
            "end_timestamp": np.full(len(track), scene.start_ns + (NUM_STEPS - 1) * 1e8),
            "num_timestamps": np.full(len(track), NUM_STEPS),
            "focal_track_id": _text([tracks.ids[tracks.focal]], all_rows),
            "city": _text([scene.city], all_rows),
        }
    )


def _text(values: list[str], index: Ints) -> pa.Array:
    return pa.array(values).take(pa.array(index))


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
    for number, arm in enumerate((arm for arm in network.arms if arm.crosswalk), first + len(lanes)):
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
    left, right = (_thin(offset(road.points, road.heading, lateral), 3) for lateral in (road.half[0], -road.half[1]))
    return np.concatenate((left, right[::-1]))


def _junction_outline(junction: Junction) -> Array:
    """Return the paved area of a junction: from arm to arm counter-clockwise, with rounded corners."""
    arms = sorted(junction.arms, key=lambda arm: float(arm.angle % (2.0 * np.pi)))
    mouths = [arm.point(np.zeros(2), arm.halves(0.0)[::-1] * (-1.0, 1.0)) for arm in arms]
    parts = []
    for i, (arm, mouth) in enumerate(zip(arms, mouths, strict=True)):
        following = (i + 1) % len(arms)
        corner = bridge(mouth[1], arm.angle + np.pi, mouths[following][0], arms[following].angle, 2.0)
        parts += [mouth, corner[1:-1]]
    return np.concatenate(parts)
