"""From a store to batches: data sets with batches as items, the order of scenes, and a loader.

In an epoch, every scene is used once, in steps of nearly equal size, with scenes of similar size in
one step; a `Mixture` states the scenes of an epoch for several data sets. A step is one update of
the weights by all processes together. The scenes of a step depend on the seed, the epoch, the
number of scenes and steps, and the sizes of the scenes; processes only divide a step. Therefore an
epoch can resume at any step, also with another number of processes if the number of steps stays the
same.

Workers import only this module and its dependencies, not the training framework, so that they start
quickly.
"""

import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.mixture import Mixture
from trajformer.data.sample import BatchConfig, Sample, branched, extended, samples
from trajformer.errors import HANGUP, TrajformerError
from trajformer.scenes.resample import ResampledScenes
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore

# padded axes of a batch, with their masks
AXES = {"agents": "agent_mask", "polylines": "polyline_mask", "targets": "target_mask"}
MAX_PADDING = 0.25  # fraction of padding in a batch that needs no further sorting
READ_SIZE = 32  # scenes that are read together to measure their sizes
Sizes = Callable[[np.ndarray], np.ndarray]  # scene indices [n] -> their lengths int [n, axes]


class SceneDataset(Dataset[SceneBatch]):
    """The first `limit` scenes of a store: `data[[3, 1, 4]]` is the batch of these three scenes.

    With `cache`, samples stay in memory after their first use. With `clock`, scenes are resampled
    to its period, and samples have its history and horizon: longer ones are cut, and steps that
    were not recorded are not valid.
    """

    def __init__(
        self,
        store: SceneStore,
        config: BatchConfig,
        limit: int | None = None,
        *,
        cache: bool = False,
        clock: DataSpec | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.cache = cache
        self.clock = clock
        self.name = str(store.root)
        self.size = len(store)
        if limit is not None:
            self.size = min(limit, self.size)
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
        return self.samples([index])[0]

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        """The samples of some scenes."""
        missing = [index for index in dict.fromkeys(indices) if index not in self.cached]
        read = dict(zip(missing, self._read(missing), strict=True))
        if self.cache:
            self.cached |= read
        return [read.get(index) or self.cached[index] for index in indices]

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        clock = self.clock
        if clock is None:
            return samples([self.store[index] for index in indices], self.config)
        assert clock.num_history and clock.num_future
        scenes = ResampledScenes(self.store, clock)
        short = samples([scenes[index] for index in indices], self.config)
        return [extended(sample, clock.num_history, clock.num_future) for sample in short]

    def __getitem__(self, indices: Sequence[int]) -> SceneBatch:
        return stack(self.samples(indices), self.config.frame)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int32 [n, AXES] of the samples of some scenes, measured on the first request."""
        if self.lengths is None:
            self.lengths = np.full((self.size, len(AXES)), -1, np.int32)
        unknown = indices[self.lengths[indices, 0] < 0].tolist()
        for start in range(0, len(unknown), READ_SIZE):
            chunk = unknown[start : start + READ_SIZE]
            for index, sample in zip(chunk, self.samples(chunk), strict=True):
                self.lengths[index] = [len(sample.padded[mask]) for mask in AXES.values()]
        return self.lengths[indices]


class MixedDataset(Dataset[SceneBatch]):
    """The scenes of several data sets of one clock, numbered one data set after the other."""

    def __init__(self, parts: Sequence[SceneDataset]) -> None:
        self.parts = tuple(parts)
        self.config = parts[0].config
        self.name = ", ".join([part.name for part in parts])
        # number of the first scene of each part, and the number of scenes
        self.starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def num_scenes(self) -> int:
        """Number of scenes of all parts."""
        return len(self)

    def sample(self, index: int) -> Sample:
        """The sample of one scene."""
        [(part, _)] = self._by_part(np.array([index]))
        return part.sample(index - self._start(part))

    def __getitem__(self, indices: Sequence[int]) -> SceneBatch:
        numbers = np.asarray(indices)
        read: dict[int, Sample] = {}
        for part, rows in self._by_part(numbers):
            samples_of_part = part.samples((numbers[rows] - self._start(part)).tolist())
            read |= dict(zip(rows.tolist(), samples_of_part, strict=True))
        return stack([read[row] for row in range(len(numbers))], self.config.frame)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int32 [n, AXES] of the samples of some scenes."""
        lengths = np.zeros((len(indices), len(AXES)), np.int32)
        for part, rows in self._by_part(indices):
            lengths[rows] = part.sizes(indices[rows] - self._start(part))
        return lengths

    def _start(self, part: SceneDataset) -> int:
        return int(self.starts[self.parts.index(part)])

    def _by_part(self, numbers: np.ndarray) -> Iterator[tuple[SceneDataset, np.ndarray]]:
        """The parts that have some of these scenes, with the positions of the scenes."""
        owner = np.searchsorted(self.starts, numbers, side="right") - 1
        for index, part in enumerate(self.parts):
            rows = np.flatnonzero(owner == index)
            if len(rows):
                yield part, rows


TrainingScenes = SceneDataset | MixedDataset


class BranchDataset(SceneDataset):
    """A `SceneDataset` in which scenes with a common past are one item with all their futures.

    Such an item is a sample of `branched`. Its scenes are neighbours in the store, and their ids
    differ only after the last dot.
    """

    def __init__(
        self,
        store: SceneStore,
        config: BatchConfig,
        limit: int | None = None,
        *,
        cache: bool = False,
    ) -> None:
        self.groups = _group_by_past(store.scene_ids())[:limit]
        self.futures = max([len(group) for group in self.groups], default=1)
        super().__init__(store, config, len(self.groups), cache=cache)

    @property
    def num_scenes(self) -> int:
        """Number of scenes of the store that are used: items have several."""
        return self.groups[-1].stop

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        items = []
        for index in indices:
            samples_of_past = super()._read(self.groups[index])
            items.append(branched(samples_of_past, self.futures))
        return items


def _group_by_past(scene_ids: Sequence[str]) -> list[range]:
    """Indices of the scenes of each past; ids of such scenes differ only after the last dot."""
    groups: list[range] = []
    previous = None
    for index, scene_id in enumerate(scene_ids):
        past = scene_id.rpartition(".")[0] or scene_id
        if past == previous:
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
        previous = past
    return groups


def count_steps(scenes: int, batch_size: int, world: int = 1) -> int:
    """Number of steps in an epoch.

    Each of `world` processes takes at most `batch_size` scenes per step. Every process gets at
    least one scene in every step. Raises TrajformerError: there are fewer scenes than processes.
    """
    if scenes < world:
        raise TrajformerError(
            f"{scenes} scenes are not enough for {world} processes; lower trainer.devices"
        )
    steps = math.ceil(scenes / (batch_size * world))
    return min(steps, scenes // world)


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

    With a `mixture`, `scenes` is the number of scenes that it gives for an epoch. The shuffled
    scenes are cut into pools of `pool` steps. Within a pool, scenes of similar size share a step,
    and the steps come in random order. `sizes` is called once per pool, when the pool is needed,
    and never with a pool of one step.
    """

    scenes: int
    steps: int
    seed: int
    pool: int
    sizes: Sizes
    mixture: Mixture | None = None

    def epoch(self, number: int, first: int = 0) -> Iterator[np.ndarray]:
        """The scenes of each step of an epoch, from step `first` on."""
        chosen = np.arange(self.scenes)
        if self.mixture is not None:
            chosen = self.mixture.epoch(number)
        shuffled = np.random.default_rng((self.seed, number)).permutation(chosen)
        steps = np.array_split(shuffled, self.steps)
        num_pools = math.ceil(self.steps / self.pool)
        cuts = [index * self.steps // num_pools for index in range(num_pools + 1)]
        for start, end in pairwise(cuts):
            if end <= first:
                continue
            pool = steps[start:end]
            if self.pool > 1:
                pool = self._regroup(pool, np.random.default_rng((self.seed, number, start)))
            yield from pool[max(first - start, 0) :]

    def _regroup(self, pool: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
        """The steps of a pool with scenes of similar size in each, in random order."""
        scenes = np.concatenate(pool)
        counts = [len(step) for step in pool]
        groups = group_by_size(scenes, counts, self.sizes(scenes))
        return [groups[index] for index in rng.permutation(len(groups))]


def group_by_size(scenes: np.ndarray, counts: list[int], sizes: np.ndarray) -> list[np.ndarray]:
    """Divide shuffled scenes [n] into groups of `counts` scenes with similar `sizes` [n, axes].

    Splits the scenes in halves, each time along the axis that saves the most padding; all axes have
    the same weight. Scenes that fit into a batch with less padding than `MAX_PADDING` stay in
    random order, because further sorting would only make the scenes of a step more similar.
    """
    relative = sizes / np.maximum(sizes.mean(0), 1e-9)

    def padded_size(rows: np.ndarray) -> float:
        """Size of a batch of these scenes, padding included."""
        return len(rows) * relative[rows].max(0).sum()

    def divide(rows: np.ndarray, counts: list[int]) -> list[np.ndarray]:
        """Divide the scenes `rows` into groups of `counts` scenes."""
        largest = relative[rows].max(0)
        has_little_padding = (relative[rows].mean(0) >= (1 - MAX_PADDING) * largest).all()
        if len(counts) == 1 or has_little_padding:
            return np.split(scenes[rows], np.cumsum(counts)[:-1])
        middle = len(counts) // 2
        num_first = sum(counts[:middle])
        halves = []
        for axis in range(relative.shape[1]):
            order = rows[np.argsort(relative[rows, axis], kind="stable")]
            halves.append((np.sort(order[:num_first]), np.sort(order[num_first:])))
        first, second = min(halves, key=lambda pair: padded_size(pair[0]) + padded_size(pair[1]))
        return divide(first, counts[:middle]) + divide(second, counts[middle:])

    return divide(np.arange(len(scenes)), counts)


def padding(batches: Iterable[np.ndarray], sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Entries filled by scenes, and all entries of the batches with padding: two int64 [axes].

    The number of entries of a batch on an axis is the number of its scenes times the length of its
    longest scene.
    """
    lengths = [sizes(batch).astype(np.int64) for batch in batches]
    filled = sum(length.sum(0) for length in lengths)
    entries = sum(len(length) * length.max(0) for length in lengths)
    return np.asarray(filled), np.asarray(entries)


class RankSampler:
    """The scenes that one process takes from each step of an epoch; a sampler for `DataLoader`."""

    def __init__(
        self, order: SequentialOrder | EpochShuffle, rank: int = 0, world: int = 1
    ) -> None:
        self.order = order
        self.rank = rank
        self.world = world
        self.number = 0  # of the epoch
        self.first = 0  # step of the next iteration

    def start_at(self, epoch: int, step: int = 0) -> None:
        """Start the next iteration at a step of an epoch."""
        self.number = epoch
        self.first = step

    def set_epoch(self, epoch: int) -> None:
        """Change to another epoch; the present epoch keeps its position.

        Lightning calls this at the start of each epoch.
        """
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
    """Batches in the order of `sampler`, read by `workers` processes.

    The number of workers does not change the order. There is at most one worker per core, because
    more are slower and PyTorch warns about them. Each reads two batches ahead. With `pinned`, for a
    GPU, a thread copies them to pinned memory.
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
    """Ignore Ctrl-C, and the end of the terminal, in a worker.

    The training process handles it and still needs the batches of its present step.
    """
    for stop_signal in (signal.SIGINT, HANGUP):
        signal.signal(stop_signal, signal.SIG_IGN)
