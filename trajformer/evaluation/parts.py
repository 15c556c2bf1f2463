"""Parts of a split, which several processes forecast or score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trajformer.evaluation.evaluate import Scenes
    from trajformer.scenes.scene import Scene

MIN_SCENES = 256  # of a part, but the last one


@dataclass(frozen=True)
class Part:
    """Scenes `start` to `stop` of a split."""

    start: int
    stop: int


class Slice:
    """Neighboring scenes of a split, as `evaluation.evaluate.Scenes`."""

    def __init__(self, scenes: Scenes, part: Part) -> None:
        self.scenes = scenes
        self.part = part
        self.split = scenes.split
        self.root = scenes.root

    def __len__(self) -> int:
        return self.part.stop - self.part.start

    def __getitem__(self, index: int) -> Scene:
        return self.scenes[self.part.start + index]


def plan(num_scenes: int, batch_size: int) -> list[Part]:
    """Parts of whole batches, so that no batch depends on the parts."""
    size = -(-MIN_SCENES // batch_size) * batch_size
    return [Part(start, min(start + size, num_scenes)) for start in range(0, num_scenes, size)]
