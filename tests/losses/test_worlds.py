"""The loss of joint forecasts: values by hand, gradients, and the difference to independent modes."""

import itertools
import math

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.set_loss import WorldLossConfig, world_loss

CONFIG = WorldLossConfig(endpoint=0.3, classification=0.7, huber_m=0.8, auxiliary=0.4)


def case() -> tuple[Forecast, Tensor, Tensor]:
    """3 worlds of 3 scenes with 4 targets: one future is unknown, one ends early, and all futures of scene 2 are unknown."""
    position, logit = draw(3, 4, 3, 5, 2, scale=3.0).requires_grad_(), draw(3, 3, seed=50).requires_grad_()
    target, valid = draw(3, 4, 5, 2, seed=20, scale=3.0), torch.ones(3, 4, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 0, 3:], valid[2] = False, False, False
    return Forecast(position, logit, Frame.SCENE), target, valid


def reference(forecast: Forecast, target: Tensor, valid: Tensor) -> tuple[dict[str, float], list[int]]:
    """Terms and indices of the best worlds in plain Python."""
    sums, best_worlds = {"regression": 0.0, "endpoint": 0.0, "classification": 0.0}, []
    for b in range(2):
        costs, errors = [], []
        for k in range(3):
            cost, error, count = 0.0, [0.0, 0.0], 0
            for s in range(4):
                steps = [t for t in range(5) if valid[b, s, t]]
                if not steps:
                    continue
                count += 1
                distance, huber = [], []
                for t in steps:
                    gap = [abs(float(forecast.position[b, s, k, t, axis].detach() - target[b, s, t, axis])) for axis in range(2)]
                    distance.append(math.hypot(*gap))
                    huber.append(sum(g * g / 1.6 if g < 0.8 else g - 0.4 for g in gap))
                cost += 0.5 * sum(distance) / len(steps) + distance[-1]
                error = [error[0] + sum(huber) / len(steps), error[1] + huber[-1]]
            costs.append(cost / count)
            errors.append([value / count for value in error])
        best = costs.index(min(costs))
        best_worlds.append(best)
        sums["regression"] += errors[best][0] / 2
        sums["endpoint"] += errors[best][1] / 2
        logits = forecast.logit[b].tolist()
        sums["classification"] += math.log(sum(map(math.exp, logits)) / math.exp(logits[best])) / 2
    return sums, best_worlds


def test_the_best_world_is_selected_in_float32_under_autocast() -> None:
    """The mean errors 10.02, 10.01 and 10 m are equal in bfloat16."""
    position = torch.tensor([10.02, 10.01, 10.0]).view(1, 1, 3, 1, 1) * torch.tensor([1.0, 0.0]).expand(1, 2, 3, 4, 2)
    forecast = Forecast(position.clone().requires_grad_(), torch.zeros(1, 3), Frame.SCENE)
    with torch.autocast("cpu", torch.bfloat16):
        terms = world_loss(forecast, torch.zeros(1, 2, 4, 2), torch.ones(1, 2, 4, dtype=torch.bool), CONFIG)
    terms["loss"].backward()
    assert forecast.position.grad is not None
    assert (forecast.position.grad.abs().sum((0, 1, 3, 4)) > 0).tolist() == [False, False, True]


def test_value_reference() -> None:
    forecast, target, valid = case()
    terms, (expected, _) = world_loss(forecast, target, valid, CONFIG), reference(forecast, target, valid)
    expected["loss"] = expected["regression"] + 0.3 * expected["endpoint"] + 0.7 * expected["classification"]
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected, rel=1e-4)


def test_only_known_targets_of_the_best_world_receive_a_position_gradient() -> None:
    forecast, target, valid = case()
    _, best = reference(forecast, target, valid)
    assert len(set(best)) == 2
    world_loss(forecast, target, valid, CONFIG)["loss"].backward()
    assert forecast.position.grad is not None and forecast.logit.grad is not None
    touched = forecast.position.grad.abs().sum((-1, -2)) > 0
    for b, s, k in itertools.product(range(3), range(4), range(3)):
        assert touched[b, s, k] == (b < 2 and k == best[b] and bool(valid[b, s].any()))
    assert (forecast.logit.grad.abs() > 0).all(-1).tolist() == [True, True, False]
