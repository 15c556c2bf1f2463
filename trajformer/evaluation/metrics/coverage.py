"""Coverage: the share of possible futures of one past that are among the modes of a forecast."""

from __future__ import annotations

from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import MISS_THRESHOLD_M


def futures_covered(
    forecast: Forecast, target: Tensor, valid: Tensor, k: int, *, threshold_m: float = MISS_THRESHOLD_M
) -> tuple[Tensor, Tensor]:
    """Which of G true futures end within `threshold_m` of one of the k most probable modes of an agent.

    Args:
        forecast: [B, S, K, F, 2]; all K modes are used if K < k.
        target: [B, S, G, F, 2] in the batch frame.
        valid: bool [B, S, G, F].

    Returns:
        bool [B, S, G], and bool [B, S, G]: futures with a known last step, which count.
    """
    order = forecast.probability().argsort(dim=-1, descending=True, stable=True)[..., :k]
    end = forecast.in_batch_frame()[..., -1, :]
    end = end.gather(2, order[..., None].expand(*order.shape, 2))
    gap = (end[:, :, None] - target[..., -1, None, :]).norm(dim=-1)  # [B, S, G, k]
    return gap.amin(-1) <= threshold_m, valid[..., -1]
