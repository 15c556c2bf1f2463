"""Forecast: what every model returns, in training and evaluation alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.data.sample import Frame
from trajformer.scenes.geometry import from_frame

_TIE = 1e-3  # rounding is less, what matters is more
_SPREAD_M = 0.01  # sums of distances below this are rounding, not spread


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Normal distributions of latents with independent coordinates: mean and logarithm of the variance, each [..., Z]."""

    mean: Tensor
    log_variance: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """Samples that standard normal noise, broadcastable to [..., Z], amounts to; gradients flow."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def divergence(self, other: Gaussian) -> Tensor:
        """Kullback-Leibler divergence [...] of `other` from these, summed over the Z coordinates."""
        gap = (self.mean - other.mean).square() / other.log_variance.exp()
        ratio = self.log_variance - other.log_variance
        return 0.5 * (gap + ratio.exp() - 1.0 - ratio).sum(-1)


@dataclass(frozen=True, eq=False)
class Forecast:
    """K futures for each of the S targets of B scenes.

    `position` is given in `frame`: the batch's own, or (Frame.AGENT) each target's pose `pose` in the batch frame.
    `logit` is marginal [B, S, K], or joint [B, K] when mode k of all agents is one world. Samples are modes too.
    """

    position: Tensor  # [B, S, K, F, 2], metres
    logit: Tensor  # [B, S, K] or [B, K]
    frame: Frame
    pose: Tensor | None = None  # [B, S, 3], for Frame.AGENT
    scale: Tensor | None = None  # [B, S, K, F, 2], metres, spread of each coordinate in `frame`
    auxiliary: tuple[Forecast, ...] = ()  # forecasts of earlier decoder layers, first to last
    latent: Gaussian | None = None  # [B, S, K, Z] or [B, S, 1, Z], where modes are decoded from samples of it
    prior: Gaussian | None = None  # [B, S, 1, Z], of the latents given the past, where another one proposed the modes

    @property
    def num_modes(self) -> int:
        """K."""
        return self.position.shape[2]

    @property
    def is_joint(self) -> bool:
        """True when a mode is a world: one probability for all agents of a scene."""
        return self.logit.ndim == 2

    def probability(self) -> Tensor:
        """[B, S, K], summing to 1 over modes; a joint forecast repeats its world probability for every agent."""
        probability = self.logit.float().softmax(-1)
        return probability[:, None].expand(self.position.shape[:3]) if self.is_joint else probability

    def in_batch_frame(self) -> Tensor:
        """Positions [B, S, K, F, 2] in the frame of the batch."""
        if self.frame is not Frame.AGENT:
            return self.position
        assert self.pose is not None
        return from_frame(self.position, self.pose[:, :, None, None])

    def select(self, index: Tensor) -> Forecast:
        """Modes `index` [B, S, k] of every agent, in that order (marginal forecasts)."""
        wide = index[..., None, None].expand(*index.shape, *self.position.shape[3:])
        scale = None if self.scale is None else self.scale.gather(2, wide)
        position, logit = self.position.gather(2, wide), self.logit.gather(2, index)
        return replace(self, position=position, logit=logit, scale=scale, auxiliary=(), latent=None, prior=None)

    def in_city_frame(self, observation: Observation) -> np.ndarray:
        """Positions float64 [B, S, K, F, 2] in the city frame."""
        position = self.in_batch_frame().detach().to("cpu", torch.float64)
        return from_frame(position, observation.frame_pose.cpu()[:, None, None, None]).numpy()


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
    logit = (share + _SPREAD_M).log()
    return replace(forecast, logit=logit if together is None else logit.squeeze(1))


def _mean_over(distance: Tensor, agents: Tensor | None) -> Tensor:
    """[B, S, ...]; with agents bool [B, S] their mean [B, 1, ...]."""
    if agents is None:
        return distance
    counted = agents[..., None, None].float()
    return (distance * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1.0)
