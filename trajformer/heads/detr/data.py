"""Images with boxes: geometry, records, padded batches, augmentation, the base class of data sets, folders as of Pascal VOC.

`centers` are (center x, center y, width, height), `corners` are (left, top, right, bottom); x to the right, y down. Both are in
pixels or in shares of the width and height of an image.

A folder has ImageSets/Main/<split>.txt, Annotations/<id>.xml and JPEGImages/<id>.jpg. Coordinates are read as edges in pixels,
as current annotation tools write them.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from trajformer.config import Config
from trajformer.data.batch import TensorRecord
from trajformer.data.loading import EpochShuffle
from trajformer.errors import TrajformerError
from trajformer.heads.images import SUFFIXES, normalize, read_image, resize, to_bytes

MAX_BYTES = 10_000_000  # size of an annotation file
_SIDES = tuple(f"bndbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
MIN_VISIBLE = 0.3  # a crop removes boxes of which a smaller share is left
_EPSILON = 1e-12  # added to areas; a pixel of a large image has an area of 1e-8 of it


def to_corners(box: Tensor) -> Tensor:
    """Convert centers [..., 4] to corners [..., 4]."""
    half = box[..., 2:] / 2
    return torch.cat([box[..., :2] - half, box[..., :2] + half], -1)


def to_centers(box: Tensor) -> Tensor:
    """Convert corners [..., 4] to centers [..., 4]."""
    return torch.cat([(box[..., :2] + box[..., 2:]) / 2, box[..., 2:] - box[..., :2]], -1)


def iou(a: Tensor, b: Tensor, *, generalized: bool = False) -> Tensor:
    """Intersection over union [...] of boxes as corners [..., 4], broadcast against each other; 0 for two empty boxes.

    `generalized` subtracts the share of the smallest enclosing box that neither box covers, so that boxes that do not touch
    differ, too (GIoU, Rezatofighi et al. 2019); the range is (-1, 1] instead of [0, 1].
    """
    (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = a.unbind(-1), b.unbind(-1)
    area, area_b = (right - left) * (bottom - top), (right_b - left_b) * (bottom_b - top_b)
    # In place where autograd allows it: a tensor over all pairs of a batch has half a megabyte, and allocation is slow.
    intersection = torch.minimum(right, right_b).sub_(torch.maximum(left, left_b)).clamp_(min=0)
    intersection = intersection.mul_(
        torch.minimum(bottom, bottom_b).sub_(torch.maximum(top, top_b)).clamp_(min=0)
    )
    union = (area + (area_b + _EPSILON)).sub_(intersection)
    ratio = intersection / union
    if not generalized:
        return ratio
    enclosing = torch.maximum(right, right_b).sub_(torch.minimum(left, left_b))
    enclosing = enclosing.mul_(
        torch.maximum(bottom, bottom_b).sub_(torch.minimum(top, top_b))
    ).clamp_(min=_EPSILON)
    return ratio.sub_(1 - union / enclosing)


def suppress(box: Tensor, score: Tensor, label: Tensor, threshold: float) -> Tensor:
    """Greedy non-maximum suppression within each class: indices int64 [M] of the kept boxes, best first.

    A box (corners [N, 4], scores [N], labels int64 [N]) is removed if its IoU with a better box of the same class is over
    `threshold`.
    """
    order = score.argsort(descending=True, stable=True)
    ranked, ranked_label = box[order], label[order]
    rivals = (iou(ranked[:, None], ranked[None]) > threshold) & (
        ranked_label[:, None] == ranked_label
    )
    kept = torch.ones(len(order), dtype=torch.bool)
    for index, row in enumerate(rivals.cpu()):
        if kept[index]:
            kept[index + 1 :] &= ~row[index + 1 :]
    return order[kept.to(order.device)]


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
    return Example(
        path.stem,
        image,
        torch.zeros(0, 4),
        torch.zeros(0, dtype=torch.int64),
        (image.shape[1], image.shape[2]),
    )


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


def collate(examples: Sequence[Example]) -> DetectionBatch:
    """Pad images to the largest height and width among them."""
    size = torch.tensor([example.image.shape[1:] for example in examples])  # [B, 2]
    height, width = size.amax(0).tolist()
    pixels = [
        pad(normalize(e.image), (0, width - e.image.shape[2], 0, height - e.image.shape[1]))
        for e in examples
    ]
    mask = (torch.arange(height)[:, None] < size[:, :1, None]) & (
        torch.arange(width) < size[:, 1:, None]
    )
    label = pad_sequence([example.label for example in examples], batch_first=True)
    box = pad_sequence([example.box for example in examples], batch_first=True)
    real = torch.arange(label.shape[1]) < torch.tensor(
        [[len(example.label)] for example in examples]
    )
    targets = BoxTargets(label, to_centers(box) / size.flip(1).repeat(1, 2)[:, None], real)
    original = torch.tensor([example.original for example in examples])
    names = tuple(example.name for example in examples)
    return DetectionBatch(
        names, torch.stack(pixels), None if mask.all() else mask, targets, original
    )


class DetectionDataset(ABC):
    """Labeled images by number: `dataset[[3, 1, 4]]` is the batch of these three images.

    For N images, number = epoch * N + index is image `index` as it appears in `epoch`. A data set may augment or generate an
    image differently in each epoch. The same number always gives the same image.
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
class BoxAugmentConfig(Config, fractions=("flip", "flip_vertical", "crop", "smallest")):
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


def augment_example(
    example: Example, config: BoxAugmentConfig, rng: np.random.Generator
) -> Example:
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
    """A random part of the image with at least the share `smallest` of its sides."""
    full = np.array(example.image.shape[-2:])
    size = np.maximum((full * rng.uniform(smallest, 1.0)).round().astype(int), 1)
    (top, left), (height, width) = rng.integers(0, full - size + 1).tolist(), size.tolist()
    box = example.box - torch.tensor([left, top, left, top])
    clipped = torch.stack([box[:, ::2].clamp(0, width), box[:, 1::2].clamp(0, height)], -1).flatten(
        1
    )
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
    """Class and corners (left, top, right, bottom; pixels) of each object of an annotation file; an error if it is not valid."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise ValueError(
                "no such file"
                if not path.exists()
                else f"not a regular file of at most {MAX_BYTES} bytes"
            )
        data = path.read_bytes()
        if (
            b"<!DOCTYPE" in data or b"\0" in data
        ):  # could define entities; UTF-16 could hide it, and contains zeros
            raise ValueError("has a document type, or is not UTF-8")
        root = ElementTree.fromstring(data, ElementTree.XMLParser(encoding="utf-8"))
        return [_object(item) for item in root.iter("object")]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise TrajformerError(
            f"{path}: not an annotation: {' '.join(str(error).split())[:200]}"
        ) from error


def _object(item: ElementTree.Element) -> tuple[str, list[float]]:
    texts = {path: (item.findtext(path) or "").strip() for path in ("name", *_SIDES)}
    if missing := [path for path, text in texts.items() if not text]:
        raise ValueError(f"object: no {missing[0]}")
    corners = [float(texts[side]) for side in _SIDES]
    if not all(map(math.isfinite, corners)):
        raise ValueError("object: bndbox: not finite")
    return texts["name"], corners


class VocDataset(DetectionDataset):
    """The images of a split. All files are read once at the start; unusable ones are left out and listed.

    Objects of classes that are not in `labels` are left out. `size` is the target length of the shorter side of an image, and the
    maximum of the longer side; `seed` of the augmentation, None for none. Raises TrajformerError: the folder or the split is
    missing, or has no usable object.
    """

    def __init__(
        self,
        config: VocConfig,
        split: str,
        labels: Sequence[str],
        size: tuple[int, int],
        seed: int | None = None,
    ) -> None:
        self.root, self.name, self.labels = (
            Path(config.root),
            f"{config.root}: {split}",
            tuple(labels),
        )
        self.config, self.size, self.seed = config, size, seed
        self.cache: dict[int, Tensor] = {}
        self.skipped: list[str] = []
        self.images: list[
            tuple[Path, Tensor, Tensor, tuple[int, int]]
        ] = []  # file, boxes, labels, height and width
        counts: Counter[str] = Counter()
        listing = self.root / "ImageSets" / "Main" / f"{split}.txt"
        try:
            lines = listing.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            splits = sorted(path.stem for path in listing.parent.glob("*.txt"))
            raise TrajformerError(
                f"{listing}: cannot be read (splits here: {', '.join(splits) or 'none'})"
            ) from error
        for name in (Path(line.split()[0]).name for line in lines if line.strip()):
            try:
                counts += self._add(name)
            except TrajformerError as error:
                self.skipped.append(f"skipped {error}")
        others = [
            f"{counts[name]} objects of class '{name}' left out"
            for name in sorted(counts.keys() - set(labels))
        ]
        if counts.keys().isdisjoint(labels):
            reason = "; ".join(
                [f"no object of the classes {', '.join(labels)}", *others, *self.skipped[:1]]
            )
            raise TrajformerError(f"{self.name}: nothing can be used: {reason}")
        self.skipped += others

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}}

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
        self.images.append(
            (path, torch.tensor([box for _, box in known]).reshape(-1, 4), label, (height, width))
        )
        return Counter(kind for kind, _ in solid)

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
        example = Example(path.stem, self._read(index, path).float() / 255.0, box, label, original)
        if self.seed is not None:
            example = augment_example(
                example, self.config.vary, np.random.default_rng((self.seed, epoch, index))
            )
        return resize_example(example, *self.size)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of images as stored on disk."""
        return np.array([self.images[index][3] for index in indices]).reshape(-1, 2)
