"""Run a model over the scenes of a split: figures, a table with one row per agent, and forecasts for a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
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
from trajformer.scenes.spec import DataSpec, check_scenes, warn_about_maps

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
    """The result of `evaluate`."""

    metrics: dict[
        str, float
    ]  # means: num_agents, minADE6, minFDE6, ... (see `trajformer.evaluation.metrics`)
    per_agent: pd.DataFrame  # a row per agent with a known future: ids, type, errors and distance moved in metres, and so on
    table: pd.DataFrame  # the figures as one row
    on_training_split: bool = (
        False  # the model was trained on a split of this name of this data set
    )


@torch.inference_mode()
def run(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = True
) -> Iterator[tuple[SceneBatch, Forecast]]:
    """Forecast every scene of a split, in order; batches and forecasts stay on the predictor's device.

    Warns once if scenes have no map and the training scenes had maps, and the reverse. Raises TrajformerError: the model does not
    fit the scenes (another clock, for example), scenes have different clocks, or a forecast has wrong shapes, NaN or infinity.
    """
    if batch_size < 1:
        raise TrajformerError(f"batch_size: {batch_size}, expected at least 1")
    where, with_map, first = f"{scenes.root}: split '{scenes.split}'", 0, DataSpec()
    with tqdm(
        total=len(scenes), unit="scene", desc=scenes.split, disable=not progress, dynamic_ncols=True
    ) as bar:
        for start in range(0, len(scenes), batch_size):
            read = [scenes[index] for index in range(start, min(start + batch_size, len(scenes)))]
            spec = DataSpec.of(read[0])  # `collate` compares the others with it
            check_scenes(spec, predictor.trained_on, scenes.root)
            check_scenes(spec, first, scenes.root, "its first scene has")
            first = first if start else spec
            with_map += sum(
                bool(predictor.batch.receives(scene.polyline_kind).any()) for scene in read
            )
            batch = collate(read, predictor.batch).to(predictor.device, non_blocking=True)
            try:
                forecast = predictor.model(batch.observation)
                if not isinstance(forecast, Forecast):
                    raise TypeError(
                        f"the model returns {type(forecast).__name__}, expected Forecast"
                    )
            except TrajformerError as error:
                raise TrajformerError(f"{where} does not fit the model: {error}") from error
            forecast.check(batch.observation)
            if unusable := forecast.find_not_finite(batch.observation):
                raise TrajformerError(f"{where}: {unusable}: the forecast has NaN or infinity")
            forecast = forecast.joint_futures() if predictor.joint else forecast
            yield batch, forecast
            bar.update(len(read))
    warn_about_maps(with_map, len(scenes), predictor.trained_on, where)


def evaluate(
    model: Predictor | nn.Module,
    scenes: Scenes,
    batch: BatchConfig | None = None,
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> Evaluation:
    """Score a model on all agents of a split with a known future, with `batch_size` scenes per forward pass.

    The model is a `Predictor` (see `load_predictor`), or a module `Observation -> Forecast`, which is put into evaluation mode.
    `batch` states how scenes become the input of a module, by default as in its checkpoint; a `Predictor` has its own. Raises
    TrajformerError: no agent of the split has a known future (a test split), or the model does not fit the scenes.
    """
    import pandas as pd

    from trajformer.evaluation.metrics.collection import (
        forecast_metrics,  # imports torchmetrics, which takes seconds
    )

    if not isinstance(model, Predictor | nn.Module):
        raise TypeError(f"model: expected a Predictor or a module, found {type(model).__name__}")
    if not isinstance(model, Predictor):
        default = model.batch_config if isinstance(model, Forecaster) else BatchConfig()
        model = Predictor(
            model.eval(), batch or default, next(model.parameters(), torch.zeros(())).device
        )
    elif batch is not None:
        raise TypeError("batch is for a plain module, a Predictor has its own")
    metrics = forecast_metrics().to(model.device)
    columns, targets = defaultdict[str, list[Any]](list), 0
    for scene_batch, forecast in run(model, scenes, batch_size=batch_size, progress=progress):
        metrics.update(forecast, scene_batch)
        observation = scene_batch.observation
        targets += int(observation.target_mask.sum())
        errors, scored = displacement(forecast, scene_batch)
        kinds = observation.agent_kind.tolist()
        for b, s in scored.nonzero().tolist():
            columns["scenario_id"].append(observation.scene_id[b])
            columns["track_id"].append(observation.agent_id[b][s])
            columns["type"].append(AgentKind(kinds[b][s]).name.lower())
        errors.pop("minFDE")  # of all modes
        pose = observation.pose[:, : observation.num_targets]
        errors["history_s"], errors["history_m"], errors["future_m"] = _moved(scene_batch)
        for name, value in errors.items():
            columns[name] += value[scored].tolist()
        kind, _ = manoeuvres(
            scene_batch.truth.position, scene_batch.truth.valid, pose, observation.period_s
        )
        columns["manoeuvre"] += [Manoeuvre(value).label for value in kind[scored].tolist()]
    if not columns["scenario_id"]:
        where = f"{scenes.root}: split '{scenes.split}'"
        if len(scenes) and not targets:
            raise TrajformerError(
                f"{where}: has no agent of the kind --agents {model.batch.targets}"
            )
        problem = (
            f"no agent ({model.batch.targets}) with a recorded last step; use predict"
            if len(scenes)
            else "no scenes"
        )
        raise TrajformerError(f"{where} has no known future to score against: {problem}")
    totals = metrics.compute()
    known = model.trained_on.contains(scenes[0])
    return Evaluation(totals, pd.DataFrame(columns), pd.DataFrame([totals]), known)


def _moved(batch: SceneBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Seconds [B, S] since targets were first seen, and the metres that they move in their history and in their future.

    Metres are distances between means over half a second, because single positions of recordings are noisy.
    """
    o, truth, targets = batch.observation, batch.truth, batch.observation.num_targets
    position, valid = o.position[:, :targets], o.valid[:, :targets]
    seen_s = (o.num_history - 1 - valid.int().argmax(-1)) * o.period_s
    first = first_center(position, valid, o.period_s)
    last = first_center(position.flip(2), valid.flip(2), o.period_s)
    end = first_center(truth.position.flip(2), truth.valid.flip(2), o.period_s)
    return seen_s, (last - first).norm(dim=-1), (end - last).norm(dim=-1)


def track_forecasts(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = False
) -> Iterator[TrackForecast]:
    """Every target's modes in the city frame, in the order of the scenes."""
    for batch, forecast in run(predictor, scenes, batch_size=batch_size, progress=progress):
        yield from track_forecasts_of(forecast, batch.observation)
