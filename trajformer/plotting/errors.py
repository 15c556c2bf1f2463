"""How far forecasts on disk are from what was recorded, by the same definition as the metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.displacement import displacement
from trajformer.scenes.scene import Scene


@dataclass(frozen=True)
class TrackError:
    """minADE and minFDE in metres over all modes of one track's forecast."""

    min_ade_m: float
    min_fde_m: float


def agent_index(scene: Scene, forecast: TrackForecast) -> int:
    """Number of the forecast's agent in its scene.

    Raises:
        TrajformerError: the forecast is for another scene, or the scene has no such agent.
    """
    if forecast.scene_id != scene.scene_id:
        raise TrajformerError(f"forecast of scene {forecast.scene_id!r} given for scene {scene.scene_id!r}")
    if forecast.track_id not in scene.agent_id:
        raise TrajformerError(f"scene {scene.scene_id!r} has no track {forecast.track_id!r}, which is forecast")
    return scene.agent_id.index(forecast.track_id)


def track_error(scene: Scene, forecast: TrackForecast) -> TrackError | None:
    """Errors of one forecast, or None where the scene does not know the agent's last future step.

    Raises:
        TrajformerError: another scene's forecast, no such agent, or another horizon than the scene's.
    """
    agent = agent_index(scene, forecast)
    if forecast.position.shape[1] != scene.num_future:
        steps = f"{forecast.position.shape[1]} steps, the scene has {scene.num_future}"
        raise TrajformerError(f"forecast of track {forecast.track_id!r} in scene {scene.scene_id!r}: {steps}")
    future = slice(scene.num_history, None)
    if scene.num_steps == scene.num_history or not scene.valid[agent, -1]:
        return None
    position = torch.from_numpy(np.asarray(forecast.position - scene.origin, np.float64))
    logit = torch.from_numpy(np.asarray(forecast.probability, np.float64)).log()
    values, _ = displacement(
        Forecast(position[None, None], logit[None, None], Frame.SCENE),
        torch.from_numpy(scene.position[agent, future].astype(np.float64))[None, None],
        torch.from_numpy(scene.valid[agent, future].copy())[None, None],
        k=len(forecast.probability),
    )
    return TrackError(float(values["minADE"]), float(values["minFDE"]))
