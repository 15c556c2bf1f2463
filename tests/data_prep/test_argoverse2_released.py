"""The released futures of the Argoverse 2 test split, and scenes of a raw folder by index."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import fixtures
from support.released import write_released

from data_prep.raw_scenes import scenes_of_raw
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.readers.argoverse2.released import FILES
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import AgentRole, Scene

Change = Callable[[pa.Table], pa.Table]
FOCAL_FILE = FILES[0]


def released(folder: Path) -> Path:
    """The released layout of one generated scenario."""
    scenario = fixtures.write_argoverse2(folder / "complete")
    return write_released(folder / "raw", [scenario])


def only_scene(raw: Path, split: str = "test") -> Scene:
    scenes = scenes_of_raw(Argoverse2(), raw, split)
    assert len(scenes) == 1
    return scenes[0]


def role_of(scene: Scene, track_id: str) -> AgentRole:
    return AgentRole(scene.agent_role[scene.agent_id.index(track_id)])


def check_future(scene: Scene, recorded: Scene, tracks: list[str]) -> None:
    """Check that these tracks have the future of the recording, and no other track has one."""
    assert scene.num_steps == recorded.num_steps
    history = scene.num_history
    for track_id in recorded.agent_id:
        if track_id not in scene.agent_id:  # never observed
            continue
        agent = scene.agent_id.index(track_id)
        other = recorded.agent_id.index(track_id)
        if track_id not in tracks:
            assert not scene.valid[agent, history:].any()
            continue
        np.testing.assert_array_equal(scene.valid[agent], recorded.valid[other])
        np.testing.assert_array_equal(scene.position[agent], recorded.position[other])


def test_test_scenes_have_the_released_future(tmp_path: Path) -> None:
    raw = released(tmp_path)
    scene = only_scene(raw)
    recorded = only_scene(tmp_path / "complete", "val")
    check_future(scene, recorded, ["9", "10"])
    assert role_of(scene, "9") == AgentRole.FOCAL
    assert role_of(scene, "10") == AgentRole.SCORED
    focal = scene.agent_id.index("9")
    np.testing.assert_allclose(scene.velocity[focal, 50:, 0], 5.0, atol=1e-3)
    np.testing.assert_allclose(scene.heading[focal, 50:], 0.0, atol=1e-3)


def test_without_tables_test_scenes_have_no_future(tmp_path: Path) -> None:
    raw = released(tmp_path)
    for name in FILES:
        (raw / name).unlink()
    assert only_scene(raw).num_steps == 50


def test_annotated_tracks_are_scored(tmp_path: Path) -> None:
    """The tables decide which tracks are scored, not the categories of the scenarios."""
    raw = released(tmp_path)
    path = raw / FILES[1]
    rows = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist([*rows, rows[0] | {"track_id": "b"}]), path)
    assert role_of(only_scene(raw), "b") == AgentRole.SCORED


def test_a_changed_table_makes_other_inputs(tmp_path: Path) -> None:
    raw = released(tmp_path)
    before = Argoverse2().inputs(raw, "test")
    assert before == Argoverse2().inputs(raw, "test")
    (raw / FOCAL_FILE).unlink()
    assert before != Argoverse2().inputs(raw, "test")
    assert Argoverse2().belongs(raw, raw / FOCAL_FILE)


def shortened(table: pa.Table) -> pa.Table:
    column = pa.array([[1.0] * 59] * len(table))
    index = table.schema.get_field_index("gt_trajectory_x")
    return table.set_column(index, "gt_trajectory_x", column)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["is_focal_track"]), "is_focal_track: no such column"),
        (shortened, "gt_trajectory_x: lists of 59 to 59 values, expected 60"),
        (
            lambda table: table.set_column(1, "track_id", pa.array([1.5] * len(table))),
            "track_id: type double, expected text",
        ),
    ],
)
def test_an_unusable_table_is_an_error_of_the_scene(
    tmp_path: Path, change: Change, message: str
) -> None:
    raw = released(tmp_path)
    path = raw / FOCAL_FILE
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(SceneError, match=message):
        only_scene(raw)
    path.write_bytes(b"cut short")
    with pytest.raises(SceneError, match=r"not a readable parquet file.*download it again"):
        only_scene(raw)


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    raw = released(tmp_path)
    with pytest.raises(TrajformerError, match="no split 'val' of argoverse2; it has test"):
        scenes_of_raw(Argoverse2(), raw, "val")
    with pytest.raises(TrajformerError, match="no such folder; expected RAW/<split>"):
        scenes_of_raw(Argoverse2(), tmp_path / "nothing", "val")


def test_raw_scenes_keep_warnings(tmp_path: Path) -> None:
    columns = fixtures.argoverse2_columns()
    columns["object_type"][columns["track_id"] == "a"] = "hovercraft"
    fixtures.write_argoverse2(tmp_path, columns)
    scenes = scenes_of_raw(Argoverse2(), tmp_path, "val")
    assert scenes[0].num_steps == 110
    [warning] = scenes.warnings
    assert "unknown value 'hovercraft'" in warning


def test_real_scenarios_keep_their_future(real_data: Path, tmp_path: Path) -> None:
    source = real_data / "argoverse2"
    scenarios = sorted((source / "val").glob("*/scenario_*.parquet"))
    raw = write_released(tmp_path / "raw", scenarios)
    recorded = scenes_of_raw(Argoverse2(), source, "val")
    scenes = scenes_of_raw(Argoverse2(), raw, "test")
    assert len(scenes) == len(recorded) == 3
    for index in range(3):
        scene = recorded[index]
        is_scored = scene.agent_role >= int(AgentRole.SCORED)
        tracks = [scene.agent_id[agent] for agent in np.flatnonzero(is_scored)]
        check_future(scenes[index], scene, tracks)
