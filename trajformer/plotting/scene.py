"""A scene as a picture: map, agents, recorded futures and forecasts, ready for print; and the choice of scenes to draw.

Figures are created without pyplot, so there is no global state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.plotting import style
from trajformer.plotting.crowd import FAINT, crowd_colors, draw_crowd, draw_density, is_crowd
from trajformer.plotting.forecasts import draw_forecasts, match_forecasts, track_error
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.view import add_legend, choose_view, title
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

FIGURE_INCHES = (4.2, 5.2)
_LEFT, _RIGHT, _TOP = 0.6, 0.12, 0.45  # inches around the square axes; the legend uses the space below


def plot_scene(
    scene: Scene,
    forecasts: Iterable[TrackForecast] | Forecast | None = None,
    batch: SceneBatch | None = None,
    *,
    density: bool = False,
) -> Figure:
    """Draw a scene with its forecasts into a new figure.

    Args:
        scene: any scene, with or without map and future.
        forecasts: of agents of this scene, as in a forecast file, or the output of a model.
        batch: the batch of the model's output; it contains this scene.
        density: see `draw_scene`.

    Raises:
        TrajformerError: a forecast is for another scene, for an unknown agent or has another horizon.
        ValueError: the output of a model is given without its batch.
    """
    if isinstance(forecasts, Forecast):
        if batch is None:
            raise ValueError("the output of a model needs its batch: plot_scene(scene, forecast, batch)")
        forecasts = [f for f in track_forecasts_of(forecasts, batch.observation) if f.scene_id == scene.scene_id]
    figure, (ax,) = _new_figure(1)
    draw_scene(ax, scene, forecasts or (), density=density)
    return figure


def _new_figure(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with square axes in one row."""
    width, height = FIGURE_INCHES
    figure = Figure(figsize=(count * width, height))
    FigureCanvasAgg(figure)
    side, total = width - _LEFT - _RIGHT, count * width
    boxes = [((n * width + _LEFT) / total, (height - _TOP - side) / height, side / total, side / height) for n in range(count)]
    return figure, [figure.add_axes(box) for box in boxes]


def draw_scene(ax: Axes, scene: Scene, forecasts: Iterable[TrackForecast] = (), *, density: bool = False) -> Axes:
    """Draw a scene with its forecasts and a legend, cropped to the relevant part; crowds have one color per pedestrian.

    Args:
        ax: where to draw.
        scene: any scene, with or without map and future.
        forecasts: of agents of this scene, positions in the city frame.
        density: draw the expected density of people (`draw_density`) instead of every mode.

    Raises:
        TrajformerError: a forecast is for another scene, for an unknown agent or has another horizon.
    """
    matched = match_forecasts(scene, forecasts)
    choose_view(scene, matched).apply(ax)
    ax.set_autoscale_on(False)
    draw_map(ax, scene)
    if density:
        draw_agents(ax, scene, {forecast.agent: FAINT for forecast in matched})
        draw_density(ax, scene, matched)
    elif is_crowd(scene):
        draw_agents(ax, scene, crowd_colors(scene, matched))
        draw_crowd(ax, scene, matched)
    else:
        draw_agents(ax, scene)
        draw_forecasts(ax, scene, matched)
    ax.set_title(title(scene, matched), fontsize=style.FONT_PT)
    return add_legend(ax)


def choose_scenes(
    store: SceneStore,
    forecasts: Mapping[str, Sequence[TrackForecast]],
    *,
    scene_ids: Sequence[str] = (),
    worst: int | None = None,
    random: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of scenes to draw: scenes by id, then the worst scenes, then random scenes, each scene once.

    Args:
        store: the split.
        forecasts: by scene id; scenes that are not in the store are ignored.
        scene_ids: these scenes, in this order.
        worst: this number of scenes with the largest minFDE of any agent, worst first; scenes without a recorded
            future are left out.
        random: this number of other scenes with forecasts (of all scenes if there are no forecasts).
        seed: of the random choice; equal seeds give equal choices.

    Returns:
        Indices into `store`; without any selection all scenes with forecasts (all scenes if there are no forecasts).

    Raises:
        StoreError: a requested scene is not in the store.
        TrajformerError: a forecast does not fit its scene.
    """
    chosen = store.find(scene_ids) if scene_ids else []
    ids = store.scene_ids()
    candidates = [index for index, scene_id in enumerate(ids) if forecasts.get(scene_id) or not forecasts]
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None:
        largest: dict[int, float] = {}
        for index in candidates if forecasts else ():
            scene = store[index]
            errors = [track_error(scene, forecast) for forecast in match_forecasts(scene, forecasts[ids[index]])]
            if known := [error[1] for error in errors if error is not None]:
                largest[index] = max(known)
        chosen += sorted(largest, key=lambda index: (-largest[index], index))[:worst]
    if random is not None:
        rest = sorted(set(candidates) - set(chosen))
        chosen += [rest[i] for i in np.random.default_rng(seed).permutation(len(rest))[:random].tolist()]
    return list(dict.fromkeys(chosen))


def file_name(scene_id: str) -> str:
    """A scene id as a file name without folder and suffix; changed ids get a digest, so that names are unique."""
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
    """Write one PNG per scene, `out/<scene id>.png`, or one PNG `out` with the scenes in one row; returns the paths.

    Args:
        store: the scenes.
        indices: scenes to draw, see `choose_scenes`.
        forecasts: by scene id; scenes without forecasts are drawn as well.
        out: a folder, created if missing, or a file with the suffix .png.
        dpi: dots per inch; a scene has 4.2 by 5.2 inches.
        progress: show a progress bar.
        density: see `draw_scene`.

    Raises:
        TrajformerError: a forecast does not fit its scene.
        OSError: the folder cannot be written.
    """
    panels = [list(indices)] if out.suffix == ".png" else [[index] for index in indices]
    paths = []
    for group in tqdm(panels, desc="plot", unit="picture", disable=not progress):
        figure, axes = _new_figure(len(group))
        scenes = [store[index] for index in group]
        for ax, scene in zip(axes, scenes, strict=True):
            draw_scene(ax, scene, forecasts.get(scene.scene_id, ()), density=density)
        paths.append(out if out.suffix == ".png" else out / f"{file_name(scenes[0].scene_id)}.png")
        save_figure(figure, paths[-1], dpi=dpi)
        figure.clear()  # artists and axes form reference cycles: without this, memory grows until garbage collection
    return paths


def save_figure(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG, atomically; equal figures give equal bytes.

    Raises:
        OSError: the folder cannot be written; no temporary file is left behind.
    """
    with atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi, metadata={"Software": None})
