"""From a store to batches: a data set with batches as items, and its loader, with or without worker processes.

Workers import only this module and its dependencies, not the training framework, so that they start quickly.
"""

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.order import EpochShuffle, SequentialOrder
from trajformer.data.sample import BatchConfig, Sample, branched, samples
from trajformer.scenes.store import SceneStore

AXES = {"agents": "agent_mask", "polylines": "polyline_mask", "targets": "target_mask"}  # padded axes of a batch
READ_SIZE = 32  # scenes that are read together to measure their sizes


class SceneDataset(Dataset[SceneBatch]):
    """The first `limit` scenes of a store: `data[[3, 1, 4]]` is the batch of these three scenes.

    With `cache`, samples stay in memory after their first use.
    """

    def __init__(self, store: SceneStore, config: BatchConfig, limit: int | None = None, *, cache: bool = False) -> None:
        self.store, self.config, self.cache, self.name = store, config, cache, str(store.root)
        self.size = len(store) if limit is None else min(limit, len(store))
        self.cached: dict[int, Sample] = {}
        self.lengths: np.ndarray | None = None  # int32 [size, AXES], -1: not measured yet

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"cached": {}, "lengths": None}

    def __len__(self) -> int:
        """Number of scenes."""
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

    def __init__(self, store: SceneStore, config: BatchConfig, limit: int | None = None, *, cache: bool = False) -> None:
        pasts = [name.rpartition(".")[0] or name for name in store.scene_ids()]
        starts = [index for index, past in enumerate(pasts) if not index or past != pasts[index - 1]]
        self.groups = [range(a, b) for a, b in zip(starts, [*starts[1:], len(pasts)], strict=True)][:limit]
        self.futures = max(map(len, self.groups), default=1)
        super().__init__(store, config, len(self.groups), cache=cache)

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        read = super()._read
        return [branched(read(self.groups[index]), self.futures) for index in indices]


class RankSampler:
    """The scenes that one process takes from each step of an epoch; a sampler for `DataLoader`.

    Every process has `len(sampler)` batches, and each scene is in one batch of one process.
    """

    def __init__(self, order: SequentialOrder | EpochShuffle, rank: int = 0, world: int = 1) -> None:
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


def make_loader(data: Any, sampler: RankSampler, workers: int = 0) -> DataLoader[Any]:
    """Batches in the order of `sampler`, read by `workers` processes; their number does not change the order."""
    return DataLoader(
        data,
        batch_size=None,  # an item is already a batch
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_start_worker if workers else None,
    )


def _start_worker(number: int) -> None:
    """Ignore Ctrl-C in a worker: the training process handles it and still needs the batches of its present step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
