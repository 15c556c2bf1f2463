"""The common part of image tasks: images as tensors, their augmentation, and recipes with classes."""

import os
import stat
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.plain import to_plain
from trajformer.recipes.resume import list_changes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
Normalization = Literal["half", "imagenet"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    Image.DecompressionBombError,
)


def read_image(path: Path | str, *, gray: bool = False) -> Tensor:
    """Read an image file as float32 [3, H, W] in 0..1, or [1, H, W] with `gray`.

    The orientation in the EXIF data is applied. Transparent pixels become white. Raises TrajformerError: the file is no readable
    image, or has more pixels than Pillow's limit against decompression bombs.
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
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()).replace(
            str(path), "file"
        )[:200]
        raise TrajformerError(
            f"{path}: not a readable image ({reason or type(error).__name__})"
        ) from error


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
    return F.interpolate(flat, size=size, mode="bilinear", antialias=True).reshape(
        *image.shape[:-2], *size
    )


def to_bytes(image: Tensor) -> Tensor:
    """Convert an image in 0..1 to uint8."""
    return (image * 255.0).round().to(torch.uint8)


def normalize(image: Tensor, how: Normalization = "imagenet") -> Tensor:
    """Normalize [..., C, H, W] in 0..1: "half" maps to -1..1, "imagenet" uses ImageNet's mean and standard deviation (C = 3)."""
    if how == "half":
        return image * 2.0 - 1.0
    if image.shape[-3] != 3:
        raise ValueError(f"{image.shape[-3]} channels; ImageNet's normalization needs three")
    mean, std = (
        image.new_tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (image - mean) / std


def list_images(paths: Sequence[Path]) -> list[Path]:
    """Image files; a folder is replaced by all images below it, sorted, and a missing path or an empty folder is an error."""
    files: list[Path] = []
    for path in paths:
        if not os.path.lexists(path):
            raise TrajformerError(f"{path}: no such file or folder")
        below = (
            file
            for file in path.rglob("[!.]*")
            if file.suffix.lower() in SUFFIXES and not file.is_dir()
        )
        images = sorted(below) if path.is_dir() else [path]
        if not images:
            raise TrajformerError(f"{path}: no images in this folder ({', '.join(SUFFIXES)})")
        files += images
    return files


@dataclass(frozen=True)
class ImageAugmentConfig(Config, fractions=("flip",)):
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


def augment_images(image: Tensor, config: ImageAugmentConfig, generator: torch.Generator) -> Tensor:
    """Change each image of [B, C, H, W] in 0..1 at random, with a generator on the CPU. Pixels from outside are black."""
    if config == ImageAugmentConfig():
        return image
    draws = torch.rand(5, len(image), generator=generator)
    angle, zoom, *shift = (2 * draws[1:] - 1) * torch.tensor(
        [config.rotate, config.scale, config.shift, config.shift]
    )[:, None]
    zoom = 1 + zoom
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    mirror = 1 - 2 * (draws[0] < config.flip).float()
    # The affine map gives the source of each pixel in a frame from -1 to 1, so a share of the image counts twice.
    matrix = [
        torch.stack([cos * mirror, -sin, 2 * shift[0]], -1),
        torch.stack([sin * mirror, cos, 2 * shift[1]], -1),
    ]
    grid = F.affine_grid(torch.stack(matrix, 1).to(image), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, mode="bicubic", align_corners=False).clamp(
        0.0, 1.0
    )  # bilinear would blur small images


class ClassRecipe:
    """Base of the recipes of models with classes."""

    model: Any  # config with the number of `classes`
    labels: tuple[str, ...]
    init: str

    def names(self) -> tuple[str, ...]:
        """A name for every class of the model; "class 0" and so on if `labels` is empty."""
        return self.labels or tuple(f"class {index}" for index in range(self.model.classes))

    def load_start(self, may_differ: Collection[str]) -> tuple[dict[str, Tensor], Self]:
        """The state dict and the recipe of the checkpoint `init`.

        An error if its model config differs in a field other than `may_differ`, the number of classes and dropout.
        """
        model, recipe = load_checkpoint(self.init, type(self))
        allowed = {"classes", "dropout", "attention_dropout", *may_differ}
        changes = list_changes(to_plain(recipe.model), to_plain(self.model), "model")
        changes = [line for line in changes if line.split()[0].rpartition(".")[2] not in allowed]
        if changes:
            raise CheckpointError(f"{self.init}: has {'; '.join(changes)}")
        return model.state_dict(), recipe
