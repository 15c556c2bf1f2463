"""Forecasts over a scene: one line per mode, opaque where probable, with the probability at the end of the line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from trajformer.plotting import style
from trajformer.plotting.agents import outlines
from trajformer.plotting.labels import Label, place_labels
from trajformer.plotting.matching import AgentForecast, main_forecast
from trajformer.scenes.scene import AgentRole, Scene

MIN_ALPHA = 0.3
MIN_LABELED = 0.005  # a smaller probability would be written as 0.00


def draw_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast], *, labels: bool = True) -> Axes:
    """Draw all modes of all forecasts, metres relative to the scene's `origin`, probable modes on top.

    Modes of the focal agent have the focal color and end in circles, others are thinner and end in squares.
    Line k of a track has the gid "mode:<track id>:<k>".

    Args:
        ax: where to draw; labels are placed for the current limits and size.
        scene: has the agents of the forecasts.
        forecasts: joined with this scene.
        labels: write probabilities, see `label_forecasts`.
    """
    for forecast in forecasts:
        _draw_modes(ax, forecast, scene.agent_id[forecast.agent], focal=_is_focal(scene, forecast))
    return label_forecasts(ax, scene, forecasts) if labels else ax


def _is_focal(scene: Scene, forecast: AgentForecast) -> bool:
    return bool(scene.agent_role[forecast.agent] == AgentRole.FOCAL)


def _draw_modes(ax: Axes, forecast: AgentForecast, track_id: str, *, focal: bool) -> None:
    color, width, zorder = style.SCORED, 0.9, style.Z_MODE
    name, marker, size = "forecast (others)", "s", 2.6
    if focal:
        color, width, zorder = style.FOCAL, 1.6, style.Z_FOCAL_MODE
        name, marker, size = "forecast (focal)", "o", 4.2
    order = np.argsort(-forecast.probability, kind="stable")
    max_probability = max(float(forecast.probability.max()), 1e-12)
    for rank, mode in enumerate(order.tolist()):
        alpha = MIN_ALPHA + (1.0 - MIN_ALPHA) * float(forecast.probability[mode]) / max_probability
        (line,) = ax.plot(*forecast.position[mode].T, color=color, linewidth=width, alpha=alpha)
        line.set(marker=marker, markersize=size, markevery=[-1], markeredgecolor=style.PAPER, markeredgewidth=0.4)
        line.set(gid=f"mode:{track_id}:{mode}", zorder=zorder - 0.4 * rank / len(order))
        line.set(label="" if rank else name, solid_capstyle="butt", solid_joinstyle="round")


def label_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Write probabilities at end points without overlaps, the most probable first; a label without space is left out.

    If there is a main forecast (`main_forecast`), all its modes are labeled, otherwise the best mode of each agent.
    Labels avoid end points and, if possible, lines. They fit the current limits and size of `ax`.
    """
    main = main_forecast(scene, forecasts)
    labels: list[Label] = []
    for forecast in forecasts if main is None else [main]:
        order = np.argsort(-forecast.probability, kind="stable")
        for mode in order[: None if forecast is main else 1].tolist():
            path, probability = forecast.position[mode], float(forecast.probability[mode])
            if probability >= MIN_LABELED:
                middle = path[max(len(path) // 2 - 1, 0)]
                labels.append(Label(f"{probability:.2f}", path[-1], path[-1] - middle))
    future = scene.position[:, scene.num_history :][scene.valid[:, scene.num_history :]]
    paths = [forecast.position.reshape(-1, 2) for forecast in forecasts]
    lines = np.concatenate([*paths, future, *outlines(scene, scene.num_history - 1)])
    recorded_ends = [scene.position[f.agent][scene.valid[f.agent]][-1:] for f in forecasts]
    ends = np.concatenate([*(f.position[:, -1] for f in forecasts), *recorded_ends, np.zeros((0, 2))])
    focal = main is not None and _is_focal(scene, main)
    place_labels(ax, labels, lines, ends, style.FOCAL_DARK if focal else style.SCORED_DARK)
    return ax
