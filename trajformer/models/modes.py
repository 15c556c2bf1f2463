"""Selection and scoring of a forecast's modes: end-point suppression, consensus, coverage, aggregation."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trajformer.config import Config
from trajformer.core.blocks import masked_mean
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
        near = close.take_along_dim(best[..., None], 2).squeeze(2)
        suppressed = torch.where(near & (rest > 0), rest, suppressed).scatter(2, best, -1.0)
        rest = rest.masked_fill(near, 0.0).scatter(2, best, 0.0)
    return forecast.select(torch.cat(chosen, -1))


def consensus(forecast: Forecast, temperature_m: float) -> Forecast:
    """Score each mode by its expected end-point error: softmax(-E[distance] / temperature).

    Several modes that are close together share probability, so that the most probable mode may not be the best single prediction.
    The expected end-point error of mode k is sum_j p_j |end_k - end_j|, which K = 1 metrics measure. Scores trained towards
    softmax(-FDE / temperature) keep their scale if the temperature equals the one of the confidence loss; 0 keeps the scores of
    the forecast.
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
    """Score equally likely samples such that, for any k, the k most probable samples represent all samples (greedy k-medoids).

    The first sample has the smallest mean end-point distance to all others, or ends nearest to `guess` [B, S, F, 2], the best
    single prediction. Each further sample reduces the mean distance from a sample to the nearest selected one the most;
    probabilities are proportional to this reduction (plus 1 cm). Samples with equal reductions are ordered by their mean distance
    to all others. Agents `together`, bool [B, S], have joint samples: mode k of them is one world, scored by means over them.
    """
    end = forecast.position[..., -1, :].float()
    distance = _mean_over(pairwise_distances(end, end), together)  # [B, S, K, K]
    nearest, share = distance.amax(-1), torch.zeros_like(distance[..., 0])
    for step in range(forecast.num_modes):
        gain = (nearest[..., None] - distance).clamp(min=0).sum(2)
        chosen = (gain - _TIE * distance.sum(2)).argmax(-1, keepdim=True)
        most = gain.gather(2, chosen)
        if guess is not None and step == 0:
            chosen = _mean_over(
                pairwise_distances(guess[..., -1:, :].float(), end), together
            ).argmin(-1)
        share = share.scatter(2, chosen, torch.maximum(most, share.gather(2, chosen)))
        nearest = torch.minimum(nearest, distance.take_along_dim(chosen[..., None], 2).squeeze(2))
    logit = (share + _MIN_SPREAD_M).log()
    return replace(forecast, logit=logit if together is None else logit.squeeze(1))


def _mean_over(distance: Tensor, agents: Tensor | None) -> Tensor:
    """Distances [B, S, ...], or their mean over agents bool [B, S] as [B, 1, ...]."""
    return (
        distance if agents is None else masked_mean(distance, agents[..., None, None], 1)[:, None]
    )


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
    """Merge K modes into `num_modes` <= K (Wayformer, Nayakanti et al. 2022, appendix C; MultiPath++).

    1. Cover: choose the mode with the largest probability mass within D of its end point, ignoring modes covered before; repeat.
    2. Refine: assign each mode to the center with the nearest end point; a center becomes the mean of its modes, weighted by
       probability; repeat.

    The paper returns at most 6 modes. Here, if fewer than `num_modes` centers cover all modes, the most probable other modes
    become centers too. The probability of a merged mode is the sum over its modes, and `scale` is the standard deviation of their
    mixture. A center without modes has a probability near zero. Raises ValueError: the forecast is joint.
    """
    if forecast.is_joint:
        raise ValueError("aggregate: the forecast is joint, expected marginal modes")
    position, probability = forecast.position.float(), forecast.probability()
    end = position[..., -1, :]
    centers = forecast.select(
        _cover(pairwise_distances(end, end) < config.distance_m, probability, num_modes)
    )
    mean = centers.position.float()
    for step in range(config.iterations + 1):
        center = pairwise_distances(end, mean[..., -1, :]).argmin(-1, keepdim=True)  # [B, S, K, 1]
        weight = torch.zeros(*probability.shape, num_modes, device=end.device).scatter(
            -1, center, probability[..., None]
        )
        mass = weight.sum(2)
        share, mass = (
            weight / mass.clamp(min=torch.finfo(mass.dtype).tiny)[:, :, None],
            mass[..., None, None],
        )
        if step < config.iterations:
            mean = torch.where(mass > 0, _weighted_mean(share, position), mean)
    scale = None
    if forecast.scale is not None and centers.scale is not None:
        deviation = position - mean.take_along_dim(center[..., None], 2)
        variance = _weighted_mean(share, forecast.scale.float().square() + deviation.square())
        scale = torch.where(mass > 0, variance, centers.scale.float().square()).sqrt()
    logit = mass[..., 0, 0].clamp(min=torch.finfo(mass.dtype).tiny).log()
    return replace(centers, position=mean, logit=logit, scale=scale)


def _cover(close: Tensor, probability: Tensor, count: int) -> Tensor:
    """Indices [B, S, count] of the modes that cover the most probability, by pairs bool [B, S, K, K] that cover each other."""
    uncovered, taken, chosen = torch.ones_like(close[..., 0]), torch.zeros_like(close[..., 0]), []
    for _ in range(count):
        gain = (close * (probability * uncovered)[..., None, :]).sum(-1)
        score = torch.where(uncovered.any(-1, keepdim=True), gain, probability).masked_fill(
            taken, -1.0
        )
        best = score.argmax(-1, keepdim=True)  # [B, S, 1]
        chosen.append(best)
        taken = taken.scatter(-1, best, True)
        uncovered = uncovered & ~close.take_along_dim(best[..., None], -2).squeeze(-2)
    return torch.cat(chosen, -1)


def _weighted_mean(share: Tensor, x: Tensor) -> Tensor:
    """Shares [B, S, K, k] and values [B, S, K, F, 2] to [B, S, k, F, 2]."""
    with torch.autocast(
        x.device.type, enabled=False
    ):  # half precision rounds positions by decimetres
        return torch.einsum("bnkc,bnkfx->bncfx", share, x)
