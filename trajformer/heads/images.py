"""Pictures as tensors: reading, listing, resizing, normalising."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from trajformer.errors import TrajformerError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Normalisation = Literal["half", "imagenet"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError, Image.DecompressionBombError)


def read_image(path: Path | str, *, grey: bool = False) -> Tensor:
    """A picture as float32 [3, H, W] (or [1, H, W] when `grey`) in 0..1, upright as its camera says, transparency on white.

    Raises:
        TrajformerError: not a readable picture, or one of more pixels than Pillow's limit against decompression bombs.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise TrajformerError(f"{path}: not a readable image (not a regular file)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                return _pixels(ImageOps.exif_transpose(file), "L" if grey else "RGB")
    except (*_UNREADABLE, Image.DecompressionBombWarning, MemoryError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).replace(str(path), "file")[:200]
        raise TrajformerError(f"{path}: not a readable image ({reason or type(error).__name__})") from error


def _pixels(image: Image.Image, mode: str) -> Tensor:
    """[C, H, W] in 0..1."""
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
        values = np.clip(np.asarray(image).astype(np.float32) / 65535.0, 0.0, 1.0)
        return torch.from_numpy(values).expand(1 if mode == "L" else 3, -1, -1).clone()
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    values = np.asarray(image.convert(mode), np.float32) / 255.0
    return torch.from_numpy(values.reshape(*values.shape[:2], -1)).permute(2, 0, 1).contiguous()


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """[..., C, H, W] to height and width `size`, bilinear and antialiased, without keeping the aspect ratio."""
    if tuple(image.shape[-2:]) == size:
        return image
    flat = image.reshape(-1, *image.shape[-3:])
    return F.interpolate(flat, size=size, mode="bilinear", antialias=True).reshape(*image.shape[:-2], *size)


def normalise(image: Tensor, how: Normalisation = "imagenet") -> Tensor:
    """[..., C, H, W] in 0..1 as networks expect it: "half" to -1..1, "imagenet" by the mean and spread of its three colours.

    Raises:
        ValueError: "imagenet", but there are not three channels.
    """
    if how == "half":
        return image * 2.0 - 1.0
    if image.shape[-3] != 3:
        raise ValueError(f"{image.shape[-3]} channels cannot be normalised as ImageNet's three colours")
    mean, std = (image.new_tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (image - mean) / std


def list_images(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths`, and in place of each folder all pictures below it, by their endings, in order of their names.

    Raises:
        TrajformerError: a path does not exist, or a folder has no picture.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(_below(path))
            if not inside:
                raise TrajformerError(f"{path}: no pictures in this folder ({', '.join(ENDINGS)})")
            found += inside
        elif os.path.lexists(path):
            found.append(path)
        else:
            raise TrajformerError(f"{path}: no such file or folder")
    return found


def _below(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names if name.lower().endswith(ENDINGS) and not name.startswith("."))


@dataclass(frozen=True)
class Variation:
    """What is varied in pictures to learn from, each one anew.

    Attributes:
        flip: probability of a mirror image, left and right exchanged.
        rotate: by at most this angle either way, radians.
        scale: larger or smaller by at most this share.
        shift: by at most this share of height and width, either way.
    """

    flip: float = 0.0
    rotate: float = 0.0
    scale: float = 0.0
    shift: float = 0.0


def vary(image: Tensor, config: Variation, generator: torch.Generator) -> Tensor:
    """Pictures [B, C, H, W] in 0..1 changed at random, each differently; what comes into view is black.

    Args:
        generator: of the chance, on the CPU.
    """
    if config == Variation():
        return image
    chance = torch.rand(5, len(image), generator=generator)
    angle, zoom, *shift = (2 * chance[1:] - 1) * torch.tensor([config.rotate, config.scale, config.shift, config.shift])[:, None]
    zoom = 1 + zoom
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    mirror = 1 - 2 * (chance[0] < config.flip).float()
    # Where each pixel is taken from, in units of half a picture: a share of it is twice as many.
    row = [torch.stack([cos * mirror, -sin, 2 * shift[0]], -1), torch.stack([sin * mirror, cos, 2 * shift[1]], -1)]
    grid = F.affine_grid(torch.stack(row, 1).to(image), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, mode="bicubic", align_corners=False).clamp(0.0, 1.0)  # bilinear would blur small ones
