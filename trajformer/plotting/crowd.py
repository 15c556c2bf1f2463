"""Forecasts of crowds: many pedestrians with many modes each, one colour a pedestrian."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.errors import agent_index
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

# After Okabe and Ito, without black (what was recorded) and yellow (too light for thin lines).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F4FA3")
_MODE_WIDTH, _END_SIZE = 0.55, 2.2  # points
_LEAST_ALPHA, _MOST_ALPHA = 0.25, 0.8


def is_crowd(scene: Scene) -> bool:
    """True where everybody walks and nobody is the focal agent."""
    return bool((scene.agent_kind == AgentKind.PEDESTRIAN).all() and (scene.agent_role != AgentRole.FOCAL).all())


def crowd_colours(scene: Scene, forecasts: Sequence[TrackForecast]) -> dict[int, str]:
    """A colour for every agent with a forecast, by its number in the scene; those near each other differ where they can.

    Agents in the order of the scene each take the colour whose nearest owner, at the last observed step, is farthest off.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    agents = sorted({agent_index(scene, forecast) for forecast in forecasts})
    here = scene.position[:, scene.num_history - 1].astype(np.float64)
    chosen: dict[int, str] = {}
    for agent in agents:
        free = dict.fromkeys(COLOURS, np.inf)
        for other, colour in chosen.items():
            free[colour] = min(free[colour], float(np.hypot(*(here[agent] - here[other]))))
        chosen[agent] = max(COLOURS, key=lambda colour: free[colour])  # the first of equals
    return chosen


def draw_crowd(ax: Axes, scene: Scene, forecasts: Sequence[TrackForecast]) -> Axes:
    """Draw every mode of every pedestrian as a thin line with a dot at its end, metres relative to the scene's `origin`.

    Lines begin at the last observed position; probable ones are more opaque. A track's lines carry the gid
    "modes:<track id>", one path a mode in the order of the forecast; its dots "ends:<track id>".

    Args:
        ax: where to draw.
        scene: gives origin, last observed positions and what is near to what.
        forecasts: positions in the city frame.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    colours = crowd_colours(scene, forecasts)
    for number, forecast in enumerate(forecasts):
        agent = agent_index(scene, forecast)
        path = forecast.position - scene.origin
        if scene.valid[agent, scene.num_history - 1]:
            now = np.broadcast_to(scene.position[agent, scene.num_history - 1], (len(path), 1, 2))
            path = np.concatenate([now, path], 1)
        share = forecast.probability / max(float(forecast.probability.max()), 1e-12)
        rgba = np.tile(to_rgba(colours[agent]), (len(path), 1))
        rgba[:, 3] = _LEAST_ALPHA + (_MOST_ALPHA - _LEAST_ALPHA) * share
        lines = LineCollection(list(path), colors=rgba, linewidths=_MODE_WIDTH, zorder=style.Z_MODE)
        lines.set(gid=f"modes:{forecast.track_id}", label="" if number else "forecasts, a colour each")
        ax.add_collection(lines, autolim=True)
        dots = ax.scatter(path[:, -1, 0], path[:, -1, 1], s=_END_SIZE**2, c=rgba, linewidths=0, zorder=style.Z_MODE + 0.1)
        dots.set_gid(f"ends:{forecast.track_id}")
    return ax
