"""The order of an epoch: every scene once, in steps of nearly equal size, scenes of similar size in the same step.

A step is what all processes together do between two updates of the weights. Which scenes a step has depends on the seed,
the epoch, the number of scenes and of steps, and the scenes' sizes; processes only divide it among them. So the order can
be taken up anywhere, by another number of processes too if the number of steps is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trajformer.errors import TrajformerError

ENOUGH = 0.25  # share of padding
Sizes = Callable[[np.ndarray], np.ndarray]  # scenes [n] -> their lengths int [n, axes]


def count_steps(scenes: int, batch_size: int, world: int = 1) -> int:
    """Steps an epoch in which `world` processes take at most `batch_size` scenes each (one more where some would get none).

    Raises:
        TrajformerError: there are fewer scenes than processes.
    """
    if scenes < world:
        raise TrajformerError(f"{scenes} scenes are not enough for {world} processes; lower trainer.devices")
    return min(-(-scenes // (batch_size * world)), scenes // world)


@dataclass(frozen=True)
class InOrder:
    """Every epoch the same: scenes 0, 1, ... cut into steps."""

    scenes: int
    steps: int

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The scenes of each step of an epoch, from step `first` on."""
        yield from np.array_split(np.arange(self.scenes), self.steps)[first:]


@dataclass(frozen=True)
class Shuffle:
    """Another order every epoch.

    The shuffled scenes are cut into pools of `pool` steps. Within a pool, scenes of similar size share a step, and the steps
    come in random order; `sizes` is asked for a pool when its turn comes. With a pool of one step it is not asked at all.
    """

    scenes: int
    steps: int
    seed: int
    pool: int
    sizes: Sizes

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The scenes of each step of an epoch, from step `first` on."""
        steps = np.array_split(np.random.default_rng((self.seed, number)).permutation(self.scenes), self.steps)
        pools = -(-self.steps // self.pool)
        cuts = [index * self.steps // pools for index in range(pools + 1)]
        for begin, end in pairwise(cuts):
            if end > first:
                pool = steps[begin:end]
                if self.pool > 1:
                    scenes = np.concatenate(pool)
                    pool = group(scenes, [len(step) for step in pool], self.sizes(scenes))
                    turn = np.random.default_rng((self.seed, number, begin)).permutation(len(pool))
                    pool = [pool[place] for place in turn]
                yield from pool[max(first - begin, 0) :]


def group(scenes: np.ndarray, counts: list[int], sizes: np.ndarray) -> list[np.ndarray]:
    """Divide shuffled scenes [n] into groups of `counts` such that the members of a group have similar `sizes` [n, axes].

    Halves the scenes along one axis after the other, each time the one that saves most padding, all axes weighing the same.
    What would fit into one batch with less padding than `ENOUGH` stays as random as it is: more order would only make the
    scenes of a step resemble each other.
    """
    relative = sizes / np.maximum(sizes.mean(0), 1e-9)

    def halve(rows: np.ndarray, counts: list[int]) -> list[np.ndarray]:
        longest = relative[rows].max(0)
        if len(counts) == 1 or (relative[rows].mean(0) >= (1 - ENOUGH) * longest).all():
            return np.split(scenes[rows], np.cumsum(counts)[:-1])
        middle = len(counts) // 2
        left = sum(counts[:middle])
        sortings = (rows[np.argsort(relative[rows, axis], kind="stable")] for axis in range(relative.shape[1]))
        halves = [(np.sort(order[:left]), np.sort(order[left:])) for order in sortings]
        a, b = min(halves, key=lambda pair: sum(len(half) * relative[half].max(0).sum() for half in pair))
        return halve(a, counts[:middle]) + halve(b, counts[middle:])

    return halve(np.arange(len(scenes)), counts)


def padding(batches: Iterable[np.ndarray], sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Entries that scenes fill, and entries that batches have, padding included: two int64 [axes].

    On each axis a batch of B scenes has B times as many entries as the longest of its scenes.
    """
    lengths = [sizes(batch).astype(np.int64) for batch in batches]
    filled = sum(length.sum(0) for length in lengths)
    return np.asarray(filled), np.asarray(sum(len(length) * length.max(0) for length in lengths))
