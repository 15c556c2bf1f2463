"""What data sets of labelled boxes have in common: pictures by number, seen anew in every epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from trajformer.data.order import EpochShuffle
from trajformer.heads.detr.data.batch import DetectionBatch, Example, collate


class Pictures(ABC):
    """`pictures[[3, 1, 4]]` is the batch of those three.

    A number of N or more, for N pictures, means a picture as another epoch sees it: number = epoch * N + picture. Then it is
    varied (or generated) differently; the same number always gives the same.

    Attributes:
        name: for complaints.
        labels: names of the classes.
        complaints: a line for everything that was left out.
    """

    name: str
    labels: tuple[str, ...]
    complaints: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int:
        """N."""

    @abstractmethod
    def example(self, picture: int, epoch: int = 0) -> Example:
        """One picture as it is seen in an epoch."""

    def __getitem__(self, numbers: Sequence[int]) -> DetectionBatch:
        """The batch of some pictures."""
        places = [divmod(int(number), len(self)) for number in numbers]
        return collate([self.example(picture, epoch) for epoch, picture in places])

    @abstractmethod
    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Height and width int [n, 2] of some pictures, before they are varied."""


class Anew(EpochShuffle):
    """`EpochShuffle` whose numbers tell the epoch, too, as `Pictures` wants them."""

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The pictures of each step of an epoch, from step `first` on."""
        for step in super().epoch(number, first):
            yield step + number * self.scenes
