"""Forecasts of the agents of a scene: one line per mode, opaque where probable, with the probability at the end of the line."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.displacement import agent_errors, best_end
from trajformer.plotting import style
from trajformer.plotting.recorded import outlines
from trajformer.scenes.scene import AgentRole, Scene

MIN_ALPHA = 0.3
MIN_LABELED = 0.005  # a smaller probability would be written as 0.00
_DISTANCES_PT = (4.0, 9.0, 16.0, 24.0)
_TURNS = np.array([0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.5, -2.5])
_MIN_LEADER_PT = 9.0  # a label at this distance needs a line to its point
_END_RADIUS_PT = 2.5
_DIGIT_PT, _HEIGHT_PT = 0.62, 1.0  # relative to the font size; wide enough for the widest digit


class AgentForecast(NamedTuple):
    """K modes of one agent of a scene."""

    agent: int  # index in the scene
    probability: np.ndarray  # [K], sums to 1
    position: np.ndarray  # float64 [K, F, 2], metres, relative to the `origin` of the scene


def match_forecasts(scene: Scene, forecasts: Iterable[TrackForecast]) -> list[AgentForecast]:
    """Find the agent of each forecast and convert positions from the city frame to the scene (TrajformerError: no fit)."""
    index = {track_id: agent for agent, track_id in enumerate(scene.agent_id)}
    matched = []
    for forecast in forecasts:
        name = f"track {forecast.track_id!r}"
        if forecast.scene_id != scene.scene_id:
            raise TrajformerError(
                f"the forecast of {name} is for scene {forecast.scene_id!r}, not for scene {scene.scene_id!r}"
            )
        if forecast.track_id not in index:
            raise TrajformerError(
                f"scene {scene.scene_id!r} has no {name}, but a forecast for it was given"
            )
        if forecast.position.shape[1] != scene.num_future:
            steps = f"has {forecast.position.shape[1]} steps, the scene has {scene.num_future}"
            raise TrajformerError(f"the forecast of {name} in scene {scene.scene_id!r} {steps}")
        if not (np.isfinite(forecast.position).all() and np.isfinite(forecast.probability).all()):
            raise TrajformerError(
                f"the forecast of {name} in scene {scene.scene_id!r} has NaN or infinity"
            )
        position = np.asarray(forecast.position - scene.origin, np.float64)
        matched.append(AgentForecast(index[forecast.track_id], forecast.probability, position))
    return matched


def main_forecast(scene: Scene, forecasts: Sequence[AgentForecast]) -> AgentForecast | None:
    """The forecast of the focal agent, or the only forecast, or None."""
    focal = [
        forecast for forecast in forecasts if scene.agent_role[forecast.agent] == AgentRole.FOCAL
    ]
    return next(iter(focal or (forecasts if len(forecasts) == 1 else ())), None)


def track_errors(scene: Scene, forecasts: Iterable[AgentForecast]) -> list[tuple[float, float]]:
    """minADE and minFDE over all modes of each forecast, metres; without agents that have no recorded last future step."""
    errors = []
    for agent, probability, modes in forecasts if scene.num_steps > scene.num_history else ():
        if scene.valid[agent, -1]:
            truth = (
                scene.position[agent, scene.num_history :].astype(np.float64),
                scene.valid[agent, scene.num_history :],
            )
            share, position, target, valid = (
                torch.tensor(value)[None, None] for value in (probability, modes, *truth)
            )
            table = agent_errors(Forecast(position, share.log(), Frame.SCENE), target, valid)
            metrics = best_end(table.most_probable(len(probability)))
            errors.append((float(metrics["minADE"]), float(metrics["minFDE"])))
    return errors


def draw_forecasts(ax: Axes, scene: Scene, forecasts: Sequence[AgentForecast]) -> Axes:
    """Draw all modes of all forecasts, metres relative to the scene's `origin`, probable modes on top, and probabilities.

    Modes of the focal agent have the focal color and end in circles, others are thinner and end in squares.
    Line k of a track has the gid "mode:<track id>:<k>". Labels fit the current limits and size of `ax`.
    """
    with_focal = any(scene.agent_role[forecast.agent] == AgentRole.FOCAL for forecast in forecasts)
    for forecast in forecasts:
        name = "forecast (others)" if with_focal else "forecast"
        color, width, zorder, marker, size = style.SCORED, 0.9, style.Z_MODE, "s", 2.6
        if scene.agent_role[forecast.agent] == AgentRole.FOCAL:
            name, color, width, zorder, marker, size = (
                "forecast (focal)",
                style.FOCAL,
                1.6,
                style.Z_FOCAL_MODE,
                "o",
                4.2,
            )
        order = np.argsort(-forecast.probability, kind="stable")
        max_probability = max(float(forecast.probability.max()), 1e-12)
        for rank, mode in enumerate(order.tolist()):
            alpha = (
                MIN_ALPHA + (1.0 - MIN_ALPHA) * float(forecast.probability[mode]) / max_probability
            )
            (line,) = ax.plot(*forecast.position[mode].T, color=color, linewidth=width, alpha=alpha)
            line.set(
                marker=marker,
                markersize=size,
                markevery=[-1],
                markeredgecolor=style.PAPER,
                markeredgewidth=0.4,
            )
            line.set(
                gid=f"mode:{scene.agent_id[forecast.agent]}:{mode}",
                zorder=zorder - 0.4 * rank / len(order),
            )
            line.set(label="" if rank else name, solid_capstyle="butt", solid_joinstyle="round")
    _draw_probabilities(ax, scene, forecasts)
    return ax


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
    lines = np.concatenate(
        [
            *paths,
            future,
            *outlines(scene, scene.valid[:, scene.num_history - 1].nonzero()[0].tolist()),
        ]
    )
    recorded_ends = [scene.position[f.agent][scene.valid[f.agent]][-1:] for f in forecasts]
    ends = np.concatenate(
        [*(f.position[:, -1] for f in forecasts), *recorded_ends, np.zeros((0, 2))]
    )
    focal = main is not None and scene.agent_role[main.agent] == AgentRole.FOCAL
    place_labels(ax, labels, lines, ends, style.FOCAL_DARK if focal else style.SCORED_DARK)


class Label(NamedTuple):
    """A text for a point [2]; free space is searched in `direction` [2] first, data units."""

    text: str
    point: np.ndarray
    direction: np.ndarray


def place_labels(
    ax: Axes, labels: Sequence[Label], lines: np.ndarray, ends: np.ndarray, color: str
) -> None:
    """Write the labels, most important first, gid "label", on a white halo; a label without space inside the axes is left out.

    The current limits and size of `ax` decide about free space. Labels avoid the points `lines` [N, 2] if possible, and never
    cover the points `ends` [E, 2], both in data units.
    """
    ax.autoscale_view()  # matplotlib delays this until it draws, but the limits are needed now
    ax.apply_aspect()
    figure = ax.get_figure(root=True)
    assert figure is not None, "labels need an Axes with a figure"
    to_points = 72.0 / figure.dpi
    frame = np.array(ax.bbox.extents).reshape(2, 2) * to_points
    lines_pt, ends_pt = (
        ax.transData.transform(xy.reshape(-1, 2)) * to_points for xy in (lines, ends)
    )
    rank, turn = (
        np.repeat(np.arange(len(_DISTANCES_PT)), len(_TURNS)),
        np.tile(_TURNS, len(_DISTANCES_PT)),
    )
    distance = np.array(_DISTANCES_PT)[rank]  # [candidates]
    occupied = np.zeros((0, 2, 2))  # boxes [n, 2, 2]: lower left and upper right corner
    for label in labels:
        anchor = ax.transData.transform(label.point) * to_points
        direction = ax.transData.transform(label.point + label.direction) * to_points - anchor
        size = np.array([len(label.text) * _DIGIT_PT, _HEIGHT_PT]) * style.LABEL_PT
        angle = np.arctan2(direction[1], direction[0]) + turn
        unit = np.stack([np.cos(angle), np.sin(angle)], -1)
        middle = anchor + unit * (distance + np.abs(unit) @ size / 2)[:, None]
        box = middle[:, None] + np.array([-0.5, 0.5])[:, None] * size  # [candidates, 2, 2]
        cost = (
            3.0 * rank + np.abs(turn) + 1.5 * _count_inside(lines_pt, box, 0.5)
        )  # close boxes straight ahead are best
        cost[((box[:, 0] < frame[0]) | (box[:, 1] > frame[1])).any(-1)] = np.inf
        cost[_count_inside(ends_pt, box, _END_RADIUS_PT) > 0] = np.inf
        overlap = (box[:, None, 0] < occupied[:, 1] + 0.5) & (
            occupied[:, 0] < box[:, None, 1] + 0.5
        )
        cost[overlap.all(-1).any(-1)] = np.inf
        best = int(cost.argmin())
        if np.isfinite(cost[best]):
            occupied = np.concatenate([occupied, box[best : best + 1]])
            leader = {
                "arrowstyle": "-",
                "linewidth": 0.4,
                "color": color,
                "shrinkA": 0.0,
                "shrinkB": 2.0,
            }
            annotation = ax.annotate(
                label.text, tuple(label.point.tolist()), tuple(box[best].mean(0) - anchor), textcoords="offset points",
                annotation_clip=True, ha="center", va="center_baseline", fontsize=style.LABEL_PT, color=color,
                arrowprops=leader if distance[best] >= _MIN_LEADER_PT else None, zorder=style.Z_LABEL, gid="label",
                path_effects=[withStroke(linewidth=1.6, foreground=style.PAPER)],
            )  # fmt: skip
            annotation.set_in_layout(False)


def _count_inside(points: np.ndarray, box: np.ndarray, margin: float) -> np.ndarray:
    """Number of points [n, 2] in each box [candidates, 2, 2], widened by a margin."""
    return (
        ((points > box[:, None, 0] - margin) & (points < box[:, None, 1] + margin)).all(-1).sum(-1)
    )
