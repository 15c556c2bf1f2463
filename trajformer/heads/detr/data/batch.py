"""Pictures of different sizes with their boxes, padded to one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from trajformer.heads.detr.boxes import to_centres
from trajformer.heads.images import normalise


@dataclass(frozen=True, eq=False)
class Example:
    """One picture: float32 [3, H, W] in 0..1, its n boxes as corners [n, 4] in its pixels, their classes int64 [n].

    `original` is the height and width of the picture before it was resized.
    """

    name: str
    image: Tensor
    box: Tensor
    label: Tensor
    original: tuple[int, int]


@dataclass(frozen=True, eq=False)
class BoxTargets:
    """The boxes of B images, padded to G: centres in shares of each image's own width and height."""

    label: Tensor  # int64 [B, G]
    box: Tensor  # float32 [B, G, 4]
    mask: Tensor  # bool [B, G]


@dataclass(frozen=True, eq=False)
class DetectionBatch:
    """B images at the top left of a frame of H x W, normalised; what they do not fill is zero.

    `mask` is None where every image fills the frame.
    """

    name: tuple[str, ...]
    pixels: Tensor  # float32 [B, 3, H, W]
    mask: Tensor | None  # bool [B, H, W]
    targets: BoxTargets
    original: Tensor  # int64 [B, 2], height and width before resizing

    def __len__(self) -> int:
        """B."""
        return len(self.name)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> DetectionBatch:
        """The batch on another device."""

        def move(value: Any) -> Any:
            if isinstance(value, BoxTargets):
                return BoxTargets(**{item.name: move(getattr(value, item.name)) for item in fields(value)})
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value

        return DetectionBatch(**{item.name: move(getattr(self, item.name)) for item in fields(self)})


def collate(examples: Sequence[Example]) -> DetectionBatch:
    """One batch of several pictures, as large as the largest height and width among them."""
    sizes = [tuple(example.image.shape[-2:]) for example in examples]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    pixels = torch.zeros(len(examples), 3, height, width)
    mask = torch.zeros(len(examples), height, width, dtype=torch.bool)
    for index, (example, (rows, columns)) in enumerate(zip(examples, sizes, strict=True)):
        pixels[index, :, :rows, :columns] = normalise(example.image)
        mask[index, :rows, :columns] = True
    original = torch.tensor([example.original for example in examples])
    full = all(size == (height, width) for size in sizes)
    return DetectionBatch(
        tuple(example.name for example in examples), pixels, None if full else mask, _targets(examples), original
    )


def _targets(examples: Sequence[Example]) -> BoxTargets:
    most = max(len(example.label) for example in examples)
    label = torch.zeros(len(examples), most, dtype=torch.int64)
    box, mask = torch.zeros(len(examples), most, 4), torch.zeros(len(examples), most, dtype=torch.bool)
    for index, example in enumerate(examples):
        count, (height, width) = len(example.label), example.image.shape[-2:]
        label[index, :count], mask[index, :count] = example.label, True
        box[index, :count] = to_centres(example.box) / torch.tensor([width, height, width, height])
    return BoxTargets(label, box, mask)
