"""Squeeze-and-excite (Hu et al. 2018): scales each channel by a weight computed from all channels' means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.groups import Groups
from trajformer.errors import check_numbers


@dataclass(frozen=True)
class SqueezeConfig:
    """Options of squeeze-and-excite.

    Attributes:
        axis: a channel is a feature of the tokens, or a group of tokens (see `Groups`).
        channels: number of groups that have weights; unused for features.
        reduction: channels per hidden unit; the paper has 4 to 16.
    """

    axis: Literal["feature", "group"] = "feature"
    channels: int = 0
    reduction: int = 4

    def __post_init__(self) -> None:
        check_numbers(self, positive=("reduction",))


class SqueezeExcite(nn.Module):
    """Multiplies channel c by s_c, with s = sigmoid(W2 relu(W1 z)) and z_c the mean of channel c over its positions."""

    def __init__(self, config: SqueezeConfig, width: int) -> None:
        super().__init__()
        self.axis, self.channels = config.axis, width if config.axis == "feature" else config.channels
        hidden = max(self.channels // config.reduction, 1)
        self.squeeze = nn.Linear(self.channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, self.channels, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None, groups: Groups | None = None) -> Tensor:
        """[..., L, D] -> [..., L, D].

        Args:
            mask: bool, broadcastable to [..., 1, L], False = padding, excluded from means.
            groups: required if groups are channels; the mean is over the features of a group's tokens. Ungrouped tokens do not
                change.

        Raises:
            ValueError: the mask differs between queries, or groups are channels and not given.
        """
        if mask is not None and mask.shape[-2] != 1:
            raise ValueError("squeeze-and-excite needs a padding mask [..., 1, L]; this mask differs between queries")
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask[..., 0, :].expand(x.shape[:-1])
        if self.axis == "feature":
            return x * self._weights(_mean(x, real[..., None]))[..., None, :]
        if groups is None:
            raise ValueError("axis is 'group': groups must be given")
        grid, ungrouped = (-1, groups.keys), groups.ungrouped[1]
        value, real = (y[..., : y.shape[-1] - ungrouped].unflatten(-1, grid) for y in (x.mean(-1), real))  # [..., T, G]
        weights = self._weights(_mean(value, real))[..., None, :].expand(value.shape).flatten(-2)
        return x * F.pad(weights, (0, ungrouped), value=1.0)[..., None]

    def _weights(self, z: Tensor) -> Tensor:
        """s of z [..., channels or fewer], same shape; missing channels are zeros."""
        full = F.pad(z, (0, self.channels - z.shape[-1]))
        return self.excite(self.squeeze(full).relu()).sigmoid()[..., : z.shape[-1]]


def _mean(x: Tensor, real: Tensor) -> Tensor:
    """Mean [..., C] of x [..., L, C] over real positions, bool [..., L, C or 1]; zero if there are none."""
    return (x * real).sum(-2) / real.sum(-2).clamp(min=1)
