"""Forecast: what every model returns, in training and evaluation alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trajformer.batch import SceneBatch
from trajformer.geometry import from_frame
from trajformer.sample import Frame


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
        return replace(self, position=position, logit=logit, scale=scale, auxiliary=())

    def in_city_frame(self, batch: SceneBatch) -> np.ndarray:
        """Positions float64 [B, S, K, F, 2] in the city frame."""
        position = self.in_batch_frame().detach().to("cpu", torch.float64)
        return from_frame(position, batch.frame_pose.cpu()[:, None, None, None]).numpy()


def endpoint_nms(forecast: Forecast, num_modes: int, radius_m: float) -> Forecast:
    """Greedy non-maximum suppression of end points: the `num_modes` most probable modes that lie `radius_m` apart.

    Where fewer than `num_modes` survive, the most probable suppressed modes fill up, so that every agent keeps
    `num_modes` modes. Gradients do not flow through the choice. (mmTransformer, section 3.4.)
    """
    end = forecast.position[..., -1, :].detach()
    close = torch.cdist(end, end) < radius_m  # [B, S, K, K]
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
        temperature_m: metres, that of the confidence loss.
    """
    end = forecast.position[..., -1, :].float()
    distance = torch.cdist(end, end, compute_mode="donot_use_mm_for_euclid_dist")  # [B, S, K, K]
    expected = (distance * forecast.probability()[:, :, None]).sum(-1)
    return replace(forecast, logit=-expected / temperature_m)
