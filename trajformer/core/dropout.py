"""Dropout that is fast on a CPU."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_MIN_BYTE = -128  # int8


def keep_mask(
    shape: tuple[int, ...],
    p: float,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A tensor of 0 (with probability p) and 1; int8 is the fastest and smallest `dtype`.

    On a CPU each entry uses one random byte, so p is rounded to 1/256. PyTorch draws one number per
    entry from its serial generator, which takes longer than a matrix product. Multiply by the
    result: a boolean selection takes eight times longer.
    """
    if device.type != "cpu":
        return (torch.rand(shape, device=device, generator=generator) >= p).to(dtype)
    first_kept = _first_kept_byte(p)
    if first_kept == _MIN_BYTE:
        return torch.ones(shape, dtype=dtype)
    if first_kept == _MIN_BYTE + 256:
        return torch.zeros(shape, dtype=dtype)
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    keep = words.view(torch.int8)[:count].view(shape)
    keep.clamp_(first_kept - 1, first_kept).sub_(first_kept - 1)  # 1 from `first_kept`, else 0
    return keep.to(dtype)


def keep_probability(p: float, device: torch.device) -> float:
    """The probability of 1 in `keep_mask`."""
    if device.type != "cpu":
        return 1.0 - p
    return (_MIN_BYTE + 256 - _first_kept_byte(p)) / 256


def _first_kept_byte(p: float) -> int:
    """The smallest random byte that keeps an entry; a value above all bytes if p rounds to 1."""
    dropped_bytes = 256 if p >= 255 / 256 else round(p * 256)
    return _MIN_BYTE + dropped_bytes


class Dropout(nn.Dropout):
    """`nn.Dropout` that uses `keep_mask` on a CPU in training.

    A compiled graph uses PyTorch's dropout.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...], scaled to keep the mean."""
        if not self.training:
            return x
        probability = keep_probability(self.p, x.device)
        if probability == 1.0:
            return x
        if x.device.type != "cpu" or probability == 0.0 or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        keep = keep_mask(x.shape, self.p, x.device, torch.int8)
        return _MaskedProduct.apply(x, keep, 1.0 / probability)


class _MaskedProduct(torch.autograd.Function):
    """x * mask * factor; saves only the int8 mask for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.factor = factor
        return keep.to(x.dtype).mul_(x).mul_(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        [keep] = ctx.saved_tensors
        return keep.to(gradient.dtype).mul_(gradient).mul_(ctx.factor), None, None


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Put all parts of `module` in evaluation mode inside the context, then restore their modes."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
