"""nuPlan logs and maps, built with the published schema: no original file is available."""

import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from support import drone_files, nuplan_files

from data_prep.readers.nuplan.geometry import lines_of
from data_prep.readers.nuplan.reader import REAR_AXLE_TO_CENTER_M, Nuplan
from trajformer.errors import SceneError
from trajformer.scenes.scene import (
    AgentKind,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
)

READER = Nuplan(**drone_files.SMALL, stride=100)


def read(raw: Path) -> Scene:
    [item] = READER.inputs(raw, "mini")
    return READER.read(item, "mini", raw)


def log_of(raw: Path) -> Path:
    return raw / "mini" / "2021.05.12.log.db"


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_ego_car_boxes_and_sizes(tmp_path: Path) -> None:
    nuplan_files.folder(tmp_path)
    scene = read(tmp_path)
    assert (scene.period_s, scene.num_steps, scene.city) == (0.1, 10, nuplan_files.PLACE)
    ego = scene.agent_id.index("AV")
    travel = np.array([5 + 6 * 0.4 + REAR_AXLE_TO_CENTER_M, 0])
    expected = nuplan_files.origin() + travel
    np.testing.assert_allclose(scene.position[ego, 4] + scene.origin, expected, atol=1e-3)
    np.testing.assert_allclose(scene.velocity[ego, 4], [6, 0], atol=1e-5)
    np.testing.assert_allclose(scene.agent_size[ego], [5.176, 2.297], rtol=1e-6)
    kinds = sorted(scene.agent_kind.tolist())
    assert kinds == sorted([1, 1, AgentKind.PEDESTRIAN, AgentKind.CONSTRUCTION])
    walker = int((scene.agent_kind == AgentKind.PEDESTRIAN).argmax())
    # Estimated: the recorded velocity of boxes is 99 m/s.
    np.testing.assert_allclose(scene.velocity[walker, 4], [0, 1.5], atol=0.05)
    np.testing.assert_allclose(scene.heading[walker, 4], np.pi / 2, atol=1e-6)


def test_lanes_links_and_areas(tmp_path: Path) -> None:
    nuplan_files.folder(tmp_path)
    scene = read(tmp_path)
    assert scene.polyline_id[:3].tolist() == [10, 11, 30]
    connector = LaneFlag.INTERSECTION | LaneFlag.TRAFFIC_CONTROL
    assert scene.polyline_flags[:3].tolist() == [0, 0, connector]
    assert scene.polyline_kind[3:].tolist() == [
        PolylineKind.CROSSWALK,
        PolylineKind.DRIVABLE_AREA,
    ]
    links = set(zip(*scene.edge.tolist(), scene.edge_kind.tolist(), strict=True))
    assert links == {
        (0, 2, EdgeKind.SUCCESSOR),
        (2, 0, EdgeKind.PREDECESSOR),
        (0, 1, EdgeKind.LEFT),
        (1, 0, EdgeKind.RIGHT),
    }
    first = scene.point[: scene.polyline_offset[1]] + scene.origin - nuplan_files.origin()
    np.testing.assert_allclose(first, [[0, 0], [40, 0]], atol=0.01)


def test_traffic_lights_of_each_step(tmp_path: Path) -> None:
    nuplan_files.folder(tmp_path)
    scene = read(tmp_path)
    assert scene.polyline_id[scene.light_lane].tolist() == [30]
    states = [LightState.RED] * 6 + [LightState.GREEN] * 4
    assert scene.light_state.tolist() == [states]


def test_a_missing_point_cloud_does_not_shift_the_steps(tmp_path: Path) -> None:
    nuplan_files.folder(tmp_path)
    log = log_of(tmp_path)
    change(log, f"DELETE FROM lidar_pc WHERE token = x'{nuplan_files.token_of(4, 7).hex()}'")
    assert read(tmp_path).valid[0].all()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TABLE lidar_box", "lidar_box: no such table"),
        ("ALTER TABLE ego_pose RENAME COLUMN qw TO w", "ego_pose: qw: no such column"),
        ("UPDATE lidar_pc SET timestamp = 'noon'", "fewer than two point clouds"),
        ("UPDATE log SET map_version = '../../etc'", "no map.gpkg of this place"),
    ],
)
def test_errors_name_file_and_table(tmp_path: Path, statement: str, problem: str) -> None:
    nuplan_files.folder(tmp_path)
    change(log_of(tmp_path), statement)
    [item] = READER.inputs(tmp_path, "mini")
    with pytest.raises(SceneError, match=problem):
        READER.read(item, "mini", tmp_path)


def test_views_functions_and_endless_queries_are_refused(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    attacks = (
        ("DROP TABLE lidar_box", f"CREATE VIEW lidar_box AS {endless}"),
        (
            "DROP TABLE log",
            "CREATE TABLE log (map_version AS (printf('%.*c', 99999999, 'x')), token BLOB)",
            "INSERT INTO log (token) VALUES (x'00')",
        ),
    )
    for number, statements in enumerate(attacks):
        raw = tmp_path / str(number)
        nuplan_files.folder(raw)
        change(log_of(raw), *statements)
        start_time = time.process_time()
        [item] = READER.inputs(raw, "mini")
        with pytest.raises(SceneError, match=r"log\.db: "):
            READER.read(item, "mini", raw)
        assert time.process_time() - start_time < 5


def test_geometries_with_heights_and_parts() -> None:
    line = nuplan_files.geometry(2, [(0, 0), (1, 0)])
    [plain] = lines_of(line)
    z = b"\1" + (1002).to_bytes(4, "little") + (2).to_bytes(4, "little")
    z += np.insert(plain, 2, 7.0, axis=1).tobytes()
    several = (
        line[:8] + b"\1" + (5).to_bytes(4, "little") + (2).to_bytes(4, "little") + z + line[8:]
    )
    for found in lines_of(several):
        np.testing.assert_array_equal(found, plain)
    assert len(lines_of(several)) == 2


@pytest.mark.parametrize("cut", [0, 3, 9, 14, 20, 40])
def test_damaged_geometries_are_refused(cut: int) -> None:
    line = nuplan_files.geometry(2, [(0, 0), (1, 0)])
    with pytest.raises(ValueError, match="geometry"):
        lines_of(line[:cut])
