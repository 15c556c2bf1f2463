"""World loss: K worlds against the joint future of a scene's targets (Forecast-MAE's joint loss).

The best world has the smallest mean error over the targets. It receives a regression loss, and the
world scores a cross-entropy.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.losses.displacement import huber, pairwise_errors
from trajformer.losses.matching import match_layers
from trajformer.losses.terms import MatchedLossConfig, Terms, combine, total
from trajformer.scenes.geometry import to_frame


@dataclass(frozen=True)
class WorldLossConfig(MatchedLossConfig):
    """The matching cost selects the best world; Forecast-MAE uses ADE only."""

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`world_loss` of the model's forecast."""
        return world_loss(model(batch.observation), batch.truth.position, batch.truth.valid, self)


def world_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig) -> Terms:
    """The loss of a joint forecast of K worlds.

    The target is [B, S, F, 2] in the batch frame, `valid` bool [B, S, F]; targets without a valid
    step and scenes without a valid target are ignored. Returns means over scenes: "regression" and
    "endpoint" (means over the targets of a scene) and "classification" of the last layer,
    "auxiliary" of the earlier layers, and the weighted sum "loss" with its gradient. Raises
    ValueError: the forecast is marginal, or an error is not finite.
    """
    if not forecast.is_joint:
        raise ValueError(
            "world_loss: expected a joint forecast [B, K], not a marginal one [B, S, K]"
        )
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    layers = (forecast, *forecast.auxiliary)
    return combine([_layer_terms(layer, target, valid, config) for layer in layers], config)


def _layer_terms(
    forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig
) -> Terms:
    """Terms of one decoder layer."""
    known = valid.any(-1)  # [B, S]
    weight = known / known.sum(-1, keepdim=True).clamp(min=1)  # of a target in the mean of a scene

    # The best world of each scene. Every target is a problem with one future.
    ade, fde = pairwise_errors(
        forecast.position.detach().flatten(0, 1),
        target.flatten(0, 1)[:, None],
        valid.flatten(0, 1)[:, None],
    )
    ade = _scene_means(ade, weight)  # [B, K]
    fde = _scene_means(fde, weight)
    cost = config.cost_ade * ade + config.cost_fde * fde
    has_target = known.any(-1)  # [B]
    matches = match_layers(cost[None, ..., None], has_target[:, None])
    scene, world, _ = matches[0]

    gap = forecast.position[scene, :, world] - target  # [B, S, F, 2]
    mean, last = huber(gap, valid, config.huber_m)
    log_probability = forecast.logit.log_softmax(-1)[scene, world]
    count = total(has_target)
    return {
        "regression": (mean * weight).sum() / count,
        "endpoint": (last * weight).sum() / count,
        "classification": -(log_probability * has_target).sum() / count,
    }


def _scene_means(error: Tensor, weight: Tensor) -> Tensor:
    """Errors [B * S, K, 1] of modes to weighted means [B, K] over the targets of a scene."""
    error = error.view(*weight.shape, error.shape[1])
    # A sum, not a matrix product, which autocast would compute in half precision.
    return (error * weight[..., None]).sum(1)
