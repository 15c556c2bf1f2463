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
TYPES = {"b": pa.bool_(), "s": pa.string(), "i": pa.int64(), "f": pa.float64()}
COLUMNS = (
    "observed:b track_id:s object_type:s object_category:i timestep:i position_x:f position_y:f heading:f velocity_x:f "
    "velocity_y:f scenario_id:s start_timestamp:f end_timestamp:f num_timestamps:i focal_track_id:s city:s"
)
SCHEMA = pa.schema(
    [(name, TYPES[kind]) for name, kind in (column.split(":") for column in COLUMNS.split())]
)


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


def test_av2_reads_scenario_and_map(dataset: Path) -> None:
    av2_scenario = pytest.importorskip("av2.datasets.motion_forecasting.scenario_serialization")
    av2_map = pytest.importorskip("av2.map.map_api")
    paths = sorted(dataset.glob("*/*/scenario_*.parquet"))
    assert len(paths) == 8
    for path in paths:
        scenario = av2_scenario.load_argoverse_scenario_parquet(path)
        assert scenario.scenario_id == path.parent.name
        assert np.allclose(np.diff(scenario.timestamps_ns), 1e8, atol=100)
        city_map = av2_map.ArgoverseStaticMap.from_json(
            path.parent / f"log_map_archive_{path.parent.name}.json"
        )
        lanes = city_map.vector_lane_segments
        assert len(lanes) >= 4
        for lane in lanes.values():
            assert lane.polygon_boundary.shape[1] == 3
            assert all(lane.id in lanes[successor].predecessors for successor in lane.successors)
            assert {lane.left_neighbor_id, lane.right_neighbor_id} <= {None, *lanes}
        assert all(
            crossing.polygon.shape == (5, 3)
            for crossing in city_map.vector_pedestrian_crossings.values()
        )
        ego = next(track for track in scenario.tracks if track.track_id == "AV")
        areas = city_map.get_scenario_vector_drivable_areas()
        assert any(
            norm(area.xyz[:, :2] - ego.object_states[49].position).min() < 150.0 for area in areas
        )


def test_columns_equal_the_official_ones_and_lanes_join(dataset: Path) -> None:
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
        lanes = json.loads((path.parent / f"log_map_archive_{path.parent.name}.json").read_bytes())[
            "lane_segments"
        ]
        for lane in lanes.values():
            assert all(
                lanes[str(successor)]["centerline"][0] == lane["centerline"][-1]
                for successor in lane["successors"]
            )


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
    assert {
        name: complete[name] for name in made if name.startswith("train")
    }.items() <= made.items()
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
    assert (
        tuple(assign_splits(*arguments).count(split) for split in ("train", "val", "test")) == sizes
    )
    for invalid in ((0, 0.2, 0.1), (5, 1.0, 0.0), (5, 0.6, 0.4), (5, -0.1, 0.0)):
        with pytest.raises(ValueError, match="must be"):
            assign_splits(*invalid)


def test_tracks_are_complete_or_interrupted_as_recorded_ones(scenes: list[SyntheticScene]) -> None:
    for scene in scenes:
        tracks, focal = scene.tracks, scene.tracks.focal
        assert (tracks.categories == 3).sum() == 1 and len(set(tracks.ids)) == len(tracks.ids)
        assert tracks.categories[focal] == 3 and tracks.ids[-1] == "AV" != tracks.ids[focal]
        assert tracks.valid[[focal, -1]].all() and tracks.valid[tracks.categories > 0].all()
        assert norm(tracks.xy[focal, -1] - tracks.xy[focal, 49]) > 3.0
        assert not tracks.xy[~tracks.valid].any()
        assert np.abs(tracks.xy).max() < 400.0 and norm(scene.origin) > 1000.0
    assert np.mean([(scene.tracks.categories == 2).sum() >= 2 for scene in scenes]) > 0.9
    valid = np.concatenate([scene.tracks.valid for scene in scenes])
    first, last = valid.argmax(axis=1), 109 - valid[:, ::-1].argmax(axis=1)
    assert (valid.sum(axis=1) == last - first + 1).all()  # no gaps: a tracker starts a new track
    assert ((first > 0) & (first < 50)).mean() > 0.05
    assert (last < 109).mean() > 0.1 and (first >= 50).mean() > 0.02
    assert any(len(set(scene.tracks.bodies)) < len(scene.tracks.bodies) for scene in scenes), (
        "one body, two tracks"
    )


def test_variety_of_agents_and_lanes(scenes: list[SyntheticScene]) -> None:
    kinds = {kind for scene in scenes for kind in scene.tracks.kinds}
    assert kinds >= {
        "vehicle",
        "pedestrian",
        "cyclist",
        "motorcyclist",
        "bus",
        "static",
        "riderless_bicycle",
    }
    assert {lane.kind for scene in scenes for lane in scene.network.lanes} == {
        "VEHICLE",
        "BIKE",
        "BUS",
    }
    assert {len(junction.arms) for scene in scenes for junction in scene.network.junctions} == {
        3,
        4,
    }
    assert {road.spec.lanes for scene in scenes for road in scene.network.roads} == {1, 2, 3}
    assert any(lane.merging for scene in scenes for lane in scene.network.lanes)
    assert len({scene.city for scene in scenes}) == 6
    parked = [s.tracks.valid[i].all() and np.ptp(s.tracks.xy[i], axis=0).max() < 0.5
              for s in scenes for i, kind in enumerate(s.tracks.kinds) if kind == "vehicle"]  # fmt: skip
    assert 0.01 < np.mean(parked) < 0.5


def test_futures_are_multimodal(scenes: list[SyntheticScene]) -> None:
    turns = Counter[
        tuple[int, bool]
    ]()  # turn of the focal vehicle, and whether other turns were open to it
    swept = []
    for scene in scenes:
        heading = np.unwrap(scene.tracks.heading[scene.tracks.focal])[49:]
        swept.append(np.ptp(heading))
        body = scene.tracks.bodies[scene.tracks.focal]
        if body < len(scene.world.turn):
            turn, uncertain = int(scene.world.turn[body]), bool(scene.world.choices[body] > 1)
            turns[turn, uncertain] += 1
            if turn in (-1, 1) and uncertain:  # the track does not contradict its turn
                assert (turn * (heading - heading[0])).max() > -0.3
    assert min(turns[turn, False] + turns[turn, True] for turn in (-1, 0, 1)) >= 4
    assert min(turns[turn, True] for turn in (-1, 0, 1)) > 0
    assert sum(turns[turn, True] for turn in (-1, 0, 1, 2)) > 0.3 * len(scenes)
    assert np.mean(np.array(swept) > 0.6) > 0.15


def test_true_motion_is_possible(worlds: list[tuple[World, int]]) -> None:
    stopped = walked = 0
    for world, count in worlds:
        speed = norm(world.velocity[:count])
        assert speed.max() < 25.0
        assert np.abs(np.diff(speed, axis=1)).max() < 0.8  # 8 m/s^2
        present = world.present[:count, 1:]
        step = np.diff(world.xy[:count], axis=1)
        # Next to the middle of its path a vehicle moves a longer or shorter way than along the path.
        assert np.abs(norm(step) * 10.0 - 0.5 * (speed[:, 1:] + speed[:, :-1]))[present].max() < 2.0
        rate = np.diff(np.unwrap(world.heading[:count], axis=1), axis=1) * 10.0
        assert np.abs(rate).max() < 1.5
        assert np.quantile(np.abs(rate) * speed[:, 1:], 0.999) < 5.0  # lateral acceleration, m/s^2
        slip = np.angle(
            np.exp(1j * (np.arctan2(step[..., 1], step[..., 0]) - world.heading[:count, 1:]))
        )
        assert np.abs(slip[(speed[:, 1:] > 3.0) & present]).max() < 0.2
        stopped += int(((speed.min(axis=1) < 0.3) & (speed.max(axis=1) > 4.0)).sum())
        pedestrians = [kind == "pedestrian" for kind in world.kind]
        walked += int((norm(world.xy[pedestrians, -1] - world.xy[pedestrians, 0]) > 5.0).sum())
    assert stopped > 20 and walked > 10


def discs(world: World, body: int) -> tuple[np.ndarray, float]:
    """Discs that cover a body: centers [T, n, 2] and their radius."""
    length, width = world.size[body]
    along = (
        np.linspace(-0.5, 0.5, int(np.ceil(length / width))) * (length - width)
        if length > width
        else np.zeros(1)
    )
    axis = np.stack((np.cos(world.heading[body]), np.sin(world.heading[body])), axis=-1)
    return world.xy[body][:, None] + along[None, :, None] * axis[:, None], float(width / 2)


def test_agents_do_not_collide(worlds: list[tuple[World, int]]) -> None:
    collisions = pairs = 0
    for world, count in worlds:
        pedestrians = [i for i, kind in enumerate(world.kind) if kind == "pedestrian"]
        for one, other in [(i, j) for i in range(count) for j in [*range(i), *pedestrians]]:
            near = (
                world.present[one]
                & world.present[other]
                & (norm(world.xy[one] - world.xy[other]) < 13.0)
            )
            if near.any():
                (a, radius_a), (b, radius_b) = discs(world, one), discs(world, other)
                pairs += 1
                collisions += (
                    norm(a[near][:, :, None] - b[near][:, None]).min() < radius_a + radius_b - 0.1
                )
    assert pairs > 300 and collisions == 0
