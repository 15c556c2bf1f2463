"""Small pictures of scenes as SVG, with the forecasts of several files in their colors.

`plotting.scene` draws larger pictures of one file. These follow the dark or light page, because
classes get their colors from `style.css`, and have about 10 kB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.forecasts import MIN_ALPHA, AgentForecast, match_forecasts
from trajformer.plotting.recorded import agent_sizes, groups, last_poses, shapes
from trajformer.plotting.report.charts import ticks
from trajformer.plotting.report.markup import Markup, dashes, element, line, svg
from trajformer.plotting.view import View, choose_view
from trajformer.scenes.scene import PIXELS, AgentKind, PolylineKind, Scene

SIDE = 300.0  # units of the picture
_MIN_WIDTH = 3.5  # units, of a drawn agent
_MAP_SPACING, _PATH_SPACING = 4.0, 2.0  # units between points of the map and of paths
_FAR = 10 * SIDE  # longer lines are cut off
_CLASSES = {
    PolylineKind.DRIVABLE_AREA: "drivable",
    PolylineKind.CROSSWALK: "crosswalk",
    PolylineKind.LANE_VEHICLE: "lane",
    PolylineKind.LANE_BUS: "lane-bus",
    PolylineKind.LANE_BIKE: "lane-bike",
    PolylineKind.ROAD_EDGE: "road-edge",
    PolylineKind.ROAD_LINE: "road-line",
}
_AREAS = (PolylineKind.DRIVABLE_AREA, PolylineKind.CROSSWALK)


class _Window:
    """Converts metres relative to the origin of a scene to units of the picture."""

    def __init__(self, view: View, unit: str) -> None:
        self.view = view
        # y points up in a scene in metres, but down in pictures and in videos, that is, in pixels
        self.signs = np.array([1.0, 1.0 if unit == PIXELS else -1.0])
        self.scale = SIDE / (2 * view.half)

    def place(self, points: np.ndarray) -> np.ndarray:
        """Units [..., 2] of the picture from positions [..., 2] of the scene."""
        moved = (np.asarray(points, np.float64) - self.view.center) * self.scale
        flipped = moved * self.signs + SIDE / 2
        return np.clip(flipped, -_FAR, _FAR)

    def shows(self, points: np.ndarray) -> bool:
        """Whether the bounding box of points [p, 2] meets the window."""
        gap = np.asarray(points, np.float64) - self.view.center
        half = self.view.half
        return bool((gap.min(0) <= half).all() and (gap.max(0) >= -half).all())


def scene_picture(scene: Scene, files: Sequence[Sequence[TrackForecast]], label: str) -> Markup:
    """A square picture of a scene: map, agents, histories, recorded futures and all modes.

    `files` has the forecasts of each file, which may be empty, and `label` describes the picture.
    Raises TrajformerError: a forecast does not fit the scene.
    """
    matched = [match_forecasts(scene, forecasts) for forecasts in files]
    all_forecasts = [forecast for of_file in matched for forecast in of_file]
    window = _Window(choose_view(scene, all_forecasts), scene.unit)
    targets = sorted({forecast.agent for forecast in all_forecasts})
    parts = [*_map(scene, window), *_agents(scene, window, targets)]
    for number, of_file in enumerate(matched):
        parts += _modes(of_file, window, number)
    parts += _targets(scene, window, targets)
    parts += _scale_bar(window, scene.unit)
    title = element("title", label)
    return svg(SIDE, SIDE, label, title, *parts, class_="scene")


def _map(scene: Scene, window: _Window) -> Iterator[Markup]:
    """One path for all polylines of a kind, areas first."""
    for kind, class_ in _CLASSES.items():
        drawn = []
        for index in np.flatnonzero(scene.polyline_kind == kind).tolist():
            points = scene.polyline(index)
            if len(points) and window.shows(points):
                thin = _thinned(window.place(points), _MAP_SPACING)
                drawn.append(line(thin, closed=kind in _AREAS))
        if drawn:
            yield element("path", d="".join(drawn), class_=class_)


def _thinned(points: np.ndarray, spacing: float) -> np.ndarray:
    """Points [p, 2] of a line about `spacing` or more apart along it, with both ends."""
    step = np.hypot(*np.diff(points, axis=0).T)
    number = np.floor(np.concatenate([[0.0], np.cumsum(step)]) / spacing)
    kept = np.ones(len(points), bool)
    kept[1:-1] = number[1:-1] > number[:-2]
    return points[kept]


def _agents(scene: Scene, window: _Window, targets: Sequence[int]) -> Iterator[Markup]:
    """Histories and boxes of the agents without a forecast that are present."""
    present = scene.valid[:, scene.num_history - 1]
    is_recorder = groups(scene)["recorder"]
    others = [agent for agent in np.flatnonzero(present).tolist() if agent not in targets]
    near = [agent for agent in others if window.shows(_history(scene, agent))]
    yield element("path", d=_paths(scene, near, window), class_="trail")
    for name, agents in (
        ("agent", [agent for agent in near if not is_recorder[agent]]),
        ("agent recorder", [agent for agent in near if is_recorder[agent]]),
    ):
        if agents:
            yield element("path", d=_boxes(scene, agents, window), class_=name)


def _targets(scene: Scene, window: _Window, targets: Sequence[int]) -> Iterator[Markup]:
    """Histories, boxes and recorded futures of the agents with a forecast."""
    if not targets:
        return
    yield element("path", d=_paths(scene, targets, window), class_="trail target")
    yield element("path", d=_boxes(scene, targets, window), class_="target-box")
    for agent in targets:
        recorded = scene.valid[agent, scene.num_history :]
        future = scene.position[agent, scene.num_history :][recorded]
        if not len(future):
            continue
        points = window.place(future)
        yield element("path", d=line(points), class_="truth")
        x, y = points[-1].tolist()
        yield element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, class_="truth-end")


def _modes(forecasts: Sequence[AgentForecast], window: _Window, file: int) -> Iterator[Markup]:
    """The modes of a file, opaque where probable, improbable ones first."""
    for forecast in forecasts:
        largest = max(float(forecast.probability.max()), 1e-9)
        for mode in np.argsort(forecast.probability, kind="stable").tolist():
            share = float(forecast.probability[mode]) / largest
            alpha = f"{MIN_ALPHA + (1 - MIN_ALPHA) * share:.2f}"
            points = window.place(forecast.position[mode])
            stroke = {"class_": f"file-{file} mode", "stroke_dasharray": dashes(file)}
            yield element("path", d=line(_thinned(points, _PATH_SPACING)), opacity=alpha, **stroke)
            x, y = points[-1].tolist()
            dot = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": 2.2, "class_": f"dot dot-{file}"}
            yield element("circle", opacity=alpha, **dot)


def _history(scene: Scene, agent: int) -> np.ndarray:
    """Observed positions [n, 2] of an agent."""
    past = slice(0, scene.num_history)
    return scene.position[agent, past][scene.valid[agent, past]]


def _paths(scene: Scene, agents: Sequence[int], window: _Window) -> str:
    """The histories of agents as one path."""
    drawn = []
    for agent in agents:
        points = _history(scene, agent)
        if len(points) > 1:
            drawn.append(line(_thinned(window.place(points), _PATH_SPACING)))
    return "".join(drawn)


def _boxes(scene: Scene, agents: Sequence[int], window: _Window) -> str:
    """The outlines of agents as one path; those too small to see are enlarged."""
    chosen = list(agents)
    sizes = agent_sizes(scene, chosen)
    factor = np.maximum(_MIN_WIDTH / (sizes[:, 1] * window.scale), 1.0)
    kinds = [AgentKind(kind) for kind in scene.agent_kind[chosen].tolist()]
    outlines = shapes(kinds, last_poses(scene, chosen), sizes * factor[:, None])
    return "".join(line(window.place(outline), closed=True) for outline in outlines)


def _scale_bar(window: _Window, unit: str) -> list[Markup]:
    """A bar of a round length, at most a third of the width."""
    length = ticks(0.0, 2 * window.view.half, 8)[1]
    right = 8 + length * window.scale
    bar = element("path", d=f"M8 286v6H{right:.1f}v-6", class_="scale")
    text = element("text", f"{length:g} {unit}", x=f"{right + 5:.1f}", y=293)
    return [bar, text]
