"""The mixture loss against torch.distributions, its gradients, and its selection by a recipe."""

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


def make(modes: int = 4, steps: int = 5) -> tuple[Forecast, Tensor, Tensor]:
    """A random mixture for 2 x 3 agents with gradients; futures with gaps, one of which is unknown."""
    position, logit = (
        draw(2, 3, modes, steps, 2, scale=3.0).requires_grad_(),
        draw(2, 3, modes, seed=1).requires_grad_(),
    )
    scale = draw(2, 3, modes, steps, 2, seed=2, scale=0.5).exp().requires_grad_()
    valid = torch.rand(2, 3, steps, generator=torch.Generator().manual_seed(3)) > 0.3
    valid[1, 2] = False
    return (
        Forecast(position, logit, Frame.SCENE, scale=scale),
        draw(2, 3, steps, 2, seed=4, scale=3.0),
        valid,
    )


def reference(
    forecast: Forecast, target: Tensor, valid: Tensor, config: MixtureLossConfig
) -> dict[str, float]:
    terms: dict[str, list[Tensor]] = {"classification": [], "regression": []}
    for b, s in valid.any(-1).nonzero().tolist():
        steps, truth = valid[b, s], target[b, s][valid[b, s]]
        distances = [(mode[steps] - truth).norm() for mode in forecast.position[b, s]]
        i = min(range(len(distances)), key=lambda k: distances[k])
        sigma = forecast.scale[b, s, i][steps].clamp(min=config.least_m)
        future = Independent(Normal(forecast.position[b, s, i][steps], sigma), 2)
        terms["regression"].append(-future.log_prob(truth))
        terms["classification"].append(
            -Categorical(logits=forecast.logit[b, s]).log_prob(torch.tensor(i))
        )
    means = {name: torch.stack(values).mean().item() for name, values in terms.items()}
    return means | {
        "loss": config.classification * means["classification"]
        + config.regression * means["regression"]
    }


@pytest.mark.parametrize("least", [0.01, 1.0])
def test_equals_the_likelihood_of_torch_distributions(least: float) -> None:
    forecast, target, valid = make()
    config = replace(CONFIG, least_m=least)
    terms = {
        name: value.item() for name, value in mixture_loss(forecast, target, valid, config).items()
    }
    assert terms == pytest.approx(reference(forecast, target, valid, config), rel=1e-5)


@pytest.mark.parametrize(
    ("sigma", "error", "slope"),
    [
        (0.05, 0.05, 0.0),  # below the bound, with a small error: no gradient
        (0.0, 0.3, 1 / 0.1 - 0.09 / 0.1**3),
        (
            0.05,
            0.3,
            1 / 0.1 - 0.09 / 0.1**3,
        ),  # below the bound, with a large error: gradient at the bound
        (0.1, 0.3, 1 / 0.1 - 0.09 / 0.1**3),
        (0.2, 0.3, 1 / 0.2 - 0.09 / 0.2**3),
        (0.4, 0.3, 1 / 0.4 - 0.09 / 0.4**3),
    ],
)
def test_sigma_below_the_bound_receives_a_gradient_from_large_errors_only(
    sigma: float, error: float, slope: float
) -> None:
    scale = torch.full((1, 1, 1, 1, 2), sigma, requires_grad=True)
    forecast = Forecast(
        torch.tensor([error, -error]).expand(1, 1, 1, 1, 2),
        torch.zeros(1, 1, 1),
        Frame.SCENE,
        scale=scale,
    )
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    terms = mixture_loss(forecast, torch.zeros(1, 1, 1, 2), valid, MixtureLossConfig(least_m=0.1))
    terms["loss"].backward()
    assert scale.grad.flatten().tolist() == pytest.approx([slope, slope], rel=1e-4)
    density = Normal(torch.zeros(2), max(sigma, 0.1)).log_prob(torch.tensor([error, error])).sum()
    assert terms["loss"].item() == pytest.approx(-density.item(), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_scales_gradients_by_sigma(beta: float) -> None:
    """The gradient of a mean is error / sigma^(2 - 2 beta); the gradient of log sigma is multiplied by sigma^(2 beta)."""
    error, sigma = torch.tensor([[0.3, -0.2], [4.0, -9.0]]), torch.tensor([[0.2, 0.5], [3.0, 6.0]])
    position, log_scale = error.clone().requires_grad_(), sigma.log().requires_grad_()
    shape = (1, 1, 1, 2, 2)
    forecast = Forecast(
        position.view(shape), torch.zeros(1, 1, 1), Frame.SCENE, scale=log_scale.exp().view(shape)
    )
    known = torch.ones(1, 1, 2, dtype=torch.bool)
    mixture_loss(forecast, torch.zeros(1, 1, 2, 2), known, MixtureLossConfig(beta=beta))[
        "loss"
    ].backward()
    torch.testing.assert_close(position.grad, error / sigma ** (2 - 2 * beta))
    torch.testing.assert_close(log_scale.grad, sigma ** (2 * beta) * (1 - (error / sigma).square()))
