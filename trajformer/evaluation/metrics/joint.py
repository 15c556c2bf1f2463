"""Metrics of worlds, joint forecasts of all actors of a scene, as pure functions: a value, and which entries count.

A world is one mode of a joint forecast. For a marginal forecast, mode k of all agents is world k: for samples, this is the k-th
joint sample; for modes of independent agents, the order of modes is arbitrary, and so are worlds. The probability of a
world is the joint probability, or the normalised product of the marginal probabilities of its agents.

Actors are the agents with a known last future step; a scene without any does not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import MISS_THRESHOLD_M

VEHICLE_COLLISION_M = 1.0  # Argoverse 2: distance between the centres of two actors at the same step
# Two people of 0.1 m radius, as in TrajNet++ (Kothari et al. 2021) and "Joint Metrics Matter" (Weng et al. 2023).
PEDESTRIAN_COLLISION_M = 0.2
JOINT_NAMES = ("JADE", "JFDE", "JFDE_at_best_JADE")
MULTI_WORLD_NAMES = ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "avgBrierMinFDE")


def world_errors(forecast: Forecast, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """ADE and FDE [B, K] of each world, means over the scene's actors; zero in a scene without any.

    Args:
        forecast: [B, S, K, F, 2].
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; an actor's ADE averages over its valid steps.
    """
    error = (forecast.in_batch_frame() - target[:, :, None]).norm(dim=-1)  # [B, S, K, F]
    ade = (error * valid[:, :, None]).sum(-1) / valid.sum(-1).clamp(min=1)[..., None]
    actor = valid[..., -1].to(error.dtype)
    share = actor / actor.sum(-1, keepdim=True).clamp(min=1)
    # Not a matrix product, which would round the errors under autocast.
    return (ade * share[..., None]).sum(1), (error[..., -1] * share[..., None]).sum(1)


def world_probability(forecast: Forecast, actor: Tensor) -> Tensor:
    """[B, K], summing to 1: joint probabilities, or the normalised product of marginal ones over actors (bool [B, S])."""
    if forecast.is_joint:
        return forecast.logit.float().softmax(-1)
    return (forecast.logit.float().log_softmax(-1) * actor[..., None]).sum(1).softmax(-1)


def joint_minima(forecast: Forecast, target: Tensor, valid: Tensor, k: int) -> tuple[dict[str, Tensor], Tensor]:
    """JADE and JFDE: the smallest ADE and, separately, the smallest FDE of the k most probable worlds.

    Weng et al. 2023, "Joint Metrics Matter", section 3. Its means give every pedestrian the value of its scene, so weight
    scenes by their number of actors to compare the figures with ADE and FDE. JFDE_at_best_JADE is the FDE of the world with
    the smallest ADE.

    Args:
        forecast: [B, S, K, F, 2]; all K worlds are used if K < k.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        k: number of worlds.

    Returns:
        {name: float [B]} in metres, and bool [B]: scenes that have an actor.
    """
    order = _most_probable(forecast, valid[..., -1], k)
    ade, fde = (value.gather(1, order) for value in world_errors(forecast, target, valid))
    jade, best = ade.min(-1)
    values = (jade, fde.min(-1).values, fde.gather(1, best[:, None]).squeeze(1))
    return dict(zip(JOINT_NAMES, values, strict=True)), valid[..., -1].any(-1)


def multi_world(
    forecast: Forecast, target: Tensor, valid: Tensor, k: int, *, collision_m: float = VEHICLE_COLLISION_M
) -> tuple[dict[str, Tensor], Tensor]:
    """Argoverse 2's multi-world metrics, all at the world of the lowest mean FDE of the k most probable (MODELS.md, section 9).

    Args:
        forecast: [B, S, K, F, 2]; all K worlds are used if K < k.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        k: number of worlds.
        collision_m: two actors collide that are closer than this at a step.

    Returns:
        {name: float [B]}: avgMinFDE and avgMinADE in metres, means over actors; actorMR and actorCR, shares of the actors
        that end over 2 m off and that collide with another actor; avgBrierMinFDE, avgMinFDE plus (1 - p)^2 of that world.
        And bool [B]: scenes that have an actor.
    """
    actor = valid[..., -1]
    order = _most_probable(forecast, actor, k)
    ade, fde = (value.gather(1, order) for value in world_errors(forecast, target, valid))
    fde, best = fde.min(-1)
    world = order.gather(1, best[:, None])  # [B, 1]
    probability = world_probability(forecast, actor).gather(1, world).squeeze(1)
    position = forecast.in_batch_frame()
    wide = world[:, None, :, None, None].expand(-1, position.shape[1], 1, *position.shape[3:])
    position = position.gather(2, wide)  # [B, S, 1, F, 2]
    missed = (position[:, :, 0, -1] - target[:, :, -1]).norm(dim=-1) > MISS_THRESHOLD_M
    hit = collided(position, actor, collision_m)[..., 0]
    count = actor.sum(-1).clamp(min=1)
    shares = [(flag & actor).sum(-1) / count for flag in (missed, hit)]
    values = (fde, ade.gather(1, best[:, None]).squeeze(1), *shares, fde + (1.0 - probability) ** 2)
    return dict(zip(MULTI_WORLD_NAMES, values, strict=True)), actor.any(-1)


def collided(position: Tensor, actor: Tensor, threshold_m: float, *, between_steps: bool = False) -> Tensor:
    """Collisions of each actor with another one in each world.

    Args:
        position: [B, S, K, F, 2], metres, all in one frame.
        actor: bool [B, S]; other agents are ignored.
        threshold_m: two actors collide if the distance of their centres is smaller.
        between_steps: also check the straight motion between steps. Two people that meet head-on are a metre apart at both ends
            of a 0.4 s step, so the crowd literature does this; Argoverse 2 does not.

    Returns:
        bool [B, S, K].
    """
    result = torch.zeros(position.shape[:3], dtype=torch.bool, device=position.device)
    for scene, flags in enumerate(actor):
        index = flags.nonzero().squeeze(1)
        if len(index) > 1:
            result[scene, index] = _collided(position[scene, index], threshold_m, between_steps)
    return result


def _collided(position: Tensor, threshold_m: float, between_steps: bool) -> Tensor:
    """bool [A, K] for positions [A, K, F, 2]. Pairs with disjoint bounding boxes, the most frequent case, are skipped."""
    low, high = position.amin(2) - threshold_m, position.amax(2)
    first, second = torch.triu_indices(len(position), len(position), 1, device=position.device)
    near = ((low[first] <= high[second]) & (low[second] <= high[first])).all(-1)  # [pairs, K]
    pair, world = near.nonzero().unbind(1)
    first, second = first[pair], second[pair]
    apart = position[first, world] - position[second, world]  # [n, F, 2]
    distance = _from_origin(apart[:, :-1], apart[:, 1:]) if between_steps and apart.shape[1] > 1 else apart.norm(dim=-1)
    close = distance.amin(-1) < threshold_m
    result = torch.zeros(position.shape[:2], dtype=torch.bool, device=position.device)
    for actor in (first, second):
        result[actor[close], world[close]] = True
    return result


def _from_origin(start: Tensor, end: Tensor) -> Tensor:
    """Distance [...] of the origin from the segments between points [..., 2]."""
    step = end - start
    along = -(start * step).sum(-1) / (step * step).sum(-1).clamp(min=1e-12)
    return (start + along.clamp(0.0, 1.0)[..., None] * step).norm(dim=-1)


def _most_probable(forecast: Forecast, actor: Tensor, k: int) -> Tensor:
    """Indices [B, k] of the most probable worlds, the most probable first."""
    return world_probability(forecast, actor).argsort(dim=-1, descending=True, stable=True)[:, :k]
