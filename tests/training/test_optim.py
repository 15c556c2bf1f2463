"""Learning rate schedules, parameter groups, and Muon and AdamW in one optimiser."""

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
    decay = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            decay[id(parameter)] = group["weight_decay"]
    with_decay = (model["input"].weight, model["modes"].weight)
    without_decay = (model["kind"].weight, model["hidden"].bias, model["modes"].bias)
    assert [decay[id(parameter)] for parameter in with_decay] == [0.1, 0.1]
    assert [decay[id(parameter)] for parameter in without_decay] == [0.0, 0.0, 0.0]
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
    parameters = make_parameters()
    reference = make_parameters()
    betas = (0.9, 0.98)
    train(parameters, Muon([{"params": parameters, "weight_decay": 0.1}], lr=0.01, betas=betas))
    train(reference, torch.optim.AdamW(reference, lr=0.01, betas=betas, weight_decay=0.1))
    torch.testing.assert_close(parameters, reference)


def test_matrices_follow_pytorchs_muon() -> None:
    """PyTorch's Muon works in bfloat16: steps agree to some percent of their size of about .006."""
    start = make_parameters()
    options = {"lr": 0.01, "weight_decay": 0.1}

    parameters = make_parameters()
    *matrices, vector = (parameters[index] for index in (0, 1, 3, 2))
    groups = [{"params": matrices, "muon": True, **options}, {"params": [vector], **options}]
    train(parameters, Muon(groups, lr=1.0))

    reference = make_parameters()
    *matrices, vector = (reference[index] for index in (0, 1, 3, 2))
    scale = "match_rms_adamw"
    muon = torch.optim.Muon(matrices, **options, momentum=0.95, adjust_lr_fn=scale)
    adamw = torch.optim.AdamW([vector], **options, betas=(0.9, 0.98))
    train(reference, muon, adamw)

    for trained, expected, before in zip(parameters, reference, start, strict=True):
        difference = (trained - expected).norm()
        assert difference < 0.05 * (expected - before).norm()


def test_a_resumed_run_is_identical() -> None:
    straight = make_parameters()
    optimizer = Muon([{"params": straight[:2], "muon": True}, {"params": straight[2:]}], lr=0.01)
    train(straight, optimizer)

    resumed = make_parameters()
    for target, source in zip(resumed, straight, strict=True):
        target.data.copy_(source.data)
    other = Muon([{"params": resumed[:2], "muon": True}, {"params": resumed[2:]}], lr=0.5)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    train(straight, optimizer)
    train(resumed, other)
    for parameter, expected in zip(resumed, straight, strict=True):
        assert torch.equal(parameter, expected)
