"""Dropout that is not the slowest part of a step on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_LEAST = -128  # int8


def kept(
    shape: tuple[int, ...], p: float, device: torch.device, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Tensor:
    """0 with probability p, else 1, of a shape and type; on a CPU a random byte decides, so that p is rounded to 1/256.

    PyTorch draws a number of its serial generator for every entry, which takes longer than the matrix product before it;
    eight bytes of a draw decide on eight entries. What is to be dropped is multiplied by the result: choosing by a random
    bool takes eight times as long, for a processor cannot guess it.

    Args:
        dtype: int8 is the quickest and smallest.
        generator: of the same device, torch's own by default.
    """
    if device.type != "cpu":
        return (torch.rand(shape, device=device, generator=generator) >= p).to(dtype)
    count, limit = math.prod(shape), _limit(p)
    if limit in (_LEAST, -_LEAST):
        return torch.full(shape, int(limit == _LEAST), dtype=dtype)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return words.view(torch.int8)[:count].view(shape).clamp_(limit - 1, limit).sub_(limit - 1).to(dtype)


def kept_share(p: float, device: torch.device) -> float:
    """The share of entries that `kept` leaves."""
    return (-_LEAST - _limit(p)) / 256 if device.type == "cpu" else 1.0 - p


def _limit(p: float) -> int:
    """The least byte that keeps an entry."""
    return _LEAST + (256 if p >= 255 / 256 else round(p * 256))


class Dropout(nn.Dropout):
    """`nn.Dropout`, with `kept` on a CPU in training; a compiled graph has PyTorch's, which its compiler makes fast itself."""

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...], scaled so that its mean stays."""
        share = kept_share(self.p, x.device)
        if not self.training or share == 1.0:
            return x
        if x.device.type != "cpu" or share == 0.0 or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return _Thinned.apply(x, kept(x.shape, self.p, x.device, torch.int8), 1.0 / share)


class _Thinned(torch.autograd.Function):
    """A product with int8 zeros and ones, which are all that is kept for the gradient, and a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, factor: float) -> Tensor:
        """Of the shape of x."""
        ctx.save_for_backward(keep)
        ctx.factor = factor
        return keep.to(x.dtype).mul_(x).mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The same of the gradient."""
        [keep] = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(gradient).mul_(ctx.factor), None, None


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """While open, `module` drops nothing, as in evaluation."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
