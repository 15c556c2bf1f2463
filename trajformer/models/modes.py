"""Selection and scoring of a forecast's modes.

- `endpoint_nms` selects modes with distant end points (mmTransformer).
- `consensus` scores modes by their expected end-point error.
- `coverage` orders equally likely samples such that the first ones represent all samples.
- `aggregate` merges modes (Wayformer).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trajformer.config import Config
from trajformer.core.blocks import masked_mean
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.data.indexing import take_along

# Relative weight of the tie-break in `coverage`: more than rounding, less than a relevant
# difference.
_TIE = 1e-3
_MIN_SPREAD_M = 0.01  # smaller sums of distances are rounding errors


def endpoint_nms(forecast: Forecast, num_modes: int, radius_m: float) -> Forecast:
    """Greedy non-maximum suppression of end points (mmTransformer, section 3.4).

    Selects the `num_modes` most probable modes that are at least `radius_m` apart. If fewer modes
    survive, the most probable suppressed modes are added, so that each agent keeps `num_modes`
    modes. Gradients flow through the selected modes, not through the selection.
    """
    end = forecast.position[..., -1, :].detach()
    close = pairwise_distances(end, end) < radius_m  # [B, S, K, K]

    # Modes are compared by rank (K for the most probable), which is exact where small
    # probabilities would be tied.
    logit = forecast.logit.detach()
    other = logit[..., None, :]
    index = torch.arange(forecast.num_modes, device=logit.device)
    is_earlier = index < index[:, None]  # the first one of equal modes comes first
    comes_before = (other > logit[..., None]) | ((other == logit[..., None]) & is_earlier)
    rank = (forecast.num_modes - comes_before.sum(-1)).float()

    # Ranks of modes that can be chosen, and of suppressed ones, which are chosen if no other mode
    # is left; a chosen mode has rank 0 and then -1.
    remaining = rank
    suppressed = torch.zeros_like(rank)
    chosen = []
    for _ in range(num_modes):
        preference = torch.where(remaining > 0, remaining + forecast.num_modes, suppressed)
        best = preference.argmax(-1, keepdim=True)
        chosen.append(best)
        near = take_along(close, best[..., None], 2).squeeze(2)
        suppressed = torch.where(near & (remaining > 0), remaining, suppressed)
        suppressed = suppressed.scatter(2, best, -1.0)
        remaining = remaining.masked_fill(near, 0.0).scatter(2, best, 0.0)
    return forecast.select(torch.cat(chosen, -1))


def consensus(forecast: Forecast, temperature_m: float) -> Forecast:
    """Score each mode by its expected end-point error: softmax(-E[distance] / temperature).

    Several modes that are close together share probability, so that the most probable mode may not
    be the best single prediction. The expected end-point error of mode k is
    sum_j p_j |end_k - end_j|, which K = 1 metrics measure. Scores trained towards
    softmax(-FDE / temperature) keep their scale if the temperature equals the one of the confidence
    loss; 0 keeps the scores of the forecast.
    """
    if not temperature_m:
        return forecast
    end = forecast.position[..., -1, :].float()
    distance = pairwise_distances(end, end)  # [B, S, K, K]
    expected = (distance * forecast.probability()[:, :, None]).sum(-1)
    return replace(forecast, logit=-expected / temperature_m)


def coverage(
    forecast: Forecast, together: Tensor | None = None, guess: Tensor | None = None
) -> Forecast:
    """Score equally likely samples such that, for any k, the k best ones represent all samples.

    This is greedy k-medoids. The first sample has the smallest mean end-point distance to all
    others, or ends nearest to `guess`. Each further sample reduces the mean distance from a sample
    to the nearest selected one the most. Probabilities are proportional to this reduction (plus
    1 cm). Samples with equal reductions are ordered by their mean distance to all others.

    Args:
        forecast: K samples of each agent.
        together: bool [B, S], agents that have joint samples: mode k of them is one world, scored
            by means over them. None: the samples of each agent are independent.
        guess: [B, S, F, 2], the best single prediction.

    Returns:
        The forecast with logits [B, S, K], or [B, K] of worlds.
    """
    end = forecast.position[..., -1, :].float()
    distance = _mean_over(pairwise_distances(end, end), together)  # [B, S or 1, K, K]
    tie_break = _TIE * distance.sum(2)
    nearest = distance.amax(-1)  # distance of each sample to the nearest selected one
    reduction = torch.zeros_like(nearest)  # by each selected sample
    for step in range(forecast.num_modes):
        gain = (nearest[..., None] - distance).clamp(min=0).sum(2)
        chosen = (gain - tie_break).argmax(-1, keepdim=True)
        largest_gain = gain.gather(2, chosen)
        if guess is not None and step == 0:
            gap = _mean_over(pairwise_distances(guess[..., -1:, :].float(), end), together)
            chosen = gap.argmin(-1)
        largest_gain = torch.maximum(largest_gain, reduction.gather(2, chosen))
        reduction = reduction.scatter(2, chosen, largest_gain)
        chosen_distance = take_along(distance, chosen[..., None], 2).squeeze(2)
        nearest = torch.minimum(nearest, chosen_distance)
    logit = (reduction + _MIN_SPREAD_M).log()
    if together is not None:
        logit = logit.squeeze(1)
    return replace(forecast, logit=logit)


def _mean_over(distance: Tensor, agents: Tensor | None) -> Tensor:
    """Distances [B, S, ...], or their mean over agents bool [B, S] as [B, 1, ...]."""
    if agents is None:
        return distance
    return masked_mean(distance, agents[..., None, None], 1)[:, None]


@dataclass(frozen=True)
class AggregationConfig(Config, positive=("distance_m",)):
    """How modes are merged; the defaults are the paper's for Argoverse 1.

    Attributes:
        distance_m: D, a center covers modes with an end point closer than this.
        iterations: number of refinements of the centers.
    """

    distance_m: float = 2.9
    iterations: int = 5


def aggregate(
    forecast: Forecast, num_modes: int, config: AggregationConfig = AggregationConfig()
) -> Forecast:
    """Merge K modes into `num_modes` <= K (Wayformer, Nayakanti et al. 2022, appendix C).

    1. Cover: choose the mode with the largest probability mass within D of its end point, ignoring
       modes covered before; repeat.
    2. Refine: assign each mode to the center with the nearest end point; a center becomes the mean
       of its modes, weighted by probability; repeat.

    The paper returns at most 6 modes. Here, if fewer than `num_modes` centers cover all modes, the
    most probable other modes become centers too. The probability of a merged mode is the sum over
    its modes, and `scale` is the standard deviation of their mixture. A center without modes has a
    probability near zero. Raises ValueError: the forecast is joint.
    """
    if forecast.is_joint:
        raise ValueError("aggregate: the forecast is joint, expected marginal modes")
    position = forecast.position.float()
    probability = forecast.probability()
    end = position[..., -1, :]
    close = pairwise_distances(end, end) < config.distance_m
    centers = forecast.select(_cover(close, probability, num_modes))

    mean = centers.position.float()  # [B, S, k, F, 2]
    nearest = _nearest_center(end, mean)
    for _ in range(config.iterations):
        weight, mass = _weights(nearest, probability, num_modes)
        has_modes = (mass > 0)[..., None, None]
        mean = torch.where(has_modes, _weighted_mean(weight, position), mean)
        nearest = _nearest_center(end, mean)
    weight, mass = _weights(nearest, probability, num_modes)

    scale = None
    if forecast.scale is not None and centers.scale is not None:
        deviation = position - take_along(mean, nearest[..., None, None], 2)
        variance = _weighted_mean(weight, forecast.scale.float().square() + deviation.square())
        center_variance = centers.scale.float().square()
        has_modes = (mass > 0)[..., None, None]
        scale = torch.where(has_modes, variance, center_variance).sqrt()
    return replace(centers, position=mean, logit=_positive(mass).log(), scale=scale)


def _cover(close: Tensor, probability: Tensor, count: int) -> Tensor:
    """Indices [B, S, count] of the modes that cover the most probability [B, S, K].

    `close`, bool [B, S, K, K], are the pairs of modes that cover each other.
    """
    uncovered = torch.ones_like(close[..., 0])
    taken = torch.zeros_like(uncovered)
    chosen = []
    for _ in range(count):
        covered = (close * (probability * uncovered)[..., None, :]).sum(-1)
        score = torch.where(uncovered.any(-1, keepdim=True), covered, probability)
        best = score.masked_fill(taken, -1.0).argmax(-1, keepdim=True)  # [B, S, 1]
        chosen.append(best)
        taken = taken.scatter(-1, best, True)
        uncovered = uncovered & ~take_along(close, best[..., None], -2).squeeze(-2)
    return torch.cat(chosen, -1)


def _nearest_center(end: Tensor, center: Tensor) -> Tensor:
    """Index [B, S, K] of the center [B, S, k, F, 2] that ends nearest to each end [B, S, K, 2]."""
    return pairwise_distances(end, center[..., -1, :]).argmin(-1)


def _weights(center: Tensor, probability: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Weights [B, S, K, count] of modes in their centers, and probabilities [B, S, count].

    The weights of a center sum to one, or are zero if no mode has it; `center` [B, S, K] is the
    center of each mode.
    """
    member = torch.zeros(*probability.shape, count, device=probability.device)
    member = member.scatter(-1, center[..., None], probability[..., None])
    mass = member.sum(2)
    return member / _positive(mass)[:, :, None], mass


def _positive(x: Tensor) -> Tensor:
    """x, and the smallest normal number where it is zero."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def _weighted_mean(weight: Tensor, x: Tensor) -> Tensor:
    """Weights [B, S, K, k] and values [B, S, K, F, 2] to [B, S, k, F, 2]."""
    # Half precision would round positions by decimetres.
    with torch.autocast(x.device.type, enabled=False):
        return torch.einsum("bnkc,bnkfx->bncfx", weight, x)
