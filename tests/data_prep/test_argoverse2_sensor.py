"""The reader of sensor logs: windows, steps, roles, causality, the map and incomplete logs; real logs equal av2."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import feather
from support import sensor_logs
from support.scenes import agent, assert_same_history, with_role
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
from trajformer.scenes.scene import AgentKind, AgentRole, scenes_equal

SENSOR = Argoverse2Sensor()


def test_a_window_becomes_a_scene(tmp_path: Path) -> None:
    tracks = small_tracks()
    scene = read(write_log(tmp_path / "raw" / "val" / "log-1"), "010")
    assert (scene.scene_id, scene.source, scene.split, scene.city) == (
        "log-1-010",
        "argoverse2_sensor",
        "val",
        "PIT",
    )
    assert (scene.num_history, scene.num_future, scene.num_steps, scene.period_s) == (
        H,
        F,
        H + F,
        0.1,
    )
    assert scene.agent_id == (
        "AV",
        "bus",
        "car",
        "cone",
        "glimpse",
        "parked",
        "walker",
    )  # "late" is late
    kinds = [
        AgentKind.VEHICLE,
        AgentKind.BUS,
        AgentKind.VEHICLE,
        AgentKind.CONSTRUCTION,
        AgentKind.UNKNOWN,
    ]
    assert scene.agent_kind.tolist() == [*kinds, AgentKind.VEHICLE, AgentKind.PEDESTRIAN]
    bus = next(track for track in tracks if track.name == "bus")  # the focal agent
    assert np.abs(scene.origin - bus.positions[10 + H - 1]).max() < 1e-6
    assert np.abs(scene.position[0] + scene.origin - ego_path(130)[10:120]).max() < 1e-3
    assert np.allclose(scene.heading[0], EGO_YAW, atol=1e-6)
    for index, name in enumerate(scene.agent_id[1:], 1):
        track = next(track for track in tracks if track.name == name)
        step = track.start + np.arange(len(track.positions)) - 10
        inside = (step >= 0) & (step < H + F)
        assert np.flatnonzero(scene.valid[index]).tolist() == step[inside].tolist(), name
        assert (
            np.abs(
                scene.position[index, step[inside]] + scene.origin - track.positions[inside]
            ).max()
            < 1e-3
        )
        error = scene.heading[index, step[inside]] - track.heading
        assert np.abs(np.arctan2(np.sin(error), np.cos(error))).max() < 1e-6, name


def test_windows_follow_the_options(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1")  # 130 steps
    assert Argoverse2Sensor(stride_s=2.1).inputs(tmp_path, "val") == [Input(path, "000")]
    reader = Argoverse2Sensor(history_s=2.0, future_s=3.0, stride_s=4.0)
    inputs = reader.inputs(tmp_path, "val")
    assert inputs == [Input(path, f"{start:03d}") for start in (0, 40, 80)]
    for start, item in zip((0, 40, 80), inputs, strict=True):
        scene = reader.read(item, "val", tmp_path).validate()
        assert (scene.num_history, scene.num_future) == (20, 30)
        assert np.abs(scene.position[0, 0] + scene.origin - ego_path(130)[start]).max() < 1e-3


def test_splits_are_folders_with_annotated_logs_or_the_folder_itself(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "val/c", "test/d"):
        write_log(tmp_path / name)
    (tmp_path / "test" / "d" / "annotations.feather").unlink()  # as published
    assert SENSOR.splits(tmp_path) == ["train", "val"]
    assert [item.path.parent.name for item in SENSOR.inputs(tmp_path, "train")] == ["a"] * 3 + [
        "b"
    ] * 3
    assert SENSOR.splits(tmp_path / "train") == ["logs"]
    assert [item.path.parent.name for item in SENSOR.inputs(tmp_path / "train", "logs")] == [
        "a"
    ] * 3 + ["b"] * 3
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
    rows, pose_rows = annotations(small_tracks()), sensor_logs.poses()
    whole = read(write_log(tmp_path / "a" / "val" / "log-1", rows, pose_rows))
    for name in ("qw", "qz"):
        rows[name], pose_rows[name] = 0.995 * rows[name], 1.005 * pose_rows[name]
    rng, missing = (
        np.random.default_rng(0),
        np.isin(rows["timestamp_ns"], sensor_logs.stamps(np.arange(20, 24))),
    )
    rows, pose_rows = (
        take(rows, rng.permutation(np.flatnonzero(~missing))),
        take(pose_rows, rng.permutation(260)),
    )
    gap = read(write_log(tmp_path / "val" / "log-1", rows, pose_rows))
    assert not gap.valid[:, 20:24].any()
    for name in ("valid", "position", "heading", "velocity"):
        left, right = (
            np.delete(getattr(scene, name), range(20, 24), 1).astype(float)
            for scene in (gap, whole)
        )
        assert np.abs(left - right).max() < 1e-3, name  # also the velocity right after the gap


def test_velocity_is_the_latest_difference(tmp_path: Path) -> None:
    speed = np.linspace(2.0, 12.0, 130)
    faster = straight(130, (0, 5), (0, 0)) + np.cumsum(0.1 * speed)[:, None] * (0.6, 0.8)
    at_45 = Track("at 45", "BUS", straight(85, (0, 30), (3, 0)), 45)
    at_49 = Track("at 49", "BUS", straight(81, (0, 40), (3, 0)), 49)
    scene = make(tmp_path, [Track("x", "BUS", faster), at_45, at_49, *small_tracks()])
    assert (
        np.abs(scene.velocity[agent(scene, "x"), 1:] - speed[1:110, None] * (0.6, 0.8)).max() < 1e-3
    )
    assert np.array_equal(
        scene.velocity[agent(scene, "x"), 0], scene.velocity[agent(scene, "x"), 1]
    )
    assert (
        np.abs(scene.velocity[agent(scene, "at 45"), 45:] - (3, 0)).max() < 1e-3
    )  # the first step uses the second one
    assert not scene.velocity[agent(scene, "at 49"), :50].any()  # here that would be the future
    assert np.abs(scene.velocity[agent(scene, "at 49"), 50:] - (3, 0)).max() < 1e-3
    assert not scene.velocity[agent(scene, "glimpse")].any()
    assert np.abs(scene.velocity[agent(scene, "AV")] - (5, 0)).max() < 1e-3


ROLE_TRACKS = [
    Track("goes", "REGULAR_VEHICLE", straight(130, (0, 0), (0.5, 0))),  # 2.45 m in 49 steps
    Track("stands", "REGULAR_VEHICLE", straight(130, (0, 5), (0.3, 0))),  # 1.5 m
    Track("short", "REGULAR_VEHICLE", straight(99, (0, 10), (9, 0)), start=31),  # 19 observed steps
    Track("long", "REGULAR_VEHICLE", straight(100, (0, 15), (9, 0)), start=30),  # 20
    Track(
        "leaves", "REGULAR_VEHICLE", straight(49, (0, 20), (9, 0))
    ),  # before the last observed step
    Track(
        "is found", "REGULAR_VEHICLE", straight(110, (0, 22), (0, 0)), start=20
    ),  # and does not move
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
    assert np.abs(scene.origin - ego_path(130)[H - 1]).max() < 1e-6


@pytest.mark.parametrize(
    ("focal", "expected"),
    [("nearest", "near"), ("moving", "fast"), ("farthest", "starts"), ("ego", "AV")],
)
def test_the_focal_agent_is_an_option(tmp_path: Path, focal: str, expected: str) -> None:
    starts = straight(130, (-40, 30), (1, 0))
    starts[H:] += np.cumsum(np.full((130 - H, 2), (2.0, 0.0)), 0)
    tracks = [
        Track("near", "PEDESTRIAN", straight(130, (20, -5), (1, 0))),
        Track("fast", "REGULAR_VEHICLE", straight(130, (-50, 20), (10, 0))),
        Track("starts", "REGULAR_VEHICLE", starts),
        Track("stands by", "REGULAR_VEHICLE", straight(130, (25, -4), (0, 0))),
    ]
    scene = make(tmp_path, tracks, focal=focal)
    assert with_role(scene, AgentRole.FOCAL) == {expected}
    assert with_role(scene, AgentRole.SCORED) == {"near", "fast", "starts"} - {expected}
    assert np.abs(scene.position[agent(scene, expected), H - 1]).max() < 1e-6  # the origin
    for option in ("farthest", "ego"):  # a car that leaves counts as far as it was seen
        assert with_role(make(tmp_path, [*tracks, *ROLE_TRACKS], focal=option), AgentRole.FOCAL)


def test_a_window_without_a_scored_agent_is_refused(tmp_path: Path) -> None:
    parked = [track for track in small_tracks() if track.name in ("parked", "cone")]
    with pytest.raises(
        SceneError, match=r"annotations\.feather#000: track_uuid: no moving agent in the last"
    ):
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
    changed = sensor_logs.without_future(
        path, int(sensor_logs.stamps(np.array([10 + H - 1]))[0]), tmp_path
    )
    scene, other = read(path, "010", focal=focal), read(changed, "010", focal=focal)
    assert_same_history(scene, other)
    assert not np.array_equal(scene.position[:, H:], other.position[:, H:])


def test_the_map_is_cut_around_scored_agents_and_the_ego_vehicle(tmp_path: Path) -> None:
    def lanes(offset: float, radius: float, **options: Any) -> list[int]:
        track = Track(
            "x", "BUS", straight(130, (offset, 0.0), (10.0, 0.0))
        )  # 49 m further in the last observed step
        return make(tmp_path, [track], map_radius_m=radius, **options).polyline_id.tolist()

    # lanes 1 and 3 end at x = 9, 2 at 16; crosswalk 5, area 6 ends at 20; the ego vehicle is at (24.5, -4)
    assert lanes(1000.0, 100.0) == [1, 2, 3, 5, 6]
    assert lanes(1000.0, 12.0) == [2, 6]
    assert lanes(1000.0, 1.0) == []
    assert lanes(-49.0 + 7.0, 2.5) == [
        1,
        2,
        5,
    ]  # the lane it is on, the next one and the crosswalk there
    assert lanes(-49.0 + 7.0, 3.1) == [1, 2, 3, 5]  # and the neighboring lane
    assert lanes(-60.0, 2.5) == []  # farther back nothing


def test_a_log_shorter_than_a_window_is_one_skipped_input(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1", annotations(small_tracks(109)))
    assert SENSOR.inputs(tmp_path, "val") == [Input(path)]
    with pytest.raises(
        SceneError,
        match=r"annotations\.feather: timestamp_ns: 109 steps of 0\.1 s, a scene has 110",
    ):
        SENSOR.read(Input(path), "val", tmp_path)


@pytest.fixture(scope="session", params=["3bffdcff", "adcf7d18"])
def real_log(real_data: Path, request: pytest.FixtureRequest) -> Path:
    [path] = (real_data / "argoverse2_sensor").glob(f"{request.param}*/annotations*.feather")
    return path


def expected_rows(path: Path) -> dict[tuple[str, int], tuple[float, float, float]]:
    """Position and yaw in the city frame of each (track, timestamp), the product of pose and cuboid by av2."""
    io, se3 = pytest.importorskip("av2.utils.io"), pytest.importorskip("av2.geometry.se3")
    city_from_ego = io.read_city_SE3_ego(path.parent)
    rows = feather.read_feather(path)
    out = {
        ("AV", time): pose
        for time, pose in city_from_ego.items()
        if time in set(rows["timestamp_ns"])
    }
    place = rows[["tx_m", "ty_m", "tz_m"]].to_numpy()
    rotations = pytest.importorskip("av2.geometry.geometry").quat_to_mat(
        rows[["qw", "qx", "qy", "qz"]].to_numpy()
    )
    objects = zip(
        rows["track_uuid"], rows["timestamp_ns"], rows["category"], rotations, place, strict=True
    )
    for name, time, category, rotation, translation in objects:
        if category != "EGO_VEHICLE":
            out[name, time] = city_from_ego[time].compose(
                se3.SE3(rotation=rotation, translation=translation)
            )
    return {
        key: (*pose.translation[:2], np.arctan2(pose.rotation[1, 0], pose.rotation[0, 0]))
        for key, pose in out.items()
    }


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
    assert [int(item.part) for item in inputs] == [
        0,
        9,
        18,
        27,
        36,
        45,
    ]  # 156 steps have room for 47 beginnings
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
    scene = Argoverse2Sensor(map_radius_m=40.0).read(
        Input(real_log, "000"), "logs", real_log.parents[1]
    )
    around = scene.position[
        (scene.agent_role > AgentRole.CONTEXT) | (np.arange(scene.num_agents) == 0), H - 1
    ]
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
