"""The window that a picture of a scene shows, with axes, title and legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, MultipleLocator
from matplotlib.transforms import Bbox

from trajformer.plotting import style
from trajformer.plotting.forecasts import AgentForecast, main_forecast, track_error
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

MARGIN_M, MARGIN_SHARE = 5.0, 0.05
MIN_HALF_M, MAX_TARGETS_HALF_M, MAX_HALF_M = 25.0, 50.0, 120.0
MARGIN_CROWD_M, MIN_HALF_CROWD_M = 1.5, 5.0  # for scenes with pedestrians only
_LEGEND = (  # columns
    ("focal agent", "scored agent", "other agent", "ego vehicle"),
    ("forecast (focal)", "forecast (others)", "forecasts by agent", "recorded future"),
    ("vehicle lane", "bus lane", "bike lane", "crosswalk"),
)
_MAX_ID = 20  # characters; longer scene ids are shortened
_TRAIL_STEPS = 10  # last history steps that are inside the window


@dataclass(frozen=True)
class View:
    """A square window: `center` [2] relative to the scene's origin and `half` its width, metres."""

    center: np.ndarray
    half: float

    def apply(self, ax: Axes) -> Axes:
        """Set limits, equal aspect, equal ticks on both axes and their labels."""
        ax.set_aspect("equal", adjustable="box")
        ax.set_xlim(self.center[0] - self.half, self.center[0] + self.half)
        ax.set_ylim(self.center[1] - self.half, self.center[1] + self.half)
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * self.half)
        for axis, name in ((ax.xaxis, "x (m)"), (ax.yaxis, "y (m)")):
            axis.set_major_locator(MultipleLocator(float(ticks[1] - ticks[0])))
            axis.set_label_text(name, fontsize=style.FONT_PT)
        ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
        for spine in ax.spines.values():
            spine.set_linewidth(0.6)
        return ax


def choose_view(scene: Scene, forecasts: Sequence[AgentForecast] = ()) -> View:
    """A window around targets, recorded futures and forecasts, at least 50 m wide (10 m for pedestrians only).

    The focal agent and its forecast always fit, up to a width of 240 m: a diverged forecast is cut off. Other targets
    widen the window to at most 100 m, the nearest first: with their futures, otherwise with their current position,
    otherwise not at all. Without a focal agent all targets count as focal, without targets all agents.
    """
    targets, now = scene.agent_role != AgentRole.CONTEXT, scene.num_history - 1
    targets[[forecast.agent for forecast in forecasts]] = True
    seen = scene.valid.any(1)
    groups = [np.flatnonzero(group & seen).tolist() for group in (targets, scene.valid[:, now], seen)]
    agents = next(filter(None, groups))
    here = {agent: _recorded(scene, agent, slice(now, now + 1))[0] for agent in agents}

    def points(agent: int) -> np.ndarray:
        """Positions [n, 2] of the last history steps, the recorded future and the forecasts of an agent."""
        recorded = _recorded(scene, agent, slice(max(now + 1 - _TRAIL_STEPS, 0), None))
        return np.concatenate([recorded, *(f.position.reshape(-1, 2) for f in forecasts if f.agent == agent)])

    pedestrians = bool((scene.agent_kind == AgentKind.PEDESTRIAN).all())
    margin, min_half = (MARGIN_CROWD_M, MIN_HALF_CROWD_M) if pedestrians else (MARGIN_M, MIN_HALF_M)
    focal = [agent for agent in agents if scene.agent_role[agent] == AgentRole.FOCAL] or agents
    window, start = np.concatenate([points(agent) for agent in focal]), here[focal[0]]
    others = sorted(set(agents) - set(focal), key=lambda agent: float(np.linalg.norm(here[agent] - start)))
    for agent in others:
        for added in (points(agent), here[agent][None]):
            wider = np.concatenate([window, added])
            if _square(wider, margin).half <= MAX_TARGETS_HALF_M:
                window = wider
                break
    view = _square(window, margin)
    return View(view.center, max(view.half, min_half)) if view.half <= MAX_HALF_M else View(start, MAX_HALF_M)


def _square(points: np.ndarray, margin: float) -> View:
    """The square around points [n, 2], with a margin for boxes and labels."""
    low, high = points.min(0), points.max(0)
    return View((low + high) / 2, float((high - low).max()) * (0.5 + MARGIN_SHARE) + margin)


def _recorded(scene: Scene, agent: int, steps: slice) -> np.ndarray:
    """Positions [n, 2] of an agent in these steps, or in all steps if these have no valid state."""
    if not scene.valid[agent, steps].any():
        steps = slice(None)
    return scene.position[agent, steps][scene.valid[agent, steps]].astype(np.float64)


def title(scene: Scene, forecasts: Sequence[AgentForecast]) -> str:
    """Short scene id and city; below, the error of the main forecast (`main_forecast`) or the mean error of all."""
    name = scene.scene_id if len(scene.scene_id) <= _MAX_ID else scene.scene_id[:8] + "…"
    lines = [f"{name}, {scene.city}" if scene.city else name]
    main = main_forecast(scene, forecasts)
    errors = [track_error(scene, forecast) for forecast in (forecasts if main is None else [main])]
    known = [error for error in errors if error is not None]
    if known:
        ade, fde = np.mean(known, 0)
        subject = f"mean of {len(known)} agents" if main is None else f"K = {len(main.probability)}"
        if main is not None and scene.agent_role[main.agent] != AgentRole.FOCAL:
            subject = f"track {scene.agent_id[main.agent]}, {subject}"
        lines.append(f"minADE {ade:.2f} m, minFDE {fde:.2f} m ({subject})")
    return "\n".join(lines)


def add_legend(ax: Axes) -> Axes:
    """Add a legend below the axes; it names each kind of artist inside the limits once."""
    view = Bbox(np.transpose([ax.get_xlim(), ax.get_ylim()]))
    entries: dict[str, Artist] = {}
    for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
        if isinstance(artist, Collection):
            visible = any(path.intersects_bbox(view, filled=True) for path in artist.get_paths())
        else:
            visible = isinstance(artist, Line2D) and artist.get_path().intersects_bbox(view, filled=False)
        if visible:
            entries.setdefault(name, artist)
    columns = [column for column in ([name for name in column if name in entries] for column in _LEGEND) if column]
    if not columns:
        return ax
    rows = max(len(column) for column in columns)
    names = [name for column in columns for name in column + [""] * (rows - len(column))]
    empty = Line2D([], [], linestyle="none")
    ax.legend(
        [entries.get(name, empty) for name in names], names, loc="upper center", bbox_to_anchor=(0.5, -0.12), borderaxespad=0.0,
        ncols=len(columns), fontsize=style.SMALL_PT, frameon=False, columnspacing=1.2, handletextpad=0.5, labelspacing=0.35,
    )  # fmt: skip
    return ax
