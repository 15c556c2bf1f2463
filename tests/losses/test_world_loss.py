"""The loss of worlds: values from a loop over scenes and agents, and the selected world."""

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.world_loss import WorldLossConfig, world_loss

CONFIG = WorldLossConfig(endpoint=0.3, classification=0.7, huber_m=0.8, auxiliary=0.4)


def case() -> tuple[Forecast, Tensor, Tensor]:
    """3 worlds of 3 scenes with 4 targets, their futures and a mask.

    One future is unknown, one ends early, and all futures of scene 2 are unknown.
    """
    position = draw(3, 4, 3, 5, 2, scale=3.0).requires_grad_()
    logit = draw(3, 3, seed=50).requires_grad_()
    target = draw(3, 4, 5, 2, seed=20, scale=3.0)
    valid = torch.ones(3, 4, 5, dtype=torch.bool)
    valid[0, 1] = False
    valid[1, 0, 3:] = False
    valid[2] = False
    return Forecast(position, logit, Frame.SCENE), target, valid


def agent_errors(position: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Cost, mean Huber error and last Huber error [3, K] of an agent's positions [K, F, 2]."""
    gap = (position - target).abs()[:, valid]
    distance = gap.norm(dim=-1)
    huber = torch.where(gap < 0.8, gap.square() / 1.6, gap - 0.4).sum(-1)
    cost = 0.5 * distance.mean(1) + distance[:, -1]
    return torch.stack([cost, huber.mean(1), huber[:, -1]])


def test_terms_equal_a_loop_over_scenes_and_agents() -> None:
    forecast, target, valid = case()
    rows = []
    for scene in range(2):
        agents = []
        for agent in valid[scene].any(-1).nonzero()[:, 0]:
            index = (scene, agent)
            agents.append(agent_errors(forecast.position[index], target[index], valid[index]))
        cost, regression, endpoint = torch.stack(agents).mean(0)
        best = cost.argmin()
        classification = -forecast.logit[scene].log_softmax(-1)[best]
        rows.append(torch.stack([regression[best], endpoint[best], classification]))

    regression, endpoint, classification = torch.stack(rows).mean(0).tolist()
    expected = {
        "regression": regression,
        "endpoint": endpoint,
        "classification": classification,
        "loss": regression + 0.3 * endpoint + 0.7 * classification,
    }
    terms = world_loss(forecast, target, valid, CONFIG)
    values = {name: value.item() for name, value in terms.items()}
    assert values == pytest.approx(expected, rel=1e-4)


def test_the_best_world_is_selected_in_float32_under_autocast() -> None:
    """The mean errors 10.02, 10.01 and 10 m are equal in bfloat16."""
    distance = torch.tensor([10.02, 10.01, 10.0]).view(1, 1, 3, 1, 1)
    position = distance * torch.tensor([1.0, 0.0]).expand(1, 2, 3, 4, 2)
    position = position.clone().requires_grad_()
    forecast = Forecast(position, torch.zeros(1, 3), Frame.SCENE)
    valid = torch.ones(1, 2, 4, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        terms = world_loss(forecast, torch.zeros(1, 2, 4, 2), valid, CONFIG)
    terms["loss"].backward()
    gradient = position.grad.abs().sum((0, 1, 3, 4))  # type: ignore[union-attr]
    assert (gradient > 0).tolist() == [False, False, True]
