"""Forecasts of the agents of a scene: one line per mode, opaque where probable, and probabilities.

The text of a probability stands at the end of its line (`labels.py`).
"""

from collections.abc import Iterable, Sequence
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
from trajformer.plotting.labels import Label, place_labels
from trajformer.plotting.recorded import outlines
from trajformer.scenes.scene import AgentRole, Scene

MIN_ALPHA = 0.3
MIN_LABELED = 0.005  # a smaller probability would be written as 0.00


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


class _ModeStyle(NamedTuple):
    """Look of the modes of an agent."""

    name: str
    color: str
    width: float
    zorder: float
    marker: str
    marker_size: float


_FOCAL_MODES = _ModeStyle("forecast (focal)", style.FOCAL, 1.6, style.Z_FOCAL_MODE, "o", 4.2)
_OTHER_MODES = _ModeStyle("forecast (others)", style.SCORED, 0.9, style.Z_MODE, "s", 2.6)


def draw_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw all modes of all forecasts, metres relative to the scene's `origin`, and probabilities.

    Probable modes are on top. Modes of the focal agent have the focal color and end in circles,
    others are thinner and end in squares. Line k of a track has the gid "mode:<track id>:<k>".
    Labels fit the current limits and size of `ax`.
    """
    focal = [scene.agent_role[forecast.agent] == AgentRole.FOCAL for forecast in forecasts]
    others = _OTHER_MODES
    if not any(focal):
        others = others._replace(name="forecast")
    for forecast, is_focal in zip(forecasts, focal, strict=True):
        look = _FOCAL_MODES if is_focal else others
        _draw_modes(ax, forecast, scene.agent_id[forecast.agent], look)
    _draw_probabilities(ax, scene, forecasts)
    return ax


def _draw_modes(ax: Axes, forecast: AgentForecast, track_id: str, look: _ModeStyle) -> None:
    order = np.argsort(-forecast.probability, kind="stable")
    max_probability = max(float(forecast.probability.max()), 1e-12)
    for rank, mode in enumerate(order.tolist()):
        relative = float(forecast.probability[mode]) / max_probability
        x, y = forecast.position[mode].T
        (line,) = ax.plot(x, y, color=look.color, linewidth=look.width)
        line.set_alpha(MIN_ALPHA + (1.0 - MIN_ALPHA) * relative)
        line.set(solid_capstyle="butt", solid_joinstyle="round")
        line.set(marker=look.marker, markersize=look.marker_size, markevery=[-1])
        line.set(markeredgecolor=style.PAPER, markeredgewidth=0.4)
        line.set(gid=f"mode:{track_id}:{mode}", zorder=look.zorder - 0.4 * rank / len(order))
        # one entry per agent; the legend shows each name once
        line.set_label("" if rank else look.name)


def _draw_probabilities(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> None:
    """Write probabilities at end points without overlaps, the most probable first.

    If there is a main forecast (`main_forecast`), all its modes are labeled, otherwise the best
    mode of each agent. Labels avoid end points and, if possible, lines.
    """
    main = main_forecast(scene, forecasts)
    color = style.SCORED_DARK
    labels: list[Label] = []
    if main is None:
        for forecast in forecasts:
            labels += _labels(forecast, 1)
    else:
        labels = _labels(main, len(main.probability))
        if scene.agent_role[main.agent] == AgentRole.FOCAL:
            color = style.FOCAL_DARK
    place_labels(ax, labels, _drawn_points(scene, forecasts), _end_points(scene, forecasts), color)


def _labels(forecast: AgentForecast, count: int) -> list[Label]:
    """The labels of the `count` most probable modes; very small probabilities have none."""
    order = np.argsort(-forecast.probability, kind="stable")
    labels = []
    for mode in order[:count].tolist():
        path = forecast.position[mode]
        probability = float(forecast.probability[mode])
        if probability >= MIN_LABELED:
            middle = path[max(len(path) // 2 - 1, 0)]
            labels.append(Label(f"{probability:.2f}", path[-1], path[-1] - middle))
    return labels


def _drawn_points(scene: Scene, forecasts: Sequence[AgentForecast]) -> np.ndarray:
    """Points [n, 2] of modes, recorded futures and agents, which labels avoid if possible."""
    points = [forecast.position.reshape(-1, 2) for forecast in forecasts]
    future = scene.position[:, scene.num_history :]
    points.append(future[scene.valid[:, scene.num_history :]])
    present = np.flatnonzero(scene.valid[:, scene.num_history - 1])
    points += outlines(scene, present.tolist())
    return np.concatenate(points)


def _end_points(scene: Scene, forecasts: Sequence[AgentForecast]) -> np.ndarray:
    """Last points [n, 2] of modes and recordings, which labels never cover."""
    ends = [np.zeros((0, 2))]
    for forecast in forecasts:
        recorded = scene.position[forecast.agent][scene.valid[forecast.agent]]
        ends += [forecast.position[:, -1], recorded[-1:]]
    return np.concatenate(ends)
