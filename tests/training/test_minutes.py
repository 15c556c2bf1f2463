"""Trainings that end after a number of processor minutes."""

from itertools import count
from pathlib import Path

import pytest
import torch
from support.training import log_of, logged, recipe, training_store, weights

from trajformer.recipes.recipe import TrainConfig
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 11, 3)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the processor's clock is 0.1 s after the previous one."""
    readings = count()
    monkeypatch.setattr("trajformer.training.base.time.process_time", lambda: 0.1 * next(readings))


def timed(store: Path, minutes: float) -> TrainConfig:
    return recipe(store, trainer={"minutes": minutes, "epochs": 1}, optim={"muon_rate": 2e-3, "warmup": 0.1})


def seconds(out: Path) -> float:
    return float(torch.load(out / "last.ckpt", weights_only=True)["processor_seconds"])


def test_a_run_ends_with_a_validation_when_its_minutes_are_used(store: Path, tmp_path: Path) -> None:
    train(timed(store, 0.02), TASK, tmp_path, progress=False)
    assert 1.2 <= seconds(tmp_path) < 1.5
    assert log_of(tmp_path).index[-1] == logged(tmp_path)["step"].max()


def test_a_resumed_run_continues_to_count(store: Path, tmp_path: Path) -> None:
    train(timed(store, 0.01), TASK, tmp_path, progress=False)
    used, steps = seconds(tmp_path), weights(tmp_path, key="global_step")
    train(timed(store, used / 60), TASK, tmp_path, resume=True, progress=False)  # no time left
    assert weights(tmp_path, key="global_step") == steps
    train(timed(store, (used + 1.0) / 60), TASK, tmp_path, resume=True, progress=False)
    assert seconds(tmp_path) >= used + 1.0
    assert weights(tmp_path, key="global_step") > steps


def test_the_schedule_follows_the_time(store: Path) -> None:
    module = TASK.module(timed(store, 0.5))
    module.used_s = 12.0
    assert module.share == pytest.approx(0.4)
    assert TASK.module(recipe(store)).share is None
