"""Synthetic scenes: file format, determinism, physical plausibility and variety."""

import json
import threading
import time
from collections import Counter
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.prepared import content

from data_prep.synthetic import SyntheticScene, simulate_scene, synthesize
from data_prep.synthetic.dataset import assign_splits
from data_prep.synthetic.world import World
from trajformer.errors import TrajformerError

# The columns of the official train and val files.
SCHEMA = pa.schema(
    {
        "observed": pa.bool_(),
        "track_id": pa.string(),
        "object_type": pa.string(),
        "object_category": pa.int64(),
        "timestep": pa.int64(),
        "position_x": pa.float64(),
        "position_y": pa.float64(),
        "heading": pa.float64(),
        "velocity_x": pa.float64(),
        "velocity_y": pa.float64(),
        "scenario_id": pa.string(),
        "start_timestamp": pa.float64(),
        "end_timestamp": pa.float64(),
        "num_timestamps": pa.int64(),
        "focal_track_id": pa.string(),
        "city": pa.string(),
    }
)
HISTORY = 50  # observed steps
STEPS = 110
FOCAL = 3  # category of the focal track


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    assert synthesize(out, 8, 3, progress=False) == {"train": 5, "val": 2, "test": 1}
    return out


@pytest.fixture(scope="module")
def scenes() -> list[SyntheticScene]:
    return [simulate_scene(seed) for seed in range(60)]


@pytest.fixture(scope="module")
def worlds(scenes: list[SyntheticScene]) -> list[tuple[World, int]]:
    """The true motion in 20 scenes, with the number of moving vehicles."""
    return [(scene.world, len(scene.world.turn)) for scene in scenes[:20]]


def norm(vector: np.ndarray) -> np.ndarray:
    """Length [...] of vectors [..., 2]."""
    return np.hypot(vector[..., 0], vector[..., 1])


def map_path(scenario_path: Path) -> Path:
    """The map of a scenario file."""
    folder = scenario_path.parent
    return folder / f"log_map_archive_{folder.name}.json"


def test_av2_reads_scenario_and_map(dataset: Path) -> None:
    av2_scenario = pytest.importorskip("av2.datasets.motion_forecasting.scenario_serialization")
    av2_map = pytest.importorskip("av2.map.map_api")
    paths = sorted(dataset.glob("*/*/scenario_*.parquet"))
    assert len(paths) == 8
    for path in paths:
        scenario = av2_scenario.load_argoverse_scenario_parquet(path)
        assert scenario.scenario_id == path.parent.name
        assert np.allclose(np.diff(scenario.timestamps_ns), 1e8, atol=100)
        city_map = av2_map.ArgoverseStaticMap.from_json(map_path(path))
        lanes = city_map.vector_lane_segments
        assert len(lanes) >= 4
        for lane in lanes.values():
            assert lane.polygon_boundary.shape[1] == 3
            assert all(lane.id in lanes[successor].predecessors for successor in lane.successors)
            assert {lane.left_neighbor_id, lane.right_neighbor_id} <= {None, *lanes}
        for crossing in city_map.vector_pedestrian_crossings.values():
            assert crossing.polygon.shape == (5, 3)
        ego = next(track for track in scenario.tracks if track.track_id == "AV")
        position = ego.object_states[HISTORY - 1].position
        areas = city_map.get_scenario_vector_drivable_areas()
        distances = [norm(area.xyz[:, :2] - position).min() for area in areas]
        assert min(distances) < 150.0, "the map is around the ego vehicle"


def test_columns_equal_the_official_ones_and_lanes_join(dataset: Path) -> None:
    for path in dataset.glob("*/*/scenario_*.parquet"):
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        assert all(column.null_count == 0 for column in table.columns)
        step = table["timestep"].to_numpy()
        is_test = path.parent.parent.name == "test"
        num_steps = HISTORY if is_test else STEPS
        assert step.max() == num_steps - 1
        assert (table["observed"].to_numpy() == (step < HISTORY)).all()
        assert set(table["num_timestamps"].to_pylist()) == {STEPS}
        assert np.abs(table["heading"].to_numpy()).max() <= np.pi

        track_ids = table["track_id"].to_pylist()
        focal_id = table["focal_track_id"][0].as_py()
        assert track_ids[-1] == "AV"
        assert track_ids.count("AV") == num_steps
        assert track_ids.count(focal_id) == num_steps

        lanes = json.loads(map_path(path).read_bytes())["lane_segments"]
        for lane in lanes.values():
            for successor in lane["successors"]:
                assert lanes[str(successor)]["centerline"][0] == lane["centerline"][-1]


def test_same_seed_same_bytes_for_any_number_of_workers(dataset: Path, tmp_path: Path) -> None:
    synthesize(tmp_path, 8, 3, workers=2, progress=False)
    assert content(tmp_path) == content(dataset)


def test_a_killed_worker_is_one_line_and_its_scenes_are_written_later(
    dataset: Path, tmp_path: Path
) -> None:
    before = set(active_children())

    def kill() -> None:
        while not any(tmp_path.glob("*/*/*.parquet")):  # both workers have started
            time.sleep(0.01)
        (set(active_children()) - before).pop().kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(TrajformerError, match="a worker ended unexpectedly"):
        synthesize(tmp_path, 8, 3, workers=2, progress=False)
    thread.join()
    synthesize(tmp_path, 8, 3, progress=False)
    assert content(tmp_path) == content(dataset)


def test_a_scene_depends_on_seed_and_number_and_finished_scenes_are_kept(
    dataset: Path, tmp_path: Path
) -> None:
    synthesize(tmp_path, 5, 3, progress=False)
    complete = content(dataset)
    made = content(tmp_path)
    train_names = [name for name in made if name.startswith("train")]
    assert all(made[name] == complete[name] for name in train_names)
    emptied, kept, missing = sorted(tmp_path.glob("train/*/*.parquet"))
    kept.write_bytes(b"mine")
    emptied.write_bytes(b"")
    missing.unlink()
    synthesize(tmp_path, 5, 3, progress=False)
    assert kept.read_bytes() == b"mine"
    kept.write_bytes((dataset / kept.relative_to(tmp_path)).read_bytes())
    assert content(tmp_path) == made, "no temporary file"


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((100, 0.2, 0.05), (75, 20, 5)),
        ((3, 0.2, 0.05), (1, 1, 1)),
        ((1, 0.2, 0.05), (1, 0, 0)),
        ((10, 0.0, 0.0), (8, 1, 1)),
    ],
)
def test_split_sizes(arguments: tuple[int, float, float], sizes: tuple[int, int, int]) -> None:
    splits = assign_splits(*arguments)
    assert tuple(splits.count(split) for split in ("train", "val", "test")) == sizes
    for invalid in ((0, 0.2, 0.1), (5, 1.0, 0.0), (5, 0.6, 0.4), (5, -0.1, 0.0)):
        with pytest.raises(ValueError, match="must be"):
            assign_splits(*invalid)


def test_tracks_are_complete_or_interrupted_as_recorded_ones(scenes: list[SyntheticScene]) -> None:
    for scene in scenes:
        tracks = scene.tracks
        focal = tracks.focal
        assert len(set(tracks.ids)) == len(tracks.ids)
        assert (tracks.categories == FOCAL).sum() == 1
        assert tracks.categories[focal] == FOCAL
        assert tracks.ids[-1] == "AV"
        assert tracks.ids[focal] != "AV"
        assert tracks.valid[[focal, -1]].all()
        assert tracks.valid[tracks.categories > 0].all()
        assert norm(tracks.xy[focal, -1] - tracks.xy[focal, HISTORY - 1]) > 3.0
        assert not tracks.xy[~tracks.valid].any()
        assert np.abs(tracks.xy).max() < 400.0
        assert norm(scene.origin) > 1000.0
    num_scored = np.array([(scene.tracks.categories == 2).sum() for scene in scenes])
    assert (num_scored >= 2).mean() > 0.9

    valid = np.concatenate([scene.tracks.valid for scene in scenes])
    first = valid.argmax(axis=1)
    last = STEPS - 1 - valid[:, ::-1].argmax(axis=1)
    assert (valid.sum(axis=1) == last - first + 1).all()  # no gaps: a tracker starts a new track
    assert ((first > 0) & (first < HISTORY)).mean() > 0.05
    assert (last < STEPS - 1).mean() > 0.1
    assert (first >= HISTORY).mean() > 0.02
    bodies = [scene.tracks.bodies.tolist() for scene in scenes]
    assert any(len(set(numbers)) < len(numbers) for numbers in bodies), "one body, two tracks"


def test_variety_of_agents_and_lanes(scenes: list[SyntheticScene]) -> None:
    agent_kinds: set[str] = set()
    lane_kinds: set[str] = set()
    num_arms: set[int] = set()
    num_lanes: set[int] = set()
    merging = []
    for scene in scenes:
        agent_kinds.update(scene.tracks.kinds)
        lane_kinds.update(lane.kind for lane in scene.network.lanes)
        num_arms.update(len(junction.arms) for junction in scene.network.junctions)
        num_lanes.update(road.spec.lanes for road in scene.network.roads)
        merging += [lane.merging for lane in scene.network.lanes]
    assert agent_kinds >= {
        "vehicle",
        "pedestrian",
        "cyclist",
        "motorcyclist",
        "bus",
        "static",
        "riderless_bicycle",
    }
    assert lane_kinds == {"VEHICLE", "BIKE", "BUS"}
    assert num_arms == {3, 4}
    assert num_lanes == {1, 2, 3}
    assert any(merging)
    assert len({scene.city for scene in scenes}) == 6


def test_some_vehicles_are_parked(scenes: list[SyntheticScene]) -> None:
    parked = []
    for scene in scenes:
        is_vehicle = np.array(scene.tracks.kinds) == "vehicle"
        extent = np.ptp(scene.tracks.xy[is_vehicle], axis=1).max(axis=1)
        is_complete = scene.tracks.valid[is_vehicle].all(axis=1)
        parked += (is_complete & (extent < 0.5)).tolist()
    assert 0.01 < np.mean(parked) < 0.5


def test_futures_are_multimodal(scenes: list[SyntheticScene]) -> None:
    turns = Counter[int]()  # of the focal vehicles; 2: none
    open_turns = Counter[int]()  # the same, if other turns were open to the vehicle
    swept = []
    for scene in scenes:
        focal = scene.tracks.focal
        heading = np.unwrap(scene.tracks.heading[focal])[HISTORY - 1 :]
        swept.append(np.ptp(heading))
        body = scene.tracks.bodies[focal]
        if body >= len(scene.world.turn):  # a pedestrian
            continue
        turn = int(scene.world.turn[body])
        turns[turn] += 1
        if scene.world.choices[body] > 1:
            open_turns[turn] += 1
            if turn in (-1, 1):  # the track does not contradict its turn
                assert (turn * (heading - heading[0])).max() > -0.3
    for turn in (-1, 0, 1):
        assert turns[turn] >= 4
        assert open_turns[turn] > 0
    assert open_turns.total() > 0.3 * len(scenes)
    assert (np.array(swept) > 0.6).mean() > 0.15


def test_true_motion_is_possible(worlds: list[tuple[World, int]]) -> None:
    num_stopped = 0
    num_walked = 0
    for world, count in worlds:
        speed = norm(world.velocity[:count])
        assert speed.max() < 25.0
        assert np.abs(np.diff(speed, axis=1)).max() < 0.8  # 8 m/s^2
        present = world.present[:count, 1:]
        step = np.diff(world.xy[:count], axis=1)
        # Next to the middle of its path a vehicle moves a longer or shorter way than along it.
        mean_speed = 0.5 * (speed[:, 1:] + speed[:, :-1])
        assert np.abs(norm(step) * 10.0 - mean_speed)[present].max() < 2.0
        heading = np.unwrap(world.heading[:count], axis=1)
        yaw_rate = np.abs(np.diff(heading, axis=1)) * 10.0
        assert yaw_rate.max() < 1.5
        lateral_acceleration = yaw_rate * speed[:, 1:]  # m/s^2
        assert np.quantile(lateral_acceleration, 0.999) < 5.0
        direction = np.arctan2(step[..., 1], step[..., 0])
        slip = np.angle(np.exp(1j * (direction - heading[:, 1:])))
        assert np.abs(slip[(speed[:, 1:] > 3.0) & present]).max() < 0.2
        has_stopped = (speed.min(axis=1) < 0.3) & (speed.max(axis=1) > 4.0)
        num_stopped += int(has_stopped.sum())
        is_pedestrian = np.array(world.kind) == "pedestrian"
        walked_m = norm(world.xy[is_pedestrian, -1] - world.xy[is_pedestrian, 0])
        num_walked += int((walked_m > 5.0).sum())
    assert num_stopped > 20
    assert num_walked > 10


def discs(world: World, body: int) -> tuple[np.ndarray, float]:
    """Discs that cover a body: centers [T, n, 2] and their radius."""
    length, width = world.size[body]
    along = np.zeros(1)
    if length > width:
        count = int(np.ceil(length / width))
        along = np.linspace(-0.5, 0.5, count) * (length - width)
    heading = world.heading[body]
    axis = np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    centers = world.xy[body][:, None] + along[None, :, None] * axis[:, None]
    return centers, float(width / 2)


def clearance(world: World, first: int, second: int) -> float | None:
    """Smallest distance in metres between two bodies, None if they never come close."""
    both_present = world.present[first] & world.present[second]
    near = both_present & (norm(world.xy[first] - world.xy[second]) < 13.0)
    if not near.any():
        return None
    first_centers, first_radius = discs(world, first)
    second_centers, second_radius = discs(world, second)
    gap = first_centers[near][:, :, None] - second_centers[near][:, None]
    return float(norm(gap).min()) - first_radius - second_radius


def test_agents_do_not_collide(worlds: list[tuple[World, int]]) -> None:
    clearances = []
    for world, count in worlds:
        pedestrians = [i for i, kind in enumerate(world.kind) if kind == "pedestrian"]
        for vehicle in range(count):
            for other in [*range(vehicle), *pedestrians]:
                clearances.append(clearance(world, vehicle, other))
    close_pairs = [distance for distance in clearances if distance is not None]
    assert len(close_pairs) > 300
    assert min(close_pairs) >= -0.1
