"""Folders in the layout of Pascal VOC: ImageSets/Main/<split>.txt, Annotations/<id>.xml, JPEGImages/<id>.jpg.

Coordinates are taken as edges in pixels, as the tools that write such files today mean them.
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
from trajformer.heads.detr.data.batch import Example
from trajformer.heads.detr.data.pictures import Pictures
from trajformer.heads.detr.data.vary import VariationConfig, fit, vary
from trajformer.heads.images import ENDINGS, read_image

MAX_BYTES = 10_000_000  # of an annotation
_SIDES = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class VocConfig:
    """Which pictures, and how they are seen.

    Attributes:
        root: folder with Annotations/, ImageSets/Main/ and JPEGImages/.
        train_split: what is learned from.
        val_split: what the best checkpoint is chosen by.
        cache: keep pictures in memory, a byte a pixel and colour.
        vary: what is varied in training.
    """

    root: str = ""
    train_split: str = "train"
    val_split: str = "val"
    cache: bool = True
    vary: VariationConfig = field(default_factory=VariationConfig)


@dataclass(frozen=True)
class Annotation:
    """Boxes of a picture: class names, corners float [n, 4] in pixels, and how many boxes without area were left out."""

    names: tuple[str, ...]
    box: np.ndarray
    left_out: int


def read_annotation(path: Path) -> Annotation:
    """What an annotation file says.

    Raises:
        TrajformerError: it cannot be read, is no such annotation, or has a document type (whose entities could be anything).
    """
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ValueError("no such file" if not path.exists() else f"not a regular file of at most {MAX_BYTES} bytes")
        data = path.read_bytes()
        if b"<!DOCTYPE" in data or b"\0" in data:  # UTF-16, in which a document type could hide, has zeros
            raise ValueError("has a document type, or is not UTF-8")
        root = ElementTree.fromstring(data, ElementTree.XMLParser(encoding="utf-8"))
        found = [(_text(item, "name"), _corners(item)) for item in root.iter("object")]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise TrajformerError(f"{path}: not an annotation: {' '.join(str(error).split())[:200]}") from error
    kept = [(name, box) for name, box in found if box[2] > box[0] and box[3] > box[1]]
    box = np.array([box for _, box in kept], np.float32).reshape(-1, 4)
    return Annotation(tuple(name for name, _ in kept), box, len(found) - len(kept))


def _text(item: ElementTree.Element, place: str) -> str:
    text = (item.findtext(place) or "").strip()
    if not text:
        raise ValueError(f"object: no {place}")
    return text


def _corners(item: ElementTree.Element) -> list[float]:
    values = [float(_text(item, f"bndbox/{side}")) for side in _SIDES]
    if not all(math.isfinite(value) for value in values):
        raise ValueError("object: bndbox: not finite")
    return values


class VocFolder(Pictures):
    """The pictures of a split. All are read once, at the start: what cannot be used is left out and listed.

    Args:
        config: the folder.
        split: a name in ImageSets/Main.
        labels: names of the classes; objects of others are left out.
        size: lengths of the shorter side of a picture and, at most, of the longer one, as they are resized.
        seed: of the variation; None for pictures as they are.

    Attributes:
        complaints: a line for every picture that cannot be used, for every one with boxes without area, and for every class
            that is left out.

    Raises:
        TrajformerError: no such folder or split, or nothing in it can be used.
    """

    def __init__(
        self, config: VocConfig, split: str, labels: Sequence[str], size: tuple[int, int], seed: int | None = None
    ) -> None:
        self.root, self.name, self.labels = Path(config.root), f"{config.root}: {split}", tuple(labels)
        self.config, self.size, self.seed = config, size, seed
        self.kept: dict[int, Tensor] = {}
        self.complaints: list[str] = []
        self.pictures: list[tuple[Path, Annotation, tuple[int, int]]] = []
        for name in self._names(split):
            try:
                self._add(name)
            except TrajformerError as error:
                self.complaints.append(f"skipped {error}")
        found = Counter(name for _, annotation, _ in self.pictures for name in annotation.names)
        others = [f"{found[name]} objects of class '{name}' left out" for name in sorted(found.keys() - set(labels))]
        if found.keys().isdisjoint(labels):
            reason = "; ".join([f"no object of the classes {', '.join(labels)}", *others, *self.complaints[:1]])
            raise TrajformerError(f"{self.name}: nothing can be used: {reason}")
        self.complaints += others

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": {}}

    def _names(self, split: str) -> list[str]:
        listing = self.root / "ImageSets" / "Main" / f"{split}.txt"
        try:
            lines = listing.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            splits = sorted(path.stem for path in listing.parent.glob("*.txt"))
            raise TrajformerError(f"{listing}: cannot be read (splits here: {', '.join(splits) or 'none'})") from error
        return [Path(line.split()[0]).name for line in lines if line.strip()]

    def _add(self, name: str) -> None:
        annotation = read_annotation(self.root / "Annotations" / f"{name}.xml")
        folder = self.root / "JPEGImages"
        path = next((folder / (name + end) for end in ENDINGS if (folder / (name + end)).exists()), folder / f"{name}.jpg")
        pixels = self._read(len(self.pictures), path)
        if annotation.left_out:
            self.complaints.append(f"{name}: {annotation.left_out} boxes without area left out")
        self.pictures.append((path, annotation, (pixels.shape[1], pixels.shape[2])))

    def _read(self, picture: int, path: Path) -> Tensor:
        """uint8 [3, H, W]."""
        pixels = self.kept.get(picture)
        if pixels is None:
            pixels = (read_image(path) * 255.0).round().to(torch.uint8)
            if self.config.cache:
                self.kept[picture] = pixels
        return pixels

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.pictures)

    def example(self, picture: int, epoch: int = 0) -> Example:
        """One picture, resized; with a seed also varied, differently in every epoch."""
        path, annotation, original = self.pictures[picture]
        known = [place for place, name in enumerate(annotation.names) if name in self.labels]
        label = torch.tensor([self.labels.index(annotation.names[place]) for place in known], dtype=torch.int64)
        image = self._read(picture, path).float() / 255.0
        example = Example(path.stem, image, torch.from_numpy(annotation.box[known]), label, original)
        if self.seed is not None:
            example = vary(example, self.config.vary, np.random.default_rng((self.seed, epoch, picture)))
        return fit(example, *self.size)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of some pictures as they are on disk."""
        return np.array([self.pictures[index][2] for index in indices]).reshape(-1, 2)
