"""The task of training forecasters: scenes, the loss of the recipe, and validation metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.augment import augment
from trajformer.data.batch import SceneBatch
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import forecast_metrics
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.recipes.resume import list_changes
from trajformer.scenes.spec import check_scenes, warn
from trajformer.training.base import Task, TaskModule
from trajformer.training.optim import parameter_groups
from trajformer.training.scene_data import SceneData, is_first_process

# Learning rate of the parameters of a loss, relative to that of the model. They are few numbers,
# which start far from their final values.
_LOSS_RATE = 10.0


class ForecastingModule(TaskModule):
    """Trains a model with the loss of its recipe.

    It validates with the metrics of `trajformer evaluate`. With several validation sources, each
    has its own metrics as well, for example "val/argoverse1/minFDE6".
    """

    config: TrainConfig
    model: Forecaster

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        loss = config.loss_config(self.model)
        self.config = replace(config, loss=loss)  # checkpoints name their loss
        self.objective = loss.build()
        self.metrics = forecast_metrics()
        self.source_metrics = nn.ModuleList()  # one for each of several validation sources

    def attach(self, data: SceneData) -> None:
        """Make the metrics of several validation sources."""
        if len(data.val_sources) > 1:
            self.source_metrics.extend([forecast_metrics() for _ in data.val_sources])

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
        if changes and is_first_process():
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

    def validation_step(self, batch: SceneBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Accumulate the metrics of one batch, up to the horizon of its scenes."""
        forecast = self(batch.observation)
        data = self.data
        assert isinstance(data, SceneData)
        horizon = data.horizons[dataloader_idx]
        if horizon < batch.observation.num_future:
            forecast = forecast.first_steps(horizon)
            batch = batch.first_steps(horizon)
        self.metrics.update(forecast, batch)
        if self.source_metrics:
            of_source: Any = self.source_metrics[dataloader_idx]
            of_source.update(forecast, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes and reset them."""
        self._log_metrics(self.metrics, "val")
        data = self.data
        assert isinstance(data, SceneData)
        for name, metrics in zip(data.val_names, self.source_metrics, strict=False):
            self._log_metrics(metrics, f"val/{name}")

    def _log_metrics(self, metrics: Any, prefix: str) -> None:
        values = metrics.compute()
        metrics.reset()
        for name, value in values.items():
            if not name.startswith("num_"):
                on_bar = prefix == "val" and name in ("minFDE1", "minFDE6")
                self.log(f"{prefix}/{name}", float(value), prog_bar=on_bar)


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def _load(path: str, data: SceneData) -> tuple[nn.Module, TrainConfig]:
    """The model and recipe of a checkpoint with training scenes like `data`."""
    model, recipe = load_checkpoint(path, TrainConfig)
    trained_on = Predictor(model).trained_on
    check_scenes(data.spec, trained_on, data.train.name, f"the training scenes of {path} have")
    return model, recipe


TASK = Task(
    recipe=TrainConfig,
    module=ForecastingModule,
    data=lambda recipe: SceneData(recipe.data, recipe.seed),
    monitor="val/minFDE",  # over all modes of the model, not only the best six
    mode="min",
    shown=("val/minADE6", "val/minFDE6", "val/MR6", "val/minFDE1", "val/minFDE"),
)
