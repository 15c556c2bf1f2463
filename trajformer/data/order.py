"""The order of scenes in an epoch: every scene once, in steps of nearly equal size, scenes of similar size in one step.

A step is one update of the weights by all processes together. The scenes of a step depend on the seed, the epoch, the number of
scenes and steps, and the sizes of the scenes; processes only divide a step. Therefore an epoch can resume at any step, also with
another number of processes if the number of steps stays the same.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trajformer.errors import TrajformerError

MAX_PADDING = 0.25  # share of padding in a batch that needs no further sorting
Sizes = Callable[[np.ndarray], np.ndarray]  # scene indices [n] -> their lengths int [n, axes]


def count_steps(scenes: int, batch_size: int, world: int = 1) -> int:
    """Number of steps in an epoch in which each of `world` processes takes at most `batch_size` scenes per step.

    Every process gets at least one scene in every step.

    Raises:
        TrajformerError: there are fewer scenes than processes.
    """
    if scenes < world:
        raise TrajformerError(f"{scenes} scenes are not enough for {world} processes; lower trainer.devices")
    return min(-(-scenes // (batch_size * world)), scenes // world)


@dataclass(frozen=True)
class SequentialOrder:
    """The same order in every epoch: scenes 0, 1, ... cut into steps."""

    scenes: int
    steps: int

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The scenes of each step of an epoch, from step `first` on."""
        yield from np.array_split(np.arange(self.scenes), self.steps)[first:]


@dataclass(frozen=True)
class EpochShuffle:
    """A new random order in every epoch.

    The shuffled scenes are cut into pools of `pool` steps. Within a pool, scenes of similar size share a step, and the steps
    come in random order. `sizes` is called once per pool, when the pool is needed, and never with a pool of one step.
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
        for start, end in pairwise(cuts):
            if end > first:
                pool = steps[start:end]
                if self.pool > 1:
                    scenes = np.concatenate(pool)
                    pool = group_by_size(scenes, [len(step) for step in pool], self.sizes(scenes))
                    order = np.random.default_rng((self.seed, number, start)).permutation(len(pool))
                    pool = [pool[index] for index in order]
                yield from pool[max(first - start, 0) :]


def group_by_size(scenes: np.ndarray, counts: list[int], sizes: np.ndarray) -> list[np.ndarray]:
    """Divide shuffled scenes [n] into groups of `counts` scenes with similar `sizes` [n, axes].

    Splits the scenes in halves, each time along the axis that saves the most padding; all axes have the same weight. Scenes that
    fit into a batch with less padding than `MAX_PADDING` stay in random order, because further sorting would only make the
    scenes of a step more similar.
    """
    relative = sizes / np.maximum(sizes.mean(0), 1e-9)

    def halve(rows: np.ndarray, counts: list[int]) -> list[np.ndarray]:
        longest = relative[rows].max(0)
        if len(counts) == 1 or (relative[rows].mean(0) >= (1 - MAX_PADDING) * longest).all():
            return np.split(scenes[rows], np.cumsum(counts)[:-1])
        middle = len(counts) // 2
        left = sum(counts[:middle])
        orders = (rows[np.argsort(relative[rows, axis], kind="stable")] for axis in range(relative.shape[1]))
        halves = [(np.sort(order[:left]), np.sort(order[left:])) for order in orders]
        a, b = min(halves, key=lambda pair: sum(len(half) * relative[half].max(0).sum() for half in pair))
        return halve(a, counts[:middle]) + halve(b, counts[middle:])

    return halve(np.arange(len(scenes)), counts)


def padding(batches: Iterable[np.ndarray], sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Entries filled by scenes, and all entries of the batches including padding: two int64 [axes].

    The number of entries of a batch on an axis is the number of its scenes times the length of its longest scene.
    """
    lengths = [sizes(batch).astype(np.int64) for batch in batches]
    filled = sum(length.sum(0) for length in lengths)
    return np.asarray(filled), np.asarray(sum(len(length) * length.max(0) for length in lengths))
