"""Fewer modes for many: the trajectory aggregation of MultiPath++ and Wayformer (appendix C), for any marginal forecast.

Read as follows. Centres are chosen greedily: each is the mode with the most probability within a distance of its end point
that no earlier centre covers. They are refined like those of k-means: every mode goes to the centre with the nearest end
point, a centre becomes the mean of its modes, weighted by probability. Where fewer centres than wanted cover everything,
the most probable modes left are centres, too, so that every agent has as many modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast


@dataclass(frozen=True)
class AggregationConfig:
    """How modes are merged; the defaults are the paper's for Argoverse 1.

    Attributes:
        distance_m: D, a centre covers the modes whose end points are nearer than this.
        iterations: refinements of the centres.
    """

    distance_m: float = 2.9
    iterations: int = 5


def aggregate(forecast: Forecast, num_modes: int, config: AggregationConfig = AggregationConfig()) -> Forecast:
    """Merge K modes into `num_modes` <= K; their probabilities are those of the modes they stand for.

    A spread is that of the mixture of the merged modes. The probability of a centre that keeps no mode is next to none.

    Raises:
        ValueError: the forecast is joint.
    """
    if forecast.is_joint:
        raise ValueError("aggregate: modes of a joint forecast are worlds, which do not mix")
    position, probability = forecast.position.float(), forecast.probability()
    end = position[..., -1, :]
    centres = forecast.select(_cover(pairwise_distances(end, end) < config.distance_m, probability, num_modes))
    mean = centres.position.float()
    for _ in range(config.iterations):
        share, mass = _shares(_nearest(end, mean), probability, num_modes)
        mean = torch.where(mass > 0, _mix(share, position), mean)
    own = _nearest(end, mean)
    share, mass = _shares(own, probability, num_modes)
    scale = None
    if forecast.scale is not None and centres.scale is not None:
        apart = position - mean.gather(2, own[..., None, None].expand_as(position))
        square = _mix(share, forecast.scale.float().square() + apart.square())
        scale = torch.where(mass > 0, square, centres.scale.float().square()).sqrt()
    logit = mass[..., 0, 0].clamp(min=torch.finfo(mass.dtype).tiny).log()
    return replace(centres, position=mean, logit=logit, scale=scale)


def _cover(near: Tensor, probability: Tensor, count: int) -> Tensor:
    """Indices [B, S, count] of modes that together cover the most probability; near is bool [B, S, K, K]."""
    bare, chosen = torch.ones_like(probability, dtype=torch.bool), []
    taken = torch.zeros_like(bare)
    for _ in range(count):
        gain = (near * (probability * bare)[..., None, :]).sum(-1)
        worth = torch.where(bare.any(-1, keepdim=True), gain, probability).masked_fill(taken, -1.0)
        best = worth.argmax(-1, keepdim=True)
        chosen.append(best)
        taken = taken.scatter(-1, best, True)
        bare = bare & ~near.gather(-2, best[..., None].expand(*best.shape, near.shape[-1])).squeeze(-2)
    return torch.cat(chosen, -1)


def _nearest(end: Tensor, mean: Tensor) -> Tensor:
    """Int64 [B, S, K]: of which centre [B, S, k, F, 2] the end is the nearest to each end [B, S, K, 2]."""
    return pairwise_distances(end, mean[..., -1, :]).argmin(-1)


def _shares(own: Tensor, probability: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each mode's share in its centre [B, S, K, k], zero in all others, and the centres' probability [B, S, k, 1, 1]."""
    weight = torch.zeros(*own.shape, count, device=own.device).scatter(-1, own[..., None], probability[..., None])
    mass = weight.sum(2)
    return weight / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, :, None], mass[..., None, None]


def _mix(share: Tensor, x: Tensor) -> Tensor:
    """Shares [B, S, K, k] of x [B, S, K, F, 2] to [B, S, k, F, 2]."""
    with torch.autocast(x.device.type, enabled=False):  # places in half precision would be decimetres off
        return torch.einsum("bnkc,bnkfx->bncfx", share, x)
