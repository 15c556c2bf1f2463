"""The set loss of forecasts and the loss of worlds: values by hand, invariances, and gradients."""

import math
from dataclasses import replace

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.set_loss import (
    SetLossConfig,
    WorldLossConfig,
    pairwise_errors,
    set_loss,
    world_loss,
)

CONFIG = SetLossConfig(cost_class=0.3)


def make(
    modes: int = 3, futures: int = 0, steps: int = 4, batch: tuple[int, int] = (2, 3)
) -> tuple[Forecast, Tensor, Tensor]:
    """A random forecast in the batch frame with gradients, targets and a mask (all valid)."""
    position = draw(*batch, modes, steps, 2, scale=3.0).requires_grad_()
    logit = draw(*batch, modes, seed=1).requires_grad_()
    target = draw(*batch, *([futures] if futures else []), steps, 2, seed=2, scale=3.0)
    return (
        Forecast(position, logit, Frame.SCENE),
        target,
        torch.ones(target.shape[:-1], dtype=torch.bool),
    )


def test_value_by_hand() -> None:
    position = torch.tensor([[[[[0.5, 0.0], [2.0, 0.0]], [[1.0, 0.0], [6.0, 0.0]]]]])
    target = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]]]])
    forecast = Forecast(position, torch.tensor([[[0.0, math.log(3.0)]]]), Frame.SCENE)
    terms = set_loss(
        forecast, target, torch.ones(1, 1, 2, dtype=torch.bool), SetLossConfig(temperature_m=2.0)
    )
    # The final errors of the modes are 3 m and 5 m. Smooth L1 of (0.5, 0) is 0.125, of (0, 3) it is 2.5.
    share = 1 / (1 + math.exp(-(5.0 - 3.0) / 2.0))
    confidence = share * math.log(share / 0.25) + (1 - share) * math.log((1 - share) / 0.75)
    expected = {
        "regression": 1.3125,
        "endpoint": 2.5,
        "classification": math.log(4.0),
        "confidence": confidence,
    }
    expected["loss"] = 1.3125 + 0.2 * 2.5 + 0.2 * math.log(4.0) + 1.0 * confidence
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        expected, rel=1e-5
    )


def test_smooth_l1_of_coordinates_or_of_the_distance() -> None:
    position = torch.tensor([3.0, -4.0]).expand(1, 1, 1, 2, 2).clone().requires_grad_()
    forecast = Forecast(position, torch.zeros(1, 1, 1), Frame.SCENE)
    target, valid = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool)
    values = {}
    for error in ("coordinates", "distance"):
        terms = set_loss(forecast, target, valid, SetLossConfig(error=error, huber_m=1.0))  # type: ignore[arg-type]
        values[error] = terms["regression"].item(), terms["endpoint"].item()
    assert values["coordinates"] == pytest.approx((6.0, 6.0))  # 2.5 + 3.5
    assert values["distance"] == pytest.approx((4.5, 4.5))
    exact = set_loss(
        forecast, position.detach()[:, :, 0], valid, SetLossConfig(error="distance", huber_m=0.02)
    )
    exact["loss"].backward()
    assert (
        exact["regression"].item() < 1e-5
        and position.grad is not None
        and position.grad.isfinite().all()
    )


def test_mode_0_can_be_trained_as_the_best_single_prediction() -> None:
    forecast, target, valid = make(modes=3)
    alone = replace(forecast, position=forecast.position[:, :, :1], logit=forecast.logit[..., :1])
    expected = set_loss(alone, target, valid, SetLossConfig())
    plain, terms = (
        set_loss(forecast, target, valid, SetLossConfig(single=weight)) for weight in (0.0, 0.5)
    )
    assert "single" not in plain
    assert terms["single"].item() == pytest.approx(
        (expected["regression"] + expected["endpoint"]).item()
    )
    assert (terms["loss"] - plain["loss"]).item() == pytest.approx(
        0.5 * terms["single"].item(), rel=1e-5
    )


def test_only_the_matched_mode_receives_a_position_gradient() -> None:
    forecast, target, valid = make(modes=5)
    ade, fde = pairwise_errors(
        forecast.position.flatten(0, 1), target.flatten(0, 1)[:, None], valid.flatten(0, 1)[:, None]
    )
    set_loss(forecast, target, valid, SetLossConfig())["loss"].backward()
    touched = forecast.position.grad.abs().sum((-1, -2)).flatten(0, 1) > 0
    matched = (0.5 * ade + fde)[..., 0].argmin(1)
    assert torch.equal(touched, torch.nn.functional.one_hot(matched, 5).bool())
    assert (forecast.logit.grad.abs() > 0).all()


def test_several_futures_are_matched_to_different_modes() -> None:
    forecast, target, valid = make(modes=3, futures=2, batch=(1, 1))
    near, far = target[0, 0]
    position = torch.stack([far + 0.1, near + torch.tensor([0.2, 0.0]), near - 0.4])[None, None]
    terms = set_loss(replace(forecast, position=position), target, valid, SetLossConfig())
    # Smooth L1 below 1 m is half the square; the errors are (0.1, 0.1) and (0.2, 0).
    assert terms["regression"].item() == pytest.approx((0.01 + 0.02) / 2, rel=1e-4)
    assert terms["classification"].item() == pytest.approx(
        -forecast.logit.log_softmax(-1)[0, 0, :2].mean().item(), rel=1e-5
    )


def test_the_axis_of_futures_and_padded_futures_have_no_effect() -> None:
    forecast, target, valid = make()
    expected = set_loss(forecast, target, valid, CONFIG)
    padded = (
        torch.stack([torch.zeros_like(target), target], 2),
        torch.stack([torch.zeros_like(valid), valid], 2),
    )
    for futures in ((target[:, :, None], valid[:, :, None]), padded):
        torch.testing.assert_close(
            set_loss(forecast, *futures, CONFIG), expected, atol=1e-5, rtol=1e-5
        )


WORLDS = WorldLossConfig(endpoint=0.3, classification=0.7, huber_m=0.8, auxiliary=0.4)


def case() -> tuple[Forecast, Tensor, Tensor]:
    """3 worlds of 3 scenes with 4 targets: one future is unknown, one ends early, and all futures of scene 2 are unknown."""
    position, logit = (
        draw(3, 4, 3, 5, 2, scale=3.0).requires_grad_(),
        draw(3, 3, seed=50).requires_grad_(),
    )
    target, valid = draw(3, 4, 5, 2, seed=20, scale=3.0), torch.ones(3, 4, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 0, 3:], valid[2] = False, False, False
    return Forecast(position, logit, Frame.SCENE), target, valid


def reference(forecast: Forecast, target: Tensor, valid: Tensor) -> dict[str, float]:
    """Terms of the best worlds, scene by scene and agent by agent."""
    rows = []
    for b in range(2):
        agents = []  # cost, mean error and last error of each world [3, K]
        for s in valid[b].any(-1).nonzero()[:, 0]:
            gap = (forecast.position[b, s] - target[b, s]).abs()[:, valid[b, s]]
            distance, huber = (
                gap.norm(dim=-1),
                torch.where(gap < 0.8, gap.square() / 1.6, gap - 0.4).sum(-1),
            )
            agents.append(
                torch.stack([0.5 * distance.mean(1) + distance[:, -1], huber.mean(1), huber[:, -1]])
            )
        cost, regression, endpoint = torch.stack(agents).mean(0)
        best = cost.argmin()
        rows.append((regression[best], endpoint[best], -forecast.logit[b].log_softmax(-1)[best]))
    return dict(
        zip(
            ("regression", "endpoint", "classification"),
            torch.tensor(rows).mean(0).tolist(),
            strict=True,
        )
    )


def test_the_best_world_is_selected_in_float32_under_autocast() -> None:
    """The mean errors 10.02, 10.01 and 10 m are equal in bfloat16."""
    position = torch.tensor([10.02, 10.01, 10.0]).view(1, 1, 3, 1, 1) * torch.tensor(
        [1.0, 0.0]
    ).expand(1, 2, 3, 4, 2)
    forecast = Forecast(position.clone().requires_grad_(), torch.zeros(1, 3), Frame.SCENE)
    with torch.autocast("cpu", torch.bfloat16):
        terms = world_loss(
            forecast, torch.zeros(1, 2, 4, 2), torch.ones(1, 2, 4, dtype=torch.bool), WORLDS
        )
    terms["loss"].backward()
    assert (forecast.position.grad.abs().sum((0, 1, 3, 4)) > 0).tolist() == [False, False, True]


def test_value_reference() -> None:
    forecast, target, valid = case()
    terms, expected = (
        world_loss(forecast, target, valid, WORLDS),
        reference(forecast, target, valid),
    )
    expected["loss"] = (
        expected["regression"] + 0.3 * expected["endpoint"] + 0.7 * expected["classification"]
    )
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        expected, rel=1e-4
    )
