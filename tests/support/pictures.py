"""Simple forecasts for plotting tests, and access to the artists of an Axes by their gid."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.scenes.scene import AgentRole, Scene


def fan(scene: Scene, agent: int, modes: int = 6) -> TrackForecast:
    """Straight modes in different directions; the probability decreases with the mode."""
    now = scene.num_history - 1
    angle = scene.heading[agent, now] + np.linspace(-0.6, 0.6, modes)
    distance = 10.0 * scene.period_s * np.arange(1, scene.num_future + 1)
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)  # [K, 2]
    position = direction[:, None] * distance[None, :, None]  # [K, F, 2]
    probability = 0.6 ** np.arange(modes)
    position += scene.position[agent, now] + scene.origin
    return TrackForecast(
        scene.scene_id, scene.agent_id[agent], probability / probability.sum(), position
    )


def fans(scene: Scene) -> list[TrackForecast]:
    """A fan for each target."""
    return [
        fan(scene, int(agent)) for agent in np.flatnonzero(scene.agent_role != AgentRole.CONTEXT)
    ]


def empty_axes() -> Axes:
    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def lines(ax: Axes, prefix: str) -> list[Line2D]:
    return [line for line in ax.lines if str(line.get_gid()).startswith(prefix)]


def path_of(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xydata(), np.float64)


def collection(ax: Axes, gid: str) -> Collection:
    (match,) = [c for c in ax.collections if c.get_gid() == gid]
    return match


def vertices(ax: Axes, gid: str) -> list[np.ndarray]:
    return [np.asarray(path.vertices) for path in collection(ax, gid).get_paths()]


def image_of(ax: Axes, gid: str) -> AxesImage:
    (match,) = [image for image in ax.images if image.get_gid() == gid]
    return match


def image_values(ax: Axes, gid: str) -> np.ndarray:
    return np.asarray(image_of(ax, gid).get_array())


def labels(ax: Axes) -> list[Text]:
    return [text for text in ax.texts if text.get_gid() == "label"]


def render(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return buffer.getvalue()


def pixel(ax: Axes, x: float, y: float) -> np.ndarray:
    """Rendered color [3] at a position in data units."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    pixels = np.asarray(Image.open(io.BytesIO(render(figure))).convert("RGB")) / 255.0
    figure.set_dpi(60)
    column, row = ax.transData.transform((x, y))
    return pixels[len(pixels) - 1 - int(row), int(column)]
