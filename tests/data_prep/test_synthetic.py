"""Synthetic scenes: format, determinism, physics and variety."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.synthetic import SyntheticScene, scene_identity, simulate_scene, synthesize, write_scene
from data_prep.synthetic.agents import populate
from data_prep.synthetic.junction import incoming
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.make import assign_splits
from data_prep.synthetic.traffic import Simulation
from data_prep.synthetic.walkers import draw_walkers
from data_prep.synthetic.world import World, build_world

# The columns of the official train and val files.
SCHEMA = pa.schema(
    [
        ("observed", pa.bool_()),
        ("track_id", pa.string()),
        ("object_type", pa.string()),
        ("object_category", pa.int64()),
        ("timestep", pa.int64()),
        ("position_x", pa.float64()),
        ("position_y", pa.float64()),
        ("heading", pa.float64()),
        ("velocity_x", pa.float64()),
        ("velocity_y", pa.float64()),
        ("scenario_id", pa.string()),
        ("start_timestamp", pa.float64()),
        ("end_timestamp", pa.float64()),
        ("num_timestamps", pa.int64()),
        ("focal_track_id", pa.string()),
        ("city", pa.string()),
    ]
)
LANE_KEYS = {
    "centerline", "id", "is_intersection", "lane_type", "left_lane_boundary", "left_lane_mark_type",
    "left_neighbor_id", "predecessors", "right_lane_boundary", "right_lane_mark_type", "right_neighbor_id",
    "successors",
}  # fmt: skip
WHEELS = ("vehicle", "bus", "motorcyclist", "cyclist")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of 8 scenes, written by this process."""
    out = tmp_path_factory.mktemp("synthetic")
    assert synthesize(out, 8, 3, progress=False) == {"train": 5, "val": 2, "test": 1}
    return out


@pytest.fixture(scope="module")
def scenes() -> list[SyntheticScene]:
    """Return 80 scenes in memory."""
    return [simulate_scene(seed) for seed in range(80)]


@pytest.fixture(scope="module")
def worlds() -> list[tuple[World, int]]:
    """Return the true motion in 30 scenes, with the number of simulated vehicles."""
    out = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        network = random_network(rng)
        fleet, paths = populate(network, rng)
        walkers = draw_walkers(network, rng)
        motion = Simulation(network, fleet, paths, walkers).run(110)
        out.append((build_world(network, fleet, paths, walkers, motion, 49, rng), len(fleet.kind)))
    return out


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _speed(scene: SyntheticScene) -> np.ndarray:
    return np.hypot(scene.tracks.velocity[..., 0], scene.tracks.velocity[..., 1])


def test_av2_reads_scenario_and_map(dataset: Path) -> None:
    av2_scenario = pytest.importorskip("av2.datasets.motion_forecasting.scenario_serialization")
    av2_map = pytest.importorskip("av2.map.map_api")
    paths = sorted(dataset.glob("*/*/scenario_*.parquet"))
    assert len(paths) == 8
    for path in paths:
        scenario = av2_scenario.load_argoverse_scenario_parquet(path)
        assert scenario.scenario_id == path.parent.name
        assert len(scenario.timestamps_ns) == 110
        assert np.allclose(np.diff(scenario.timestamps_ns), 1e8, atol=100)
        assert {track.track_id for track in scenario.tracks} >= {"AV", scenario.focal_track_id}
        city_map = av2_map.ArgoverseStaticMap.from_json(path.parent / f"log_map_archive_{path.parent.name}.json")
        lanes = city_map.vector_lane_segments
        assert len(lanes) >= 4
        for lane in lanes.values():
            assert lane.polygon_boundary.shape[1] == 3
            for after in lane.successors:
                assert lane.id in lanes[after].predecessors
            for beside in (lane.left_neighbor_id, lane.right_neighbor_id):
                assert beside is None or beside in lanes
        for crossing in city_map.vector_pedestrian_crossings.values():
            assert crossing.polygon.shape == (5, 3)
        ego = next(track for track in scenario.tracks if track.track_id == "AV")
        now = ego.object_states[49].position
        areas = city_map.get_scenario_vector_drivable_areas()
        assert any(np.hypot(*(area.xyz[:, :2] - now).T).min() < 150.0 for area in areas)


def test_schema_and_columns_equal_the_official_ones(dataset: Path) -> None:
    for path in dataset.glob("*/*/scenario_*.parquet"):
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        assert all(column.null_count == 0 for column in table.columns)
        step = table["timestep"].to_numpy()
        assert (table["observed"].to_numpy() == (step < 50)).all()
        assert set(table["num_timestamps"].to_pylist()) == {110}
        assert step.max() == (49 if path.parent.parent.name == "test" else 109)
        assert np.abs(table["heading"].to_numpy()).max() <= np.pi
        assert table["track_id"].to_pylist()[-1] == "AV"
        tracks = Counter(table["track_id"].to_pylist())
        assert tracks["AV"] == tracks[table["focal_track_id"][0].as_py()] == step.max() + 1


def test_map_document_is_shaped_like_the_official_one(dataset: Path) -> None:
    for path in dataset.glob("*/*/log_map_archive_*.json"):
        document = json.loads(path.read_bytes())
        assert list(document) == ["drivable_areas", "lane_segments", "pedestrian_crossings"]
        for name, lane in document["lane_segments"].items():
            assert set(lane) == LANE_KEYS and name == str(lane["id"])
            assert set(lane["centerline"][0]) == {"x", "y", "z"}
            for after in lane["successors"]:
                assert document["lane_segments"][str(after)]["centerline"][0] == lane["centerline"][-1]
        for crossing in document["pedestrian_crossings"].values():
            assert set(crossing) == {"edge1", "edge2", "id"} and len(crossing["edge1"]) == 2
        for area in document["drivable_areas"].values():
            assert set(area) == {"area_boundary", "id"}


def test_same_seed_same_bytes_for_any_number_of_workers(dataset: Path, tmp_path: Path) -> None:
    synthesize(tmp_path, 8, 3, workers=2, progress=False)
    assert _digests(tmp_path) == _digests(dataset)


def test_scenes_depend_on_seed_and_number_only(dataset: Path, tmp_path: Path) -> None:
    sequence = np.random.SeedSequence([3, 0])
    scene = simulate_scene(sequence)
    assert scene.scene_id == scene_identity(np.random.SeedSequence([3, 0])) == simulate_scene(sequence).scene_id
    write_scene(scene, tmp_path)
    assert _digests(tmp_path / scene.scene_id) == _digests(dataset / "train" / scene.scene_id)
    assert scene_identity(0) != scene_identity(1)


def test_interrupted_runs_are_completed_and_finished_scenes_kept(dataset: Path, tmp_path: Path) -> None:
    synthesize(tmp_path, 3, 3, progress=False)
    files = sorted(tmp_path.glob("train/*/*"))
    kept, emptied = files[0], files[1]
    kept.write_bytes(b"mine")
    emptied.write_bytes(b"")
    synthesize(tmp_path, 3, 3, progress=False)
    assert kept.read_bytes() == b"mine"
    assert emptied.read_bytes() == (dataset / emptied.relative_to(tmp_path)).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OSError):
        synthesize(tmp_path / "out", 1, 0, progress=False)


def test_split_sizes() -> None:
    assert Counter(assign_splits(100, 0.2, 0.05)) == {"train": 75, "val": 20, "test": 5}
    assert Counter(assign_splits(3, 0.2, 0.05)) == {"train": 1, "val": 1, "test": 1}
    assert assign_splits(1, 0.2, 0.05) == ["train"]
    assert Counter(assign_splits(10, 0.0, 0.0)) == {"train": 8, "val": 1, "test": 1}


@pytest.mark.parametrize("wrong", [(0, 0.2, 0.1), (5, 1.0, 0.0), (5, 0.6, 0.4), (5, -0.1, 0.0)])
def test_split_sizes_that_make_no_sense(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        assign_splits(*wrong)


def test_focal_ego_and_scored_tracks_are_complete(scenes: list[SyntheticScene]) -> None:
    for scene in scenes:
        tracks = scene.tracks
        assert (tracks.categories == 3).sum() == 1 and len(set(tracks.ids)) == len(tracks.ids)
        focal = tracks.ids.index(scene.focal_id)
        assert tracks.categories[focal] == 3 and tracks.ids[-1] == "AV" != scene.focal_id
        assert tracks.valid[[focal, -1]].all() and tracks.valid[tracks.categories > 0].all()
        assert np.hypot(*(tracks.xy[focal, -1] - tracks.xy[focal, 49])) > 3.0
        assert not tracks.xy[~tracks.valid].any()
        assert np.abs(tracks.xy).max() < 400.0 and np.hypot(*scene.origin) > 1000.0
    assert np.mean([(scene.tracks.categories == 2).sum() >= 2 for scene in scenes]) > 0.9


def test_tracks_come_late_and_get_lost(scenes: list[SyntheticScene]) -> None:
    valid = np.concatenate([scene.tracks.valid for scene in scenes])
    first, last = valid.argmax(axis=1), 109 - valid[:, ::-1].argmax(axis=1)
    assert (valid.sum(axis=1) == last - first + 1).all()  # no gaps: a tracker starts a new track
    assert ((first > 0) & (first < 50)).mean() > 0.05
    assert (last < 109).mean() > 0.1 and (first >= 50).mean() > 0.02
    bodies = [Counter(scene.tracks.bodies.tolist()) for scene in scenes]
    assert any(most > 1 for count in bodies for most in count.values())  # one body, two tracks


def test_variety_of_agents_and_lanes(scenes: list[SyntheticScene]) -> None:
    kinds = {kind for scene in scenes for kind in scene.tracks.kinds}
    assert kinds >= {"vehicle", "pedestrian", "cyclist", "motorcyclist", "bus", "static", "riderless_bicycle"}
    assert {lane.kind for scene in scenes for lane in scene.network.lanes} == {"VEHICLE", "BIKE", "BUS"}
    assert {len(junction.arms) for scene in scenes for junction in scene.network.junctions} == {3, 4}
    assert {road.spec.lanes for scene in scenes for road in scene.network.roads} == {1, 2, 3}
    assert any(lane.merging for scene in scenes for lane in scene.network.lanes)
    assert len({scene.city for scene in scenes}) == 6
    parked = [s.tracks.valid[i].all() and np.ptp(s.tracks.xy[i], axis=0).max() < 0.5
              for s in scenes for i, kind in enumerate(s.tracks.kinds) if kind == "vehicle"]  # fmt: skip
    assert 0.01 < np.mean(parked) < 0.5


def test_every_lane_into_a_junction_leads_somewhere(scenes: list[SyntheticScene]) -> None:
    for scene in scenes:
        network = scene.network
        for arm in network.arms:
            for index in incoming(network.roads[arm.road], arm):
                ways = network.lanes[index].successors
                assert ways and all(network.lanes[i].junction == arm.junction for i in ways)
        # What is not a junction lane and ends nowhere ends at the border of the map.
        mouths = {i for arm in network.arms for i in incoming(network.roads[arm.road], arm)}
        ends = [lane for lane in network.lanes if not lane.successors]
        assert ends and not mouths & {lane.index for lane in ends}


def test_futures_are_multimodal(scenes: list[SyntheticScene]) -> None:
    turns = Counter(scene.focal_turn for scene in scenes)
    assert min(turns["left"], turns["right"], turns["straight"]) >= 5
    is_open = [scene.focal_choices > 1 for scene in scenes]
    assert np.mean(is_open) > 0.3
    assert {scene.focal_turn for scene, o in zip(scenes, is_open, strict=True) if o} == {
        "left",
        "right",
        "straight",
    }
    # The label says what the track does.
    for scene in scenes:
        focal = scene.tracks.ids.index(scene.focal_id)
        heading = np.unwrap(scene.tracks.heading[focal])
        if scene.focal_turn in ("left", "right") and scene.focal_choices > 1:
            way = heading[49:] - heading[49]
            sign = 1.0 if scene.focal_turn == "left" else -1.0
            assert (sign * way).max() > -0.3
    heading = np.array([np.ptp(np.unwrap(s.tracks.heading[s.tracks.ids.index(s.focal_id), 49:])) for s in scenes])
    assert (heading > 0.6).mean() > 0.15


def test_true_motion_is_possible(worlds: list[tuple[World, int]]) -> None:
    for world, count in worlds:
        speed = np.hypot(world.velocity[:count, :, 0], world.velocity[:count, :, 1])
        assert speed.max() < 25.0
        assert np.abs(np.diff(speed, axis=1)).max() < 0.8  # 8 m/s^2
        moved = np.hypot(*np.moveaxis(np.diff(world.xy[:count], axis=1), -1, 0)) * 10.0
        # Off the path's middle the curve is longer or shorter than the path itself.
        shown = world.present[:count, 1:]
        assert np.abs(moved - 0.5 * (speed[:, 1:] + speed[:, :-1]))[shown].max() < 2.0
        rate = np.diff(np.unwrap(world.heading[:count], axis=1), axis=1) * 10.0
        assert np.abs(rate).max() < 1.5
        sideways = np.abs(rate) * speed[:, 1:]
        assert np.quantile(sideways, 0.999) < 5.0
        # Tangent of the motion and heading agree.
        fast = (speed[:, 1:] > 3.0) & shown
        tangent = np.diff(world.xy[:count], axis=1)
        slip = np.angle(np.exp(1j * (np.arctan2(tangent[..., 1], tangent[..., 0]) - world.heading[:count, 1:])))
        assert np.abs(slip[fast]).max() < 0.2


def _discs(world: World, body: int) -> tuple[np.ndarray, float]:
    """Return discs that cover a body: centres [T, n, 2] and their radius."""
    length, width = world.size[body]
    number = max(1, int(np.ceil(length / width)))
    along = np.linspace(-0.5, 0.5, number) * max(length - width, 0.0) if number > 1 else np.zeros(1)
    axis = np.stack((np.cos(world.heading[body]), np.sin(world.heading[body])), axis=-1)
    return world.xy[body][:, None] + along[None, :, None] * axis[:, None], float(width / 2)


def test_nobody_drives_through_anybody(worlds: list[tuple[World, int]]) -> None:
    touching = pairs = 0
    for world, count in worlds:
        for one in range(count):
            for other in [
                *range(one),
                *(i for i in range(count, len(world.kind)) if world.kind[i] == "pedestrian"),
            ]:
                both = world.present[one] & world.present[other]
                both &= np.hypot(*(world.xy[one] - world.xy[other]).T) < 13.0
                if not both.any():
                    continue
                (a, radius_a), (b, radius_b) = _discs(world, one), _discs(world, other)
                gap = np.hypot(*np.moveaxis(a[both][:, :, None] - b[both][:, None], -1, 0)).min()
                pairs += 1
                touching += gap < radius_a + radius_b - 0.1
    assert pairs > 500 and touching == 0


def test_recorded_motion_is_smooth_and_close_to_lanes(scenes: list[SyntheticScene]) -> None:
    kernel = np.hanning(13)[1:-1] / np.hanning(13)[1:-1].sum()
    for scene in scenes:
        tracks, speed = scene.tracks, _speed(scene)
        centre = np.concatenate([lane.centre for lane in scene.network.lanes])
        for i, kind in enumerate(tracks.kinds):
            if kind not in WHEELS or tracks.valid[i].sum() < 40:
                continue
            rows = tracks.valid[i]
            smooth = np.stack([np.convolve(tracks.xy[i, rows, k], kernel, mode="valid") for k in range(2)], axis=-1)
            accel = np.diff(smooth, 2, axis=0) * 100.0
            assert np.hypot(accel[:, 0], accel[:, 1]).max() < 8.0
            if speed[i, 49] > 1.0 and rows[49]:
                assert np.hypot(*(centre - tracks.xy[i, 49]).T).min() < 10.0 + 2.5


def test_vehicles_stop_and_people_cross(worlds: list[tuple[World, int]]) -> None:
    stopped = crossed = 0
    for world, count in worlds:
        speed = np.hypot(world.velocity[:count, :, 0], world.velocity[:count, :, 1])
        stopped += int(((speed.min(axis=1) < 0.3) & (speed.max(axis=1) > 4.0)).sum())
        walkers = [i for i, kind in enumerate(world.kind) if kind == "pedestrian"]
        crossed += sum(np.hypot(*(world.xy[i, -1] - world.xy[i, 0]).T) > 5.0 for i in walkers)
    assert stopped > 30 and crossed > 15
