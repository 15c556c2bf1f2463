"""Position encodings: sinusoidal and learned, in one and two dimensions."""

import math

import torch
from torch import Tensor, nn


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sinusoidal encoding (Vaswani et al. 2017, section 3.5).

    Sine in even channels, cosine in odd channels. Positions float [...], in any unit, to [..., D]
    of the same dtype. Raises ValueError: the width D is odd.
    """
    if width % 2:
        raise ValueError(f"width {width} is odd")
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float32) / width
    angle = position[..., None] * (10_000.0**-exponent).to(position.dtype)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def sinusoid_image(mask: Tensor, width: int) -> Tensor:
    """Sinusoidal encoding of the pixels of padded images (DETR).

    Half of the channels are for the row, half for the column. Positions are fractions of the
    image's height and width, times 2 pi: each image's last real row and column are at 2 pi.

    Args:
        mask: bool [B, h, w], True for real pixels; padding is at the bottom and right.
        width: D.

    Returns:
        float32 [B, h, w, D].

    Raises:
        ValueError: the width D is not a multiple of four.
    """
    if width % 4:
        raise ValueError(f"width {width} is not a multiple of four")
    row = mask.cumsum(1, dtype=torch.float32)
    column = mask.cumsum(2, dtype=torch.float32)
    position = torch.stack([row, column], -1)
    last_row = row[:, -1:, :].expand(mask.shape)
    last_column = column[:, :, -1:].expand(mask.shape)
    last = torch.stack([last_row, last_column], -1)
    angle = position / (last + 1e-6) * (2 * math.pi)
    return sinusoid(angle, width // 2).flatten(-2)


class LearnedPosition(nn.Module):
    """One learned vector for each position on one or more axes.

    `shape` (T,) gives [T, D], (R, C) gives [R, C, D]. With several axes a vector is the
    concatenation of one vector per axis (DETR's learned variant), each D / axes wide. Raises
    ValueError: the number of axes does not divide width.
    """

    def __init__(self, shape: tuple[int, ...], width: int, std: float = 0.02) -> None:
        super().__init__()
        axes = len(shape)
        if width % axes:
            raise ValueError(f"{axes} axes do not divide width {width}")
        tables = [nn.Parameter(torch.randn(count, width // axes) * std) for count in shape]
        self.tables = nn.ParameterList(tables)

    def forward(self, *length: int) -> Tensor:
        """The vectors [*length, D] of the first positions of each axis, by default of all.

        Raises ValueError: more positions than the table of an axis has.
        """
        if not length:
            length = tuple(len(table) for table in self.tables)
        parts = []
        for axis, (count, table) in enumerate(zip(length, self.tables, strict=True)):
            if count > len(table):
                raise ValueError(f"{count} positions requested, {len(table)} learned")
            view = [1] * len(length) + [table.shape[1]]
            view[axis] = count
            vectors = table[:count].reshape(view)
            parts.append(vectors.expand(*length, -1))
        return torch.cat(parts, -1)
