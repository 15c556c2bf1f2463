"""Synthetic data sets on disk: splits, worker processes, and files in the Argoverse 2 motion-forecasting layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_prep.synthetic.curves import Array, Ints, bridge, offset
from data_prep.synthetic.network import Junction, Lane, Network, Road
from data_prep.synthetic.scene import (
    NUM_HISTORY,
    NUM_STEPS,
    SyntheticScene,
    branch_id,
    scene_identity,
    simulate_branches,
    simulate_scene,
)

SPLITS = ("train", "val", "test")

Point = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Job:
    out: Path
    seed: int
    number: int
    split: str
    branches: bool


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
        num_scenes: number of scenes over all splits.
        seed: non-negative number.
        val_fraction: share of scenes in "val".
        test_fraction: share of scenes in "test"; with three scenes or more each split gets at least one.
        workers: number of processes.
        progress: whether to draw a progress bar.
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
    jobs = [_Job(Path(out), seed, number, split, branches) for number, split in enumerate(splits)]
    with tqdm(total=len(jobs), desc="synthesize", unit="scene", disable=not progress) as bar:
        if workers == 1:
            for _ in map(_simulate_and_write, jobs):
                bar.update()
        else:
            # "spawn": forking a process that has threads (pyarrow, torch) may deadlock.
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                chunk = max(1, min(16, len(jobs) // (4 * workers)))
                for _ in pool.map(_simulate_and_write, jobs, chunksize=chunk):
                    bar.update()
    return {split: splits.count(split) for split in SPLITS}


def assign_splits(num_scenes: int, val_fraction: float, test_fraction: float) -> list[str]:
    """Return the split of each scene, arguments and ValueError as in ``synthesize``: first train, then val, then test."""
    if num_scenes < 1:
        raise ValueError(f"num_scenes must be at least 1, got {num_scenes}")
    if not (0.0 <= val_fraction < 1.0 and 0.0 <= test_fraction < 1.0 and val_fraction + test_fraction < 1.0):
        raise ValueError(f"fractions must be in [0, 1) and sum to less than 1, got {val_fraction} and {test_fraction}")
    minimum = 1 if num_scenes >= 3 else 0
    val = max(minimum, round(num_scenes * val_fraction))
    test = max(minimum, round(num_scenes * test_fraction))
    while val + test >= num_scenes and val + test > 0:  # rounding must leave a training scene
        val, test = (val - 1, test) if val >= test else (val, test - 1)
    return ["train"] * (num_scenes - val - test) + ["val"] * val + ["test"] * test


def _simulate_and_write(job: _Job) -> None:
    sequence = np.random.SeedSequence([job.seed, job.number])
    folder, test = job.out / job.split, job.split == "test"
    scene_id = scene_identity(sequence)
    if not job.branches:
        if not _is_written(folder, scene_id):
            write_scene(simulate_scene(sequence), folder, observed_only=test)
    elif not _is_written(folder, branch_id(scene_id, 0)):
        scenes = simulate_branches(sequence)
        for scene in reversed(scenes[: 1 if test else None]):  # scene 0 last: its presence shows that all are written
            write_scene(scene, folder, observed_only=test)


def write_scene(scene: SyntheticScene, folder: Path, *, observed_only: bool = False) -> Path:
    """Write the two files of ``scene`` into ``folder / scene.scene_id``, and return this folder.

    Files get their final names only when complete; existing files that are not empty are kept.

    Args:
        scene: the scene.
        folder: folder of the split, created if missing.
        observed_only: write only the history, as in the test split (which still declares all 110 steps).

    Raises:
        OSError: if the folder cannot be written.
    """
    table_path, map_path = _paths(Path(folder), scene.scene_id)
    table_path.parent.mkdir(parents=True, exist_ok=True)
    if not _is_complete(map_path):
        _write_atomically(map_path, lambda path: path.write_bytes(msgspec.json.encode(_map_document(scene))))
    if not _is_complete(table_path):
        table = _scenario_table(scene, NUM_HISTORY if observed_only else NUM_STEPS)
        _write_atomically(table_path, lambda path: pq.write_table(table, path, compression="snappy"))
    return table_path.parent


def _paths(folder: Path, scene_id: str) -> tuple[Path, Path]:
    base = folder / scene_id
    return base / f"scenario_{scene_id}.parquet", base / f"log_map_archive_{scene_id}.json"


def _is_complete(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _is_written(folder: Path, scene_id: str) -> bool:
    return all(_is_complete(path) for path in _paths(folder, scene_id))


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Fill a temporary file in the same folder and rename it; a failure leaves no file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _scenario_table(scene: SyntheticScene, steps: int) -> pa.Table:
    """Return the first ``steps`` steps in the columns of an Argoverse 2 scenario file, one row per track and step."""
    tracks = scene.tracks
    track, step = np.nonzero(tracks.valid[:, :steps])
    xy = tracks.xy[track, step] + scene.origin
    velocity = tracks.velocity[track, step]
    rows = len(track)
    constant = np.zeros(rows, dtype=np.int64)
    end_ns = scene.start_ns + (NUM_STEPS - 1) * 1e8
    return pa.table(
        {
            "observed": pa.array(step < NUM_HISTORY),
            "track_id": _text(tracks.ids, track),
            "object_type": _text(tracks.kinds, track),
            "object_category": pa.array(tracks.categories[track]),
            "timestep": pa.array(step),
            "position_x": pa.array(xy[:, 0]),
            "position_y": pa.array(xy[:, 1]),
            "heading": pa.array(tracks.heading[track, step]),
            "velocity_x": pa.array(velocity[:, 0]),
            "velocity_y": pa.array(velocity[:, 1]),
            "scenario_id": _text([scene.scene_id], constant),
            "start_timestamp": pa.array(np.full(rows, scene.start_ns)),
            "end_timestamp": pa.array(np.full(rows, end_ns)),
            "num_timestamps": pa.array(np.full(rows, NUM_STEPS)),
            "focal_track_id": _text([scene.focal_id], constant),
            "city": _text([scene.city], constant),
        }
    )


def _text(values: list[str], index: Ints) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(values)).cast(pa.string())


def _map_document(scene: SyntheticScene) -> dict[str, dict[str, Any]]:
    """Return the street map as the JSON document of an Argoverse 2 map archive."""
    network, first = scene.network, scene.first_id
    shapes: list[Array] = []
    for lane in network.lanes:
        every = 2 if lane.junction >= 0 else 4  # boundaries have fewer points than centrelines
        shapes += [_thin(lane.center, 2), _thin(lane.left, every), _thin(lane.right, every)]
    crosswalks = [arm for arm in network.arms if arm.crosswalk]
    for arm in crosswalks:
        shapes += network.crosswalk_edges(arm)
    shapes += [_road_outline(road) for road in network.roads]
    shapes += [_junction_outline(network, junction) for junction in network.junctions]
    points = iter(_city_points(scene, shapes, flat={3 * i for i in range(len(network.lanes))}))
    lanes = {str(first + lane.index): _lane(first, lane, next(points), next(points), next(points))
             for lane in network.lanes}  # fmt: skip
    number = first + len(lanes)
    crossings = {str(number + i): {"edge1": next(points), "edge2": next(points), "id": number + i}
                 for i in range(len(crosswalks))}  # fmt: skip
    number += len(crossings)
    areas = {str(number + i): {"area_boundary": outline, "id": number + i} for i, outline in enumerate(points)}
    return {"drivable_areas": areas, "lane_segments": lanes, "pedestrian_crossings": crossings}


def _lane(first: int, lane: Lane, center: list[Point], left_edge: list[Point], right_edge: list[Point]) -> dict[str, Any]:
    left, right = lane.left_neighbor, lane.right_neighbor
    return {
        "centerline": center,
        "id": first + lane.index,
        "is_intersection": lane.junction >= 0,
        "lane_type": lane.kind,
        "left_lane_boundary": left_edge,
        "left_lane_mark_type": lane.marks[0],
        "left_neighbor_id": None if left is None else first + left,
        "predecessors": [first + i for i in lane.predecessors],
        "right_lane_boundary": right_edge,
        "right_lane_mark_type": lane.marks[1],
        "right_neighbor_id": None if right is None else first + right,
        "successors": [first + i for i in lane.successors],
    }


def _thin(points: Array, every: int) -> Array:
    """Return about every ``every``-th of ``points`` [N, 2], always with both ends."""
    last = len(points) - 1
    count = max(1, last // every)
    return points[(np.arange(count + 1) * last + count // 2) // count]


def _city_points(scene: SyntheticScene, shapes: list[Array], flat: set[int]) -> list[list[Point]]:
    """Return the polylines ``shapes`` [N, 2] in city coordinates, rounded to centimetres.

    Polylines with an index in ``flat`` have height 0, as centrelines have in the original.
    """
    joined = np.concatenate(shapes)
    xy = np.round(joined + scene.origin, 2) + 0.0
    height, slope_x, slope_y = scene.ground
    z = np.round(height + joined[:, 0] * slope_x + joined[:, 1] * slope_y, 2) + 0.0
    ends = np.cumsum([len(shape) for shape in shapes]).tolist()
    for i in flat:
        z[ends[i] - len(shapes[i]) : ends[i]] = 0.0
    points = [{"x": x, "y": y, "z": h} for x, y, h in zip(xy[:, 0].tolist(), xy[:, 1].tolist(), z.tolist(), strict=True)]
    return [points[end - len(shape) : end] for shape, end in zip(shapes, ends, strict=True)]


def _road_outline(road: Road) -> Array:
    left = _thin(offset(road.points, road.heading, road.half_in), 3)
    right = _thin(offset(road.points, road.heading, -road.half_out), 3)
    return np.concatenate((left, right[::-1]))


def _junction_outline(network: Network, junction: Junction) -> Array:
    """Return the paved area of a junction: from arm to arm counter-clockwise, with rounded corners."""
    arms = sorted((network.arms[i] for i in junction.arms), key=lambda arm: float(arm.angle % (2.0 * np.pi)))
    mouths = []
    for arm in arms:
        left, right = network.arm_halves(arm, 0.0)
        mouths.append(network.arm_point(arm, np.zeros(2), np.array((-right, left))))
    parts = []
    for arm, mouth, next_arm, next_mouth in zip(arms, mouths, arms[1:] + arms[:1], mouths[1:] + mouths[:1], strict=True):
        parts += [mouth, bridge(mouth[1], arm.angle + np.pi, next_mouth[0], next_arm.angle, 2.0)[1:-1]]
    return np.concatenate(parts)
