"""Figures of worlds, joint forecasts of all actors of a scene, and collisions.

A world is one mode of a joint forecast. For a marginal forecast, mode k of all agents is world k: for samples, this is the k-th
joint sample; for modes of independent agents, the order of modes is arbitrary, and so are worlds. The probability of a
world is the joint probability, or the normalised product of the marginal probabilities of its agents.

Actors are the agents with a known last future step; a scene without any does not count.
"""

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import (
    MISS_THRESHOLD_M,
    Errors,
    Metrics,
    agent_errors,
    best_end,
)

VEHICLE_COLLISION_M = (
    1.0  # Argoverse 2: distance between the centres of two actors at the same step
)
# Two people of 0.1 m radius, as in TrajNet++ (Kothari et al. 2021) and "Joint Metrics Matter" (Weng et al. 2023).
PEDESTRIAN_COLLISION_M = 0.2


def world_errors(forecast: Forecast, target: Tensor, valid: Tensor) -> Errors:
    """Errors [B, K] of each world: ADE and FDE are means over the scene's actors, zero in a scene without any.

    The arguments are the ones of `agent_errors`. `separate_minima` of the k most probable worlds are JADE and JFDE of Weng et al.
    2023, "Joint Metrics Matter", section 3.
    """
    errors = agent_errors(forecast, target, valid)
    actor = valid[..., -1, None]
    share = actor.to(errors.ade.dtype) / actor.sum(1, keepdim=True).clamp(min=1)
    # Not a matrix product, which would round the errors under autocast.
    ade, fde = (errors.ade * share).sum(1), (errors.fde * share).sum(1)
    logit = forecast.logit.float()
    if not forecast.is_joint:
        logit = (logit.log_softmax(-1) * actor).sum(1)
    return Errors(
        ade,
        fde,
        logit.softmax(-1),
        torch.arange(forecast.num_modes, device=ade.device).expand_as(ade),
    )


def multi_world(forecast: Forecast, target: Tensor, valid: Tensor, k: int = 6) -> Metrics:
    """Argoverse 2's multi-world metrics, all at the world of the lowest mean FDE of the k most probable (MODELS.md, section 9).

    The arguments are the ones of `agent_errors`; all K worlds are used if K < k. Returns {name: float [B]}: avgMinFDE and
    avgMinADE in metres, means over actors; actorMR and actorCR, shares of the actors that end over 2 m off and that come closer
    than 1 m to another actor; avgBrierMinFDE, avgMinFDE plus (1 - p)^2 of that world. And bool [B]: scenes that have an actor.
    """
    actor = valid[..., -1]
    errors = world_errors(forecast, target, valid).most_probable(k)
    best, world = (
        best_end(errors),
        errors.mode.gather(1, errors.fde.argmin(1, keepdim=True)),
    )  # [B, 1]
    position = forecast.in_batch_frame().take_along_dim(
        world[:, None, :, None, None], 2
    )  # [B, S, 1, F, 2]
    missed = ~(
        (position[:, :, 0, -1] - target[:, :, -1]).norm(dim=-1) <= MISS_THRESHOLD_M
    )  # NaN is a miss
    hit = collided(position, actor, VEHICLE_COLLISION_M)[..., 0]
    rate = {
        name: (flag & actor).sum(-1) / actor.sum(-1).clamp(min=1)
        for name, flag in (("actorMR", missed), ("actorCR", hit))
    }
    metrics = {
        "avgMinFDE": best["minFDE"],
        "avgMinADE": best["minADE"],
        **rate,
        "avgBrierMinFDE": best["brier_minFDE"],
    }
    return metrics, actor.any(-1)


def multi_world_of_joint(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """`multi_world` of the 6 most probable worlds ("avgMinFDE6"); nothing for marginal forecasts."""
    if not forecast.is_joint:
        return {}, batch.truth.valid.new_zeros(0)
    metrics, counts = multi_world(forecast, batch.truth.position, batch.truth.valid)
    return {f"{name}6": value for name, value in metrics.items()}, counts


def collided(
    position: Tensor, actor: Tensor, threshold_m: float, *, between_steps: bool = False
) -> Tensor:
    """Collisions bool [B, S, K] of each actor (bool [B, S]) with another one in each world.

    `position` is [B, S, K, F, 2] in metres, all in one frame. Two actors collide if the distance of their centres is smaller than
    the threshold. `between_steps` also checks the straight motion between steps. Two people that meet head-on are a metre apart
    at both ends of a 0.4 s step, so the crowd literature does this; Argoverse 2 does not.
    """
    first, second = torch.triu_indices(
        position.shape[1], position.shape[1], 1, device=position.device
    )
    # Pairs with disjoint bounding boxes, the most frequent case, are skipped.
    low, high = position.amin(3) - threshold_m, position.amax(3)
    far = ((low[:, first] > high[:, second]) | (low[:, second] > high[:, first])).any(
        -1
    )  # [B, pairs, K]
    scene, pair, world = (
        (~far & (actor[:, first] & actor[:, second])[..., None]).nonzero().unbind(1)
    )
    pairs = [(scene, agents[pair], world) for agents in (first, second)]
    start = position[pairs[0]] - position[pairs[1]]  # [n, F, 2], from one agent to the other
    if between_steps and start.shape[1] > 1:
        start, step = start[:, :-1], start.diff(dim=1)
        along = -(start * step).sum(-1) / (step * step).sum(-1).clamp(min=1e-12)
        start = start + along.clamp(0.0, 1.0)[..., None] * step  # the nearest point of each segment
    close = ~(
        start.norm(dim=-1).amin(-1) >= threshold_m
    )  # a position that is NaN counts as a collision
    result = torch.zeros(position.shape[:3], dtype=torch.bool, device=position.device)
    for index in pairs:
        result[tuple(part[close] for part in index)] = True
    return result
