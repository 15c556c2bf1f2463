"""Set loss of joint forecasts: K worlds against the joint future of a scene's targets (Forecast-MAE's joint loss).

A world is one future of all targets together. There is one joint truth, so that matching is an argmin: the best world is
that of the smallest error averaged over the scene's targets. It is regressed (smooth L1) and classified (cross-entropy over
worlds). Auxiliary layers get the same terms, with a best world of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.matching import match
from trajformer.losses.set_loss import last_valid, pairwise_errors
from trajformer.losses.terms import ForecastLoss, Terms, combine, weigh
from trajformer.scenes.geometry import to_frame


@dataclass(frozen=True)
class WorldLossConfig:
    """Weights of the choice of the best world and of the terms.

    Attributes:
        cost_ade, cost_fde: the error that chooses it; Forecast-MAE takes ADE alone.
        regression: smooth L1 on its positions.
        endpoint: further smooth L1 on its last ones.
        classification: cross-entropy over worlds.
        huber_m: where smooth L1 turns from quadratic to linear, metres.
        auxiliary: weight of the earlier decoder layers' terms.
    """

    cost_ade: float = 0.5
    cost_fde: float = 1.0
    regression: float = 1.0
    endpoint: float = 0.2
    classification: float = 1.0
    huber_m: float = 1.0
    auxiliary: float = 0.5

    def __post_init__(self) -> None:
        check_numbers(self, positive=("huber_m",))

    def build(self) -> ForecastLoss:
        """The loss with these weights."""
        return ForecastLoss(world_loss, self)


def world_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig) -> Terms:
    """The loss of a joint forecast.

    Args:
        forecast: K worlds of B scenes with S targets each.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; targets without a valid step do not count, nor do scenes without such a target.

    Returns:
        Means over scenes (of the regressions: of the means over a scene's targets): "regression", "endpoint" and
        "classification" of the last layer, "auxiliary" of the others, and their weighted sum "loss" (the only one with a
        gradient to use).

    Raises:
        ValueError: the forecast is marginal, or an error is not finite.
    """
    if not forecast.is_joint:
        raise ValueError("world_loss: marginal forecasts [B, S, K] are not joint ones [B, K]")
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    last, *earlier = [_terms(layer, target, valid, config) for layer in (forecast, *forecast.auxiliary)]
    return combine(last, earlier, config.auxiliary, lambda terms: weigh(terms, config))


def _terms(forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig) -> Terms:
    actor = valid.any(-1)  # [B, S]
    share = actor / actor.sum(-1, keepdim=True).clamp(min=1)
    truth = target.flatten(0, 1)[:, None], valid.flatten(0, 1)[:, None]  # one future of each target
    errors = pairwise_errors(forecast.position.detach().flatten(0, 1), *truth)
    # No product of matrices: in half precision the best world would be one of several.
    ade, fde = ((error.view(*actor.shape, forecast.num_modes) * share[..., None]).sum(1) for error in errors)  # [B, K]
    scene, world, _ = match((config.cost_ade * ade + config.cost_fde * fde)[..., None], actor.any(-1)[:, None])
    count = max(len(scene), 1)
    share, valid = share[scene], valid[scene]
    gap = forecast.position[scene, :, world] - target[scene]  # [n, S, F, 2]
    error = F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none", beta=config.huber_m).sum(-1) * valid
    last = error.gather(-1, last_valid(valid)[..., None]).squeeze(-1)
    mean = error.sum(-1) / valid.sum(-1).clamp(min=1)
    return {
        "regression": (mean * share).sum() / count,
        "endpoint": (last * share).sum() / count,
        "classification": -forecast.logit.log_softmax(-1)[scene, world].sum() / count,
    }
