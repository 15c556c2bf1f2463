"""The task of training forecasters: scenes, the loss of the recipe, and validation metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import torch
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

# Learning rate of the parameters of a loss, relative to that of the model. They are few numbers,
# which start far from their final values.
_LOSS_RATE = 10.0


class ForecastingModule(TaskModule):
    """Trains a model with the loss of its recipe.

    It validates with the metrics of `trajformer evaluate`.
    """

    config: TrainConfig
    model: Forecaster

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        loss = config.loss_config(self.model)
        self.config = replace(config, loss=loss)  # checkpoints name their loss
        self.objective = loss.build()
        self.metrics = forecast_metrics()

    def prepare(self, data: SceneData) -> None:
        """Load the weights of `init`, or compute statistics and copy the first stage.

        Raises TrajformerError: the scenes or a checkpoint cannot be used.
        """
        self._check_clock(data)
        if self.config.init:
            self.model.load_state_dict(self._initial_weights(data))
            return
        path = self.config.first_stage
        try:
            first_stage = _load(path, data)[0] if path else None
            self.model.prepare(data.train, self.config.seed, first_stage)
        except TrajformerError as error:
            if not path:
                raise
            reason = str(error).removeprefix(f"{path}: ")
            raise TrajformerError(f"first_stage: {path}: {reason}") from error

    def _check_clock(self, data: SceneData) -> None:
        """Raise TrajformerError if the scenes have other numbers of steps than the model."""
        name, model = next(iter(to_plain(self.config)["model"].items()))
        store, spec = data.train.name, data.spec
        num_future = model.get("num_future", spec.num_future)
        if num_future != spec.num_future:
            reason = f"{num_future}, but {store} has {spec.num_future} steps to predict"
            raise TrajformerError(f"model.{name}.num_future: {reason}")
        if spec.num_history is None:
            return
        max_history = model.get("max_history", spec.num_history)
        if spec.num_history > max_history:
            reason = f"{max_history}, but {store} has {spec.num_history} observed steps"
            raise TrajformerError(f"model.{name}.max_history: {reason}")

    def _initial_weights(self, data: SceneData) -> dict[str, Tensor]:
        """The state dict of the checkpoint `init`; an error if its weights have other shapes."""
        path = self.config.init
        model, recipe = _load(path, data)
        changes = list_changes(to_plain(recipe)["model"], to_plain(self.config)["model"], "model")
        state: dict[str, Tensor] = model.state_dict()
        if _shapes(state) != _shapes(self.model.state_dict()):
            raise TrajformerError(f"init: {path}: has {'; '.join(changes) or 'other weights'}")
        if changes and _is_first_process():
            warn(f"init: {path}: was trained with {'; '.join(changes)}")
        return state

    def training_step(self, batch: SceneBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        batch = augment(batch, self.config.augment, self.seed_step())
        terms = self.objective(self.model, batch)
        return self.log_terms(terms, batch.num_scenes)

    def groups(self) -> list[dict[str, Any]]:
        """The parameters of the model, and of the loss if it has any."""
        groups = parameter_groups(self.model, self.config.optim)
        of_loss = list(self.objective.parameters())
        if of_loss:
            groups.append({"params": of_loss, "weight_decay": 0.0, "lr": _LOSS_RATE})
        return groups

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


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def _is_first_process() -> bool:
    return getattr(rank_zero_only, "rank", 0) == 0


def _load(path: str, data: SceneData) -> tuple[nn.Module, TrainConfig]:
    """The model and recipe of a checkpoint with training scenes like `data`."""
    model, recipe = load_checkpoint(path, TrainConfig)
    trained_on = Predictor(model).trained_on
    check_scenes(data.spec, trained_on, data.train.name, f"the training scenes of {path} have")
    return model, recipe


class SceneData(TaskData):
    """The training and validation scenes; unusable stores raise errors before training starts.

    Warns if validation scenes are also training scenes, or if only one of both has maps.
    """

    train: SceneDataset
    val: SceneDataset

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        for part in ("train", "val"):
            if not getattr(config, part):
                raise TrajformerError(f"data.{part}: give a store made by `trajformer preprocess`")
        train_store = SceneStore(config.train, config.train_split)
        val_store = SceneStore(config.val, config.val_split)
        kind = BranchDataset if config.branches else SceneDataset
        train = kind(train_store, config.train_batch, config.limit_train, cache=config.cache)
        val = SceneDataset(val_store, config.batch, cache=config.cache)
        super().__init__(train, val, config, seed)
        self.config = config
        for part, scenes in (("train", train), ("val", val)):
            _check_usable(part, scenes)
        self.spec = self._compare()

    def _compare(self) -> DataSpec:
        """Compare the training and validation scenes with each other.

        Returns the properties of the training scenes.
        """
        train_table = _index(self.train)
        val_table = _index(self.val)
        spec = _describe_scenes("train", self.train, train_table)
        val_spec = _describe_scenes("val", self.val, val_table)
        if spec.unit != self.config.unit:
            problem = f"{self.config.unit}, but {self.train.name} is in {spec.unit}"
            advice = f"set data.unit if all lengths of this recipe are in {spec.unit}"
            raise TrajformerError(
                f"data.unit: {problem}; use a recipe for {spec.unit}, or {advice}"
            )
        check_scenes(val_spec, spec, self.val.name)
        if not _is_first_process():
            return spec

        where = f"data.val: {self.val.name}: split '{self.val.store.split}'"
        scenes_with_map = 0
        if val_spec.has_map:
            scenes_with_map = int((val_table.num_polylines > 0).sum())
        warn_about_maps(scenes_with_map, len(self.val), spec, where)
        # Ids recur between splits, of Argoverse 1 for example, so the origin is compared, too.
        identity = ["scene_id", "origin_x", "origin_y"]
        num_common = len(pd.merge(train_table, val_table, on=identity))
        if num_common:
            count = f"{num_common} of {len(self.val)}"
            warn(f"{where}: {count} validation scenes are also training scenes")
        return spec

    def state_dict(self) -> dict[str, Any]:
        """As in `TaskData`, with the batch settings.

        The sizes of samples, and so the order, depend on them.
        """
        return super().state_dict() | {"batch": to_plain(self.config.train_batch)}

    def measured(self) -> Items:
        """The training scenes.

        With workers, a copy without a cache, because the workers keep the samples.
        """
        if not self.config.workers:
            return self.train
        return type(self.train)(self.train.store, self.config.train_batch, len(self.train))

    def padding(self, epoch: int = 0) -> dict[str, float]:
        """Fractions of padding in the training batches of one process.

        They are for each axis, and for agents and polylines together.
        """
        order = self.order()
        filled, entries = padding(order.epoch(epoch), order.sizes)
        fractions = 1 - filled / entries.clip(1)
        by_axis = dict(zip(AXES, fractions.tolist(), strict=True))
        by_axis["agents and polylines"] = float(1 - filled[:2].sum() / entries[:2].sum())
        return by_axis


def _index(scenes: SceneDataset) -> pd.DataFrame:
    """The rows of a store's index that belong to a data set."""
    table: pd.DataFrame = scenes.store.index()
    return table.iloc[: scenes.num_scenes]


def _check_usable(part: str, scenes: SceneDataset) -> None:
    """Raise TrajformerError if there are no scenes, or none with a known future."""
    where = f"data.{part}: {scenes.store.root}: split '{scenes.store.split}'"
    if not len(scenes):
        raise TrajformerError(f"{where} has no scenes")
    first = scenes.store[0]
    if first.num_steps == first.num_history:
        raise TrajformerError(f"{where} has no known future")


def _describe_scenes(part: str, scenes: SceneDataset, table: pd.DataFrame) -> DataSpec:
    """The properties of scenes (TrajformerError: their clocks differ)."""
    clocks = table[list(CLOCK)].drop_duplicates()
    if len(clocks) > 1:
        two_clocks = clocks.iloc[:2].to_dict("records")
        different = " and ".join(str(clock) for clock in two_clocks)
        split = f"split '{scenes.store.split}'"
        raise TrajformerError(f"data.{part}: {scenes.name}: {split} has scenes of {different}")
    return replace(DataSpec.of(scenes.store[0]), has_map=_has_map(scenes, table))


def _has_map(scenes: SceneDataset, table: pd.DataFrame) -> bool:
    """Whether models receive a part of the maps, judged by the first scene with polylines."""
    with_polylines = table.num_polylines.to_numpy().nonzero()[0]
    if not len(with_polylines):
        return False
    first = scenes.store[int(with_polylines[0])]
    if scenes.config.receives(first.polyline_kind).any():
        return True
    where = f"{scenes.name}: split '{scenes.store.split}'"
    kinds = "the maps have road edges and road lines only"
    warn(f"{where}: {kinds}, which models receive with data.batch.road_lines: true")
    return False


TASK = Task(
    recipe=TrainConfig,
    module=ForecastingModule,
    data=lambda recipe: SceneData(recipe.data, recipe.seed),
    monitor="val/minFDE",  # over all modes of the model, not only the best six
    mode="min",
    shown=("val/minADE6", "val/minFDE6", "val/MR6", "val/minFDE1", "val/minFDE"),
)
