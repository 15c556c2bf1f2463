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

    On a CPU each entry uses one random byte, so p is rounded to 1/256. PyTorch draws one number per entry from its serial
    generator, which takes longer than a matrix product. Multiply by the result: a boolean selection takes eight times longer.
    """
    if device.type != "cpu":
        return (torch.rand(shape, device=device, generator=generator) >= p).to(dtype)
    count, limit = math.prod(shape), _min_kept_byte(p)
    if limit in (_MIN_BYTE, -_MIN_BYTE):
        return torch.full(shape, int(limit == _MIN_BYTE), dtype=dtype)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(
        -(2**63), None, generator=generator
    )
    return (
        words.view(torch.int8)[:count]
        .view(shape)
        .clamp_(limit - 1, limit)
        .sub_(limit - 1)
        .to(dtype)
    )


def keep_probability(p: float, device: torch.device) -> float:
    """The probability of 1 in `keep_mask`."""
    return (-_MIN_BYTE - _min_kept_byte(p)) / 256 if device.type == "cpu" else 1.0 - p


def _min_kept_byte(p: float) -> int:
    return _MIN_BYTE + (256 if p >= 255 / 256 else round(p * 256))


class Dropout(nn.Dropout):
    """`nn.Dropout` that uses `keep_mask` on a CPU in training. A compiled graph uses PyTorch's dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...], scaled to keep the mean."""
        if not self.training or (share := keep_probability(self.p, x.device)) == 1.0:
            return x
        if x.device.type != "cpu" or share == 0.0 or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return _MaskedProduct.apply(
            x, keep_mask(x.shape, self.p, x.device, torch.int8), 1.0 / share
        )


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
