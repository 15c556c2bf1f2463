"""Forecasts of the agents of a scene: one line per mode, opaque where probable, and probabilities.

The text of a probability is at the end of its line; `labels.py` writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.displacement import agent_errors, best_end
from trajformer.plotting import style
from trajformer.plotting.labels import Label
from trajformer.plotting.recorded import outlines
from trajformer.scenes.scene import AgentRole, Scene

MIN_ALPHA = 0.3
MIN_LABELED = 0.005  # a smaller probability would be written as 0.00
MAX_LABELED = 12  # agents with a probability, if no forecast is the main one


class AgentForecast(NamedTuple):
    """K modes of one agent of a scene."""

    agent: int  # index in the scene
    probability: np.ndarray  # [K], sums to 1
    position: np.ndarray  # float64 [K, F, 2], metres, relative to the `origin` of the scene


def match_forecasts(scene: Scene, forecasts: Iterable[TrackForecast]) -> list[AgentForecast]:
    """Find the agent of each forecast and convert positions from the city frame to the scene.

    Raises TrajformerError: a forecast is for another scene or an unknown agent, has another
    horizon, or is not finite.
    """
    agents = {track_id: agent for agent, track_id in enumerate(scene.agent_id)}
    matched = []
    for forecast in forecasts:
        _check_fit(scene, forecast, agents)
        position = np.asarray(forecast.position - scene.origin, np.float64)
        agent = agents[forecast.track_id]
        matched.append(AgentForecast(agent, forecast.probability, position))
    return matched


def _check_fit(scene: Scene, forecast: TrackForecast, agents: dict[str, int]) -> None:
    name = f"track {forecast.track_id!r}"
    scene_name = f"scene {scene.scene_id!r}"
    if forecast.scene_id != scene.scene_id:
        other = f"scene {forecast.scene_id!r}"
        raise TrajformerError(f"the forecast of {name} is for {other}, not for {scene_name}")
    if forecast.track_id not in agents:
        raise TrajformerError(f"{scene_name} has no {name}, but a forecast for it was given")
    steps = forecast.position.shape[1]
    if steps != scene.num_future:
        reason = f"has {steps} steps, the scene has {scene.num_future}"
        raise TrajformerError(f"the forecast of {name} in {scene_name} {reason}")
    finite = np.isfinite(forecast.position).all() and np.isfinite(forecast.probability).all()
    if not finite:
        raise TrajformerError(f"the forecast of {name} in {scene_name} has NaN or infinity")


def main_forecast(scene: Scene, forecasts: Sequence[AgentForecast]) -> AgentForecast | None:
    """The forecast of the focal agent, or the only forecast, or None."""
    for forecast in forecasts:
        if scene.agent_role[forecast.agent] == AgentRole.FOCAL:
            return forecast
    if len(forecasts) == 1:
        return forecasts[0]
    return None


def track_errors(scene: Scene, forecasts: Iterable[AgentForecast]) -> list[tuple[float, float]]:
    """minADE and minFDE over all modes of each forecast, metres.

    Only agents with a recorded last future step have errors.
    """
    if scene.num_steps == scene.num_history:
        return []
    errors = []
    for forecast in forecasts:
        if scene.valid[forecast.agent, -1]:
            errors.append(_errors(scene, forecast))
    return errors


def shown_errors(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[tuple[float, float]]:
    """minADE and minFDE of the main forecast (`main_forecast`), or of all without one."""
    main = main_forecast(scene, forecasts)
    return track_errors(scene, forecasts if main is None else [main])


def _errors(scene: Scene, forecast: AgentForecast) -> tuple[float, float]:
    future = scene.position[forecast.agent, scene.num_history :].astype(np.float64)
    recorded = scene.valid[forecast.agent, scene.num_history :]
    # one scene with one target: [B, S] = [1, 1]
    position = torch.tensor(forecast.position)[None, None]
    logit = torch.tensor(forecast.probability)[None, None].log()
    target = torch.tensor(future)[None, None]
    valid = torch.tensor(recorded)[None, None]
    errors = agent_errors(Forecast(position, logit, Frame.SCENE), target, valid)
    metrics = best_end(errors.most_probable(len(forecast.probability)))
    return float(metrics["minADE"]), float(metrics["minFDE"])


class ModeStyle(NamedTuple):
    """Look of modes, and their name in the legend."""

    name: str
    color: str
    width: float
    zorder: float
    marker: str
    marker_size: float


_FOCAL_MODES = ModeStyle("forecast (focal)", style.FOCAL, 1.6, style.Z_FOCAL_MODE, "o", 4.2)
_OTHER_MODES = ModeStyle("forecast (others)", style.SCORED, 0.9, style.Z_MODE, "s", 2.6)


def styles_by_role(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[ModeStyle]:
    """The looks of forecasts: one for the focal agent and one for all other agents."""
    focal = [scene.agent_role[forecast.agent] == AgentRole.FOCAL for forecast in forecasts]
    others = _OTHER_MODES
    if not any(focal):
        others = others._replace(name="forecast")
    return [_FOCAL_MODES if is_focal else others for is_focal in focal]


def draw_forecasts(
    ax: Axes,
    scene: Scene,
    forecasts: Sequence[AgentForecast],
    looks: Sequence[Sequence[ModeStyle]] | None = None,
) -> Axes:
    """Draw all modes of all forecasts, metres relative to the scene's `origin`.

    Probable modes are on top and, if all modes of an agent have one color, more opaque. By default,
    modes of the focal agent have the focal color and end in circles, others are thinner and end in
    squares; `looks` gives one style per forecast and mode instead. Line k of a track has the gid
    "mode:<track id>:<k>".
    """
    if looks is None:
        of_agent = styles_by_role(scene, forecasts)
        looks = [[look] * len(f.probability) for f, look in zip(forecasts, of_agent, strict=True)]
    for forecast, of_mode in zip(forecasts, looks, strict=True):
        _draw_modes(ax, forecast, scene.agent_id[forecast.agent], of_mode)
    return ax


def _draw_modes(
    ax: Axes, forecast: AgentForecast, track_id: str, looks: Sequence[ModeStyle]
) -> None:
    order = np.argsort(-forecast.probability, kind="stable")
    max_probability = max(float(forecast.probability.max()), 1e-12)
    one_color = len({look.color for look in looks}) == 1
    for rank, mode in enumerate(order.tolist()):
        look = looks[mode]
        x, y = forecast.position[mode].T
        (line,) = ax.plot(x, y, color=look.color, linewidth=look.width)
        if one_color:
            relative = float(forecast.probability[mode]) / max_probability
            line.set_alpha(MIN_ALPHA + (1.0 - MIN_ALPHA) * relative)
        line.set(solid_capstyle="butt", solid_joinstyle="round")
        line.set(marker=look.marker, markersize=look.marker_size, markevery=[-1])
        line.set(markeredgecolor=style.PAPER, markeredgewidth=0.4)
        line.set(gid=f"mode:{track_id}:{mode}", zorder=look.zorder - 0.4 * rank / len(order))
        line.set_label(look.name)  # the legend shows each name once


def probability_labels(
    scene: Scene, forecasts: Sequence[AgentForecast], colors: Mapping[int, str]
) -> list[Label]:
    """Labels of end points with probabilities, the most probable first, in the agents' colors.

    If there is a main forecast (`main_forecast`), they belong to all its modes, otherwise the
    best mode of each agent. More than `MAX_LABELED` agents have no labels.
    """
    main = main_forecast(scene, forecasts)
    if main is not None:
        return _labels(main, len(main.probability), colors.get(main.agent))
    labels: list[Label] = []
    if len(forecasts) <= MAX_LABELED:
        for forecast in forecasts:
            labels += _labels(forecast, 1, colors.get(forecast.agent))
    return labels


def _labels(forecast: AgentForecast, count: int, color: str | None) -> list[Label]:
    """The labels of the `count` most probable modes; very small probabilities have none."""
    order = np.argsort(-forecast.probability, kind="stable")
    labels = []
    for mode in order[:count].tolist():
        path = forecast.position[mode]
        probability = float(forecast.probability[mode])
        if probability >= MIN_LABELED:
            middle = path[max(len(path) // 2 - 1, 0)]
            labels.append(Label(f"{probability:.2f}", path[-1], path[-1] - middle, color))
    return labels


def drawn_points(scene: Scene, forecasts: Sequence[AgentForecast]) -> np.ndarray:
    """Points [n, 2] of modes, recorded futures and agents, which labels avoid if possible."""
    points = [forecast.position.reshape(-1, 2) for forecast in forecasts]
    future = scene.position[:, scene.num_history :]
    points.append(future[scene.valid[:, scene.num_history :]])
    present = np.flatnonzero(scene.valid[:, scene.num_history - 1])
    points += outlines(scene, present.tolist())
    return np.concatenate(points)


def end_points(scene: Scene, forecasts: Sequence[AgentForecast]) -> np.ndarray:
    """Last points [n, 2] of modes and recordings, which labels never cover."""
    ends = [np.zeros((0, 2))]
    for forecast in forecasts:
        recorded = scene.position[forecast.agent][scene.valid[forecast.agent]]
        ends += [forecast.position[:, -1], recorded[-1:]]
    return np.concatenate(ends)
