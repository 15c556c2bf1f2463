"""The base of all tasks: a module that optimises, logs and resumes, and a data module that orders batches.

A task consists of a recipe (frozen dataclass), a `TaskModule` with a training and a validation step, a `TaskData` with training
and validation items, and a `Task` that joins them. `cli/tasks.py` lists all tasks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.utils.data import DataLoader

from trajformer.data.loading import (
    EpochShuffle,
    RankSampler,
    SequentialOrder,
    count_steps,
    make_loader,
)
from trajformer.errors import TrajformerError
from trajformer.recipes.checkpoint import CONFIG_KEY, USED, describe
from trajformer.recipes.recipe import Recipe
from trajformer.scenes.spec import DataSpec
from trajformer.training.optim import build_optimizer, parameter_groups

_TICKS = 1_000_000  # resolution of a schedule by time


class Items(Protocol):
    """Training items: `items[[3, 1, 4]]` is a batch of these three."""

    name: str  # file or folder, for error messages

    def __len__(self) -> int: ...
    def __getitem__(self, indices: Sequence[int]) -> Any: ...

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int [n, axes] that determine the padding of a batch."""


class TaskModule(L.LightningModule):
    """Optimiser, schedule, checkpoints and random seeds; subclasses add `training_step` and the validation."""

    def __init__(self, config: Recipe) -> None:
        super().__init__()
        self.config = config
        self.model = config.build_model()
        self.used_s = self._counted = (
            0.0  # processor seconds of training, also in earlier processes of a resumed run
        )
        if config.trainer.compile:
            self.model.compile()

    def attach(self, data: Any) -> None:
        """Take what the model needs from the task's data at every start, also when a run resumes."""

    def prepare(self, data: Any) -> None:
        """Compute statistics of the task's data for the model, before training starts."""

    def forward(self, *batch: Any) -> Any:
        """The output of the model."""
        return self.model(*batch)

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move a batch as a whole."""
        return batch.to(device, non_blocking=True)

    def on_train_start(self) -> None:
        """Start to count; Lightning does not call `on_train_epoch_start` when a run resumes within an epoch."""
        self._counted = time.process_time()
        self.count_time()  # stops a run without time left
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """Always validate after the last epoch."""
        if self.current_epoch + 1 == self.trainer.max_epochs:
            self.trainer.check_val_every_n_epoch = 1

    def seed_step(self) -> torch.Generator:
        """Seed all random numbers of this step by recipe seed, step and process, so that a resumed run is identical."""
        seed = (self.config.seed * 1_000_003 + self.global_step) * 4096 + self.global_rank
        torch.manual_seed(seed)  # for dropout and samples of the model
        return torch.Generator().manual_seed(
            int(torch.randint(1 << 31, ()))
        )  # other numbers, for augmentation

    def log_terms(self, terms: dict[str, Tensor], count: int) -> Tensor:
        """Log the terms of a loss over `count` items; returns the term "loss"."""
        self.log_dict(
            {f"train/{name}": value.detach() for name, value in terms.items()}, batch_size=count
        )
        self.log("loss", terms["loss"].detach(), prog_bar=True, logger=False, batch_size=count)
        return terms["loss"]

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser; the `lr` of a group is relative to the recipe's learning rate."""
        return parameter_groups(self.model, self.config.optim)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser with a schedule that is stepped after every batch."""
        # Lightning's own estimate would create the loader before the position of a resumed run is known.
        data: TaskData = self.trainer.datamodule  # type: ignore[attr-defined]
        steps = data.count_steps() * self.config.trainer.epochs

        def progress(step: int) -> tuple[int, int]:
            return (step, steps) if self.share is None else (int(self.share * _TICKS), _TICKS)

        fused = self.config.trainer.precision == "32-true"
        optimizer, schedule = build_optimizer(
            self.groups(), self.config.optim, progress, fused=fused
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the resolved recipe and the training scenes in the checkpoint, and the processor time of the run."""
        data: TaskData = self.trainer.datamodule  # type: ignore[attr-defined]
        checkpoint[CONFIG_KEY] = describe(self.config, data.spec)
        checkpoint[USED] = self.used_s

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue to count the processor time."""
        self.used_s = float(checkpoint.get(USED, 0.0))

    @property
    def share(self) -> float | None:
        """The share of `trainer.minutes` that is used, or None if the recipe counts epochs."""
        minutes = self.config.trainer.minutes
        return None if minutes is None else min(self.used_s / (60 * minutes), 1.0)

    def count_time(self) -> None:
        """Add the processor time since the last call; stop, after a validation, when the minutes of the recipe are used."""
        now = time.process_time()
        self.used_s, self._counted = self.used_s + now - self._counted, now
        if self.share is not None:
            if self.trainer.world_size > 1:  # all processes need one schedule
                self.used_s = self.trainer.strategy.broadcast(self.used_s)
            if self.share >= 1.0:
                self.trainer.should_stop, self.trainer.check_val_every_n_epoch = True, 1

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the time of this step and of loading its batch."""
        self.count_time()

    def on_validation_start(self) -> None:
        """Stop counting."""
        self.count_time()

    def on_validation_end(self) -> None:
        """Continue to count."""
        self._counted = time.process_time()


class TaskData(L.LightningDataModule):
    """Training and validation loaders; without a trainer, `train_dataloader()` is the first epoch.

    With a trainer, every item is in one batch of one process per epoch, in training and in validation. `config` is the part of a
    recipe with `batch_size` (largest number of items per step and device), `workers` (loader processes) and `bucket` (number of
    steps among which items of similar size are grouped); `seed` is that of the order.
    """

    spec = DataSpec()  # of training scenes

    def __init__(self, train: Items, val: Items, config: Any, seed: int = 0) -> None:
        super().__init__()
        self.train, self.val, self.loading, self.seed = train, val, config, seed

    def count_steps(self) -> int:
        """Steps of a training epoch, the same for every process (TrajformerError: there are fewer items than processes)."""
        self._steps("val")
        return self._steps("train")

    def _steps(self, name: str) -> int:
        items: Items = getattr(self, name)
        try:
            return count_steps(
                len(items), self.loading.batch_size, self.trainer.world_size if self.trainer else 1
            )
        except TrajformerError as error:
            raise TrajformerError(f"data.{name}: {items.name}: {error}") from error

    def state_dict(self) -> dict[str, Any]:
        """The values that determine the order of an epoch: a run resumes within an epoch only if they are unchanged."""
        return {
            "scenes": len(self.train),
            "steps": self.count_steps(),
            "seed": self.seed,
            "bucket": self.loading.bucket,
        }

    def measured(self) -> Items:
        """The training items for measuring sizes."""
        return self.train

    def order(self) -> EpochShuffle:
        """The order of training."""
        items = self.measured()
        return EpochShuffle(
            len(items), self._steps("train"), self.seed, self.loading.bucket, items.sizes
        )

    def _loader(
        self, items: Items, order: SequentialOrder | EpochShuffle, epoch: int = 0, step: int = 0
    ) -> DataLoader[Any]:
        rank, world = (
            (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        )
        sampler = RankSampler(order, rank, world)
        sampler.start_at(epoch, step)
        pinned = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        return make_loader(items, sampler, self.loading.workers, pinned=pinned)

    def train_dataloader(self) -> DataLoader[Any]:
        """A new random order in every epoch, with items of similar size together; every item once."""
        if not self.trainer:
            return self._loader(self.train, self.order())
        loop: Any = self.trainer.fit_loop
        # `restarting`: the run resumes within an epoch.
        step = loop.epoch_loop.batch_progress.current.completed if loop.restarting else 0
        return self._loader(self.train, self.order(), loop.epoch_progress.current.processed, step)

    def val_dataloader(self) -> DataLoader[Any]:
        """The stored order, every item once."""
        return self._loader(self.val, SequentialOrder(len(self.val), self._steps("val")))


@dataclass(frozen=True)
class Task:
    """How one kind of recipe is trained."""

    recipe: type[Any]  # the recipe's dataclass; `recipe.task` is the name of the task
    module: Callable[[Any], TaskModule]  # builds the Lightning module from a recipe
    data: Callable[[Any], TaskData]  # builds the data module from a recipe
    monitor: str  # the validation metric that selects the best checkpoint
    mode: str  # "min" or "max": which value of the metric is best
    shown: tuple[str, ...]  # metrics on the line that is printed after a validation
