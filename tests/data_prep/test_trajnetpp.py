"""TrajNet++ pedestrians."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from support import drone_files

from data_prep.readers.trajnetpp import Trajnetpp
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.geometry import GRID_M
from trajformer.scenes.scene import AgentRole

READER = Trajnetpp()


def test_the_primary_pedestrian_is_focal(tmp_path: Path) -> None:
    drone_files.write_trajnet(tmp_path / "train" / "hotel.ndjson")
    items = READER.inputs(tmp_path, "train")
    assert [item.part for item in items] == ["0", "1"]
    scene = READER.read(items[1], "train", tmp_path)
    assert (scene.num_history, scene.num_future, scene.period_s) == (9, 12, 0.4)
    assert scene.agent_id == ("3", "5")
    assert scene.agent_role.tolist() == [AgentRole.FOCAL, AgentRole.CONTEXT]
    assert not scene.valid[1, 4] and scene.valid[1].sum() == 20
    first = scene.position[0, 0] + scene.origin
    np.testing.assert_allclose(first, [0.4, 2.0], atol=GRID_M)
    np.testing.assert_allclose(scene.velocity[0, 8], [1, 0], atol=1e-5)


def test_other_frame_rates_are_a_split_of_their_own(tmp_path: Path) -> None:
    drone_files.write_trajnet(tmp_path / "hotel.ndjson")
    drone_files.write_trajnet(tmp_path / "wildtrack.ndjson", fps=2.0, interval=5)
    assert READER.splits(tmp_path) == ["all", "all_2hz"]
    [item, _] = READER.inputs(tmp_path, "all_2hz")
    scene = READER.read(item, "all_2hz", tmp_path)
    assert scene.period_s == 0.5
    np.testing.assert_allclose(scene.velocity[0, 8], [1, 0], atol=1e-5)


def test_an_incomplete_primary_pedestrian_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train" / "hotel.ndjson"
    drone_files.write_trajnet(path)
    path.write_text(path.read_text().replace('"p": 3, "s": 0', '"p": 5, "s": 0'))
    [item, _] = READER.inputs(tmp_path, "train")
    with pytest.raises(
        SceneError, match=r"hotel\.ndjson#0: p: pedestrian 5 is not in all 21 frames"
    ):
        READER.read(item, "train", tmp_path)


def test_a_scene_without_rows_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train" / "hotel.ndjson"
    drone_files.write_trajnet(path)
    path.write_text(path.read_text().replace('"s": 0, "e": 200', '"s": 9000, "e": 9200'))
    [item, _] = READER.inputs(tmp_path, "train")
    with pytest.raises(SceneError, match="no agent is present in its frames"):
        READER.read(item, "train", tmp_path)


def test_a_wrong_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "train" / "hotel.ndjson"
    drone_files.write_trajnet(path)
    path.write_text(path.read_text() + '{"track": {"f": 0, "p": 9, "x": NaN, "y": 1}}\n')
    with collect_dropped() as dropped:
        READER.read(READER.inputs(tmp_path, "train")[0], "train", tmp_path)
    assert dropped == {(path, "row: no scene and no track"): 1}


def test_real_files(real_data: Path, tmp_path: Path) -> None:
    """biwi_hotel and wildtrack: 229 scenes at 2.5 Hz and 1,101 at 2 Hz."""
    with tarfile.open(real_data / "trajnetpp" / "train.tar.xz") as archive:
        for name in ("biwi_hotel.ndjson", "wildtrack.ndjson"):
            archive.extract(name, tmp_path, filter="data")
    assert READER.splits(tmp_path) == ["all", "all_2hz"]
    items = READER.inputs(tmp_path, "all")
    assert (len(items), len(READER.inputs(tmp_path, "all_2hz"))) == (229, 1101)
    scene = READER.read(items[0], "all", tmp_path).validate()
    assert scene.agent_id[int((scene.agent_role == AgentRole.FOCAL).argmax())] == "24"
