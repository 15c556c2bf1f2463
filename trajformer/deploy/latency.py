"""Latency of a forecaster in several runtimes, side by side in one run.

All runtimes get the same artificial scenes (`example_scene`) and take turns, so that other work on
the machine hits all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from trajformer.data.arrays import stack_arrays
from trajformer.data.batch import stack
from trajformer.data.sample import samples
from trajformer.deploy.example_scene import example_scene
from trajformer.deploy.export import export_model
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster
from trajformer.scenes.scene import Scene

Runtime = Literal["eager", "compiled", "pt2", "onnx"]
RUNTIMES: tuple[Runtime, ...] = ("eager", "compiled", "pt2", "onnx")
Forecast = Callable[[], Any]
_WARM_UP = 3  # calls that are not timed


@dataclass(frozen=True)
class Latency:
    """Times of one runtime for one size of scene, in milliseconds."""

    runtime: str
    num_agents: int
    num_lanes: int  # pieces of lanes near agents, the tokens of the map
    keeps_map: bool  # the map was encoded before
    median_ms: float
    p99_ms: float


def measure(
    models: dict[str, Forecaster | ExportedForecaster],
    agents: Sequence[int],
    lanes: Sequence[int],
    calls: int,
) -> list[Latency]:
    """Times of forecasts of all agents of a scene, for all pairs of `agents` and `lanes`.

    A forecast starts with the scene in memory and ends with positions and probabilities; the
    selection of agents and lanes, in numpy, is a separate runtime ("preparation").
    """
    rows = []
    first = next(iter(models.values()))
    for num_agents in agents:
        for num_lanes in lanes:
            scene = example_scene(_spec(first), num_agents, num_lanes)
            rows += _measure_scene(models, scene, calls)
    return rows


def runtimes_of(
    source: Path, model: Forecaster | None, names: Sequence[Runtime]
) -> dict[str, Forecaster | ExportedForecaster]:
    """The model of a checkpoint in each runtime; an exported file is a separate runtime.

    Args:
        source: the checkpoint or exported file, for errors.
        model: the model of a checkpoint, or None.
        names: runtimes.

    Raises TrajformerError: the model cannot be exported.
    """
    threads = torch.get_num_threads()
    if model is None:
        return {source.suffix.removeprefix("."): ExportedForecaster(source, threads)}
    runtimes: dict[str, Forecaster | ExportedForecaster] = {}
    for name in names:
        if name == "eager":
            runtimes[name] = model
        elif name == "compiled":
            compiled: Any = torch.compile(model, dynamic=True)
            runtimes[name] = compiled
        else:
            with TemporaryDirectory() as folder:
                out = Path(folder, f"model.{name}")
                export_model(model, out)
                runtimes[name] = ExportedForecaster(out, threads)
    if not runtimes:
        raise TrajformerError(f"{source}: no runtime to measure")
    return runtimes


def table(rows: Sequence[Latency]) -> str:
    """Markdown: one row per size and use of the map, one column per runtime."""
    names = list(dict.fromkeys(row.runtime for row in rows))
    head = ["agents", "pieces of lanes", "map", *[f"{name}, ms" for name in names]]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    cells: dict[tuple[int, int, bool], dict[str, str]] = {}
    for row in rows:
        key = (row.num_agents, row.num_lanes, row.keeps_map)
        cells.setdefault(key, {})[row.runtime] = f"{row.median_ms:.1f} / {row.p99_ms:.1f}"
    for (num_agents, num_lanes, keeps_map), values in cells.items():
        use = "kept" if keeps_map else "encoded"
        line = [f"{num_agents}", f"{num_lanes}", use, *[values.get(name, "") for name in names]]
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)


def _measure_scene(
    models: dict[str, Forecaster | ExportedForecaster], scene: Scene, calls: int
) -> list[Latency]:
    first = next(iter(models.values()))
    batch = first.batch if isinstance(first, ExportedForecaster) else first.batch_config
    batch = replace(batch, targets="all")
    [sample] = samples([scene], batch)
    num_lanes = len(sample.padded["polyline_mask"])

    forecasts: dict[tuple[str, bool], Forecast] = {}
    forecasts["preparation", False] = lambda: samples([scene], batch)
    for name, model in models.items():
        for keeps_map, forecast in _forecasts(model, sample).items():
            forecasts[name, keeps_map] = forecast

    rows = []
    for (name, keeps_map), times in _times(forecasts, calls).items():
        median, p99 = np.percentile(times, [50, 99])
        size = (scene.num_agents, num_lanes)
        rows.append(Latency(name, *size, keeps_map, float(median), float(p99)))
    return rows


def _times(forecasts: dict[tuple[str, bool], Forecast], calls: int) -> dict[Any, list[float]]:
    """Milliseconds of each call; the runtimes take turns."""
    times: dict[Any, list[float]] = {key: [] for key in forecasts}
    with torch.inference_mode():
        for forecast in forecasts.values():
            for _ in range(_WARM_UP):
                forecast()
        for _ in range(calls):
            for key, forecast in forecasts.items():
                start = time.perf_counter()
                forecast()
                times[key].append(1e3 * (time.perf_counter() - start))
    return times


def _forecasts(model: Forecaster | ExportedForecaster, sample: Any) -> dict[bool, Forecast]:
    """Forecasts of one sample, by whether the map was encoded before."""
    arrays = stack_arrays([sample])
    frame_pose = sample.frame_pose[None]
    if isinstance(model, ExportedForecaster):
        exported = {False: lambda: model.run(arrays, frame_pose)}
        if model.keeps_map:
            lanes = model.encode_arrays(arrays, frame_pose)
            exported[True] = lambda: model.run(arrays, frame_pose, lanes)
        return exported
    observation = stack([sample], model.batch_config.frame).observation
    forecasts: dict[bool, Forecast] = {False: lambda: model(observation)}
    if model.keeps_map:
        encoder: Any = model
        encoded = encoder.encode_map(observation)

        def with_map() -> Any:
            agents = encoder.encode_agents(observation, encoded)
            return encoder.forecast(observation, encoded, agents)

        forecasts[True] = with_map
    return forecasts


def _spec(model: Forecaster | ExportedForecaster) -> Any:
    if isinstance(model, ExportedForecaster):
        return model.metadata.spec
    return model.trained_on
