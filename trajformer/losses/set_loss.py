"""Set loss: K modes against the observed futures of an agent, matched one to one as in DETR (Carion et al. 2020).

The cost of target g for mode k is w_class * (-p_k) + w_ade * ADE + w_fde * FDE. Matched modes receive a regression loss (smooth
L1) and a cross-entropy. The confidence term of mmTransformer (eq. 6) trains all scores towards softmax(-FDE). Each decoder layer
is matched separately.

Joint forecasts (joint loss of Forecast-MAE): K worlds against the joint future of a scene's targets. The best world has the
smallest mean error over the targets. It receives a regression loss, and the world scores a cross-entropy.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.losses.matching import Match, match_layers
from trajformer.losses.terms import LossConfig, Terms, combine, total
from trajformer.scenes.geometry import to_frame

_EPSILON_M2 = 1e-8  # keeps the gradient of a distance of zero finite
_FAR_M = 1e9  # error of a mode with respect to a future that does not exist


@dataclass(frozen=True)
class MatchedLossConfig(LossConfig, positive=("huber_m",)):
    """Weights of losses that train matched modes or worlds.

    Attributes:
        cost_ade, cost_fde: the matching cost.
        regression: smooth L1 of the matched positions.
        endpoint: additional smooth L1 of the last position.
        classification: cross-entropy towards the match.
        huber_m: error in metres at which smooth L1 changes from quadratic to linear.
        auxiliary: weight of the mean loss of earlier decoder layers.
    """

    cost_ade: float = 0.5
    cost_fde: float = 1.0
    regression: float = 1.0
    endpoint: float = 0.2
    classification: float = 1.0
    huber_m: float = 1.0
    auxiliary: float = 0.5


@dataclass(frozen=True)
class SetLossConfig(MatchedLossConfig, positive=("temperature_m",)):
    """Further weights of matching cost and terms.

    Attributes:
        cost_class: weight of the probability in the matching cost.
        confidence: KL divergence from softmax(-FDE / temperature) to the predicted scores.
        temperature_m: of that softmax, in metres.
        error: smooth L1 is applied to both coordinates, or to the distance, as measured by ADE and FDE.
        single: additional regression and endpoint terms for mode 0, which trains it as the best single prediction (K = 1).
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


def set_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: SetLossConfig) -> Terms:
    """The loss of a marginal forecast of K modes.

    The target is [B, S, F, 2] in the batch frame, or [B, S, G, F, 2] with G possible futures of each agent; `valid` is bool [B,
    S, F] or [B, S, G, F], and futures without a valid step are ignored. Returns means over matched futures: "regression",
    "endpoint", "classification", "confidence" of the last layer, "single" if it has a weight, "auxiliary" of the earlier layers,
    and the weighted sum "loss" with its gradient. Raises ValueError: the forecast is joint, or a matching cost is not finite.
    """
    if forecast.is_joint:
        raise ValueError("set_loss: expected a marginal forecast [B, S, K], not a joint one [B, K]")
    if target.ndim == 4:
        target, valid = target[:, :, None], valid[:, :, None]
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None, None])
    target, valid = target.flatten(0, 1), valid.flatten(0, 1)  # [N, G, F, 2], [N, G, F]
    layers, costs, ends = (forecast, *forecast.auxiliary), [], []
    for layer in layers:
        ade, fde = pairwise_errors(layer.position.detach().flatten(0, 1), target, valid)
        ends.append(fde)
        costs.append(config.cost_ade * ade + config.cost_fde * fde)
        if config.cost_class:
            costs[-1] = (
                costs[-1]
                - config.cost_class * layer.logit.detach().flatten(0, 1).softmax(-1)[..., None]
            )
    matches = match_layers(torch.stack(costs), valid.any(-1))
    parts = zip(layers, ends, matches, strict=True)
    return combine(
        [_terms(layer, fde, pairs, target, valid, config) for layer, fde, pairs in parts], config
    )


def _terms(
    forecast: Forecast,
    fde: Tensor,
    pairs: Match,
    target: Tensor,
    valid: Tensor,
    config: SetLossConfig,
) -> Terms:
    position, logit = (
        forecast.position.flatten(0, 1),
        forecast.logit.flatten(0, 1),
    )  # [N, K, F, 2], [N, K]
    exists = valid.any(-1)
    problem, mode, future = pairs
    truth, mask = target[problem, future], valid[problem, future]
    real = mask.any(-1)
    count = total(real)
    regression, endpoint = _errors(position[problem, mode], truth, mask, config)
    terms = {"regression": regression / count, "endpoint": endpoint / count}
    if config.single:
        terms["single"] = (
            torch.stack(_errors(position[problem, 0], truth, mask, config)).sum() / count
        )
    log_probability = logit.log_softmax(-1)
    nearest = torch.where(exists[:, None], fde, _FAR_M).amin(-1)[problem]  # [M, K]
    terms["classification"] = -(log_probability[problem, mode] * real).sum() / count
    terms["confidence"] = (
        confidence_divergence(logit[problem], nearest, config.temperature_m) * real
    ).sum() / count
    return terms


def _errors(
    position: Tensor, target: Tensor, valid: Tensor, config: SetLossConfig
) -> tuple[Tensor, Tensor]:
    """Smooth L1 of positions [M, F, 2]: mean over valid steps, and value in the last valid step; sums over M."""
    gap = position - target
    if config.error == "distance":
        gap = (gap.square().sum(-1, keepdim=True) + _EPSILON_M2).sqrt()
    mean, last = huber(gap, valid, config.huber_m)
    return mean.sum(), last.sum()


def huber(gap: Tensor, valid: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Smooth L1 of gaps [..., F, 2]: mean over valid steps, bool [..., F], and value in the last valid step, each [...]."""
    error = (
        F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none", beta=beta).sum(-1) * valid
    )
    mean = error.sum(-1) / valid.sum(-1).clamp(min=1)
    return mean, error.take_along_dim(last_valid(valid)[..., None], -1).squeeze(-1)


def pairwise_errors(position: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """ADE and FDE [N, K, G] in metres between modes [N, K, F, 2] and targets [N, G, F, 2] over their valid steps.

    The final error is taken at the target's last valid step. Both are zero for a target without a valid step.
    """
    distance = (position[:, :, None] - target[:, None]).norm(dim=-1) * valid[:, None]
    ade = distance.sum(-1) / valid.sum(-1).clamp(min=1)[:, None]
    return ade, distance.take_along_dim(last_valid(valid)[:, None, :, None], -1).squeeze(-1)


def confidence_divergence(logit: Tensor, fde: Tensor, temperature_m: float) -> Tensor:
    """KL divergence [...] from softmax(-FDE / temperature) to the scores, over the modes of logits and FDE [..., K]."""
    return F.kl_div(
        logit.log_softmax(-1), (-fde / temperature_m).softmax(-1), reduction="none"
    ).sum(-1)


def last_valid(valid: Tensor) -> Tensor:
    """Index of the last True along the last axis, 0 without any."""
    step = torch.arange(valid.shape[-1], device=valid.device)
    return torch.where(valid, step, 0).amax(-1)


@dataclass(frozen=True)
class WorldLossConfig(MatchedLossConfig):
    """The matching cost selects the best world; Forecast-MAE uses ADE only."""

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`world_loss` of the model's forecast."""
        return world_loss(model(batch.observation), batch.truth.position, batch.truth.valid, self)


def world_loss(forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig) -> Terms:
    """The loss of a joint forecast of K worlds.

    The target is [B, S, F, 2] in the batch frame, `valid` bool [B, S, F]; targets without a valid step and scenes without a valid
    target are ignored. Returns means over scenes: "regression" and "endpoint" (means over the targets of a scene) and
    "classification" of the last layer, "auxiliary" of the earlier layers, and the weighted sum "loss" with its gradient. Raises
    ValueError: the forecast is marginal, or an error is not finite.
    """
    if not forecast.is_joint:
        raise ValueError(
            "world_loss: expected a joint forecast [B, K], not a marginal one [B, S, K]"
        )
    if forecast.pose is not None:
        target = to_frame(target, forecast.pose[:, :, None])
    return combine(
        [_world_terms(layer, target, valid, config) for layer in (forecast, *forecast.auxiliary)],
        config,
    )


def _world_terms(
    forecast: Forecast, target: Tensor, valid: Tensor, config: WorldLossConfig
) -> Terms:
    known = valid.any(-1)  # [B, S]
    share = known / known.sum(-1, keepdim=True).clamp(min=1)
    truth = target.flatten(0, 1)[:, None], valid.flatten(0, 1)[:, None]  # one future of each target
    errors = pairwise_errors(forecast.position.detach().flatten(0, 1), *truth)
    # A sum, not a matrix product, which autocast would compute in half precision.
    ade, fde = (
        (error.view(*known.shape, forecast.num_modes) * share[..., None]).sum(1) for error in errors
    )  # [B, K]
    real = known.any(-1)
    [(scene, world, _)] = match_layers(
        (config.cost_ade * ade + config.cost_fde * fde)[None, ..., None], real[:, None]
    )
    count = total(real)
    gap = forecast.position[scene, :, world] - target  # [B, S, F, 2]
    mean, last = huber(gap, valid, config.huber_m)
    return {
        "regression": (mean * share).sum() / count,
        "endpoint": (last * share).sum() / count,
        "classification": -(forecast.logit.log_softmax(-1)[scene, world] * real).sum() / count,
    }
