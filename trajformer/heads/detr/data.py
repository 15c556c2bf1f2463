"""Images with boxes: examples, padded batches, and the base class of data sets.

Boxes are described in `boxes.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trajformer.data.batch import TensorRecord
from trajformer.data.loading import EpochShuffle
from trajformer.heads.detr.boxes import to_centers
from trajformer.heads.images import normalize, read_photo, resize


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
    image, original = read_photo(path)
    no_box = torch.zeros(0, 4)
    no_label = torch.zeros(0, dtype=torch.int64)
    return Example(path.stem, image, no_box, no_label, original)


def resize_example(example: Example, shorter: int, longest: int) -> Example:
    """Resize in proportion, with the boxes.

    The shorter side becomes `shorter`, or less if the longer side would exceed `longest`.
    """
    height, width = example.image.shape[-2:]
    scale = min(shorter / min(height, width), longest / max(height, width))
    new_height = max(round(height * scale), 1)
    new_width = max(round(width * scale), 1)
    image = resize(example.image, (new_height, new_width))
    factor = torch.tensor([new_width / width, new_height / height]).repeat(2)
    return replace(example, image=image, box=example.box * factor)


@dataclass(frozen=True, eq=False)
class BoxTargets(TensorRecord):
    """Boxes of B images, padded to G: centers as fractions of the height and width of the image."""

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


def collate(examples: Sequence[Example]) -> DetectionBatch:
    """Pad images to the largest height and width among them."""
    size = torch.tensor([example.image.shape[1:] for example in examples])  # [B, 2]
    max_height, max_width = size.amax(0).tolist()
    pixels = torch.zeros(len(examples), 3, max_height, max_width)
    mask = torch.zeros(len(examples), max_height, max_width, dtype=torch.bool)
    for index, example in enumerate(examples):
        height, width = example.image.shape[1:]
        pixels[index, :, :height, :width] = normalize(example.image)
        mask[index, :height, :width] = True

    label = pad_sequence([example.label for example in examples], batch_first=True)  # [B, G]
    box = pad_sequence([example.box for example in examples], batch_first=True)
    count = torch.tensor([len(example.label) for example in examples])
    box_mask = torch.arange(label.shape[1]) < count[:, None]
    width_and_height = size.flip(1).repeat(1, 2)[:, None]  # [B, 1, 4]
    targets = BoxTargets(label, to_centers(box) / width_and_height, box_mask)

    names = tuple(example.name for example in examples)
    original = torch.tensor([example.original for example in examples])
    padding = None if mask.all() else mask
    return DetectionBatch(names, pixels, padding, targets, original)


class DetectionDataset(ABC):
    """Labeled images by number: `dataset[[3, 1, 4]]` is the batch of these three images.

    For N images, number = epoch * N + index is image `index` as it appears in `epoch`. A data set
    may augment or generate an image differently in each epoch. The same number always gives the
    same image.
    """

    name: str  # for error messages
    labels: tuple[str, ...]  # names of the classes
    skipped: Sequence[str] = ()  # one line for every image or object that was left out

    @abstractmethod
    def __len__(self) -> int:
        """Number N of images."""

    @abstractmethod
    def example(self, index: int, epoch: int = 0) -> Example:
        """One image as it appears in an epoch."""

    def __getitem__(self, numbers: Sequence[int]) -> DetectionBatch:
        examples = []
        for number in numbers:
            epoch, index = divmod(int(number), len(self))
            examples.append(self.example(index, epoch))
        return collate(examples)

    @abstractmethod
    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of images before augmentation."""


class NumberedEpochShuffle(EpochShuffle):
    """`EpochShuffle` with numbers that include the epoch, as `DetectionDataset` expects them."""

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The images of each step of an epoch, starting at step `first`."""
        for step in super().epoch(number, first):
            yield step + number * self.scenes
