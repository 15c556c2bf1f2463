"""Both stages of AgentFormer through `train`: logged losses, weights of the first stage, evaluation of checkpoints."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.agentformer import ROAD, TINY
from support.scenes import make_scene
from support.training import logged, recipe, weights

from trajformer.data.augment import AugmentConfig
from trajformer.errors import TrajformerError
from trajformer.models.agentformer.model import AgentFormerSamplerConfig
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

CVAE = replace(TINY, samples=6, hidden=(), road=ROAD)
ROTATED = AugmentConfig(flip=0.0, rotate=math.pi, agent_dropout=0.0, history_mask=0.0)
TERMS = {"first": ("reconstruction", "divergence", "best"), "second": ("best", "divergence", "diversity")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes with these numbers of agents."""
    root = tmp_path_factory.mktemp("store")
    for split, sizes in (("train", (4, 5, 1, 3)), ("val", (4, 2))):
        scenes = [make_scene(size, 8, 6, num_scored=min(size - 1, 2), seed=seed) for seed, size in enumerate(sizes)]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def first_recipe(store: Path) -> TrainConfig:
    return recipe(store, model=CVAE, augment=ROTATED, trainer={"epochs": 1})


def second_recipe(store: Path, first_stage: Path | str) -> TrainConfig:
    return replace(first_recipe(store), model=AgentFormerSamplerConfig(CVAE, hidden=(8, 8)), first_stage=str(first_stage))


@pytest.fixture(scope="module")
def stages(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a run of each stage, of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    train(first_recipe(store), TASK, folder / "first", progress=False)
    train(second_recipe(store, folder / "first" / "last.ckpt"), TASK, folder / "second", progress=False)
    return {"first": folder / "first", "second": folder / "second"}


@pytest.mark.parametrize(("stage", "factors", "bound"), [("first", (1, 1, 1), 2.0), ("second", (5, 0.1, 20), 10.0)], ids=TERMS)
def test_each_stage_logs_the_terms_of_its_loss(stages: dict[str, Path], stage: str, factors: Any, bound: float) -> None:
    table = logged(stages[stage])
    terms = {name: table[f"train/{name}"].dropna().to_numpy() for name in (*TERMS[stage], "loss")}
    assert all(len(value) == 2 and np.isfinite(value).all() for value in terms.values())
    assert terms["divergence"].min() >= bound
    total = sum(factor * terms[name] for factor, name in zip(factors, TERMS[stage], strict=True))
    np.testing.assert_allclose(terms["loss"], total, rtol=1e-5)


def test_the_second_stage_keeps_the_first_one(stages: dict[str, Path]) -> None:
    first, second = weights(stages["first"]), weights(stages["second"])
    kept = {name.replace("model.cvae.", "model."): value for name, value in second.items() if name.startswith("model.cvae.")}
    assert kept.keys() == first.keys() and all(torch.equal(kept[name], value) for name, value in first.items())
    torch.manual_seed(0)
    initial = load_checkpoint(stages["second"] / "last.ckpt")[1].build_model().state_dict()
    names = [name for name in initial if not name.startswith("cvae.")]
    assert len(names) == 8 and not any(torch.equal(initial[name], second[f"model.{name}"]) for name in names)


def test_a_missing_first_stage_or_one_of_other_sizes_is_an_error(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ckpt"
    config = replace(first_recipe(store), model=replace(CVAE, scale_m=1.0))
    write_checkpoint(other, config, config.build_model().state_dict())
    message = rf"first_stage: {other}: is no AgentFormer as model\.agentformer_sampler\.cvae describes it"
    missing = tmp_path / "nothing.ckpt"
    for path, error in ((missing, f"first_stage: {missing}: no such checkpoint"), (other, message)):
        with pytest.raises(TrajformerError, match=error):
            train(second_recipe(store, path), TASK, tmp_path / "second", progress=False)
        assert not (tmp_path / "second").exists()


def test_only_the_second_stage_needs_a_first_stage(store: Path) -> None:
    with pytest.raises(TrajformerError, match="first_stage: given, but AgentFormer has none"):
        replace(first_recipe(store), first_stage="x.ckpt").check()
    with pytest.raises(TrajformerError, match="first_stage: none, but AgentFormerSampler needs a checkpoint"):
        second_recipe(store, "").check()
