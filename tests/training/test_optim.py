"""Learning rate schedules and parameter groups; Muon and AdamW in one optimiser, against PyTorch's."""

from copy import deepcopy

import pytest
import torch
from support.tensors import draw
from torch import nn

from trajformer.core.multihead import SeparateLinear
from trajformer.recipes.recipe import OptimConfig
from trajformer.training.muon import Muon
from trajformer.training.optim import (
    Length,
    build_optimizer,
    parameter_groups,
    rate_factor,
)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("inverse_sqrt", {0: 0.01, 99: 1.0, 100: (100 / 101) ** 0.5, 399: 0.5}),
        ("drop", {0: 0.01, 99: 1.0, 799: 1.0, 800: 0.1, 999: 0.1}),
        ("cosine", {0: 0.01, 99: 1.0, 550: 0.5, 1000: 0.0}),
        ("linear", {0: 0.01, 99: 1.0, 100: 1.0, 550: 0.5, 1000: 0.0}),
    ],
)
def test_schedules_follow_their_formulas(schedule: str, expected: dict[int, float]) -> None:
    config = OptimConfig(schedule=schedule, warmup=0.1, drop=0.8)  # type: ignore[arg-type]
    assert {step: rate_factor(step, 1000, config) for step in expected} == pytest.approx(
        expected, abs=1e-9
    )


def test_a_parameter_group_can_have_a_smaller_learning_rate() -> None:
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    groups = [
        {"params": list(layers[0].parameters())},
        {"params": list(layers[1].parameters()), "lr": 0.1},
    ]
    optimizer, schedule = build_optimizer(
        groups, OptimConfig(learning_rate=1e-3, warmup=0.0), Length(10)
    )
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 1e-4])
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"] / 10)


def test_muon_optimises_hidden_matrices_only() -> None:
    model = nn.ModuleDict(
        {
            "input": nn.Linear(3, 4),
            "hidden": nn.Linear(4, 4),
            "kind": nn.Embedding(5, 4),
            "modes": SeparateLinear(2, 4, 3),
        }
    )
    model.muon_exclude = ("input.weight",)  # type: ignore[assignment]
    model["project"] = nn.Linear(4, 5, bias=False)
    model["project"].weight = model["kind"].weight  # tied: an embedding
    config = OptimConfig(learning_rate=1e-3, muon_rate=2e-3, weight_decay=0.1, warmup=0.0)
    optimizer, _ = build_optimizer(parameter_groups(model, config), config, Length(10))
    (muon,) = (group for group in optimizer.param_groups if group["muon"])
    assert [id(parameter) for parameter in muon["params"]] == [id(model["hidden"].weight)]
    assert muon["lr"] == pytest.approx(2e-3) and muon["weight_decay"] == 0.1
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert (
        decay[id(model["input"].weight)] == 0.1
        and decay[id(model["kind"].weight)] == decay[id(model["hidden"].bias)] == 0
    )
    assert decay[id(model["modes"].weight)] == 0.1 and decay[id(model["modes"].bias)] == 0
    assert len(decay) == len(list(model.parameters()))


def make_parameters() -> list[nn.Parameter]:
    return [
        nn.Parameter(draw(6, 10)),
        nn.Parameter(draw(10, 6)),
        nn.Parameter(draw(5)),
        nn.Parameter(draw(3, 4)),
    ]


def train(parameters: list[nn.Parameter], *optimizers: torch.optim.Optimizer) -> None:
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def test_other_parameters_follow_pytorchs_adamw() -> None:
    ours, theirs = make_parameters(), make_parameters()
    train(ours, Muon([{"params": ours, "weight_decay": 0.1}], lr=0.01, betas=(0.9, 0.98)))
    train(theirs, torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.98), weight_decay=0.1))
    torch.testing.assert_close(ours, theirs)


def test_matrices_follow_pytorchs_muon() -> None:
    """PyTorch's orthogonalises in bfloat16, so steps agree to some percent of their size of about 0.006."""
    ours, theirs, start = make_parameters(), make_parameters(), make_parameters()
    options = {"lr": 0.01, "weight_decay": 0.1}
    groups = [
        {"params": [ours[0], ours[1], ours[3]], "muon": True, **options},
        {"params": [ours[2]], **options},
    ]
    train(ours, Muon(groups, lr=1.0))
    muon = torch.optim.Muon(
        [theirs[0], theirs[1], theirs[3]], **options, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    train(theirs, muon, torch.optim.AdamW([theirs[2]], **options, betas=(0.9, 0.98)))
    for mine, other, before in zip(ours, theirs, start, strict=True):
        assert (mine - other).norm() < 0.05 * (other - before).norm()


def test_a_resumed_run_is_identical() -> None:
    ours, resumed = make_parameters(), make_parameters()
    optimizer = Muon([{"params": ours[:2], "muon": True}, {"params": ours[2:]}], lr=0.01)
    train(ours, optimizer)
    for target, source in zip(resumed, ours, strict=True):
        target.data.copy_(source.data)
    other = Muon([{"params": resumed[:2], "muon": True}, {"params": resumed[2:]}], lr=0.5)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    train(ours, optimizer)
    train(resumed, other)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed, ours, strict=True))
