"""Training and validation scenes are compared, and checkpoints have the properties of the training scenes."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.scenes import PERIOD_S, make_scene
from support.training import recipe

from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerWarning
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.scenes.scene import PolylineKind, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.training.forecasting import TASK, SceneData
from trajformer.training.run import train

SCENES = [make_scene(4, seed=seed) for seed in range(6)]


def scene_data(root: Path, train: list[Scene], val: list[Scene], **config: object) -> SceneData:
    for split, scenes in (("train", train), ("val", val)):
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return SceneData(replace(recipe(root).data, **config))  # type: ignore[arg-type]


def test_scenes_in_both_splits_are_counted(tmp_path: Path) -> None:
    same_id = replace(SCENES[1], origin=SCENES[1].origin + 100.0)  # data sets count sequences in each split
    warning = "2 of 4 validation scenes are also training scenes"
    with pytest.warns(TrajformerWarning, match=warning):
        data = scene_data(tmp_path / "a", SCENES[:4], [same_id, *SCENES[2:5]])
    assert data.spec == DataSpec("synthetic", "train", "m", PERIOD_S, 10, 12, True)
    with pytest.warns(TrajformerWarning, match="1 of 2 validation scenes are also"):
        scene_data(tmp_path / "b", SCENES[:4], SCENES[2:4], limit_train=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrajformerWarning)
        scene_data(tmp_path / "c", SCENES[:4], [same_id, *SCENES[4:]])
        scene_data(tmp_path / "d", SCENES[:4], SCENES[3:4], limit_train=3)


def test_branches_of_scenes_in_both_splits_are_counted(tmp_path: Path) -> None:
    branches = [replace(SCENES[n // 2], scene_id=f"{n // 2}.{n % 2}") for n in range(8)]
    with pytest.warns(TrajformerWarning, match="1 of 2 validation scenes are also"):
        scene_data(tmp_path, branches, branches[5:7], branches=True, limit_train=3)


def test_maps_of_road_lines_are_received_on_request_only(tmp_path: Path) -> None:
    drawn = [replace(scene, polyline_kind=np.full_like(scene.polyline_kind, PolylineKind.ROAD_LINE)) for scene in SCENES[:4]]
    with pytest.warns(TrajformerWarning, match="road edges and road lines only, which models receive with data.batch.road_lines"):
        data = scene_data(tmp_path, drawn[:2], drawn[2:])
    assert not data.spec.has_map and not data.train[[0]].observation.polyline_mask.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrajformerWarning)
        data = scene_data(tmp_path, drawn[:2], drawn[2:], batch=BatchConfig(road_lines=True))
    assert data.spec.has_map and data.train[[0]].observation.polyline_mask.all()


def test_a_run_keeps_the_properties_of_its_training_scenes(tmp_path: Path) -> None:
    config = replace(recipe(tmp_path), data=scene_data(tmp_path, SCENES[:2], SCENES[2:4]).config)
    config = replace(config, trainer=replace(config.trainer, epochs=1))
    train(config, TASK, tmp_path / "run", progress=False)
    expected = DataSpec("synthetic", "train", "m", PERIOD_S, 10, 12, True)
    for name in ("best.ckpt", "last.ckpt"):
        assert Predictor(load_checkpoint(tmp_path / "run" / name)[0]).trained_on == expected
