"""Seeded random tensors, and PyTorch attention with the weights of a layer of this package."""

import torch
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers; the same seed gives the same numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def draw_mask(*shape: int, share: float = 0.65, seed: int = 3) -> Tensor:
    """A boolean mask with this share of True entries."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def copy_attention(source: MultiHeadAttention, target: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """Copy the weights into PyTorch's attention."""
    parts = (source.query, source.key, source.value)
    target.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    target.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
    target.out_proj.load_state_dict(source.out.state_dict())
    return target
