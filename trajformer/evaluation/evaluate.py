"""Run a model over the scenes of a split: metrics, a table of its agents, and forecasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from trajformer.data.batch import SceneBatch, collate
from trajformer.data.distances import first_center
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.evaluation.metrics.displacement import displacement
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.scenes.scene import AgentKind, Scene
from trajformer.scenes.spec import DataSpec, check_scenes, warn, warn_about_maps

if TYPE_CHECKING:
    import pandas as pd


class Scenes(Protocol):
    """Scenes of a split by index: a `SceneStore`, or windows of recordings."""

    @property
    def split(self) -> str:
        """Name of the split."""

    @property
    def root(self) -> Path:
        """The folder of the scenes, for error messages."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Scene: ...


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        metrics: means by name: num_agents, minADE6, minFDE6, ... (`trajformer.evaluation.metrics`).
        per_agent: a row per agent with a recorded last step: ids, type, errors and distance moved
            in metres, manoeuvre, and `future_steps`, the number of recorded future steps.
        table: the metrics as one row.
        on_training_split: the model was trained on a split of this name of this data set.
        scenes: clock, horizon and unit of the scenes.
        num_targets: forecast agents, with and without a recorded last step.
    """

    metrics: dict[str, float]
    per_agent: pd.DataFrame
    table: pd.DataFrame
    on_training_split: bool = False
    scenes: DataSpec = DataSpec()
    num_targets: int = 0

    @property
    def complete_futures(self) -> int:
        """The number of agents whose future is recorded at every step of the horizon."""
        return int((self.per_agent.future_steps == self.scenes.num_future).sum())


@torch.inference_mode()
def run(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = True
) -> Iterator[tuple[SceneBatch, Forecast]]:
    """Forecast every scene of a split, in order; results stay on the predictor's device.

    The model is put into evaluation mode: dropout would make forecasts random and worse. Warns
    once if scenes have no map and the training scenes had maps, and the reverse, and if the batch
    settings are not those of the model. Raises TrajformerError: the model does not fit the scenes
    (another clock, for example), scenes have different clocks, or a forecast has wrong shapes, NaN
    or infinity.
    """
    if not hasattr(scenes, "root"):  # the name of a store, or a list of scenes
        kind = type(scenes).__name__
        expected = 'expected the split of a store, such as SceneStore("STORE", "val")'
        raise TrajformerError(f"scenes: of type {kind}, {expected}")
    if batch_size < 1:
        raise TrajformerError(f"batch_size: {batch_size}, expected at least 1")
    where = f"{scenes.root}: split '{scenes.split}'"
    bar = tqdm(total=len(scenes), unit="scene", desc=scenes.split, disable=not progress)
    predictor.model.eval()
    _warn_about_batch(predictor)
    first_spec: DataSpec | None = None
    with_map = 0
    with bar:
        for start in range(0, len(scenes), batch_size):
            stop = min(start + batch_size, len(scenes))
            read = [scenes[index] for index in range(start, stop)]
            spec = DataSpec.of(read[0])  # `collate` compares the others with it
            check_scenes(spec, predictor.trained_on, scenes.root)
            first_spec = first_spec or spec
            check_scenes(spec, first_spec, scenes.root, "its first scene has")
            for scene in read:
                with_map += int(predictor.batch.receives(scene.polyline_kind).any())
            batch = collate(read, predictor.batch).to(predictor.device, non_blocking=True)
            forecast = _forecast(predictor, batch, where)
            yield batch, forecast
            bar.update(len(read))
    warn_about_maps(with_map, len(scenes), predictor.trained_on, where)


def _warn_about_batch(predictor: Predictor) -> None:
    """Warn if a model receives other agents or other parts of the map than in its training.

    The targets may differ. The settings of a model without a recipe are unknown.
    """
    model = predictor.model
    if not isinstance(model, Forecaster) or model.batch_config == BatchConfig():
        return
    expected = model.batch_config
    different = []
    for item in fields(BatchConfig):
        value = getattr(predictor.batch, item.name)
        value_of_model = getattr(expected, item.name)
        if item.name != "targets" and value != value_of_model:
            different.append(f"{item.name} {value}, the model has {value_of_model}")
    if different:
        remedy = "use dataclasses.replace(model.batch_config, ...)"
        warn(f"batch: {'; '.join(different)}; {remedy} to change only the targets")


def _forecast(predictor: Predictor, batch: SceneBatch, where: str) -> Forecast:
    """The checked forecast of a batch."""
    try:
        forecast = predictor.model(batch.observation)
        if not isinstance(forecast, Forecast):
            raise TypeError(f"the model returns {type(forecast).__name__}, expected Forecast")
    except TrajformerError as error:
        raise TrajformerError(f"{where} does not fit the model: {error}") from error
    forecast.check(batch.observation)
    unusable = forecast.find_not_finite(batch.observation)
    if unusable:
        raise TrajformerError(f"{where}: {unusable}: the forecast has NaN or infinity")
    return forecast.joint_futures() if predictor.joint else forecast


def evaluate(
    model: Predictor | nn.Module,
    scenes: Scenes,
    batch: BatchConfig | None = None,
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> Evaluation:
    """Score a model on all agents of a split with a known future.

    The model is a `Predictor` (see `load_predictor`), or a module `Observation -> Forecast`. It is
    put into evaluation mode. `batch` states how scenes become the input of a module, by default
    as in its checkpoint; a `Predictor` has its own. `batch_size` is the number of scenes per
    forward pass. Raises TrajformerError: no agent of the split has a known future (a test split),
    or the model does not fit the scenes.
    """
    import pandas as pd

    # imports torchmetrics, which takes seconds
    from trajformer.evaluation.metrics.collection import forecast_metrics

    predictor = _predictor(model, batch)
    metrics = forecast_metrics().to(predictor.device)
    columns = defaultdict[str, list[Any]](list)
    targets = 0
    for scene_batch, forecast in run(predictor, scenes, batch_size=batch_size, progress=progress):
        metrics.update(forecast, scene_batch)
        targets += int(scene_batch.observation.target_mask.sum())
        for name, values in _rows(forecast, scene_batch).items():
            columns[name] += values
    if not columns["scenario_id"]:
        reason = _no_agents(scenes, targets, predictor.batch.targets)
        raise TrajformerError(f"{scenes.root}: split '{scenes.split}'{reason}")
    totals = metrics.compute()
    first = scenes[0]
    return Evaluation(
        metrics=totals,
        per_agent=pd.DataFrame(columns),
        table=pd.DataFrame([totals]),
        on_training_split=predictor.trained_on.contains(first),
        scenes=DataSpec.of(first),
        num_targets=targets,
    )


def _predictor(model: Predictor | nn.Module, batch: BatchConfig | None) -> Predictor:
    if isinstance(model, Predictor):
        if batch is not None:
            raise TypeError("batch is for a plain module, a Predictor has its own")
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a Predictor or a module, found {type(model).__name__}")
    device = next(model.parameters(), torch.zeros(())).device
    if batch is None:
        return Predictor(model, device=device)
    return Predictor(model, batch, device)


def _no_agents(scenes: Scenes, targets: int, kind: str) -> str:
    """Why no agent of a split can be scored."""
    if not len(scenes):
        return " has no known future to score against: no scenes"
    if not targets:
        return f": has no agent of the kind --agents {kind}"
    reason = f"no agent ({kind}) with a recorded last step; use predict"
    return f" has no known future to score against: {reason}"


def _rows(forecast: Forecast, batch: SceneBatch) -> dict[str, list[Any]]:
    """Columns of the table of agents for the scored agents of a batch."""
    observation = batch.observation
    truth = batch.truth
    errors, scored = displacement(forecast, batch)
    errors.pop("minFDE")  # of all modes
    columns: dict[str, list[Any]] = {"scenario_id": [], "track_id": [], "type": []}
    kinds = observation.agent_kind.tolist()
    for scene, agent in scored.nonzero().tolist():
        columns["scenario_id"].append(observation.scene_id[scene])
        columns["track_id"].append(observation.agent_id[scene][agent])
        columns["type"].append(AgentKind(kinds[scene][agent]).name.lower())
    for name, value in (errors | _moved(batch)).items():
        columns[name] = value[scored].tolist()
    pose = observation.pose[:, : observation.num_targets]
    columns["future_steps"] = truth.valid.sum(-1)[scored].tolist()
    kind, _ = manoeuvres(truth.position, truth.valid, pose, observation.period_s)
    columns["manoeuvre"] = [Manoeuvre(value).label for value in kind[scored].tolist()]
    return columns


def _moved(batch: SceneBatch) -> dict[str, Tensor]:
    """Seconds since targets were first seen, and metres that they move until now and from now.

    All are [B, S]. Metres are distances between means over half a second, because single positions
    of recordings are noisy.
    """
    observation = batch.observation
    truth = batch.truth
    period_s = observation.period_s
    position = observation.position[:, : observation.num_targets]
    valid = observation.valid[:, : observation.num_targets]
    first_step = valid.int().argmax(-1)
    first = first_center(position, valid, period_s)
    last = first_center(position.flip(2), valid.flip(2), period_s)
    end = first_center(truth.position.flip(2), truth.valid.flip(2), period_s)
    return {
        "history_s": (observation.num_history - 1 - first_step) * period_s,
        "history_m": (last - first).norm(dim=-1),
        "future_m": (end - last).norm(dim=-1),
    }


def track_forecasts(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = False
) -> Iterator[TrackForecast]:
    """Every target's modes in the city frame, in the order of the scenes."""
    for batch, forecast in run(predictor, scenes, batch_size=batch_size, progress=progress):
        yield from track_forecasts_of(forecast, batch.observation)
