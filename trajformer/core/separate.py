"""Parallel attention layers with separate parameters over the same tokens, computed as one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention


class SeparateLinear(nn.Module):
    """A separate linear layer for each set: [..., sets, L, inputs] -> [..., sets, L, outputs].

    Biases start with small random values, so that sets with equal inputs have different outputs from the first step.
    """

    def __init__(self, sets: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(sets, inputs, outputs))
        self.bias = nn.Parameter(0.02 * torch.randn(sets, 1, outputs))
        for weight in self.weight.detach():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., sets, L, inputs] -> [..., sets, L, outputs]."""
        return torch.einsum("...sli,sio->...slo", x, self.weight) + self.bias


class SeparateAttention(MultiHeadAttention):
    """`sets` multi-head attentions (Huang et al. 2022: one for each mode): queries [..., L, D] -> [..., sets, L, D].

    Up to the output projection it is one attention with sets * heads heads, ordered by set. `weights` returns
    [..., sets * heads, L, S].

    Args:
        width: D.
        heads: heads of each set, D / heads wide.
        sets: number of parallel attentions.
        dropout: on the weights, in training.

    Raises:
        ValueError: heads does not divide width.
    """

    def __init__(self, width: int, heads: int, sets: int, *, dropout: float = 0.0) -> None:
        if width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}")
        super().__init__(width, sets * heads, d_k=width // heads, dropout=dropout)
        self.sets = sets
        self.out = SeparateLinear(sets, width, width)
        for layer in (self.query, self.key, self.value):
            for weight in layer.weight.detach().chunk(sets):
                nn.init.xavier_uniform_(weight)  # the initialisation of a separate layer

    def _join(self, x: Tensor) -> Tensor:
        return self.out(x.unflatten(-3, (self.sets, -1)).transpose(-3, -2).flatten(-2))  # [..., sets * heads, L, d]
