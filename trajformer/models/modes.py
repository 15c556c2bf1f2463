"""Selection and scoring of a forecast's modes: end-point suppression, consensus, coverage."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast

_TIE = 1e-3  # relative weight of the tie-break in `coverage`: more than rounding, less than a relevant difference
_MIN_SPREAD_M = 0.01  # smaller sums of distances are rounding errors


def endpoint_nms(forecast: Forecast, num_modes: int, radius_m: float) -> Forecast:
    """Greedy non-maximum suppression of end points: the `num_modes` most probable modes at least `radius_m` apart.

    If fewer modes survive, the most probable suppressed modes are added, so that each agent keeps `num_modes` modes. Gradients
    flow through the selected modes, not through the selection. (mmTransformer, section 3.4.)
    """
    end = forecast.position[..., -1, :].detach()
    close = pairwise_distances(end, end) < radius_m  # [B, S, K, K]
    # Modes are compared by rank (K for the most probable), which is exact where small probabilities would be tied.
    rank = forecast.logit.detach().argsort(dim=-1, descending=True, stable=True).argsort(-1)
    rest = (forecast.num_modes - rank).float()
    suppressed = torch.zeros_like(rest)  # ranks of suppressed modes, used if no other mode is left
    chosen = []
    for _ in range(num_modes):
        best = torch.where(rest > 0, rest + forecast.num_modes, suppressed).argmax(-1, keepdim=True)
        chosen.append(best)
        near = close.gather(2, best[..., None].expand(*best.shape, close.shape[-1])).squeeze(2)
        suppressed = torch.where(near & (rest > 0), rest, suppressed).scatter(2, best, -1.0)
        rest = rest.masked_fill(near, 0.0).scatter(2, best, 0.0)
    return forecast.select(torch.cat(chosen, -1))


def consensus(forecast: Forecast, temperature_m: float) -> Forecast:
    """Score each mode by its expected end-point error: softmax(-E[distance] / temperature).

    Several modes that are close together share probability, so that the most probable mode may not be the best single prediction.
    The expected end-point error of mode k is sum_j p_j |end_k - end_j|, which K = 1 metrics measure. Scores trained towards
    softmax(-FDE / temperature) keep their scale.

    Args:
        forecast: marginal, [B, S, K, F, 2].
        temperature_m: temperature of the confidence loss, in metres; 0 keeps the scores of the forecast.
    """
    if not temperature_m:
        return forecast
    end = forecast.position[..., -1, :].float()
    distance = pairwise_distances(end, end)  # [B, S, K, K]
    expected = (distance * forecast.probability()[:, :, None]).sum(-1)
    return replace(forecast, logit=-expected / temperature_m)


def coverage(forecast: Forecast, together: Tensor | None = None, guess: Tensor | None = None) -> Forecast:
    """Score equally likely samples such that, for any k, the k most probable samples represent all samples (greedy k-medoids).

    The first sample has the smallest mean end-point distance to all others. Each further sample reduces the mean distance from a
    sample to the nearest selected one the most; probabilities are proportional to this reduction (plus 1 cm). Samples with equal
    reductions are ordered by their mean distance to all others.

    Args:
        forecast: marginal, [B, S, K, F, 2].
        together: bool [B, S], agents with joint samples: mode k of these agents is one world, and worlds are scored by means over
            them.
        guess: [B, S, F, 2], the best single prediction if it is known: the sample that ends nearest to it becomes the first one.
    """
    end = forecast.position[..., -1, :].float()
    distance = _mean_over(pairwise_distances(end, end), together)  # [B, S, K, K]
    first = None
    if guess is not None:
        first = _mean_over(pairwise_distances(guess[..., -1:, :].float(), end), together).argmin(-1)
    nearest, share = distance.amax(-1), torch.zeros_like(distance[..., 0])
    for step in range(forecast.num_modes):
        gain = (nearest[..., None] - distance).clamp(min=0).sum(2)
        chosen = (gain - _TIE * distance.sum(2)).argmax(-1, keepdim=True)
        most = gain.gather(2, chosen)
        if first is not None and step == 0:
            chosen = first
        share = share.scatter(2, chosen, torch.maximum(most, share.gather(2, chosen)))
        row = chosen[..., None].expand(*chosen.shape, forecast.num_modes)
        nearest = torch.minimum(nearest, distance.gather(2, row).squeeze(2))
    logit = (share + _MIN_SPREAD_M).log()
    return replace(forecast, logit=logit if together is None else logit.squeeze(1))


def _mean_over(distance: Tensor, agents: Tensor | None) -> Tensor:
    """Distances [B, S, ...], or their mean over agents bool [B, S] as [B, 1, ...]."""
    if agents is None:
        return distance
    counted = agents[..., None, None].float()
    return (distance * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1.0)
