"""CommonRoad scenarios."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from support import drone_files

from data_prep.readers.commonroad import CommonRoad, read_scenario
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import EdgeKind, PolylineKind

READER = CommonRoad(**drone_files.SMALL, stride=100)
NAME = "ZAM_Test-1_1_T-1.xml"


def test_obstacles_and_lanelets(tmp_path: Path) -> None:
    path = tmp_path / "val" / NAME
    drone_files.write_commonroad(path)
    [item] = READER.inputs(tmp_path, "val")
    with collect_dropped() as dropped:
        scene = READER.read(item, "val", tmp_path)
    assert scene.agent_id == ("30", "31") and scene.valid.all()
    np.testing.assert_allclose(scene.velocity[:, 4], [[5, 0], [0, 0]])
    np.testing.assert_allclose(scene.position[0, 4] + scene.origin, [2, 0], atol=1e-5)
    np.testing.assert_allclose(scene.agent_size, [[4.5, 1.8]] * 2, rtol=1e-6)
    [cause] = dropped
    assert cause[1].startswith("dynamicObstacle: predicted as occupied areas")

    kinds = [PolylineKind.LANE_VEHICLE] * 2 + [PolylineKind.DRIVABLE_AREA] * 2
    assert scene.polyline_kind.tolist() == kinds
    first = scene.point[: scene.polyline_offset[1]] + scene.origin
    np.testing.assert_allclose(first[[0, -1]], [[0, 0], [40, 0]], atol=1e-5)
    links = zip(*scene.edge.tolist(), scene.edge_kind.tolist(), strict=True)
    assert set(links) == {(0, 1, EdgeKind.SUCCESSOR), (1, 0, EdgeKind.PREDECESSOR)}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('timeStepSize="0.1"', "", "timeStepSize: nan"),
        ("<commonRoad", "<!DOCTYPE a []><commonRoad", "a document type"),
        ("</commonRoad>", "", "not a CommonRoad scenario"),
        ("dynamicObstacle", "phantomObstacle", "at most|no agent|expected at least"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "val" / NAME
    drone_files.write_commonroad(path)
    path.write_text(path.read_text().replace(old, new))
    [item] = READER.inputs(tmp_path, "val")
    with pytest.raises(SceneError, match=f"{path}.*({problem})"):
        READER.read(item, "val", tmp_path)


def test_a_real_scenario(real_data: Path, tmp_path: Path) -> None:
    with tarfile.open(real_data / "others" / "commonroad_ngsim.tar.xz") as archive:
        archive.extract("USA_Peach-2_1_T-1.xml", tmp_path, filter="data")
    reader = CommonRoad()
    items = reader.inputs(tmp_path, "all")
    scene = reader.read(items[0], "all", tmp_path).validate()
    assert len(items) == 7
    assert (scene.polyline_kind == PolylineKind.LANE_VEHICLE).sum() == 75


@pytest.mark.parametrize(("number", "other", "rows"), [("30", "31", 1), ("31", "30", 12)])
def test_an_obstacle_without_id_is_counted(
    tmp_path: Path, number: str, other: str, rows: int
) -> None:
    """Its states do not become the states of the next obstacle."""
    path = tmp_path / NAME
    drone_files.write_commonroad(path)
    path.write_text(path.read_text().replace(f'Obstacle id="{number}"', "Obstacle"))
    with collect_dropped() as dropped:
        columns = read_scenario(path).columns
    assert columns.word["track_id"] == [other]
    assert len(columns.number["x"]) == rows
    assert any("Obstacle: 'id'" in cause for _, cause in dropped)
