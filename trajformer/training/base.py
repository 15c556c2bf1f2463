"""The base of all tasks: a module that optimises and logs, and a data module that orders batches.

A task consists of a recipe (frozen dataclass), a `TaskModule` with a training and a validation
step, a `TaskData` with training and validation items, and a `Task` that joins them.
`cli/tasks.py` lists all tasks.
"""

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
from trajformer.recipes.checkpoint import describe
from trajformer.recipes.checkpoint_files import CONFIG_KEY
from trajformer.recipes.recipe import Recipe
from trajformer.scenes.spec import DataSpec
from trajformer.training.optim import Length, build_optimizer, parameter_groups


class Items(Protocol):
    """Training items: `items[[3, 1, 4]]` is a batch of these three."""

    name: str  # file or folder, for error messages

    def __len__(self) -> int: ...
    def __getitem__(self, indices: Sequence[int]) -> Any: ...

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Lengths int [n, axes] that determine the padding of a batch."""


class TaskModule(L.LightningModule):
    """Optimiser, schedule, checkpoints and random seeds.

    Subclasses add `training_step` and the validation.
    """

    def __init__(self, config: Recipe) -> None:
        super().__init__()
        self.config = config
        self.model = config.build_model()
        config.check(self.model)
        if config.trainer.compile:
            self.model.compile()

    def attach(self, data: Any) -> None:
        """Take what the model needs from the data at every start, also when a run resumes."""

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

    @property
    def data(self) -> "TaskData":
        """The data module of the trainer."""
        data: TaskData = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    @property
    def length(self) -> Length:
        """The length of the training in steps."""
        trainer, optim = self.config.trainer, self.config.optim
        if trainer.steps is not None:
            return Length(trainer.steps, optim.restarts, optim.restart_steps or 0)
        # Lightning's estimate would create the loader before a resumed run knows its position.
        return Length(self.data.count_steps() * (trainer.num_epochs or 0))

    def on_train_start(self) -> None:
        """Do not train a finished run further, and prepare the first epoch.

        Lightning does not call `on_train_epoch_start` when a run resumes within an epoch.
        """
        self._stop_after_last_step()
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """Always validate after the last epoch."""
        if self.current_epoch + 1 == self.trainer.max_epochs:
            self.trainer.check_val_every_n_epoch = 1

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop after the last step."""
        self._stop_after_last_step()

    def _stop_after_last_step(self) -> None:
        """End a training with a length in steps, which may be within an epoch, by a validation."""
        num_steps = self.config.num_steps
        if num_steps is not None and self.global_step >= num_steps:
            self.trainer.should_stop = True
            self.trainer.check_val_every_n_epoch = 1

    def seed_step(self) -> torch.Generator:
        """Seed all random numbers of this step by recipe seed, step and process.

        So a resumed run is identical. Returns a generator of other numbers, for augmentation.
        """
        seed = (self.config.seed * 1_000_003 + self.global_step) * 4096 + self.global_rank
        torch.manual_seed(seed)  # for dropout and samples of the model
        augmentation_seed = int(torch.randint(1 << 31, ()))
        return torch.Generator().manual_seed(augmentation_seed)

    def log_terms(self, terms: dict[str, Tensor], count: int) -> Tensor:
        """Log the terms of a loss over `count` items; returns the term "loss"."""
        logged = {f"train/{name}": value.detach() for name, value in terms.items()}
        self.log_dict(logged, batch_size=count)
        self.log("loss", terms["loss"].detach(), prog_bar=True, logger=False, batch_size=count)
        return terms["loss"]

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser.

        The `lr` of a group is relative to the recipe's learning rate.
        """
        return parameter_groups(self.model, self.config.optim)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser with a schedule that is stepped after every batch."""
        fused = self.config.trainer.precision == "32-true"
        optimizer, schedule = build_optimizer(
            self.groups(), self.config.optim, self.length, fused=fused
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the resolved recipe and the training scenes in the checkpoint."""
        checkpoint[CONFIG_KEY] = describe(self.config, self.data.spec)


class TaskData(L.LightningDataModule):
    """Training and validation loaders.

    With a trainer, every item is in one batch of one process per epoch, in training and in
    validation; without one, `train_dataloader()` is the first epoch. `config` is the part of a
    recipe with `batch_size` (largest number of items per step and device), `workers` (loader
    processes) and `bucket` (number of steps among which items of similar size are grouped); `seed`
    is that of the order.
    """

    spec = DataSpec()  # of training scenes

    def __init__(self, train: Items, val: Items, config: Any, seed: int = 0) -> None:
        super().__init__()
        self.train = train
        self.val = val
        self.loading = config
        self.seed = seed

    def count_steps(self) -> int:
        """Steps of a training epoch, the same for every process.

        Raises TrajformerError: there are fewer items than processes.
        """
        self._steps("val")
        return self._steps("train")

    def _steps(self, name: str) -> int:
        items: Items = getattr(self, name)
        return self._steps_of(name, self.count_items(name), items.name)

    def _steps_of(self, name: str, count: int, items_name: str) -> int:
        """Steps of `count` items (TrajformerError: there are fewer items than processes)."""
        processes = self.trainer.world_size if self.trainer else 1
        try:
            return count_steps(count, self.loading.batch_size, processes)
        except TrajformerError as error:
            raise TrajformerError(f"data.{name}: {items_name}: {error}") from error

    def count_items(self, part: str) -> int:
        """Number of items of an epoch ("train") or of a validation ("val")."""
        items: Items = getattr(self, part)
        return len(items)

    def summary(self) -> str:
        """The items and their numbers, in a few words."""
        return f"{len(self.train):,} items of {self.train.name}, {len(self.val):,} to validate"

    def state_dict(self) -> dict[str, Any]:
        """The values that determine the order of an epoch.

        A run resumes within an epoch only if they are unchanged.
        """
        return {
            "scenes": self.count_items("train"),
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
        steps = self._steps("train")
        scenes = self.count_items("train")
        return EpochShuffle(scenes, steps, self.seed, self.loading.bucket, items.sizes)

    def _loader(
        self, items: Items, order: SequentialOrder | EpochShuffle, epoch: int = 0, step: int = 0
    ) -> DataLoader[Any]:
        rank, processes, pinned = 0, 1, False
        if self.trainer:
            rank, processes = self.trainer.global_rank, self.trainer.world_size
            pinned = self.trainer.strategy.root_device.type == "cuda"
        sampler = RankSampler(order, rank, processes)
        sampler.start_at(epoch, step)
        return make_loader(items, sampler, self.loading.workers, pinned=pinned)

    def train_dataloader(self) -> DataLoader[Any]:
        """A new random order in every epoch, with items of similar size together."""
        if not self.trainer:
            return self._loader(self.train, self.order())
        loop: Any = self.trainer.fit_loop
        first_step = 0
        if loop.restarting:  # the run resumes within an epoch
            first_step = loop.epoch_loop.batch_progress.current.completed
        epoch = loop.epoch_progress.current.processed
        return self._loader(self.train, self.order(), epoch, first_step)

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
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
