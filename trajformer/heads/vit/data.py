"""Labeled images: scikit-learn's handwritten digits, or a folder with one subfolder per class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from trajformer.data.batch import TensorRecord
from trajformer.errors import TrajformerError, check_numbers
from trajformer.heads.images import Normalization, list_images, read_image, resize, to_bytes

SPLITS = ("train", "val", "test")
_DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class ImageDataConfig:
    """Labeled images and their batches.

    Attributes:
        dataset: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, or a folder.
        root: the folder, with images at `<split>/<class name>/*.png` (or .jpg and others); the splits are train, val, test.
        normalise: "half" maps to -1..1, "imagenet" uses the mean and standard deviation of ImageNet.
        batch_size: maximum number of images per step and device.
        workers: number of loader processes.
    """

    dataset: Literal["digits", "folder"] = "digits"
    root: str = ""
    normalise: Normalization = "half"
    batch_size: int = 64
    workers: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("batch_size",))

    @property
    def bucket(self) -> int:
        """All images have the same size, so batches are not grouped by size."""
        return 1


@dataclass(frozen=True, eq=False)
class ImageBatch(TensorRecord):
    """B labeled images."""

    image: Tensor  # float32 [B, C, H, W] in 0..1
    label: Tensor  # int64 [B]


class LabeledImages:
    """The images of a split, kept in memory as bytes (150 kB per color image of 224 x 224 pixels).

    Args:
        name: name of the split, for error messages.
        image: uint8 [N, C, H, W].
        label: int64 [N].
    """

    def __init__(self, name: str, image: Tensor, label: Tensor) -> None:
        self.name, self.image, self.label = name, image, label

    def __len__(self) -> int:
        """Number of images."""
        return len(self.label)

    def __getitem__(self, indices: Sequence[int]) -> ImageBatch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return ImageBatch(self.image[rows].float() / 255.0, self.label[rows])

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Equal sizes int [n, 1]: batches have no padding."""
        return np.ones((len(indices), 1), np.int64)


def class_names(data: ImageDataConfig) -> tuple[str, ...]:
    """Names of the classes: the digits, or the sorted subfolders of the training split.

    Raises:
        TrajformerError: the folder is missing or has no subfolders.
    """
    return _DIGITS if data.dataset == "digits" else _class_folders(data, "train")


def load_split(data: ImageDataConfig, split: str, labels: Sequence[str], channels: int, size: int) -> LabeledImages:
    """Load and resize the labeled images of a split. Unreadable files are skipped and listed on standard error.

    Args:
        data: the data set.
        split: train, val or test.
        labels: names of the classes; the label of an image is the index of its class.
        channels: color channels, 1 or 3.
        size: height and width, pixels.

    Raises:
        TrajformerError: the split is unknown, has no readable image, or has a class that is not in `labels`.
    """
    if split not in SPLITS:
        raise TrajformerError(f"no split '{split}' (splits: {', '.join(SPLITS)})")
    if data.dataset == "folder":
        pixels, label = _load_folder(data, split, labels, channels, size)
    else:
        digits, label = load_digits(split)
        pixels = to_bytes(resize(digits, (size, size)).expand(-1, channels, -1, -1))
    return LabeledImages(f"{data.root or data.dataset}: {split}", pixels, label)


def load_digits(split: str) -> tuple[Tensor, Tensor]:
    """The handwritten digits of scikit-learn: images [N, 1, 8, 8] in 0..1, white on black, and labels int64 [N].

    The split is fixed and stratified: of every ten successive images of a class, in the order of the data set, the fourth and
    the ninth are test images and the seventh is a validation image. Every split contains all 13 writers.

    Raises:
        TrajformerError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError("data.dataset: digits needs scikit-learn (pip install scikit-learn)") from error
    pixels, classes = datasets.load_digits(return_X_y=True)
    index = pd.Series(classes).groupby(classes).cumcount().to_numpy() % 10  # index of an image within its class, modulo ten
    test, val = np.isin(index, (3, 8)), index == 6
    rows = {"train": ~(test | val), "val": val, "test": test}[split]
    image = torch.from_numpy(pixels[rows]).float().reshape(-1, 1, 8, 8) / 16.0
    return image, torch.from_numpy(classes[rows].astype(np.int64))


def _class_folders(data: ImageDataConfig, split: str) -> tuple[str, ...]:
    if not data.root:
        raise TrajformerError("data.root: give a folder of images, `<split>/<class name>/*.png`")
    folder = Path(data.root, split)
    if not folder.is_dir():
        raise TrajformerError(f"{folder}: no such folder; images are expected at {data.root}/{split}/<class name>/*.png")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise TrajformerError(f"{folder}: has no subfolder for a class")
    return tuple(names)


def _load_folder(data: ImageDataConfig, split: str, labels: Sequence[str], channels: int, size: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, C, size, size] and labels int64 [N]."""
    images, classes = [], []
    for name in _class_folders(data, split):
        if name not in labels:
            raise TrajformerError(f"{data.root}: split '{split}' has a class '{name}' that is not in {', '.join(labels)[:200]}")
        for path in list_images([Path(data.root, split, name)]):
            try:
                images.append(to_bytes(resize(read_image(path, gray=channels == 1), (size, size))))
                classes.append(labels.index(name))
            except TrajformerError as error:
                sys.stderr.write(f"skipped {error}\n")
    if not images:
        raise TrajformerError(f"{data.root}: split '{split}' has no readable image")
    return torch.stack(images), torch.tensor(classes)
