"""Guarantees of all losses: frames, unknown steps and agents, earlier layers, and errors."""

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
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.losses.terms import Terms
from trajformer.losses.world_loss import WorldLossConfig, world_loss
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
    """Four modes of 2 x 4 agents in their frames with gradients, targets and a mask (all valid)."""
    shape = (2, 4) if name == "worlds" else (2, 4, 4)
    logit = draw(*shape, seed=seed).requires_grad_()
    position = draw(2, 4, 4, 5, 2, seed=seed, scale=3.0).requires_grad_()
    pose = draw(2, 4, 3, seed=20, scale=3.0)
    scale = draw(2, 4, 4, 5, 2, seed=seed + 30, scale=0.5).exp()
    target = draw(2, 4, 5, 2, seed=22, scale=3.0)
    valid = torch.ones(2, 4, 5, dtype=torch.bool)
    return Forecast(position, logit, Frame.AGENT, pose, scale=scale), target, valid


@EVERY_LOSS
def test_a_loss_is_independent_of_the_frame_of_the_batch(name: str) -> None:
    forecast, target, valid = make(name)
    loss = LOSSES[name]
    expected = loss(forecast, target, valid)

    pose = forecast.pose
    angle = torch.tensor(1.3)
    rotated_pose = torch.cat([rotate(pose[..., :2], angle), pose[..., 2:] + angle], -1)
    rotated = loss(replace(forecast, pose=rotated_pose), rotate(target, angle), valid)
    assert_close(rotated, expected)

    at_origin = replace(forecast, pose=torch.zeros_like(pose))
    assert_close(loss(at_origin, to_frame(target, pose[:, :, None]), valid), expected)


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("set", "classification"),
        ("set", "confidence"),
        ("mixture", "classification"),
        ("worlds", "classification"),
    ],
)
def test_terms_of_distances_are_equal_in_all_frames(name: str, term: str) -> None:
    """Other terms depend on the directions of the axes."""
    forecast, target, valid = make(name)
    position = from_frame(forecast.position, forecast.pose[:, :, None, None])
    in_batch_frame = replace(forecast, position=position, frame=Frame.SCENE, pose=None)
    terms = LOSSES[name](in_batch_frame, target, valid)
    assert_close(terms[term], LOSSES[name](forecast, target, valid)[term])


@EVERY_LOSS
def test_invalid_steps_are_ignored(name: str) -> None:
    forecast, target, valid = make(name)
    valid[..., 3:] = False
    position = forecast.position[..., :3, :]
    short = replace(forecast, position=position, scale=forecast.scale[..., :3, :])
    expected = LOSSES[name](short, target[..., :3, :], valid[..., :3])
    for garbage in (0.0, 1e4):
        changed = torch.where(valid[..., None], target, garbage)
        terms = LOSSES[name](forecast, changed, valid)
        assert_close(terms, expected)
    terms["loss"].backward()
    assert not forecast.position.grad[..., 3:, :].any()
    assert forecast.position.grad.any()


@EVERY_LOSS
def test_agents_without_a_known_future_are_ignored(name: str) -> None:
    forecast, target, valid = make(name)
    known = slice(None, None, 2)
    valid[:, 1::2] = False
    fields = ["position", "pose", "scale"]
    if name != "worlds":
        fields.append("logit")
    kept = {field: getattr(forecast, field)[:, known] for field in fields}
    expected = LOSSES[name](replace(forecast, **kept), target[:, known], valid[:, known])
    terms = LOSSES[name](forecast, target, valid)
    assert_close(terms, expected)

    terms["loss"].backward()
    assert not forecast.position.grad[:, 1::2].any()
    assert forecast.position.grad[:, known].any()
    if name != "worlds":
        assert not forecast.logit.grad[:, 1::2].any()


@EVERY_LOSS
def test_without_valid_steps_loss_and_gradient_are_zero(name: str) -> None:
    forecast, target, valid = make(name)
    terms = LOSSES[name](forecast, target, torch.zeros_like(valid))
    assert all(value == 0 for value in terms.values())
    terms["loss"].backward()
    assert not forecast.position.grad.any()
    assert not forecast.logit.grad.any()


@EVERY_LOSS
def test_earlier_layers_have_the_same_loss(name: str) -> None:
    forecast, target, valid = make(name)
    layers = (make(name, 7)[0], make(name, 8)[0])
    last = LOSSES[name](forecast, target, valid)["loss"]
    earlier = [LOSSES[name](layer, target, valid)["loss"].item() for layer in layers]
    terms = LOSSES[name](replace(forecast, auxiliary=layers), target, valid)
    assert terms["auxiliary"].item() == pytest.approx(sum(earlier) / 2, rel=1e-5)
    expected = last + 0.4 * terms["auxiliary"]
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-5)

    terms["loss"].backward()
    for layer in (forecast, *layers):
        assert layer.position.grad.any()
        assert layer.logit.grad.any()
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
