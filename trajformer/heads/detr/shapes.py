"""Generated images of discs, rectangles and triangles.

This is a detection task without files that trains in minutes.
"""

from dataclasses import dataclass

import numpy as np
import torch

from trajformer.config import Config
from trajformer.errors import ConfigError, TrajformerError
from trajformer.heads.detr.data import DetectionDataset, Example

SPLITS = ("train", "val", "test")
LABELS = ("disc", "rectangle", "triangle")
MAX_RADIUS = 0.5  # a larger shape is never half visible
MIN_VISIBLE = 0.5  # fraction of a shape that must stay visible
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
        radius: smallest and largest half size of a shape, as a fraction of the shorter side.
        noise: standard deviation of the noise on every pixel, as a fraction of white.
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
        for name in ("objects", "radius"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                expected = "a positive number and a number that is not smaller"
                raise ConfigError(name, f"{low}, {high}: expected {expected}")
        largest = self.radius[1]
        if largest > MAX_RADIUS:
            expected = f"expected fractions of the image of at most {MAX_RADIUS}"
            raise ConfigError("radius", f"{largest}, {expected}")


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape at its position in an image."""

    window: tuple[slice, slice]  # rows and columns of the image that the shape may touch
    cover: np.ndarray  # fraction of each pixel of the window that the shape covers
    area: float  # of the whole shape, pixels
    box: np.ndarray  # corners [4], pixels
    label: int


def draw_shapes(config: ShapesConfig, key: tuple[int, ...], name: str = "") -> Example:
    """The image of a key (any integers); equal on every machine.

    Shapes are drawn on top of earlier ones. A box encloses the pixels that its shape covers by more
    than half, including pixels that other shapes hide. There is at least one shape, and at least
    `MIN_VISIBLE` of each shape is visible.
    """
    rng = np.random.default_rng(key)
    image = _background(rng, config)  # [3, H, W]
    base = image.mean((1, 2))
    count = int(rng.integers(config.objects[0], config.objects[1] + 1))
    # Number of the topmost shape at each pixel, from 1; 0 is the background.
    topmost = np.zeros((config.height, config.width), np.int64)
    # Visible pixels of each shape; the entry of the background is not used.
    visible = np.zeros(1)
    drawn: list[Shape] = []
    tries = 0
    while len(drawn) < count and (tries < 4 * count or not drawn):
        tries += 1
        shape = draw_shape(rng, config)
        color = _contrasting_color(rng, base)

        # Without enough space the shape is left out: it would hide too much of another one.
        inside = shape.cover > 0.5
        hidden = np.bincount(topmost[shape.window][inside], minlength=len(visible))
        visible_after = np.append(visible - hidden, inside.sum())
        areas = np.array([one.area for one in (*drawn, shape)])
        if (visible_after[1:] < MIN_VISIBLE * areas).any():
            continue

        rows, columns = shape.window
        part = image[:, rows, columns]  # a view
        part += shape.cover * (color.astype(np.float32)[:, None, None] - part)
        drawn.append(shape)
        topmost[shape.window][inside] = len(drawn)
        visible = visible_after

    image += config.noise * rng.standard_normal(image.shape, np.float32)
    pixels = torch.from_numpy(np.clip(image, 0.0, 1.0))
    box = torch.tensor(np.array([shape.box for shape in drawn]), dtype=torch.float32)
    label = torch.tensor([shape.label for shape in drawn])
    return Example(name, pixels, box, label, (config.height, config.width))


def _background(rng: np.random.Generator, config: ShapesConfig) -> np.ndarray:
    """A color gradient, float32 [3, H, W]."""
    slope = rng.normal(0.0, 0.15, (3, 2))[..., None, None]
    color = rng.uniform(0.1, 0.9, 3)[:, None, None]
    down = np.linspace(-0.5, 0.5, config.height)[:, None]
    right = np.linspace(-0.5, 0.5, config.width)
    image = color + slope[:, 0] * down + slope[:, 1] * right
    return image.astype(np.float32)


def _contrasting_color(rng: np.random.Generator, base: np.ndarray) -> np.ndarray:
    """A random color [3] that differs from the color `base`."""
    while True:
        color = rng.uniform(0.0, 1.0, 3)
        if np.abs(color - base).max() >= MIN_CONTRAST:
            return color


def draw_shape(rng: np.random.Generator, config: ShapesConfig) -> Shape:
    """A shape of random class, size, orientation and position."""
    size = np.array([config.width, config.height])
    low, high = config.radius
    shorter = size.min()
    label = int(rng.integers(len(LABELS)))
    radius = rng.uniform(low * shorter, high * shorter)
    angle = rng.uniform(0.0, 2 * np.pi)
    center = rng.uniform(0.0, 1.0, 2) * size
    is_disc = LABELS[label] == "disc"
    if is_disc:
        corner = center + np.array([(-radius, -radius), (radius, radius)])
    else:
        corner = center + _polygon(rng, label, radius, angle)

    # The part inside of the image, and the centers of its pixels.
    left, top = np.floor(corner.min(0)).clip(0).astype(int)
    right, bottom = np.ceil(np.minimum(corner.max(0), size)).astype(int)
    x = np.arange(left, right) + 0.5
    y = np.arange(top, bottom)[:, None] + 0.5

    # Distance from the edge in pixels, negative inside.
    if is_disc:
        distance = np.hypot(x - center[0], y - center[1]) - radius
        area = np.pi * radius**2
    else:
        distance = _distance_from_polygon(corner, x, y)
        area = _polygon_area(corner)
    cover = np.clip(0.5 - distance, 0.0, 1.0).astype(np.float32)
    window = (slice(top, bottom), slice(left, right))
    box = _enclosing_box(cover > 0.5, left, top)
    return Shape(window, cover, float(area), box, label)


def _polygon(rng: np.random.Generator, label: int, radius: float, angle: float) -> np.ndarray:
    """Corners [n, 2] of a rotated rectangle or triangle around the origin, in pixels.

    x to the right, y down.
    """
    if LABELS[label] == "rectangle":
        square = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * radius
        corner = square * (1.0, rng.uniform(0.5, 1.0))
    else:
        direction = np.arange(3) * 2 * np.pi / 3 + rng.uniform(-0.3, 0.3, 3)
        unit = np.stack([np.cos(direction), np.sin(direction)], -1)
        corner = 1.15 * radius * unit
    cos = np.cos(angle)
    sin = np.sin(angle)
    return corner @ np.array([[cos, sin], [-sin, cos]])


def _distance_from_polygon(corner: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Largest signed distance [y, x] of pixels from the lines through the edges."""
    edge = np.roll(corner, -1, 0) - corner
    length = np.linalg.norm(edge, axis=1)[:, None]
    normal = np.stack([edge[:, 1], -edge[:, 0]], -1) / length
    offset = (normal * corner).sum(1)
    normal_x = normal[:, 0, None, None]
    normal_y = normal[:, 1, None, None]
    distance = normal_x * x + normal_y * y - offset[:, None, None]  # [edges, y, x]
    return distance.max(0)


def _polygon_area(corner: np.ndarray) -> float:
    """Area by the shoelace formula."""
    x, y = corner.T
    next_x, next_y = np.roll(corner, -1, 0).T
    return 0.5 * abs((x * next_y - next_x * y).sum())


def _enclosing_box(inside: np.ndarray, left: int, top: int) -> np.ndarray:
    """Corners int64 [4] of the True pixels of a window that starts at (left, top)."""
    rows = np.flatnonzero(inside.any(1)) + top
    columns = np.flatnonzero(inside.any(0)) + left
    if not len(rows):
        return np.zeros(4, np.int64)
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


class ShapesDataset(DetectionDataset):
    """The generated images of a split: train, val or test.

    Only the training images depend on the seed.
    """

    labels = LABELS

    def __init__(self, config: ShapesConfig, split: str, seed: int = 0) -> None:
        if split not in SPLITS:
            raise TrajformerError(f"shapes: no split '{split}' (splits: {', '.join(SPLITS)})")
        self.config = config
        self.split = split
        self.name = f"shapes: {split}"
        self.key = (SPLITS.index(split), seed if split == "train" else 0)

    def __len__(self) -> int:
        """Images in an epoch of the split."""
        return getattr(self.config, self.split)

    def example(self, index: int, epoch: int = 0) -> Example:
        """One image, a different one in each epoch."""
        key = (*self.key, epoch, index)
        return draw_shapes(self.config, key, f"{self.split}_{index:05d}")

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2], equal for all images."""
        return np.tile([self.config.height, self.config.width], (len(indices), 1))
