"""Writes a synthetic scene in the file layout of the Argoverse 2 motion-forecasting data set."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.synthetic.curves import Array, bridge, offset
from data_prep.synthetic.network import Junction, Lane, Road
from data_prep.synthetic.scene import SyntheticScene
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS

_STEP_NS = 1e8


def table_path(folder: Path, scene_id: str) -> Path:
    """Return the path of the scenario file of a scene in the folder of a split."""
    return folder / scene_id / f"scenario_{scene_id}.parquet"


def is_written(path: Path) -> bool:
    """Return whether a scenario file exists; it is written last and is always complete."""
    return path.is_file() and path.stat().st_size > 0


def write_scene(scene: SyntheticScene, path: Path, num_steps: int) -> None:
    """Write the map, then the scenario with the first ``num_steps`` steps to ``path``.

    The scenario is written under a temporary name, so that the file is complete. An existing file
    is kept.
    """
    if is_written(path):
        return
    path.parent.mkdir(exist_ok=True)
    map_path = path.with_name(f"log_map_archive_{scene.scene_id}.json")
    map_path.write_bytes(msgspec.json.encode(_map_document(scene)))
    temporary = path.with_name(".scenario.tmp")
    try:
        with temporary.open("wb") as file:  # a path must be UTF-8
            pq.write_table(_scenario_table(scene, num_steps), file, compression="snappy")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _scenario_table(scene: SyntheticScene, num_steps: int) -> pa.Table:
    """Return the columns of a scenario file, one row per track and step."""
    tracks = scene.tracks
    track, step = np.nonzero(tracks.valid[:, :num_steps])
    count = len(track)
    x, y = (tracks.xy[track, step] + scene.origin).T
    velocity_x, velocity_y = tracks.velocity[track, step].T
    end_ns = scene.start_ns + (NUM_STEPS - 1) * _STEP_NS
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
            "end_timestamp": np.full(count, end_ns),
            "num_timestamps": np.full(count, NUM_STEPS),
            "focal_track_id": pa.repeat(tracks.ids[tracks.focal], count),
            "city": pa.repeat(scene.city, count),
        }
    )


# ---- map ---------------------------------------------------------------------------------------


def _map_document(scene: SyntheticScene) -> dict[str, dict[str, Any]]:
    """Return the street map as the JSON document of an Argoverse 2 map archive.

    Ids are consecutive: lanes, then crossings, then drivable areas.
    """
    network = scene.network
    lanes = {}
    for lane in network.lanes:
        lanes[str(scene.first_id + lane.index)] = _lane_entry(scene, lane)
    crossings = {}
    next_id = scene.first_id + len(lanes)
    for arm in network.arms:
        if arm.crosswalk:
            near_edge, far_edge = arm.crosswalk_edges()
            crossings[str(next_id)] = {
                "edge1": _points(scene, near_edge),
                "edge2": _points(scene, far_edge),
                "id": next_id,
            }
            next_id += 1
    areas = {}
    outlines = [_road_outline(road) for road in network.roads]
    outlines += [_junction_outline(junction) for junction in network.junctions]
    for area_id, outline in enumerate(outlines, next_id):
        areas[str(area_id)] = {"area_boundary": _points(scene, outline), "id": area_id}
    return {"drivable_areas": areas, "lane_segments": lanes, "pedestrian_crossings": crossings}


def _lane_entry(scene: SyntheticScene, lane: Lane) -> dict[str, Any]:
    first_id = scene.first_id
    boundary_stride = 2 if lane.arms else 4  # boundaries have fewer points than centerlines
    centerline = _points(scene, _thin(lane.center, 2))
    return {
        "centerline": [point | {"z": 0.0} for point in centerline],
        "id": first_id + lane.index,
        "is_intersection": bool(lane.arms),
        "lane_type": lane.kind,
        "left_lane_boundary": _points(scene, _thin(lane.left, boundary_stride)),
        "left_lane_mark_type": lane.marks[0],
        "left_neighbor_id": _optional_id(first_id, lane.left_neighbor),
        "predecessors": [first_id + i for i in lane.predecessors],
        "right_lane_boundary": _points(scene, _thin(lane.right, boundary_stride)),
        "right_lane_mark_type": lane.marks[1],
        "right_neighbor_id": _optional_id(first_id, lane.right_neighbor),
        "successors": [first_id + i for i in lane.successors],
    }


def _optional_id(first_id: int, index: int | None) -> int | None:
    return None if index is None else first_id + index


def _thin(points: Array, stride: int) -> Array:
    """Return about every ``stride``-th of ``points`` [N, 2], always with both ends."""
    last = len(points) - 1
    count = max(1, last // stride)
    rounded = (np.arange(count + 1) * last + count // 2) // count
    return points[rounded]


def _points(scene: SyntheticScene, polyline: Array) -> list[dict[str, float]]:
    """Return ``polyline`` [N, 2] in city coordinates, rounded to centimetres."""
    height, slope_x, slope_y = scene.ground
    z = height + polyline[:, 0] * slope_x + polyline[:, 1] * slope_y
    points = np.round(np.column_stack((polyline + scene.origin, z)), 2)
    points = points + 0.0  # not -0.0
    return [{"x": x, "y": y, "z": z} for x, y, z in points.tolist()]


def _road_outline(road: Road) -> Array:
    left_half, right_half = road.half
    left = _thin(offset(road.points, road.heading, left_half), 3)
    right = _thin(offset(road.points, road.heading, -right_half), 3)
    return np.concatenate((left, right[::-1]))


def _junction_outline(junction: Junction) -> Array:
    """Return the paved area of a junction: arms counter-clockwise, with rounded corners."""
    arms = sorted(junction.arms, key=lambda arm: float(arm.angle % (2.0 * np.pi)))
    mouths = []  # the right and left kerb of each arm
    for arm in arms:
        left, right = arm.halves(0.0)
        mouths.append(arm.point(np.zeros(2), np.array((-right, left))))
    parts = []
    for i, arm in enumerate(arms):
        following = (i + 1) % len(arms)
        corner_start = mouths[i][1]
        corner_end = mouths[following][0]
        heading_in = arm.angle + np.pi
        corner = bridge(corner_start, heading_in, corner_end, arms[following].angle, 2.0)
        parts += [mouths[i], corner[1:-1]]
    return np.concatenate(parts)
