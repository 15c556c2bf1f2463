"""The loss of mmTransformer's region-based training strategy (Liu et al., CVPR 2021, section 3.4).

Only the N proposals of the region with the true end point are trained: the regression loss is Huber
of all or of the nearest one, the confidence loss the KL divergence of their scores from
softmax(-FDE). The classification loss is a cross-entropy over regions; the probability of a region
is the sum over its proposals. Learned uncertainties, the same for every social decoder layer, weigh
the three (Kendall et al. 2018).
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.losses.displacement import (
    confidence_divergence,
    huber,
    last_valid,
    pairwise_errors,
)
from trajformer.losses.terms import LossConfig, Terms, combine, total
from trajformer.models.mmtransformer.regions import region_of
from trajformer.scenes.geometry import to_frame

# Terms in the order of their learned variances. Kendall et al. divide a regression by twice its
# variance, and a classification by its variance.
_FACTORS = {"regression": 0.5, "confidence": 1.0, "classification": 1.0}


@dataclass(frozen=True)
class RegionLossConfig(LossConfig, positive=("huber_m", "temperature_m")):
    """Choices that the paper leaves open.

    Attributes:
        error: input of the Huber loss: offsets from step to step (the paper), or positions, which
            the metrics measure; errors of offsets are small, but accumulate.
        learn: proposals that receive the Huber loss: all N of the region (the paper's text), or the
            nearest one. With all, they learn the same path, the median of the region: after 12
            epochs on Argoverse 1, their end points were within 5 cm.
        huber_m: error at which Huber changes from quadratic to linear, metres.
        temperature_m: temperature of softmax(-FDE / temperature), metres.
        auxiliary: weight of the mean loss of the earlier decoder layers.
    """

    error: Literal["offsets", "positions"] = "offsets"
    learn: Literal["all", "nearest"] = "all"
    huber_m: float = 1.0
    temperature_m: float = 1.0
    auxiliary: float = 1.0

    def build(self) -> nn.Module:
        """The loss with these weights."""
        return RegionLoss(self)


class RegionLoss(nn.Module):
    """`region_loss` of a model with `regions` [M, 3], with learned variances of its terms."""

    def __init__(self, config: RegionLossConfig) -> None:
        super().__init__()
        self.config = config
        self.log_variance = nn.Parameter(torch.zeros(len(_FACTORS)))

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        forecast = model(batch.observation)
        truth = batch.truth
        return region_loss(
            forecast, truth.position, truth.valid, model.regions, self.log_variance, self.config
        )


class _Truth(NamedTuple):
    """The recorded futures of n agents, each in its frame."""

    position: Tensor  # [n, F, 2]
    valid: Tensor  # bool [n, F]
    region: Tensor  # int64 [n], the region of the end point
    num_regions: int  # M


def region_loss(
    forecast: Forecast,
    target: Tensor,
    valid: Tensor,
    regions: Tensor,
    log_variance: Tensor,
    config: RegionLossConfig,
) -> Terms:
    """The loss of a marginal forecast in agents' frames.

    The modes k * N to (k + 1) * N - 1 belong to region k. The target is [B, S, F, 2] in the batch
    frame, `valid` bool [B, S, F]; agents without a valid step are ignored, and the end point is the
    last valid position. `log_variance` [3] are logarithms of the learned variances of "regression",
    "confidence" and "classification".

    Returns means over agents of these terms for the last layer, "auxiliary" for the earlier layers,
    all detached, and the weighted sum "loss", which may be negative. Raises ValueError: the
    forecast is joint, is not in agents' frames, or its number of modes is not a multiple of M.
    """
    if forecast.is_joint or forecast.pose is None or forecast.num_modes % len(regions):
        expected = f"expected marginal modes in agents' frames, a multiple of {len(regions)} modes"
        raise ValueError(
            f"region_loss: {forecast.num_modes} modes in frame {forecast.frame.name}, {expected}"
        )
    position = to_frame(target, forecast.pose[:, :, None]).flatten(0, 1)  # [n, F, 2], n = B * S
    valid = valid.flatten(0, 1)
    last = last_valid(valid)[:, None, None]
    end = position.take_along_dim(last, 1).squeeze(1)  # [n, 2]
    truth = _Truth(position, valid, region_of(end, regions), len(regions))

    def weigh(terms: Terms, _: object) -> Tensor:
        """L / (2 var) or L / var, plus the logarithm of the standard deviation."""
        scaled = [factor * terms[name] for name, factor in _FACTORS.items()]
        return ((-log_variance).exp() * torch.stack(scaled) + 0.5 * log_variance).sum()

    layers = (forecast, *forecast.auxiliary)
    return combine([_layer_terms(layer, truth, config) for layer in layers], config, weigh)


def _layer_terms(forecast: Forecast, truth: _Truth, config: RegionLossConfig) -> Terms:
    """Terms of one decoder layer, means over the agents with a known future."""
    # The N proposals of the region with the true end point, of n agents.
    shape = (truth.num_regions, -1)
    row = torch.arange(len(truth.region), device=truth.region.device)
    all_logits = forecast.logit.flatten(0, 1).unflatten(1, shape)  # [n, M, N]
    logit = all_logits[row, truth.region]  # [n, N]
    all_positions = forecast.position.flatten(0, 1).unflatten(1, shape)  # [n, M, N, F, 2]
    position = all_positions[row, truth.region]  # [n, N, F, 2]

    error = _regression_errors(position, truth, config)  # [n, N]
    _, fde = pairwise_errors(position.detach(), truth.position[:, None], truth.valid[:, None])
    fde = fde.squeeze(-1)  # [n, N]
    if config.learn == "all":
        regression = error.mean(1)
    else:
        nearest = fde.argmin(1, keepdim=True)
        regression = error.gather(1, nearest).squeeze(1)
    log_all = all_logits.flatten(1).logsumexp(-1)
    terms = {
        "regression": regression,
        "confidence": confidence_divergence(logit, fde, config.temperature_m),
        "classification": log_all - logit.logsumexp(-1),
    }

    known = truth.valid.any(-1)
    agents = total(known)
    return {name: torch.where(known, value, 0.0).sum() / agents for name, value in terms.items()}


def _regression_errors(position: Tensor, truth: _Truth, config: RegionLossConfig) -> Tensor:
    """Huber loss [n, N] of proposals [n, N, F, 2], a mean over the valid steps."""
    if config.error == "positions":
        gap = position - truth.position[:, None]
        error, _ = huber(gap, truth.valid[:, None], config.huber_m)
        return error
    # An offset is valid if both of its steps are; the first one starts at the present.
    previous_valid = F.pad(truth.valid[..., :-1], (1, 0), value=True)
    valid = truth.valid & previous_valid
    gap = _offsets(position) - _offsets(truth.position)[:, None]
    error, _ = huber(gap, valid[:, None], config.huber_m)
    return error


def _offsets(position: Tensor) -> Tensor:
    """Offsets [..., F, 2] from step to step, the first one from the origin."""
    previous = F.pad(position[..., :-1, :], (0, 0, 1, 0))
    return position - previous
