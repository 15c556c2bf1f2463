"""Argoverse displacement metrics as pure functions: a value for each agent, and which agents count.

The best of the k most probable modes is the one with the smallest end-point error; ADE, probability and so brier are
taken at it (Argoverse 2's definition, MODELS.md section 9).
"""

from __future__ import annotations

from torch import Tensor

from trajformer.forecast import Forecast

MISS_THRESHOLD_M = 2.0
NAMES = ("minADE", "minFDE", "MR", "brier_minFDE")


def displacement(
    forecast: Forecast, target: Tensor, valid: Tensor, k: int, *, miss_threshold_m: float = MISS_THRESHOLD_M
) -> tuple[dict[str, Tensor], Tensor]:
    """minADE, minFDE, MR and brier_minFDE over each agent's k most probable modes.

    Args:
        forecast: [B, S, K, F, 2]; all K modes count where K < k.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        k: how many modes may be used.
        miss_threshold_m: an end-point error above this is a miss.

    Returns:
        {name: float [B, S]} in metres (MR: 0 or 1), and bool [B, S]: agents whose last future step is known.
        ADE averages over the valid steps. Probabilities are used as predicted, not renormalised to the k modes.
    """
    probability = forecast.probability()
    order = probability.argsort(dim=-1, descending=True, stable=True)[..., :k]
    error = (forecast.in_batch_frame() - target[:, :, None]).norm(dim=-1)  # [B, S, K, F]
    error = error.gather(2, order[..., None].expand(*order.shape, error.shape[-1]))
    fde, best = error[..., -1].min(-1)
    steps = valid.sum(-1).clamp(min=1)
    ade = (error * valid[:, :, None]).sum(-1).gather(2, best[..., None]).squeeze(-1) / steps
    chosen = probability.gather(2, order).gather(2, best[..., None]).squeeze(-1)
    values = (ade, fde, (fde > miss_threshold_m).to(fde.dtype), fde + (1.0 - chosen) ** 2)
    return dict(zip(NAMES, values, strict=True)), valid[..., -1]
