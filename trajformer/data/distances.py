"""Distances between points, and mean positions against which motion is measured."""

import torch
from torch import Tensor


def pairwise_distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances [..., N, M] between points [..., N, 2] and [..., M, 2].

    The matrix-product formula of `torch.cdist` is off: in single precision its error reaches
    metres far from the origin.
    """
    if torch.compiler.is_exporting():  # ONNX has no `cdist`
        return (first[..., :, None, :] - second[..., None, :, :]).norm(dim=-1)
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def half_second(period_s: float) -> int:
    """Steps of half a second, at least one."""
    return max(round(0.5 / period_s), 1)


def first_center(position: Tensor, valid: Tensor, period_s: float) -> Tensor:
    """Mean [..., 2] of the valid positions [..., T, 2] of the first half second.

    `valid` is bool [..., T]. The mean is zero if no position is valid. Single positions of
    recordings are noisy. The last half second is the first one of flipped steps.
    """
    is_first = valid & (valid.cumsum(-1) <= half_second(period_s))
    weight = is_first.to(position.dtype)[..., None]
    return (position * weight).sum(-2) / weight.sum(-2).clamp(min=1)
