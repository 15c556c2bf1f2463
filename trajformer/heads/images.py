"""Common parts of image tasks: images as tensors, augmentation, recipes with classes."""

import math
import os
import re
import stat
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.errors import UNREADABLE, CheckpointError, TrajformerError, one_line
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.plain import to_plain
from trajformer.recipes.resume import list_changes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
PHOTO_PIXELS = 4_000_000  # of images that models resize
Normalization = Literal["half", "imagenet"]
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError)


def read_image(path: Path | str, *, gray: bool = False) -> Tensor:
    """Read an image file as float32 [3, H, W] in 0..1, or [1, H, W] with `gray`.

    The orientation in the EXIF data is applied. Transparent pixels become white. Raises
    TrajformerError: the file is no readable image, or has more pixels than Pillow's limit against
    decompression bombs.
    """
    image, _ = read_photo(path, gray=gray, max_pixels=Image.MAX_IMAGE_PIXELS)
    return image


def read_photo(
    path: Path | str, *, gray: bool = False, max_pixels: int | None = PHOTO_PIXELS
) -> tuple[Tensor, tuple[int, int]]:
    """An image as of `read_image`, and its height and width in the file.

    An image of more than `max_pixels` is reduced, because models resize it in any case.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading from a pipe would block
            raise TrajformerError(f"{path}: not a readable image (not a regular file)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                ImageOps.exif_transpose(file, in_place=True)
                size = (file.height, file.width)
                factor = math.ceil(math.sqrt(file.width * file.height / (max_pixels or 1)))
                return _to_tensor(file, gray, factor), size
    except (*UNREADABLE, *_TOO_LARGE) as error:
        message = str(getattr(error, "strerror", None) or error).replace(str(path), "file")
        reason = one_line(message, 200) or type(error).__name__
        raise TrajformerError(f"{path}: not a readable image ({reason})") from error


def _to_tensor(image: Image.Image, gray: bool, factor: int) -> Tensor:
    """Float32 [3, H, W] in 0..1, or [1, H, W] with `gray`; both sides divided by `factor`."""
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):
        # 16 bits per pixel: Pillow's conversion would clip at 255.
        values = np.asarray(image).astype(np.float32)
        values /= 65535.0
        reduced = Image.fromarray(values.clip(0.0, 1.0, out=values)).reduce(factor)
        pixels = torch.from_numpy(np.array(reduced))
        return pixels.expand(1 if gray else 3, -1, -1).clone()
    if image.has_transparency_data:
        image = image.convert("RGBA").reduce(factor)
        factor = 1
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    reduced = image.convert("L" if gray else "RGB").reduce(factor)
    pixels = torch.from_numpy(np.array(reduced))  # uint8, a quarter of the memory
    if gray:
        return pixels[None].float().div_(255.0)
    return pixels.permute(2, 0, 1).contiguous().float().div_(255.0)


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize [..., C, H, W] to height and width `size`.

    Bilinear and antialiased; the aspect ratio may change.
    """
    if tuple(image.shape[-2:]) == size:
        return image
    flat = image.reshape(-1, *image.shape[-3:])
    resized = F.interpolate(flat, size=size, mode="bilinear", antialias=True)
    return resized.reshape(*image.shape[:-2], *size)


def to_bytes(image: Tensor) -> Tensor:
    """Convert an image in 0..1 to uint8."""
    return (image * 255.0).round_().to(torch.uint8)


def normalize(image: Tensor, how: Normalization = "imagenet") -> Tensor:
    """Normalize images [..., C, H, W] in 0..1.

    "half" maps to -1..1, "imagenet" uses ImageNet's mean and standard deviation. Raises ValueError:
    "imagenet" needs C = 3.
    """
    if how == "half":
        return image * 2.0 - 1.0
    if image.shape[-3] != 3:
        raise ValueError(f"{image.shape[-3]} channels; ImageNet's normalization needs three")
    mean = image.new_tensor(IMAGENET_MEAN)[:, None, None]
    std = image.new_tensor(IMAGENET_STD)[:, None, None]
    return (image - mean) / std


def list_images(paths: Sequence[Path]) -> list[Path]:
    """Image files; a folder is replaced by all images below it, sorted.

    Raises TrajformerError: a path does not exist, or a folder has no images.
    """
    files: list[Path] = []
    for path in paths:
        if not os.path.lexists(path):
            raise TrajformerError(f"{path}: no such file or folder")
        if not path.is_dir():
            files.append(path)
            continue
        images = []
        for file in path.rglob("[!.]*"):
            if file.suffix.lower() in SUFFIXES and not file.is_dir():
                images.append(file)
        if not images:
            raise TrajformerError(f"{path}: no images in this folder ({', '.join(SUFFIXES)})")
        files += sorted(images)
    return files


@dataclass(frozen=True)
class ImageAugmentConfig(Config, fractions=("flip",)):
    """Random changes of training images, drawn for each image.

    Attributes:
        flip: probability of a horizontal flip.
        rotate: largest angle in either direction, radians.
        scale: largest relative change of size.
        shift: largest shift in either direction, as a fraction of height and width.
    """

    flip: float = 0.0
    rotate: float = 0.0
    scale: float = 0.0
    shift: float = 0.0


def augment_images(image: Tensor, config: ImageAugmentConfig, generator: torch.Generator) -> Tensor:
    """Change each image of [B, C, H, W] in 0..1 at random, with a generator on the CPU.

    Pixels from outside of the image are black.
    """
    if config == ImageAugmentConfig():
        return image
    draws = torch.rand(5, len(image), generator=generator)
    mirror = 1 - 2 * (draws[0] < config.flip).float()
    largest = torch.tensor([config.rotate, config.scale, config.shift, config.shift])
    angle, zoom, shift_x, shift_y = (2 * draws[1:] - 1) * largest[:, None]
    zoom = 1 + zoom
    cos = zoom * angle.cos()
    sin = zoom * angle.sin()

    # The affine map gives the source of each pixel in a frame from -1 to 1, so a shift by a
    # fraction of the image counts twice.
    row_x = torch.stack([cos * mirror, -sin, 2 * shift_x], -1)
    row_y = torch.stack([sin * mirror, cos, 2 * shift_y], -1)
    matrix = torch.stack([row_x, row_y], 1).to(image)  # [B, 2, 3]
    grid = F.affine_grid(matrix, list(image.shape), align_corners=False)
    # Bilinear interpolation would blur small images.
    changed = F.grid_sample(image, grid, mode="bicubic", align_corners=False)
    return changed.clamp(0.0, 1.0)


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

        Raises CheckpointError: its model config differs in a field other than `may_differ`, the
        number of classes and dropout.
        """
        model, recipe = load_checkpoint(self.init, type(self))
        allowed = {"classes", "dropout", "attention_dropout", *may_differ}
        changes = []
        for line in list_changes(to_plain(recipe.model), to_plain(self.model), "model"):
            field = line.split()[0].rpartition(".")[2]
            if field not in allowed:
                changes.append(line)
        if changes:
            raise CheckpointError(f"{self.init}: has {'; '.join(changes)}")
        return model.state_dict(), recipe


def summed_up(lines: Iterable[str]) -> list[str]:
    """Lines `INPUT: REASON`, with one line and a count for all inputs with the same reason.

    Numbers and details in brackets do not distinguish reasons. Lines without an input are kept.
    """
    groups: dict[str, list[str]] = {}
    for line in lines:
        text = " ".join(line.split())
        without_details = re.sub(r"\(.*", "", text)
        _, separator, reason = without_details.rpartition(": ")
        kind = re.sub(r"[0-9]+", "", reason)
        if not separator:
            kind = text
        groups.setdefault(kind, []).append(text)
    summary = []
    for texts in groups.values():
        others = ""
        if len(texts) > 1:
            others = f" (and {len(texts) - 1:,} more like this)"
        summary.append(f"{texts[0]}{others}")
    return summary
