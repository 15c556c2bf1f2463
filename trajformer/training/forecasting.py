"""The task of training forecasters: scenes, the loss of the recipe, and validation metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn

from trajformer.data.augment import augment
from trajformer.data.batch import SceneBatch
from trajformer.data.loading import AXES, BranchDataset, SceneDataset, padding
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import forecast_metrics
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.recipes.resume import list_changes
from trajformer.scenes.spec import CLOCK, DataSpec, check_scenes, warn, warn_about_maps
from trajformer.scenes.store import SceneStore
from trajformer.training.base import Items, Task, TaskData, TaskModule
from trajformer.training.optim import parameter_groups

_LOSS_RATE = 10.0  # learning rate of a loss's own parameters, relative to the model's rate: few numbers, far from their start


class ForecastingModule(TaskModule):
    """Trains a model with the loss of its recipe, which has to fit; validates with the metrics of `trajformer evaluate`."""

    config: TrainConfig
    model: Forecaster

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.config = replace(
            config, loss=config.loss_config(self.model)
        )  # checkpoints name their loss
        self.metrics = forecast_metrics()
        self.objective = self.config.loss.build()

    def prepare(self, data: SceneData) -> None:
        """Load the weights of `init`, or let the model compute statistics of the training scenes and copy the first stage.

        Raises TrajformerError: the scenes or a checkpoint cannot be used.
        """
        name, model = next(iter(to_plain(self.config)["model"].items()))
        horizon = model.get("num_future", data.spec.num_future)
        if horizon != data.spec.num_future:
            found = f"{data.train.name} has {data.spec.num_future} steps to predict"
            raise TrajformerError(f"model.{name}.num_future: {horizon}, but {found}")
        seen = data.spec.num_history
        if seen is not None and seen > model.get("max_history", seen):
            found = f"{data.train.name} has {seen} observed steps"
            raise TrajformerError(f"model.{name}.max_history: {model['max_history']}, but {found}")
        if self.config.init:
            self.model.load_state_dict(self._start(data))
            return
        path = self.config.first_stage
        try:
            first_stage = _load(path, data)[0] if path else None
            self.model.prepare(data.train, self.config.seed, first_stage)
        except TrajformerError as error:
            text = str(error).removeprefix(f"{path}: ")
            raise TrajformerError(f"first_stage: {path}: {text}" if path else text) from error

    def _start(self, data: SceneData) -> dict[str, Tensor]:
        """The state dict of the checkpoint `init`; an error if its weights have other shapes."""
        model, recipe = _load(self.config.init, data)
        changes = list_changes(to_plain(recipe)["model"], to_plain(self.config)["model"], "model")
        shapes = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        state: dict[str, Tensor] = model.state_dict()
        if shapes != {name: tensor.shape for name, tensor in state.items()}:
            raise TrajformerError(
                f"init: {self.config.init}: has {'; '.join(changes) or 'other weights'}"
            )
        if changes and getattr(rank_zero_only, "rank", 0) == 0:
            warn(f"init: {self.config.init}: was trained with {'; '.join(changes)}")
        return state

    def training_step(self, batch: SceneBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        batch = augment(batch, self.config.augment, self.seed_step())
        return self.log_terms(self.objective(self.model, batch), batch.num_scenes)

    def groups(self) -> list[dict[str, Any]]:
        """The parameters of the model, and of the loss if it has any."""
        learned = list(self.objective.parameters())
        extra = [{"params": learned, "weight_decay": 0.0, "lr": _LOSS_RATE}] if learned else []
        return parameter_groups(self.model, self.config.optim) + extra

    def validation_step(self, batch: SceneBatch, batch_idx: int) -> None:
        """Accumulate the metrics of one batch."""
        self.metrics.update(self(batch.observation), batch)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes and reset them."""
        values = self.metrics.compute()
        self.metrics.reset()
        for name, value in values.items():
            if not name.startswith("num_"):
                self.log(f"val/{name}", float(value), prog_bar=name in ("minFDE1", "minFDE6"))


def _load(path: str, data: SceneData) -> tuple[nn.Module, TrainConfig]:
    """The model and recipe of a checkpoint with training scenes like `data`."""
    model, recipe = load_checkpoint(path, TrainConfig)
    check_scenes(
        data.spec,
        Predictor(model).trained_on,
        data.train.name,
        f"the training scenes of {path} have",
    )
    return model, recipe


class SceneData(TaskData):
    """The training and validation scenes; unusable stores raise errors before training starts.

    Warns if validation scenes are also training scenes, or if only one of both has maps.
    """

    train: SceneDataset
    val: SceneDataset

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        for name in ("train", "val"):
            if not getattr(config, name):
                raise TrajformerError(f"data.{name}: give a store made by `trajformer preprocess`")
        train, val = (
            SceneStore(config.train, config.train_split),
            SceneStore(config.val, config.val_split),
        )
        kind = BranchDataset if config.branches else SceneDataset
        scenes = kind(train, config.train_batch, config.limit_train, cache=config.cache)
        super().__init__(scenes, SceneDataset(val, config.batch, cache=config.cache), config, seed)
        self.config = config
        for name, data in (("train", self.train), ("val", self.val)):
            if not len(data) or data.store[0].num_steps == data.store[0].num_history:
                missing = "scenes" if not len(data) else "known future"
                raise TrajformerError(
                    f"data.{name}: {data.store.root}: split '{data.store.split}' has no {missing}"
                )
        self.spec = self._compare()

    def _compare(self) -> DataSpec:
        """Compare the training and validation scenes with each other; returns the properties of the training scenes."""
        tables, specs = {}, {}
        for name, data in (("train", self.train), ("val", self.val)):
            table = tables[name] = data.store.index().iloc[: data.num_scenes]
            clocks = table[list(CLOCK)].drop_duplicates()
            if len(clocks) > 1:
                different = " and ".join(str(row) for row in clocks.iloc[:2].to_dict("records"))
                raise TrajformerError(
                    f"data.{name}: {data.name}: split '{data.store.split}' has scenes of {different}"
                )
            specs[name] = replace(DataSpec.of(data.store[0]), has_map=self._has_map(data, table))
        if (unit := specs["train"].unit) != self.config.unit:
            reason = f"is in {unit}; use a recipe for {unit}, or set data.unit if all lengths of this recipe are in {unit}"
            raise TrajformerError(f"data.unit: {self.config.unit}, but {self.train.name} {reason}")
        check_scenes(specs["val"], specs["train"], self.val.name)
        if getattr(rank_zero_only, "rank", 0) == 0:
            where = f"data.val: {self.val.name}: split '{self.val.store.split}'"
            with_map = int((tables["val"].num_polylines > 0).sum()) if specs["val"].has_map else 0
            warn_about_maps(with_map, len(self.val), specs["train"], where)
            # Ids recur between splits, of Argoverse 1 for example: a scene is known by its id and its origin.
            shared = len(
                pd.merge(tables["train"], tables["val"], on=["scene_id", "origin_x", "origin_y"])
            )
            if shared:
                warn(
                    f"{where}: {shared} of {len(self.val)} validation scenes are also training scenes"
                )
        return specs["train"]

    def _has_map(self, data: SceneDataset, table: pd.DataFrame) -> bool:
        """Whether models receive a part of the maps; judged by the first scene with polylines."""
        mapped = table.num_polylines.to_numpy().nonzero()[0]
        if not len(mapped) or data.config.receives(data.store[int(mapped[0])].polyline_kind).any():
            return len(mapped) > 0
        name = f"{data.name}: split '{data.store.split}'"
        warn(
            f"{name}: the maps have road edges and road lines only, which models receive with data.batch.road_lines: true"
        )
        return False

    def state_dict(self) -> dict[str, Any]:
        """As in `TaskData`, with the batch settings: the sizes of samples, and so the order, depend on them."""
        return super().state_dict() | {"batch": to_plain(self.config.train_batch)}

    def measured(self) -> Items:
        """The training scenes; with workers a copy without a cache, because the workers keep the samples."""
        if not self.config.workers:
            return self.train
        return type(self.train)(self.train.store, self.config.train_batch, len(self.train))

    def padding(self, epoch: int = 0) -> dict[str, float]:
        """Shares of padding in the training batches of one process: for each axis, and for agents and polylines together."""
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
    shown=("val/minADE6", "val/minFDE6", "val/MR6", "val/minFDE1", "val/minFDE"),
)
