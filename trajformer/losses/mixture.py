"""The loss of a Gaussian mixture over futures (Wayformer, eq. 1; MultiPath): -log p(i) - log N(truth | mode i).

i is the mode whose mean is nearest to the truth: the least sum of squared distances over the valid steps (MultiPath's
distance in the space of state sequences). Coordinates and steps are independent given the mode, so that the density of a
future is the product over its valid steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.terms import ForecastLoss, Terms, combine, weigh
from trajformer.scenes.geometry import to_frame


@dataclass(frozen=True)
class MixtureLossConfig:
    """Weights of the terms.

    Attributes:
        classification: -log p(i).
        regression: -log N(truth | mode i).
        auxiliary: weight of the earlier decoder layers' terms, where a forecast has them.
        least_m: a smaller sigma counts as this one, metres: a density must not pay for certainty beyond that of the labels.
            It has no gradient where it should be smaller still, and that of the bound where errors want it larger.
        beta: every coordinate's term is weighed by sigma^(2 beta), itself without a gradient (Seitzer et al., ICLR 2022). At 0,
            the paper's density, a mean is pulled by error / sigma^2, so that the surest steps, the first ones, are what is
            learned; at 1 by its error, as by squares.
    """

    classification: float = 1.0
    regression: float = 1.0
    auxiliary: float = 0.5
    least_m: float = 0.1
    beta: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("least_m",))

    def build(self) -> ForecastLoss:
        """The loss with these weights."""
        return ForecastLoss(mixture_loss, self)


def mixture_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: MixtureLossConfig) -> Terms:
    """The loss of a marginal forecast with a spread.

    Args:
        forecast: K modes of B x S agents; `scale` is sigma.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step do not count.

    Returns:
        Means over agents: "classification" and "regression" of the last layer, "auxiliary" of the others, and their
        weighted sum "loss" (the only one with a gradient to use).

    Raises:
        ValueError: the forecast is joint or has no spread.
    """
    if forecast.is_joint or forecast.scale is None:
        raise ValueError("mixture_loss: wants a marginal forecast [B, S, K] with a spread")
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    last, *earlier = [_terms(layer, target, valid, config) for layer in (forecast, *forecast.auxiliary)]
    return combine(last, earlier, config.auxiliary, lambda terms: weigh(terms, config))


def _terms(forecast: Forecast, target: Tensor, valid: Tensor, config: MixtureLossConfig) -> Terms:
    assert forecast.scale is not None
    error = forecast.position - target[:, :, None]  # [B, S, K, F, 2]
    apart = (error.detach().square().sum(-1) * valid[:, :, None]).sum(-1)
    nearest = apart.argmin(-1, keepdim=True)  # [B, S, 1]
    index = nearest[..., None, None].expand(*nearest.shape, *error.shape[3:])
    error, sigma = error.gather(2, index).squeeze(2), forecast.scale.gather(2, index).squeeze(2)
    sigma = _bounded(sigma, error.detach().abs(), config.least_m)
    surprise = 0.5 * (error / sigma).square() + sigma.log() + 0.5 * math.log(2 * math.pi)
    if config.beta:
        surprise = surprise * sigma.detach().pow(2 * config.beta)
    known = valid.any(-1)
    count = known.sum().clamp(min=1)
    chosen = forecast.logit.log_softmax(-1).gather(-1, nearest).squeeze(-1)
    return {
        "classification": -(chosen * known).sum() / count,
        "regression": (surprise.sum(-1) * valid).sum() / count,
    }


def _bounded(sigma: Tensor, error: Tensor, least: float) -> Tensor:
    """Sigma [...], `least` where it is smaller; the density of an error [...] that exceeds the bound widens it nevertheless."""
    bounded = sigma.clamp(min=least)
    # The slope of log N(error | sigma) is upwards where the error is larger than sigma: only such a one leads back.
    return torch.where(error > bounded, sigma + (bounded - sigma).detach(), bounded)
