"""A scene as a picture: map, agents, recorded futures and forecasts, ready for print; and the choice of scenes to draw.

Figures are created without pyplot, so there is no global state.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator
from matplotlib.transforms import Bbox
from tqdm import tqdm

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.plotting import style
from trajformer.plotting.crowd import FAINT, crowd_colors, draw_crowd, draw_density, is_crowd
from trajformer.plotting.forecasts import (
    AgentForecast,
    draw_forecasts,
    main_forecast,
    match_forecasts,
    track_errors,
)
from trajformer.plotting.recorded import draw_agents, draw_map
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import METRES, AgentKind, AgentRole, Scene
from trajformer.scenes.store import SceneStore

FIGURE_INCHES, DPI = (4.2, 5.2), 150
_COLUMNS = 4  # scenes in a row of a picture
_LEFT, _RIGHT, _TOP = (
    0.6,
    0.12,
    0.45,
)  # inches around the square axes; the legend uses the space below
MARGIN_M, MARGIN_SHARE = 5.0, 0.05
MIN_HALF_M, MAX_TARGETS_HALF_M, MAX_HALF_M = 25.0, 50.0, 120.0
MARGIN_CROWD_M, MIN_HALF_CROWD_M = 1.5, 5.0  # for scenes with pedestrians only
_LEGEND = (  # columns
    ("focal agent", "scored agent", "other agent", "ego vehicle"),
    ("forecast (focal)", "forecast (others)", "forecast", "forecasts by agent", "recorded future"),
    ("vehicle lane", "bus lane", "bike lane", "crosswalk", "road edge", "road line"),
)
_MAX_ID = 20  # characters; longer scene ids are shortened
_TRAIL_STEPS = 10  # last history steps that are inside the window
ByScene = Mapping[str, Sequence[TrackForecast]]


def plot_scene(
    scene: Scene,
    forecasts: Iterable[TrackForecast] | Forecast = (),
    batch: SceneBatch | None = None,
    *,
    density: bool = False,
) -> Figure:
    """Draw a scene, with or without map and future, into a new figure; `density` as in `draw_scene`.

    The forecasts are the content of a forecast file, or the output of a model for a `batch` that contains the scene. Raises
    TrajformerError: a forecast is for another scene, for an unknown agent or has another horizon. ValueError: the output of a
    model is given without its batch.
    """
    if isinstance(forecasts, Forecast):
        if batch is None:
            raise ValueError(
                "the output of a model needs its batch: plot_scene(scene, forecast, batch)"
            )
        if scene.scene_id not in batch.observation.scene_id:
            raise TrajformerError(f"scene {scene.scene_id!r} is not in the batch of the forecast")
        forecasts = [
            f
            for f in track_forecasts_of(forecasts, batch.observation)
            if f.scene_id == scene.scene_id
        ]
    figure, (ax,) = _new_figure(1)
    draw_scene(ax, scene, forecasts or (), density=density)
    return figure


def _new_figure(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with square axes in rows of at most `_COLUMNS`."""
    width, height = FIGURE_INCHES
    columns, rows = min(count, _COLUMNS), -(-count // _COLUMNS)
    wide, high, side = columns * width, rows * height, width - _LEFT - _RIGHT
    corners = [
        (n % columns * width + _LEFT, (rows - n // columns) * height - _TOP - side)
        for n in range(count)
    ]
    figure = Figure(figsize=(wide, high))
    return figure, [
        figure.add_axes((x / wide, y / high, side / wide, side / high)) for x, y in corners
    ]


def draw_scene(
    ax: Axes, scene: Scene, forecasts: Iterable[TrackForecast] = (), *, density: bool = False
) -> Axes:
    """Draw a scene with its forecasts and a legend, cropped to the relevant part; crowds have one color per pedestrian.

    With `density`, the expected density of people (`draw_density`) is drawn instead of the modes. Raises as `plot_scene`.
    """
    matched = match_forecasts(scene, forecasts)
    choose_view(scene, matched).apply(ax, scene.unit)
    ax.set_autoscale_on(False)
    draw_map(ax, scene)
    futures = [forecast.agent for forecast in matched]
    if density:
        draw_agents(ax, scene, {forecast.agent: FAINT for forecast in matched}, futures)
        draw_density(ax, scene, matched)
    elif is_crowd(scene):
        draw_agents(ax, scene, crowd_colors(scene, matched), futures)
        draw_crowd(ax, scene, matched)
    else:
        draw_agents(ax, scene, futures=futures)
        draw_forecasts(ax, scene, matched)
    ax.set_title(title(scene, matched), fontsize=style.FONT_PT, parse_math=False)
    return add_legend(ax)


@dataclass(frozen=True)
class View:
    """A square window: `center` [2] relative to the scene's origin and `half` its width, in the unit of the scene."""

    center: np.ndarray
    half: float

    def apply(self, ax: Axes, unit: str = METRES) -> Axes:
        """Set limits, equal aspect, equal ticks on both axes and their labels with the unit."""
        ax.set_aspect("equal", adjustable="box")
        ax.set_xlim(self.center[0] - self.half, self.center[0] + self.half)
        ax.set_ylim(self.center[1] - self.half, self.center[1] + self.half)
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * self.half)
        for axis, name in ((ax.xaxis, f"x ({unit})"), (ax.yaxis, f"y ({unit})")):
            axis.set_major_locator(MultipleLocator(float(ticks[1] - ticks[0])))
            axis.set_label_text(name, fontsize=style.FONT_PT)
        ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
        ax.spines[:].set_linewidth(0.6)
        return ax


def choose_view(scene: Scene, forecasts: Sequence[AgentForecast] = ()) -> View:
    """A window around targets, recorded futures and forecasts, at least 50 m wide (10 m for pedestrians only).

    These and the following lengths are multiplied by `style.SCALE` for scenes in pixels.

    The focal agent and its forecast always fit, up to a width of 240 m: a diverged forecast is cut off. Other targets
    widen the window to at most 100 m, the nearest first: with their futures, otherwise with their current position,
    otherwise not at all. Without a focal agent all targets count as focal, without targets all agents.
    """
    targets, now = scene.agent_role != AgentRole.CONTEXT, scene.num_history - 1
    targets[[forecast.agent for forecast in forecasts]] = True
    seen = scene.valid.any(1)
    groups = [
        np.flatnonzero(group & seen).tolist() for group in (targets, scene.valid[:, now], seen)
    ]
    agents = next(filter(None, groups))
    here = {agent: _recorded(scene, agent, slice(now, now + 1))[0] for agent in agents}

    def points(agent: int) -> np.ndarray:
        """Positions [n, 2] of the last history steps, the recorded future and the forecasts of an agent."""
        recorded = _recorded(scene, agent, slice(max(now + 1 - _TRAIL_STEPS, 0), None))
        return np.concatenate(
            [recorded, *(f.position.reshape(-1, 2) for f in forecasts if f.agent == agent)]
        )

    pedestrians = bool((scene.agent_kind == AgentKind.PEDESTRIAN).all())
    least = (MARGIN_CROWD_M, MIN_HALF_CROWD_M) if pedestrians else (MARGIN_M, MIN_HALF_M)
    lengths = np.array([*least, MAX_TARGETS_HALF_M, MAX_HALF_M]) * style.SCALE[scene.unit]
    margin, min_half, max_targets_half, max_half = lengths.tolist()
    focal = [agent for agent in agents if scene.agent_role[agent] == AgentRole.FOCAL] or agents
    window, start = np.concatenate([points(agent) for agent in focal]), here[focal[0]]
    others = sorted(
        set(agents) - set(focal), key=lambda agent: float(np.linalg.norm(here[agent] - start))
    )
    for agent in others:
        for added in (points(agent), here[agent][None]):
            wider = np.concatenate([window, added])
            if _square(wider, margin).half <= max_targets_half:
                window = wider
                break
    view = _square(window, margin)
    return (
        View(view.center, max(view.half, min_half))
        if view.half <= max_half
        else View(start, max_half)
    )


def _square(points: np.ndarray, margin: float) -> View:
    """The square around points [n, 2], with a margin for boxes and labels."""
    low, high = points.min(0), points.max(0)
    return View((low + high) / 2, float((high - low).max()) * (0.5 + MARGIN_SHARE) + margin)


def _recorded(scene: Scene, agent: int, steps: slice) -> np.ndarray:
    """Positions [n, 2] of an agent in these steps, or in all steps if these have no valid state."""
    if not scene.valid[agent, steps].any():
        steps = slice(None)
    return scene.position[agent, steps][scene.valid[agent, steps]].astype(np.float64)


def shown_errors(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[tuple[float, float]]:
    """minADE and minFDE of the main forecast (`main_forecast`), or of all forecasts if there is none."""
    main = main_forecast(scene, forecasts)
    return track_errors(scene, forecasts if main is None else [main])


def title(scene: Scene, forecasts: Sequence[AgentForecast]) -> str:
    """Short scene id and city; below, the error of the main forecast (`main_forecast`) or the mean error of all."""
    name = (
        scene.scene_id
        if len(scene.scene_id) <= _MAX_ID
        else f"{scene.scene_id[:8]}…{scene.scene_id[-8:]}"
    )
    lines = [f"{name}, {scene.city}" if scene.city else name]
    main = main_forecast(scene, forecasts)
    if known := shown_errors(scene, forecasts):
        ade, fde = np.mean(known, 0)
        subject = f"mean of {len(known)} agents" if main is None else f"K = {len(main.probability)}"
        if main is not None and scene.agent_role[main.agent] != AgentRole.FOCAL:
            subject = f"track {scene.agent_id[main.agent]}, {subject}"
        lines.append(f"minADE {ade:.2f} {scene.unit}, minFDE {fde:.2f} {scene.unit} ({subject})")
    return "\n".join(lines)


def add_legend(ax: Axes) -> Axes:
    """Add a legend below the axes; it names each kind of artist inside the limits once."""
    view = Bbox(np.transpose([ax.get_xlim(), ax.get_ylim()]))
    entries: dict[str, Artist] = {}
    artist: Any
    for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
        filled = isinstance(artist, Collection)
        paths = artist.get_paths() if filled else [artist.get_path()]
        if any(path.intersects_bbox(view, filled=filled) for path in paths):
            entries.setdefault(name, artist)
    columns = list(
        filter(None, ([name for name in column if name in entries] for column in _LEGEND))
    )
    if not columns:
        return ax
    rows = max(map(len, columns))
    names = [name for column in columns for name in column + [""] * (rows - len(column))]
    empty = Line2D([], [], linestyle="none")
    ax.legend(
        [entries.get(name, empty) for name in names], names, loc="upper center", bbox_to_anchor=(0.5, -0.12), borderaxespad=0.0,
        ncols=len(columns), fontsize=style.SMALL_PT, frameon=False, columnspacing=1.2, handletextpad=0.5, labelspacing=0.35,
    )  # fmt: skip
    return ax


def choose_scenes(
    store: SceneStore,
    forecasts: ByScene,
    *,
    scene_ids: Sequence[str] = (),
    worst: int | None = None,
    random: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of scenes to draw, each once: the scenes `scene_ids`, then `worst` scenes, then `random` scenes.

    The worst scenes have the largest minFDE of the main forecast, which the title shows, or of any agent if there is none, worst
    first; scenes without a recorded future are left out. The random ones are other scenes with forecasts (any scenes if there are
    no forecasts); equal seeds give equal choices. Without any selection, these are all scenes with forecasts (all scenes if there
    are none). Forecasts for scenes that are not in the store are ignored. Raises StoreError: a requested scene is missing.
    TrajformerError: a forecast does not fit its scene.
    """
    chosen, ids = store.find(scene_ids), store.scene_ids()
    candidates = [
        index for index, scene_id in enumerate(ids) if forecasts.get(scene_id) or not forecasts
    ]
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None:
        largest: dict[int, float] = {}
        for index in candidates if forecasts else ():
            scene = store[index]
            if errors := shown_errors(scene, match_forecasts(scene, forecasts[ids[index]])):
                largest[index] = max(fde for _, fde in errors)
        chosen += sorted(largest, key=lambda index: (-largest[index], index))[:worst]
    if random is not None:
        rest = sorted(set(candidates) - set(chosen))
        chosen += [
            rest[i] for i in np.random.default_rng(seed).permutation(len(rest))[:random].tolist()
        ]
    return list(dict.fromkeys(chosen))


def file_name(scene_id: str) -> str:
    """A scene id as a file name without folder and suffix; changed ids get a digest, so that names are unique."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", scene_id).lstrip(".")[:120]
    return (
        safe
        if safe and safe == scene_id
        else f"{safe or 'scene'}-{hashlib.sha256(scene_id.encode()).hexdigest()[:8]}"
    )


def save_scene_plots(
    store: SceneStore,
    indices: Sequence[int],
    forecasts: ByScene,
    out: Path,
    *,
    progress: bool = True,
    density: bool = False,
) -> list[Path]:
    """Write one PNG per scene, `out/<scene id>.png`, or one PNG `out` with the scenes in rows; returns the paths.

    `out` is a folder, created if missing, or a file with the suffix .png. Scenes without forecasts are drawn as well. Raises
    TrajformerError: a forecast does not fit its scene. OSError: the folder cannot be written.
    """
    single, paths = out.suffix == ".png", []
    panels = [list(indices)] if single else [[index] for index in indices]
    for group in tqdm(panels, desc="plot", unit="picture", disable=not progress):
        figure, axes = _new_figure(len(group))
        for ax, index in zip(axes, group, strict=True):
            scene = store[index]
            draw_scene(ax, scene, forecasts.get(scene.scene_id, ()), density=density)
        paths.append(out if single else out / f"{file_name(scene.scene_id)}.png")
        save_figure(figure, paths[-1])
    return paths


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, and clear it; raises as `atomically`. Equal figures give equal bytes."""
    with atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})
    figure.clear()  # artists and axes form reference cycles: without this, memory grows until garbage collection
