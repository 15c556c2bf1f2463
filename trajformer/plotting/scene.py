"""A scene as a picture: map, agents, recorded futures and forecasts.

Figures are created without pyplot, so there is no global state.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.plotting import style
from trajformer.plotting.colors import Colors, choose_colors
from trajformer.plotting.crowd import FAINT, draw_crowd, draw_density, is_crowd
from trajformer.plotting.fonts import escaped, families
from trajformer.plotting.forecasts import (
    AgentForecast,
    draw_forecasts,
    drawn_points,
    end_points,
    main_forecast,
    match_forecasts,
    probability_labels,
    shown_errors,
)
from trajformer.plotting.labels import Label, place_labels
from trajformer.plotting.legend import BELOW_INCHES, add_legend
from trajformer.plotting.recorded import draw_agents, draw_map, last_poses
from trajformer.plotting.view import View, choose_view, focus
from trajformer.scenes.scene import AgentRole, Scene

DPI = 150
_SIDE = 3.48  # inches, of square axes that are up to 100 m wide
_LEGIBLE_M = 100.0  # on `_SIDE`; wider pictures are larger
_LEGIBLE_AGENTS = 16  # with a forecast, on `_SIDE`
_MAX_SCALE = 2.6  # of a picture with one scene
_MAX_SCALE_IN_ROW = 1.2
_COLUMNS = 4  # scenes in a row of a picture
# inches around the square axes
_LEFT = 0.6
_DIGIT = 0.07  # more on the left for each character of a y coordinate after the fourth
_RIGHT = 0.12
_TOP = 0.45
_BOTTOM = 0.08
_MAX_ID = 20  # characters; longer scene ids are shortened
_MAX_TRACK_ID = 14
_MODEST_DIGITS = 4


@dataclass(frozen=True)
class PictureOptions:
    """What a picture shows.

    Attributes:
        density: the expected density of agents (`draw_density`) instead of modes.
        agents: track ids; only their forecasts and recorded futures are drawn, the other agents are
            gray, and the window fits them. Empty: all.
        ids: write the track ids of agents with a forecast, else of targets, else of all.
        zoom: scale relative to the window of `choose_view`.
        color: "agent", "type" or "world" (`choose_colors`).
    """

    density: bool = False
    agents: tuple[str, ...] = ()
    ids: bool = False
    zoom: float = 1.0
    color: str = "agent"


class SceneFigure(Figure):
    """A figure that notebooks show, also without a plotting backend."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        FigureCanvasAgg(self)
        self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()


@style.fixed_style
def plot_scene(
    scene: Scene,
    forecasts: Iterable[TrackForecast] | Forecast = (),
    batch: SceneBatch | None = None,
    *,
    density: bool = False,
    agents: Sequence[str] = (),
    ids: bool = False,
    zoom: float = 1.0,
    color: str = "agent",
) -> Figure:
    """Draw a scene, with or without map and future, into a new figure, which notebooks show.

    The forecasts are the content of a forecast file, or the output of a model for a `batch` that
    contains the scene. The other arguments are as in `PictureOptions`.

    Raises TrajformerError: a forecast is for another scene, for an unknown agent or has another
    horizon, or an agent of `agents` is not in the scene. ValueError: the output of a model is given
    without its batch.
    """
    if isinstance(forecasts, Forecast):
        forecasts = _of_scene(scene, forecasts, batch)
    options = PictureOptions(density, tuple(agents), ids, zoom, color)
    return draw_picture([scene], [forecasts or ()], options)


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


class Content:
    """A scene with its forecasts, as far as they are shown, and the window of the picture."""

    def __init__(
        self, scene: Scene, forecasts: Iterable[TrackForecast], options: PictureOptions
    ) -> None:
        matched = match_forecasts(scene, forecasts)
        selected = _selected(scene, options.agents)
        if selected:
            matched = [forecast for forecast in matched if forecast.agent in selected]
            # to all other parts of a picture, agents that are not selected are context
            role = np.full_like(scene.agent_role, AgentRole.CONTEXT)
            role[selected] = scene.agent_role[selected]
            scene = replace(scene, agent_role=role)
        self.colors: Colors = choose_colors(scene, matched, options.color)
        self.scene: Scene = scene
        self.forecasts = matched
        self.selected = selected
        self.view: View = choose_view(scene, matched, selected)
        if options.zoom != 1.0:
            shown = selected or [forecast.agent for forecast in matched]
            self.view = self.view.zoomed(options.zoom, focus(scene, shown))


def _selected(scene: Scene, names: Sequence[str]) -> list[int]:
    """Indices of the agents with these ids that are in the scene (TrajformerError: none is)."""
    selected = [agent for agent, name in enumerate(scene.agent_id) if name in names]
    if names and not selected:
        known = ", ".join(scene.agent_id[:5])
        raise TrajformerError(f"scene {scene.scene_id!r} has no agent {names[0]!r} (has {known} …)")
    return selected


@style.fixed_style
def draw_picture(
    scenes: Sequence[Scene],
    forecasts: Sequence[Iterable[TrackForecast]],
    options: PictureOptions = PictureOptions(),
) -> Figure:
    """Draw scenes with their forecasts in rows of at most four square axes into a new figure.

    Wide scenes and scenes with many forecasts get larger axes. Raises as `plot_scene`.
    """
    pairs = zip(scenes, forecasts, strict=True)
    return draw_contents([Content(scene, of_scene, options) for scene, of_scene in pairs], options)


def draw_contents(contents: Sequence[Content], options: PictureOptions) -> Figure:
    """Draw prepared scenes, as `draw_picture` does; the axes are `figure.axes` in their order."""
    largest = max(_legible_scale(content) for content in contents)
    limit = _MAX_SCALE if len(contents) == 1 else _MAX_SCALE_IN_ROW
    side = _SIDE * min(largest, limit)
    left = _LEFT + _DIGIT * max(max(map(_tick_length, contents)) - _MODEST_DIGITS, 0)
    cells = _Cells(len(contents), side, left)
    figure = SceneFigure(figsize=cells.size(0.0))
    FigureCanvasAgg(figure)
    axes = [figure.add_axes(box) for box in cells.boxes(0.0)]
    for ax, content in zip(axes, contents, strict=True):
        _draw(ax, content, options)
    _fit_height(figure, axes, cells)
    return figure


def _tick_length(content: Content) -> int:
    """Characters of the longest number at the y axis, with its sign."""
    center = float(content.scene.origin[1] + content.view.center[1])
    ends = (center - content.view.half, center + content.view.half)
    return max(len(f"{end:.0f}") for end in ends)


def _legible_scale(content: Content) -> float:
    """How much larger than `_SIDE` axes have to be, so that boxes and lines can be seen."""
    width = 2 * content.view.half / style.SCALE[content.scene.unit]
    crowding = np.sqrt(len(content.forecasts) / _LEGIBLE_AGENTS)
    return max(1.0, width / _LEGIBLE_M, float(crowding))


@dataclass(frozen=True)
class _Cells:
    """Square axes in rows, with space for a legend below each, inches."""

    count: int
    side: float
    left: float

    def size(self, legend: float) -> tuple[float, float]:
        """Width and height of the figure, for legends of a height."""
        columns = min(self.count, _COLUMNS)
        rows = -(-self.count // _COLUMNS)
        return columns * self._width(), rows * self._height(legend)

    def boxes(self, legend: float) -> list[tuple[float, float, float, float]]:
        """Left, bottom, width and height of the axes relative to the figure."""
        width, height = self.size(legend)
        boxes = []
        for number in range(self.count):
            x = number % _COLUMNS * self._width() + self.left
            row = number // _COLUMNS
            y = height - row * self._height(legend) - _TOP - self.side
            boxes.append((x / width, y / height, self.side / width, self.side / height))
        return boxes

    def _width(self) -> float:
        return self.left + self.side + _RIGHT

    def _height(self, legend: float) -> float:
        return _TOP + self.side + BELOW_INCHES + legend + _BOTTOM


def _fit_height(figure: Figure, axes: Sequence[Axes], cells: _Cells) -> None:
    """Make the space below the axes as high as the highest legend."""
    heights = [0.0]
    for ax in axes:
        legend = ax.get_legend()
        if legend is not None:
            heights.append(legend.get_window_extent().height / figure.dpi)
    highest = max(heights)
    figure.set_size_inches(*cells.size(highest))
    for ax, box in zip(axes, cells.boxes(highest), strict=True):
        ax.set_position(box)


@style.fixed_style
def draw_scene(
    ax: Axes,
    scene: Scene,
    forecasts: Iterable[TrackForecast] = (),
    options: PictureOptions = PictureOptions(),
) -> Axes:
    """Draw a scene with its forecasts and a legend, cropped to the relevant part.

    Data coordinates of `ax` are relative to the scene's `origin`; ticks show coordinates of the
    recording. Raises as `plot_scene`.
    """
    return _draw(ax, Content(scene, forecasts, options), options)


def _draw(ax: Axes, content: Content, options: PictureOptions) -> Axes:
    scene = content.scene
    matched = content.forecasts
    content.view.apply(ax, scene.unit, scene.origin.tolist())
    ax.set_autoscale_on(False)
    draw_map(ax, scene)
    colors = content.colors
    futures = content.selected or [forecast.agent for forecast in matched]
    if options.density:
        draw_agents(ax, scene, dict.fromkeys(futures, FAINT), futures)
        draw_density(ax, scene, matched)
    else:
        draw_agents(ax, scene, colors.face, futures, colors.future)
        _draw_modes(ax, content, options)
    ax.set_title(
        title(scene, matched), fontsize=style.FONT_PT, fontfamily=families(), parse_math=False
    )
    kinds = {}
    for agent, name in colors.kinds.items():
        kinds[name] = colors.face[agent]
    return add_legend(ax, kinds)


def _draw_modes(ax: Axes, content: Content, options: PictureOptions) -> None:
    """Forecasts, and texts without overlaps: first ids, then probabilities."""
    scene, matched, colors = content.scene, content.forecasts, content.colors
    labels: list[Label] = []
    if options.ids:
        labels += _id_labels(content)
    if is_crowd(scene) and options.color != "world":
        draw_crowd(ax, scene, matched, colors.face)
    else:
        draw_forecasts(ax, scene, matched, colors.modes)
        if options.color != "world":  # its legend has the probabilities
            labels += probability_labels(scene, matched, _text_colors(scene, colors))
    lines = drawn_points(scene, matched)
    place_labels(ax, labels, lines, end_points(scene, matched), style.INK)


def _text_colors(scene: Scene, colors: Colors) -> dict[int, str]:
    """Colors of texts by agent; the focal agent has orange texts like its modes."""
    texts = dict(colors.future)
    for agent in texts:
        if scene.agent_role[agent] == AgentRole.FOCAL:
            texts[agent] = style.FOCAL_DARK
    return texts


def _id_labels(content: Content) -> list[Label]:
    """A label for each shown agent: those with a forecast, else targets, else all."""
    scene = content.scene
    agents = content.selected or sorted({forecast.agent for forecast in content.forecasts})
    agents = agents or np.flatnonzero(scene.agent_role != AgentRole.CONTEXT).tolist()
    agents = agents or list(range(scene.num_agents))
    observed = np.flatnonzero(scene.valid[:, : scene.num_history].any(1)).tolist()
    agents = [agent for agent in agents if agent in observed]
    agents.sort(key=lambda agent: -int(scene.agent_role[agent]))
    texts = _text_colors(scene, content.colors)
    labels = []
    for agent, pose in zip(agents, last_poses(scene, agents), strict=True):
        name = scene.agent_id[agent]
        if len(name) > _MAX_TRACK_ID:
            name = f"{name[:6]}…{name[-6:]}"
        labels.append(Label(escaped(name), pose[:2], np.array([0.0, 1.0]), texts.get(agent)))
    return labels


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
