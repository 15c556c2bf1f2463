"""Merge K modes into fewer: the trajectory aggregation of Wayformer (Nayakanti et al. 2022, appendix C) and MultiPath++.

The paper covers the modes greedily by likelihood within an end-point distance D, then refines the chosen modes like k-means, with
probability-weighted means. For Argoverse 1, D is 2.9 m, with 5 iterations and at most 6 modes.

This implementation:
1. Cover: choose the mode with the largest probability mass within D of its end point, ignoring modes covered before; repeat.
2. Refine: assign each mode to the center with the nearest end point; a center becomes the mean of its modes, weighted by
   probability; repeat.
It differs from the paper in the number of modes: it always returns `num_modes`. If fewer centers cover all modes, the most
probable of the other modes become centers too. The paper returns at most 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers


@dataclass(frozen=True)
class AggregationConfig:
    """How modes are merged; the defaults are the paper's for Argoverse 1.

    Attributes:
        distance_m: D, a center covers modes with an end point closer than this.
        iterations: number of refinements of the centers.
    """

    distance_m: float = 2.9
    iterations: int = 5

    def __post_init__(self) -> None:
        check_numbers(self, positive=("distance_m",))


def aggregate(forecast: Forecast, num_modes: int, config: AggregationConfig = AggregationConfig()) -> Forecast:
    """Merge K modes into `num_modes` <= K; the probability of a merged mode is the sum over its modes.

    `scale` is the standard deviation of the mixture of the merged modes. A center without modes has a probability near zero.

    Raises:
        ValueError: the forecast is joint.
    """
    if forecast.is_joint:
        raise ValueError("aggregate: the forecast is joint, expected marginal modes")
    position, probability = forecast.position.float(), forecast.probability()
    end = position[..., -1, :]
    centers = forecast.select(_cover(pairwise_distances(end, end) < config.distance_m, probability, num_modes))
    mean = centers.position.float()
    for _ in range(config.iterations):
        share, mass = _shares(_nearest(end, mean), probability, num_modes)
        mean = torch.where(mass > 0, _weighted_mean(share, position), mean)
    center = _nearest(end, mean)
    share, mass = _shares(center, probability, num_modes)
    scale = None
    if forecast.scale is not None and centers.scale is not None:
        deviation = position - mean.gather(2, center[..., None, None].expand_as(position))
        variance = _weighted_mean(share, forecast.scale.float().square() + deviation.square())
        scale = torch.where(mass > 0, variance, centers.scale.float().square()).sqrt()
    logit = mass[..., 0, 0].clamp(min=torch.finfo(mass.dtype).tiny).log()
    return replace(centers, position=mean, logit=logit, scale=scale)


def _cover(close: Tensor, probability: Tensor, count: int) -> Tensor:
    """Greedy choice of modes that cover the most probability: indices [B, S, count].

    Args:
        close: bool [B, S, K, K], pairs of modes that cover each other.
        probability: [B, S, K].
        count: number of modes to choose.
    """
    uncovered, chosen = torch.ones_like(probability, dtype=torch.bool), []
    taken = torch.zeros_like(uncovered)
    for _ in range(count):
        gain = (close * (probability * uncovered)[..., None, :]).sum(-1)
        score = torch.where(uncovered.any(-1, keepdim=True), gain, probability).masked_fill(taken, -1.0)
        best = score.argmax(-1, keepdim=True)  # [B, S, 1]
        chosen.append(best)
        taken = taken.scatter(-1, best, True)
        uncovered = uncovered & ~close.gather(-2, best[..., None].expand(*best.shape, close.shape[-1])).squeeze(-2)
    return torch.cat(chosen, -1)


def _nearest(end: Tensor, mean: Tensor) -> Tensor:
    """Int64 [B, S, K], for each end point [B, S, K, 2] the index of the nearest end point of the centers [B, S, k, F, 2]."""
    return pairwise_distances(end, mean[..., -1, :]).argmin(-1)


def _shares(center: Tensor, probability: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each mode's share in the mass of its center [B, S, K, k], zero for other centers, and the masses [B, S, k, 1, 1]."""
    weight = torch.zeros(*center.shape, count, device=center.device).scatter(-1, center[..., None], probability[..., None])
    mass = weight.sum(2)
    return weight / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, :, None], mass[..., None, None]


def _weighted_mean(share: Tensor, x: Tensor) -> Tensor:
    """Shares [B, S, K, k] and values [B, S, K, F, 2] to [B, S, k, F, 2]."""
    with torch.autocast(x.device.type, enabled=False):  # half precision rounds positions by decimetres
        return torch.einsum("bnkc,bnkfx->bncfx", share, x)
