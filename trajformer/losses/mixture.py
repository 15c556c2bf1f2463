"""Negative log-likelihood of a Gaussian mixture over futures (Wayformer, eq. 1; MultiPath).

The loss is -log p(i) - log N(truth | mode i). Mode i has the mean with the smallest sum of squared
distances to the truth over the valid steps (as in MultiPath). Coordinates and steps are independent
given the mode, and only valid steps enter the density.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.losses.terms import LossConfig, Terms, combine, total
from trajformer.scenes.geometry import to_frame


@dataclass(frozen=True)
class MixtureLossConfig(LossConfig, positive=("min_sigma_m",)):
    """Weights of the terms.

    Attributes:
        classification: -log p(i).
        regression: -log N(truth | mode i).
        auxiliary: weight of the terms of earlier decoder layers.
        min_sigma_m: lower bound on sigma, in metres. Below the bound, sigma receives a gradient
            only if the error is larger.
        beta: the terms of a coordinate are multiplied by sigma^(2 beta) without gradient (Seitzer
            et al., ICLR 2022). With 0, the density of the paper, the gradient of a mean is error /
            sigma^2, so that early, certain steps dominate; with 1 it is the error, as for squared
            errors.
    """

    classification: float = 1.0
    regression: float = 1.0
    auxiliary: float = 0.5
    min_sigma_m: float = 0.1
    beta: float = 0.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`mixture_loss` of the model's forecast."""
        return mixture_loss(model(batch.observation), batch.truth.position, batch.truth.valid, self)


def mixture_loss(
    forecast: Forecast, target: Tensor, valid: Tensor, config: MixtureLossConfig
) -> Terms:
    """The loss of a marginal forecast of K modes with a spread, sigma.

    The target is [B, S, F, 2] in the batch frame, `valid` bool [B, S, F]; agents without a valid
    step are ignored. Returns means over agents: "classification" and "regression" of the last
    layer, "auxiliary" of the earlier layers, and the weighted sum "loss" with its gradient. Raises
    ValueError: the forecast is joint or has no scale.
    """
    if forecast.is_joint or forecast.scale is None:
        raise ValueError("mixture_loss: expected a marginal forecast [B, S, K] with a scale")
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    layers = (forecast, *forecast.auxiliary)
    return combine([_layer_terms(layer, target, valid, config) for layer in layers], config)


def _layer_terms(
    forecast: Forecast, target: Tensor, valid: Tensor, config: MixtureLossConfig
) -> Terms:
    """Terms of one decoder layer."""
    assert forecast.scale is not None
    # The mode with the nearest mean.
    all_errors = forecast.position - target[:, :, None]  # [B, S, K, F, 2]
    squared_distance = all_errors.detach().square().sum(-1) * valid[:, :, None]
    mode = squared_distance.sum(-1).argmin(-1, keepdim=True)  # [B, S, 1]
    index = mode[..., None, None]
    error = all_errors.take_along_dim(index, 2).squeeze(2)  # [B, S, F, 2]
    sigma = forecast.scale.take_along_dim(index, 2).squeeze(2)  # [B, S, F, 2]

    # Below the lower bound, the gradient passes only if the error is larger: then it leads back
    # above the bound.
    bounded = sigma.clamp(min=config.min_sigma_m)
    with_gradient = sigma + (bounded - sigma).detach()
    sigma = torch.where(error.detach().abs() > bounded, with_gradient, bounded)

    nll = 0.5 * (error / sigma).square() + sigma.log() + 0.5 * math.log(2 * math.pi)
    if config.beta:
        nll = nll * sigma.detach().pow(2 * config.beta)

    known = valid.any(-1)
    count = total(known)
    log_probability = forecast.logit.log_softmax(-1).gather(-1, mode).squeeze(-1)
    return {
        "classification": -(log_probability * known).sum() / count,
        "regression": (nll.sum(-1) * valid).sum() / count,
    }
