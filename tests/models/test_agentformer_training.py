"""AgentFormer through `train`, its second stage from the first one's checkpoint, and what is done with both afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.scenes import make_scene
from test_agentformer import TINY
from test_ddp import run as run_processes
from test_training import recipe, weights

from trajformer.data.augment import AugmentConfig
from trajformer.data.batch import SceneBatch, collate
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate, load_predictor, track_forecasts
from trajformer.models import AgentFormerConfig, AgentFormerSamplerConfig, ModelConfig
from trajformer.models.agentformer.model import RoadConfig
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.check import check_recipe
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.run import train

CVAE = replace(TINY, samples=6, hidden=())
TURNED = AugmentConfig(flip=0.0, rotate=math.pi, agent_dropout=0.0, history_mask=0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes to train on, of which one has a single agent, and two to validate on."""
    root = tmp_path_factory.mktemp("store")
    for split, sizes in (("train", (4, 5, 1, 3)), ("val", (4, 2))):
        scenes = [make_scene(size, 8, 6, num_scored=min(size - 1, 2), seed=seed) for seed, size in enumerate(sizes)]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def first_recipe(store: Path, cvae: AgentFormerConfig = CVAE) -> TrainConfig:
    """Two steps of the first stage."""
    return recipe(store, model=ModelConfig(agentformer=cvae), augment=TURNED, trainer={"epochs": 1})


def second_recipe(store: Path, first_stage: Path, cvae: AgentFormerConfig = CVAE) -> TrainConfig:
    """Two steps of the second one."""
    sampler = ModelConfig(agentformer_sampler=AgentFormerSamplerConfig(cvae, hidden=(8, 8)))
    return replace(first_recipe(store), model=sampler, first_stage=str(first_stage))


@pytest.fixture(scope="module")
def stages(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of both runs, of a model that knows lanes."""
    folder, cvae = tmp_path_factory.mktemp("runs"), replace(CVAE, road=RoadConfig(60.0, 8, 8))
    train(first_recipe(store, cvae), TASK, folder / "first", progress=False)
    train(second_recipe(store, folder / "first" / "last.ckpt", cvae), TASK, folder / "second", progress=False)
    return folder / "first", folder / "second"


def logged(run: Path) -> dict[str, list[float]]:
    """The terms of every step."""
    table = pd.read_csv(run / "csv" / "metrics.csv")
    return {name[6:]: table[name].dropna().tolist() for name in table if name.startswith("train/")}


def test_each_stage_logs_the_terms_of_its_loss(stages: tuple[Path, Path]) -> None:
    expected = {"reconstruction", "divergence", "best", "loss"}, {"best", "divergence", "diversity", "loss"}
    for run, names, free in zip(stages, expected, (2.0, 10.0), strict=True):
        terms = logged(run)
        assert terms.keys() >= names and all(len(terms[name]) == 2 and np.isfinite(terms[name]).all() for name in names)
        assert min(terms["divergence"]) >= free
    first, second = (logged(run) for run in stages)
    assert first["loss"] == pytest.approx(
        [sum(step) for step in zip(*(first[name] for name in expected[0] - {"loss"}), strict=True)]
    )
    parts = zip(second["best"], second["divergence"], second["diversity"], strict=True)
    assert second["loss"] == pytest.approx([5 * best + 0.1 * far + 20 * near for best, far, near in parts])


def test_the_second_stage_keeps_the_first_as_it_was(stages: tuple[Path, Path]) -> None:
    first, second = (weights(run) for run in stages)
    inner = {name.replace("model.cvae.", "model."): value for name, value in second.items() if name.startswith("model.cvae.")}
    assert inner.keys() == first.keys() and all(torch.equal(inner[name], value) for name, value in first.items())
    torch.manual_seed(0)
    untrained = load_checkpoint(stages[1] / "last.ckpt", TrainConfig)[1].build_model().state_dict()
    moved = [
        name for name in untrained if not name.startswith("cvae.") and not torch.equal(untrained[name], second[f"model.{name}"])
    ]
    assert len(moved) == 8


@pytest.mark.parametrize("stage", [0, 1])
def test_a_checkpoint_scores_predicts_and_says_the_same_again(stages: tuple[Path, Path], store: Path, stage: int) -> None:
    scenes = SceneStore(store, "val")
    runs = [load_predictor(stages[stage] / name, torch.device("cpu")) for name in ("best.ckpt", "last.ckpt")]
    results = [evaluate(predictor, scenes, batch_size=size, progress=False) for size, predictor in enumerate(runs, 1)]
    table = pd.read_csv(stages[stage] / "csv" / "metrics.csv")
    assert results[0]["minFDE_6"] == pytest.approx(table["val/minFDE_6"].dropna().iloc[-1], abs=1e-4)
    assert results[1] == pytest.approx(results[0], abs=1e-4)
    assert results[0]["minFDE_6"] < results[0]["minFDE_1"]
    tracks = list(track_forecasts(runs[0], scenes, progress=False))
    assert len(tracks) == results[0]["num_agents"] == 5
    for track in tracks:
        assert track.position.shape == (6, 6, 2) and track.probability.sum() == pytest.approx(1.0)
        assert np.isfinite(track.position).all()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder, store: folder / "nothing.ckpt", "nothing.ckpt: no such checkpoint"),
        (
            lambda folder, store: trained(store, folder, replace(CVAE, scale_m=1.0)),
            "is no AgentFormer as model.agentformer_sampler",
        ),
    ],
)
def test_a_first_stage_that_does_not_fit_is_refused(
    store: Path, tmp_path: Path, change: Callable[[Path, Path], Path], expected: str
) -> None:
    path = change(tmp_path, store)
    with pytest.raises(TrajformerError) as error:
        train(second_recipe(store, path), TASK, tmp_path / "second", progress=False)
    assert str(error.value).startswith(f"first_stage: {path}: ") and expected in str(error.value)
    assert not (tmp_path / "second").exists()


def trained(store: Path, folder: Path, cvae: AgentFormerConfig) -> Path:
    """A checkpoint of a first stage."""
    return train(first_recipe(store, cvae), TASK, folder / "first", progress=False)


def test_a_first_stage_is_given_to_second_stages_alone(store: Path) -> None:
    for config in (replace(first_recipe(store), first_stage="x.ckpt"), replace(second_recipe(store, Path("x")), first_stage="")):
        with pytest.raises(
            TrajformerError, match=r"first_stage: give a checkpoint for model\.agentformer_sampler, and for no other"
        ):
            check_recipe(config)


def test_scenes_are_turned_before_the_loss_sees_them(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scene by its own angle about one point, past and future alike; another one in another step."""
    module, batch = ForecastingModule(first_recipe(store)), collate([make_scene(4, 8, 6), make_scene(3, 8, 6, seed=1)])
    seen: list[SceneBatch] = []
    monkeypatch.setattr(module, "loss", lambda turned: (seen.append(turned), {"loss": torch.zeros(())})[1])
    monkeypatch.setattr(module, "log_terms", lambda terms, count: terms["loss"])
    for step in range(2):
        monkeypatch.setattr(ForecastingModule, "global_step", property(lambda self, step=step: step))
        module.training_step(batch, step)
    angles = set()
    for turned in seen:
        for b in range(2):
            before = torch.cat([batch.position[b][batch.valid[b]], batch.target[b][batch.target_valid[b]]])
            after = torch.cat([turned.position[b][turned.valid[b]], turned.target[b][turned.target_valid[b]]])
            angle = torch.atan2(after[0, 1], after[0, 0]) - torch.atan2(before[0, 1], before[0, 0])
            c, s = angle.cos(), angle.sin()
            expected = before @ torch.stack([torch.stack([c, s]), torch.stack([-s, c])])
            torch.testing.assert_close(after, expected, atol=1e-3, rtol=1e-4)
            angles.add(round(angle.item(), 3))
    assert len(angles) == 4 and 0.0 not in angles


def test_two_processes_train_on_lonely_agents(tmp_path: Path) -> None:
    """Such batches leave the first score term without a gradient, which must not stop processes that share theirs."""
    for split in ("train", "val"):
        scenes = [make_scene(1, 8, 6, num_scored=0, seed=seed) for seed in range(4)]
        write_shard(shard_path(tmp_path / "store", split, 0), scenes, ShardInfo("synthetic", split))
    config = first_recipe(tmp_path / "store")
    config = replace(config, data=replace(config.data, batch_size=1), trainer=replace(config.trainer, devices=2))
    done, notes = run_processes(config, tmp_path / "run")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(notes) == 4 and (tmp_path / "run" / "best.ckpt").is_file()
