"""Images as tensors: reading, listing, resizing, normalization and augmentation."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from trajformer.errors import TrajformerError, check_numbers

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Normalization = Literal["half", "imagenet"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError, Image.DecompressionBombError)


def read_image(path: Path | str, *, gray: bool = False) -> Tensor:
    """Read an image file as float32 [3, H, W] in 0..1, or [1, H, W] with `gray`.

    The orientation in the EXIF data is applied. Transparent pixels become white.

    Raises:
        TrajformerError: the file is no readable image, or has more pixels than Pillow's limit against decompression bombs.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading from a pipe would block
            raise TrajformerError(f"{path}: not a readable image (not a regular file)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                return _to_tensor(ImageOps.exif_transpose(file), "L" if gray else "RGB")
    except (*_UNREADABLE, Image.DecompressionBombWarning, MemoryError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).replace(str(path), "file")[:200]
        raise TrajformerError(f"{path}: not a readable image ({reason or type(error).__name__})") from error


def _to_tensor(image: Image.Image, mode: str) -> Tensor:
    """Float32 [C, H, W] in 0..1."""
    if image.mode.startswith("I"):  # 16 bits per pixel: Pillow's conversion would clip at 255
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
    """Resize [..., C, H, W] to height and width `size`; bilinear, antialiased, the aspect ratio may change."""
    if tuple(image.shape[-2:]) == size:
        return image
    flat = image.reshape(-1, *image.shape[-3:])
    return F.interpolate(flat, size=size, mode="bilinear", antialias=True).reshape(*image.shape[:-2], *size)


def to_bytes(image: Tensor) -> Tensor:
    """Convert an image in 0..1 to uint8."""
    return (image * 255.0).round().to(torch.uint8)


def normalize(image: Tensor, how: Normalization = "imagenet") -> Tensor:
    """Normalize [..., C, H, W] in 0..1: "half" maps to -1..1, "imagenet" uses the mean and standard deviation of ImageNet.

    Raises:
        ValueError: "imagenet" with a number of channels other than three.
    """
    if how == "half":
        return image * 2.0 - 1.0
    if image.shape[-3] != 3:
        raise ValueError(f"{image.shape[-3]} channels; ImageNet's normalization needs three")
    mean, std = (image.new_tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (image - mean) / std


def list_images(paths: Sequence[Path]) -> list[Path]:
    """List image files: a folder is replaced by all images below it, sorted by name; a file is kept with any suffix.

    Raises:
        TrajformerError: a path does not exist, or a folder has no images.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            images = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and not file.name.startswith("."))
            below = sorted(file for file in images if not file.is_dir())
            if not below:
                raise TrajformerError(f"{path}: no images in this folder ({', '.join(SUFFIXES)})")
            files += below
        elif os.path.lexists(path):
            files.append(path)
        else:
            raise TrajformerError(f"{path}: no such file or folder")
    return files


@dataclass(frozen=True)
class ImageAugmentConfig:
    """Random changes of training images, drawn for each image.

    Attributes:
        flip: probability of a horizontal flip.
        rotate: largest angle in either direction, radians.
        scale: largest relative change of size.
        shift: largest shift in either direction, as a share of height and width.
    """

    flip: float = 0.0
    rotate: float = 0.0
    scale: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, shares=("flip",))


def augment_images(image: Tensor, config: ImageAugmentConfig, generator: torch.Generator) -> Tensor:
    """Change each image of [B, C, H, W] in 0..1 at random. Pixels from outside of the image are black.

    Args:
        image: the images.
        config: ranges of the changes.
        generator: random numbers, on the CPU.
    """
    if config == ImageAugmentConfig():
        return image
    draws = torch.rand(5, len(image), generator=generator)
    angle, zoom, *shift = (2 * draws[1:] - 1) * torch.tensor([config.rotate, config.scale, config.shift, config.shift])[:, None]
    zoom = 1 + zoom
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    mirror = 1 - 2 * (draws[0] < config.flip).float()
    # The affine map gives the source of each pixel in a frame from -1 to 1, so a share of the image counts twice.
    matrix = [torch.stack([cos * mirror, -sin, 2 * shift[0]], -1), torch.stack([sin * mirror, cos, 2 * shift[1]], -1)]
    grid = F.affine_grid(torch.stack(matrix, 1).to(image), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, mode="bicubic", align_corners=False).clamp(0.0, 1.0)  # bilinear would blur small images
