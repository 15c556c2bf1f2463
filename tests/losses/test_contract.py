"""Guarantees of all losses of forecasts: frames, unknown steps and agents, earlier layers, and unsuitable forecasts."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss
from trajformer.losses.set_loss import SetLossConfig, WorldLossConfig, set_loss, world_loss
from trajformer.losses.terms import Terms
from trajformer.models.mmtransformer.region_loss import RegionLossConfig, region_loss
from trajformer.scenes.geometry import from_frame, rotate, to_frame

REGIONS = torch.tensor([[-3.0, 0.0, 1.0], [3.0, 1.0, -2.0]])
LOSSES: dict[str, Callable[[Forecast, Tensor, Tensor], Terms]] = {
    "set": partial(set_loss, config=SetLossConfig(cost_class=0.3, auxiliary=0.4)),
    "worlds": partial(world_loss, config=WorldLossConfig(auxiliary=0.4)),
    "mixture": partial(mixture_loss, config=MixtureLossConfig(auxiliary=0.4)),
    "regions": partial(
        region_loss,
        regions=REGIONS,
        log_variance=torch.zeros(3),
        config=RegionLossConfig(auxiliary=0.4),
    ),
}
assert_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
EVERY_LOSS = pytest.mark.parametrize("name", LOSSES)


def make(name: str, seed: int = 0) -> tuple[Forecast, Tensor, Tensor]:
    """Four modes of 2 x 4 agents in their frames, with gradients; targets and a mask (all valid)."""
    logit = draw(2, 4, seed=seed) if name == "worlds" else draw(2, 4, 4, seed=seed)
    position, pose = draw(2, 4, 4, 5, 2, seed=seed, scale=3.0), draw(2, 4, 3, seed=20, scale=3.0)
    scale = draw(2, 4, 4, 5, 2, seed=seed + 30, scale=0.5).exp()
    forecast = Forecast(
        position.requires_grad_(), logit.requires_grad_(), Frame.AGENT, pose, scale=scale
    )
    return forecast, draw(2, 4, 5, 2, seed=22, scale=3.0), torch.ones(2, 4, 5, dtype=torch.bool)


@EVERY_LOSS
def test_a_loss_is_independent_of_the_frame_of_the_batch(name: str) -> None:
    forecast, target, valid = make(name)
    pose, angle = forecast.pose, torch.tensor(1.3)
    expected = LOSSES[name](forecast, target, valid)
    turned = torch.cat([rotate(pose[..., :2], angle), pose[..., 2:] + angle], -1)
    assert_close(
        LOSSES[name](replace(forecast, pose=turned), rotate(target, angle), valid), expected
    )
    at_origin = replace(forecast, pose=torch.zeros_like(pose))
    assert_close(LOSSES[name](at_origin, to_frame(target, pose[:, :, None]), valid), expected)
    if name != "regions":
        position = from_frame(forecast.position, pose[:, :, None, None])
        terms = LOSSES[name](
            replace(forecast, position=position, frame=Frame.SCENE, pose=None), target, valid
        )
        for term in {
            "classification",
            "confidence",
        } & terms.keys():  # all others depend on the directions of the axes
            assert_close(terms[term], expected[term])


@EVERY_LOSS
def test_invalid_steps_are_ignored(name: str) -> None:
    forecast, target, valid = make(name)
    valid[..., 3:] = False
    short = replace(
        forecast, position=forecast.position[..., :3, :], scale=forecast.scale[..., :3, :]
    )
    expected = LOSSES[name](short, target[..., :3, :], valid[..., :3])
    for garbage in (0.0, 1e4):
        terms = LOSSES[name](forecast, torch.where(valid[..., None], target, garbage), valid)
        assert_close(terms, expected)
    terms["loss"].backward()
    assert not forecast.position.grad[..., 3:, :].any() and forecast.position.grad.any()


@EVERY_LOSS
def test_agents_without_a_known_future_are_ignored(name: str) -> None:
    forecast, target, valid = make(name)
    known, valid[:, 1::2] = slice(None, None, 2), False
    fields = (
        ("position", "pose", "scale")
        if name == "worlds"
        else ("position", "pose", "scale", "logit")
    )
    fewer = {field: getattr(forecast, field)[:, known] for field in fields}
    terms = LOSSES[name](forecast, target, valid)
    assert_close(terms, LOSSES[name](replace(forecast, **fewer), target[:, known], valid[:, known]))
    terms["loss"].backward()
    assert not forecast.position.grad[:, 1::2].any() and forecast.position.grad[:, known].any()
    assert name == "worlds" or not forecast.logit.grad[:, 1::2].any()


@EVERY_LOSS
def test_without_valid_steps_loss_and_gradient_are_zero(name: str) -> None:
    forecast, target, valid = make(name)
    terms = LOSSES[name](forecast, target, torch.zeros_like(valid))
    assert all(value == 0 for value in terms.values())
    terms["loss"].backward()
    assert not forecast.position.grad.any() and not forecast.logit.grad.any()


@EVERY_LOSS
def test_earlier_layers_have_the_same_loss(name: str) -> None:
    forecast, target, valid = make(name)
    layers = tuple(make(name, seed)[0] for seed in (7, 8))
    last, *alone = (LOSSES[name](layer, target, valid)["loss"] for layer in (forecast, *layers))
    terms = LOSSES[name](replace(forecast, auxiliary=layers), target, valid)
    assert terms["auxiliary"].item() == pytest.approx(sum(alone).item() / 2, rel=1e-5)
    assert terms["loss"].item() == pytest.approx((last + 0.4 * terms["auxiliary"]).item(), rel=1e-5)
    terms["loss"].backward()
    assert all(
        layer.position.grad.any() and layer.logit.grad.any() for layer in (forecast, *layers)
    )
    assert [term for term, value in terms.items() if value.requires_grad] == ["loss"]


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("set", {"logit": torch.zeros(2, 4)}, "set_loss: expected a marginal forecast"),
        ("worlds", {"logit": torch.zeros(2, 4, 4)}, "world_loss: expected a joint forecast"),
        ("mixture", {"logit": torch.zeros(2, 4)}, "with a scale"),
        ("mixture", {"scale": None}, "with a scale"),
        ("regions", {"logit": torch.zeros(2, 4)}, "a multiple of 2 modes"),
        ("regions", {"pose": None}, "a multiple of 2 modes"),
        ("regions", {"position": torch.zeros(2, 4, 3, 5, 2)}, "a multiple of 2 modes"),
    ],
)
def test_unsuitable_forecasts_are_errors(
    name: str, changes: dict[str, Tensor | None], error: str
) -> None:
    forecast, target, valid = make(name)
    with pytest.raises(ValueError, match=error):
        LOSSES[name](replace(forecast, **changes), target, valid)
