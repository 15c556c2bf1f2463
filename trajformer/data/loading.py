"""From a store to batches: a data set whose items are batches, and the loader that reads them, here or in worker processes.

Workers import this module and what it needs, not the training framework: they start in the time that torch takes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.order import InOrder, Shuffle
from trajformer.data.sample import BatchConfig, Sample, branched, samples
from trajformer.scenes.store import SceneStore

AXES = {"agents": "agent_mask", "polylines": "polyline_mask", "targets": "target_mask"}  # padded axes of a batch
AT_ONCE = 32  # scenes read at once where no batch says how many


class SceneDataset(Dataset[SceneBatch]):
    """The first `limit` scenes of a store: `data[[3, 1, 4]]` is the batch of those three; `cache` keeps samples in memory."""

    def __init__(self, store: SceneStore, config: BatchConfig, limit: int | None = None, *, cache: bool = False) -> None:
        self.store, self.config, self.cache, self.name = store, config, cache, str(store.root)
        self.size = len(store) if limit is None else min(limit, len(store))
        self._forget()

    def _forget(self) -> None:
        self.kept: dict[int, Sample] = {}
        self.known = np.full((self.size, len(AXES)), -1, np.int32)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("kept", "known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        """Number of scenes."""
        return self.size

    def sample(self, index: int) -> Sample:
        """The sample of one scene."""
        return self._samples([index])[0]

    def _samples(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of some scenes; those that are not kept are made, and kept if wanted."""
        missing = [index for index in dict.fromkeys(indices) if index not in self.kept]
        made = dict(zip(missing, self._read(missing), strict=True))
        if self.cache:
            self.kept |= made
        return [made.get(index) or self.kept[index] for index in indices]

    def _read(self, indices: Sequence[int]) -> list[Sample]:
        return samples([self.store[index] for index in indices], self.config)

    def __getitem__(self, indices: Sequence[int]) -> SceneBatch:
        return stack(self._samples(indices), self.config.frame)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int32 [n, AXES] of some scenes' samples: made when first asked for, remembered from then on."""
        unknown = indices[self.known[indices, 0] < 0].tolist()
        for first in range(0, len(unknown), AT_ONCE):
            some = unknown[first : first + AT_ONCE]
            for index, made in zip(some, self._samples(some), strict=True):
                self.known[index] = [len(made.padded[name]) for name in AXES.values()]
        return self.known[indices]


class BranchDataset(SceneDataset):
    """The same, but scenes of one past are one, with all their futures (`sample.branched`).

    They follow each other in the store, and their ids differ after the last dot only.
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


class Turns:
    """What this process takes of each step of an epoch, from step `first` on; a sampler for `DataLoader`.

    Every process has `len(turns)` batches, and each scene is in one batch of one process.
    """

    def __init__(self, order: InOrder | Shuffle, rank: int = 0, world: int = 1) -> None:
        self.order, self.rank, self.world = order, rank, world
        self.number = self.first = 0

    def begin(self, epoch: int, first: int = 0) -> None:
        """Go on at a step of an epoch."""
        self.number, self.first = epoch, first

    def set_epoch(self, epoch: int) -> None:
        """Go on with another epoch (Lightning says so at the start of each); the present one is left where it is."""
        if epoch != self.number:
            self.begin(epoch)

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.order.steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.order.epoch(self.number, self.first):
            yield step[self.rank :: self.world].tolist()


def make_loader(data: Any, turns: Turns, workers: int = 0) -> DataLoader[Any]:
    """Batches in the order of `turns`, read by so many worker processes; the order does not depend on how many."""
    return DataLoader(
        data,
        batch_size=None,  # an item is a batch already
        sampler=turns,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_start_worker if workers else None,
    )


def _start_worker(number: int) -> None:
    """Ctrl-C is for the training process: it still wants the batches of the step it is in."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
