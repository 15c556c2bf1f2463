"""Resuming: a run that was interrupted at any step equals an uninterrupted run, bit by bit."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from support.cli import run
from support.processes import run_python
from support.training import largest_difference, logged, recipe, training_store, weights

from trajformer.core.blocks import BlockConfig
from trajformer.errors import CheckpointError, Terminated, TrajformerError
from trajformer.models.crowd import CrowdConfig
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig, TrainerConfig
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.resume import CheckpointFiles
from trajformer.training.run import train

# `trajformer` that is killed in the fourth step.
KILLED = """
import os, signal
from trajformer import cli
from trajformer.training.forecasting import ForecastingModule

step = ForecastingModule.training_step

def training_step(self, batch, index):
    if index == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch, index)

ForecastingModule.training_step = training_step
cli.main()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 7, 2)


def run_config(store: Path, checkpoint_minutes: float = 1e-9, workers: int = 0) -> TrainConfig:
    """Four epochs of four steps, the last two validated, with a checkpoint after every step."""
    trainer = {
        "epochs": 4,
        "validate_every": 3,
        "early_stopping": 9,
        "checkpoint_minutes": checkpoint_minutes,
    }
    data = {"bucket": 2, "workers": workers}
    model = CrowdConfig(
        12, block=BlockConfig(width=16, heads=2, feedforward=16, dropout=0.2), social_layers=1
    )
    return recipe(
        store,
        model=model,
        trainer=trainer,
        data=data,
        optim={"average": 0.8, "learning_rate": 3e-3},
    )


def patience(out: Path) -> str:
    (state,) = (
        value
        for name, value in weights(out, key="callbacks").items()
        if name.startswith("EarlyStopping")
    )
    return str(state)


def assert_same_run(out: Path, straight: Path) -> None:
    """Weights, averaged weights, patience and logs equal those of an uninterrupted run."""
    for name in ("best", "last"):
        for key in ("state_dict", "current_model_state"):
            assert largest_difference(weights(out, name, key), weights(straight, name, key)) == 0.0
    assert patience(out) == patience(straight)
    pd.testing.assert_frame_equal(
        logged(out), logged(straight)[logged(out).columns], check_exact=True
    )
    assert not list(out.glob(".*"))


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight")
    train(run_config(store), TASK, out, progress=False)
    return out


@pytest.mark.parametrize("failures", [[(1, 0)], [(0, 3), (1, 1), (1, 2), (3, 3)]], ids=str)
def test_a_failed_run_resumes(
    store: Path, straight: Path, tmp_path: Path, failures: Any, monkeypatch: Any
) -> None:
    step, left = ForecastingModule.training_step, list(failures)  # pairs of epoch and step

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if left and (self.current_epoch, index) == left[0]:
            left.pop(0)
            raise ZeroDivisionError
        return step(self, batch, index)

    monkeypatch.setattr(ForecastingModule, "training_step", training_step)
    for _ in failures:
        torch.manual_seed(99)  # a new process starts with another state of its generators
        with pytest.raises(ZeroDivisionError):
            train(run_config(store), TASK, tmp_path, resume=True, progress=False)
    train(run_config(store), TASK, tmp_path, resume=True, progress=False)
    assert_same_run(tmp_path, straight)


def test_a_signal_stops_a_run_after_its_current_step(
    store: Path, straight: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    step, config = ForecastingModule.training_step, run_config(store, checkpoint_minutes=0.0)
    signals = {(0, 0): signal.SIGINT, (2, 2): signal.SIGTERM}
    handlers = {number: signal.getsignal(number) for number in signals.values()}

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if number := signals.get((self.current_epoch, index)):
            os.kill(os.getpid(), number)
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(ForecastingModule, "training_step", training_step)
        for completed, kind in ((1, KeyboardInterrupt), (2 * 4 + 3, Terminated)):
            with pytest.raises(KeyboardInterrupt, match="continue with --resume") as caught:
                train(config, TASK, tmp_path, resume=True, progress=False)
            assert caught.type is kind
            assert weights(tmp_path, key="global_step") == completed
            assert {number: signal.getsignal(number) for number in handlers} == handlers
    train(config, TASK, tmp_path, resume=True, progress=False)
    assert_same_run(tmp_path, straight)


def test_a_moved_run_keeps_its_best_checkpoint(store: Path, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "moved"
    trainer = TrainerConfig(epochs=5, accelerator="cpu", threads=1)
    longer = replace(run_config(store), trainer=trainer)
    shutil.copytree(straight, out)
    state = torch.load(out / "last.ckpt", weights_only=True)
    (best,) = (value for value in state["callbacks"].values() if value.get("best_k_models"))
    best["best_k_models"] = dict.fromkeys(
        best["best_k_models"], torch.tensor(0.0)
    )  # no later epoch is better
    torch.save(state, out / "last.ckpt")
    before = (out / "best.ckpt").read_bytes()
    train(longer, TASK, out, resume=True, progress=False)
    assert (out / "best.ckpt").read_bytes() == before and weights(out, key="epoch") == 4


def test_a_run_without_its_best_checkpoint_gets_one_in_the_next_epoch(
    store: Path, straight: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    trainer = TrainerConfig(epochs=5, accelerator="cpu", threads=1)
    longer = replace(run_config(store), trainer=trainer)
    shutil.copytree(straight, out)
    (out / "best.ckpt").unlink()
    with pytest.raises(TrajformerError, match=r"best.ckpt: missing, and no epoch is left"):
        train(run_config(store), TASK, out, resume=True, progress=False)
    train(longer, TASK, out, resume=True, progress=False)
    assert weights(out, "best", key="epoch") == 4


def test_a_second_interrupt_stops_within_the_step(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the step continues")

    monkeypatch.setattr(ForecastingModule, "training_step", training_step)
    with pytest.raises(KeyboardInterrupt):
        train(run_config(store), TASK, tmp_path, progress=False)


def test_a_failed_write_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CheckpointFiles()
    files.save_checkpoint({"step": 1}, tmp_path / "run" / "last.ckpt")

    def write_half(path: Path, data: Any) -> None:
        with path.open("wb") as file:
            file.write(data[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match=r"No space left on device: '.*last.ckpt'"):
        files.save_checkpoint({"step": 2}, tmp_path / "run" / "last.ckpt")
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True) == {"step": 1}
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_a_killed_process_with_workers_is_resumed_by_the_command_line(
    store: Path, straight: Path, tmp_path: Path
) -> None:
    out, settings = tmp_path / "run", tmp_path / "run.yaml"
    settings.write_text(yaml.safe_dump(to_plain(run_config(store, workers=1))))
    words = ["train", "--config", str(settings), "--out", str(out)]
    killed = run_python("-c", KILLED, *words)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert weights(out, key="global_step") == 3
    assert run(*words, "--resume", "--data.workers", 0) == 0
    assert_same_run(out, straight)


def drop_state(content: Any) -> None:
    content["optimizer_states"] = []


def forget_moments(content: Any) -> None:
    content["optimizer_states"][0]["state"] = {}


def change_moments(content: Any, **values: Any) -> None:
    for entry in content["optimizer_states"][0]["state"].values():
        entry.update(values)


DAMAGES: dict[str, Any] = {
    "steps": lambda content: content.update(global_step="x"),
    "other steps": lambda content: content.update(global_step=7),
    "epochs": lambda content: content["loops"]["fit_loop"].update(epoch_progress=None),
    "loops": lambda content: content["loops"]["fit_loop"].pop("epoch_loop.batch_progress"),
    "schedule": lambda content: content.pop("lr_schedulers"),
    "step of the schedule": lambda content: content["lr_schedulers"][0].update(last_epoch=-5),
    "no optimiser": drop_state,
    "no moments": forget_moments,
    "shape": lambda content: change_moments(content, exp_avg=torch.zeros(3)),
    "number type": lambda content: change_moments(content, exp_avg_sq=torch.zeros(1).long()),
    "count": lambda content: change_moments(content, step="x"),
    "rate": lambda content: content["optimizer_states"][0]["param_groups"][0].update(lr=None),
    "callbacks": lambda content: content.update(callbacks={}),
    "averaged weights": lambda content: content.update(averaging_state=3),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused(
    store: Path, straight: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(straight, tmp_path / "run")
    path = tmp_path / "run" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    DAMAGES[damage](content)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"last.ckpt: .*damaged.* with --init"):
        train(run_config(store), TASK, path.parent, resume=True, progress=False)


@pytest.mark.parametrize(
    "text",
    [b"step,x\nabc,1\n", b"a,b\n1,2\n", b"step,caf\xe9\n1,2\n", b"step\n" + b"1" * 140_000],
    ids=["a word", "other columns", "not UTF-8", "a long field"],
)
def test_a_damaged_table_of_metrics_is_refused(
    store: Path, straight: Path, tmp_path: Path, text: bytes
) -> None:
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run" / "csv" / "metrics.csv").write_bytes(text)
    with pytest.raises(TrajformerError, match=r"metrics.csv: not a table .*move it away"):
        train(run_config(store), TASK, tmp_path / "run", resume=True, progress=False)
