"""Labeled images: scikit-learn's handwritten digits, or a folder with one subfolder per class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from trajformer.config import Config
from trajformer.data.batch import TensorRecord
from trajformer.errors import TrajformerError
from trajformer.heads.images import Normalization

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ImageDataConfig(Config, positive=("batch_size",)):
    """Labeled images and their batches.

    Attributes:
        dataset: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, or a folder.
        root: the folder, with images at `<split>/<class name>/*.png` (or .jpg and others); the
            splits are train, val, test.
        normalize: "half" maps to -1..1, "imagenet" uses the mean and standard deviation of
            ImageNet.
        batch_size: maximum number of images per step and device.
        workers: number of loader processes.
    """

    dataset: Literal["digits", "folder"] = "digits"
    root: str = ""
    normalize: Normalization = "half"
    batch_size: int = 64
    workers: int = 0
    bucket: ClassVar[int] = 1  # all images have the same size, so batches are not grouped by size


@dataclass(frozen=True, eq=False)
class ImageBatch(TensorRecord):
    """B labeled images."""

    image: Tensor  # float32 [B, C, H, W] in 0..1
    label: Tensor  # int64 [B]


@dataclass(eq=False)
class LabeledImages:
    """The images of a split in memory."""

    name: str  # for error messages
    image: Tensor  # uint8 [N, C, H, W]
    label: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, indices: Sequence[int]) -> ImageBatch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return ImageBatch(self.image[rows].float() / 255.0, self.label[rows])

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Equal sizes int [n, 1]: batches have no padding."""
        return np.ones((len(indices), 1), np.int64)


def class_names(data: ImageDataConfig, split: str = "train") -> tuple[str, ...]:
    """Names of the classes: the digits, or the sorted subfolders of a split.

    Raises TrajformerError: the folder is missing or has no subfolder.
    """
    if data.dataset == "digits":
        return tuple("0123456789")
    if not data.root:
        raise TrajformerError("data.root: give a folder of images, `<split>/<class name>/*.png`")
    folder = Path(data.root, split)
    if not folder.is_dir():
        expected = f"images are expected at {data.root}/{split}/<class name>/*.png"
        raise TrajformerError(f"{folder}: no such folder; {expected}")
    names = []
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
    if not names:
        raise TrajformerError(f"{folder}: has no subfolder for a class")
    return tuple(sorted(names))


def load_digits(split: str) -> tuple[Tensor, Tensor]:
    """The handwritten digits of scikit-learn.

    The split is fixed and stratified: of ten successive images of a class, in the order of the data
    set, the fourth and the ninth are test images and the seventh is a validation image. Every split
    contains all 13 writers.

    Returns:
        Images [N, 1, 8, 8] in 0..1, white on black, and labels int64 [N].

    Raises:
        TrajformerError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        hint = "pip install scikit-learn"
        raise TrajformerError(f"data.dataset: digits needs scikit-learn ({hint})") from error
    pixels, classes = datasets.load_digits(return_X_y=True)
    index_in_class = pd.Series(classes).groupby(classes).cumcount().to_numpy()
    test = np.isin(index_in_class % 10, (3, 8))
    val = index_in_class % 10 == 6
    rows = {"train": ~(test | val), "val": val, "test": test}[split]
    image = torch.from_numpy(pixels[rows]).float().reshape(-1, 1, 8, 8) / 16.0
    label = torch.from_numpy(classes[rows].astype(np.int64))
    return image, label
