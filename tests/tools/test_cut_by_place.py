"""Training scenes that are held out by place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from research.cut_by_place import cut

from trajformer.errors import TrajformerError
from trajformer.scenes.manifest import verify_store
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore
from trajformer.testing.scenes import example_scenes


@pytest.fixture
def scenes() -> list[Scene]:
    """Two scenes, 1 m apart, every 50 m: 40 scenes in ten squares of 100 m."""
    (scene,) = example_scenes((9,), 20, 30)
    scenes = []
    for number in range(20):
        for part in (0, 1):
            origin = np.array([50.0 * number + part, 10.0])
            scenes.append(replace(scene, scene_id=f"{number}-{part}", origin=origin))
    return scenes


@pytest.fixture
def store(scenes: list[Scene], tmp_path: Path) -> Path:
    path = tmp_path / "all"
    write_shard(shard_path(path, "train", 0), scenes, ShardInfo("synthetic", "train"))
    return path


def squares(scenes: list[Scene]) -> set[int]:
    return {int(scene.origin[0] // 100) for scene in scenes}


def ids(scenes: list[Scene]) -> list[str]:
    return sorted(scene.scene_id for scene in scenes)


def test_scenes_of_a_square_stay_together(store: Path, scenes: list[Scene], tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    assert cut(store, parts, side_m=100.0) == {"train": 20, "val": 20}
    train = list(SceneStore(parts, "train"))
    val = list(SceneStore(parts, "val"))
    assert not squares(train) & squares(val)
    assert len(squares(train + val)) == 10
    assert ids(train + val) == ids(scenes)
    assert verify_store(parts, lambda paths, total: paths) == []


def test_a_model_knows_the_part_it_was_trained_on(store: Path, tmp_path: Path) -> None:
    cut(store, tmp_path / "parts", side_m=100.0)
    first, second, *_ = SceneStore(tmp_path / "parts", "train")
    held_out = SceneStore(tmp_path / "parts", "val")[0]
    trained_on_part = DataSpec.of(first)
    assert trained_on_part.contains(second)
    assert not trained_on_part.contains(held_out)
    assert trained_on_part.contains(replace(held_out, split="train"))
    trained_on_all = replace(trained_on_part, split="train")
    assert trained_on_all.contains(held_out)


def test_refused_cuts(store: Path, tmp_path: Path) -> None:
    cut(store, tmp_path / "parts", side_m=100.0)
    with pytest.raises(TrajformerError, match="parts: is not empty"):
        cut(store, tmp_path / "parts", side_m=100.0)
    with pytest.raises(TrajformerError, match="one part"):
        cut(store, tmp_path / "one", side_m=1e6)


def test_another_split_and_other_squares(scenes: list[Scene], tmp_path: Path) -> None:
    path = tmp_path / "all"
    others = [replace(scene, split="val_official") for scene in scenes]
    write_shard(shard_path(path, "val_official", 0), others, ShardInfo("synthetic", "val_official"))
    held_out: list[str] = []
    for sixth in range(6):
        parts = tmp_path / f"parts{sixth}"
        try:
            cut(path, parts, side_m=100.0, split="val_official", sixths=[sixth])
        except TrajformerError as error:
            assert "one part" in str(error)
            continue
        held_out += ids(list(SceneStore(parts, "val")))
        assert SceneStore(parts, "val")[0].split == "val_official.val"
    assert sorted(held_out) == ids(scenes)
