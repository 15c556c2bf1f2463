"""The set loss of forecasts: values by hand, matching, and gradients."""

import math
from dataclasses import replace

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.displacement import pairwise_errors
from trajformer.losses.set_loss import SetLossConfig, set_loss

CONFIG = SetLossConfig(cost_class=0.3)


def make(
    modes: int = 3, futures: tuple[int, ...] = (), batch: tuple[int, int] = (2, 3)
) -> tuple[Forecast, Tensor, Tensor]:
    """A random forecast in the batch frame with gradients, targets and a mask (all valid)."""
    position = draw(*batch, modes, 4, 2, scale=3.0).requires_grad_()
    logit = draw(*batch, modes, seed=1).requires_grad_()
    target = draw(*batch, *futures, 4, 2, seed=2, scale=3.0)
    valid = torch.ones(target.shape[:-1], dtype=torch.bool)
    return Forecast(position, logit, Frame.SCENE), target, valid


def test_value_by_hand() -> None:
    position = torch.tensor([[[[[0.5, 0.0], [2.0, 0.0]], [[1.0, 0.0], [6.0, 0.0]]]]])
    target = torch.tensor([[[[1.0, 0.0], [2.0, 3.0]]]])
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    forecast = Forecast(position, torch.tensor([[[0.0, math.log(3.0)]]]), Frame.SCENE)
    terms = set_loss(forecast, target, valid, SetLossConfig(temperature_m=2.0))

    # The final errors of the modes are 3 m and 5 m. Smooth L1 of (0.5, 0) is 0.125, of (0, 3) it
    # is 2.5.
    near = 1 / (1 + math.exp(-(5.0 - 3.0) / 2.0))
    confidence = near * math.log(near / 0.25) + (1 - near) * math.log((1 - near) / 0.75)
    expected = {
        "regression": 1.3125,
        "endpoint": 2.5,
        "classification": math.log(4.0),
        "confidence": confidence,
        "loss": 1.3125 + 0.2 * 2.5 + 0.2 * math.log(4.0) + 1.0 * confidence,
    }
    values = {name: value.item() for name, value in terms.items()}
    assert values == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SetLossConfig(error="coordinates", huber_m=1.0), 6.0),  # 2.5 + 3.5
        (SetLossConfig(error="distance", huber_m=1.0), 4.5),
    ],
)
def test_smooth_l1_of_coordinates_or_of_the_distance(
    config: SetLossConfig, expected: float
) -> None:
    position = torch.tensor([3.0, -4.0]).expand(1, 1, 1, 2, 2)
    forecast = Forecast(position, torch.zeros(1, 1, 1), Frame.SCENE)
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    terms = set_loss(forecast, torch.zeros(1, 1, 2, 2), valid, config)
    assert terms["regression"].item() == pytest.approx(expected)
    assert terms["endpoint"].item() == pytest.approx(expected)


def test_a_distance_of_zero_has_a_finite_gradient() -> None:
    position = torch.full((1, 1, 1, 2, 2), 3.0, requires_grad=True)
    forecast = Forecast(position, torch.zeros(1, 1, 1), Frame.SCENE)
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    config = SetLossConfig(error="distance", huber_m=0.02)
    terms = set_loss(forecast, position.detach()[:, :, 0], valid, config)
    terms["loss"].backward()
    assert terms["regression"].item() < 1e-5
    assert position.grad is not None
    assert position.grad.isfinite().all()


def test_mode_0_can_be_trained_as_the_best_single_prediction() -> None:
    forecast, target, valid = make(modes=3)
    alone = replace(forecast, position=forecast.position[:, :, :1], logit=forecast.logit[..., :1])
    expected = set_loss(alone, target, valid, SetLossConfig())
    plain = set_loss(forecast, target, valid, SetLossConfig(single=0.0))
    terms = set_loss(forecast, target, valid, SetLossConfig(single=0.5))
    assert "single" not in plain
    single = terms["single"].item()
    assert single == pytest.approx((expected["regression"] + expected["endpoint"]).item())
    assert (terms["loss"] - plain["loss"]).item() == pytest.approx(0.5 * single, rel=1e-5)


def test_only_the_matched_mode_receives_a_position_gradient() -> None:
    forecast, target, valid = make(modes=5)
    ade, fde = pairwise_errors(
        forecast.position.flatten(0, 1), target.flatten(0, 1)[:, None], valid.flatten(0, 1)[:, None]
    )
    set_loss(forecast, target, valid, SetLossConfig())["loss"].backward()
    gradient = forecast.position.grad.abs().sum((-1, -2)).flatten(0, 1)
    matched = (0.5 * ade + fde)[..., 0].argmin(1)
    assert torch.equal(gradient > 0, torch.nn.functional.one_hot(matched, 5).bool())
    assert (forecast.logit.grad.abs() > 0).all()


@pytest.mark.parametrize(("cost_class", "matched"), [(0.0, 0), (0.3, 1)])
def test_the_probability_of_a_mode_lowers_its_matching_cost(
    cost_class: float, matched: int
) -> None:
    """Both modes are 1 m from the target, and the second one is more probable."""
    position = torch.zeros(1, 1, 2, 4, 2)
    position[..., 0] = torch.tensor([1.0, -1.0])[:, None]
    forecast = Forecast(position, torch.tensor([[[0.0, 2.0]]]), Frame.SCENE)
    target = torch.zeros(1, 1, 4, 2)
    valid = torch.ones(1, 1, 4, dtype=torch.bool)
    terms = set_loss(forecast, target, valid, SetLossConfig(cost_class=cost_class))
    log_probability = forecast.logit.log_softmax(-1)[0, 0]
    assert terms["classification"].item() == pytest.approx(-log_probability[matched].item())


def test_all_terms_are_means_over_agents() -> None:
    forecast, target, valid = make(batch=(1, 1))
    expected = set_loss(forecast, target, valid, CONFIG)
    position = forecast.position.repeat(2, 3, 1, 1, 1)
    logit = forecast.logit.repeat(2, 3, 1)
    repeated = Forecast(position, logit, Frame.SCENE)
    terms = set_loss(repeated, target.repeat(2, 3, 1, 1), valid.repeat(2, 3, 1), CONFIG)
    torch.testing.assert_close(terms, expected, atol=1e-6, rtol=1e-5)


def test_several_futures_are_matched_to_different_modes() -> None:
    forecast, target, valid = make(modes=3, futures=(2,), batch=(1, 1))
    near, far = target[0, 0]
    modes = [far + 0.1, near + torch.tensor([0.2, 0.0]), near - 0.4]
    forecast = replace(forecast, position=torch.stack(modes)[None, None])
    terms = set_loss(forecast, target, valid, SetLossConfig())
    # Smooth L1 below 1 m is half the square; the errors are (0.1, 0.1) and (0.2, 0).
    assert terms["regression"].item() == pytest.approx((0.01 + 0.02) / 2, rel=1e-4)
    log_probability = forecast.logit.log_softmax(-1)[0, 0, :2]
    expected = -log_probability.mean().item()
    assert terms["classification"].item() == pytest.approx(expected, rel=1e-5)


def test_the_axis_of_futures_and_padded_futures_have_no_effect() -> None:
    forecast, target, valid = make()
    expected = set_loss(forecast, target, valid, CONFIG)
    with_axis = set_loss(forecast, target[:, :, None], valid[:, :, None], CONFIG)
    torch.testing.assert_close(with_axis, expected, atol=1e-5, rtol=1e-5)

    padded_target = torch.stack([torch.zeros_like(target), target], 2)
    padded_valid = torch.stack([torch.zeros_like(valid), valid], 2)
    padded = set_loss(forecast, padded_target, padded_valid, CONFIG)
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=1e-5)
