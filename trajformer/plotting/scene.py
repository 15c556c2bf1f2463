"""A scene as a picture: map, agents, recorded futures and forecasts; and the choice of scenes.

Figures are created without pyplot, so there is no global state.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox
from tqdm import tqdm

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.plotting import style
from trajformer.plotting.crowd import FAINT, crowd_colors, draw_crowd, draw_density, is_crowd
from trajformer.plotting.fonts import escaped, families
from trajformer.plotting.forecasts import (
    AgentForecast,
    draw_forecasts,
    main_forecast,
    match_forecasts,
    track_errors,
)
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.plotting.view import choose_view
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.store import SceneStore

FIGURE_INCHES = (4.2, 5.2)
DPI = 150
SOFTWARE = "trajformer"  # in the pictures of this program
_COLUMNS = 4  # scenes in a row of a picture
# inches around the square axes; the legend uses the space below
_LEFT = 0.6
_RIGHT = 0.12
_TOP = 0.45
_LEGEND = (  # columns
    ("focal agent", "scored agent", "other agent", "ego vehicle"),
    ("forecast (focal)", "forecast (others)", "forecast", "forecasts by agent", "recorded future"),
    ("vehicle lane", "bus lane", "bike lane", "crosswalk", "road edge", "road line"),
)
_MAX_ID = 20  # characters; longer scene ids are shortened
ByScene = Mapping[str, Sequence[TrackForecast]]


@style.fixed_style
def plot_scene(
    scene: Scene,
    forecasts: Iterable[TrackForecast] | Forecast = (),
    batch: SceneBatch | None = None,
    *,
    density: bool = False,
) -> Figure:
    """Draw a scene, with or without map and future, into a new figure.

    `density` is that of `draw_scene`.
    The forecasts are the content of a forecast file, or the output of a model for a `batch` that
    contains the scene. Raises TrajformerError: a forecast is for another scene, for an unknown
    agent or has another horizon. ValueError: the output of a model is given without its batch.
    """
    if isinstance(forecasts, Forecast):
        forecasts = _of_scene(scene, forecasts, batch)
    figure, (ax,) = _new_figure(1)
    draw_scene(ax, scene, forecasts or (), density=density)
    return figure


def _of_scene(scene: Scene, forecast: Forecast, batch: SceneBatch | None) -> list[TrackForecast]:
    """The part of a model's output that is for a scene."""
    if batch is None:
        raise ValueError(
            "the output of a model needs its batch: plot_scene(scene, forecast, batch)"
        )
    if scene.scene_id not in batch.observation.scene_id:
        raise TrajformerError(f"scene {scene.scene_id!r} is not in the batch of the forecast")
    tracks = track_forecasts_of(forecast, batch.observation)
    return [track for track in tracks if track.scene_id == scene.scene_id]


def _new_figure(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with square axes in rows of at most `_COLUMNS`."""
    cell_width, cell_height = FIGURE_INCHES
    columns = min(count, _COLUMNS)
    rows = -(-count // _COLUMNS)
    width = columns * cell_width
    height = rows * cell_height
    side = cell_width - _LEFT - _RIGHT
    figure = Figure(figsize=(width, height))
    axes = []
    for number in range(count):
        x = number % columns * cell_width + _LEFT
        y = (rows - number // columns) * cell_height - _TOP - side
        axes.append(figure.add_axes((x / width, y / height, side / width, side / height)))
    return figure, axes


@style.fixed_style
def draw_scene(
    ax: Axes, scene: Scene, forecasts: Iterable[TrackForecast] = (), *, density: bool = False
) -> Axes:
    """Draw a scene with its forecasts and a legend, cropped to the relevant part.

    Crowds have one color per pedestrian. With `density`, the expected density of people
    (`draw_density`) is drawn instead of the modes. Raises as `plot_scene`.
    """
    matched = match_forecasts(scene, forecasts)
    choose_view(scene, matched).apply(ax, scene.unit)
    ax.set_autoscale_on(False)
    draw_map(ax, scene)
    futures = [forecast.agent for forecast in matched]
    if density:
        draw_agents(ax, scene, dict.fromkeys(futures, FAINT), futures)
        draw_density(ax, scene, matched)
    elif is_crowd(scene):
        draw_agents(ax, scene, crowd_colors(scene, matched), futures)
        draw_crowd(ax, scene, matched)
    else:
        draw_agents(ax, scene, futures=futures)
        draw_forecasts(ax, scene, matched)
    ax.set_title(
        title(scene, matched), fontsize=style.FONT_PT, fontfamily=families(), parse_math=False
    )
    return add_legend(ax)


def shown_errors(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[tuple[float, float]]:
    """minADE and minFDE of the main forecast (`main_forecast`), or of all if there is none."""
    main = main_forecast(scene, forecasts)
    return track_errors(scene, forecasts if main is None else [main])


def title(scene: Scene, forecasts: Sequence[AgentForecast]) -> str:
    """Short scene id and city, and the error of the main forecast or the mean error of all."""
    name = escaped(scene.scene_id)
    if len(name) > _MAX_ID:
        name = f"{name[:8]}…{name[-8:]}"
    if scene.city:
        name = f"{name}, {escaped(scene.city)}"
    known = shown_errors(scene, forecasts)
    if not known:
        return name
    main = main_forecast(scene, forecasts)
    if main is None:
        subject = f"mean of {len(known)} agents"
    else:
        subject = f"K = {len(main.probability)}"
        if scene.agent_role[main.agent] != AgentRole.FOCAL:
            subject = f"track {escaped(scene.agent_id[main.agent])}, {subject}"
    ade, fde = np.mean(known, 0)
    return f"{name}\nminADE {ade:.2f} {scene.unit}, minFDE {fde:.2f} {scene.unit} ({subject})"


def add_legend(ax: Axes) -> Axes:
    """Add a legend below the axes; it names each kind of artist inside the limits once."""
    entries = _visible_entries(ax)
    columns = []
    for group in _LEGEND:
        visible = [name for name in group if name in entries]
        if visible:
            columns.append(visible)
    if not columns:
        return ax
    # matplotlib fills columns of equal length, so short ones end with empty entries
    rows = max(len(column) for column in columns)
    names: list[str] = []
    for column in columns:
        names += column + [""] * (rows - len(column))
    empty = Line2D([], [], linestyle="none")
    ax.legend(
        [entries.get(name, empty) for name in names],
        names,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        borderaxespad=0.0,
        ncols=len(columns),
        fontsize=style.SMALL_PT,
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.5,
        labelspacing=0.35,
    )
    return ax


def _visible_entries(ax: Axes) -> dict[str, Artist]:
    """The first artist of each label that is inside the limits."""
    view = Bbox(np.transpose([ax.get_xlim(), ax.get_ylim()]))
    entries: dict[str, Artist] = {}
    artist: Any
    for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
        filled = isinstance(artist, Collection)
        paths = artist.get_paths() if filled else [artist.get_path()]
        if any(path.intersects_bbox(view, filled=filled) for path in paths):
            entries.setdefault(name, artist)
    return entries


def choose_scenes(
    store: SceneStore,
    forecasts: ByScene,
    *,
    scene_ids: Sequence[str] = (),
    worst: int | None = None,
    random: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of scenes to draw, each once: `scene_ids`, then `worst` scenes, then `random` scenes.

    The worst scenes have the largest minFDE of the main forecast, which the title shows, or of any
    agent if there is no main forecast; the worst is the first. Scenes without a recorded future are
    never among them. The random scenes are other scenes with forecasts, or any scenes if there are
    no forecasts; equal seeds give equal choices. Without `scene_ids`, `worst` and `random`, the
    result is all scenes with forecasts, or all scenes if there are no forecasts. Forecasts for
    scenes that are not in the store are ignored.

    Raises StoreError: a requested scene is missing. TrajformerError: a forecast does not fit its
    scene.
    """
    chosen = store.find(scene_ids)
    ids = store.scene_ids()
    candidates = list(range(len(ids)))
    if forecasts:
        candidates = [index for index in candidates if forecasts.get(ids[index])]
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None and forecasts:
        chosen += _worst_scenes(store, forecasts, candidates)[:worst]
    if random is not None:
        others = sorted(set(candidates) - set(chosen))
        order = np.random.default_rng(seed).permutation(len(others))
        chosen += [others[i] for i in order[:random].tolist()]
    return list(dict.fromkeys(chosen))


def _worst_scenes(store: SceneStore, forecasts: ByScene, candidates: Sequence[int]) -> list[int]:
    """The candidates with a recorded future, sorted by the largest minFDE shown, worst first."""
    largest: dict[int, float] = {}
    for index in candidates:
        scene = store[index]
        errors = shown_errors(scene, match_forecasts(scene, forecasts[scene.scene_id]))
        if errors:
            largest[index] = max(fde for _, fde in errors)
    return sorted(largest, key=lambda index: (-largest[index], index))


def file_name(scene_id: str) -> str:
    """A scene id as a file name without folder and suffix.

    Changed ids get a digest, so that names are unique.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", scene_id).lstrip(".")[:120]
    if safe and safe == scene_id:
        return safe
    digest = hashlib.sha256(scene_id.encode()).hexdigest()[:8]
    return f"{safe or 'scene'}-{digest}"


@style.fixed_style
def save_scene_plots(
    store: SceneStore,
    indices: Sequence[int],
    forecasts: ByScene,
    out: Path,
    *,
    progress: bool = True,
    density: bool = False,
) -> list[Path]:
    """Write one PNG per scene, `out/<scene id>.png`, or one PNG `out` with the scenes in rows.

    Returns the paths. `out` is a folder, created if missing, or a file with the suffix .png. Scenes
    without forecasts are drawn as well. Raises TrajformerError: a forecast does not fit its scene.
    OSError: the folder cannot be written.
    """
    one_file = out.suffix == ".png"
    groups = [list(indices)] if one_file else [[index] for index in indices]
    paths = []
    for group in tqdm(groups, desc="plot", unit="picture", disable=not progress):
        figure, axes = _new_figure(len(group))
        for ax, index in zip(axes, group, strict=True):
            scene = store[index]
            draw_scene(ax, scene, forecasts.get(scene.scene_id, ()), density=density)
        path = out
        if not one_file:
            [index] = group
            path = out / f"{file_name(store[index].scene_id)}.png"
        save_figure(figure, path)
        paths.append(path)
    return paths


@style.fixed_style
def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, and clear it; equal figures give equal bytes.

    Raises as `atomically`. TrajformerError: the file exists and is no picture of this program.
    """
    if path.is_file() and path.stat().st_size > 0:
        with path.open("rb") as file:
            is_replaceable = f"Software\0{SOFTWARE}".encode() in file.read(512)
        if not is_replaceable:
            raise TrajformerError(f"{path}: exists and is no picture of trajformer, so it is kept")
    with atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": SOFTWARE})
    # artists and axes form reference cycles: without this, memory grows until garbage collection
    figure.clear()
