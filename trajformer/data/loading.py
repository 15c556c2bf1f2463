"""From a store to batches: a data set with batches as items, the order of scenes, and a loader with or without workers.

In an epoch, every scene is used once, in steps of nearly equal size, with scenes of similar size in one step. A step is one
update of the weights by all processes together. The scenes of a step depend on the seed, the epoch, the number of scenes and
steps, and the sizes of the scenes; processes only divide a step. Therefore an epoch can resume at any step, also with another
number of processes if the number of steps stays the same.

Workers import only this module and its dependencies, not the training framework, so that they start quickly.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.sample import BatchConfig, Sample, branched, samples
from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore

AXES = {
    "agents": "agent_mask",
    "polylines": "polyline_mask",
    "targets": "target_mask",
}  # padded axes of a batch
MAX_PADDING = 0.25  # share of padding in a batch that needs no further sorting
READ_SIZE = 32  # scenes that are read together to measure their sizes
Sizes = Callable[[np.ndarray], np.ndarray]  # scene indices [n] -> their lengths int [n, axes]


class SceneDataset(Dataset[SceneBatch]):
    """The first `limit` scenes of a store: `data[[3, 1, 4]]` is the batch of these three scenes.

    With `cache`, samples stay in memory after their first use.
    """

    def __init__(
        self,
        store: SceneStore,
        config: BatchConfig,
        limit: int | None = None,
        *,
        cache: bool = False,
    ) -> None:
        self.store, self.config, self.cache, self.name = store, config, cache, str(store.root)
        self.size = len(store) if limit is None else min(limit, len(store))
        self.cached: dict[int, Sample] = {}
        self.lengths: np.ndarray | None = None  # int32 [size, AXES], -1: not measured yet

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cached": {}, "lengths": None}

    def __len__(self) -> int:
        return self.size

    @property
    def num_scenes(self) -> int:
        """Number of scenes of the store that are used, the first ones."""
        return self.size

    def sample(self, index: int) -> Sample:
        """The sample of one scene."""
        return self._samples([index])[0]

    def _samples(self, indices: Sequence[int]) -> list[Sample]:
        missing = [index for index in dict.fromkeys(indices) if index not in self.cached]
        made = dict(zip(missing, self._read(missing), strict=True))
        if self.cache:
            self.cached |= made
        return [made.get(index) or self.cached[index] for index in indices]

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        return samples([self.store[index] for index in indices], self.config)

    def __getitem__(self, indices: Sequence[int]) -> SceneBatch:
        return stack(self._samples(indices), self.config.frame)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int32 [n, AXES] of the samples of some scenes, measured on the first request."""
        if self.lengths is None:
            self.lengths = np.full((self.size, len(AXES)), -1, np.int32)
        unknown = indices[self.lengths[indices, 0] < 0].tolist()
        for start in range(0, len(unknown), READ_SIZE):
            chunk = unknown[start : start + READ_SIZE]
            for index, made in zip(chunk, self._samples(chunk), strict=True):
                self.lengths[index] = [len(made.padded[name]) for name in AXES.values()]
        return self.lengths[indices]


class BranchDataset(SceneDataset):
    """A `SceneDataset` in which scenes with a common past are one item with all their futures (`sample.branched`).

    Such scenes are neighbours in the store, and their ids differ only after the last dot.
    """

    def __init__(
        self,
        store: SceneStore,
        config: BatchConfig,
        limit: int | None = None,
        *,
        cache: bool = False,
    ) -> None:
        pasts = [name.rpartition(".")[0] or name for name in store.scene_ids()]
        starts = [
            index for index, past in enumerate(pasts) if not index or past != pasts[index - 1]
        ]
        self.groups = [range(a, b) for a, b in zip(starts, [*starts[1:], len(pasts)], strict=True)][
            :limit
        ]
        self.futures = max(map(len, self.groups), default=1)
        super().__init__(store, config, len(self.groups), cache=cache)

    @property
    def num_scenes(self) -> int:
        """Number of scenes of the store that are used: items have several."""
        return self.groups[-1].stop

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        read = super()._read
        return [branched(read(self.groups[index]), self.futures) for index in indices]


def count_steps(scenes: int, batch_size: int, world: int = 1) -> int:
    """Number of steps in an epoch in which each of `world` processes takes at most `batch_size` scenes per step.

    Every process gets at least one scene in every step. Raises TrajformerError: there are fewer scenes than processes.
    """
    if scenes < world:
        raise TrajformerError(
            f"{scenes} scenes are not enough for {world} processes; lower trainer.devices"
        )
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
        steps = np.array_split(
            np.random.default_rng((self.seed, number)).permutation(self.scenes), self.steps
        )
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
        orders = (
            rows[np.argsort(relative[rows, axis], kind="stable")]
            for axis in range(relative.shape[1])
        )
        halves = [(np.sort(order[:left]), np.sort(order[left:])) for order in orders]
        a, b = min(
            halves, key=lambda pair: sum(len(half) * relative[half].max(0).sum() for half in pair)
        )
        return halve(a, counts[:middle]) + halve(b, counts[middle:])

    return halve(np.arange(len(scenes)), counts)


def padding(batches: Iterable[np.ndarray], sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Entries filled by scenes, and all entries of the batches including padding: two int64 [axes].

    The number of entries of a batch on an axis is the number of its scenes times the length of its longest scene.
    """
    lengths = [sizes(batch).astype(np.int64) for batch in batches]
    filled = sum(length.sum(0) for length in lengths)
    return np.asarray(filled), np.asarray(sum(len(length) * length.max(0) for length in lengths))


class RankSampler:
    """The scenes that one process takes from each step of an epoch; a sampler for `DataLoader`."""

    def __init__(
        self, order: SequentialOrder | EpochShuffle, rank: int = 0, world: int = 1
    ) -> None:
        self.order, self.rank, self.world = order, rank, world
        self.number = self.first = 0

    def start_at(self, epoch: int, step: int = 0) -> None:
        """Start the next iteration at a step of an epoch."""
        self.number, self.first = epoch, step

    def set_epoch(self, epoch: int) -> None:
        """Change to another epoch. Lightning calls this at the start of each; the present epoch keeps its position."""
        if epoch != self.number:
            self.start_at(epoch)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.order.steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.order.epoch(self.number, self.first):
            yield step[self.rank :: self.world].tolist()


def make_loader(
    data: Any, sampler: RankSampler, workers: int = 0, *, pinned: bool = False
) -> DataLoader[Any]:
    """Batches in the order of `sampler`, read by `workers` processes; their number does not change the order.

    There is at most one worker per core, because more are slower and PyTorch warns about them. Each reads two batches ahead. With
    `pinned`, for a GPU, a thread copies them to pinned memory.
    """
    workers = min(workers, os.cpu_count() or 1)
    return DataLoader(
        data,
        batch_size=None,  # an item is already a batch
        sampler=sampler,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_start_worker if workers else None,
    )


def _start_worker(number: int) -> None:
    """Ignore Ctrl-C in a worker: the training process handles it and still needs the batches of its present step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
