"""Run a model over a store: the metrics table, a row per agent on request, and forecasts for a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import nn
from tqdm import tqdm

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, sample
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.accumulate import DisplacementMetrics, MultiWorldMetrics
from trajformer.evaluation.metrics.displacement import displacement
from trajformer.models import ConstantVelocity, ConstantVelocityConfig
from trajformer.models.constant_velocity import SampledConstantVelocity
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.files import write_atomically
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

KS = (1, 6)
MOST = 20  # modes; where a model has as many, it is also scored by all of them, as is usual for pedestrians
UNTRAINED = ("constant_velocity", "constant_velocity_sampled")


class Scenes(Protocol):
    """Scenes by index, of a split, from somewhere: a `SceneStore`, or windows of recordings."""

    @property
    def split(self) -> str:
        """Its name."""

    @property
    def root(self) -> Path:
        """The folder they come from, for messages."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Scene: ...


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model ready to run: in evaluation mode, on its device, with the way it wants scenes batched.

    `trained_on` is the split that its recipe names, empty for a model that needs no training.
    """

    model: nn.Module
    batch: BatchConfig
    device: torch.device
    trained_on: str = ""


def pick_device(accelerator: Literal["auto", "cpu", "gpu"]) -> torch.device:
    """The device that a word names.

    Raises:
        TrajformerError: a GPU is wanted and there is none.
    """
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("no CUDA device here; use --accelerator cpu")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def load_predictor(
    source: Path | str | None, device: torch.device, targets: Literal["scored", "focal", "all"] = "scored"
) -> Predictor:
    """The model of a checkpoint, or an untrained one by its name.

    Args:
        source: a file; or None or "constant_velocity", with five varied modes beside the plain one; or
            "constant_velocity_sampled", 20 directions drawn for each agent.
        device: where it is to run.
        targets: the agents it is to predict.

    Raises:
        CheckpointError: see `load_checkpoint`.
    """
    if source is None or source in UNTRAINED:
        sampled = source == "constant_velocity_sampled"
        model = SampledConstantVelocity() if sampled else ConstantVelocity(ConstantVelocityConfig(modes=max(KS)))
        return Predictor(model.to(device).eval(), BatchConfig(targets=targets), device)
    learned, recipe = load_checkpoint(source, TrainConfig)
    config = replace(recipe.data.batch, targets=targets)
    return Predictor(learned.to(device).eval(), config, device, trained_on=recipe.data.train_split)


@torch.inference_mode()
def run(
    predictor: Predictor, store: Scenes, *, batch_size: int = 32, progress: bool = True
) -> Iterator[tuple[SceneBatch, Forecast]]:
    """Forecast every scene of a split, in order; batches and forecasts stay on the predictor's device.

    Raises:
        TrajformerError: the model does not fit the scenes (another horizon); names the store.
    """
    starts = range(0, len(store), batch_size)
    with tqdm(total=len(store), unit="scene", desc=store.split, disable=not progress, dynamic_ncols=True) as bar:
        for start in starts:
            samples = [sample(store[i], predictor.batch) for i in range(start, min(start + batch_size, len(store)))]
            batch = stack(samples, predictor.batch.frame).to(predictor.device)
            try:
                forecast = predictor.model(batch)
            except TrajformerError as error:
                raise TrajformerError(f"{store.root}: split '{store.split}' does not fit the model: {error}") from error
            yield batch, forecast
            bar.update(len(samples))


def evaluate(
    predictor: Predictor, store: SceneStore, *, batch_size: int = 32, progress: bool = True, rows: Path | None = None
) -> dict[str, float]:
    """Means over all agents whose future is known: num_agents, and minADE_k, minFDE_k, MR_k, brier_minFDE_k.

    k is 1, 6 and, where the model has 20 modes, 20. A joint forecast has the multi-world metrics at 6, too, means over
    scenes.

    Args:
        rows: a CSV file that gets one row an agent: scenario_id, track_id and the same figures.

    Raises:
        TrajformerError: no agent of the split has a known future (a test split).
    """
    metrics: list[DisplacementMetrics | MultiWorldMetrics] = []
    table: list[dict[str, object]] = []
    for batch, forecast in run(predictor, store, batch_size=batch_size, progress=progress):
        if not metrics:
            metrics.append(DisplacementMetrics(_ks(forecast)).to(predictor.device))
            metrics += [MultiWorldMetrics(max(KS)).to(predictor.device)] * forecast.is_joint
        for metric in metrics:
            metric.update(forecast, batch.target, batch.target_valid)
        if rows is not None:
            table += _rows(batch, forecast)
    result = {name: value for metric in metrics for name, value in metric.compute().items()}
    if not result.get("num_agents"):
        raise TrajformerError(f"{store.root}: split '{store.split}' has no known future to score against; use predict")
    if rows is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
        write_atomically(rows, text.getvalue())
    return result


def _ks(forecast: Forecast) -> tuple[int, ...]:
    return (*KS, MOST) if forecast.num_modes >= MOST else KS


def _rows(batch: SceneBatch, forecast: Forecast) -> list[dict[str, object]]:
    columns: dict[str, torch.Tensor] = {}
    for k in _ks(forecast):
        values, counts = displacement(forecast, batch.target, batch.target_valid, k)
        columns |= {f"{name}_{k}": value.cpu() for name, value in values.items()}
    return [
        {"scenario_id": batch.scene_id[b], "track_id": batch.agent_id[b][s]}
        | {name: round(value[b, s].item(), 6) for name, value in columns.items()}
        for b, s in counts.nonzero().tolist()
    ]


def track_forecasts(
    predictor: Predictor, store: SceneStore, *, batch_size: int = 32, progress: bool = True
) -> Iterator[TrackForecast]:
    """Every target's modes in the city frame, in the store's order."""
    for batch, forecast in run(predictor, store, batch_size=batch_size, progress=progress):
        position, probability = forecast.in_city_frame(batch), forecast.probability().double().cpu().numpy()
        for b, s in batch.target_mask.nonzero().tolist():
            yield TrackForecast(batch.scene_id[b], batch.agent_id[b][s], probability[b, s], position[b, s])
