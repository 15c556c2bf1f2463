"""A scene as a picture: map, agents, recorded futures and forecasts, ready for print.

Everything draws onto a given `Axes` and returns it. Figures are made without pyplot, so that nothing is global.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.agents import draw_agents
from trajformer.plotting.crowd import crowd_colours, draw_crowd, is_crowd
from trajformer.plotting.density import draw_density, faint_colours
from trajformer.plotting.forecasts import draw_forecasts
from trajformer.plotting.map import draw_map
from trajformer.plotting.select import choose_scenes
from trajformer.plotting.view import add_legend, choose_view, title
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

__all__ = [
    "choose_scenes",
    "draw_agents",
    "draw_crowd",
    "draw_density",
    "draw_forecasts",
    "draw_map",
    "plot_scene",
    "save_scene_plots",
]

FIGURE_INCHES = (4.2, 5.2)
_LEFT, _RIGHT, _TOP = 0.6, 0.12, 0.45  # inches around the square of the axes; the legend has what is left below


def plot_scene(
    scene: Scene,
    forecasts: Sequence[TrackForecast] = (),
    *,
    ax: Axes | None = None,
    radius: float | None = None,
    legend: bool = True,
    density: bool = False,
) -> Axes:
    """Draw one scene with its forecasts, cropped to what matters; where all walk, with a colour a pedestrian.

    Args:
        scene: any scene, with or without map and future.
        forecasts: of agents of this scene, positions in the city frame.
        ax: where to draw; a figure of its own is made when None (`ax.figure`).
        radius: half the width of the window around the focal agent, metres; chosen from the contents when None.
        legend: put a legend below the axes.
        density: instead of every mode, draw where people are expected to be (`draw_density`).

    Raises:
        TrajformerError: a forecast belongs to another scene, to no agent of this one, or has another horizon.
    """
    if ax is None:
        ax = _new_axes()
    choose_view(scene, forecasts, radius).apply(ax)
    ax.set_autoscale_on(False)
    draw_map(ax, scene)
    if density:
        draw_agents(ax, scene, colours=faint_colours(scene, forecasts))
        draw_density(ax, scene, forecasts)
    elif is_crowd(scene):
        draw_agents(ax, scene, colours=crowd_colours(scene, forecasts))
        draw_crowd(ax, scene, forecasts)
    else:
        draw_agents(ax, scene)
        draw_forecasts(ax, scene, forecasts)
    ax.set_title(title(scene, forecasts), fontsize=style.FONT_PT)
    if legend:
        add_legend(ax)
    return ax


def _new_axes() -> Axes:
    """A square of fixed place in a figure of fixed size: labels are placed for it, pictures of a series match."""
    figure = Figure(figsize=FIGURE_INCHES)
    FigureCanvasAgg(figure)
    width, height = FIGURE_INCHES
    side = width - _LEFT - _RIGHT
    return figure.add_axes((_LEFT / width, (height - _TOP - side) / height, side / width, side / height))


def file_name(scene_id: str) -> str:
    """A scene id as a file name without folder and ending; ids that had to be changed get a digest, to stay apart."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", scene_id).lstrip(".")[:120]
    return safe if safe and safe == scene_id else f"{safe or 'scene'}-{hashlib.sha256(scene_id.encode()).hexdigest()[:8]}"


def save_scene_plots(
    store: SceneStore,
    indices: Sequence[int],
    forecasts: Mapping[str, Sequence[TrackForecast]],
    out: Path,
    *,
    dpi: int = 150,
    progress: bool = True,
    density: bool = False,
) -> list[Path]:
    """Write one PNG a scene, `out/<scene id>.png`, and return the paths in the order of `indices`.

    Args:
        store: where the scenes lie.
        indices: which of them, see `choose_scenes`.
        forecasts: by scene id; a scene without any is drawn without.
        out: a folder, made when missing; each file is written under a temporary name and renamed.
        dpi: dots an inch; the picture is 4.2 by 5.2 inches.
        progress: show a progress bar.
        density: see `plot_scene`.

    Raises:
        TrajformerError: a forecast does not fit its scene.
        OSError: the folder cannot be written.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in tqdm(indices, desc="plot", unit="scene", disable=not progress):
        scene = store[index]
        ax = _new_axes()
        figure = ax.get_figure(root=True)
        assert isinstance(figure, Figure)
        plot_scene(scene, forecasts.get(scene.scene_id, ()), ax=ax, density=density)
        path = out / f"{file_name(scene.scene_id)}.png"
        save_figure(figure, path, dpi=dpi)
        figure.clear()  # artists and axes refer to each other: without this they live until the collector runs
        paths.append(path)
    return paths


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG under a temporary name, then rename it; equal figures give equal bytes.

    Raises:
        OSError: the folder cannot be written; no temporary file is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(temporary, format="png", dpi=dpi, metadata={"Software": None})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
