"""Run a model over the scenes of a split: the record of its scoring, and forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from trajformer.data.batch import SceneBatch, stack
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, extended, samples
from trajformer.errors import TrajformerError
from trajformer.evaluation.columns import ScoredBatch
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.evaluation.scoring import MOVING_M, Rules, Scoring
from trajformer.evaluation.tally import Tally
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.resample import ResampledScenes
from trajformer.scenes.scene import Scene, is_lane
from trajformer.scenes.spec import (
    ROUNDING,
    DataSpec,
    check_scenes,
    is_source,
    warn,
    warn_about_lanes,
    warn_about_maps,
)


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


def run(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = True
) -> Iterator[tuple[SceneBatch, Forecast]]:
    """The batches and forecasts of `run_scenes`, which raises the same errors."""
    results = run_scenes(predictor, scenes, batch_size=batch_size, progress=progress)
    for scored in results:
        yield scored.batch, scored.forecast


def run_scenes(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = True
) -> Iterator[ScoredBatch]:
    """Forecast every scene of a split, in order; results stay on the predictor's device.

    The model is put into evaluation mode: dropout would make forecasts random and worse. If it was
    trained on several data sets and the scenes have the clock of one of them, they are resampled
    to the period of the model, and its forecast is cut to their horizon. Warns once if scenes have
    no map and the training scenes had maps, and the reverse, and if the batch settings differ from
    the model's. Raises TrajformerError: the model does not fit the scenes (another clock, for
    example), scenes have different clocks, or a forecast has wrong shapes, NaN or infinity.
    """
    for scored in _run(predictor, scenes, batch_size, progress):
        steps = scored.scenes[0].num_future
        if scored.batch.observation.num_future == steps:
            yield scored
        else:
            batch = scored.batch.first_steps(steps)
            yield ScoredBatch(scored.scenes, batch, scored.forecast.first_steps(steps))


@torch.inference_mode()
def _run(
    predictor: Predictor, scenes: Scenes, batch_size: int, progress: bool
) -> Iterator[ScoredBatch]:
    """As `run_scenes`, with batches and forecasts of the horizon of the model."""
    _require_split(scenes)
    if batch_size < 1:
        raise TrajformerError(f"batch_size: {batch_size}, expected at least 1")
    where = f"{scenes.root}: split '{scenes.split}'"
    bar = tqdm(total=len(scenes), unit="scene", desc=scenes.split, disable=not progress)
    predictor.model.eval()
    _warn_about_batch(predictor)
    trained_on = predictor.trained_on
    source = on_clock(scenes, trained_on)
    first_spec: DataSpec | None = None
    with_map = 0
    has_lanes = False
    with bar:
        for start in range(0, len(scenes), batch_size):
            stop = min(start + batch_size, len(scenes))
            read = [source[index] for index in range(start, stop)]
            spec = DataSpec.of(read[0])  # `stack` compares the others with it
            if source is scenes:
                check_scenes(spec, trained_on, scenes.root)
            first_spec = first_spec or spec
            check_scenes(spec, first_spec, scenes.root, "its first scene has")
            for scene in read:
                with_map += int(predictor.batch.receives(scene.polyline_kind).any())
                has_lanes |= bool(is_lane(scene.polyline_kind).any())
            parts = samples(read, predictor.batch)
            if source is not scenes:
                assert trained_on.num_history and trained_on.num_future
                steps = (trained_on.num_history, trained_on.num_future)
                parts = [extended(part, *steps) for part in parts]
            batch = stack(parts, predictor.batch.frame).to(predictor.device, non_blocking=True)
            forecast = _forecast(predictor, batch, where)
            yield ScoredBatch(read, batch, forecast)
            bar.update(len(read))
    warn_about_maps(with_map, len(scenes), trained_on, where)
    if with_map:
        warn_about_lanes(has_lanes, trained_on, where)


def _require_split(scenes: Scenes) -> None:
    """Raise TrajformerError for the name of a store, or a list of scenes."""
    if not hasattr(scenes, "root"):
        kind = type(scenes).__name__
        expected = 'expected the split of a store, such as SceneStore("STORE", "val")'
        raise TrajformerError(f"scenes: of type {kind}, {expected}")


def on_clock(scenes: Scenes, trained_on: DataSpec) -> Scenes:
    """The scenes, resampled when read if they are like one of several training data sets."""
    if trained_on.sources and len(scenes) and is_source(DataSpec.of(scenes[0]), trained_on):
        return ResampledScenes(scenes, trained_on)
    return scenes


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
    rules: Rules = Rules(),
    batch_size: int = 32,
    progress: bool = False,
) -> Scoring:
    """Score a model on all agents of a split with a known future.

    The model is a `Predictor` (see `load_predictor`), or a module `Observation -> Forecast`. It is
    put into evaluation mode. `batch` states how scenes become the input of a module, by default
    as in its checkpoint; a `Predictor` has its own. `rules` state which agents count, and further
    horizons. `batch_size` is the number of scenes per forward pass. Raises TrajformerError: no
    agent of the split has a known future (a test split), the model does not fit the scenes, or the
    scenes do not fit the rules.
    """
    predictor = _predictor(model, batch)
    tally = score_scenes(predictor, scenes, rules, batch_size=batch_size, progress=progress)
    return scoring_of(tally, predictor, scenes)


def score_scenes(
    predictor: Predictor,
    scenes: Scenes,
    rules: Rules,
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> Tally:
    """The tally of a split or of a part of it; raises as `evaluate`, but may have no agents."""
    _require_split(scenes)
    if len(scenes):
        rules.check(DataSpec.of(scenes[0]))
    tally = Tally(rules, predictor.device)
    for scored in run_scenes(predictor, scenes, batch_size=batch_size, progress=progress):
        tally.add(scored)
    return tally


def scoring_of(tally: Tally, predictor: Predictor, scenes: Scenes) -> Scoring:
    """The record of the tally of a whole split (TrajformerError: it has no agents)."""
    if not tally.rows.num_agents:
        reason = _no_agents(scenes, tally.num_targets, predictor.batch.targets, tally.rules)
        raise TrajformerError(f"{scenes.root}: split '{scenes.split}'{reason}")
    return replace(
        tally.scoring(),
        agents=predictor.batch.targets,
        joint=predictor.joint,
        on_training_split=predictor.trained_on.contains(scenes[0]),
        scenes=DataSpec.of(scenes[0]),
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


def _no_agents(scenes: Scenes, targets: int, kind: str, rules: Rules) -> str:
    """Why no agent of a split can be scored."""
    if not len(scenes):
        return " has no known future to score against: no scenes"
    if not targets:
        return f": has no agent of the kind --agents {kind}"
    condition = "a recorded last step"
    if rules.complete:
        condition = "a future recorded at every step"
    if rules.moving:
        condition += f" at least {MOVING_M:g} m away"
    reason = f"no agent ({kind}) with {condition}; use predict"
    return f" has no known future to score against: {reason}"


def track_forecasts(
    predictor: Predictor, scenes: Scenes, *, batch_size: int = 32, progress: bool = False
) -> Iterator[TrackForecast]:
    """Every target's modes in the city frame at the steps of its scene, in the order of the scenes.

    Raises the errors of `run_scenes`.
    """
    has_clock = on_clock(scenes, predictor.trained_on) is scenes
    start = 0
    for scored in _run(predictor, scenes, batch_size, progress):
        tracks = track_forecasts_of(scored.forecast, scored.batch.observation)
        if has_clock:
            yield from tracks
        else:
            first = scenes[start]
            yield from _at_steps(tracks, scored, first.period_s, first.num_future)
        start += len(scored.scenes)


def forecast_scene(predictor: Predictor, scene: Scene) -> list[TrackForecast]:
    """The modes of every target of one scene in the city frame; raises as `run_scenes`."""
    return list(track_forecasts(predictor, OneScene(scene), batch_size=1))


class OneScene:
    """A scene as the `Scenes` of its split."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.split = scene.split
        self.root = Path(scene.scene_id)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Scene:
        return self.scene


def _at_steps(
    tracks: Iterable[TrackForecast], scored: ScoredBatch, period_s: float, num_future: int
) -> Iterator[TrackForecast]:
    """Forecasts on another clock, linear between the present and the steps of the model."""
    observation = scored.batch.observation
    present = from_frame(observation.pose.double()[..., :2], observation.frame_pose[:, None])
    targets = observation.target_mask.nonzero()
    step = np.arange(1, num_future + 1) * (period_s / observation.period_s)
    nearest = np.rint(step)
    step = np.where(np.abs(step - nearest) <= ROUNDING * step, nearest, step)
    before = np.minimum(np.floor(step).astype(np.intp), observation.num_future - 1)
    fraction = (step - before)[:, None]
    for track, (b, s) in zip(tracks, targets.tolist(), strict=True):
        start = np.broadcast_to(present[b, s].cpu().numpy(), (len(track.position), 1, 2))
        path = np.concatenate([start, track.position], 1)  # [K, 1 + F, 2]
        change = path[:, before + 1] - path[:, before]
        yield replace(track, position=path[:, before] + change * fraction)
