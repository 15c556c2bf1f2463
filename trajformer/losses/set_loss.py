"""Set loss: K modes against the recorded futures of an agent, matched as in DETR.

The cost of target g for mode k is w_class * (-p_k) + w_ade * ADE + w_fde * FDE. Modes and futures
are matched one to one (Carion et al. 2020). Matched modes receive a regression loss (smooth L1) and
a cross-entropy. The confidence term of mmTransformer (eq. 6) trains all scores towards
softmax(-FDE). Each decoder layer is matched separately.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.losses.displacement import confidence_divergence, huber, pairwise_errors
from trajformer.losses.matching import Match, match_layers
from trajformer.losses.terms import MatchedLossConfig, Terms, combine, total
from trajformer.scenes.geometry import to_frame

_EPSILON_M2 = 1e-8  # keeps the gradient of a distance of zero finite
_FAR_M = 1e9  # error of a mode with respect to a future that does not exist


@dataclass(frozen=True)
class SetLossConfig(MatchedLossConfig, positive=("temperature_m",)):
    """Further weights of matching cost and terms.

    Attributes:
        cost_class: weight of the probability in the matching cost.
        confidence: KL divergence from softmax(-FDE / temperature) to the predicted scores.
        temperature_m: of that softmax, in metres.
        error: smooth L1 is applied to both coordinates, or to the distance, as measured by ADE and
            FDE.
        single: additional regression and endpoint terms for mode 0, which trains it as the best
            single prediction (K = 1).
    """

    cost_class: float = 0.0
    classification: float = 0.2
    confidence: float = 1.0
    temperature_m: float = 1.0
    error: Literal["coordinates", "distance"] = "coordinates"
    single: float = 0.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`set_loss` of the model's forecast."""
        return set_loss(model(batch.observation), batch.truth.position, batch.truth.valid, self)


class _Layer(NamedTuple):
    """The modes of one decoder layer, for N = B * S agents with G possible futures."""

    position: Tensor  # [N, K, F, 2]
    logit: Tensor  # [N, K]
    fde: Tensor  # [N, K, G], without gradient
    cost: Tensor  # [N, K, G], of matching, without gradient


def set_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: SetLossConfig) -> Terms:
    """The loss of a marginal forecast of K modes.

    The target is [B, S, F, 2] in the batch frame, or [B, S, G, F, 2] with G possible futures of
    each agent; `valid` is bool [B, S, F] or [B, S, G, F], and futures without a valid step are
    ignored. Returns means over matched futures: "regression", "endpoint", "classification",
    "confidence" of the last layer, "single" if it has a weight, "auxiliary" of the earlier layers,
    and the weighted sum "loss" with its gradient. Raises ValueError: the forecast is joint, or a
    matching cost is not finite.
    """
    if forecast.is_joint:
        raise ValueError("set_loss: expected a marginal forecast [B, S, K], not a joint one [B, K]")
    if target.ndim == 4:
        target = target[:, :, None]
        valid = valid[:, :, None]
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None, None])
    target = target.flatten(0, 1)  # [N, G, F, 2]
    valid = valid.flatten(0, 1)  # [N, G, F]

    forecasts = (forecast, *forecast.auxiliary)
    layers = [_layer(part, target, valid, config) for part in forecasts]
    # All layers are matched in one call, because a GPU waits for each call.
    matches = match_layers(torch.stack([layer.cost for layer in layers]), valid.any(-1))
    terms = []
    for layer, pairs in zip(layers, matches, strict=True):
        terms.append(_layer_terms(layer, pairs, target, valid, config))
    return combine(terms, config)


def _layer(forecast: Forecast, target: Tensor, valid: Tensor, config: SetLossConfig) -> _Layer:
    """The modes of a forecast with their matching cost."""
    position = forecast.position.flatten(0, 1)
    logit = forecast.logit.flatten(0, 1)
    ade, fde = pairwise_errors(position.detach(), target, valid)
    cost = config.cost_ade * ade + config.cost_fde * fde
    if config.cost_class:
        probability = logit.detach().softmax(-1)
        cost = cost - config.cost_class * probability[..., None]
    return _Layer(position, logit, fde, cost)


def _layer_terms(
    layer: _Layer, pairs: Match, target: Tensor, valid: Tensor, config: SetLossConfig
) -> Terms:
    """Terms of one decoder layer, means over the M matched pairs of mode and future."""
    agent, mode, future = pairs
    truth = target[agent, future]  # [M, F, 2]
    mask = valid[agent, future]  # [M, F]
    known = mask.any(-1)  # a pair may have a future without a valid step
    count = total(known)

    mean, last = _regression(layer.position[agent, mode], truth, mask, config)
    terms = {"regression": mean / count, "endpoint": last / count}
    if config.single:
        single = _regression(layer.position[agent, 0], truth, mask, config)
        terms["single"] = torch.stack(single).sum() / count

    log_probability = layer.logit.log_softmax(-1)[agent, mode]
    terms["classification"] = -(log_probability * known).sum() / count

    # The confidence of a mode follows from its distance to the nearest future of the agent.
    exists = valid.any(-1)[:, None]  # [N, 1, G]
    fde = torch.where(exists, layer.fde, _FAR_M).amin(-1)[agent]  # [M, K]
    divergence = confidence_divergence(layer.logit[agent], fde, config.temperature_m)
    terms["confidence"] = (divergence * known).sum() / count
    return terms


def _regression(
    position: Tensor, target: Tensor, valid: Tensor, config: SetLossConfig
) -> tuple[Tensor, Tensor]:
    """Smooth L1 of positions [M, F, 2], summed over M.

    Returns the mean over valid steps and the value in the last valid step.
    """
    gap = position - target
    if config.error == "distance":
        squared_distance = gap.square().sum(-1, keepdim=True)
        gap = (squared_distance + _EPSILON_M2).sqrt()
    mean, last = huber(gap, valid, config.huber_m)
    return mean.sum(), last.sum()
