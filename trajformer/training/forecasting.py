"""Training forecasters: scenes in, a model's loss, displacement metrics; no maths here."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trajformer.data.augment import augment
from trajformer.data.batch import SceneBatch
from trajformer.data.loading import AXES, BranchDataset, SceneDataset
from trajformer.data.order import padding
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.accumulate import DisplacementMetrics
from trajformer.models import AgentFormerSampler, MMTransformer
from trajformer.models.mmtransformer.fit_regions import find_regions
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.objective import Objective
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.scenes.store import SceneStore
from trajformer.training.base import Items, Task, TaskData, TaskModule
from trajformer.training.optim import parameter_groups

_ALL = 1_000_000  # modes: more than any model has
_PACE = 10.0  # of what a loss learns, in shares of the learning rate: few numbers with a long way to go


class ForecastingModule(TaskModule):
    """Trains a model with the loss of its recipe; validates with the displacement metrics.

    Raises:
        TrajformerError: the recipe's loss, its first stage or the data for its regions cannot be used.
    """

    config: TrainConfig

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.metrics = DisplacementMetrics((1, 6, _ALL))
        self.objective = Objective(config.objective())
        if isinstance(self.model, MMTransformer):
            _set_regions(self.model, config)
        if isinstance(self.model, AgentFormerSampler):
            try:
                self.model.adopt(load_checkpoint(config.first_stage, TrainConfig)[0])
            except TrajformerError as error:
                raise TrajformerError(f"first_stage: {config.first_stage}: {error}") from error

    def training_step(self, batch: SceneBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        batch = augment(batch, self.config.augment, self.seed_step())
        return self.log_terms(self.loss(batch), batch.num_scenes)

    def loss(self, batch: SceneBatch) -> dict[str, Tensor]:
        """The loss and its terms by name."""
        return self.objective(self.model, batch)

    def groups(self) -> list[dict[str, Any]]:
        """The model's parameters, and those of the loss where it has some."""
        own = list(self.objective.parameters())
        learned = [{"params": own, "weight_decay": 0.0, "lr": _PACE}] if own else []
        return parameter_groups(self.model, self.config.optim.weight_decay) + learned

    def validation_step(self, batch: SceneBatch, batch_idx: int) -> None:
        """Accumulate the metrics of one batch."""
        self.metrics.update(self(batch), batch.target, batch.target_valid)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes, and begin anew."""
        values = self.metrics.compute()
        self.metrics.reset()
        for name in ("minADE_6", "minFDE_6", "MR_6", "minFDE_1"):
            self.log(f"val/{name}", values[name], prog_bar=name.startswith("minFDE"))
        self.log("val/minFDE", values[f"minFDE_{_ALL}"])


def _set_regions(model: MMTransformer, config: TrainConfig) -> None:
    """Find the regions that are to be found in the data."""
    wanted = model.config.regions
    if model.regions is not None and wanted is not None and wanted.fan is None:
        model.regions.copy_(find_regions(config.data, wanted.count, config.seed))


class SceneData(TaskData):
    """Scenes of one or two stores; opening them fails early and clearly."""

    train: SceneDataset
    val: SceneDataset

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        for name in ("train", "val"):
            if not getattr(config, name):
                raise TrajformerError(f"data.{name}: give a store made by `trajformer preprocess`")
        train, val = SceneStore(config.train, config.train_split), SceneStore(config.val, config.val_split)
        kind = BranchDataset if config.branches else SceneDataset
        scenes = kind(train, config.train_batch, config.limit_train, cache=config.cache)
        super().__init__(scenes, SceneDataset(val, config.batch, cache=config.cache), config, seed)
        self.config = config
        for name, data in (("train", self.train), ("val", self.val)):
            if not len(data) or data.store[0].num_steps == data.store[0].num_history:
                known = "scenes" if not len(data) else "known future"
                raise TrajformerError(f"data.{name}: {data.store.root}: split '{data.store.split}' has no {known} to learn from")

    def state_dict(self) -> dict[str, Any]:
        """As in `TaskData`; sizes of samples, and so the order, depend on how they are cut."""
        return super().state_dict() | {"batch": to_plain(self.config.train_batch)}

    def measured(self) -> Items:
        """The process that hands out batches must know sizes; where workers read, it is not the one to keep samples."""
        again = type(self.train)
        return again(self.train.store, self.config.train_batch, len(self.train)) if self.config.workers else self.train

    def padding(self, epoch: int = 0) -> dict[str, float]:
        """Shares of padding in the training batches of a single process: of each axis, and of agents and polylines together.

        On each axis a batch of B scenes has B times as many entries as the longest of its scenes.
        """
        order = self.order()
        filled, entries = padding(order.epoch(epoch), order.sizes)
        shares = dict(zip(AXES, (1 - filled / entries.clip(1)).tolist(), strict=True))
        return shares | {"agents and polylines": float(1 - filled[:2].sum() / entries[:2].sum())}


TASK = Task(
    recipe=TrainConfig,
    module=ForecastingModule,
    data=lambda recipe: SceneData(recipe.data, recipe.seed),
    monitor="val/minFDE",  # over all modes of the model, not only the best six
    mode="min",
    shown=("val/minADE_6", "val/minFDE_6", "val/MR_6", "val/minFDE_1", "val/minFDE"),
)
