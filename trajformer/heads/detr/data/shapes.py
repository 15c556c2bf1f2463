"""Generated pictures of discs, rectangles and triangles: a detection task that needs no files and can be learned in minutes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trajformer.errors import TrajformerError
from trajformer.heads.detr.data.batch import Example
from trajformer.heads.detr.data.pictures import Pictures

SPLITS = ("train", "val", "test")
LABELS = ("disc", "rectangle", "triangle")
VISIBLE = 0.5  # share of a shape that must be seen, or it is not drawn
CONTRAST = 0.25  # from the ground, in the colour that differs most


@dataclass(frozen=True)
class ShapesConfig:
    """What is generated.

    Attributes:
        height, width: of a picture, pixels.
        objects: fewest and most shapes in a picture.
        radius: smallest and largest half size of a shape, in shares of the picture's shorter side.
        noise: standard deviation of the noise on every pixel, in shares of white.
        train: pictures an epoch; those of the next epoch are others.
        val: pictures to validate on, always the same.
        test: pictures to test on, always the same.
    """

    height: int = 96
    width: int = 96
    objects: tuple[int, int] = (1, 8)
    radius: tuple[float, float] = (0.08, 0.22)
    noise: float = 0.04
    train: int = 4000
    val: int = 250
    test: int = 1000


@dataclass(frozen=True, eq=False)
class _Shape:
    """A shape where it is in a picture: how far it covers the pixels of a window, its whole area, its box as corners."""

    window: tuple[slice, slice]
    cover: np.ndarray
    area: float
    box: np.ndarray
    label: int


def draw_shapes(config: ShapesConfig, key: tuple[int, ...], name: str = "") -> Example:
    """The picture of a key (any whole numbers): the same on every machine.

    Shapes hide each other in the order in which they are drawn. A box encloses the pixels that its shape covers by more than
    half, those hidden by others included. There is at least one shape, and of each one at least `VISIBLE` is seen.
    """
    chance = np.random.default_rng(key)
    height, width = config.height, config.width
    image = _ground(chance, height, width)
    base = image.mean((1, 2))
    wanted = int(chance.integers(config.objects[0], config.objects[1] + 1))
    owner = np.zeros((height, width), np.int64)  # the number of the shape on top, from 1 on
    drawn: list[_Shape] = []
    seen = np.zeros(1)  # pixels of the ground (not counted) and of each shape
    tries = 0
    while len(drawn) < wanted and (tries < 4 * wanted or not drawn):
        tries += 1
        shape, colour = _shape(chance, config), _colour(chance, base)
        inside = shape.cover > 0.5
        left = np.append(seen - np.bincount(owner[shape.window][inside], minlength=len(seen)), inside.sum())
        if all(pixels >= VISIBLE * one.area for one, pixels in zip((*drawn, shape), left[1:], strict=True)):
            part = image[:, *shape.window]
            part += shape.cover * (colour[:, None, None] - part)
            drawn.append(shape)
            owner[shape.window][inside] = len(drawn)
            seen = left
    image += config.noise * chance.standard_normal(image.shape, np.float32)
    box = torch.tensor(np.array([shape.box for shape in drawn]), dtype=torch.float32)
    label = torch.tensor([shape.label for shape in drawn])
    return Example(name, torch.from_numpy(np.clip(image, 0.0, 1.0)), box, label, (height, width))


def _ground(chance: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A colour that changes slowly over the picture, float32 [3, H, W]."""
    slope = chance.normal(0.0, 0.15, (3, 2))
    down, right = (np.linspace(-0.5, 0.5, length) for length in (height, width))
    colour = chance.uniform(0.1, 0.9, 3)[:, None, None] + slope[:, :1, None] * down[:, None] + slope[:, 1:, None] * right
    return colour.astype(np.float32)


def _colour(chance: np.random.Generator, base: np.ndarray) -> np.ndarray:
    while True:
        colour = chance.uniform(0.0, 1.0, 3)
        if np.abs(colour - base).max() >= CONTRAST:
            return colour.astype(np.float32)


def _shape(chance: np.random.Generator, config: ShapesConfig) -> _Shape:
    """A shape of random kind, size, direction and place."""
    size = np.array([config.width, config.height])
    low, high = (share * size.min() for share in config.radius)
    label, radius, angle = int(chance.integers(len(LABELS))), chance.uniform(low, high), chance.uniform(0.0, 2 * np.pi)
    centre = chance.uniform(0.0, 1.0, 2) * size
    corner = centre + (_polygon(chance, label, radius, angle) if label else np.array([(-radius, -radius), (radius, radius)]))
    (left, top), (right, bottom) = (
        np.floor(corner.min(0)).clip(0).astype(int),
        np.ceil(np.minimum(corner.max(0), size)).astype(int),
    )
    row, column = np.arange(top, bottom)[:, None] + 0.5, np.arange(left, right) + 0.5
    if label:
        after = np.roll(corner, -1, 0)
        edge = after - corner
        normal = np.stack([edge[:, 1], -edge[:, 0]], -1) / np.linalg.norm(edge, axis=1)[:, None]
        offset = (normal * corner).sum(1)
        outside = (normal[:, :1, None] * column + normal[:, 1:, None] * row - offset[:, None, None]).max(0)
        area = 0.5 * abs((corner[:, 0] * after[:, 1] - corner[:, 1] * after[:, 0]).sum())
    else:
        outside, area = np.hypot(column - centre[0], row - centre[1]) - radius, np.pi * radius**2
    cover = np.clip(0.5 - outside, 0.0, 1.0).astype(np.float32)  # outside: pixels from the edge, negative inside
    rows, columns = np.flatnonzero((cover > 0.5).any(1)) + top, np.flatnonzero((cover > 0.5).any(0)) + left
    box = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] if len(rows) else [0, 0, 0, 0])
    return _Shape((slice(top, bottom), slice(left, right)), cover, float(area), box, label)


def _polygon(chance: np.random.Generator, label: int, radius: float, angle: float) -> np.ndarray:
    """Corners [n, 2] of a rectangle or a triangle around the origin, from x to the right to y downwards."""
    if LABELS[label] == "rectangle":
        corner = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * radius * (1.0, chance.uniform(0.5, 1.0))
    else:
        turn = np.arange(3) * 2 * np.pi / 3 + chance.uniform(-0.3, 0.3, 3)
        corner = 1.15 * radius * np.stack([np.cos(turn), np.sin(turn)], -1)
    cos, sin = np.cos(angle), np.sin(angle)
    return corner @ np.array([[cos, sin], [-sin, cos]])


class Shapes(Pictures):
    """The generated pictures of a split.

    Args:
        config: what is generated.
        split: "train", "val" or "test".
        seed: of the training pictures; those of the other splits are the same for every seed.
    """

    labels = LABELS

    def __init__(self, config: ShapesConfig, split: str, seed: int = 0) -> None:
        if split not in SPLITS:
            raise TrajformerError(f"shapes: no split '{split}' (splits: {', '.join(SPLITS)})")
        self.config, self.name = config, f"shapes: {split}"
        self.key = (SPLITS.index(split), seed if split == "train" else 0)

    def __len__(self) -> int:
        """Pictures of the split, or of an epoch of it."""
        return getattr(self.config, SPLITS[self.key[0]])

    def example(self, picture: int, epoch: int = 0) -> Example:
        """One picture; that of another epoch is another one."""
        return draw_shapes(self.config, (*self.key, epoch, picture), f"{SPLITS[self.key[0]]}_{picture:05d}")

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """All alike."""
        return np.tile([self.config.height, self.config.width], (len(indices), 1))
