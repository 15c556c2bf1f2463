"""Which part of the plane a picture of a scene shows, and the frame around it: axes, title and legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator
from matplotlib.transforms import Bbox

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.agents import agent_group
from trajformer.plotting.errors import agent_index, track_error
from trajformer.plotting.forecasts import main_forecast
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

MARGIN_M, MARGIN_SHARE = 5.0, 0.05
LEAST_HALF_M, MOST_HALF_M, LARGEST_HALF_M = 25.0, 50.0, 120.0
MARGIN_CROWD_M, LEAST_HALF_CROWD_M = 1.5, 5.0  # where everyone walks
_LEGEND = (  # columns
    ("focal agent", "scored agent", "other agent", "ego vehicle"),
    ("forecast (focal)", "forecast (others)", "forecasts, a colour each", "recorded future"),
    ("vehicle lane", "bus lane", "bike lane", "crosswalk"),
)
_LONGEST_ID = 20  # characters; a longer one is shortened
_TRAIL_STEPS = 10  # of the history, this much should be seen


@dataclass(frozen=True)
class View:
    """A square window: `centre` [2] relative to the scene's origin, `half` its half width, metres."""

    centre: np.ndarray
    half: float

    def apply(self, ax: Axes) -> Axes:
        """Set limits, equal aspect, equal ticks on both axes and their labels."""
        ax.set_aspect("equal", adjustable="box")
        ax.set_xlim(self.centre[0] - self.half, self.centre[0] + self.half)
        ax.set_ylim(self.centre[1] - self.half, self.centre[1] + self.half)
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * self.half)
        for axis, name in ((ax.xaxis, "x (m)"), (ax.yaxis, "y (m)")):
            axis.set_major_locator(MultipleLocator(float(ticks[1] - ticks[0])))
            axis.set_label_text(name, fontsize=style.FONT_PT)
        ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
        for spine in ax.spines.values():
            spine.set_linewidth(0.6)
        return ax


def choose_view(scene: Scene, forecasts: Sequence[TrackForecast] = (), radius: float | None = None) -> View:
    """A window on the targets, their recorded futures and their forecasts, at least 50 m wide (10 m where all walk).

    The focal agent and its forecast always fit (up to 240 m: a diverged forecast is cut off). Other targets widen the
    window to at most 100 m, nearest first: with their futures, else themselves alone, else not at all. Without a focal
    agent all targets, without targets all agents count as focal. With `radius` (metres) it is 2 * radius wide and
    centred on the focal agent's part.
    """
    forecast_ids = {forecast.track_id for forecast in forecasts}
    shown = (scene.agent_role != AgentRole.CONTEXT) | np.array([i in forecast_ids for i in scene.agent_id])
    for group in (shown, scene.valid[:, scene.num_history - 1], scene.valid.any(1)):
        agents = np.flatnonzero(group & scene.valid.any(1)).tolist()
        if agents:
            break
    walking = bool((scene.agent_kind == AgentKind.PEDESTRIAN).all())
    margin, least = (MARGIN_CROWD_M, LEAST_HALF_CROWD_M) if walking else (MARGIN_M, LEAST_HALF_M)
    focal = [agent for agent in agents if scene.agent_role[agent] == AgentRole.FOCAL] or agents
    window = np.concatenate([_points(scene, agent, forecasts) for agent in focal])
    if radius is not None:
        return View(_frame(window, margin)[0], radius)
    here = _now(scene, focal[0])
    others = sorted(set(agents) - set(focal), key=lambda agent: float(np.linalg.norm(_now(scene, agent) - here)))
    for agent in others:
        for more in (_points(scene, agent, forecasts), _now(scene, agent)[None]):
            wider = np.concatenate([window, more])
            if _frame(wider, margin)[1] <= MOST_HALF_M:
                window = wider
                break
    centre, half = _frame(window, margin)
    return View(centre, max(half, least)) if half <= LARGEST_HALF_M else View(here, LARGEST_HALF_M)


def _frame(points: np.ndarray, margin: float) -> tuple[np.ndarray, float]:
    """Centre [2] and half width of the square around points [n, 2], with a margin for boxes and labels."""
    low, high = points.min(0), points.max(0)
    extent = float((high - low).max())
    return (low + high) / 2, extent * (0.5 + MARGIN_SHARE) + margin


def _points(scene: Scene, agent: int, forecasts: Sequence[TrackForecast]) -> np.ndarray:
    """Positions [n, 2] of an agent's last second or so, its recorded future and its forecasts."""
    recorded = _recorded(scene, agent, slice(max(scene.num_history - _TRAIL_STEPS, 0), None))
    own = [f for f in forecasts if f.track_id == scene.agent_id[agent]]
    return np.concatenate([recorded, *(f.position.reshape(-1, 2) - scene.origin for f in own)])


def _now(scene: Scene, agent: int) -> np.ndarray:
    return _recorded(scene, agent, slice(scene.num_history - 1, scene.num_history))[0]


def _recorded(scene: Scene, agent: int, steps: slice) -> np.ndarray:
    """Positions [n, 2] of an agent in these steps, or in all steps when it is not there in these."""
    valid = scene.valid[agent, steps]
    if valid.any():
        return scene.position[agent, steps][valid].astype(np.float64)
    return scene.position[agent][scene.valid[agent]].astype(np.float64)


def title(scene: Scene, forecasts: Sequence[TrackForecast]) -> str:
    """Short scene id and city; below, the errors of the focal (or only) forecast, or the mean over all forecasts.

    Raises:
        TrajformerError: a forecast does not fit the scene.
    """
    name = scene.scene_id if len(scene.scene_id) <= _LONGEST_ID else scene.scene_id[:8] + "…"
    lines = [f"{name}, {scene.city}" if scene.city else name]
    main = main_forecast(scene, forecasts)
    errors = [track_error(scene, forecast) for forecast in (forecasts if main is None else [main])]
    known = [error for error in errors if error is not None]
    if known:
        ade, fde = np.mean([(error.min_ade_m, error.min_fde_m) for error in known], 0)
        over = f"mean of {len(known)} agents" if main is None else f"K = {len(main.probability)}"
        if main is not None and agent_group(scene, agent_index(scene, main)) != "focal":
            over = f"track {main.track_id}, {over}"
        lines.append(f"minADE {ade:.2f} m, minFDE {fde:.2f} m ({over})")
    return "\n".join(lines)


def _seen(artist: Artist, view: Bbox) -> bool:
    if isinstance(artist, Collection):
        return any(path.intersects_bbox(view, filled=True) for path in artist.get_paths())
    return isinstance(artist, Line2D) and artist.get_path().intersects_bbox(view, filled=False)


def add_legend(ax: Axes) -> Axes:
    """Name, below the axes, every kind of thing that lies within the limits; each name once."""
    view = Bbox([[ax.get_xlim()[0], ax.get_ylim()[0]], [ax.get_xlim()[1], ax.get_ylim()[1]]])
    entries: dict[str, Artist] = {}
    for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
        if name not in entries and _seen(artist, view):
            entries[name] = artist
    columns = [[name for name in column if name in entries] for column in _LEGEND]
    columns = [column for column in columns if column]
    if columns:
        rows = max(len(column) for column in columns)
        names = [name for column in columns for name in column + [""] * (rows - len(column))]
        nothing = Line2D([], [], linestyle="none")
        look: dict[str, Any] = {
            "fontsize": style.SMALL_PT,
            "frameon": False,
            "columnspacing": 1.2,
            "handletextpad": 0.5,
        }
        look |= {"labelspacing": 0.35, "ncols": len(columns), "bbox_to_anchor": (0.5, -0.12), "borderaxespad": 0.0}
        handles = [entries.get(name, nothing) for name in names]
        ax.legend(handles, names, loc="upper center", **look)
    return ax
