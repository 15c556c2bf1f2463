"""Restarts within a training: rates, the state of the optimiser, the mean of weights, resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import largest_difference, log_of, recipe, training_store, weights
from torch import nn

from trajformer.errors import CheckpointError, ConfigError
from trajformer.evaluation.evaluate import evaluate
from trajformer.recipes.checkpoint import load_predictor
from trajformer.recipes.recipe import OptimConfig, TrainConfig
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.optim import Length, build_optimizer
from trajformer.training.restarts import mean_weights
from trajformer.training.run import train

FIRST_STEPS, RESTARTS, RESTART_STEPS = 6, 3, 4
TOTAL = FIRST_STEPS + RESTARTS * RESTART_STEPS
ENDS = [6, 10, 14, 18]  # of the four parts, in steps
RATE = 3e-3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 9, 3)  # epochs of five steps


def restarted(store: Path, **optim: Any) -> TrainConfig:
    schedule = {
        "learning_rate": RATE,
        "warmup": 0.5,
        "restarts": RESTARTS,
        "restart_steps": RESTART_STEPS,
        "average_restarts": 2,
    }
    trainer = {
        "epochs": None,
        "steps": FIRST_STEPS,
        "validate_every": 9,
        "checkpoint_minutes": 1e-9,
    }
    return recipe(store, optim=schedule | optim, trainer=trainer)


@pytest.fixture(scope="module")
def straight(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An uninterrupted run, with the weights and the states of the optimiser after each step."""
    out = tmp_path_factory.mktemp("straight")
    seen: dict[int, dict[str, torch.Tensor]] = {}
    ages: list[int] = []
    step = ForecastingModule.training_step

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        state = self.model.state_dict()
        seen[self.global_step] = {name: tensor.clone() for name, tensor in state.items()}
        states = self.trainer.optimizers[0].state
        ages.append(max((int(one["step"]) for one in states.values()), default=0))
        return step(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForecastingModule, "training_step", training_step)
        train(restarted(store), TASK, out, progress=False)
    return {"out": out, "seen": seen, "ages": ages}


def test_every_part_has_its_own_schedule(straight: dict[str, Any]) -> None:
    rates = log_of(straight["out"], "lr-AdamW/pg1").tolist()
    expected = [RATE / 3, 2 * RATE / 3, RATE]
    assert rates[:3] == pytest.approx(expected)
    for start in ENDS[:-1]:
        assert rates[start : start + 2] == pytest.approx([RATE / 4, RATE / 2])
    # A cosine from the last step of the warm-up to zero, in three and in two steps.
    assert rates[3:6] == pytest.approx([RATE, 0.75 * RATE, 0.25 * RATE])
    assert rates[8:10] == pytest.approx([RATE / 2, RATE / 4])


def test_a_restart_has_a_fresh_state_of_the_optimiser(straight: dict[str, Any]) -> None:
    assert straight["ages"] == [*range(6), *range(4), *range(4), *range(4)]


def test_the_end_is_the_mean_of_the_last_restarts(store: Path, straight: dict[str, Any]) -> None:
    out = straight["out"]
    assert weights(out, key="global_step") == TOTAL
    final = {name.removeprefix("model."): value for name, value in weights(out).items()}
    # Only the weights at the end of the second restart were seen before a step. The mean of them
    # and the weights at the end of the third restart is the result.
    second = straight["seen"][ENDS[2]]
    third = {name: 2 * final[name] - second[name] for name in final}
    before_last_step = straight["seen"][TOTAL - 1]
    moved = largest_difference(before_last_step, second)
    assert largest_difference(third, before_last_step) < moved / 2

    validated = log_of(out)
    assert validated.index.tolist() == [TOTAL - 1]
    scores = evaluate(load_predictor(out / "last.ckpt"), SceneStore(store, "val"), batch_size=3)
    assert scores.metrics["minFDE6"] == pytest.approx(validated.iloc[-1], abs=1e-5)
    assert largest_difference(weights(out, "best"), weights(out)) == 0.0


@pytest.mark.parametrize("failing_step", [FIRST_STEPS, ENDS[2], TOTAL - 1])
def test_an_interrupted_run_resumes(
    store: Path,
    straight: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing_step: int,
) -> None:
    step = ForecastingModule.training_step

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if self.global_step == failing_step:
            raise ZeroDivisionError
        return step(self, batch, index)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(ForecastingModule, "training_step", training_step)
        train(restarted(store), TASK, tmp_path, progress=False)
    train(restarted(store), TASK, tmp_path, resume=True, progress=False)
    assert largest_difference(weights(tmp_path), weights(straight["out"])) == 0.0


def test_a_finished_run_does_not_change_and_its_parts_are_fixed(
    store: Path, straight: dict[str, Any]
) -> None:
    before = weights(straight["out"])
    train(restarted(store), TASK, straight["out"], resume=True, progress=False)
    assert largest_difference(weights(straight["out"]), before) == 0.0
    longer = recipe(
        store,
        optim=vars(restarted(store).optim),
        trainer=vars(restarted(store).trainer) | {"steps": 8},
    )
    with pytest.raises(CheckpointError, match=r"was trained with trainer\.steps 6, not 8"):
        train(longer, TASK, straight["out"], resume=True, progress=False)


def test_the_mean_keeps_types_and_whole_numbers() -> None:
    states = []
    for value in (1.0, 2.0, 6.0):
        norm = nn.BatchNorm1d(2)
        with torch.no_grad():
            norm.weight.fill_(value)
        norm.num_batches_tracked.fill_(int(value))
        states.append(norm.state_dict())
    mean = mean_weights(states)
    assert mean["weight"].tolist() == [3.0, 3.0] and mean["weight"].dtype == torch.float32
    assert mean["num_batches_tracked"].item() == 6


def test_positions_of_steps() -> None:
    length = Length(3, restarts=2, restart_steps=2)
    assert length.total == 7
    assert [length.position(step) for step in range(8)] == [
        (0, 0, 3),
        (0, 1, 3),
        (0, 2, 3),
        (1, 0, 2),
        (1, 1, 2),
        (2, 0, 2),
        (2, 1, 2),
        (2, 2, 2),
    ]
    finished = [length.finished_part(step) for step in range(9)]
    assert finished == [None, None, None, 0, None, 1, None, 2, None]


def test_restarts_scale_the_rates_of_all_groups() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    config = OptimConfig(
        learning_rate=1.0, muon_rate=2.0, warmup=0.0, restarts=1, restart_steps=4, restart_rate=0.25
    )
    groups = [
        {"params": list(layers[0].parameters())},
        {"params": [layers[1].weight], "lr": 2.0, "muon": True},
    ]
    optimizer, schedule = build_optimizer(groups, config, Length(3, 1, 4))
    rates = []
    for _ in range(4):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx([1.0, 2.0])
    assert rates[3] == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize(
    ("optim", "reason"),
    [
        ({"restart_steps": None}, "restart_steps: none, but restarts is 3"),
        ({"average": 0.9}, "average: 0.9, but restarts is 3; use average_restarts"),
    ],
)
def test_incomplete_schedules_are_refused(store: Path, optim: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        restarted(store, **optim)


def test_restarts_need_a_length_in_steps(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"optim\.restarts: 2, but trainer\.steps is not given"):
        recipe(store, optim={"restarts": 2, "restart_steps": 5})
    with pytest.raises(ConfigError, match="epochs: 3, but steps is 5; set one of them to null"):
        recipe(store, trainer={"steps": 5})
