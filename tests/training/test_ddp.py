"""Training in two CPU processes.

Every scene is used once per epoch, metrics and gradients are those of one process, and runs stop
and resume.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import two_processes
from support.agentformer import TINY
from support.models import training_cases
from support.processes import ROOT, environment, run_python
from support.scenes import make_scene
from support.training import largest_difference, logged, recipe, training_store, weights

from trajformer.data.augment import AugmentConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate
from trajformer.recipes.checkpoint import load_predictor
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.run import train

# `trajformer` with `record`.
PROGRAM = """
import os, sys
from pathlib import Path
from support.two_processes import record
from trajformer import cli

record(Path(os.environ["NOTES"]), os.environ["STOP"])
sys.exit(cli.main())
"""
NO_AUGMENTATION = AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, lost=0.0)
Notes = list[tuple[int, int, int, list[str]]]  # epoch, step, process, scenes
Run = tuple[Path, Notes]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven training and five validation scenes; neither number can be divided evenly."""
    return training_store(tmp_path_factory.mktemp("store"), 11, 5)


def ddp(store: Path, **changes: Any) -> TrainConfig:
    """Two epochs of three steps in two processes; only the order of scenes is random."""
    trainer = {"epochs": 2, "devices": 2} | changes.pop("trainer", {})
    config = recipe(
        store, trainer=trainer, optim={"average": 0.8}, augment=NO_AUGMENTATION, seed=1, **changes
    )
    return replace(
        config, model=replace(config.model, block=replace(config.model.block, dropout=0.0))
    )


def read_notes(out: Path) -> Notes:
    return [json.loads(line) for line in out.with_suffix(".json").read_text().splitlines()]


def scenes_of(notes: Notes, epoch: int) -> list[str]:
    return sorted(name for number, _, _, names in notes if number == epoch for name in names)


@pytest.fixture(scope="module")
def stopped(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`trajformer train`, which starts the second process.

    That process receives SIGTERM in step 2 of 3 of the second epoch.
    """
    out = tmp_path_factory.mktemp("stopped") / "run"
    program, settings = out.with_suffix(".py"), out.with_suffix(".yaml")
    program.write_text(PROGRAM)
    settings.write_text(yaml.safe_dump(to_plain(ddp(store))))
    env = environment(
        NOTES=str(out.with_suffix(".json")), STOP="1 1", PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}"
    )
    done = run_python(
        program, "train", "--config", settings, "--out", out, "--resume", env=env, timeout=300
    )
    assert (done.returncode, done.stdout) == (130, "")
    first, last = done.stderr.splitlines()[-2:]  # after warnings
    assert (
        first.startswith("epoch 1/2")
        and last == "trajformer train: interrupted; continue with --resume"
    )
    assert weights(out, key="global_step") == 5
    return out, read_notes(out)


@pytest.fixture(scope="module")
def finished(store: Path, stopped: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The stopped run after it was resumed; the steps of both parts."""
    out = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(stopped[0], out)
    two_processes.run_both(two_processes.train_recipe, ddp(store), out, out.with_suffix(".json"))
    assert weights(out, key="global_step") == 6
    return out, stopped[1] + read_notes(out)


def test_a_resumed_run_of_two_processes_reads_every_scene_once_per_epoch(
    store: Path, finished: Run
) -> None:
    notes = finished[1]
    for epoch in range(2):
        assert scenes_of(notes, epoch) == SceneStore(store, "train").scene_ids()
        sizes = {(step, rank): len(names) for number, step, rank, names in notes if number == epoch}
        assert sorted(sizes) == [(step, rank) for step in range(3) for rank in range(2)]
        assert set(sizes.values()) <= {1, 2}
    first = [
        {name for number, step, _, names in notes if (number, step) == (epoch, 0) for name in names}
        for epoch in range(2)
    ]
    assert first[0] != first[1]


def test_two_processes_validate_like_one(store: Path, finished: Run) -> None:
    out, _ = finished
    expected = evaluate(load_predictor(out / "last.ckpt"), SceneStore(store, "val")).metrics
    last = logged(out).iloc[-1]
    for name in ("minADE6", "minFDE6", "MR6", "minFDE1"):
        assert last[f"val/{name}"] == pytest.approx(
            expected[name], abs=1e-5
        )  # float32 at 50 m: steps of 4e-6 m
    assert len(logged(out)["val/MR6"].dropna()) == 2  # only the first process logs


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes: Notes = []
    step: Callable[..., torch.Tensor] = ForecastingModule.training_step

    def recording(self: Any, batch: Any, index: int) -> torch.Tensor:
        notes.append((self.current_epoch, index, 0, list(batch.observation.scene_id)))
        return step(self, batch, index)

    monkeypatch.setattr(ForecastingModule, "training_step", recording)
    return notes


def test_gradients_are_those_of_one_process(
    store: Path, stopped: Run, tmp_path: Path, recorded: Notes, monkeypatch: Any
) -> None:
    single: list[dict[str, torch.Tensor]] = []

    def keep(self: Any, _: torch.optim.Optimizer) -> None:
        single.append({name: value.grad.clone() for name, value in self.named_parameters()})

    monkeypatch.setattr(ForecastingModule, "on_before_optimizer_step", keep)
    train(
        ddp(store, data={"batch_size": 4}, trainer={"devices": 1, "epochs": 1}),
        TASK,
        tmp_path,
        progress=False,
    )
    shares = [names for epoch, step, _, names in stopped[1] if (epoch, step) == (0, 0)]
    assert sorted(recorded[0][3]) == sorted(name for names in shares for name in names)
    assert [len(names) for names in shares] == [2, 2]  # equal weights in the mean
    together = torch.load(stopped[0].with_suffix(".json.grad"), weights_only=True)
    assert max(float(value.abs().max()) for value in together.values()) > 1e-2
    assert largest_difference(single[0], together) < 1e-5


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_one_process_resumes_an_epoch_of_two(
    store: Path, stopped: Run, tmp_path: Path, recorded: Notes, capsys: Any
) -> None:
    shutil.copytree(stopped[0], tmp_path / "run")
    train(
        ddp(store, data={"batch_size": 4}, trainer={"devices": 1}),
        TASK,
        tmp_path / "run",
        resume=True,
        progress=False,
    )
    assert [note[:2] for note in recorded] == [(1, 2)]
    assert scenes_of(stopped[1] + recorded, 1) == SceneStore(store, "train").scene_ids()
    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_other_numbers_of_steps_restart_an_epoch(
    store: Path, stopped: Run, tmp_path: Path, recorded: Notes, capsys: Any
) -> None:
    shutil.copytree(stopped[0], tmp_path / "run")
    train(ddp(store, trainer={"devices": 1}), TASK, tmp_path / "run", resume=True, progress=False)
    assert [note[:2] for note in recorded] == [(1, step) for step in range(6)]
    assert scenes_of(recorded, 1) == SceneStore(store, "train").scene_ids()
    assert (
        capsys.readouterr().err == "epoch 2 restarts because its order has changed: steps 3 -> 6\n"
    )
    assert weights(tmp_path / "run", key="global_step") == 5 + 6
    rate = logged(tmp_path / "run").set_index("step")["lr-AdamW/pg1"].dropna()
    assert 0 < rate.iloc[-1] < rate.iloc[-2] < 3e-3 / 2  # the schedule ends with the training


def test_more_processes_than_scenes_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrajformerError, match=r"data\.train: .*: 1 scenes are not enough for 2 processes"
    ):
        train(ddp(store, data={"limit_train": 1}), TASK, tmp_path, progress=False)


def test_two_processes_train_every_model_with_every_loss_like_one(tmp_path: Path) -> None:
    """Processes have different numbers of agents: a mean of means would be another loss."""
    cases = training_cases()
    two_processes.run_both(two_processes.train_models, cases, 3, tmp_path / "results.pt")
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    for (name, loss), (losses, state) in zip(cases, results, strict=True):
        expected_losses, expected_state = two_processes.train_model(name, loss, 3)
        hint = f"{name}, {loss.__name__}: does it divide by trajformer.losses.terms.total?"
        assert losses == pytest.approx(expected_losses, rel=1e-6), hint
        assert largest_difference(state, expected_state) < 1e-5, hint


def test_two_processes_train_on_scenes_with_one_agent(tmp_path: Path) -> None:
    """Such batches leave parameters of AgentFormer without a gradient."""
    for split in ("train", "val"):
        scenes = [make_scene(1, 8, 6, num_scored=0, seed=seed) for seed in range(4)]
        write_shard(shard_path(tmp_path / "store", split, 0), scenes, ShardInfo("synthetic", split))
    trainer = {"epochs": 1, "devices": 2}
    config = recipe(tmp_path / "store", model=TINY, data={"batch_size": 1}, trainer=trainer)
    two_processes.run_both(two_processes.train_recipe, config, tmp_path / "run")
    assert (tmp_path / "run" / "best.ckpt").is_file()
