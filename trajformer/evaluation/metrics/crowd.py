"""Metrics of papers on pedestrians: separate minima of agents and worlds, and collisions.

They are defined for any scenes. The ETH/UCY protocol uses them with 20 samples and 0.2 m.

Example, for one scene with modes [A, K, F, 2], probabilities [A, K], truth [A, F, 2] and valid
[A, F] as numpy arrays:

    forecast, target, known = one_scene(modes, probability, truth, valid)
    metrics, counts = crowd_metrics(forecast, target, known, k=20, collision_m=0.2)
    metrics["JADE_20"][counts].mean()
"""

import numpy as np
import torch
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.evaluation.metrics.displacement import (
    MANY_MODES,
    Metrics,
    agent_errors,
    separate_minima,
)
from trajformer.evaluation.metrics.joint import PEDESTRIAN_COLLISION_M, collisions, world_errors


def crowd_names(k: int = MANY_MODES) -> tuple[str, ...]:
    """The names of `crowd_metrics`, in the order of tables."""
    return (
        "ADE_1",
        "FDE_1",
        f"ADE_{k}",
        f"FDE_{k}",
        f"FDE_at_best_ADE_{k}",
        f"JADE_{k}",
        f"JFDE_{k}",
        f"JFDE_at_best_JADE_{k}",
        f"collision_rate_{k}",
    )


def crowd_metrics(
    forecast: Forecast,
    target: Tensor,
    valid: Tensor,
    k: int = MANY_MODES,
    collision_m: float = PEDESTRIAN_COLLISION_M,
) -> Metrics:
    """The metrics of papers on pedestrians [B, S], in metres.

    The arguments `target` and `valid` are as in `agent_errors`; agents with a known last future
    step count. ADE_k and FDE_k are separate minima (Gupta et al. 2018), of the most probable mode
    and of k modes; names have k even if a forecast has fewer modes. For JADE_k and JFDE_k of worlds
    (Weng et al. 2023, "Joint Metrics Matter", section 3), every agent has the value of its scene,
    so that scenes are weighted by their number of actors. collision_rate_k is the fraction of all
    worlds of the forecast in which the agent comes closer than `collision_m` metres to another
    actor, also between steps.
    """
    agents = agent_errors(forecast, target, valid)
    worlds = world_errors(forecast, target, valid)
    metrics = {}
    for count in (1, k):
        for name, value in separate_minima(agents.most_probable(count)).items():
            metrics[f"{name}_{count}"] = value
    for name, value in separate_minima(worlds.most_probable(k)).items():
        joint_name = name.replace("ADE", "JADE").replace("FDE", "JFDE")
        metrics[f"{joint_name}_{k}"] = value[:, None].expand(valid.shape[:2])
    actor = valid[..., -1]
    hit = collisions(forecast.in_batch_frame(), actor, collision_m, between_steps=True)
    metrics[f"collision_rate_{k}"] = hit.double().mean(-1)
    return metrics, actor


def recorded_collisions(
    position: np.ndarray, collision_m: float = PEDESTRIAN_COLLISION_M
) -> np.ndarray:
    """Collisions bool [A] of recorded paths [A, F, 2], in metres, without missing steps.

    An agent collides if it comes closer than `collision_m` to another one, also between steps.
    """
    future = torch.from_numpy(position)[None, :, None]  # [1, A, 1, F, 2]
    actors = torch.ones(future.shape[:2], dtype=torch.bool)
    hit = collisions(future, actors, collision_m, between_steps=True)
    return hit[0, :, 0].numpy()


def one_scene(
    modes: np.ndarray, probability: np.ndarray, truth: np.ndarray, valid: np.ndarray
) -> tuple[Forecast, Tensor, Tensor]:
    """The arrays of one scene as arguments of `crowd_metrics`, `world_errors` and `multi_world`.

    Args:
        modes: [A, K, F, 2], metres, in the frame of the truth.
        probability: [A, K] of each agent, or [K] of joint futures.
        truth: [A, F, 2], metres.
        valid: bool [A, F], known steps of the truth.

    Returns:
        forecast, target [1, A, F, 2] and valid bool [1, A, F], with the dtype of `modes`. Unknown
        steps of the target are zero.
    """
    position = torch.from_numpy(np.ascontiguousarray(modes))[None]
    chance = torch.from_numpy(np.ascontiguousarray(probability))[None]
    # a finite logarithm, because minus infinity times zero is NaN
    smallest = torch.finfo(chance.dtype).tiny
    logit = chance.clamp(min=smallest).log()
    forecast = Forecast(position, logit, Frame.SCENE)
    known_truth = np.where(valid[..., None], truth, 0.0)
    target = torch.from_numpy(known_truth).to(position.dtype)[None]
    return forecast, target, torch.from_numpy(np.ascontiguousarray(valid))[None]
