"""Forecasts of crowds: one color per pedestrian for many modes, or a map of the expected number of people."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba

from trajformer.plotting import style
from trajformer.plotting.forecasts import AgentForecast
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

# After Okabe and Ito, without black (recorded futures) and yellow (too light for thin lines).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F4FA3")
_MODE_WIDTH, _END_SIZE = 0.55, 2.2  # points
_MIN_ALPHA, _MAX_ALPHA = 0.25, 0.8

SPREAD_M = 0.3  # about one step of a slow pedestrian, so that the steps of a mode form a path
_CELL_M, _MAX_CELLS = 0.1, 320  # size of a cell, and the largest number of cells in a row
_GAMMA = (
    0.5  # a standing group is about ten times as dense as walking people: both have to be visible
)
FAINT = style.SCORED + "40"  # agents with a forecast in the density: it is highest near them
_SHADES = LinearSegmentedColormap.from_list(
    "density",
    [
        (1.0, 0.82, 0.45, 0.0),
        (1.0, 0.70, 0.28, 0.75),
        (0.90, 0.35, 0.15, 0.9),
        (0.62, 0.06, 0.28, 0.95),
        (0.25, 0.0, 0.25, 1.0),
    ],
)


def is_crowd(scene: Scene) -> bool:
    """True if all agents are pedestrians and none is the focal agent."""
    return bool(
        (scene.agent_kind == AgentKind.PEDESTRIAN).all()
        and (scene.agent_role != AgentRole.FOCAL).all()
    )


def crowd_colors(scene: Scene, forecasts: Sequence[AgentForecast]) -> dict[int, str]:
    """Colors by index of the agents with a forecast; close neighbors get different colors if possible.

    In the order of the scene, each agent takes the color that is farthest away (last observed step).
    """
    now = scene.position[:, scene.num_history - 1].astype(np.float64)
    colors: dict[int, str] = {}
    for agent in sorted({forecast.agent for forecast in forecasts}):
        distance = dict.fromkeys(COLORS, np.inf)
        for other, color in colors.items():
            distance[color] = min(distance[color], float(np.hypot(*(now[agent] - now[other]))))
        colors[agent] = max(COLORS, key=lambda color: distance[color])  # the first of equals
    return colors


def draw_crowd(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw all modes of all pedestrians as a thin line with a dot at its end, metres relative to the scene's `origin`.

    Lines start in the last observed position. Probable modes are more opaque. The lines of a track have the gid
    "modes:<track id>", one path per mode in the order of the forecast; the dots have the gid "ends:<track id>".
    """
    colors = crowd_colors(scene, forecasts)
    for number, forecast in enumerate(forecasts):
        path, track_id = forecast.position, scene.agent_id[forecast.agent]
        if scene.valid[forecast.agent, scene.num_history - 1]:
            now = np.broadcast_to(
                scene.position[forecast.agent, scene.num_history - 1], (len(path), 1, 2)
            )
            path = np.concatenate([now, path], 1)  # [K, 1 + F, 2]
        share = forecast.probability / max(float(forecast.probability.max()), 1e-12)
        rgba = np.tile(to_rgba(colors[forecast.agent]), (len(path), 1))
        rgba[:, 3] = _MIN_ALPHA + (_MAX_ALPHA - _MIN_ALPHA) * share
        lines = LineCollection(list(path), colors=rgba, linewidths=_MODE_WIDTH, zorder=style.Z_MODE)
        lines.set(gid=f"modes:{track_id}", label="" if number else "forecasts by agent")
        ax.add_collection(lines, autolim=True)
        dots = ax.scatter(
            path[:, -1, 0],
            path[:, -1, 1],
            s=_END_SIZE**2,
            c=rgba,
            linewidths=0,
            zorder=style.Z_MODE + 0.1,
        )
        dots.set_gid(f"ends:{track_id}")
    return ax


def draw_density(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw the expected number of agents per square metre (or 20 x 20 pixels), the mean over the predicted steps, with a
    color scale.

    Each forecast counts as one agent, distributed over the modes by their probabilities. The image covers the current
    limits of `ax` and has the gid "density". Without forecasts nothing is drawn.
    """
    if not forecasts:
        return ax
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    spread = SPREAD_M * style.SCALE[scene.unit]
    cell = max(
        _CELL_M * style.SCALE[scene.unit], (right - left) / _MAX_CELLS, (top - bottom) / _MAX_CELLS
    )
    x, y = (np.arange(low + cell / 2, high, cell) for low, high in ((left, right), (bottom, top)))
    position = np.concatenate([forecast.position.reshape(-1, 2) for forecast in forecasts])
    weight = np.concatenate(
        [np.repeat(f.probability / scene.num_future, scene.num_future) for f in forecasts]
    )
    scaled = [(axis - position[:, i, None]) / spread for i, axis in enumerate((x, y))]
    across, along = (
        np.exp(-0.5 * distance**2) / (spread * np.sqrt(2 * np.pi)) for distance in scaled
    )
    density = (
        along * weight[:, None]
    ).T @ across  # people per area; each point is a normal distribution
    extent = (
        float(x[0] - cell / 2),
        float(x[-1] + cell / 2),
        float(y[0] - cell / 2),
        float(y[-1] + cell / 2),
    )
    vmax = max(float(density.max()), 1e-9)
    norm = PowerNorm(_GAMMA, vmin=0.0, vmax=vmax)
    image = ax.imshow(
        density, extent=extent, origin="lower", cmap=_SHADES, norm=norm, interpolation="bilinear"
    )
    image.set(gid="density", zorder=style.Z_TRAIL - 0.5)
    ax.set_aspect("equal", adjustable="box")
    scale = ax.inset_axes((0.03, 0.93, 0.36, 0.02), zorder=style.Z_LABEL)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, cax=scale, orientation="horizontal")
    bar.outline.set_linewidth(0.4)
    scale.tick_params(labelsize=style.LABEL_PT - 1.0, width=0.4, length=1.5, pad=1.0)
    ticks = [vmax * share for share in (0.0, 0.1, 0.4, 1.0)]
    area = style.SCALE[
        scene.unit
    ]  # about one metre: numbers per pixel would be too long for labels
    bar.set_ticks(ticks, labels=[f"{tick * area**2:.2g}" for tick in ticks])
    seconds = scene.period_s * scene.num_future
    subject = "people" if is_crowd(scene) else "agents"
    square = f"{scene.unit}²" if area == 1 else f"({area:g} {scene.unit})²"
    scale.set_title(
        f"{subject} per {square}, mean of {seconds:g} s",
        fontsize=style.LABEL_PT - 0.5,
        pad=2.0,
        loc="left",
    )
    ax.set(xlim=(left, right), ylim=(bottom, top))
    return ax
