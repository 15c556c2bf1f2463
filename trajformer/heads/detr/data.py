"""Images with boxes: records, padded batches, augmentation, and the base class of data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from trajformer.data.batch import TensorRecord
from trajformer.data.order import EpochShuffle
from trajformer.errors import check_numbers
from trajformer.heads.detr.boxes import to_centers
from trajformer.heads.images import normalize, read_image, resize

MIN_VISIBLE = 0.3  # a crop removes boxes of which a smaller share is left


@dataclass(frozen=True, eq=False)
class Example:
    """One labeled image."""

    name: str
    image: Tensor  # float32 [3, H, W] in 0..1
    box: Tensor  # corners float32 [n, 4], pixels
    label: Tensor  # int64 [n]
    original: tuple[int, int]  # height and width before resizing


def read_example(path: Path) -> Example:
    """An image file as an example without boxes; raises as `read_image`."""
    image = read_image(path)
    return Example(path.stem, image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), (image.shape[1], image.shape[2]))


@dataclass(frozen=True, eq=False)
class BoxTargets(TensorRecord):
    """Boxes of B images, padded to G: centers as shares of the height and width of each image."""

    label: Tensor  # int64 [B, G]
    box: Tensor  # float32 [B, G, 4]
    mask: Tensor  # bool [B, G]


@dataclass(frozen=True, eq=False)
class DetectionBatch(TensorRecord):
    """B normalized images at the top left of a frame of H x W; padding is zero."""

    name: tuple[str, ...]
    pixels: Tensor  # float32 [B, 3, H, W]
    mask: Tensor | None  # bool [B, H, W], True = image, False = padding; None without padding
    targets: BoxTargets
    original: Tensor  # int64 [B, 2], height and width before resizing

    def __len__(self) -> int:
        """Number of images."""
        return len(self.name)


def collate(examples: Sequence[Example]) -> DetectionBatch:
    """Pad images to the largest height and width among them."""
    size = torch.tensor([example.image.shape[1:] for example in examples])  # [B, 2]
    height, width = size.amax(0).tolist()
    pixels = [pad(normalize(e.image), (0, width - e.image.shape[2], 0, height - e.image.shape[1])) for e in examples]
    mask = (torch.arange(height)[:, None] < size[:, :1, None]) & (torch.arange(width) < size[:, 1:, None])
    label, box = (pad_sequence(list(x), batch_first=True) for x in zip(*((e.label, e.box) for e in examples), strict=True))
    real = torch.arange(label.shape[1]) < torch.tensor([[len(example.label)] for example in examples])
    targets = BoxTargets(label, to_centers(box) / size.flip(1).repeat(1, 2)[:, None], real)
    original = torch.tensor([example.original for example in examples])
    names = tuple(example.name for example in examples)
    return DetectionBatch(names, torch.stack(pixels), None if mask.all() else mask, targets, original)


class DetectionDataset(ABC):
    """Labeled images by number: `dataset[[3, 1, 4]]` is the batch of these three images.

    For N images, number = epoch * N + index is image `index` as it appears in `epoch`. A data set may augment or generate an
    image differently in each epoch. The same number always gives the same image.

    Attributes:
        name: for error messages.
        labels: names of the classes.
        skipped: one line for every image or object that was left out.
    """

    name: str
    labels: tuple[str, ...]
    skipped: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Number N of images."""

    @abstractmethod
    def example(self, index: int, epoch: int = 0) -> Example:
        """One image as it appears in an epoch."""

    def __getitem__(self, numbers: Sequence[int]) -> DetectionBatch:
        """The batch of some images."""
        pairs = [divmod(int(number), len(self)) for number in numbers]
        return collate([self.example(index, epoch) for epoch, index in pairs])

    @abstractmethod
    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of images before augmentation."""


class NumberedEpochShuffle(EpochShuffle):
    """`EpochShuffle` with numbers that include the epoch, as `DetectionDataset` expects them."""

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The images of each step of an epoch, starting at step `first`."""
        for step in super().epoch(number, first):
            yield step + number * self.scenes


@dataclass(frozen=True)
class BoxAugmentConfig:
    """Random changes of training images, drawn for each image and epoch.

    Attributes:
        flip: probability of a horizontal flip.
        flip_vertical: probability of a vertical flip.
        crop: probability of a crop with the aspect ratio of the image.
        smallest: smallest side of a crop, as a share of the side of the image.
        light: largest relative change of brightness and contrast.
    """

    flip: float = 0.0
    flip_vertical: float = 0.0
    crop: float = 0.0
    smallest: float = 0.6
    light: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, shares=("flip", "flip_vertical", "crop", "smallest"))


def augment_example(example: Example, config: BoxAugmentConfig, rng: np.random.Generator) -> Example:
    """Change an image and its boxes at random. A crop keeps the resolution and clips the boxes."""
    draws = rng.random(3)
    if draws[0] < config.crop:
        example = _crop(example, rng, config.smallest)
    image, box = example.image, example.box.clone()
    for axis, probability in ((0, config.flip), (1, config.flip_vertical)):  # x, y
        if draws[1 + axis] < probability:
            image = image.flip(-1 - axis)
            box[:, [axis, axis + 2]] = image.shape[-1 - axis] - box[:, [axis + 2, axis]]
    if config.light:
        gain, offset = rng.uniform(-config.light, config.light, 2)
        image = ((image - 0.5) * float(1 + gain) + float(0.5 + offset)).clamp(0.0, 1.0)
    return replace(example, image=image, box=box)


def _crop(example: Example, rng: np.random.Generator, smallest: float) -> Example:
    full = np.array(example.image.shape[-2:])
    size = np.maximum((full * rng.uniform(smallest, 1.0)).round().astype(int), 1)
    top, left = rng.integers(0, full - size + 1).tolist()
    height, width = size.tolist()
    box = example.box - torch.tensor([left, top, left, top])
    clipped = torch.stack([box[:, ::2].clamp(0, width), box[:, 1::2].clamp(0, height)], -1).flatten(1)
    before, after = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (box, clipped))
    kept = after > MIN_VISIBLE * before
    image = example.image[:, top : top + height, left : left + width]
    return replace(example, image=image, box=clipped[kept], label=example.label[kept])


def resize_example(example: Example, shorter: int, longest: int) -> Example:
    """Resize in proportion: the shorter side to `shorter`, or less if the longer side would exceed `longest`."""
    height, width = example.image.shape[-2:]
    scale = min(shorter / min(height, width), longest / max(height, width))
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    factor = torch.tensor([size[1] / width, size[0] / height]).repeat(2)
    return replace(example, image=resize(example.image, size), box=example.box * factor)
