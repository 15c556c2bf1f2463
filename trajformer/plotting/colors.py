"""Colors of the agents with a forecast: one per agent, per type of agent, or per joint future."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from trajformer.errors import TrajformerError
from trajformer.plotting import style
from trajformer.plotting.forecasts import AgentForecast, ModeStyle, styles_by_role
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

COLOR_BY = ("agent", "type", "world")
# End points of the modes of a color, so that gray prints have a second difference.
MARKERS = ("s", "o", "^", "D", "v", "P", "p")
_MARKER_SIZE = 3.2
_MODE_WIDTH = 1.0
_DARK = 0.55  # of the light of a color
_TOLERANCE = 1e-6  # between the probabilities of a world in the forecasts of its agents


class Colors(NamedTuple):
    """Colors by index of the agent, and the looks of modes, one entry per forecast."""

    face: dict[int, str]  # box and history
    future: dict[int, str]  # recorded future and texts
    modes: list[list[ModeStyle]]  # per forecast, per mode
    kinds: dict[int, str]  # name of the type of an agent, if its color shows the type


def darker(color: str) -> str:
    """The same hue for lines and texts that stand on top of a color."""
    return to_hex(np.multiply(to_rgb(color), _DARK).tolist())


def choose_colors(scene: Scene, forecasts: Sequence[AgentForecast], by: str) -> Colors:
    """Colors `by` "agent", "type" or "world"; the focal agent is orange with a black future.

    Raises TrajformerError: `by` is "world", and the agents have no joint futures in common.
    """
    if by == "world":
        return _by_world(scene, forecasts)
    names: dict[int, str] = {}
    if by == "type":
        agents = {forecast.agent for forecast in forecasts}
        face = {agent: kind_color(scene.agent_kind[agent]) for agent in agents}
        names = {agent: kind_name(scene.agent_kind[agent]) for agent in agents}
    else:
        face = agent_colors(scene, forecasts)
    future = {agent: darker(color) for agent, color in face.items()}
    modes = []
    for forecast in forecasts:
        color = face[forecast.agent]
        look = ModeStyle("forecast", color, _MODE_WIDTH, style.Z_MODE, "s", _MARKER_SIZE)
        if len(forecasts) > 1:
            look = look._replace(name=f"forecasts by {by}", marker=_marker(color))
        if by == "agent" and scene.agent_role[forecast.agent] == AgentRole.FOCAL:
            [look] = styles_by_role(scene, [forecast])
            future[forecast.agent] = style.TRUTH
        modes.append([look] * len(forecast.probability))
    return Colors(face, future, modes, names)


def agent_colors(scene: Scene, forecasts: Iterable[AgentForecast]) -> dict[int, str]:
    """Colors by index of the agents with a forecast; close neighbors get different colors.

    In the order of the scene, each agent takes the color that is farthest away (last observed
    step). Only the focal agent has the focal color, if it has a forecast.
    """
    now = scene.position[:, scene.num_history - 1].astype(np.float64)
    agents = sorted({forecast.agent for forecast in forecasts})
    colors = {agent: style.FOCAL for agent in agents if scene.agent_role[agent] == AgentRole.FOCAL}
    available = [color for color in style.AGENT_COLORS if color not in colors.values()]
    for agent in agents:
        if agent in colors:
            continue
        nearest = dict.fromkeys(available, np.inf)  # distance to the nearest agent of each color
        for other, color in colors.items():
            if color in nearest:
                distance = float(np.hypot(*(now[agent] - now[other])))
                nearest[color] = min(nearest[color], distance)
        colors[agent] = max(available, key=lambda color: nearest[color])  # the first of equals
    return colors


def kind_color(kind: int) -> str:
    """The color of a type of agent."""
    return style.KIND_COLORS.get(AgentKind(kind), style.OTHER_KIND)


def kind_name(kind: int) -> str:
    """The name of a type in the legend; types without a color share one."""
    if AgentKind(kind) in style.KIND_COLORS:
        return AgentKind(kind).name.lower()
    return "other type"


def _marker(color: str) -> str:
    if color in style.AGENT_COLORS:
        return MARKERS[style.AGENT_COLORS.index(color)]
    return "s"


def _by_world(scene: Scene, forecasts: Sequence[AgentForecast]) -> Colors:
    """One color per world; the most probable ones have colors, the others are gray."""
    if not forecasts:
        return Colors({}, {}, [], {})
    probability = forecasts[0].probability
    for forecast in forecasts:
        same = forecast.probability.shape == probability.shape
        if not same or not np.allclose(forecast.probability, probability, atol=_TOLERANCE):
            names = [scene.agent_id[forecasts[0].agent], scene.agent_id[forecast.agent]]
            raise TrajformerError(
                f"scene {scene.scene_id!r}: tracks {names[0]} and {names[1]} have different "
                "probabilities, so these are no joint futures; forecast with --joint"
            )
    order = np.argsort(-probability, kind="stable").tolist()
    looks = [ModeStyle("other worlds", style.OTHER_KIND, 0.8, style.Z_MODE, "s", _MARKER_SIZE)]
    looks = looks * len(probability)
    for rank, mode in enumerate(order[: len(style.AGENT_COLORS)]):
        name = f"world {rank + 1}: {probability[mode]:.2f}"
        color = style.AGENT_COLORS[rank]
        looks[mode] = ModeStyle(name, color, 1.2, style.Z_MODE, MARKERS[rank], _MARKER_SIZE + 0.4)
    return Colors({}, {}, [looks] * len(forecasts), {})
