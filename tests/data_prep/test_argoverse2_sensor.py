"""The reader of sensor logs: windows, roles, causality, the map, incomplete logs; equal to av2."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import feather
from support import sensor_logs
from support.scenes import agent, assert_near, assert_same_history, in_city, with_role
from support.sensor_logs import (
    EGO_YAW,
    F,
    H,
    Track,
    annotations,
    ego_path,
    make,
    read,
    small_tracks,
    straight,
    take,
    write_log,
)

from data_prep.reader import Input
from data_prep.readers.argoverse2.sensor import KINDS, Argoverse2Sensor, load_log
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import AgentKind, AgentRole, scenes_equal

SENSOR = Argoverse2Sensor()
SHORT: dict[str, Any] = {"history_s": 2.0, "future_s": 2.0}


def test_a_window_becomes_a_scene(tmp_path: Path) -> None:
    tracks = {track.name: track for track in small_tracks()}
    scene = read(write_log(tmp_path / "raw" / "val" / "log-1"), "010")
    names = (scene.scene_id, scene.source, scene.split, scene.city)
    assert names == ("log-1-010", "argoverse2_sensor", "val", "PIT")
    assert (scene.num_history, scene.num_future, scene.num_steps) == (H, F, H + F)
    assert scene.period_s == 0.1
    kinds = {  # "late" is not observed
        "AV": AgentKind.VEHICLE,
        "bus": AgentKind.BUS,
        "car": AgentKind.VEHICLE,
        "cone": AgentKind.CONSTRUCTION,
        "glimpse": AgentKind.UNKNOWN,
        "parked": AgentKind.VEHICLE,
        "walker": AgentKind.PEDESTRIAN,
    }
    assert scene.agent_id == tuple(kinds)
    assert scene.agent_kind.tolist() == list(kinds.values())
    position = in_city(scene)
    focal = tracks["bus"]
    assert_near(scene.origin, focal.positions[10 + H - 1], 0.5)
    assert_near(position[0], ego_path(130)[10:120], 1e-3)
    assert_near(scene.heading[0], EGO_YAW, 1e-6)
    for index, name in enumerate(scene.agent_id[1:], 1):
        track = tracks[name]
        step = track.start + np.arange(len(track.positions)) - 10
        inside = (step >= 0) & (step < H + F)
        assert np.flatnonzero(scene.valid[index]).tolist() == step[inside].tolist(), name
        assert_near(position[index, step[inside]], track.positions[inside], 1e-3, name)
        assert turn(scene.heading[index, step[inside]], track.heading).max() < 1e-6, name


def turn(a: Any, b: Any) -> np.ndarray:
    """The absolute angle from a to b, in radians."""
    difference = np.asarray(a) - b
    return np.abs(np.arctan2(np.sin(difference), np.cos(difference)))


def test_windows_follow_the_options(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1")  # 130 steps
    assert Argoverse2Sensor(stride_s=2.1).inputs(tmp_path, "val") == [Input(path, "000")]
    reader = Argoverse2Sensor(history_s=2.0, future_s=3.0, stride_s=4.0)
    inputs = reader.inputs(tmp_path, "val")
    assert inputs == [Input(path, f"{start:03d}") for start in (0, 40, 80)]
    for start, item in zip((0, 40, 80), inputs, strict=True):
        scene = reader.read(item, "val", tmp_path).validate()
        assert (scene.num_history, scene.num_future) == (20, 30)
        assert_near(in_city(scene)[0, 0], ego_path(130)[start], 1e-3)


def test_splits_are_folders_with_annotated_logs_or_the_folder_itself(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "val/c", "test/d"):
        write_log(tmp_path / name)
    (tmp_path / "test" / "d" / "annotations.feather").unlink()  # as published
    assert SENSOR.splits(tmp_path) == ["train", "val"]
    logs = [item.path.parent.name for item in SENSOR.inputs(tmp_path, "train")]
    assert logs == ["a", "a", "a", "b", "b", "b"]
    assert SENSOR.splits(tmp_path / "train") == ["logs"]
    logs = [item.path.parent.name for item in SENSOR.inputs(tmp_path / "train", "logs")]
    assert logs == ["a", "a", "a", "b", "b", "b"]
    assert SENSOR.splits(tmp_path / "train" / "a") == []


def test_annotations_that_name_the_ego_vehicle_give_the_same_scene(tmp_path: Path) -> None:
    scene = read(write_log(tmp_path / "val" / "log-1"))
    ego = Track("ego", "EGO_VEHICLE", ego_path(130), heading=EGO_YAW)
    path = write_log(tmp_path / "ego" / "val" / "log-1", annotations([ego, *small_tracks()]))
    path = path.rename(path.with_name("annotations_with_ego.feather"))
    assert [item.path for item in SENSOR.inputs(tmp_path / "ego", "val")] == [path] * 3
    assert scenes_equal(scene, read(path))


def test_a_gap_the_order_of_rows_and_unnormalized_quaternions_change_nothing_else(
    tmp_path: Path,
) -> None:
    rows = annotations(small_tracks())
    pose_rows = sensor_logs.poses()
    whole = read(write_log(tmp_path / "a" / "val" / "log-1", rows, pose_rows))
    for name in ("qw", "qz"):
        rows[name] = 0.995 * rows[name]
        pose_rows[name] = 1.005 * pose_rows[name]
    steps = range(20, 24)
    missing = np.isin(rows["timestamp_ns"], sensor_logs.stamps(np.array(steps)))
    rng = np.random.default_rng(0)
    rows = take(rows, rng.permutation(np.flatnonzero(~missing)))
    pose_rows = take(pose_rows, rng.permutation(260))
    gap = read(write_log(tmp_path / "val" / "log-1", rows, pose_rows))
    assert not gap.valid[:, steps].any()
    for name in ("valid", "position", "heading", "velocity"):  # also the velocity after the gap
        actual = np.delete(getattr(gap, name), steps, 1).astype(float)
        expected = np.delete(getattr(whole, name), steps, 1).astype(float)
        assert_near(actual, expected, 1e-3, name)


def test_velocity_is_the_latest_difference(tmp_path: Path) -> None:
    speed = np.linspace(2.0, 12.0, 130)
    velocity = speed[:, None] * (0.6, 0.8)
    faster = straight(130, (0, 5), (0, 0)) + np.cumsum(0.1 * velocity, axis=0)
    at_45 = Track("at 45", "BUS", straight(85, (0, 30), (3, 0)), 45)
    at_49 = Track("at 49", "BUS", straight(81, (0, 40), (3, 0)), 49)
    scene = make(tmp_path, [Track("x", "BUS", faster), at_45, at_49, *small_tracks()])

    def estimated(name: str) -> np.ndarray:
        return scene.velocity[agent(scene, name)]

    def constant(x: float, steps: int) -> np.ndarray:
        return np.tile((x, 0.0), (steps, 1))

    assert_near(estimated("x")[1:], velocity[1:110], 1e-3)
    assert np.array_equal(estimated("x")[0], estimated("x")[1])
    assert_near(estimated("at 45")[45:], constant(3, 65), 1e-3)  # the first step uses the second
    assert not estimated("at 49")[:50].any()  # here that would be the future
    assert_near(estimated("at 49")[50:], constant(3, 60), 1e-3)
    assert not estimated("glimpse").any()
    assert_near(estimated("AV"), constant(5, 110), 1e-3)


def car(name: str, y: float, speed_m_s: float, start: int = 0, stop: int = 130) -> Track:
    """A car that drives in x direction from step `start` to step `stop`."""
    positions = straight(stop - start, (0, y), (speed_m_s, 0))
    return Track(name, "REGULAR_VEHICLE", positions, start=start)


ROLE_TRACKS = [
    car("goes", 0, 0.5),  # 2.45 m in 49 steps
    car("stands", 5, 0.3),  # 1.5 m
    car("short", 10, 9, start=31),  # 19 observed steps
    car("long", 15, 9, start=30),  # 20
    car("leaves", 20, 9, stop=49),  # before the last observed step
    car("is found", 22, 0, start=20),  # and does not move
    Track("rolls", "BICYCLE", straight(130, (0, 25), (9, 0))),  # without a rider
]


@pytest.mark.parametrize(
    ("options", "more"),
    [({}, set()), ({"min_travel_m": 1.0}, {"stands"}), ({"min_observed_s": 1.9}, {"short"})],
    ids=str,
)
def test_moving_agents_observed_long_enough_are_scored(
    tmp_path: Path, options: dict[str, float], more: set[str]
) -> None:
    scene = make(tmp_path, ROLE_TRACKS, focal="none", **options)
    assert with_role(scene, AgentRole.SCORED) == {"goes", "long"} | more
    assert with_role(scene, AgentRole.FOCAL) == set()
    assert_near(scene.origin, ego_path(130)[H - 1], 0.5)


@pytest.mark.parametrize(
    ("focal", "expected"),
    [("nearest", "near"), ("moving", "fast"), ("farthest", "starts"), ("ego", "AV")],
)
def test_the_focal_agent_is_an_option(tmp_path: Path, focal: str, expected: str) -> None:
    starts = straight(130, (-40, 30), (1, 0))
    starts[H:, 0] += 2.0 * np.arange(1, 131 - H)
    near = Track("near", "PEDESTRIAN", straight(130, (20, -5), (1, 0)))
    fast = Track("fast", "REGULAR_VEHICLE", straight(130, (-50, 20), (10, 0)))
    starting = Track("starts", "REGULAR_VEHICLE", starts)
    standing = Track("stands by", "REGULAR_VEHICLE", straight(130, (25, -4), (0, 0)))
    tracks = [near, fast, starting, standing]
    scene = make(tmp_path, tracks, focal=focal)
    assert with_role(scene, AgentRole.FOCAL) == {expected}
    assert with_role(scene, AgentRole.SCORED) == {"near", "fast", "starts"} - {expected}
    # The origin is in whole metres.
    assert np.abs(scene.position[agent(scene, expected), H - 1]).max() <= 0.5
    for option in ("farthest", "ego"):  # a car that leaves counts as far as it was seen
        assert with_role(make(tmp_path, [*tracks, *ROLE_TRACKS], focal=option), AgentRole.FOCAL)


def test_a_window_without_a_scored_agent_is_refused(tmp_path: Path) -> None:
    parked = [track for track in small_tracks() if track.name in ("parked", "cone")]
    message = r"annotations\.feather#000: track_uuid: no moving agent in the last"
    with pytest.raises(SceneError, match=message):
        make(tmp_path, parked)
    assert with_role(make(tmp_path, parked, focal="ego"), AgentRole.FOCAL) == {"AV"}


def test_a_window_without_a_sweep_at_the_last_observed_step_is_refused(tmp_path: Path) -> None:
    rows = annotations(small_tracks())
    gone = rows["timestamp_ns"] == sensor_logs.stamps(np.array([H - 1]))[0]
    path = write_log(tmp_path / "val" / "log-1", take(rows, ~gone))
    for focal in ("none", "ego"):
        with pytest.raises(SceneError, match="in the last observed step"):
            read(path, focal=focal)
        assert read(path, "010", focal=focal).num_agents == 7


def test_windows_of_the_stretches_of_a_log(tmp_path: Path) -> None:
    """The clock pauses by 2.53 s after step 60, and two sweeps fall on one step."""
    rows = annotations(small_tracks())
    pose_rows = sensor_logs.poses()
    whole = read(write_log(tmp_path / "a" / "val" / "log-1", rows, pose_rows), "010", **SHORT)
    for columns in (rows, pose_rows):
        time = columns["timestamp_ns"]
        time[time > sensor_logs.stamps(np.array([60]))[0] + 60_000_000] += 2_530_000_000
    again = sensor_logs.stamps(np.array([20]))[0]
    twin = take(rows, np.flatnonzero(rows["timestamp_ns"] == again))
    twin["timestamp_ns"] = twin["timestamp_ns"] + 40_000_000
    pose = take(pose_rows, np.flatnonzero(pose_rows["timestamp_ns"] == again))
    pose["timestamp_ns"] = pose["timestamp_ns"] + 40_000_000
    rows = {name: np.concatenate([rows[name], twin[name]]) for name in rows}
    pose_rows = {name: np.concatenate([pose_rows[name], pose[name]]) for name in pose_rows}
    path = write_log(tmp_path / "val" / "log-1", rows, pose_rows)
    reader = Argoverse2Sensor(stride_s=1.0, **SHORT)
    with collect_dropped() as dropped:
        starts = [int(item.part) for item in reader.inputs(tmp_path, "val")]
        assert scenes_equal(read(path, "010", **SHORT), whole)
    assert starts == [0, 10, 20, 90, 100, 110]  # of steps 0 to 60 and 87 to 155
    cause = "row: timestamp_ns: no step of 0.1 s of its own"
    assert dropped == {(path, cause): len(twin["timestamp_ns"])}


def test_every_category_of_the_data_set_has_a_kind() -> None:
    constants = pytest.importorskip("av2.datasets.sensor.constants")
    assert {category.value for category in constants.AnnotationCategories} == set(KINDS)
    road_users = (
        AgentKind.VEHICLE,
        AgentKind.BUS,
        AgentKind.PEDESTRIAN,
        AgentKind.CYCLIST,
        AgentKind.MOTORCYCLIST,
    )
    for category in (
        "PEDESTRIAN",
        "BICYCLIST",
        "MOTORCYCLIST",
        "SCHOOL_BUS",
        "TRUCK",
        "WHEELED_RIDER",
    ):
        assert KINDS[category] in road_users, category


@pytest.mark.parametrize("focal", ["nearest", "moving"])
def test_the_history_does_not_depend_on_the_future(tmp_path: Path, focal: str) -> None:
    path = write_log(
        tmp_path / "raw" / "val" / "log-1", annotations([*small_tracks(), *ROLE_TRACKS])
    )
    [last_observed] = sensor_logs.stamps(np.array([10 + H - 1])).tolist()
    changed = sensor_logs.without_future(path, last_observed, tmp_path)
    scene = read(path, "010", focal=focal)
    other = read(changed, "010", focal=focal)
    assert_same_history(scene, other)
    assert not np.array_equal(scene.position[:, H:], other.position[:, H:])


def test_the_map_is_cut_around_scored_agents_and_the_ego_vehicle(tmp_path: Path) -> None:
    def lanes(offset: float, radius: float, **options: Any) -> list[int]:
        # 49 m further in the last observed step.
        track = Track("x", "BUS", straight(130, (offset, 0.0), (10.0, 0.0)))
        return make(tmp_path, [track], map_radius_m=radius, **options).polyline_id.tolist()

    # Lanes 1 and 3 end at x = 9, lane 2 at 16; there is crosswalk 5, and area 6 ends at 20. The ego
    # vehicle is at (24.5, -4).
    assert lanes(1000.0, 100.0) == [1, 2, 3, 5, 6]
    assert lanes(1000.0, 12.0) == [2, 6]
    assert lanes(1000.0, 1.0) == []
    # The lane it is on, the next one and the crosswalk there.
    assert lanes(-49.0 + 7.0, 2.5) == [1, 2, 5]
    assert lanes(-49.0 + 7.0, 3.1) == [1, 2, 3, 5]  # and the neighboring lane
    assert lanes(-60.0, 2.5) == []  # farther back nothing


def test_a_log_shorter_than_a_window_is_one_skipped_input(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1", annotations(small_tracks(109)))
    assert SENSOR.inputs(tmp_path, "val") == [Input(path)]
    message = r"annotations\.feather: timestamp_ns: 109 steps of 0\.1 s, a scene has 110"
    with pytest.raises(SceneError, match=message):
        SENSOR.read(Input(path), "val", tmp_path)


@pytest.fixture(scope="session", params=["3bffdcff", "adcf7d18"])
def real_log(real_data: Path, request: pytest.FixtureRequest) -> Path:
    [path] = (real_data / "argoverse2_sensor").glob(f"{request.param}*/annotations*.feather")
    return path


def expected_rows(path: Path) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Position and yaw in the city frame of each (track, timestamp), by av2.

    They are the product of the pose of the ego vehicle and the pose of the cuboid.
    """
    io = pytest.importorskip("av2.utils.io")
    se3 = pytest.importorskip("av2.geometry.se3")
    geometry = pytest.importorskip("av2.geometry.geometry")
    city_from_ego = io.read_city_SE3_ego(path.parent)
    rows = feather.read_feather(path)
    annotated = set(rows["timestamp_ns"])
    poses = {("AV", time): pose for time, pose in city_from_ego.items() if time in annotated}
    translations = rows[["tx_m", "ty_m", "tz_m"]].to_numpy()
    rotations = geometry.quat_to_mat(rows[["qw", "qx", "qy", "qz"]].to_numpy())
    for index, (name, time, category) in enumerate(
        zip(rows["track_uuid"], rows["timestamp_ns"], rows["category"], strict=True)
    ):
        if category != "EGO_VEHICLE":
            cuboid = se3.SE3(rotation=rotations[index], translation=translations[index])
            poses[name, time] = city_from_ego[time].compose(cuboid)
    expected = {}
    for key, pose in poses.items():
        x, y, _ = pose.translation
        expected[key] = (x, y, np.arctan2(pose.rotation[1, 0], pose.rotation[0, 0]))
    return expected


def test_real_tracks_equal_av2(real_log: Path) -> None:
    log = load_log(real_log)
    expected = expected_rows(real_log)
    times = sorted({time for _, time in expected})
    assert len(times) == log.valid.shape[1] == 156
    assert log.valid.sum() == len(expected)
    row = {name: index for index, name in enumerate(log.agent_id)}
    index = np.array([row[name] for name, _ in expected])
    step = np.array([times.index(time) for _, time in expected])
    pose = np.array(list(expected.values()))
    assert log.valid[index, step].all()
    assert_near(log.position[index, step], pose[:, :2], 1e-6)
    assert turn(log.heading[index, step], pose[:, 2]).max() < 1e-6


def test_real_windows_are_parts_of_their_log(real_log: Path) -> None:
    log = load_log(real_log)
    row = {name: index for index, name in enumerate(log.agent_id)}
    raw = real_log.parents[1]
    reader = Argoverse2Sensor(stride_s=0.9)
    inputs = [item for item in reader.inputs(raw, "logs") if item.path == real_log]
    # 156 steps have room for 47 beginnings of a window of 110 steps.
    assert [int(item.part) for item in inputs] == [0, 9, 18, 27, 36, 45]
    for item in inputs:
        scene = reader.read(item, "logs", raw).validate()
        index = np.array([row[name] for name in scene.agent_id])
        start = int(item.part)
        window = (index[:, None], np.arange(start, start + H + F))
        observed = log.valid[:, start : start + H].any(1)
        assert np.array_equal(scene.valid, log.valid[window])
        assert set(index) == set(np.flatnonzero(observed))
        actual = in_city(scene)[scene.valid]
        assert_near(actual, log.position[window][scene.valid], 1e-3)
        assert turn(scene.heading, log.heading[window]).max() < 1e-3


def test_real_lanes_equal_av2(real_log: Path) -> None:
    map_api = pytest.importorskip("av2.map.map_api")
    static = map_api.ArgoverseStaticMap.from_map_dir(real_log.parent / "map", build_raster=False)
    reader = Argoverse2Sensor(map_radius_m=40.0)
    scene = reader.read(Input(real_log, "000"), "logs", real_log.parents[1])
    keeps_map = scene.agent_role > AgentRole.CONTEXT
    keeps_map[0] = True  # the ego vehicle
    around = scene.position[keeps_map, H - 1]
    lanes = np.flatnonzero(scene.polyline_kind <= 2)
    kept = set(scene.polyline_id[lanes].tolist())
    for index in lanes:
        lane_id = int(scene.polyline_id[index])
        center = static.get_lane_segment_centerline(lane_id)[:, :2]
        assert_near(scene.polyline(index) + scene.origin, center, 1e-3)
    near = set()
    for lane_id in static.vector_lane_segments:
        line = static.get_lane_segment_centerline(lane_id)[:, :2] - scene.origin
        fine = np.concatenate([np.linspace(a, b, 200) for a, b in pairwise(line)])
        distance = np.linalg.norm(fine[:, None] - around, axis=-1)
        if distance.min() <= 40.0:
            near.add(lane_id)
    assert near == kept
    assert len(kept) < len(static.vector_lane_segments)
