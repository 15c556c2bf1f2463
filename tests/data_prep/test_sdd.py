"""The reader of Stanford Drone: both layouts, pixels, and the counts of the published split."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.raw_folders import FOLDERS

from data_prep.readers.sdd import Sdd, read_tracks
from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind, AgentRole


def test_both_layouts_give_the_same_scene(tmp_path: Path) -> None:
    reader = FOLDERS["sdd"](tmp_path)
    packed, text = (
        reader.read(item, "train", tmp_path).validate() for item in reader.inputs(tmp_path, "train")
    )
    assert (packed.scene_id, text.scene_id, text.city) == ("train-7", "gates_0-0", "gates_0")
    for scene in (packed, text):
        assert (scene.unit, scene.period_s, scene.num_history, scene.num_future) == (
            "px",
            0.4,
            8,
            12,
        )
        assert scene.agent_id == ("0", "1") and scene.valid.all()
        assert (scene.agent_role == AgentRole.SCORED).all() and (
            scene.agent_kind == AgentKind.PEDESTRIAN
        ).all()
        expected = [
            [(9.5 * step + 40 * agent, 100 - 3 * agent) for step in range(20)] for agent in range(2)
        ]
        np.testing.assert_allclose(scene.position + scene.origin, expected, atol=1e-4)
        np.testing.assert_allclose(
            scene.velocity, np.broadcast_to((9.5 / 0.4, 0.0), scene.velocity.shape), atol=1e-4
        )
        assert not scene.heading.any() and not scene.num_polylines


def test_real_counts_and_positions(real_data: Path) -> None:
    reader, raw = Sdd(), real_data / "sdd"
    frame = pd.read_parquet(raw / "sdd.parquet")
    tracks = read_tracks(raw / "sdd.parquet")
    for split, expected in (("train", 8_985), ("test", 2_829)):
        rows = frame[frame.split == split]
        items = reader.inputs(raw, split)
        assert len(items) == reader.published[split] == rows.scene.nunique()
        chosen = tracks.split == tracks.splits.index(split)
        pairs, steps = np.unique(
            tracks.scene[chosen] * 1_000 + tracks.agent[chosen], return_counts=True
        )
        assert len(pairs) == expected and (steps == 20).all()  # a track with all steps is scored
        for item in items[::150]:
            scene = reader.read(item, split, raw).validate()
            part = rows[rows.scene == int(item.part)].sort_values(["agent", "step"])
            assert (scene.agent_role == AgentRole.SCORED).all() and scene.unit == "px"
            assert scene.agent_id == tuple(part.agent.drop_duplicates().astype(str))
            np.testing.assert_allclose(
                (scene.position + scene.origin).reshape(-1, 2), part[["x", "y"]], atol=1e-3
            )


def test_a_validation_part_is_cut_from_the_training_part(real_data: Path) -> None:
    reader, raw = Sdd(val_scenes=600), real_data / "sdd"
    assert reader.splits(raw) == ["test", "train", "val"]
    train, val = (
        [int(item.part) for item in reader.inputs(raw, split)] for split in ("train", "val")
    )
    assert len(val) == 600 and max(train) < min(val)
    assert train + val == [int(item.part) for item in Sdd().inputs(raw, "train")]
    scene = reader.read(reader.inputs(raw, "val")[0], "val", raw).validate()
    assert (scene.scene_id, scene.split) == (f"val-{val[0]}", "val")


def test_a_file_that_ends_its_process_is_one_unusable_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, python = FOLDERS["sdd"](tmp_path / "raw"), tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    packed, text = reader.inputs(tmp_path / "raw", "train")
    assert reader.splits(tmp_path / "raw") == ["test", "train"] and (packed.part, text.part) == (
        "",
        "0",
    )
    with pytest.raises(
        SceneError,
        match=r"parquet: not a readable parquet file: it ends the process .*; download it again",
    ):
        reader.read(packed, "train", tmp_path / "raw")


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_of_a_text_file(tmp_path: Path, stride: int) -> None:
    rows = [f"{6 * frame} 5 {3.0 * frame} 4.0" for frame in range(27)] + [
        f"{6 * frame} 6 0.0 {frame}" for frame in range(9, 12)
    ]
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "little_1.txt").write_text("\n".join(rows))
    reader = Sdd(stride=stride)
    assert reader.splits(tmp_path) == ["test"]
    items = reader.inputs(tmp_path, "test")
    assert [int(item.part) for item in items] == list(range(0, 48, 6 * stride))
    scene = reader.read(items[-1], "test", tmp_path).validate()
    assert dict(zip(scene.agent_id, scene.agent_role.tolist(), strict=True)) == {
        "5": AgentRole.SCORED,
        "6": AgentRole.CONTEXT,
    }
    assert scene.valid.sum(1).tolist() == [20, 3]
