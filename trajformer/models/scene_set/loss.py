"""Set of trajectories of a scene, and its loss: Q queries and the futures of agents are matched one to one (as boxes in DETR).

The cost of future g for query q is w_class * (-p_q) + w_ade * ADE + w_fde * FDE. Errors include the current position as an
additional step and are those of the best mode. Matched queries receive a regression loss (smooth L1) of this mode and a
cross-entropy of the modes. All queries receive a cross-entropy of existence, with a smaller weight for unmatched queries. Padding
is neither matched nor classified. Each decoder layer is matched separately; all costs are copied to the host at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.errors import check_numbers
from trajformer.losses.matching import Match, match
from trajformer.losses.set_loss import last_valid, pairwise_errors
from trajformer.losses.terms import Terms, combine, weigh

_FORBIDDEN = 1e9  # cost of padding; an infinite cost is reported as an error


@dataclass(frozen=True, eq=False)
class SceneTrajectories:
    """The trajectories of Q queries for each of B scenes.

    `position` is in the frame of the batch and starts with the current position. The sigmoid of `logit` is the probability that a
    query represents an agent; the softmax of `mode_logit` is the probability of each mode, given that it does.
    """

    position: Tensor  # [B, Q, K, 1 + F, 2], metres
    logit: Tensor  # [B, Q], -inf for padding, which is never matched
    mode_logit: Tensor  # [B, Q, K]
    auxiliary: tuple[SceneTrajectories, ...] = ()  # of earlier decoder layers, first to last

    def most_probable(self) -> Tensor:
        """The most probable mode of each query [B, Q, 1 + F, 2]."""
        return one_mode(self.position, self.mode_logit.argmax(-1))


def one_mode(position: Tensor, mode: Tensor) -> Tensor:
    """Select modes int64 [...] of trajectories [..., K, T, 2]: [..., T, 2]."""
    index = mode[..., None, None, None].expand(*mode.shape, 1, *position.shape[-2:])
    return position.gather(-3, index).squeeze(-3)


@dataclass(frozen=True)
class SceneSetLossConfig:
    """Weights of matching cost and terms.

    Attributes:
        cost_class, cost_ade, cost_fde: the matching cost.
        no_object: weight of unmatched queries in the cross-entropy.
        regression: smooth L1 of the positions of matched trajectories, including the current position.
        endpoint: additional smooth L1 of their last positions.
        classification: cross-entropy of existence.
        mode: cross-entropy of the modes of matched queries.
        huber_m: error in metres at which smooth L1 changes from quadratic to linear.
        auxiliary: weight of the mean loss of earlier decoder layers.
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

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        observation, truth = batch.observation, batch.truth
        start = observation.pose[:, : observation.num_targets, :2]
        return scene_set_loss(model.trajectories(observation), start, truth.position, truth.valid, self.config)


def scene_set_loss(
    trajectories: SceneTrajectories, start: Tensor, target: Tensor, valid: Tensor, config: SceneSetLossConfig
) -> Terms:
    """The loss of all decoder layers.

    Args:
        trajectories: Q queries of B scenes in the batch frame.
        start: [B, S, 2], current positions of the targets in the batch frame.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are not matched.

    Returns:
        Means of the last layer: "regression", "endpoint" and "mode" over matched futures, and "classification" over queries
        (a weighted mean); "auxiliary" of earlier layers; and the weighted sum "loss" with its gradient.

    Raises:
        ValueError: a matching cost is not finite; the message gives layer, scene, query and agent.
    """
    layers = (*trajectories.auxiliary, trajectories)
    exists = valid.any(-1)
    truth = torch.cat([start[:, :, None], target], 2), torch.cat([exists[..., None], valid], 2)
    cost = torch.stack([_cost(layer, truth, config) for layer in layers])
    pairs = match(cost, exists, ("layer", "scene", "query", "agent"))
    of_layer = [_terms(layer, truth, _of_layer(pairs, number, len(start)), config) for number, layer in enumerate(layers)]
    return combine(of_layer[-1], of_layer[:-1], config.auxiliary, lambda terms: weigh(terms, config))


@torch.no_grad()
def _cost(trajectories: SceneTrajectories, truth: tuple[Tensor, Tensor], config: SceneSetLossConfig) -> Tensor:
    """Matching cost [B, Q, S]."""
    ade, fde = pairwise_errors(trajectories.position.flatten(1, 2), *truth)
    error = (config.cost_ade * ade + config.cost_fde * fde).unflatten(1, trajectories.position.shape[1:3]).amin(2)
    cost = error - config.cost_class * trajectories.logit.sigmoid()[..., None]
    return cost.masked_fill(trajectories.logit.isneginf()[..., None], _FORBIDDEN)


def _of_layer(pairs: Match, layer: int, scenes: int) -> Match:
    """The pairs of one decoder layer, with the scene as problem."""
    here = pairs.problem // scenes == layer
    return Match(pairs.problem[here] % scenes, pairs.prediction[here], pairs.target[here])


def _terms(trajectories: SceneTrajectories, truth: tuple[Tensor, Tensor], pairs: Match, config: SceneSetLossConfig) -> Terms:
    scene, query, agent = pairs
    target, valid = (value[scene, agent] for value in truth)
    modes, logit = trajectories.position[scene, query], trajectories.logit  # [n, K, 1 + F, 2], [B, Q]
    with torch.no_grad():
        ade, fde = pairwise_errors(modes, target[:, None], valid[:, None])
        mode = (config.cost_ade * ade + config.cost_fde * fde)[..., 0].argmin(-1)
    gap = one_mode(modes, mode) - target
    error = F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none", beta=config.huber_m).sum(-1) * valid
    count = max(len(scene), 1)
    exists = torch.zeros_like(logit)
    exists[scene, query] = 1.0
    real = ~logit.isneginf()
    weight = torch.where(exists > 0, 1.0, config.no_object) * real
    entropy = F.binary_cross_entropy_with_logits(torch.where(real, logit, 0.0), exists, weight, reduction="sum")
    return {
        "regression": (error.sum(-1) / valid.sum(-1).clamp(min=1)).sum() / count,
        "endpoint": error.gather(1, last_valid(valid)[:, None]).sum() / count,
        "classification": entropy / weight.sum().clamp(min=1e-6),
        "mode": F.cross_entropy(trajectories.mode_logit[scene, query], mode, reduction="sum") / count,
    }
