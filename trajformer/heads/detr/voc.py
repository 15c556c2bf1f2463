"""Folders in the layout of Pascal VOC.

A folder has ImageSets/Main/<split>.txt, Annotations/<id>.xml and JPEGImages/<id>.jpg. Coordinates
are read as edges in pixels, as current annotation tools write them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from trajformer.config import Config
from trajformer.errors import TrajformerError
from trajformer.heads.detr.augment import BoxAugmentConfig, augment_example
from trajformer.heads.detr.data import DetectionDataset, Example, resize_example
from trajformer.heads.images import SUFFIXES, read_image, to_bytes

MAX_BYTES = 10_000_000  # size of an annotation file
MAX_OUTSIDE = 1.0  # pixels of a box outside of its image; some tools count from 1
_SIDES = ("bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")


@dataclass(frozen=True)
class VocConfig(Config):
    """A folder and the use of its images.

    Attributes:
        root: folder with Annotations/, ImageSets/Main/ and JPEGImages/.
        train_split: the training split.
        val_split: the split that selects the best checkpoint.
        cache: keep images in memory, one byte per pixel and color.
        vary: augmentation of the training images.
    """

    root: str = ""
    train_split: str = "train"
    val_split: str = "val"
    cache: bool = True
    vary: BoxAugmentConfig = field(default_factory=BoxAugmentConfig)


def read_annotation(path: Path) -> list[tuple[str, list[float]]]:
    """Class and corners (left, top, right, bottom; pixels) of each object of an annotation file.

    Raises TrajformerError: the file is missing, too large or not valid.
    """
    try:
        if not path.exists():
            raise ValueError("no such file")
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ValueError(f"not a regular file of at most {MAX_BYTES} bytes")
        data = path.read_bytes()
        # A document type could define entities. UTF-16, which contains zeros, could hide it.
        if b"<!DOCTYPE" in data or b"\0" in data:
            raise ValueError("has a document type, or is not UTF-8")
        root = ElementTree.fromstring(data, ElementTree.XMLParser(encoding="utf-8"))
        return [_object(item) for item in root.iter("object")]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TrajformerError(f"{path}: not an annotation: {reason}") from error


def _object(item: ElementTree.Element) -> tuple[str, list[float]]:
    name = _text(item, "name")
    texts = [_text(item, side) for side in _SIDES]
    box = [float(text) for text in texts]
    if not all(map(math.isfinite, box)):
        raise ValueError("object: bndbox: not finite")
    return name, box


def _text(item: ElementTree.Element, path: str) -> str:
    text = (item.findtext(path) or "").strip()
    if not text:
        raise ValueError(f"object: no {path}")
    return text


class VocImage(NamedTuple):
    """An image of a folder and its objects of known classes."""

    path: Path
    box: Tensor  # corners float32 [n, 4], pixels
    label: Tensor  # int64 [n]
    size: tuple[int, int]  # height and width


class VocDataset(DetectionDataset):
    """The images of a split. All files are read once at the start; unusable ones are listed.

    Args:
        config: the folder.
        split: name of the split.
        labels: names of the classes. Objects of other classes are left out.
        size: target length of the shorter side of an image, and maximum of the longer side.
        seed: seed of the augmentation, None for none.

    Raises:
        TrajformerError: the folder or the split is missing, or has no usable object.
    """

    def __init__(
        self,
        config: VocConfig,
        split: str,
        labels: Sequence[str],
        size: tuple[int, int],
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.root = Path(config.root)
        self.name = f"{config.root}: {split}"
        self.labels = tuple(labels)
        self.size = size
        self.seed = seed
        self.cache: dict[int, Tensor] = {}
        self.skipped: list[str] = []
        self.images: list[VocImage] = []

        counts: Counter[str] = Counter()
        for name in self._names(split):
            try:
                counts += self._add(name)
            except TrajformerError as error:
                self.skipped.append(f"skipped {error}")
        others = []
        for name in sorted(counts.keys() - set(labels)):
            others.append(f"{counts[name]} objects of class '{name}' left out")
        if counts.keys().isdisjoint(labels):
            missing = f"no object of the classes {', '.join(labels)}"
            reason = "; ".join([missing, *others, *self.skipped[:1]])
            raise TrajformerError(f"{self.name}: nothing can be used: {reason}")
        self.skipped += others

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}

    def _names(self, split: str) -> list[str]:
        """Names of the images of a split: the first word of each line."""
        listing = self.root / "ImageSets" / "Main" / f"{split}.txt"
        try:
            lines = listing.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            splits = ", ".join(sorted(path.stem for path in listing.parent.glob("*.txt")))
            raise TrajformerError(
                f"{listing}: cannot be read (splits here: {splits or 'none'})"
            ) from error
        return [Path(line.split()[0]).name for line in lines if line.strip()]

    def _add(self, name: str) -> Counter[str]:
        """Add an image; the number of objects of each class, also of classes that are left out."""
        objects = read_annotation(self.root / "Annotations" / f"{name}.xml")
        path = self._image_path(name)
        _, height, width = self._read(len(self.images), path).shape
        counts: Counter[str] = Counter()
        boxes: list[list[float]] = []
        labels: list[int] = []
        num_cut = 0
        for kind, given in objects:
            box = np.clip(given, 0.0, [width, height, width, height]).tolist()
            num_cut += bool(np.abs(np.subtract(box, given)).max() > MAX_OUTSIDE)
            left, top, right, bottom = box
            if left >= right or top >= bottom:
                continue
            counts[kind] += 1
            if kind in self.labels:
                boxes.append(box)
                labels.append(self.labels.index(kind))
        if num_cut:
            self.skipped.append(f"{name}: {num_cut} boxes reach out of their image and are cut")
        without_area = len(objects) - counts.total()
        if without_area:
            self.skipped.append(f"{name}: {without_area} boxes without area left out")
        box_table = torch.tensor(boxes).reshape(-1, 4)
        label = torch.tensor(labels, dtype=torch.int64)
        self.images.append(VocImage(path, box_table, label, (height, width)))
        return counts

    def _image_path(self, name: str) -> Path:
        """The image file with any known suffix; .jpg without one, for the error message."""
        folder = self.root / "JPEGImages"
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.exists():
                return path
        return folder / f"{name}.jpg"

    def _read(self, index: int, path: Path) -> Tensor:
        """uint8 [3, H, W]."""
        if index in self.cache:
            return self.cache[index]
        pixels = to_bytes(read_image(path))
        if self.config.cache:
            self.cache[index] = pixels
        return pixels

    def __len__(self) -> int:
        return len(self.images)

    def example(self, index: int, epoch: int = 0) -> Example:
        """One resized image; with a seed it is augmented, differently in every epoch."""
        path, box, label, original = self.images[index]
        image = self._read(index, path).float() / 255.0
        example = Example(path.stem, image, box, label, original)
        if self.seed is not None:
            rng = np.random.default_rng((self.seed, epoch, index))
            example = augment_example(example, self.config.vary, rng)
        shorter, longest = self.size
        return resize_example(example, shorter, longest)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of images as stored on disk."""
        return np.array([self.images[index].size for index in indices]).reshape(-1, 2)
