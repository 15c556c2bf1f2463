"""What tests of pictures share: simple forecasts, and the artists of an Axes by their gid."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.scenes.scene import AgentRole, Scene


def fan(scene: Scene, agent: int, modes: int = 6, shift: float = 0.0) -> TrackForecast:
    """Straight modes of different directions, mode k with a probability that falls with k; `shift` moves all (m)."""
    now = scene.num_history - 1
    angle = scene.heading[agent, now] + np.linspace(-0.6, 0.6, modes)
    reach = 10.0 * scene.period_s * np.arange(1, scene.num_future + 1)
    position = np.stack([np.cos(angle), np.sin(angle)], -1)[:, None] * reach[None, :, None]
    probability = 0.6 ** np.arange(modes)
    position += scene.position[agent, now] + scene.origin + shift
    return TrackForecast(scene.scene_id, scene.agent_id[agent], probability / probability.sum(), position)


def fans(scene: Scene) -> list[TrackForecast]:
    return [fan(scene, int(agent)) for agent in np.flatnonzero(scene.agent_role != AgentRole.CONTEXT)]


def empty_axes() -> Axes:
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def lines(ax: Axes, prefix: str) -> list[Line2D]:
    return [line for line in ax.lines if str(line.get_gid()).startswith(prefix)]


def path_of(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xydata(), np.float64)


def collection(ax: Axes, gid: str) -> Collection:
    (found,) = [c for c in ax.collections if c.get_gid() == gid]
    return found


def vertices(ax: Axes, gid: str) -> list[np.ndarray]:
    return [np.asarray(path.vertices) for path in collection(ax, gid).get_paths()]


def labels(ax: Axes) -> list[Text]:
    return [text for text in ax.texts if text.get_gid() == "label"]


def render(ax: Axes) -> bytes:
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=60)  # type: ignore[union-attr]
    return buffer.getvalue()
