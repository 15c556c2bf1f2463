"""The part of a scene that a picture shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, MultipleLocator

from trajformer.plotting import style
from trajformer.plotting.forecasts import AgentForecast
from trajformer.scenes.scene import METRES, AgentKind, AgentRole, Scene

MARGIN_M = 5.0
MARGIN_FRACTION = 0.05  # of the extent
MIN_HALF_M = 25.0
MAX_TARGETS_HALF_M = 50.0
MAX_HALF_M = 120.0
MARGIN_CROWD_M = 1.5  # for scenes with pedestrians only
MIN_HALF_CROWD_M = 5.0
_TRAIL_STEPS = 10  # last history steps that are inside the window


@dataclass(frozen=True)
class View:
    """A square window: `center` [2] relative to the scene's origin and `half` its width.

    Both are in the unit of the scene.
    """

    center: np.ndarray
    half: float

    def apply(self, ax: Axes, unit: str = METRES) -> Axes:
        """Set limits, equal aspect, equal ticks on both axes and their labels with the unit."""
        x, y = self.center
        ax.set_aspect("equal", adjustable="box")
        ax.set_xlim(x - self.half, x + self.half)
        ax.set_ylim(y - self.half, y + self.half)
        ticks = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(0.0, 2 * self.half)
        spacing = float(ticks[1] - ticks[0])
        for axis, name in ((ax.xaxis, "x"), (ax.yaxis, "y")):
            axis.set_major_locator(MultipleLocator(spacing))
            axis.set_label_text(f"{name} ({unit})", fontsize=style.FONT_PT)
        ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
        ax.spines[:].set_linewidth(0.6)
        return ax


@dataclass(frozen=True)
class _Limits:
    """Lengths of a window, in the unit of the scene."""

    margin: float
    min_half: float
    max_targets_half: float
    max_half: float

    @classmethod
    def of_scene(cls, scene: Scene) -> "_Limits":
        margin, min_half = MARGIN_M, MIN_HALF_M
        if (scene.agent_kind == AgentKind.PEDESTRIAN).all():
            margin, min_half = MARGIN_CROWD_M, MIN_HALF_CROWD_M
        scale = style.SCALE[scene.unit]
        largest = MAX_TARGETS_HALF_M * scale
        return cls(margin * scale, min_half * scale, largest, MAX_HALF_M * scale)


def choose_view(scene: Scene, forecasts: Sequence[AgentForecast] = ()) -> View:
    """A window around targets, recorded futures and forecasts.

    It is at least 50 m wide (10 m for pedestrians only). These and the following lengths are
    multiplied by `style.SCALE` for scenes in pixels.

    The focal agent and its forecast always fit, up to a width of 240 m: a diverged forecast is cut
    off. Other targets widen the window to at most 100 m, the nearest first: with their futures,
    otherwise with their current position, otherwise not at all. Without a focal agent all targets
    count as focal, without targets all agents.
    """
    limits = _Limits.of_scene(scene)
    agents = _shown_agents(scene, forecasts)
    present = {agent: _present(scene, agent) for agent in agents}
    focal = [agent for agent in agents if scene.agent_role[agent] == AgentRole.FOCAL]
    focal = focal or agents
    window = np.concatenate([_points(scene, agent, forecasts) for agent in focal])
    start = present[focal[0]]

    # other targets, the nearest first, as far as they fit
    others = sorted(
        set(agents) - set(focal),
        key=lambda agent: float(np.linalg.norm(present[agent] - start)),
    )
    for agent in others:
        for added in (_points(scene, agent, forecasts), present[agent][None]):
            wider = np.concatenate([window, added])
            if _square(wider, limits.margin).half <= limits.max_targets_half:
                window = wider
                break

    view = _square(window, limits.margin)
    if view.half > limits.max_half:
        return View(start, limits.max_half)
    return View(view.center, max(view.half, limits.min_half))


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
    """Position [2] of an agent in the last observed step, or its first one if it is not seen."""
    now = scene.num_history - 1
    return _recorded(scene, agent, slice(now, now + 1))[0]


def _points(scene: Scene, agent: int, forecasts: Sequence[AgentForecast]) -> np.ndarray:
    """Positions [n, 2] of the last history steps, the recorded future and the forecasts."""
    first = max(scene.num_history - _TRAIL_STEPS, 0)
    points = [_recorded(scene, agent, slice(first, None))]
    for forecast in forecasts:
        if forecast.agent == agent:
            points.append(forecast.position.reshape(-1, 2))
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
