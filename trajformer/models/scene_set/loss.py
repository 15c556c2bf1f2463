"""Set loss of a scene: Q queries' trajectories against the observed futures of its agents, matched one to one (as DETR's boxes).

Cost of giving future g to query q: w_class * (-p_q) + w_ade * ADE + w_fde * FDE, the current position counting as one step
more; of several modes, that of the one with the smallest errors, which alone is regressed and is the right class. Every query is
classified, those without a future as nobody's, which weighs less; matched ones are regressed (smooth L1). Padding among the
queries is neither matched nor classified. Earlier decoder layers get the same terms with matches of their own, and all costs
reach the host in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.errors import check_numbers
from trajformer.losses.matching import Match, match
from trajformer.losses.set_loss import last_valid, pairwise_errors
from trajformer.losses.terms import Terms, combine, weigh
from trajformer.models.scene_set.trajectories import SceneTrajectories, one_mode

_NEVER = 1e9  # the cost of what must not be matched; an infinite one is an error of the model's


@dataclass(frozen=True)
class SceneSetLossConfig:
    """Weights of the matching cost and of the terms.

    Attributes:
        cost_class, cost_ade, cost_fde: the matching cost; a metre of ADE counts as much as a probability of 0.5.
        no_object: weight of queries without a future in the cross-entropy.
        regression: smooth L1 on the matched trajectories' positions, the current one included.
        endpoint: further smooth L1 on their last ones.
        classification: cross-entropy of existing or not.
        mode: cross-entropy of the modes of matched queries.
        huber_m: where smooth L1 turns from quadratic to linear, metres.
        auxiliary: weight of the mean over the earlier decoder layers' losses.
    """

    cost_class: float = 2.0
    cost_ade: float = 1.0
    cost_fde: float = 0.5
    no_object: float = 0.1
    regression: float = 1.0
    endpoint: float = 0.2
    classification: float = 1.0
    mode: float = 0.5
    huber_m: float = 1.0
    auxiliary: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("huber_m",))

    def build(self) -> SceneSetLoss:
        """The loss with these weights."""
        return SceneSetLoss(self)


class SceneSetLoss(nn.Module):
    """`scene_set_loss` of a model with `trajectories(observation)`."""

    def __init__(self, config: SceneSetLossConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        observation, truth = batch.observation, batch.truth
        start = observation.pose[:, : observation.num_targets, :2]
        return scene_set_loss(model.trajectories(observation), start, truth.position, truth.valid, self.config)


def scene_set_loss(found: SceneTrajectories, start: Tensor, target: Tensor, valid: Tensor, config: SceneSetLossConfig) -> Terms:
    """The loss of all decoder layers.

    Args:
        found: of Q queries and B scenes in the batch frame.
        start: [B, S, 2] in the batch frame, where the targets are now.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are nobody.

    Returns:
        Means of the last layer, "regression", "endpoint" and "mode" over matched futures, "classification" over queries
        (weighted as their terms are), "auxiliary", the mean weighted sum of earlier layers, and their weighted sum "loss" (the
        only one with a gradient to use).

    Raises:
        ValueError: a matching cost is not finite; names layer, scene, query and agent.
    """
    layers = (*found.auxiliary, found)
    exists = valid.any(-1)
    truth = torch.cat([start[:, :, None], target], 2), torch.cat([exists[..., None], valid], 2)
    cost = torch.stack([_cost(layer, truth, config) for layer in layers])
    pairs = match(cost, exists, ("layer", "scene", "query", "agent"))
    of_layer = [_terms(layer, truth, _of_layer(pairs, number, len(start)), config) for number, layer in enumerate(layers)]
    return combine(of_layer[-1], of_layer[:-1], config.auxiliary, lambda terms: weigh(terms, config))


@torch.no_grad()
def _cost(found: SceneTrajectories, truth: tuple[Tensor, Tensor], config: SceneSetLossConfig) -> Tensor:
    """[B, Q, S]."""
    ade, fde = pairwise_errors(found.position.flatten(1, 2), *truth)
    error = (config.cost_ade * ade + config.cost_fde * fde).unflatten(1, found.position.shape[1:3]).amin(2)
    cost = error - config.cost_class * found.logit.sigmoid()[..., None]
    return cost.masked_fill(found.logit.isneginf()[..., None], _NEVER)


def _of_layer(pairs: Match, number: int, scenes: int) -> Match:
    mine = pairs.problem // scenes == number
    return Match(pairs.problem[mine] % scenes, pairs.prediction[mine], pairs.target[mine])


def _terms(found: SceneTrajectories, truth: tuple[Tensor, Tensor], pairs: Match, config: SceneSetLossConfig) -> Terms:
    scene, query, agent = pairs
    target, valid = (value[scene, agent] for value in truth)
    every = found.position[scene, query]
    with torch.no_grad():
        ade, fde = pairwise_errors(every, target[:, None], valid[:, None])
        mode = (config.cost_ade * ade + config.cost_fde * fde)[..., 0].argmin(-1)
    gap = one_mode(every, mode) - target
    error = F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none", beta=config.huber_m).sum(-1) * valid
    count = max(len(scene), 1)
    wanted = torch.zeros_like(found.logit)
    wanted[scene, query] = 1.0
    real = ~found.logit.isneginf()
    weight = torch.where(wanted > 0, 1.0, config.no_object) * real
    entropy = F.binary_cross_entropy_with_logits(torch.where(real, found.logit, 0.0), wanted, weight, reduction="sum")
    return {
        "regression": (error.sum(-1) / valid.sum(-1).clamp(min=1)).sum() / count,
        "endpoint": error.gather(1, last_valid(valid)[:, None]).sum() / count,
        "classification": entropy / weight.sum().clamp(min=1e-6),
        "mode": F.cross_entropy(found.mode_logit[scene, query], mode, reduction="sum") / count,
    }
