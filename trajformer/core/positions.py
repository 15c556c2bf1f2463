"""Position encodings: sinusoidal and learned, in one and two dimensions."""

import math

import torch
from torch import Tensor, nn


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sinusoidal encoding: sine in even channels, cosine in odd channels (Vaswani et al. 2017, section 3.5).

    Positions float [...], in any unit, to [..., D] of the same dtype. Raises ValueError: the width D is odd.
    """
    if width % 2:
        raise ValueError(f"width {width} is odd")
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float32) / width
    angle = position[..., None] * (10_000.0**-exponent).to(position.dtype)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def sinusoid_image(mask: Tensor, width: int) -> Tensor:
    """Sinusoidal encoding of the pixels of padded images (DETR): half of the channels for the row, half for the column.

    Positions are shares of the image's height and width, times 2 pi. The mask, bool [B, h, w], is True for real pixels; padding
    is at the bottom and right. Returns float32 [B, h, w, D]; each image's last real row and column are at 2 pi. Raises
    ValueError: the width D is not a multiple of four.
    """
    if width % 4:
        raise ValueError(f"width {width} is not a multiple of four")
    position = torch.stack([mask.cumsum(axis, dtype=torch.float32) for axis in (1, 2)], -1)
    last = torch.stack(
        [position[:, -1:, :, 0].expand(mask.shape), position[:, :, -1:, 1].expand(mask.shape)], -1
    )
    return sinusoid(position / (last + 1e-6) * (2 * math.pi), width // 2).flatten(-2)


class LearnedPosition(nn.Module):
    """One learned vector for each position on one or more axes: `shape` (T,) gives [T, D], (R, C) gives [R, C, D].

    With several axes a vector is the concatenation of one vector per axis (DETR's learned variant), each D / axes wide. Raises
    ValueError: the number of axes does not divide width.
    """

    def __init__(self, shape: tuple[int, ...], width: int, std: float = 0.02) -> None:
        super().__init__()
        if width % len(shape):
            raise ValueError(f"{len(shape)} axes do not divide width {width}")
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(n, width // len(shape)) * std) for n in shape
        )

    def forward(self, *length: int) -> Tensor:
        """The vectors [*length, D] of the first positions of each axis (ValueError: too few), by default of all positions."""
        length = length or tuple(len(table) for table in self.tables)
        parts = []
        for axis, (count, table) in enumerate(zip(length, self.tables, strict=True)):
            if count > len(table):
                raise ValueError(f"{count} positions requested, {len(table)} learned")
            view = [1] * len(length) + [table.shape[1]]
            view[axis] = count
            parts.append(table[:count].reshape(view).expand(*length, -1))
        return torch.cat(parts, -1)
