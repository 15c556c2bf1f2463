"""The part of a scene that a picture shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, MaxNLocator, MultipleLocator

from trajformer.plotting import style
from trajformer.plotting.forecasts import AgentForecast
from trajformer.scenes.scene import METRES, PIXELS, AgentKind, AgentRole, Scene

MARGIN_M = 5.0
MARGIN_FRACTION = 0.05  # of the extent
MIN_HALF_M = 25.0
MAX_FOCAL_HALF_M = 120.0  # around a focal agent
MAX_HALF_M = 500.0  # without one
MAX_FORECAST_M = 240.0  # from the present position; modes that go farther are cut off
MARGIN_CROWD_M = 1.5  # for scenes with pedestrians only
MIN_HALF_CROWD_M = 5.0
_TRAIL_STEPS = 10  # last history steps that are inside the window
_WIDE_LABEL = 5  # digits of a coordinate


@dataclass(frozen=True)
class View:
    """A square window: `center` [2] relative to the scene's origin and `half` its width.

    Both are in the unit of the scene.
    """

    center: np.ndarray
    half: float

    def apply(self, ax: Axes, unit: str = METRES, origin: Sequence[float] = (0.0, 0.0)) -> Axes:
        """Set limits, equal aspect, equal ticks on both axes and their labels with the unit.

        Data coordinates are relative to `origin` [2]; ticks show coordinates of the recording.
        Pixels are those of a video, so their y points down.
        """
        x, y = self.center
        ax.set_aspect("equal", adjustable="box")
        ax.set_xlim(x - self.half, x + self.half)
        bottom, top = y - self.half, y + self.half
        if unit == PIXELS:
            bottom, top = top, bottom
        ax.set_ylim(bottom, top)
        center = self.center + np.asarray(origin)
        digits = len(str(int(np.abs(center).max())))
        count = 4 if digits > _WIDE_LABEL else 6
        ticks = MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * self.half)
        spacing = float(ticks[1] - ticks[0])
        for axis, name, start in ((ax.xaxis, "x", origin[0]), (ax.yaxis, "y", origin[1])):
            axis.set_major_locator(MultipleLocator(spacing, offset=-start % spacing))
            axis.set_major_formatter(_Coordinate(float(start), spacing))
            axis.set_label_text(f"{name} ({unit})", fontsize=style.FONT_PT)
        ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
        ax.spines[:].set_linewidth(0.6)
        return ax

    def zoomed(self, factor: float, center: np.ndarray) -> "View":
        """The window with `factor` times the scale, around `center` [2] if it is a smaller one."""
        if factor < 1.0:
            center = self.center
        return View(center, self.half / factor)


class _Coordinate(Formatter):
    """A tick as a coordinate of the recording, a multiple of the spacing of ticks."""

    def __init__(self, start: float, spacing: float) -> None:
        self.start = start
        self.spacing = spacing

    def __call__(self, x: float, pos: int | None = None) -> str:
        multiple = round((x + self.start) / self.spacing)
        decimals = max(-int(np.floor(np.log10(self.spacing))), 0)
        text = f"{multiple * self.spacing:.{decimals}f}"
        return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class _Limits:
    """Lengths of a window, in the unit of the scene."""

    margin: float
    min_half: float
    max_half: float
    max_forecast: float

    @classmethod
    def of_scene(cls, scene: Scene, has_focal: bool) -> "_Limits":
        margin, min_half = MARGIN_M, MIN_HALF_M
        if (scene.agent_kind == AgentKind.PEDESTRIAN).all():
            margin, min_half = MARGIN_CROWD_M, MIN_HALF_CROWD_M
        max_half = MAX_FOCAL_HALF_M if has_focal else MAX_HALF_M
        scale = style.SCALE[scene.unit]
        return cls(margin * scale, min_half * scale, max_half * scale, MAX_FORECAST_M * scale)


def choose_view(
    scene: Scene, forecasts: Sequence[AgentForecast] = (), agents: Sequence[int] = ()
) -> View:
    """A window around the shown agents: their last history steps, recorded futures and forecasts.

    They are the given `agents`, else targets and agents with a forecast, else all that are present.
    The window is at least 50 m wide (10 m for pedestrians only). These and the following lengths
    are multiplied by `style.SCALE` for scenes in pixels.

    It contains the focal agent, if it is shown, and up to a width of 240 m the others, the nearest
    first. Without a focal agent it contains all shown agents up to a width of 1 km, those near the
    median position first. An agent whose path does not fit is inside with its present position, if
    that fits. Modes that are more than 240 m from the agent are cut off.
    """
    shown = list(agents) or _shown_agents(scene, forecasts)
    present = {agent: _present(scene, agent) for agent in shown}
    has_focal = bool((scene.agent_role[shown] == AgentRole.FOCAL).any())
    limits = _Limits.of_scene(scene, has_focal and not agents)
    middle = focus(scene, shown)

    # the nearest agents first, as far as they fit
    shown.sort(key=lambda agent: float(np.linalg.norm(present[agent] - middle)))
    window = np.zeros((0, 2))
    for agent in shown:
        path = _points(scene, agent, forecasts, limits.max_forecast)
        for added in (path, present[agent][None]):
            wider = np.concatenate([window, added])
            if _square(wider, limits.margin).half <= limits.max_half:
                window = wider
                break
    if not len(window):
        return View(middle, limits.max_half)
    view = _square(window, limits.margin)
    return View(view.center, max(view.half, limits.min_half))


def focus(scene: Scene, agents: Sequence[int]) -> np.ndarray:
    """Present position [2] of the focal agent, if it is one of the agents, else their median."""
    shown = list(agents) or _shown_agents(scene, ())
    focal = [agent for agent in shown if scene.agent_role[agent] == AgentRole.FOCAL]
    positions = [_present(scene, agent) for agent in focal or shown]
    return np.asarray(np.median(positions, axis=0))


def _shown_agents(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[int]:
    """Targets and agents with a forecast; without any, those present, or all that are ever seen."""
    targets = scene.agent_role != AgentRole.CONTEXT
    targets[[forecast.agent for forecast in forecasts]] = True
    seen = scene.valid.any(1)
    present = scene.valid[:, scene.num_history - 1]
    for group in (targets & seen, present):
        if group.any():
            return np.flatnonzero(group).tolist()
    return np.flatnonzero(seen).tolist()


def _present(scene: Scene, agent: int) -> np.ndarray:
    """Position [2] of an agent when last observed, or its first one if it is only seen later."""
    observed = scene.valid[agent, : scene.num_history]
    if observed.any():
        step = int(np.flatnonzero(observed)[-1])
    else:
        step = int(np.argmax(scene.valid[agent]))
    return scene.position[agent, step].astype(np.float64)


def _points(
    scene: Scene, agent: int, forecasts: Sequence[AgentForecast], max_distance: float
) -> np.ndarray:
    """Positions [n, 2] of the last history steps, the recorded future and the forecasts.

    Forecasts count up to a distance from the present position.
    """
    first = max(scene.num_history - _TRAIL_STEPS, 0)
    points = [_recorded(scene, agent, slice(first, None))]
    present = _present(scene, agent)
    for forecast in forecasts:
        if forecast.agent == agent:
            predicted = forecast.position.reshape(-1, 2)
            distance = np.linalg.norm(predicted - present, axis=-1)
            points.append(predicted[distance <= max_distance])
    return np.concatenate(points)


def _recorded(scene: Scene, agent: int, steps: slice) -> np.ndarray:
    """Positions [n, 2] of an agent in these steps, or in all steps if these have no valid state."""
    if not scene.valid[agent, steps].any():
        steps = slice(None)
    position = scene.position[agent, steps]
    return position[scene.valid[agent, steps]].astype(np.float64)


def _square(points: np.ndarray, margin: float) -> View:
    """The square around points [n, 2], with a margin for boxes and labels."""
    low = points.min(0)
    high = points.max(0)
    extent = float((high - low).max())
    return View((low + high) / 2, extent * (0.5 + MARGIN_FRACTION) + margin)
