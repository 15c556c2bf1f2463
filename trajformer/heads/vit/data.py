"""Labelled pictures: scikit-learn's handwritten digits, or a folder with a folder for each class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from trajformer.errors import TrajformerError
from trajformer.heads.images import Normalisation, list_images, read_image, resize

SPLITS = ("train", "val", "test")
_DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class ImageDataConfig:
    """Which pictures, and how they become batches.

    Attributes:
        dataset: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, or a folder of your own.
        root: that folder, with pictures at `<split>/<class name>/*.png` (or .jpg and others); splits are train, val, test.
        normalise: half for -1..1, imagenet for the mean and spread of ImageNet's colours.
        batch_size: pictures a step and device, at most.
        workers: loader processes.
    """

    dataset: Literal["digits", "folder"] = "digits"
    root: str = ""
    normalise: Normalisation = "half"
    batch_size: int = 64
    workers: int = 0

    @property
    def bucket(self) -> int:
        """Pictures are all of one size: none are sought that go together."""
        return 1


@dataclass(frozen=True)
class ImageBatch:
    """B pictures: float32 [B, C, H, W] in 0..1, and their classes int64 [B]."""

    image: Tensor
    label: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> ImageBatch:
        """The batch on another device."""
        return ImageBatch(self.image.to(device, non_blocking=non_blocking), self.label.to(device, non_blocking=non_blocking))


class LabelledImages:
    """The pictures of a split in memory, a byte a pixel and colour (150 kB each at 224 x 224).

    Args:
        name: of the split, for complaints.
        image: uint8 [N, C, H, W].
        label: int64 [N].
    """

    def __init__(self, name: str, image: Tensor, label: Tensor) -> None:
        self.name, self.image, self.label = name, image, label

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.label)

    def __getitem__(self, indices: Sequence[int]) -> ImageBatch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return ImageBatch(self.image[rows].float() / 255.0, self.label[rows])

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """All alike: there is no padding."""
        return np.ones((len(indices), 1), np.int64)


def class_names(data: ImageDataConfig) -> tuple[str, ...]:
    """Names of the classes: the digits, or the folders of the training split in order of their names.

    Raises:
        TrajformerError: there is no such folder, or nothing in it.
    """
    return _DIGITS if data.dataset == "digits" else _folders(data, "train")


def load_split(data: ImageDataConfig, split: str, labels: Sequence[str], channels: int, size: int) -> LabelledImages:
    """The labelled pictures of a split, resized; files that cannot be read are listed on standard error and left out.

    Args:
        split: train, val or test.
        labels: names of the classes; a picture's label is the place of its class among them.
        channels: colours of a picture, 1 or 3.
        size: its height and width, pixels.

    Raises:
        TrajformerError: there is no such split, none of its pictures can be read, or it has a class of another name.
    """
    if split not in SPLITS:
        raise TrajformerError(f"no split '{split}' (splits: {', '.join(SPLITS)})")
    if data.dataset == "folder":
        image, label = _load_folder(data, split, labels, channels, size)
    else:
        digits, label = load_digits(split)
        image = _bytes(resize(digits, (size, size)).expand(-1, channels, -1, -1))
    return LabelledImages(f"{data.root or data.dataset}: {split}", image, label)


def _bytes(image: Tensor) -> Tensor:
    return (image * 255.0).round().to(torch.uint8)


def load_digits(split: str) -> tuple[Tensor, Tensor]:
    """The handwritten digits that come with scikit-learn: pictures [N, 1, 8, 8] in 0..1, white on black, and labels [N].

    The split is fixed and has the same shares of each class: of ten successive pictures of a class, as the data set
    orders them, the fourth and ninth are for the test, the seventh for validation. All splits have all 13 writers.

    Raises:
        TrajformerError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError("data.dataset: digits needs scikit-learn (pip install scikit-learn)") from error
    pixels, classes = datasets.load_digits(return_X_y=True)
    turn = np.empty(len(classes), np.int64)
    for digit in range(10):
        turn[classes == digit] = np.arange((classes == digit).sum()) % 10
    test, val = np.isin(turn, (3, 8)), turn == 6
    rows = {"train": ~(test | val), "val": val, "test": test}[split]
    image = torch.from_numpy(pixels[rows]).float().reshape(-1, 1, 8, 8) / 16.0
    return image, torch.from_numpy(classes[rows].astype(np.int64))


def _folders(data: ImageDataConfig, split: str) -> tuple[str, ...]:
    if not data.root:
        raise TrajformerError("data.root: give a folder of pictures, `<split>/<class name>/*.png`")
    folder = Path(data.root, split)
    if not folder.is_dir():
        raise TrajformerError(f"{folder}: no such folder; pictures are sought at {data.root}/{split}/<class name>/*.png")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise TrajformerError(f"{folder}: has no folder of a class")
    return tuple(names)


def _load_folder(data: ImageDataConfig, split: str, labels: Sequence[str], channels: int, size: int) -> tuple[Tensor, Tensor]:
    """uint8 [N, C, size, size] and int64 [N]."""
    images, classes = [], []
    for name in _folders(data, split):
        if name not in labels:
            raise TrajformerError(f"{data.root}: split '{split}' has a class '{name}' that is none of {', '.join(labels)[:200]}")
        for path in list_images([Path(data.root, split, name)]):
            try:
                images.append(_bytes(resize(read_image(path, grey=channels == 1), (size, size))))
                classes.append(labels.index(name))
            except TrajformerError as error:
                sys.stderr.write(f"skipped {error}\n")
    if not images:
        raise TrajformerError(f"{data.root}: split '{split}' has no picture that can be read")
    return torch.stack(images), torch.tensor(classes)
