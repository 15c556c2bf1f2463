"""Apply a sequence block along one axis of a grid of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor


def apply_along_axis(
    axis: int, apply: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Apply a sequence block along one axis of x, independently for each index of the other axes.

    Args:
        axis: the sequence axis, for example 2 (time) of [B, A, T, D]; not the last.
        apply: maps tokens [N, L, D] and a padding mask bool [N, 1, L] (or None) to [N, L', D].
        x: [..., D].
        mask: bool [...], the shape of x without D; True = real token, may be attended.

    Returns:
        The shape of x, with L' instead of L on the sequence axis.

    Raises:
        ValueError: axis is the last one or out of range.
    """
    axis = axis % x.ndim
    if axis == x.ndim - 1:
        raise ValueError("axis is the last one, which holds the features of a token")
    moved = x.movedim(axis, -2)
    rest, count = moved.shape[:-2], math.prod(moved.shape[:-2])  # reshape cannot infer -1 if an axis is empty
    keys = None if mask is None else mask.movedim(axis, -1).reshape(count, 1, moved.shape[-2])
    out = apply(moved.reshape(count, *moved.shape[-2:]), keys)
    return out.reshape(*rest, *out.shape[-2:]).movedim(-2, axis)
