"""Dropout that is not the slowest part of a step on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropped(shape: tuple[int, ...], p: float, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Bool of a shape, True with probability p; on a CPU a random byte decides, so that p is rounded to 1/256.

    PyTorch draws a number of its serial generator for every entry, which takes longer than the matrix product before it;
    eight bytes of a draw decide on eight entries.

    Args:
        generator: of the same device, torch's own by default.
    """
    if device.type != "cpu":
        return torch.rand(shape, device=device, generator=generator) < p
    count = math.prod(shape)
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    byte = words.view(torch.uint8)[:count].view(shape)
    return byte < round(p * 256) if p < 255 / 256 else torch.ones_like(byte, dtype=torch.bool)


def kept_share(p: float, device: torch.device) -> float:
    """The share of entries that `dropped` leaves."""
    if device.type != "cpu":
        return 1.0 - p
    return 1.0 - round(p * 256) / 256 if p < 255 / 256 else 0.0


class Dropout(nn.Dropout):
    """`nn.Dropout`, with `dropped` on a CPU in training; a compiled graph has PyTorch's, which its compiler makes fast itself."""

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...], scaled so that its mean stays."""
        share = kept_share(self.p, x.device)
        if not self.training or share == 1.0:
            return x
        if x.device.type != "cpu" or share == 0.0 or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        return torch.where(dropped(x.shape, self.p, x.device), 0.0, x).mul_(1.0 / share)


@contextmanager
def undropped(module: nn.Module) -> Iterator[None]:
    """While open, `module` drops nothing, as in evaluation."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
