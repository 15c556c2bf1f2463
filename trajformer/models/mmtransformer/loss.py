"""mmTransformer's losses with its region-based training strategy (Liu et al. 2021, section 3.4).

Of M x N proposals the N of the region that holds the true end point are trained, all of them (or the nearest): Huber on the
offsets from step to step (or on the positions they add up to), and the KL divergence of their scores among themselves from
softmax(-FDE). Cross-entropy over regions, a region's probability being the sum of its proposals', divides the probability
between regions. The three are weighed by learned uncertainties (Kendall et al. 2018). Every social decoder layer gets the same
losses, with the same uncertainties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.set_loss import last_valid, pairwise_errors
from trajformer.losses.terms import Terms, combine
from trajformer.models.mmtransformer.regions import region_of
from trajformer.scenes.geometry import to_frame

TERMS = ("regression", "confidence", "classification")


@dataclass(frozen=True)
class RegionLossConfig:
    """What the paper leaves open.

    Attributes:
        error: what Huber is of. The paper's offsets from step to step are small, and their errors add up unseen; positions are
            what metrics measure.
        learn: which of the region's proposals Huber is for. All of them is how the paper reads; but all then learn the same path,
            the region's median one: after 12 epochs of Argoverse 1 their ends lay within 5 cm of each other. With the nearest
            they share the region among them.
        huber_m: where Huber turns from quadratic to linear, metres.
        temperature_m: of softmax(-FDE / temperature), metres.
        auxiliary: weight of the mean over the earlier decoder layers' losses.
    """

    error: Literal["offsets", "positions"] = "offsets"
    learn: Literal["all", "nearest"] = "all"
    huber_m: float = 1.0
    temperature_m: float = 1.0
    auxiliary: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("huber_m", "temperature_m"))

    def build(self) -> RegionLoss:
        """The loss with these weights."""
        return RegionLoss(self)


class RegionLoss(nn.Module):
    """`region_loss` of a model with `regions` [M, 3]; it learns the variances of its terms."""

    def __init__(self, config: RegionLossConfig) -> None:
        super().__init__()
        self.config = config
        self.log_variance = nn.Parameter(torch.zeros(len(TERMS)))

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        forecast, truth = model(batch.observation), batch.truth
        return region_loss(forecast, truth.position, truth.valid, model.regions, self.log_variance, self.config)


def region_loss(
    forecast: Forecast, target: Tensor, valid: Tensor, regions: Tensor, log_variance: Tensor, config: RegionLossConfig
) -> Terms:
    """The loss of a marginal forecast whose proposals k * N to (k + 1) * N - 1 are those of region k.

    Args:
        forecast: M * N modes of B x S agents, in their own frames.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step do not count. The last valid one is an agent's end point.
        regions: [M, 3], see `models.regions`.
        log_variance: [3], logarithms of the learned variances of the terms, in the order of `TERMS`.

    Returns:
        Means over agents of the last layer's "regression", "confidence" and "classification", what the earlier layers add,
        "auxiliary", and "loss", the weighted sum (the only one with a gradient to use; it may be negative).

    Raises:
        ValueError: the forecast is joint, is not in agents' frames, or has another number of modes than M * N.
    """
    if forecast.is_joint or forecast.pose is None or forecast.num_modes % len(regions):
        raise ValueError(f"region_loss: wants marginal forecasts in agents' frames with a multiple of {len(regions)} modes")
    target = to_frame(target, forecast.pose[:, :, None]).flatten(0, 1)
    valid = valid.flatten(0, 1)
    end = last_valid(valid)
    region = region_of(target.gather(1, end[:, None, None].expand(-1, 1, 2)).squeeze(1), regions)
    truth = (target, valid, region, len(regions))
    last, *earlier = [_terms(layer, truth, config) for layer in (forecast, *forecast.auxiliary)]
    return combine(last, earlier, config.auxiliary, lambda terms: _weigh(terms, log_variance))


def _weigh(terms: Terms, log_variance: Tensor) -> Tensor:
    """Kendall et al.: L / (2 var) of a regression, L / var of a classification, each with log of the deviation."""
    halved = torch.tensor([0.5, 1.0, 1.0], device=log_variance.device)
    value = torch.stack([terms[name] for name in TERMS])
    return (halved * (-log_variance).exp() * value + 0.5 * log_variance).sum()


def _terms(forecast: Forecast, truth: tuple[Tensor, Tensor, Tensor, int], config: RegionLossConfig) -> Terms:
    target, valid, region, count = truth
    known = valid.any(-1)
    agents = known.sum().clamp(min=1)
    position = forecast.position.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N, F, 2]
    logit = forecast.logit.flatten(0, 1).unflatten(1, (count, -1))
    row = torch.arange(len(region), device=region.device)
    position, inside = position[row, region], logit[row, region]  # [n, N, F, 2], [n, N]
    goal, counts, found = target, valid, position
    if config.error == "offsets":
        (goal, counts), (found, _) = _steps(target, valid), _steps(position)
    error = F.smooth_l1_loss(found, goal[:, None].expand_as(found), reduction="none", beta=config.huber_m)
    error = (error.sum(-1) * counts[:, None]).sum(-1) / counts.sum(-1).clamp(min=1)[:, None]  # [n, N]
    fde = pairwise_errors(position.detach(), target[:, None], valid[:, None])[1].squeeze(-1)
    error = error.mean(1) if config.learn == "all" else error.gather(1, fde.argmin(1, keepdim=True)).squeeze(1)
    wanted = (-fde / config.temperature_m).softmax(-1)
    divergence = F.kl_div(inside.log_softmax(-1), wanted, reduction="none").sum(-1)
    surprise = logit.flatten(1).logsumexp(-1) - inside.logsumexp(-1)
    values = dict(zip(TERMS, (error, divergence, surprise), strict=True))
    return {name: torch.where(known, value, 0.0).sum() / agents for name, value in values.items()}


def _steps(position: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Offsets [..., F, 2] from step to step, the first from the origin, and bool [..., F]: those between known places."""
    valid = torch.ones(position.shape[:-1], dtype=torch.bool, device=position.device) if valid is None else valid
    before = F.pad(position[..., :-1, :], (0, 0, 1, 0))
    return position - before, valid & F.pad(valid[..., :-1], (1, 0), value=True)
