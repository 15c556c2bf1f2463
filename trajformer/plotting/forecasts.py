"""Forecasts over a scene: one line a mode, opaque where probable, and the probability at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.agents import agent_group, outlines
from trajformer.plotting.errors import agent_index
from trajformer.plotting.labels import Label, place_labels
from trajformer.scenes.scene import Scene

LEAST_ALPHA = 0.3
LEAST_LABELLED = 0.005  # a smaller probability would read 0.00


def main_forecast(scene: Scene, forecasts: Sequence[TrackForecast]) -> TrackForecast | None:
    """The forecast a picture is about: the focal agent's, or the only one there is, or None.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    groups = [agent_group(scene, agent_index(scene, forecast)) for forecast in forecasts]
    if "focal" in groups:
        return forecasts[groups.index("focal")]
    return forecasts[0] if len(forecasts) == 1 else None


def draw_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[TrackForecast], *, labels: bool = True) -> Axes:
    """Draw every mode of every forecast, metres relative to the scene's `origin`, the least probable lowest.

    The focal agent's modes are in the focal colour and end in circles, others are thinner and end in squares.
    Line k of a track carries the gid "mode:<track id>:<k>".

    Args:
        ax: where to draw; labels are placed for its present limits and size.
        scene: gives origin and roles.
        forecasts: positions in the city frame.
        labels: also write probabilities, see `label_forecasts`.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    for forecast in forecasts:
        _draw_modes(ax, scene, forecast, focal=_is_focal(scene, forecast))
    return label_forecasts(ax, scene, forecasts) if labels else ax


def _is_focal(scene: Scene, forecast: TrackForecast) -> bool:
    return agent_group(scene, agent_index(scene, forecast)) == "focal"


def _draw_modes(ax: Axes, scene: Scene, forecast: TrackForecast, *, focal: bool) -> None:
    colour, width, zorder = style.SCORED, 0.9, style.Z_MODE
    name, marker, size = "forecast (others)", "s", 2.6
    if focal:
        colour, width, zorder = style.FOCAL, 1.6, style.Z_FOCAL_MODE
        name, marker, size = "forecast (focal)", "o", 4.2
    position = forecast.position - scene.origin
    order = np.argsort(-forecast.probability, kind="stable")
    highest = max(float(forecast.probability.max()), 1e-12)
    for rank, mode in enumerate(order.tolist()):
        alpha = LEAST_ALPHA + (1.0 - LEAST_ALPHA) * float(forecast.probability[mode]) / highest
        (line,) = ax.plot(position[mode, :, 0], position[mode, :, 1], color=colour, linewidth=width, alpha=alpha)
        line.set(marker=marker, markersize=size, markevery=[-1], markeredgecolor=style.PAPER, markeredgewidth=0.4)
        line.set(gid=f"mode:{forecast.track_id}:{mode}", zorder=zorder - 0.4 * rank / len(order))
        line.set(label="" if rank else name, solid_capstyle="butt", solid_joinstyle="round")


def label_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[TrackForecast]) -> Axes:
    """Write probabilities at the end points, where there is room: the most probable first, none on top of another.

    All modes of the focal (or only) forecast are written, of several others without a focal one the best of each.
    Labels keep clear of end points and, where they can, of lines; they fit the present limits and size of `ax`.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    main = main_forecast(scene, forecasts)
    labels: list[Label] = []
    for forecast in forecasts if main is None else [main]:
        best = np.argsort(-forecast.probability, kind="stable")[: None if forecast is main else 1]
        for mode in best.tolist():
            path = forecast.position[mode] - scene.origin
            if (probability := float(forecast.probability[mode])) >= LEAST_LABELLED:
                back = path[max(len(path) // 2 - 1, 0)]
                labels.append(Label(f"{probability:.2f}", path[-1], path[-1] - back))
    paths = [f.position.reshape(-1, 2) - scene.origin for f in forecasts]
    future = scene.position[:, scene.num_history :][scene.valid[:, scene.num_history :]]
    lines = np.concatenate([*paths, future, *outlines(scene, scene.num_history - 1)])
    recorded = [scene.position[a][scene.valid[a]][-1:] for a in (agent_index(scene, f) for f in forecasts)]
    ends = np.concatenate([*(f.position[:, -1] - scene.origin for f in forecasts), *recorded, np.zeros((0, 2))])
    focal = main is not None and _is_focal(scene, main)
    place_labels(ax, labels, lines, ends, style.FOCAL_DARK if focal else style.SCORED_DARK)
    return ax
