"""The Argoverse 2 reader: layout, broken files, and parity with av2's loader on real scenarios."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import fixtures
from support.fixtures import argoverse2_columns, argoverse2_map
from support.scenes import assert_near, in_city, named_edges
from support.sensor_logs import take

from data_prep.reader import Input
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

H = 50
TOLERANCE = 1e-3  # metres, radians, metres per second


def read(path: Path) -> Scene:
    """Read the scenario at RAW/<split>/<uuid>/scenario_<uuid>.parquet."""
    return Argoverse2().read(Input(path), path.parts[-3], path.parents[2]).validate()


def test_a_scenario_becomes_a_scene(tmp_path: Path) -> None:
    columns = argoverse2_columns()
    scene = read(fixtures.write_argoverse2(tmp_path, columns))
    names = (scene.scene_id, scene.source, scene.split, scene.city)
    assert names == ("s-1", "argoverse2", "val", "austin")
    assert (scene.num_history, scene.num_future, scene.num_steps) == (50, 60, 110)
    agents = {
        "10": (AgentKind.BUS, AgentRole.SCORED),
        "9": (AgentKind.VEHICLE, AgentRole.FOCAL),
        "AV": (AgentKind.VEHICLE, AgentRole.CONTEXT),
        "a": (AgentKind.RIDERLESS_BICYCLE, AgentRole.CONTEXT),
        "b": (AgentKind.PEDESTRIAN, AgentRole.CONTEXT),
    }
    assert scene.agent_id == tuple(agents)
    assert scene.agent_kind.tolist() == [kind for kind, _ in agents.values()]
    assert scene.agent_role.tolist() == [role for _, role in agents.values()]
    index = np.array([scene.agent_id.index(i) for i in columns["track_id"]])
    step = columns["timestep"]
    xy = np.stack([columns["position_x"], columns["position_y"]], -1)
    focal_now = (columns["track_id"] == "9") & (step == H - 1)
    assert scene.valid.sum() == len(step)
    assert np.array_equal(scene.origin, xy[focal_now][0].round())
    assert_near(in_city(scene)[index, step], xy, TOLERANCE)
    assert np.array_equal(scene.heading[index, step], columns["heading"].astype(np.float32))
    assert np.array_equal(scene.velocity[index, step, 0], columns["velocity_x"].astype(np.float32))
    columns = argoverse2_columns(steps=50)  # no future, even if 110 steps are declared
    assert columns["num_timestamps"][0] == 110
    assert read(fixtures.write_argoverse2(tmp_path, columns, split="test")).num_steps == 50


def test_the_origin(tmp_path: Path) -> None:
    """The last observed position of the focal track, or without one of the ego vehicle."""
    columns = argoverse2_columns()
    gone = (columns["track_id"] == "9") & (columns["timestep"] > 40) & (columns["timestep"] < 60)
    path = fixtures.write_argoverse2(tmp_path, take(columns, ~gone))
    assert read(path).origin[0] == 1000.0 + 0.5 * 40
    columns["object_category"][columns["object_category"] == 3] = 1
    row = (columns["track_id"] == "AV") & (columns["timestep"] == H - 1)
    scene = read(fixtures.write_argoverse2(tmp_path, columns))
    x = columns["position_x"][row][0]
    y = columns["position_y"][row][0]
    assert scene.origin.tolist() == [round(x), round(y)]
    without = take(columns, columns["track_id"] != "AV")
    assert read(fixtures.write_argoverse2(tmp_path, without)).num_agents == 4


def test_the_map(tmp_path: Path) -> None:
    scene = read(fixtures.write_argoverse2(tmp_path))
    assert scene.polyline_kind.tolist() == [
        PolylineKind.LANE_VEHICLE,
        PolylineKind.LANE_BUS,
        PolylineKind.LANE_BIKE,
        PolylineKind.CROSSWALK,
        PolylineKind.DRIVABLE_AREA,
    ]
    assert scene.polyline_id.tolist() == [1, 2, 3, 5, 6]
    assert scene.polyline_flags.tolist() == [0, LaneFlag.INTERSECTION, 0, 0, 0]
    following = {(1, 2, EdgeKind.SUCCESSOR), (2, 1, EdgeKind.PREDECESSOR)}
    assert named_edges(scene) == following | {(1, 3, EdgeKind.LEFT), (3, 1, EdgeKind.RIGHT)}
    corner = (1000.0, -700.0)
    center, _, _, crosswalk, area = [
        scene.polyline(index) + scene.origin - corner for index in range(5)
    ]
    assert_near(center[:, 0], np.linspace(0, 9, 10), TOLERANCE)
    assert_near(center[:, 1], 0.0, TOLERANCE)
    assert_near(crosswalk, [(9, -3), (9, 3), (12, 3), (12, -3), (9, -3)], TOLERANCE)
    ring = np.array([(-5, -5), (20, -5), (20, 9), (-5, 9), (-5, -5)])
    assert_near(area, ring, TOLERANCE)


def test_a_boundary_of_one_point_is_repeated(tmp_path: Path) -> None:
    archive = argoverse2_map()
    lane = archive["lane_segments"]["2"]
    lane["right_lane_boundary"] = lane["right_lane_boundary"][:1]
    scene = read(fixtures.write_argoverse2(tmp_path, archive=archive))
    ends = scene.polyline(1)[[0, -1]] + scene.origin
    assert_near(ends, [(1009, -700), (1010.5, -697)], TOLERANCE)


def test_splits_and_inputs(tmp_path: Path) -> None:
    for uuid in ("b", "a"):
        fixtures.write_argoverse2(tmp_path, uuid=uuid)
    fixtures.write_argoverse2(tmp_path, split="train")
    (tmp_path / "val" / "c").mkdir()
    (tmp_path / "notes.txt").write_text("not a split")
    reader = Argoverse2()
    assert reader.splits(tmp_path) == ["train", "val"]
    paths = [item.path for item in reader.inputs(tmp_path, "val")]
    assert [path.name for path in paths] == [f"scenario_{uuid}.parquet" for uuid in "abc"]
    with pytest.raises(SceneError, match=r"scenario_c\.parquet: not a readable parquet file"):
        read(paths[-1])


@pytest.fixture(
    params=[("train", 0), ("train", 2), ("val", 0), ("val", 1), ("test", 0), ("test", 4)], ids=str
)
def real_path(request: pytest.FixtureRequest, real_data: Path) -> Path:
    split, number = request.param
    return Argoverse2().inputs(real_data / "argoverse2", split)[number].path


def test_tracks_equal_av2(real_path: Path) -> None:
    serialization = pytest.importorskip("av2.datasets.motion_forecasting.scenario_serialization")
    oracle = serialization.load_argoverse_scenario_parquet(real_path)
    scene = read(real_path)
    assert (scene.scene_id, scene.city) == (oracle.scenario_id, oracle.city_name)
    assert scene.agent_id == tuple(track.track_id for track in oracle.tracks)
    assert scene.num_steps == 1 + int(pq.read_table(real_path)["timestep"].to_numpy().max())
    for index, track in enumerate(oracle.tracks):
        step = np.array([int(state.timestep) for state in track.object_states])
        assert np.flatnonzero(scene.valid[index]).tolist() == sorted(step)
        for name, origin in (("position", scene.origin), ("velocity", 0.0), ("heading", 0.0)):
            expected = np.array([getattr(state, name) for state in track.object_states])
            actual = getattr(scene, name)[index, step] + origin
            assert_near(actual, expected, TOLERANCE, name)
        assert AgentKind(scene.agent_kind[index]).name.lower() == track.object_type.value
        role = {2: AgentRole.SCORED, 3: AgentRole.FOCAL}.get(
            track.category.value, AgentRole.CONTEXT
        )
        assert scene.agent_role[index] == role
    focal = scene.agent_id.index(oracle.focal_track_id)
    assert scene.agent_role.tolist().count(AgentRole.FOCAL) == 1
    assert np.abs(scene.position[focal, H - 1]).max() <= 0.5  # the origin is in whole metres


def test_the_map_equals_av2(real_path: Path) -> None:
    map_api = pytest.importorskip("av2.map.map_api")
    uuid = real_path.parent.name
    oracle = map_api.ArgoverseStaticMap.from_json(
        real_path.with_name(f"log_map_archive_{uuid}.json")
    )
    scene = read(real_path)
    kinds = [PolylineKind(kind) for kind in scene.polyline_kind]
    city = {}
    for index, number in enumerate(scene.polyline_id):
        city[kinds[index], int(number)] = scene.polyline(index) + scene.origin
    expected: dict[tuple[PolylineKind, int], np.ndarray] = {}
    links = set()
    for number, lane in oracle.vector_lane_segments.items():
        kind = PolylineKind[f"LANE_{lane.lane_type.value}"]
        expected[kind, number] = oracle.get_lane_segment_centerline(number)[:, :2]
        flags = scene.polyline_flags[scene.polyline_id.tolist().index(number)]
        assert flags == (LaneFlag.INTERSECTION if lane.is_intersection else 0)
        links |= {(number, other, EdgeKind.SUCCESSOR) for other in lane.successors}
        links |= {(number, other, EdgeKind.PREDECESSOR) for other in lane.predecessors}
        links |= {
            (number, lane.left_neighbor_id, EdgeKind.LEFT),
            (number, lane.right_neighbor_id, EdgeKind.RIGHT),
        }
    for number, crossing in oracle.vector_pedestrian_crossings.items():
        expected[PolylineKind.CROSSWALK, number] = crossing.polygon[:, :2]
    for number, area in oracle.vector_drivable_areas.items():
        expected[PolylineKind.DRIVABLE_AREA, number] = area.xyz[:, :2]
    assert city.keys() == expected.keys()
    for key, points in expected.items():
        assert_near(city[key], points, TOLERANCE, str(key))
    known = {link for link in links if link[1] in oracle.vector_lane_segments}
    assert named_edges(scene) == known
