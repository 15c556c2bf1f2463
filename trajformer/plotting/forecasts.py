"""Forecasts over a scene: one line per mode, opaque where probable, with the probability at the end of the line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from trajformer.plotting import style
from trajformer.plotting.agents import outlines
from trajformer.plotting.matching import AgentForecast, main_forecast
from trajformer.scenes.scene import AgentRole, Scene

MIN_ALPHA = 0.3
MIN_LABELED = 0.005  # a smaller probability would be written as 0.00
_DISTANCES_PT = (4.0, 9.0, 16.0, 24.0)
_MIN_LEADER_PT = 9.0  # a label at this distance needs a line to its point
_END_RADIUS_PT = 2.5
_DIGIT_PT, _HEIGHT_PT = 0.62, 1.0  # relative to the font size; wide enough for the widest digit


def draw_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw all modes of all forecasts, metres relative to the scene's `origin`, probable modes on top, and probabilities.

    Modes of the focal agent have the focal color and end in circles, others are thinner and end in squares.
    Line k of a track has the gid "mode:<track id>:<k>". Labels fit the current limits and size of `ax`.
    """
    for forecast in forecasts:
        _draw_modes(ax, forecast, scene.agent_id[forecast.agent], focal=_is_focal(scene, forecast))
    _draw_probabilities(ax, scene, forecasts)
    return ax


def _is_focal(scene: Scene, forecast: AgentForecast) -> bool:
    return bool(scene.agent_role[forecast.agent] == AgentRole.FOCAL)


def _draw_modes(ax: Axes, forecast: AgentForecast, track_id: str, *, focal: bool) -> None:
    name, color, width, zorder, marker, size = "forecast (others)", style.SCORED, 0.9, style.Z_MODE, "s", 2.6
    if focal:
        name, color, width, zorder, marker, size = "forecast (focal)", style.FOCAL, 1.6, style.Z_FOCAL_MODE, "o", 4.2
    order = np.argsort(-forecast.probability, kind="stable")
    max_probability = max(float(forecast.probability.max()), 1e-12)
    for rank, mode in enumerate(order.tolist()):
        alpha = MIN_ALPHA + (1.0 - MIN_ALPHA) * float(forecast.probability[mode]) / max_probability
        (line,) = ax.plot(*forecast.position[mode].T, color=color, linewidth=width, alpha=alpha)
        line.set(marker=marker, markersize=size, markevery=[-1], markeredgecolor=style.PAPER, markeredgewidth=0.4)
        line.set(gid=f"mode:{track_id}:{mode}", zorder=zorder - 0.4 * rank / len(order))
        line.set(label="" if rank else name, solid_capstyle="butt", solid_joinstyle="round")


def _draw_probabilities(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> None:
    """Write probabilities at end points without overlaps, the most probable first; a label without space is left out.

    If there is a main forecast (`main_forecast`), all its modes are labeled, otherwise the best mode of each agent.
    Labels avoid end points and, if possible, lines.
    """
    main = main_forecast(scene, forecasts)
    labels: list[Label] = []
    for forecast in forecasts if main is None else [main]:
        order = np.argsort(-forecast.probability, kind="stable")
        for mode in order[: None if forecast is main else 1].tolist():
            path, probability = forecast.position[mode], float(forecast.probability[mode])
            if probability >= MIN_LABELED:
                middle = path[max(len(path) // 2 - 1, 0)]
                labels.append(Label(f"{probability:.2f}", path[-1], path[-1] - middle))
    future = scene.position[:, scene.num_history :][scene.valid[:, scene.num_history :]]
    paths = [forecast.position.reshape(-1, 2) for forecast in forecasts]
    lines = np.concatenate([*paths, future, *outlines(scene, scene.valid[:, scene.num_history - 1].nonzero()[0].tolist())])
    recorded_ends = [scene.position[f.agent][scene.valid[f.agent]][-1:] for f in forecasts]
    ends = np.concatenate([*(f.position[:, -1] for f in forecasts), *recorded_ends, np.zeros((0, 2))])
    focal = main is not None and _is_focal(scene, main)
    place_labels(ax, labels, lines, ends, style.FOCAL_DARK if focal else style.SCORED_DARK)


@dataclass(frozen=True)
class Label:
    """A text for a point [2]; free space is searched in `direction` [2] first, data units."""

    text: str
    point: np.ndarray
    direction: np.ndarray


def place_labels(ax: Axes, labels: Sequence[Label], lines: np.ndarray, ends: np.ndarray, color: str) -> None:
    """Write the labels in the order given, gid "label"; a label without free space inside the axes is left out.

    Args:
        ax: the current limits and size decide about free space.
        labels: most important first.
        lines: [N, 2] points that labels avoid if possible, data units.
        ends: [E, 2] points that labels never cover, data units.
        color: of the text, on a white halo.
    """
    ax.autoscale_view()  # matplotlib delays this until it draws, but the limits are needed now
    ax.apply_aspect()
    figure = ax.get_figure(root=True)
    assert figure is not None, "labels need an Axes with a figure"
    to_points = 72.0 / figure.dpi
    frame = np.array(ax.bbox.extents) * to_points
    lines_pt, ends_pt = (ax.transData.transform(xy.reshape(-1, 2)) * to_points for xy in (lines, ends))
    occupied: list[np.ndarray] = []
    for label in labels:
        anchor = ax.transData.transform(label.point) * to_points
        direction = ax.transData.transform(label.point + label.direction) * to_points - anchor
        size = np.array([len(label.text) * _DIGIT_PT, _HEIGHT_PT]) * style.LABEL_PT
        best: tuple[float, np.ndarray, float] | None = None
        for penalty, distance, box in _candidates(anchor, direction, size):
            outside = (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any()
            if outside or any(_overlap(box, other) for other in occupied) or _num_covered(box, ends_pt, _END_RADIUS_PT):
                continue
            cost = penalty + 1.5 * _num_covered(box, lines_pt, 0.5)
            if best is None or cost < best[0]:
                best = (cost, box, distance)
        if best is not None:
            occupied.append(best[1])
            _write(ax, label, best[1], best[2], anchor, color)


def _candidates(anchor: np.ndarray, direction: np.ndarray, size: np.ndarray) -> Iterator[tuple[float, float, np.ndarray]]:
    """Penalty, distance and box [4] (left, bottom, right, top); close boxes straight ahead have the smallest penalty."""
    angle = float(np.arctan2(direction[1], direction[0]))
    for rank, distance in enumerate(_DISTANCES_PT):
        for turn in (0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.5, -2.5):
            unit = np.array([np.cos(angle + turn), np.sin(angle + turn)])
            middle = anchor + unit * (distance + np.abs(unit) @ size / 2)
            yield 3.0 * rank + abs(turn), distance, np.concatenate([middle - size / 2, middle + size / 2])


def _overlap(box: np.ndarray, other: np.ndarray) -> bool:
    return bool((box[:2] < other[2:] + 0.5).all() and (other[:2] < box[2:] + 0.5).all())


def _num_covered(box: np.ndarray, points: np.ndarray, margin: float) -> int:
    return int(((points > box[:2] - margin) & (points < box[2:] + margin)).all(-1).sum())


def _write(ax: Axes, label: Label, box: np.ndarray, distance: float, anchor: np.ndarray, color: str) -> None:
    leader = {"arrowstyle": "-", "linewidth": 0.4, "color": color, "shrinkA": 0.0, "shrinkB": 2.0}
    shift, point = tuple((box[:2] + box[2:]) / 2 - anchor), (float(label.point[0]), float(label.point[1]))
    annotation = ax.annotate(
        label.text, point, shift, textcoords="offset points", annotation_clip=True, ha="center", va="center_baseline",
        arrowprops=leader if distance >= _MIN_LEADER_PT else None, fontsize=style.LABEL_PT, color=color,
        path_effects=[withStroke(linewidth=1.6, foreground=style.PAPER)], zorder=style.Z_LABEL, gid="label",
    )  # fmt: skip
    annotation.set_in_layout(False)
