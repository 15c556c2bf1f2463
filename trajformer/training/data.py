"""The data module: stores to batches, deterministic under a seed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trajformer.batch import SceneBatch, stack
from trajformer.errors import TrajformerError
from trajformer.sample import BatchConfig, Sample, sample
from trajformer.store import SceneStore
from trajformer.training.config import DataConfig


class SceneDataset(Dataset[Sample]):
    """A store as a torch data set of samples, of its first `limit` scenes; `cache` keeps them in memory."""

    def __init__(self, store: SceneStore, batch: BatchConfig, limit: int | None = None, *, cache: bool = False) -> None:
        self.store, self.batch = store, batch
        self.size = len(store) if limit is None else min(limit, len(store))
        self.kept: dict[int, Sample] | None = {} if cache else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        if self.kept is None:
            return sample(self.store[index], self.batch)
        if index not in self.kept:
            self.kept[index] = sample(self.store[index], self.batch)
        return self.kept[index]


class SceneData(L.LightningDataModule):
    """Training and validation loaders of a recipe; opening the stores fails early and clearly."""

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        for name in ("train", "val"):
            if not getattr(config, name):
                raise TrajformerError(f"data.{name}: give a store made by `trajformer preprocess`")
        train, val = SceneStore(config.train, config.train_split), SceneStore(config.val, config.val_split)
        self.train = SceneDataset(train, config.batch, config.limit_train, cache=config.cache)
        self.val = SceneDataset(val, config.batch, cache=config.cache)
        for name, data in (("train", self.train), ("val", self.val)):
            if not len(data) or data.store[0].num_steps == data.store[0].num_history:
                known = "scenes" if not len(data) else "known future"
                raise TrajformerError(f"data.{name}: {data.store.root}: split '{data.store.split}' has no {known} to learn from")

    def _loader(self, data: SceneDataset, shuffle: bool) -> DataLoader[SceneBatch]:
        many = self.config.workers > 0
        world, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        # The order of an epoch depends on seed and epoch only, so that it resumes; no scene is validated twice.
        sampler: Iterable[Any] = range(rank, len(data), world)
        if shuffle:
            sampler = order = DistributedSampler[Sample](data, world, rank, shuffle=True, seed=self.seed)
            if self.trainer:  # where a resumed run goes on
                progress: Any = self.trainer.fit_loop.epoch_progress.current
                order.set_epoch(progress.processed)
        return DataLoader(
            data,  # type: ignore[arg-type]  # the collate function decides what a batch is
            batch_size=self.config.batch_size,
            sampler=sampler,
            drop_last=shuffle and len(data) // world > self.config.batch_size,
            num_workers=self.config.workers,
            persistent_workers=many,
            multiprocessing_context="spawn" if many else None,
            collate_fn=partial(stack, frame=self.config.batch.frame),
        )

    def train_dataloader(self) -> DataLoader[SceneBatch]:
        """Shuffled; the last incomplete batch of an epoch is left out."""
        return self._loader(self.train, shuffle=True)

    def val_dataloader(self) -> DataLoader[SceneBatch]:
        """In the store's order, every scene once."""
        return self._loader(self.val, shuffle=False)
