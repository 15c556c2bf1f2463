"""Going on amid an epoch: whatever stops a run, it ends in the same weights and the same logs as one left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from support.cli import run
from support.training import largest_difference, logged, recipe, training_store, weights

from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.training import forecasting as module_file
from trajformer.training.forecasting import TASK
from trajformer.training.resume import CheckpointFiles
from trajformer.training.run import train

ROOT = Path(__file__).parents[2]
ALWAYS = 1e-9  # minutes between checkpoints: one before every step


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven scenes to train on and three to validate on."""
    return training_store(tmp_path_factory.mktemp("store"), 11, 3)


def run_config(store: Path, **changes: Any) -> TrainConfig:
    """Four epochs of six steps, validated after the third and the last, everything random and the average on."""
    trainer: dict[str, Any] = {"epochs": 4, "validate_every": 3, "early_stopping": 9, "checkpoint_minutes": ALWAYS}
    trainer |= changes.pop("trainer", {})
    data = {"bucket": 2} | changes.pop("data", {})
    return recipe(store, trainer=trainer, data=data, optim={"average": 0.8, "learning_rate": 3e-3}, **changes)


def patience(out: Path) -> str:
    """The state of early stopping."""
    (state,) = (value for name, value in weights(out, key="callbacks").items() if name.startswith("EarlyStopping"))
    return str(state)


def assert_same_run(out: Path, straight: Path) -> None:
    """Weights, averaged weights, patience and logs are those of an undisturbed run, to the last bit."""
    for name in ("best", "last"):
        assert largest_difference(weights(out, name), weights(straight, name)) == 0.0
        assert (
            largest_difference(weights(out, name, "current_model_state"), weights(straight, name, "current_model_state")) == 0.0
        )
    assert patience(out) == patience(straight)
    pd.testing.assert_frame_equal(logged(out), logged(straight)[logged(out).columns], check_exact=True)
    assert not list(out.glob(".*"))


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("straight")
    train(run_config(store), TASK, out, progress=False)
    return out


def die_at(patch: pytest.MonkeyPatch, places: Sequence[tuple[int, int]], error: BaseException) -> None:
    """Raise in these (epoch, step), each once."""
    step, left = module_file.ForecastingModule.training_step, list(places)

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if left and (self.current_epoch, index) == left[0]:
            left.pop(0)
            raise error
        return step(self, batch, index)

    patch.setattr(module_file.ForecastingModule, "training_step", training_step)


@pytest.mark.parametrize("places", [[(0, 1)], [(1, 0)], [(2, 5)], [(0, 5), (1, 3), (1, 4), (3, 5)]], ids=str)
def test_a_run_goes_on_where_it_broke_off(
    store: Path, straight: Path, tmp_path: Path, places: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        die_at(patch, places, ZeroDivisionError())
        for _ in places:
            torch.manual_seed(99)  # another process has another state of its generators
            with pytest.raises(ZeroDivisionError):
                train(run_config(store), TASK, tmp_path, resume=True, progress=False)
    train(run_config(store), TASK, tmp_path, resume=True, progress=False)
    assert_same_run(tmp_path, straight)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_run_asked_to_stop_loses_nothing(
    store: Path, straight: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, config = module_file.ForecastingModule.training_step, run_config(store, trainer={"checkpoint_minutes": 0.0})
    handlers = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if (self.current_epoch, index) in ((0, 0), (2, 3)):
            os.kill(os.getpid(), number)
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(module_file.ForecastingModule, "training_step", training_step)
        for done in (1, 2 * 6 + 4):
            with pytest.raises(KeyboardInterrupt, match="continue with --resume"):
                train(config, TASK, tmp_path, resume=True, progress=False)
            assert weights(tmp_path, key="global_step") == done
            assert {name: signal.getsignal(name) for name in handlers} == handlers
    train(config, TASK, tmp_path, resume=True, progress=False)
    assert_same_run(tmp_path, straight)


def test_a_second_ctrl_c_stops_at_once(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    monkeypatch.setattr(module_file.ForecastingModule, "training_step", training_step)
    with pytest.raises(KeyboardInterrupt):
        train(run_config(store), TASK, tmp_path, progress=False)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CheckpointFiles()
    files.save_checkpoint({"step": 1}, tmp_path / "run" / "last.ckpt")

    def break_off(_: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", break_off)
    with pytest.raises(OSError, match="No space"):
        files.save_checkpoint({"step": 2}, tmp_path / "run" / "last.ckpt")
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True) == {"step": 1}
    assert len(list((tmp_path / "run").iterdir())) == 1


def command_line(config: TrainConfig, out: Path) -> subprocess.Popen[str]:
    """`trajformer train` in a process of its own."""
    out.with_suffix(".yaml").write_text(yaml.safe_dump(to_plain(config)))
    words = ["train", "--config", out.with_suffix(".yaml"), "--out", out]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trajformer.cli", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(process: subprocess.Popen[str], out: Path, steps: int) -> None:
    """Until the log has so many lines of losses."""
    end = time.monotonic() + 60
    log = out / "csv" / "metrics.csv"

    def losses() -> int:
        try:
            return int(logged(out)["train/loss"].notna().sum())
        except (pd.errors.EmptyDataError, KeyError):  # Lightning is writing it anew, with new columns
            return 0

    while not log.is_file() or losses() < steps:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.01)


def test_a_killed_command_line_goes_on_amid_the_epoch(store: Path, tmp_path: Path) -> None:
    out, config = tmp_path / "run", run_config(store, trainer={"epochs": 2}, data={"batch_size": 1, "workers": 2})
    process = command_line(config, out)
    wait_for_steps(process, out, 2)
    process.kill()
    process.communicate()
    assert 1 <= weights(out, key="global_step") < 11
    assert run("train", "--config", out.with_suffix(".yaml"), "--out", out, "--resume") == 0
    train(run_config(store, trainer={"epochs": 2}, data={"batch_size": 1}), TASK, tmp_path / "straight", progress=False)
    assert_same_run(out, tmp_path / "straight")
