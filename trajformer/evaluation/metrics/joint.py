"""Metrics of worlds, joint forecasts of all actors of a scene, and collisions.

A world is one mode of a joint forecast. For a marginal forecast, mode k of all agents is world k:
for samples, this is the k-th joint sample; for modes of independent agents, the order of modes is
arbitrary, and so are worlds. The probability of a world is the joint probability, or the normalized
product of the marginal probabilities of its agents.

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

# Argoverse 2: distance between the centers of two actors at the same step
VEHICLE_COLLISION_M = 1.0
# Two people of 0.1 m radius, as in TrajNet++ (Kothari et al. 2021) and "Joint Metrics Matter" (Weng
# et al. 2023).
PEDESTRIAN_COLLISION_M = 0.2


def world_errors(forecast: Forecast, target: Tensor, valid: Tensor) -> Errors:
    """Errors [B, K] of each world: ADE and FDE are means over the actors of the scene.

    They are zero in a scene without actors. Arguments are as in `agent_errors`.
    `separate_minima` of the k most probable worlds are JADE and JFDE of Weng et al. 2023, "Joint
    Metrics Matter", section 3.
    """
    errors = agent_errors(forecast, target, valid)
    actor = valid[..., -1, None]
    weight = actor.to(errors.ade.dtype) / actor.sum(1, keepdim=True).clamp(min=1)
    # Not a matrix product, which would round the errors under autocast.
    ade = (errors.ade * weight).sum(1)
    fde = (errors.fde * weight).sum(1)
    logit = forecast.logit.float()
    if not forecast.is_joint:
        logit = (logit.log_softmax(-1) * actor).sum(1)
    mode = torch.arange(forecast.num_modes, device=ade.device).expand_as(ade)
    return Errors(ade, fde, logit.softmax(-1), mode)


def multi_world(forecast: Forecast, target: Tensor, valid: Tensor, k: int = 6) -> Metrics:
    """Argoverse 2's multi-world metrics, of one world: the one with the smallest mean FDE.

    It is chosen among the k most probable worlds, among all worlds if K < k. Arguments as for
    `agent_errors`.

    Returns:
        {name: float [B]}: avgMinFDE and avgMinADE in metres, means over actors; actorMR and
        actorCR, fractions of the actors that end over 2 m off and that come closer than 1 m to
        another actor; avgBrierMinFDE, avgMinFDE plus (1 - p)^2 of that world. And bool [B]: scenes
        that have an actor.
    """
    actor = valid[..., -1]
    errors = world_errors(forecast, target, valid).most_probable(k)
    best = best_end(errors)
    lowest = errors.fde.argmin(1, keepdim=True)
    world = errors.mode.gather(1, lowest)[:, None, :, None, None]
    position = forecast.in_batch_frame().take_along_dim(world, 2)  # [B, S, 1, F, 2]
    end_error = (position[:, :, 0, -1] - target[:, :, -1]).norm(dim=-1)
    missed = ~(end_error <= MISS_THRESHOLD_M)  # NaN is a miss
    hit = collisions(position, actor, VEHICLE_COLLISION_M)[..., 0]
    actors = actor.sum(-1).clamp(min=1)
    metrics = {
        "avgMinFDE": best["minFDE"],
        "avgMinADE": best["minADE"],
        "actorMR": (missed & actor).sum(-1) / actors,
        "actorCR": (hit & actor).sum(-1) / actors,
        "avgBrierMinFDE": best["brier_minFDE"],
    }
    return metrics, actor.any(-1)


def multi_world_of_joint(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """`multi_world` of 6 worlds ("avgMinFDE6"); nothing for marginal forecasts."""
    if not forecast.is_joint:
        return {}, batch.truth.valid.new_zeros(0)
    metrics, counts = multi_world(forecast, batch.truth.position, batch.truth.valid)
    return {f"{name}6": value for name, value in metrics.items()}, counts


def collisions(
    position: Tensor, actor: Tensor, threshold_m: float, *, between_steps: bool = False
) -> Tensor:
    """Collisions bool [B, S, K] of each actor (bool [B, S]) with another one in each world.

    `position` is [B, S, K, F, 2] in metres, all in one frame. Two actors collide if the distance of
    their centers is smaller than the threshold. `between_steps` also checks the straight motion
    between steps. Two people that meet head-on are a metre apart at both ends of a 0.4 s step, so
    the crowd literature does this; Argoverse 2 does not.
    """
    count = position.shape[1]
    first, second = torch.triu_indices(count, count, 1, device=position.device)
    # Pairs with disjoint bounding boxes, the most frequent case, are skipped.
    low = position.amin(3) - threshold_m
    high = position.amax(3)
    apart = (low[:, first] > high[:, second]) | (low[:, second] > high[:, first])
    both_real = actor[:, first] & actor[:, second]
    candidates = ~apart.any(-1) & both_real[..., None]  # [B, pairs, K]
    scene, pair, world = candidates.nonzero().unbind(1)
    one = (scene, first[pair], world)
    other = (scene, second[pair], world)

    gap = _smallest_gap(position[one] - position[other], between_steps)
    close = ~(gap >= threshold_m)  # a position that is NaN counts as a collision
    result = torch.zeros(position.shape[:3], dtype=torch.bool, device=position.device)
    for index in (one, other):
        result[tuple(part[close] for part in index)] = True
    return result


def _smallest_gap(offset: Tensor, between_steps: bool) -> Tensor:
    """Smallest distance [n] of pairs of agents with offsets [n, F, 2] from one to the other."""
    if between_steps and offset.shape[1] > 1:
        start = offset[:, :-1]
        step = offset.diff(dim=1)
        along = -(start * step).sum(-1) / (step * step).sum(-1).clamp(min=1e-12)
        # the nearest point of each segment
        offset = start + along.clamp(0.0, 1.0)[..., None] * step
    return offset.norm(dim=-1).amin(-1)
