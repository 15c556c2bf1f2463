"""Data sets in the layout of Pascal VOC: ImageSets/Main/<split>.txt, Annotations/<id>.xml, JPEGImages/<id>.jpg.

Coordinates are read as edges in pixels, as current annotation tools write them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from trajformer.errors import TrajformerError
from trajformer.heads.detr.data import BoxAugmentConfig, DetectionDataset, Example, augment_example, resize_example
from trajformer.heads.images import SUFFIXES, read_image, to_bytes

MAX_BYTES = 10_000_000  # size of an annotation file


@dataclass(frozen=True)
class VocConfig:
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

    Raises:
        TrajformerError: the file cannot be read, is no annotation, or has a document type, which could define entities.
    """
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ValueError("no such file" if not path.exists() else f"not a regular file of at most {MAX_BYTES} bytes")
        data = path.read_bytes()
        if b"<!DOCTYPE" in data or b"\0" in data:  # UTF-16 could hide a document type; it contains zeros
            raise ValueError("has a document type, or is not UTF-8")
        root = ElementTree.fromstring(data, ElementTree.XMLParser(encoding="utf-8"))
        return [(_text(item, "name"), _corners(item)) for item in root.iter("object")]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise TrajformerError(f"{path}: not an annotation: {' '.join(str(error).split())[:200]}") from error


def _text(item: ElementTree.Element, path: str) -> str:
    text = (item.findtext(path) or "").strip()
    if not text:
        raise ValueError(f"object: no {path}")
    return text


def _corners(item: ElementTree.Element) -> list[float]:
    values = [float(_text(item, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
    if not all(math.isfinite(value) for value in values):
        raise ValueError("object: bndbox: not finite")
    return values


class VocDataset(DetectionDataset):
    """The images of a split. All files are read once at the start; unusable ones are left out and listed.

    Args:
        config: the folder.
        split: a name in ImageSets/Main.
        labels: names of the classes; objects of other classes are left out.
        size: target length of the shorter side of an image, and maximum length of the longer side.
        seed: seed of the augmentation; None for no augmentation.

    Attributes:
        skipped: one line for every unusable image, every image with boxes without area, and every class that is left out.

    Raises:
        TrajformerError: the folder or the split is missing, or has no usable object.
    """

    def __init__(
        self, config: VocConfig, split: str, labels: Sequence[str], size: tuple[int, int], seed: int | None = None
    ) -> None:
        self.root, self.name, self.labels = Path(config.root), f"{config.root}: {split}", tuple(labels)
        self.config, self.size, self.seed = config, size, seed
        self.cache: dict[int, Tensor] = {}
        self.skipped: list[str] = []
        self.images: list[tuple[Path, Tensor, Tensor, tuple[int, int]]] = []  # file, boxes, labels, height and width
        counts: Counter[str] = Counter()
        for name in self._names(split):
            try:
                counts += self._add(name)
            except TrajformerError as error:
                self.skipped.append(f"skipped {error}")
        others = [f"{counts[name]} objects of class '{name}' left out" for name in sorted(counts.keys() - set(labels))]
        if counts.keys().isdisjoint(labels):
            reason = "; ".join([f"no object of the classes {', '.join(labels)}", *others, *self.skipped[:1]])
            raise TrajformerError(f"{self.name}: nothing can be used: {reason}")
        self.skipped += others

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}

    def _names(self, split: str) -> list[str]:
        listing = self.root / "ImageSets" / "Main" / f"{split}.txt"
        try:
            lines = listing.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            splits = sorted(path.stem for path in listing.parent.glob("*.txt"))
            raise TrajformerError(f"{listing}: cannot be read (splits here: {', '.join(splits) or 'none'})") from error
        return [Path(line.split()[0]).name for line in lines if line.strip()]

    def _add(self, name: str) -> Counter[str]:
        """Add an image; the number of objects of each class, also of classes that are left out."""
        objects = read_annotation(self.root / "Annotations" / f"{name}.xml")
        paths = [self.root / "JPEGImages" / f"{name}{suffix}" for suffix in (".jpg", *SUFFIXES)]
        path = next((path for path in paths[1:] if path.exists()), paths[0])
        _, height, width = self._read(len(self.images), path).shape
        solid = [(kind, box) for kind, box in objects if box[2] > box[0] and box[3] > box[1]]
        if len(solid) < len(objects):
            self.skipped.append(f"{name}: {len(objects) - len(solid)} boxes without area left out")
        known = [(kind, box) for kind, box in solid if kind in self.labels]
        label = torch.tensor([self.labels.index(kind) for kind, _ in known], dtype=torch.int64)
        self.images.append((path, torch.tensor([box for _, box in known]).reshape(-1, 4), label, (height, width)))
        return Counter(kind for kind, _ in solid)

    def _read(self, index: int, path: Path) -> Tensor:
        """uint8 [3, H, W]."""
        pixels = self.cache.get(index)
        if pixels is None:
            pixels = to_bytes(read_image(path))
            if self.config.cache:
                self.cache[index] = pixels
        return pixels

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    def example(self, index: int, epoch: int = 0) -> Example:
        """One resized image; with a seed it is augmented, differently in every epoch."""
        path, box, label, original = self.images[index]
        example = Example(path.stem, self._read(index, path).float() / 255.0, box, label, original)
        if self.seed is not None:
            example = augment_example(example, self.config.vary, np.random.default_rng((self.seed, epoch, index)))
        return resize_example(example, *self.size)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of images as stored on disk."""
        return np.array([self.images[index][3] for index in indices]).reshape(-1, 2)
