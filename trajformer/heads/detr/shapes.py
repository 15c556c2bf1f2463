"""Generated images of discs, rectangles and triangles: a detection task without files that trains in minutes."""

from dataclasses import dataclass

import numpy as np
import torch

from trajformer.config import Config
from trajformer.errors import ConfigError, TrajformerError
from trajformer.heads.detr.data import DetectionDataset, Example

SPLITS = ("train", "val", "test")
LABELS = ("disc", "rectangle", "triangle")
MAX_RADIUS = 0.5  # a larger shape is never half visible
MIN_VISIBLE = 0.5  # share of a shape that must stay visible
MIN_CONTRAST = 0.25  # difference from the background in at least one color channel


@dataclass(frozen=True)
class ShapesConfig(
    Config, positive=("height", "width"), limits=dict.fromkeys(("train", "val", "test"), (1, 10**8))
):
    """Settings of the generated images.

    Attributes:
        height: height of an image, pixels.
        width: width of an image, pixels.
        objects: smallest and largest number of shapes per image.
        radius: smallest and largest half size of a shape, as a share of the shorter side of the image.
        noise: standard deviation of the noise on every pixel, as a share of white.
        train: images per epoch; every epoch has new ones.
        val: number of validation images, always the same.
        test: number of test images, always the same.
    """

    height: int = 96
    width: int = 96
    objects: tuple[int, int] = (1, 8)
    radius: tuple[float, float] = (0.08, 0.22)
    noise: float = 0.04
    train: int = 4000
    val: int = 250
    test: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in {"objects": self.objects, "radius": self.radius}.items():
            if not 0 < low <= high:
                raise ConfigError(
                    name,
                    f"{low}, {high}: expected a positive number and a number that is not smaller",
                )
        if self.radius[1] > MAX_RADIUS:
            raise ConfigError(
                "radius", f"{self.radius[1]}, expected shares of the image of at most {MAX_RADIUS}"
            )


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape at its position in an image."""

    window: tuple[slice, slice]  # rows and columns of the image that the shape may touch
    cover: np.ndarray  # share of each pixel of the window that the shape covers
    area: float  # of the whole shape, pixels
    box: np.ndarray  # corners [4], pixels
    label: int


def draw_shapes(config: ShapesConfig, key: tuple[int, ...], name: str = "") -> Example:
    """The image of a key (any integers); equal on every machine.

    Shapes are drawn on top of earlier ones. A box encloses the pixels that its shape covers by more than half, including pixels
    that other shapes hide. There is at least one shape, and at least `MIN_VISIBLE` of each shape is visible.
    """
    rng = np.random.default_rng(key)
    height, width = config.height, config.width
    slope = rng.normal(0.0, 0.15, (3, 2))  # the background is a color gradient
    down, right = (np.linspace(-0.5, 0.5, length) for length in (height, width))
    image = (
        rng.uniform(0.1, 0.9, 3)[:, None, None]
        + slope[:, :1, None] * down[:, None]
        + slope[:, 1:, None] * right
    )
    image = image.astype(np.float32)  # [3, H, W]
    base = image.mean((1, 2))
    count = int(rng.integers(config.objects[0], config.objects[1] + 1))
    owner = np.zeros(
        (height, width), np.int64
    )  # number of the topmost shape at each pixel, from 1; 0 is the background
    drawn: list[Shape] = []
    visible = np.zeros(
        1
    )  # visible pixels of each shape; the first entry, the background, is not used
    tries = 0
    while len(drawn) < count and (tries < 4 * count or not drawn):
        tries += 1
        shape, color = draw_shape(rng, config), rng.uniform(0.0, 1.0, 3)
        while np.abs(color - base).max() < MIN_CONTRAST:
            color = rng.uniform(0.0, 1.0, 3)
        inside = shape.cover > 0.5
        left = np.append(
            visible - np.bincount(owner[shape.window][inside], minlength=len(visible)), inside.sum()
        )
        if all(
            pixels >= MIN_VISIBLE * one.area
            for one, pixels in zip((*drawn, shape), left[1:], strict=True)
        ):
            part = image[:, *shape.window]
            part += shape.cover * (color.astype(np.float32)[:, None, None] - part)
            drawn.append(shape)
            owner[shape.window][inside] = len(drawn)
            visible = left
    image += config.noise * rng.standard_normal(image.shape, np.float32)
    box = torch.tensor(np.array([shape.box for shape in drawn]), dtype=torch.float32)
    label = torch.tensor([shape.label for shape in drawn])
    return Example(name, torch.from_numpy(np.clip(image, 0.0, 1.0)), box, label, (height, width))


def draw_shape(rng: np.random.Generator, config: ShapesConfig) -> Shape:
    """A shape of random class, size, orientation and position."""
    size = np.array([config.width, config.height])
    low, high = (share * size.min() for share in config.radius)
    label, radius, angle = (
        int(rng.integers(len(LABELS))),
        rng.uniform(low, high),
        rng.uniform(0.0, 2 * np.pi),
    )
    center = rng.uniform(0.0, 1.0, 2) * size
    corner = center + (
        _polygon(rng, label, radius, angle)
        if label
        else np.array([(-radius, -radius), (radius, radius)])
    )
    left, top = np.floor(corner.min(0)).clip(0).astype(int)
    right, bottom = np.ceil(np.minimum(corner.max(0), size)).astype(int)
    row, column = np.arange(top, bottom)[:, None] + 0.5, np.arange(left, right) + 0.5
    if label:
        after = np.roll(corner, -1, 0)
        edge = after - corner
        normal = np.stack([edge[:, 1], -edge[:, 0]], -1) / np.linalg.norm(edge, axis=1)[:, None]
        offset = (normal * corner).sum(1)
        outside = (
            normal[:, :1, None] * column + normal[:, 1:, None] * row - offset[:, None, None]
        ).max(0)
        area = 0.5 * abs((corner[:, 0] * after[:, 1] - corner[:, 1] * after[:, 0]).sum())
    else:
        outside, area = np.hypot(column - center[0], row - center[1]) - radius, np.pi * radius**2
    cover = np.clip(0.5 - outside, 0.0, 1.0).astype(
        np.float32
    )  # outside: distance from the edge in pixels, negative inside
    rows, columns = (
        np.flatnonzero((cover > 0.5).any(1)) + top,
        np.flatnonzero((cover > 0.5).any(0)) + left,
    )
    box = np.array(
        [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] if len(rows) else [0, 0, 0, 0]
    )
    return Shape((slice(top, bottom), slice(left, right)), cover, float(area), box, label)


def _polygon(rng: np.random.Generator, label: int, radius: float, angle: float) -> np.ndarray:
    """Corners [n, 2] of a rotated rectangle or triangle around the origin; x to the right, y down."""
    if LABELS[label] == "rectangle":
        corner = (
            np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * radius * (1.0, rng.uniform(0.5, 1.0))
        )
    else:
        direction = np.arange(3) * 2 * np.pi / 3 + rng.uniform(-0.3, 0.3, 3)
        corner = 1.15 * radius * np.stack([np.cos(direction), np.sin(direction)], -1)
    cos, sin = np.cos(angle), np.sin(angle)
    return corner @ np.array([[cos, sin], [-sin, cos]])


class ShapesDataset(DetectionDataset):
    """The generated images of a split: train, val or test. Only the training images depend on the seed."""

    labels = LABELS

    def __init__(self, config: ShapesConfig, split: str, seed: int = 0) -> None:
        if split not in SPLITS:
            raise TrajformerError(f"shapes: no split '{split}' (splits: {', '.join(SPLITS)})")
        self.config, self.name = config, f"shapes: {split}"
        self.key = (SPLITS.index(split), seed if split == "train" else 0)

    def __len__(self) -> int:
        """Images in an epoch of the split."""
        return getattr(self.config, SPLITS[self.key[0]])

    def example(self, index: int, epoch: int = 0) -> Example:
        """One image, a different one in each epoch."""
        return draw_shapes(
            self.config, (*self.key, epoch, index), f"{SPLITS[self.key[0]]}_{index:05d}"
        )

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2], equal for all images."""
        return np.tile([self.config.height, self.config.width], (len(indices), 1))
