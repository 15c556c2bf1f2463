"""Augmentation of images with boxes."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from trajformer.config import Config
from trajformer.heads.detr.boxes import box_area
from trajformer.heads.detr.data import Example

MIN_VISIBLE = 0.3  # a crop removes boxes of which a smaller fraction is left


@dataclass(frozen=True)
class BoxAugmentConfig(Config, fractions=("flip", "flip_vertical", "crop", "smallest")):
    """Random changes of training images, drawn for each image and epoch.

    Attributes:
        flip: probability of a horizontal flip.
        flip_vertical: probability of a vertical flip.
        crop: probability of a crop with the aspect ratio of the image.
        smallest: smallest side of a crop, as a fraction of the side of the image.
        light: largest relative change of brightness and contrast.
    """

    flip: float = 0.0
    flip_vertical: float = 0.0
    crop: float = 0.0
    smallest: float = 0.6
    light: float = 0.0


def augment_example(
    example: Example, config: BoxAugmentConfig, rng: np.random.Generator
) -> Example:
    """Change an image and its boxes at random.

    A crop keeps the resolution and clips the boxes.
    """
    crop, flip, flip_vertical = rng.random(3)
    if crop < config.crop:
        example = _crop(example, rng, config.smallest)
    image = example.image
    box = example.box.clone()
    height, width = image.shape[-2:]
    if flip < config.flip:
        image = image.flip(-1)
        box[:, [0, 2]] = width - box[:, [2, 0]]
    if flip_vertical < config.flip_vertical:
        image = image.flip(-2)
        box[:, [1, 3]] = height - box[:, [3, 1]]
    if config.light:
        contrast, brightness = rng.uniform(-config.light, config.light, 2)
        image = (image - 0.5) * float(1 + contrast) + float(0.5 + brightness)
        image = image.clamp(0.0, 1.0)
    return replace(example, image=image, box=box)


def _crop(example: Example, rng: np.random.Generator, smallest: float) -> Example:
    """A random part of the image with at least the fraction `smallest` of its sides."""
    full = np.array(example.image.shape[-2:])
    size = np.maximum((full * rng.uniform(smallest, 1.0)).round().astype(int), 1)
    top, left = rng.integers(0, full - size + 1).tolist()
    height, width = size.tolist()
    image = example.image[:, top : top + height, left : left + width]

    box = example.box - torch.tensor([left, top, left, top])
    clipped = box.clone()
    clipped[:, ::2].clamp_(0, width)
    clipped[:, 1::2].clamp_(0, height)
    kept = box_area(clipped) > MIN_VISIBLE * box_area(box)
    return replace(example, image=image, box=clipped[kept], label=example.label[kept])
