"""The mixture loss against torch.distributions, and its gradients."""

from dataclasses import replace

import pytest
import torch
from support.tensors import draw
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss

CONFIG = MixtureLossConfig(classification=0.7, regression=0.3)


def make() -> tuple[Forecast, Tensor, Tensor]:
    """A random mixture of four modes for 2 x 3 agents with gradients, their futures and a mask.

    Futures have gaps, and one is unknown.
    """
    position = draw(2, 3, 4, 5, 2, scale=3.0).requires_grad_()
    logit = draw(2, 3, 4, seed=1).requires_grad_()
    scale = draw(2, 3, 4, 5, 2, seed=2, scale=0.5).exp().requires_grad_()
    target = draw(2, 3, 5, 2, seed=4, scale=3.0)
    valid = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(3)) > 0.3
    valid[1, 2] = False
    return Forecast(position, logit, Frame.SCENE, scale=scale), target, valid


@pytest.mark.parametrize("min_sigma_m", [0.01, 1.0])
def test_equals_the_likelihood_of_torch_distributions(min_sigma_m: float) -> None:
    forecast, target, valid = make()
    config = replace(CONFIG, min_sigma_m=min_sigma_m)
    terms = mixture_loss(forecast, target, valid, config)

    classifications = []
    regressions = []
    for b, s in valid.any(-1).nonzero().tolist():
        steps = valid[b, s]
        truth = target[b, s, steps]
        mean = forecast.position[b, s][:, steps]
        mode = (mean - truth).square().sum((-1, -2)).argmin()
        sigma = forecast.scale[b, s, mode][steps].clamp(min=min_sigma_m)
        future = Independent(Normal(mean[mode], sigma), 2)
        regressions.append(-future.log_prob(truth))
        classifications.append(-Categorical(logits=forecast.logit[b, s]).log_prob(mode))
    classification = torch.stack(classifications).mean().item()
    regression = torch.stack(regressions).mean().item()
    expected = {
        "classification": classification,
        "regression": regression,
        "loss": 0.7 * classification + 0.3 * regression,
    }
    values = {name: value.item() for name, value in terms.items()}
    assert values == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("sigma", "error", "slope"),
    [
        (0.05, 0.05, 0.0),  # below the bound, with a small error: no gradient
        (0.0, 0.3, 1 / 0.1 - 0.09 / 0.1**3),  # with a large error: gradient at the bound
        (0.05, 0.3, 1 / 0.1 - 0.09 / 0.1**3),
        (0.1, 0.3, 1 / 0.1 - 0.09 / 0.1**3),
        (0.2, 0.3, 1 / 0.2 - 0.09 / 0.2**3),
        (0.4, 0.3, 1 / 0.4 - 0.09 / 0.4**3),
    ],
)
def test_sigma_below_the_bound_receives_a_gradient_from_large_errors_only(
    sigma: float, error: float, slope: float
) -> None:
    position = torch.tensor([error, -error]).expand(1, 1, 1, 1, 2)
    scale = torch.full((1, 1, 1, 1, 2), sigma, requires_grad=True)
    forecast = Forecast(position, torch.zeros(1, 1, 1), Frame.SCENE, scale=scale)
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    config = MixtureLossConfig(min_sigma_m=0.1)
    terms = mixture_loss(forecast, torch.zeros(1, 1, 1, 2), valid, config)
    terms["loss"].backward()
    assert scale.grad is not None
    assert scale.grad.flatten().tolist() == pytest.approx([slope, slope], rel=1e-4)
    density = Normal(torch.zeros(2), max(sigma, 0.1)).log_prob(torch.tensor([error, error])).sum()
    assert terms["loss"].item() == pytest.approx(-density.item(), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_scales_gradients_by_sigma(beta: float) -> None:
    """The gradient of a mean is error / sigma^(2 - 2 beta), of log sigma times sigma^(2 beta)."""
    error = torch.tensor([[0.3, -0.2], [4.0, -9.0]])
    sigma = torch.tensor([[0.2, 0.5], [3.0, 6.0]])
    position = error.clone().requires_grad_()
    log_scale = sigma.log().requires_grad_()
    shape = (1, 1, 1, 2, 2)
    scale = log_scale.exp().view(shape)
    forecast = Forecast(position.view(shape), torch.zeros(1, 1, 1), Frame.SCENE, scale=scale)
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    config = MixtureLossConfig(beta=beta)
    terms = mixture_loss(forecast, torch.zeros(1, 1, 2, 2), valid, config)
    terms["loss"].backward()
    torch.testing.assert_close(position.grad, error / sigma ** (2 - 2 * beta))
    slope = 1 - (error / sigma).square()
    torch.testing.assert_close(log_scale.grad, sigma ** (2 * beta) * slope)
