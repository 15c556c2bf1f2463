"""Scenes as files in the Argoverse 2 motion-forecasting layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.synthetic.curves import Array, Ints, bridge, offset
from data_prep.synthetic.junction import Junction, Network, crosswalk_edges
from data_prep.synthetic.road import Lane, Road
from data_prep.synthetic.scene import NUM_HISTORY, NUM_STEPS, SyntheticScene

Point = dict[str, float]


def write_scene(scene: SyntheticScene, folder: Path, *, observed_only: bool = False) -> Path:
    """Write the two files of ``scene`` into ``folder / scene.scene_id``.

    Files appear under their final names only when complete; files already there and not empty are kept.

    Args:
        scene: the scene.
        folder: folder of the split, created if missing.
        observed_only: write only the history, as in the test split (which still declares all 110 steps).

    Returns:
        The folder of the scene.

    Raises:
        OSError: if the folder cannot be written.
    """
    target = Path(folder) / scene.scene_id
    target.mkdir(parents=True, exist_ok=True)
    table_path = target / f"scenario_{scene.scene_id}.parquet"
    map_path = target / f"log_map_archive_{scene.scene_id}.json"
    if not _is_complete(map_path):
        _replace(map_path, lambda temporary: temporary.write_bytes(msgspec.json.encode(map_document(scene))))
    if not _is_complete(table_path):
        table = scenario_table(scene, NUM_HISTORY if observed_only else NUM_STEPS)
        _replace(table_path, lambda temporary: pq.write_table(table, temporary, compression="snappy"))
    return target


def is_written(folder: Path, scene_id: str) -> bool:
    """Return whether both files of scene ``scene_id`` are in ``folder`` (the split's) and not empty."""
    base = Path(folder) / scene_id
    names = (f"scenario_{scene_id}.parquet", f"log_map_archive_{scene_id}.json")
    return all(_is_complete(base / name) for name in names)


def scenario_table(scene: SyntheticScene, steps: int) -> pa.Table:
    """Return the tracks of ``scene`` in the columns of an Argoverse 2 scenario file, a row a track and step.

    Args:
        scene: the scene.
        steps: number of steps to include, counted from the first.
    """
    tracks = scene.tracks
    track, step = np.nonzero(tracks.valid[:, :steps])
    xy = tracks.xy[track, step] + scene.origin
    velocity = tracks.velocity[track, step]
    rows = len(track)

    same = np.zeros(rows, dtype=np.int64)
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
            "scenario_id": _text([scene.scene_id], same),
            "start_timestamp": pa.array(np.full(rows, scene.start_ns)),
            "end_timestamp": pa.array(np.full(rows, end_ns)),
            "num_timestamps": pa.array(np.full(rows, NUM_STEPS)),
            "focal_track_id": _text([scene.focal_id], same),
            "city": _text([scene.city], same),
        }
    )


def _text(values: list[str], index: Ints) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(values)).cast(pa.string())


def map_document(scene: SyntheticScene) -> dict[str, dict[str, Any]]:
    """Return the street map of ``scene`` as the JSON document of an Argoverse 2 map archive."""
    network, first = scene.network, scene.first_id
    shapes: list[Array] = []
    for lane in network.lanes:
        sparse = 2 if lane.junction >= 0 else 4  # boundaries are drawn with fewer points than centrelines
        shapes += [_thin(lane.centre, 2), _thin(lane.left, sparse), _thin(lane.right, sparse)]
    crosswalks = [arm for arm in network.arms if arm.crosswalk]
    for arm in crosswalks:
        shapes += crosswalk_edges(network, arm)
    shapes += [_road_outline(road) for road in network.roads]
    shapes += [_junction_outline(network, junction) for junction in network.junctions]
    points = iter(_points(scene, shapes, flat={3 * i for i in range(len(network.lanes))}))
    lanes = {str(first + lane.index): _lane(first, lane, next(points), next(points), next(points))
             for lane in network.lanes}  # fmt: skip
    number = first + len(lanes)
    crossings = {str(number + i): {"edge1": next(points), "edge2": next(points), "id": number + i}
                 for i in range(len(crosswalks))}  # fmt: skip
    number += len(crossings)
    areas = {str(number + i): {"area_boundary": outline, "id": number + i} for i, outline in enumerate(points)}
    return {"drivable_areas": areas, "lane_segments": lanes, "pedestrian_crossings": crossings}


def _lane(first: int, lane: Lane, centre: list[Point], left_edge: list[Point], right_edge: list[Point]) -> dict[str, Any]:
    left, right = lane.left_neighbor, lane.right_neighbor
    return {
        "centerline": centre,
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


def _points(scene: SyntheticScene, shapes: list[Array], flat: set[int]) -> list[list[Point]]:
    """Return local polylines [N, 2] as city coordinates in centimetres.

    Args:
        scene: whose origin and ground to use.
        shapes: the polylines.
        flat: which of them get height 0, as centrelines have in the original.
    """
    joined = np.concatenate(shapes)
    xy = np.round(joined + scene.origin, 2) + 0.0
    height, slope_x, slope_y = scene.ground
    z = np.round(height + joined[:, 0] * slope_x + joined[:, 1] * slope_y, 2) + 0.0
    ends = np.cumsum([len(shape) for shape in shapes]).tolist()
    for i in flat:
        z[ends[i] - len(shapes[i]) : ends[i]] = 0.0
    dots = [{"x": x, "y": y, "z": h} for x, y, h in zip(xy[:, 0].tolist(), xy[:, 1].tolist(), z.tolist(), strict=True)]
    return [dots[end - len(shape) : end] for shape, end in zip(shapes, ends, strict=True)]


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
    for place, arm in enumerate(arms):
        following = (place + 1) % len(arms)
        start, end = mouths[place][1], mouths[following][0]
        parts += [mouths[place], bridge(start, arm.angle + np.pi, end, arms[following].angle, 2.0)[1:-1]]
    return np.concatenate(parts)


def _is_complete(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path`` and rename it; failure leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
