"""Attend along one axis of a grid of tokens: fold the others away, apply, unfold."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor


def apply_along_axis(
    axis: int, apply: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Apply a sequence block along one axis of x, independently for every index of the other axes.

    Args:
        axis: the axis that becomes the sequence, for example 2 (time) of [B, A, T, D]; not the last.
        apply: maps tokens [N, L, D] and a padding mask bool [N, 1, L] (or None) to [N, L', D].
        x: [..., D].
        mask: bool [...], x's shape without D: which tokens are real and may be attended.

    Returns:
        x's shape, with L' in place of L on that axis.

    Raises:
        ValueError: axis is the last one or out of range.
    """
    axis = axis % x.ndim
    if axis == x.ndim - 1:
        raise ValueError("the last axis holds a token's features")
    moved = x.movedim(axis, -2)
    rest, count = moved.shape[:-2], math.prod(moved.shape[:-2])  # counted: any axis may be empty
    keys = None if mask is None else mask.movedim(axis, -1).reshape(count, 1, moved.shape[-2])
    out = apply(moved.reshape(count, *moved.shape[-2:]), keys)
    return out.reshape(*rest, *out.shape[-2:]).movedim(-2, axis)
