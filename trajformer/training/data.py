"""The data module: which scenes are trained and validated on, in which order, and where a resumed run goes on."""

from __future__ import annotations

from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from trajformer.batch import SceneBatch
from trajformer.errors import TrajformerError
from trajformer.loading import AXES, SceneDataset, Turns, make_loader
from trajformer.order import InOrder, Shuffle, count_steps, padding
from trajformer.store import SceneStore
from trajformer.training.config import DataConfig, to_plain


class SceneData(L.LightningDataModule):
    """Training and validation loaders of a recipe; opening the stores fails early and clearly.

    The loaders work without a trainer, too: `for batch in SceneData(config).train_dataloader()` is the first epoch.
    Under a trainer every scene is in one batch of one process an epoch, in training and validation alike.
    """

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

    def count_steps(self) -> int:
        """Steps of a training epoch, the same for every process.

        Raises:
            TrajformerError: there are fewer scenes to train or to validate on than processes.
        """
        return [self._steps(name) for name in ("val", "train")][-1]

    def _steps(self, name: str) -> int:
        data: SceneDataset = getattr(self, name)
        try:
            return count_steps(len(data), self.config.batch_size, self.trainer.world_size if self.trainer else 1)
        except TrajformerError as error:
            raise TrajformerError(f"data.{name}: {data.store.root}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """What the order of an epoch depends on; in checkpoints it tells whether a run can go on amid an epoch."""
        order = {"scenes": len(self.train), "steps": self.count_steps(), "seed": self.seed, "bucket": self.config.bucket}
        return order | {"batch": to_plain(self.config.batch)}

    def _order(self) -> Shuffle:
        # The process that hands out batches must know sizes; where workers read, it is not the one to keep samples.
        data = SceneDataset(self.train.store, self.config.batch, len(self.train)) if self.config.workers else self.train
        return Shuffle(len(data), self._steps("train"), self.seed, self.config.bucket, data.sizes)

    def _loader(self, data: SceneDataset, order: InOrder | Shuffle, epoch: int = 0, done: int = 0) -> DataLoader[SceneBatch]:
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        turns = Turns(order, rank, world)
        turns.begin(epoch, done)
        return make_loader(data, turns, self.config.workers)

    def train_dataloader(self) -> DataLoader[SceneBatch]:
        """Shuffled anew every epoch, scenes of similar size together; every scene once."""
        if not self.trainer:
            return self._loader(self.train, self._order())
        loop: Any = self.trainer.fit_loop  # a resumed run goes on where it was, amid an epoch if `restarting`
        done = loop.epoch_loop.batch_progress.current.completed if loop.restarting else 0
        return self._loader(self.train, self._order(), loop.epoch_progress.current.processed, done)

    def val_dataloader(self) -> DataLoader[SceneBatch]:
        """In the store's order, every scene once."""
        return self._loader(self.val, InOrder(len(self.val), self._steps("val")))

    def padding(self, epoch: int = 0) -> dict[str, float]:
        """Shares of padding in the training batches of a single process: of each axis, and of agents and polylines together.

        On each axis a batch of B scenes has B times as many entries as the longest of its scenes.
        """
        order = self._order()
        filled, entries = padding(order.epoch(epoch), order.sizes)
        shares = dict(zip(AXES, (1 - filled / entries.clip(1)).tolist(), strict=True))
        return shares | {"agents and polylines": float(1 - filled[:2].sum() / entries[:2].sum())}
