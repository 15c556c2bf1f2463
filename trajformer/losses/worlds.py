"""Set loss of joint forecasts: K worlds against the joint future of a scene's targets (joint loss of Forecast-MAE).

A world is one joint future of all targets. The best world has the smallest mean error over the targets of the scene. It receives
a regression loss (smooth L1), and the world scores a cross-entropy. The best world is chosen separately for each decoder layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.matching import match
from trajformer.losses.set_loss import huber, pairwise_errors
from trajformer.losses.terms import ForecastLoss, Terms, combine
from trajformer.scenes.geometry import to_frame


@dataclass(frozen=True)
class WorldLossConfig:
    """Weights of selection error and terms.

    Attributes:
        cost_ade, cost_fde: weights of the error that selects the best world; Forecast-MAE uses ADE only.
        regression: smooth L1 of its positions.
        endpoint: additional smooth L1 of its last positions.
        classification: cross-entropy over worlds.
        huber_m: error in metres at which smooth L1 changes from quadratic to linear.
        auxiliary: weight of the terms of earlier decoder layers.
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
        valid: bool [B, S, F]; targets without a valid step and scenes without a valid target are ignored.

    Returns:
        Means over scenes: "regression" and "endpoint" (means over the targets of a scene) and "classification" of the last
        layer, "auxiliary" of the earlier layers, and the weighted sum "loss" with its gradient.

    Raises:
        ValueError: the forecast is marginal, or an error is not finite.
    """
    if not forecast.is_joint:
        raise ValueError("world_loss: expected a joint forecast [B, K], not a marginal one [B, S, K]")
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    return combine([_terms(layer, target, valid, config) for layer in (forecast, *forecast.auxiliary)], config)


def _terms(forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig) -> Terms:
    known = valid.any(-1)  # [B, S]
    share = known / known.sum(-1, keepdim=True).clamp(min=1)
    truth = target.flatten(0, 1)[:, None], valid.flatten(0, 1)[:, None]  # one future of each target
    errors = pairwise_errors(forecast.position.detach().flatten(0, 1), *truth)
    # A sum, not a matrix product, which autocast would compute in half precision.
    ade, fde = ((error.view(*known.shape, forecast.num_modes) * share[..., None]).sum(1) for error in errors)  # [B, K]
    scene, world, _ = match((config.cost_ade * ade + config.cost_fde * fde)[..., None], known.any(-1)[:, None])
    count = max(len(scene), 1)
    share, valid = share[scene], valid[scene]
    gap = forecast.position[scene, :, world] - target[scene]  # [n, S, F, 2]
    mean, last = huber(gap, valid, config.huber_m)
    return {
        "regression": (mean * share).sum() / count,
        "endpoint": (last * share).sum() / count,
        "classification": -forecast.logit.log_softmax(-1)[scene, world].sum() / count,
    }
