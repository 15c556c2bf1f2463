"""Loss of mmTransformer with the region-based training strategy (Liu et al. 2021, section 3.4).

Proposals belong to M regions, N to each. Only the proposals of the region with the true end point are trained: the regression
loss is Huber on offsets from step to step (or on positions) of all N or of the nearest one, the confidence loss is the KL
divergence of their scores from softmax(-FDE). The classification loss is a cross-entropy over regions; the probability of a
region is the sum over its proposals. The three are weighted by learned uncertainties (Kendall et al. 2018). Every social decoder
layer has the same losses and uncertainties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import Config
from trajformer.losses.set_loss import huber, last_valid, pairwise_errors
from trajformer.losses.terms import Terms, combine
from trajformer.models.mmtransformer.regions import region_of
from trajformer.scenes.geometry import to_frame

TERMS = ("regression", "confidence", "classification")


@dataclass(frozen=True)
class RegionLossConfig(Config, positive=("huber_m", "temperature_m")):
    """Choices that the paper leaves open.

    Attributes:
        error: input of the Huber loss: offsets from step to step (the paper), or positions, which the metrics measure; errors of
            offsets are small, but accumulate.
        learn: proposals that receive the Huber loss: all N of the region (the paper's text), or the nearest one. With all, they
            learn the same path, the median of the region: after 12 epochs on Argoverse 1, their end points were within 5 cm.
        huber_m: error at which Huber changes from quadratic to linear, metres.
        temperature_m: temperature of softmax(-FDE / temperature), metres.
        auxiliary: weight of the mean loss of the earlier decoder layers.
    """

    error: Literal["offsets", "positions"] = "offsets"
    learn: Literal["all", "nearest"] = "all"
    huber_m: float = 1.0
    temperature_m: float = 1.0
    auxiliary: float = 1.0

    def build(self) -> RegionLoss:
        """The loss with these weights."""
        return RegionLoss(self)


class RegionLoss(nn.Module):
    """`region_loss` of a model with `regions` [M, 3], with learned variances of its terms."""

    def __init__(self, config: RegionLossConfig) -> None:
        super().__init__()
        self.config = config
        self.log_variance = nn.Parameter(torch.zeros(len(TERMS)))

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        forecast, truth = model(batch.observation), batch.truth
        return region_loss(forecast, truth.position, truth.valid, model.regions, self.log_variance, self.config)


def region_loss(
    forecast: Forecast, target: Tensor, valid: Tensor, regions: Tensor, log_variance: Tensor, config: RegionLossConfig
) -> Terms:
    """The loss of a marginal forecast in which the modes k * N to (k + 1) * N - 1 belong to region k.

    Args:
        forecast: M * N modes of B x S agents, in the frames of the agents.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are ignored. The end point is the last valid position.
        regions: [M, 3], see `regions.py`.
        log_variance: [3], logarithms of the learned variances of the terms, in the order of `TERMS`.
        config: the choices.

    Returns:
        Means over agents of "regression", "confidence" and "classification" of the last layer, "auxiliary" for the earlier
        layers, all detached, and the weighted sum "loss", which may be negative.

    Raises:
        ValueError: the forecast is joint, is not in agents' frames, or its number of modes is not a multiple of M.
    """
    if forecast.is_joint or forecast.pose is None or forecast.num_modes % len(regions):
        expected = f"expected marginal modes in agents' frames, a multiple of {len(regions)} modes"
        raise ValueError(f"region_loss: {forecast.num_modes} modes in frame {forecast.frame.name}, {expected}")
    target = to_frame(target, forecast.pose[:, :, None]).flatten(0, 1)
    valid = valid.flatten(0, 1)
    end = last_valid(valid)
    region = region_of(target.take_along_dim(end[:, None, None], 1).squeeze(1), regions)
    truth = (target, valid, region, len(regions))
    halved = torch.tensor([0.5, 1.0, 1.0], device=log_variance.device)

    def weigh(terms: Terms, _: object) -> Tensor:
        """Kendall et al. 2018: L / (2 var) for a regression, L / var for a classification, plus log(standard deviation)."""
        value = torch.stack([terms[name] for name in TERMS])
        return (halved * (-log_variance).exp() * value + 0.5 * log_variance).sum()

    return combine([_terms(layer, truth, config) for layer in (forecast, *forecast.auxiliary)], config, weigh)


def _terms(forecast: Forecast, truth: tuple[Tensor, Tensor, Tensor, int], config: RegionLossConfig) -> Terms:
    """Terms of one decoder layer; `truth`: futures [n, F, 2] and bool [n, F] of n agents, their regions [n], and M."""
    target, valid, region, count = truth
    known = valid.any(-1)
    agents = known.sum().clamp(min=1)
    position = forecast.position.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N, F, 2]
    logit = forecast.logit.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N]
    row = torch.arange(len(region), device=region.device)
    position, inside = position[row, region], logit[row, region]  # [n, N, F, 2], [n, N]
    expected, actual, mask = target, position, valid
    if config.error == "offsets":
        expected, actual = _offsets(target), _offsets(position)
        mask = valid & F.pad(valid[..., :-1], (1, 0), value=True)
    error, _ = huber(actual - expected[:, None], mask[:, None], config.huber_m)  # [n, N]
    fde = pairwise_errors(position.detach(), target[:, None], valid[:, None])[1].squeeze(-1)  # [n, N]
    error = error.mean(1) if config.learn == "all" else error.gather(1, fde.argmin(1, keepdim=True)).squeeze(1)
    confidence = (-fde / config.temperature_m).softmax(-1)
    divergence = F.kl_div(inside.log_softmax(-1), confidence, reduction="none").sum(-1)
    cross_entropy = logit.flatten(1).logsumexp(-1) - inside.logsumexp(-1)
    values = dict(zip(TERMS, (error, divergence, cross_entropy), strict=True))
    return {name: torch.where(known, value, 0.0).sum() / agents for name, value in values.items()}


def _offsets(position: Tensor) -> Tensor:
    """Offsets [..., F, 2] from step to step, the first one from the origin."""
    return position - F.pad(position[..., :-1, :], (0, 0, 1, 0))
