"""Dropout that is not the slowest part of a step on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Dropout(nn.Dropout):
    """`nn.Dropout`; on a CPU, in training, a random byte decides on an entry, so that p is rounded to 1/256.

    PyTorch draws a number of its serial generator for every entry, which takes longer than the matrix product before it;
    eight bytes of a draw decide on eight entries.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...], scaled so that its mean stays."""
        threshold = round(self.p * 256)
        if not self.training or not threshold:
            return x
        if x.device.type != "cpu" or threshold == 256:
            return F.dropout(x, self.p)
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
        return x * kept.to(x.dtype).mul_(256 / (256 - threshold))
