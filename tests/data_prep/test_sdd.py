"""The reader of Stanford Drone: both layouts, pixels, and the counts of the published split."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.raw_folders import FOLDERS
from support.scenes import assert_near, in_city

from data_prep.readers.sdd import Sdd, read_tracks
from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind, AgentRole


def test_both_layouts_give_the_same_scene(tmp_path: Path) -> None:
    reader = FOLDERS["sdd"](tmp_path)
    scenes = []
    for item in reader.inputs(tmp_path, "train"):
        scenes.append(reader.read(item, "train", tmp_path).validate())
    packed, text = scenes
    assert (packed.scene_id, text.scene_id, text.city) == ("train-7", "gates_0-0", "gates_0")
    step = np.arange(20)
    for scene in scenes:
        assert (scene.unit, scene.period_s) == ("px", 0.4)
        assert (scene.num_history, scene.num_future) == (8, 12)
        assert scene.agent_id == ("0", "1")
        assert scene.valid.all()
        assert (scene.agent_role == AgentRole.SCORED).all()
        assert (scene.agent_kind == AgentKind.PEDESTRIAN).all()
        x, y = np.moveaxis(in_city(scene), -1, 0)
        assert_near(x, [9.5 * step, 9.5 * step + 40], 1e-4)
        assert_near(y, [[100] * 20, [97] * 20], 1e-4)
        assert_near(scene.velocity[..., 0], 9.5 / 0.4, 1e-4)
        assert_near(scene.velocity[..., 1], 0.0, 1e-4)
        assert not scene.heading.any()
        assert not scene.num_polylines


def test_real_counts_and_positions(real_data: Path) -> None:
    reader = Sdd()
    raw = real_data / "sdd"
    frame = pd.read_parquet(raw / "sdd.parquet")
    tracks = read_tracks(raw / "sdd.parquet")
    for split, expected in (("train", 8_985), ("test", 2_829)):
        rows = frame[frame.split == split]
        items = reader.inputs(raw, split)
        assert len(items) == reader.published[split] == rows.scene.nunique()
        chosen = tracks.split == tracks.splits.index(split)
        tracks_of_scenes = tracks.scene[chosen] * 1_000 + tracks.agent[chosen]
        _, steps = np.unique(tracks_of_scenes, return_counts=True)
        assert len(steps) == expected
        assert (steps == 20).all()  # a track with all steps is scored
        for item in items[::150]:
            scene = reader.read(item, split, raw).validate()
            part = rows[rows.scene == int(item.part)].sort_values(["agent", "step"])
            assert (scene.agent_role == AgentRole.SCORED).all()
            assert scene.unit == "px"
            assert scene.agent_id == tuple(part.agent.drop_duplicates().astype(str))
            assert_near(in_city(scene).reshape(-1, 2), part[["x", "y"]], 1e-3)


def test_a_validation_part_is_cut_from_the_training_part(real_data: Path) -> None:
    reader = Sdd(val_scenes=600)
    raw = real_data / "sdd"
    assert reader.splits(raw) == ["test", "train", "val"]
    train = [int(item.part) for item in reader.inputs(raw, "train")]
    val = [int(item.part) for item in reader.inputs(raw, "val")]
    assert len(val) == 600
    assert max(train) < min(val)
    assert train + val == [int(item.part) for item in Sdd().inputs(raw, "train")]
    scene = reader.read(reader.inputs(raw, "val")[0], "val", raw).validate()
    assert (scene.scene_id, scene.split) == (f"val-{val[0]}", "val")


def test_a_file_that_ends_its_process_is_one_unusable_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = FOLDERS["sdd"](tmp_path / "raw")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    packed, text = reader.inputs(tmp_path / "raw", "train")
    assert reader.splits(tmp_path / "raw") == ["annotations", "test", "train"]
    assert (packed.part, text.part) == ("", "0")
    message = r"parquet: not a readable parquet file: it ends the process .*; download it again"
    with pytest.raises(SceneError, match=message):
        reader.read(packed, "train", tmp_path / "raw")


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_of_a_text_file(tmp_path: Path, stride: int) -> None:
    rows = [f"{6 * frame} 5 {3.0 * frame} 4.0" for frame in range(27)]
    rows += [f"{6 * frame} 6 0.0 {frame}" for frame in range(9, 12)]
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "little_1.txt").write_text("\n".join(rows))
    reader = Sdd(stride=stride)
    assert reader.splits(tmp_path) == ["test"]
    items = reader.inputs(tmp_path, "test")
    assert [int(item.part) for item in items] == list(range(0, 48, 6 * stride))
    scene = reader.read(items[-1], "test", tmp_path).validate()
    assert scene.agent_id == ("5", "6")
    assert scene.agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT]
    assert scene.valid.sum(1).tolist() == [20, 3]


def test_raw_annotations_are_boxes_with_types(tmp_path: Path) -> None:
    """Lost rows and frames between two steps have no position."""
    path = tmp_path / "annotations" / "gates" / "video0" / "annotations.txt"
    path.parent.mkdir(parents=True)
    lines = []
    for frame in range(0, 12 * 20, 4):
        lines.append(f'3 {frame} 10 {frame + 20} 30 {frame} 0 0 0 "Biker"')
        lines.append(f'4 0 0 20 40 {frame} {int(frame < 60)} 0 1 "Pedestrian"')
    path.write_text("\n".join(lines))
    reader = Sdd()
    assert reader.splits(tmp_path) == ["annotations"]
    [item] = reader.inputs(tmp_path, "annotations")
    scene = reader.read(item, "annotations", tmp_path).validate()
    assert (scene.unit, scene.city, scene.num_steps) == ("px", "gates_video0", 20)
    assert scene.agent_id == ("3", "4")
    assert scene.agent_kind.tolist() == [AgentKind.CYCLIST, AgentKind.PEDESTRIAN]
    assert scene.valid.sum(1).tolist() == [20, 15]
    np.testing.assert_allclose(scene.position[0, 0] + scene.origin, [10, 20])
    np.testing.assert_allclose(np.diff(scene.position[0], axis=0), [[12, 0]] * 19, atol=1e-4)
