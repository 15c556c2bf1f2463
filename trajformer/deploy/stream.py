"""Forecasts of live tracks.

```python
forecaster = OnlineForecaster("pretrained:se2former_argoverse1")
forecaster.set_map("map.osm")
forecaster.update(timestamp_s, tracks)
forecasts = forecaster.forecast()
```

A forecast equals that of a scene with the same observed steps (`Scene.from_tracks`): the agents and
lanes are selected by the same functions, and missing headings and velocities are estimated by the
functions of `preprocess table`. What is kept from one forecast to the next saves time only: lanes
in pieces around the agents, and SE2Former's encoding of the map while its pieces stay the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trajformer.data.batch import Observation, stack
from trajformer.data.forecast import Forecast
from trajformer.data.sample import ROUNDING_S, Frame, Sample, sample_near
from trajformer.deploy.exported_model import exported_predictor, is_exported
from trajformer.deploy.map_window import MapWindow
from trajformer.deploy.predicted import PredictedObjects
from trajformer.errors import SceneError, TrajformerError
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.lane_files import Lanes, as_vector_map
from trajformer.scenes.lanelet2 import Origin
from trajformer.scenes.plausibility import warn_if_implausible
from trajformer.scenes.scene import SHORT_LOSS_S, AgentRole, Scene
from trajformer.scenes.spec import DataSpec, warn
from trajformer.scenes.track_columns import check_unique, read_columns
from trajformer.scenes.track_history import TrackHistory, TrackSteps
from trajformer.scenes.tracks import scene_of_steps
from trajformer.scenes.vector_map import NO_MAP, VectorMap

MAX_TIME_S = 1e11  # about 3,000 years; milliseconds since 1970 are more
CHECK_EVERY_S = 10.0  # whether the values of the tracks fit each other
_CLOCK = ("period_s", "num_history", "num_future")


class OnlineForecaster:
    """Live tracks to forecasts, with one model.

    All methods may be called from several threads: `forecast` works on a copy of the history, so
    updates need not wait for it.

    Args:
        model: a checkpoint, `pretrained:NAME`, an exported file, "constant_velocity", a module
            `Observation -> Forecast`, or a `Predictor`.
        clock: period, history and horizon, if the model does not have them from its training.

    Raises TrajformerError: the model cannot be loaded, or its clock is not known.
    """

    def __init__(
        self, model: str | Path | nn.Module | Predictor, *, clock: DataSpec | None = None
    ) -> None:
        predictor = _predictor(model)
        self._model = predictor.model.eval()
        self._device = predictor.device
        self._config = replace(predictor.batch, targets="all")
        self._trained_on = predictor.trained_on
        self._clock = _clock(predictor.trained_on, clock)
        self._history = TrackHistory(self._clock[0], self._clock[1])
        self._lanes = NO_MAP
        self._window: MapWindow | None = None
        self._encoding: Any = None  # of a model that keeps the map
        self._encoded = np.zeros(0, np.int64)  # indices of the pieces in the window
        self._warned = False
        self._given = (False, False)  # headings and velocities in the last update
        self._next_check_s = -math.inf
        self._lock = threading.Lock()  # of the history and the lanes
        self._model_lock = threading.Lock()  # of the window and the encoding

    @property
    def clock(self) -> tuple[float, int, int]:
        """Period in seconds, H and F of the model."""
        return self._clock

    @property
    def model(self) -> nn.Module:
        """The model, in evaluation mode."""
        return self._model

    @property
    def num_tracks(self) -> int:
        """Number of tracks that are kept."""
        return self._history.num_tracks

    def set_map(self, lanes: Lanes, origin: Origin | None = None) -> None:
        """Use another map, of any size, in the frame of the tracks.

        Args:
            lanes: the path of a Lanelet2, GeoJSON or plain JSON file; a GeoJSON document; a list of
                arrays [p, 2], centrelines in the direction of travel in metres; or a scene, whose
                map is taken.
            origin: latitude and longitude of the zero of the frame, for a Lanelet2 map in degrees.

        Raises SceneError: the lanes cannot be used.
        """
        vector_map = as_vector_map(lanes, origin)
        with self._lock:
            self._lanes = vector_map

    def update(self, timestamp_s: float, tracks: Mapping[str, Any] | Any) -> None:
        """Add the tracks of a moment.

        Args:
            timestamp_s: seconds, by any clock.
            tracks: a DataFrame, or a mapping from names to sequences: `object_id` (any hashable
                values), `x` and `y` in metres; optionally `heading` (radians counter-clockwise from
                +x), `vx` and `vy` (m/s in the frame of the positions), `length`, `width` (metres)
                and `classification`. Missing headings and velocities may also be NaN.

        Raises SceneError: a value cannot be used; the update is then ignored.
        """
        columns = check_unique(read_columns(tracks))
        time_s = float(timestamp_s)
        if not abs(time_s) <= MAX_TIME_S:
            raise SceneError(f"timestamp_s: {time_s:g}, expected seconds, at most {MAX_TIME_S:g}")
        has_heading = bool(np.isfinite(columns.heading).any())
        has_velocity = bool(np.isfinite(columns.velocity).any())
        with self._lock:
            self._history.add(time_s, columns)
            self._given = (has_heading, has_velocity)

    def reset(self) -> None:
        """Forget all tracks, not the map."""
        with self._lock:
            self._history.clear()

    def forecast(self) -> PredictedObjects:
        """Forecasts of all agents that were seen in the last second before the last update.

        Raises SceneError: there was no update, or tracks are too far apart. TrajformerError: a
        forecast has NaN or infinity.
        """
        with self._lock:
            steps = self._history.steps()
            lanes = self._lanes
        with self._model_lock, torch.inference_mode():
            return self._forecast(_present(steps, self._clock[0]), lanes)

    def observation(self) -> Observation:
        """The input of the model at the last update; raises as `forecast`."""
        with self._lock:
            steps = self._history.steps()
            lanes = self._lanes
        with self._model_lock:
            _, _, observation = self._prepare(_present(steps, self._clock[0]), lanes)
            return observation

    def _forecast(self, steps: TrackSteps, lanes: VectorMap) -> PredictedObjects:
        _, _, num_future = self._clock
        if not steps.ids:
            return _predicted(
                steps, self._clock[0], np.zeros((0, 3)), np.zeros((0, 1, num_future, 2))
            )
        sample, pieces, observation = self._prepare(steps, lanes)
        forecast = self._run(observation, pieces).check(observation)
        unusable = forecast.find_not_finite(observation)
        if unusable:
            raise TrajformerError(f"{unusable}: the forecast has NaN or infinity")
        return self._result(forecast, observation, sample, steps)

    def _prepare(
        self, steps: TrackSteps, lanes: VectorMap
    ) -> tuple[Sample, np.ndarray, Observation]:
        """The sample of tracks, the pieces of lanes that it has, int64 [m], and its batch."""
        window = self._move_window(steps, lanes)
        scene = scene_of_steps(steps, self._clock, window.origin, window.facing)
        self._check(scene, steps.now_s)
        if self._config.frame is Frame.FOCAL:
            scene = _with_focal(scene)
        sample, pieces = sample_near(scene, window.pieces, self._config)
        self._warn_about_map(window)
        observation = stack([sample], self._config.frame).observation
        if self._device.type != "cpu":
            observation = observation.map(lambda tensor: tensor.to(self._device))
        return sample, pieces, observation

    def _move_window(self, steps: TrackSteps, lanes: VectorMap) -> MapWindow:
        """The window of the map, a new one if agents have left it or the map is another one."""
        position = _last_positions(steps)
        window = self._window
        if window is None or window.lanes is not lanes or not window.contains(position):
            window = MapWindow.around(lanes, position, self._config)
            self._window = window
            self._encoding = None
        return window

    def _run(self, observation: Observation, pieces: np.ndarray) -> Forecast:
        """The forecast; an encoding of the map is kept while the pieces stay the same."""
        model: Any = self._model
        forecast: Forecast
        if not getattr(model, "keeps_map", False):
            forecast = model(observation)
            return forecast
        if self._encoding is None or not np.array_equal(pieces, self._encoded):
            self._encoding = model.encode_map(observation)
            self._encoded = pieces
        agents = model.encode_agents(observation, self._encoding)
        forecast = model.forecast(observation, self._encoding, agents)
        return forecast

    def _result(
        self, forecast: Forecast, observation: Observation, sample: Sample, steps: TrackSteps
    ) -> PredictedObjects:
        """The forecast with the ids of the tracks, in the frame of the tracks."""
        num_targets = observation.num_targets
        rows = np.array([int(name) for name in sample.agent_id[:num_targets]], np.int64)
        position = forecast.in_city_frame(observation)[0]
        confidence = forecast.probability()[0].double().cpu().numpy()
        # The order of the tracks, not that of the sample; modes by falling probability.
        back = np.argsort(rows, kind="stable")
        order = np.argsort(-confidence[back], 1, kind="stable")
        pose = sample.padded["pose"][back].astype(np.float64)
        assert self._window is not None
        pose[:, :2] += self._window.origin
        return _predicted(
            _take(steps, rows[back]),
            self._clock[0],
            pose,
            position[back[:, None], order],
            confidence[back[:, None], order],
        )

    def _check(self, scene: Scene, now_s: float) -> None:
        """Warn, from time to time, if the values of the tracks do not fit each other."""
        is_due = now_s >= self._next_check_s or now_s < self._next_check_s - CHECK_EVERY_S
        if is_due and scene.valid.sum(1).max(initial=0) == scene.num_history:
            self._next_check_s = now_s + CHECK_EVERY_S
            has_heading, has_velocity = self._given
            warn_if_implausible(scene, heading=has_heading, velocity=has_velocity)

    def _warn_about_map(self, window: MapWindow) -> None:
        """Warn once if the model was trained with maps and has no lanes."""
        if self._warned or self._trained_on.has_map is not True:
            return
        if not self._config.receives(window.pieces.kind).any():
            self._warned = True
            warn("no lane near the tracks, but the model was trained with maps; call set_map")


def _predictor(model: str | Path | nn.Module | Predictor) -> Predictor:
    if isinstance(model, Predictor):
        return model
    if isinstance(model, nn.Module):
        return Predictor(model, device=next(model.parameters(), torch.zeros(())).device)
    if is_exported(model):
        return exported_predictor(Path(model), torch.device("cpu"), "all")
    return load_predictor(model)


def _clock(trained_on: DataSpec, clock: DataSpec | None) -> tuple[float, int, int]:
    """Period in seconds, H and F (TrajformerError: unknown, or other ones than in training)."""
    values: list[float] = []
    for name in _CLOCK:
        known = getattr(trained_on, name)
        given = None if clock is None else getattr(clock, name)
        if known is None and given is None:
            raise TrajformerError(
                f"clock: {name} is unknown, because the model has no training scenes; give "
                "clock=DataSpec(period_s=0.1, num_history=20, num_future=30)"
            )
        if known is not None and given is not None and known != given:
            raise TrajformerError(f"clock: {name} {given}, but the model was trained with {known}")
        value = given if known is None else known
        assert value is not None  # one of both is known
        values.append(value)
    period_s, num_history, num_future = values
    return period_s, int(num_history), int(num_future)


def _present(steps: TrackSteps, period_s: float) -> TrackSteps:
    """The tracks that were seen in the last second."""
    num_steps = steps.valid.shape[1]
    steps_ago = steps.valid[:, ::-1].argmax(1)
    is_present = steps.valid.any(1) & (steps_ago * period_s <= SHORT_LOSS_S + ROUNDING_S)
    if is_present.all() or not num_steps:
        return steps
    return _take(steps, is_present.nonzero()[0])


def _take(steps: TrackSteps, rows: np.ndarray) -> TrackSteps:
    """Some tracks, by index int64 [m]."""
    return TrackSteps(
        ids=tuple([steps.ids[row] for row in rows.tolist()]),
        position=steps.position[rows],
        heading=steps.heading[rows],
        velocity=steps.velocity[rows],
        valid=steps.valid[rows],
        kind=steps.kind[rows],
        size=steps.size[rows],
        now_s=steps.now_s,
    )


def _last_positions(steps: TrackSteps) -> np.ndarray:
    """The last position float64 [A, 2] of each track."""
    last = steps.valid.shape[1] - 1 - steps.valid[:, ::-1].argmax(1)
    return steps.position[np.arange(len(last)), last]


def _with_focal(scene: Scene) -> Scene:
    """The scene with a focal agent, for models with its frame: the one nearest to the center."""
    last = scene.num_history - 1 - scene.valid[:, ::-1].argmax(1)
    position = scene.position[np.arange(len(last)), last]
    offset = position - position.mean(0)
    role = np.full(len(last), AgentRole.SCORED, np.uint8)
    role[np.hypot(offset[:, 0], offset[:, 1]).argmin()] = AgentRole.FOCAL
    return replace(scene, agent_role=role)


def _predicted(
    steps: TrackSteps,
    period_s: float,
    pose: np.ndarray,
    position: np.ndarray,
    confidence: np.ndarray | None = None,
) -> PredictedObjects:
    if confidence is None:
        confidence = np.zeros(position.shape[:2])
    return PredictedObjects(
        timestamp_s=steps.now_s,
        time_step_s=period_s,
        object_id=steps.ids,
        classification=steps.kind,
        pose=pose,
        shape=steps.size,
        position=position,
        confidence=confidence,
    )
