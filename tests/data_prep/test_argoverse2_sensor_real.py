"""The reader of sensor logs on the real ones: parity with av2 and the command line."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyarrow import feather
from support.sensor_logs import F, H

from data_prep.reader import Input
from data_prep.readers.argoverse2.sensor import Argoverse2Sensor, load_log
from trajformer.scenes.scene import AgentRole


@pytest.fixture(scope="session", params=["3bffdcff", "adcf7d18"])
def real_log(real_data: Path, request: pytest.FixtureRequest) -> Path:
    [path] = (real_data / "argoverse2_sensor").glob(f"{request.param}*/annotations*.feather")
    return path


def expected_rows(path: Path) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Position and yaw in the city frame of each (track, timestamp), the product of pose and cuboid by av2."""
    io, se3 = pytest.importorskip("av2.utils.io"), pytest.importorskip("av2.geometry.se3")
    city_from_ego = io.read_city_SE3_ego(path.parent)
    rows = feather.read_feather(path)
    out = {("AV", time): pose for time, pose in city_from_ego.items() if time in set(rows["timestamp_ns"])}
    place = rows[["tx_m", "ty_m", "tz_m"]].to_numpy()
    rotations = pytest.importorskip("av2.geometry.geometry").quat_to_mat(rows[["qw", "qx", "qy", "qz"]].to_numpy())
    objects = zip(rows["track_uuid"], rows["timestamp_ns"], rows["category"], rotations, place, strict=True)
    for name, time, category, rotation, translation in objects:
        if category != "EGO_VEHICLE":
            out[name, time] = city_from_ego[time].compose(se3.SE3(rotation=rotation, translation=translation))
    return {key: (*pose.translation[:2], np.arctan2(pose.rotation[1, 0], pose.rotation[0, 0])) for key, pose in out.items()}


def turn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(np.arctan2(np.sin(a - b), np.cos(a - b)))


def test_real_tracks_equal_av2(real_log: Path) -> None:
    log, expected = load_log(real_log), expected_rows(real_log)
    times = sorted({time for _, time in expected})
    assert len(times) == log.valid.shape[1] == 156
    assert log.valid.sum() == len(expected)
    row = {name: index for index, name in enumerate(log.agent_id)}
    where = np.array([(row[name], times.index(time)) for name, time in expected]).T
    pose = np.array(list(expected.values()))
    assert log.valid[tuple(where)].all()
    assert np.abs(log.position[tuple(where)] - pose[:, :2]).max() < 1e-6
    assert turn(log.heading[tuple(where)], pose[:, 2]).max() < 1e-6
    raw, wide = real_log.parents[1], Argoverse2Sensor(stride_s=0.9)
    inputs = [item for item in wide.inputs(raw, "logs") if item.path == real_log]
    assert [int(item.part) for item in inputs] == [0, 9, 18, 27, 36, 45]  # 156 steps have room for 47 beginnings
    for item in inputs:
        scene = wide.read(item, "logs", raw).validate()
        index, start = np.array([row[name] for name in scene.agent_id]), int(item.part)
        window = index[:, None], np.arange(start, start + H + F)
        assert np.array_equal(scene.valid, log.valid[window])
        assert set(index) == set(np.flatnonzero(log.valid[:, start : start + H].any(1)))
        error = scene.position + scene.origin - log.position[window]
        assert np.abs(error[scene.valid]).max() < 1e-3
        assert turn(scene.heading, log.heading[window]).max() < 1e-3


def test_real_lanes_equal_av2(real_log: Path) -> None:
    map_api = pytest.importorskip("av2.map.map_api")
    static = map_api.ArgoverseStaticMap.from_map_dir(real_log.parent / "map", build_raster=False)
    scene = Argoverse2Sensor(map_radius_m=40.0).read(Input(real_log, "000"), "logs", real_log.parents[1])
    around = scene.position[(scene.agent_role > AgentRole.CONTEXT) | (np.arange(scene.num_agents) == 0), H - 1]
    lanes = np.flatnonzero(scene.polyline_kind <= 2)
    kept = set(scene.polyline_id[lanes].tolist())
    for index in lanes:
        centre = static.get_lane_segment_centerline(int(scene.polyline_id[index]))[:, :2]
        assert np.abs(scene.polyline(index) + scene.origin - centre).max() < 1e-3
    near = set()
    for lane_id in static.vector_lane_segments:
        line = static.get_lane_segment_centerline(lane_id)[:, :2] - scene.origin
        share = np.linspace(0.0, 1.0, 200)
        fine = np.concatenate([a + share[:, None] * (b - a) for a, b in pairwise(line)])
        if np.linalg.norm(fine[:, None] - around, axis=-1).min() <= 40.0:
            near.add(lane_id)
    assert near == kept
    assert len(kept) < len(static.vector_lane_segments)
