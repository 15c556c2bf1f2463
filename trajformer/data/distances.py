"""Pairwise distances between points."""

import torch
from torch import Tensor


def pairwise_distances(first: Tensor, second: Tensor) -> Tensor:
    """Euclidean distances between points [..., N, 2] and [..., M, 2]: [..., N, M], in the points' unit.

    The matrix-product formula of `torch.cdist` is off: in single precision its error reaches metres far from the origin.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
