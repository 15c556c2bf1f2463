"""Pictures with boxes, resized and varied."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from trajformer.heads.detr.data.batch import Example
from trajformer.heads.images import resize

VISIBLE = 0.3  # share of a box that must be left by a cut-out, or the box goes


@dataclass(frozen=True)
class VariationConfig:
    """What is varied in pictures to learn from, each one anew in every epoch.

    Attributes:
        flip: probability of a mirror image, left and right exchanged.
        flip_vertical: probability of exchanging top and bottom.
        crop: probability of taking a cut-out of the same proportions instead of the whole picture.
        smallest: shortest sides of a cut-out, in shares of the picture's.
        light: brightness and contrast change by at most this share.
    """

    flip: float = 0.0
    flip_vertical: float = 0.0
    crop: float = 0.0
    smallest: float = 0.6
    light: float = 0.0


def vary(example: Example, config: VariationConfig, chance: np.random.Generator) -> Example:
    """The picture as it might have been; a cut-out keeps its resolution, boxes are cut with it."""
    draws = chance.random(3)
    if draws[0] < config.crop:
        example = _cut(example, chance, config.smallest)
    image, box = example.image, example.box
    height, width = image.shape[-2:]
    if draws[1] < config.flip:
        image, box = image.flip(-1), box[:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) + torch.tensor([width, 0, width, 0])
    if draws[2] < config.flip_vertical:
        image, box = image.flip(-2), box[:, [0, 3, 2, 1]] * torch.tensor([1, -1, 1, -1]) + torch.tensor([0, height, 0, height])
    if config.light:
        gain, offset = chance.uniform(-config.light, config.light, 2)
        image = ((image - 0.5) * float(1 + gain) + float(0.5 + offset)).clamp(0.0, 1.0)
    return replace(example, image=image, box=box)


def _cut(example: Example, chance: np.random.Generator, smallest: float) -> Example:
    full = np.array(example.image.shape[-2:])
    size = np.maximum((full * chance.uniform(smallest, 1.0)).round().astype(int), 1)
    top, left = chance.integers(0, full - size + 1).tolist()
    height, width = size.tolist()
    box = example.box - torch.tensor([left, top, left, top])
    inside = torch.stack([box[:, ::2].clamp(0, width), box[:, 1::2].clamp(0, height)], -1).flatten(1)
    before, after = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (box, inside))
    stays = after > VISIBLE * before
    image = example.image[:, top : top + height, left : left + width]
    return replace(example, image=image, box=inside[stays], label=example.label[stays])


def fit(example: Example, shorter: int, longest: int) -> Example:
    """The picture resized in proportion: the shorter side to `shorter`, or less where the longer one would exceed `longest`."""
    height, width = example.image.shape[-2:]
    scale = min(shorter / min(height, width), longest / max(height, width))
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    stretch = torch.tensor([size[1] / width, size[0] / height]).repeat(2)
    return replace(example, image=resize(example.image, size), box=example.box * stretch)
