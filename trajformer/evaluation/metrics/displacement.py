"""Displacement errors of agents: a table of errors by mode, and the metrics derived from it.

Two conventions have different names. Argoverse 2 (`best_end`) selects the mode with the smallest
end-point error among the k most probable modes, and computes all metrics of this mode: minADE,
minFDE, MR, brier_minFDE. ETH/UCY (`separate_minima`) takes the minima of ADE and FDE separately:
ADE, FDE.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.losses.matching import match
from trajformer.models.scene_set import SceneTrajectories

MISS_THRESHOLD_M = 2.0
# models with this number of modes are also scored by the best of 20, as is usual for pedestrians
MANY_MODES = 20
KS = (1, 6, MANY_MODES)
NAMES = ("minADE", "minFDE", "MR", "brier_minFDE")
# values [...] by name, and bool [...]: the entries that count
Metrics = tuple[dict[str, Tensor], Tensor]


class Errors(NamedTuple):
    """Errors of K modes for each agent ([B, S, K]), or of K worlds for each scene ([B, K]).

    The latter come from `joint.world_errors`.
    """

    ade: Tensor  # metres
    fde: Tensor  # metres
    probability: Tensor
    mode: Tensor  # int64, index of the mode in the forecast

    def most_probable(self, k: int) -> Errors:
        """The k most probable modes, the most probable first; all modes if K < k.

        Probabilities are not normalized again.
        """
        order = self.probability.argsort(dim=-1, descending=True, stable=True)[..., :k]
        return Errors(*(value.gather(-1, order) for value in self))


def agent_errors(forecast: Forecast, target: Tensor, valid: Tensor) -> Errors:
    """Errors [B, S, K] of each mode of each agent.

    The target is [B, S, F, 2] in the batch frame; ADE averages over the steps with `valid`, bool
    [B, S, F]. An agent without a known last step (`valid[..., -1]`) must not count.
    """
    error = (forecast.in_batch_frame() - target[:, :, None]).norm(dim=-1)  # [B, S, K, F]
    steps = valid.sum(-1).clamp(min=1)
    ade = (error * valid[:, :, None]).sum(-1) / steps[..., None]
    mode = torch.arange(forecast.num_modes, device=error.device).expand_as(ade)
    return Errors(ade, error[..., -1], forecast.probability(), mode)


def best_end(errors: Errors) -> dict[str, Tensor]:
    """Argoverse 2: metrics [...] of the mode with the smallest end-point error.

    minADE and minFDE in metres; MR, 0 if minFDE is at most 2 m, otherwise 1, also for NaN;
    brier_minFDE, minFDE plus (1 - p)^2; and the "probability" p of this mode.
    """
    best = errors.fde.argmin(-1, keepdim=True)
    ade = errors.ade.gather(-1, best).squeeze(-1)
    fde = errors.fde.gather(-1, best).squeeze(-1)
    probability = errors.probability.gather(-1, best).squeeze(-1)
    missed = ~(fde <= MISS_THRESHOLD_M)
    return {
        "minADE": ade,
        "minFDE": fde,
        "MR": missed.to(fde.dtype),
        "brier_minFDE": fde + (1.0 - probability) ** 2,
        "probability": probability,
    }


def separate_minima(errors: Errors) -> dict[str, Tensor]:
    """ETH/UCY: the smallest ADE and, separately, the smallest FDE, [...] in metres.

    This is "best of 20" since Social GAN (Gupta et al. 2018). ADE and FDE may come from different
    modes, so that no single mode reaches both. FDE_at_best_ADE is the end-point error of the mode
    with the smallest ADE.
    """
    ade, best = errors.ade.min(-1)
    at_best = errors.fde.gather(-1, best[..., None]).squeeze(-1)
    return {"ADE": ade, "FDE": errors.fde.amin(-1), "FDE_at_best_ADE": at_best}


def displacement(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """The metrics of `best_end` [B, S] of the k most probable modes: "minFDE6" and so on.

    k is 1 and 6, and 20 if the model has 20 modes. "minFDE" is over all modes. Agents with a known
    last future step count.
    """
    valid = batch.truth.valid
    errors = agent_errors(forecast, batch.truth.position, valid)
    metrics = {"minFDE": errors.fde.amin(-1)}
    for k in KS:
        if k == MANY_MODES and forecast.num_modes < MANY_MODES:
            continue
        best = best_end(errors.most_probable(k))
        metrics |= {f"{name}{k}": value for name, value in best.items()}
    return metrics, valid[..., -1]


def futures_covered(
    forecast: Forecast, target: Tensor, valid: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Which of G true futures end within 2 m of one of the k most probable modes of an agent.

    All modes are used if K < k. From targets [B, S, G, F, 2] in the batch frame and valid bool
    [B, S, G, F] to bool [B, S, G], and bool [B, S, G]: futures with a known last step, which count.
    """
    order = forecast.probability().argsort(dim=-1, descending=True, stable=True)[..., :k]
    end = forecast.in_batch_frame()[..., -1, :].take_along_dim(order[..., None], 2)
    recorded_end = target[..., -1, None, :]
    gap = (end[:, :, None] - recorded_end).norm(dim=-1)  # [B, S, G, k]
    return gap.amin(-1) <= MISS_THRESHOLD_M, valid[..., -1]


def set_hits(
    predicted: SceneTrajectories, target: Tensor, valid: Tensor, threshold: float = 0.5
) -> tuple[Tensor, ...]:
    """Hits, futures and claims of each scene, for the recall and precision of a set.

    A claim is the most probable mode of a query with a probability of at least `threshold`. A
    future (target [B, S, F, 2] in the batch frame, valid bool [B, S, F]) with a known last step is
    hit by a claim that ends within 2 m of it. Each claim hits at most one future, and the number
    of hits is as large as possible. Recall is the sum of hits divided by the sum of futures,
    precision by the sum of claims. A claim about an agent that leaves before the last step counts
    as wrong.

    Returns:
        Three int64 [B].
    """
    claim = predicted.logit.sigmoid() >= threshold  # [B, Q]
    known = valid[..., -1]
    gap = pairwise_distances(predicted.most_probable()[:, :, -1], target[:, :, -1])
    hits_possible = (gap <= MISS_THRESHOLD_M) & claim[..., None]  # [B, Q, S]; NaN is never a hit
    # the largest number of hits is the assignment with the smallest number of misses
    pairs = match((~hits_possible).float(), known)
    hit = hits_possible[pairs.problem, pairs.prediction, pairs.target]
    hits = torch.zeros(len(known), dtype=torch.int64, device=known.device)
    hits = hits.index_add(0, pairs.problem, hit.long())
    return hits, known.sum(-1), claim.sum(-1)
