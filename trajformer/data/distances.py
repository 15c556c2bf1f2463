"""Distances between points, and mean positions against which motion is measured."""

import torch
from torch import Tensor


def pairwise_distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances between points [..., N, 2] and [..., M, 2]: [..., N, M], in the points' unit.

    The matrix-product formula of `torch.cdist` is off: in single precision its error reaches metres far from the origin.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def half_second(period_s: float) -> int:
    """Steps of half a second, at least one."""
    return max(round(0.5 / period_s), 1)


def first_centre(position: Tensor, valid: Tensor, period_s: float) -> Tensor:
    """Means [..., 2] of the valid positions [..., T, 2] of the first half second, `valid` bool [..., T]; zeros if none is valid.

    Single positions of recordings are noisy. The last half second is the first one of flipped steps.
    """
    share = (valid & (valid.cumsum(-1) <= half_second(period_s))).to(position.dtype)[..., None]
    return (position * share).sum(-2) / share.sum(-2).clamp(min=1)
