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
    """Greedy non-maximum suppression of end points: the `num_modes` most probable modes that lie `radius_m` apart.

    Where fewer than `num_modes` survive, the most probable suppressed modes fill up, so that every agent keeps
    `num_modes` modes. Gradients do not flow through the choice. (mmTransformer, section 3.4.)
    """
    end = forecast.position[..., -1, :].detach()
    close = pairwise_distances(end, end) < radius_m  # [B, S, K, K]
    # Modes are worth their rank, K for the most probable: exact, where sums with tiny probabilities would tie.
    rank = forecast.logit.detach().argsort(dim=-1, descending=True, stable=True).argsort(-1)
    rest = (forecast.num_modes - rank).float()
    suppressed = torch.zeros_like(rest)  # what suppressed modes are worth when nothing else is left
    chosen = []
    for _ in range(num_modes):
        best = torch.where(rest > 0, rest + forecast.num_modes, suppressed).argmax(-1, keepdim=True)
        chosen.append(best)
        near = close.gather(2, best[..., None].expand(*best.shape, close.shape[-1])).squeeze(2)
        suppressed = torch.where(near & (rest > 0), rest, suppressed).scatter(2, best, -1.0)
        rest = rest.masked_fill(near, 0.0).scatter(2, best, 0.0)
    return forecast.select(torch.cat(chosen, -1))


def consensus(forecast: Forecast, temperature_m: float) -> Forecast:
    """Score every mode by how near the end points it expects the truth to be: softmax(-E[distance] / temperature).

    Modes compete in classification: where several lie close together each gets a small share, and the most probable
    one need not be the best single guess. The expected end-point distance of mode k, sum_j p_j |end_k - end_j|, is
    what K = 1 metrics measure; scores trained towards softmax(-FDE / temperature) keep their meaning and scale.

    Args:
        forecast: marginal, [B, S, K, F, 2].
        temperature_m: metres, that of the confidence loss; 0 leaves the scores as they are.
    """
    if not temperature_m:
        return forecast
    end = forecast.position[..., -1, :].float()
    distance = pairwise_distances(end, end)  # [B, S, K, K]
    expected = (distance * forecast.probability()[:, :, None]).sum(-1)
    return replace(forecast, logit=-expected / temperature_m)


def coverage(forecast: Forecast, together: Tensor | None = None, guess: Tensor | None = None) -> Forecast:
    """Score equally likely samples so that, for any k, the k most probable ones stand for all.

    The first is that with the smallest mean end-point distance to all others; each further one shortens the mean distance of
    a sample to the nearest chosen one the most. By how much it does is its share of the probability, a centimetre being nothing.
    Two samples that stand for each other shorten it alike: then the one nearer to all others is taken.

    Args:
        forecast: marginal, [B, S, K, F, 2].
        together: bool [B, S], agents whose k-th samples are one world: worlds are scored, by means over these agents.
        guess: [B, S, F, 2], the single best guess where that is known otherwise: the sample that ends nearest to it is the first
            one, with the share that the best first one has.
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
    """[B, S, ...]; with agents bool [B, S] their mean [B, 1, ...]."""
    if agents is None:
        return distance
    counted = agents[..., None, None].float()
    return (distance * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1.0)
