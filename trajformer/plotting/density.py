"""Where people will be: a map of how many are expected, from all modes of all forecasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.errors import agent_index
from trajformer.scenes.scene import Scene

SPREAD_M = 0.3  # about a step of somebody who walks slowly, so that the steps of a mode make a path
_CELL_M, _MOST_CELLS = 0.1, 320  # cells of a picture, and how many in a row at most
_GAMMA = 0.5  # a group that stands about is ten times as dense as people who walk; both are to be seen
_SHADES = LinearSegmentedColormap.from_list(
    "density",
    [(1.0, 0.82, 0.45, 0.0), (1.0, 0.70, 0.28, 0.75), (0.90, 0.35, 0.15, 0.9), (0.62, 0.06, 0.28, 0.95), (0.25, 0.0, 0.25, 1.0)],
)


def expected_density(
    position: np.ndarray, weight: np.ndarray, x: np.ndarray, y: np.ndarray, spread_m: float = SPREAD_M
) -> np.ndarray:
    """Density of weighted points, each a normal distribution: [len(y), len(x)], per square metre.

    Args:
        position: [n, 2] points, metres.
        weight: [n] people that each stands for; the integral of the density over the plane is their sum.
        x: columns, metres.
        y: rows, metres.
        spread_m: standard deviation of the normal distributions.
    """
    across, along = (
        np.exp(-0.5 * ((axis - position[:, i, None]) / spread_m) ** 2) / (spread_m * np.sqrt(2 * np.pi))
        for i, axis in enumerate((x, y))
    )
    return (along * weight[:, None]).T @ across


def faint_colours(scene: Scene, forecasts: Sequence[TrackForecast]) -> dict[int, str]:
    """See-through colours for agents with a forecast, by their number in the scene: near them the density is highest."""
    return {agent_index(scene, forecast): style.SCORED + "40" for forecast in forecasts}


def draw_density(ax: Axes, scene: Scene, forecasts: Sequence[TrackForecast]) -> Axes:
    """Draw how many people are expected on each square metre, the mean over the predicted steps, with a scale.

    Every forecast counts as one person, spread over its modes by their probabilities. The image covers the present limits
    of `ax` and has the gid "density".

    Args:
        ax: where to draw, metres relative to the scene's `origin`.
        scene: gives origin and step period.
        forecasts: positions in the city frame; nothing is drawn where there are none.

    Raises:
        TrajformerError: a forecast belongs to another scene or to no agent of this one.
    """
    for forecast in forecasts:
        agent_index(scene, forecast)
    if not forecasts:
        return ax
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    cell = max(_CELL_M, (right - left) / _MOST_CELLS, (top - bottom) / _MOST_CELLS)
    x, y = (np.arange(low + cell / 2, high, cell) for low, high in ((left, right), (bottom, top)))
    position = np.concatenate([(f.position - scene.origin).reshape(-1, 2) for f in forecasts])
    weight = np.concatenate([np.repeat(f.probability / f.position.shape[1], f.position.shape[1]) for f in forecasts])
    density = expected_density(position, weight, x, y)
    extent = (float(x[0] - cell / 2), float(x[-1] + cell / 2), float(y[0] - cell / 2), float(y[-1] + cell / 2))
    highest = max(float(density.max()), 1e-9)
    norm = PowerNorm(_GAMMA, vmin=0.0, vmax=highest)
    image = ax.imshow(density, extent=extent, origin="lower", cmap=_SHADES, norm=norm, interpolation="bilinear")
    image.set(gid="density", zorder=style.Z_TRAIL - 0.5)
    ax.set_aspect("equal", adjustable="box")
    scale = ax.inset_axes((0.03, 0.93, 0.36, 0.02), zorder=style.Z_LABEL)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(image, cax=scale, orientation="horizontal")
    bar.outline.set_linewidth(0.4)
    scale.tick_params(labelsize=style.LABEL_PT - 1.0, width=0.4, length=1.5, pad=1.0)
    ticks = [highest * share for share in (0.0, 0.1, 0.4, 1.0)]
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    seconds = scene.period_s * scene.num_future
    scale.set_title(f"people per m², mean of {seconds:g} s", fontsize=style.LABEL_PT - 0.5, pad=2.0, loc="left")
    ax.set(xlim=(left, right), ylim=(bottom, top))
    return ax
