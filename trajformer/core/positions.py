"""Position encodings: sinusoid and learned, 1-D and 2-D, and Fourier features of continuous coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoid(position: Tensor, width: int, temperature: float = 10_000.0) -> Tensor:
    """Sinusoidal encoding, even channels sine, odd ones cosine (Vaswani et al. 2017, section 3.5).

    Args:
        position: float [...], any unit.
        width: D, even.
        temperature: ratio of the longest to the shortest wavelength.

    Returns:
        [..., D] of the same dtype.

    Raises:
        ValueError: width is odd.
    """
    if width % 2:
        raise ValueError(f"width {width} is odd")
    exponent = torch.arange(0, width, 2, device=position.device, dtype=torch.float32) / width
    angle = position[..., None] * (temperature**-exponent).to(position.dtype)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def sinusoid_2d(position: Tensor, width: int, temperature: float = 10_000.0) -> Tensor:
    """Encoding of [..., 2] positions (row, column): each coordinate's sinusoid on half of the D channels (DETR).

    Raises:
        ValueError: four does not divide width.
    """
    if width % 4:
        raise ValueError(f"width {width} is no multiple of four")
    return sinusoid(position, width // 2, temperature).flatten(-2)


def sinusoid_image(mask: Tensor, width: int) -> Tensor:
    """`sinusoid_2d` of the pixels of images that padding may follow: row and column in shares of the image's, times 2 pi (DETR).

    Args:
        mask: bool [B, h, w], True = real.
        width: D, a multiple of four.

    Returns:
        float32 [B, h, w, D]; the last real row and column of an image are at 2 pi, whatever its size.
    """
    place = torch.stack([mask.cumsum(axis, dtype=torch.float32) for axis in (1, 2)], -1)
    last = torch.stack([place[:, -1:, :, 0].expand(mask.shape), place[:, :, -1:, 1].expand(mask.shape)], -1)
    return sinusoid_2d(place / (last + 1e-6) * (2 * math.pi), width)


class LearnedPosition(nn.Module):
    """One learned vector a position, of one or more axes: `shape` (T,) gives [T, D], (R, C) gives [R, C, D].

    With several axes the vector is the concatenation of one per axis (DETR's learned variant), each D / axes wide.

    Raises:
        ValueError: the number of axes does not divide width.
    """

    def __init__(self, shape: tuple[int, ...], width: int, std: float = 0.02) -> None:
        super().__init__()
        if width % len(shape):
            raise ValueError(f"{len(shape)} axes do not divide width {width}")
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(n, width // len(shape)) * std) for n in shape)

    def forward(self, *length: int) -> Tensor:
        """The vectors [*length, D] of the first positions of each axis (all of them by default).

        Raises:
            ValueError: more positions are wanted than were learned.
        """
        length = length or tuple(len(table) for table in self.tables)
        for wanted, table in zip(length, self.tables, strict=True):
            if wanted > len(table):
                raise ValueError(f"{wanted} positions wanted, {len(table)} learned")
        parts = []
        for axis, (count, table) in enumerate(zip(length, self.tables, strict=True)):
            view = [1] * len(length) + [table.shape[1]]
            view[axis] = count
            parts.append(table[:count].reshape(view).expand(*length, -1))
        return torch.cat(parts, -1)


class FourierFeatures(nn.Module):
    """Fixed Fourier features of C continuous coordinates, then a linear layer (Tancik et al. 2020).

    Args:
        channels: C.
        width: D of the output.
        bands: octaves per coordinate.
        period: longest wavelength, in the coordinates' unit.
    """

    frequency: Tensor

    def __init__(self, channels: int, width: int, *, bands: int = 8, period: float = 128.0) -> None:
        super().__init__()
        self.register_buffer("frequency", 2 * math.pi / period * 2.0 ** torch.arange(bands), persistent=False)
        self.linear = nn.Linear(channels * (2 * bands + 1), width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., D]."""
        angle = (x[..., None] * self.frequency).flatten(-2)
        return self.linear(torch.cat([x, angle.sin(), angle.cos()], -1))
