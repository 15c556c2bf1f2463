"""One unit of lengths from the store to the model: pixels and metres are never mixed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cli import run
from support.scenes import make_scene
from support.training import recipe

from trajformer.data.batch import collate
from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.recipes.checkpoint import describe
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


def pixels(seed: int = 0) -> Scene:
    return replace(make_scene(5, seed=seed), unit="px").validate()


def store(root: Path, *scenes: Scene) -> Path:
    for split in ("train", "val"):
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    write_shard(
        shard_path(root, "val", 1), [], ShardInfo("synthetic", "val")
    )  # all inputs skipped: no unit
    write_manifest(root)
    return root


def test_a_shard_records_the_unit_of_its_scenes(tmp_path: Path) -> None:
    scenes = SceneStore(store(tmp_path / "s", pixels()), "val")
    assert scenes.unit == "px"
    assert scenes_equal(scenes[0], pixels())
    assert not scenes_equal(scenes[0], make_scene(5))
    with pytest.raises(
        StoreError, match=r"scenes in m and in px: all scenes of a split must have one unit"
    ):
        write_shard(
            tmp_path / "mixed.arrow",
            [pixels(), make_scene(5, seed=1)],
            ShardInfo("synthetic", "val"),
        )
    with pytest.raises(SceneError, match="unit: 'feet', expected one of m, px"):
        replace(pixels(), unit="feet").validate()


def test_scenes_of_different_units_are_not_joined(
    tmp_path: Path, fails: Callable[..., str]
) -> None:
    with pytest.raises(SceneError, match=r"period, H, F and unit .* differ"):
        collate([make_scene(5), pixels()])
    stores = store(tmp_path / "a", make_scene(5)), store(tmp_path / "b", pixels(1))
    line = fails("store", "merge", *stores, "--out", tmp_path / "c")
    assert "stores of different units cannot be merged" in line
    assert "has lengths in m, " in line
    assert line.endswith("in px\n")
    assert not (tmp_path / "c").exists()
    assert run("store", "merge", stores[1], "--out", tmp_path / "c") == 0


@pytest.mark.parametrize(("trained", "other"), [("m", "px"), ("px", "m")])
def test_a_model_refuses_the_other_unit(
    tmp_path: Path, fails: Callable[..., str], trained: str, other: str
) -> None:
    scenes = {"m": make_scene(5), "px": pixels()}
    stores = {unit: store(tmp_path / unit, scene) for unit, scene in scenes.items()}
    model = tmp_path / "model.ckpt"
    properties = describe(TrainConfig(ConstantVelocityConfig(modes=6)), DataSpec(unit=trained))
    torch.save({"trajformer": properties, "state_dict": {}}, model)
    assert run("evaluate", "--checkpoint", model, "--store", stores[trained]) == 0
    reason = f"unit {other}, but the training scenes have {trained}"
    hint = f"use data in {trained}, or a model for {other}"
    assert f"{reason}; {hint}" in fails("evaluate", "--checkpoint", model, "--store", stores[other])
    assert run("evaluate", "--model", "constant_velocity", "--store", stores[other]) == 0
    for config, scenes_of in (
        (recipe(stores[trained], data={"val": str(stores[other]), "unit": trained}), ""),
        (recipe(stores[other], data={"unit": other}, init=str(model)), " of .*model.ckpt"),
    ):
        with pytest.raises(
            TrajformerError,
            match=f"unit {other}, but the training scenes{scenes_of} have {trained}",
        ):
            train(config, TASK, tmp_path / "run", progress=False)
    with pytest.raises(
        TrajformerError,
        match=rf"data.unit: {trained}, but .*/{other} is in {other}; use a recipe for {other}",
    ):
        train(recipe(stores[other], data={"unit": trained}), TASK, tmp_path / "run", progress=False)


def test_output_names_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = store(tmp_path / "s", pixels())
    assert run("store", "info", raw) == 0
    assert run("evaluate", "--model", "constant_velocity", "--store", raw) == 0
    assert capsys.readouterr().out.count("lengths in px") == 3  # two splits and the metrics
    scene = ("--split", "val", "--scene", pixels().scene_id)
    out = tmp_path / "s.json"
    assert run("store", "export-scene", raw, *scene, "--out", out) == 0
    assert json.loads(out.read_text())["unit"] == "px"
