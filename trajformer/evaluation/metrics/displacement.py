"""Displacement metrics of single agents as pure functions: a value for each agent, and which agents count.

Two conventions have different names. Argoverse 2 (`displacement`) selects the mode with the smallest end-point error
among the k most probable modes, and computes all metrics of this mode: minADE, minFDE, MR, brier_minFDE. ETH/UCY
(`separate_minima`) takes the minima of ADE and FDE separately: ADE, FDE.
"""

from __future__ import annotations

from torch import Tensor

from trajformer.data.forecast import Forecast

MISS_THRESHOLD_M = 2.0
MANY_MODES = 20  # models with this number of modes are also scored by the best of 20, as is usual for pedestrians
NAMES = ("minADE", "minFDE", "MR", "brier_minFDE")
SEPARATE_NAMES = ("ADE", "FDE", "FDE_at_best_ADE")


def displacement(
    forecast: Forecast, target: Tensor, valid: Tensor, k: int, *, miss_threshold_m: float = MISS_THRESHOLD_M
) -> tuple[dict[str, Tensor], Tensor]:
    """Argoverse: minADE, minFDE, MR and brier_minFDE of the mode with the best end point among the k most probable modes.

    Args:
        forecast: [B, S, K, F, 2]; all K modes are used if K < k.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        k: number of modes.
        miss_threshold_m: an end-point error above this is a miss.

    Returns:
        {name: float [B, S]} in metres (MR: 0 or 1), with the "probability" of the best mode; and bool [B, S]: agents with a known
        last future step. ADE averages over the valid steps. Probabilities are not normalised to the k modes.
    """
    ade, fde, probability = _errors(forecast, target, valid, k)
    fde, best = fde.min(-1)
    ade, chosen = (value.gather(2, best[..., None]).squeeze(-1) for value in (ade, probability))
    values = (ade, fde, (fde > miss_threshold_m).to(fde.dtype), fde + (1.0 - chosen) ** 2, chosen)
    return dict(zip((*NAMES, "probability"), values, strict=True)), valid[..., -1]


def separate_minima(forecast: Forecast, target: Tensor, valid: Tensor, k: int) -> tuple[dict[str, Tensor], Tensor]:
    """ETH/UCY: the smallest ADE and, separately, the smallest FDE of the k most probable modes.

    This is "best of 20" since Social GAN (Gupta et al. 2018). ADE and FDE may come from different modes, so that no single
    mode reaches both. FDE_at_best_ADE is the end-point error of the mode with the smallest ADE.

    Args:
        forecast: [B, S, K, F, 2]; all K modes are used if K < k.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        k: number of modes.

    Returns:
        {name: float [B, S]} in metres, and bool [B, S]: agents with a known last future step. ADE averages over the
        valid steps.
    """
    ade, fde, _ = _errors(forecast, target, valid, k)
    ade, best = ade.min(-1)
    values = (ade, fde.min(-1).values, fde.gather(2, best[..., None]).squeeze(-1))
    return dict(zip(SEPARATE_NAMES, values, strict=True)), valid[..., -1]


def _errors(forecast: Forecast, target: Tensor, valid: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """ADE, FDE and probability [B, S, k] of the k most probable modes of each agent, the most probable first."""
    probability = forecast.probability()
    order = probability.argsort(dim=-1, descending=True, stable=True)[..., :k]
    error = (forecast.in_batch_frame() - target[:, :, None]).norm(dim=-1)  # [B, S, K, F]
    error = error.gather(2, order[..., None].expand(*order.shape, error.shape[-1]))
    steps = valid.sum(-1, keepdim=True).clamp(min=1)
    ade = (error * valid[:, :, None]).sum(-1) / steps
    return ade, error[..., -1], probability.gather(2, order)
