"""Joins forecasts with the agents of a scene: the other modules of this package draw the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.displacement import agent_errors, best_end
from trajformer.scenes.scene import AgentRole, Scene


@dataclass(frozen=True, eq=False)
class AgentForecast:
    """K modes of one agent of a scene.

    Attributes:
        agent: index of the agent in the scene.
        probability: [K], sums to 1.
        position: float64 [K, F, 2], metres, relative to the `origin` of the scene.
    """

    agent: int
    probability: np.ndarray
    position: np.ndarray


def match_forecasts(scene: Scene, forecasts: Iterable[TrackForecast]) -> list[AgentForecast]:
    """Find the agent of each forecast and convert positions from the city frame to the scene, in the order given.

    Raises:
        TrajformerError: a forecast is for another scene, for an unknown agent or has another horizon.
    """
    index = {track_id: agent for agent, track_id in enumerate(scene.agent_id)}
    matched = []
    for forecast in forecasts:
        name = f"track {forecast.track_id!r}"
        if forecast.scene_id != scene.scene_id:
            raise TrajformerError(f"the forecast of {name} is for scene {forecast.scene_id!r}, not for scene {scene.scene_id!r}")
        if forecast.track_id not in index:
            raise TrajformerError(f"scene {scene.scene_id!r} has no {name}, but a forecast for it was given")
        if forecast.position.shape[1] != scene.num_future:
            steps = f"has {forecast.position.shape[1]} steps, the scene has {scene.num_future}"
            raise TrajformerError(f"the forecast of {name} in scene {scene.scene_id!r} {steps}")
        position = np.asarray(forecast.position - scene.origin, np.float64)
        matched.append(AgentForecast(index[forecast.track_id], forecast.probability, position))
    return matched


def main_forecast(scene: Scene, forecasts: Sequence[AgentForecast]) -> AgentForecast | None:
    """The forecast of the focal agent, or the only forecast, or None."""
    focal = [forecast for forecast in forecasts if scene.agent_role[forecast.agent] == AgentRole.FOCAL]
    if focal:
        return focal[0]
    return forecasts[0] if len(forecasts) == 1 else None


def track_error(scene: Scene, forecast: AgentForecast) -> tuple[float, float] | None:
    """minADE and minFDE over all modes of one forecast, metres; None if the last future step of the agent was not recorded."""
    if scene.num_steps == scene.num_history or not scene.valid[forecast.agent, -1]:
        return None
    future = slice(scene.num_history, None)
    position = torch.from_numpy(forecast.position)[None, None]
    logit = torch.from_numpy(np.asarray(forecast.probability, np.float64)).log()[None, None]
    target = torch.from_numpy(scene.position[forecast.agent, future].astype(np.float64))[None, None]
    valid = torch.from_numpy(scene.valid[forecast.agent, future].copy())[None, None]
    values = best_end(agent_errors(Forecast(position, logit, Frame.SCENE), target, valid))
    return float(values["minADE"]), float(values["minFDE"])
