"""The development part of a training split."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cut_by_place import cut

from trajformer.errors import TrajformerError
from trajformer.scenes.manifest import verify_store
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import example_scenes


def test_scenes_of_a_square_stay_together(tmp_path: Path) -> None:
    (scene,) = example_scenes((9,), 20, 30)
    places = [(x, part) for x in range(20) for part in (0, 1)]
    scenes = [
        replace(scene, scene_id=f"{x}-{part}", origin=np.array([50.0 * x + part, 10.0]))
        for x, part in places
    ]
    write_shard(shard_path(tmp_path / "all", "train", 0), scenes, ShardInfo("synthetic", "train"))
    assert cut(tmp_path / "all", tmp_path / "parts", side_m=100.0) == {"train": 20, "val": 20}
    train, val = (list(SceneStore(tmp_path / "parts", split)) for split in ("train", "val"))
    squares = [{int(scene.origin[0] // 100) for scene in part} for part in (train, val)]
    assert not squares[0] & squares[1] and len(squares[0] | squares[1]) == 10
    trained_on_part, trained_on_all = (
        DataSpec.of(train[0]),
        replace(DataSpec.of(train[0]), split="train"),
    )
    assert trained_on_part.contains(train[1]) and not trained_on_part.contains(val[0])
    assert trained_on_all.contains(val[0]) and trained_on_part.contains(
        replace(val[0], split="train")
    )
    assert sorted(scene.scene_id for scene in train + val) == sorted(
        scene.scene_id for scene in scenes
    )
    assert verify_store(tmp_path / "parts", lambda paths, total: paths) == []
    with pytest.raises(TrajformerError, match="parts: is not empty"):
        cut(tmp_path / "all", tmp_path / "parts", side_m=100.0)
    with pytest.raises(TrajformerError, match="one part"):
        cut(tmp_path / "all", tmp_path / "one", side_m=1e6)
