"""Forecasts of crowds: a color per pedestrian for many modes, or expected numbers of people."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.image import AxesImage

from trajformer.plotting import style
from trajformer.plotting.colors import agent_colors
from trajformer.plotting.forecasts import AgentForecast
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

_MODE_WIDTH = 0.55  # points
_END_SIZE = 2.2  # points
_MIN_ALPHA = 0.25
_MAX_ALPHA = 0.8

SPREAD_M = 0.3  # about one step of a slow pedestrian, so that the steps of a mode form a path
_CELL_M = 0.1
_MAX_CELLS = 320  # in a row
# a standing group is about ten times as dense as walking people: both have to be visible
_GAMMA = 0.5
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
    pedestrians = scene.agent_kind == AgentKind.PEDESTRIAN
    focal = scene.agent_role == AgentRole.FOCAL
    return bool(pedestrians.all() and not focal.any())


def draw_crowd(
    ax: Axes,
    scene: Scene,
    forecasts: Sequence[AgentForecast],
    colors: Mapping[int, str] | None = None,
) -> Axes:
    """Draw all modes of all pedestrians as a thin line with a dot at its end.

    Metres relative to the scene's `origin`; `colors` by index of the agent; None: the
    colors of `agent_colors`. Lines start in the last observed position. Probable
    modes are more opaque. The lines of a track have the gid "modes:<track id>", one path per mode
    in the order of the forecast; the dots have the gid "ends:<track id>".
    """
    if colors is None:
        colors = agent_colors(scene, forecasts)
    for number, forecast in enumerate(forecasts):
        track_id = scene.agent_id[forecast.agent]
        path = _from_present(scene, forecast)
        relative = forecast.probability / max(float(forecast.probability.max()), 1e-12)
        rgba = np.tile(to_rgba(colors[forecast.agent]), (len(path), 1))
        rgba[:, 3] = _MIN_ALPHA + (_MAX_ALPHA - _MIN_ALPHA) * relative
        lines = LineCollection(list(path), colors=rgba, linewidths=_MODE_WIDTH)
        lines.set(zorder=style.Z_MODE, gid=f"modes:{track_id}")
        lines.set_label("" if number else "forecasts by agent")
        ax.add_collection(lines, autolim=True)
        dots = ax.scatter(path[:, -1, 0], path[:, -1, 1], s=_END_SIZE**2, c=rgba, linewidths=0)
        dots.set(zorder=style.Z_MODE + 0.1, gid=f"ends:{track_id}")
    return ax


def _from_present(scene: Scene, forecast: AgentForecast) -> np.ndarray:
    """Paths [K, 1 + F, 2] from the last observed position, or [K, F, 2] if it is unknown."""
    now = scene.num_history - 1
    if not scene.valid[forecast.agent, now]:
        return forecast.position
    present = scene.position[forecast.agent, now]
    start = np.broadcast_to(present, (len(forecast.position), 1, 2))
    return np.concatenate([start, forecast.position], 1)


def draw_density(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw the expected number of agents per square metre (or 20 x 20 pixels), with a color scale.

    The number is the mean over the predicted steps. Each forecast counts as one agent, distributed
    over the modes by their probabilities. The image covers the current limits of `ax` and has the
    gid "density". Without forecasts nothing is drawn.
    """
    if not forecasts:
        return ax
    left, right = ax.get_xlim()
    limits = ax.get_ylim()
    bottom, top = sorted(limits)  # y points down in a video
    smallest = _CELL_M * style.SCALE[scene.unit]
    cell = max(smallest, (right - left) / _MAX_CELLS, (top - bottom) / _MAX_CELLS)
    half = cell / 2
    # centers of the cells
    x = np.arange(left + half, right, cell)
    y = np.arange(bottom + half, top, cell)
    density = _density(scene, forecasts, x, y)
    x_extent = (float(x[0] - half), float(x[-1] + half))
    y_extent = (float(y[0] - half), float(y[-1] + half))
    extent = (*x_extent, *y_extent)
    largest = max(float(density.max()), 1e-9)
    norm = PowerNorm(_GAMMA, vmin=0.0, vmax=largest)
    image = ax.imshow(density, extent=extent, origin="lower", cmap=_SHADES, norm=norm)
    image.set(interpolation="bilinear", gid="density", zorder=style.Z_TRAIL - 0.5)
    ax.set_aspect("equal", adjustable="box")
    _draw_scale(ax, scene, image, largest)
    ax.set(xlim=(left, right), ylim=limits)
    return ax


def _density(
    scene: Scene, forecasts: Sequence[AgentForecast], x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """People per area [rows, columns]; each point of a mode is a normal distribution."""
    spread = SPREAD_M * style.SCALE[scene.unit]
    points = []
    weights = []
    for forecast in forecasts:
        points.append(forecast.position.reshape(-1, 2))
        # the mean over the steps
        weight_of_step = forecast.probability / scene.num_future
        weights.append(np.repeat(weight_of_step, scene.num_future))
    position = np.concatenate(points)
    weight = np.concatenate(weights)
    # the normal distribution of each point is the product of a column and a row
    along_x = _normal(x - position[:, 0, None], spread)  # [points, columns]
    along_y = _normal(y - position[:, 1, None], spread)  # [points, rows]
    return (along_y * weight[:, None]).T @ along_x


def _normal(distance: np.ndarray, spread: float) -> np.ndarray:
    """The density of a normal distribution."""
    return np.exp(-0.5 * (distance / spread) ** 2) / (spread * np.sqrt(2 * np.pi))


def _draw_scale(ax: Axes, scene: Scene, image: AxesImage, largest: float) -> None:
    """A color bar in the upper left corner of the axes; `largest` is the largest density."""
    scale = ax.inset_axes((0.03, 0.93, 0.36, 0.02), zorder=style.Z_LABEL)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, cax=scale, orientation="horizontal")
    bar.outline.set_linewidth(0.4)
    scale.tick_params(labelsize=style.LABEL_PT - 1.0, width=0.4, length=1.5, pad=1.0)
    # the side of the area: about one metre, because numbers per pixel would be too long
    side = style.SCALE[scene.unit]
    ticks = [largest * fraction for fraction in (0.0, 0.1, 0.4, 1.0)]
    bar.set_ticks(ticks, labels=[f"{tick * side**2:.2g}" for tick in ticks])
    seconds = scene.period_s * scene.num_future
    subject = "people" if is_crowd(scene) else "agents"
    area = f"{scene.unit}²" if side == 1 else f"({side:g} {scene.unit})²"
    text = f"{subject} per {area}, mean of {seconds:g} s"
    scale.set_title(text, fontsize=style.LABEL_PT - 0.5, pad=2.0, loc="left")
