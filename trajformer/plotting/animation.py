"""A scene in motion: frames in which agents move along their recordings, and dots along the modes.

The picture of the scene is drawn once; each frame adds only boxes, trails and dots to it.
"""

from collections.abc import Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from trajformer.plotting import style
from trajformer.plotting.recorded import Look, face_colors, groups, noses, shapes, shown_sizes
from trajformer.plotting.scene import Content, PictureOptions, draw_contents
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import Scene

FRAME_S = 0.1
_LENGTH_S = 8.0  # of a scene that has enough history
_MIN_HISTORY_S = 1.0
_TRAIL_S = 2.0
_MAX_PIXELS = 720  # width of a frame
_DOT_PT = 3.6
_MOVING = ("boxes:", "noses:", "trails:", "focal-ring")  # gids of artists at the present
_PREDICTED = ("mode:", "modes:", "ends:", "truth:", "label")  # visible from the present on


def frame_times(scene: Scene) -> np.ndarray:
    """Times [n] of the frames, seconds relative to the last observed step.

    They end with the horizon, and begin so early that the animation has 8 s, if the history is long
    enough.
    """
    horizon = scene.num_future * scene.period_s
    history = (scene.num_history - 1) * scene.period_s
    shown = min(history, max(_LENGTH_S - horizon, _MIN_HISTORY_S))
    first = -int(shown / FRAME_S + 1e-6)
    last = int(horizon / FRAME_S + 1e-6)
    return np.arange(first, last + 1) * FRAME_S


@style.fixed_style
def draw_frames(content: Content, options: PictureOptions) -> Iterator[np.ndarray]:
    """The frames uint8 [height, width, 3] at `frame_times`, with even height and width."""
    figure = draw_contents([content], options)
    width, height = figure.get_size_inches()
    dpi = min(150.0, _MAX_PIXELS / width)
    pixels = np.array([width, height]) * dpi
    even = np.ceil(pixels / 2) * 2
    figure.set_size_inches(*(even / dpi))
    figure.set_dpi(dpi)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)

    ax = figure.axes[0]
    predicted = _with_gid(figure, _PREDICTED)
    for artist in _with_gid(figure, _MOVING):
        artist.set_visible(False)
    canvas.draw()
    future_ground = canvas.copy_from_bbox(figure.bbox)
    for artist in predicted:
        artist.set_visible(False)
    canvas.draw()
    history_ground = canvas.copy_from_bbox(figure.bbox)

    moving = _Moving(figure, content)
    for time in frame_times(content.scene).tolist():
        ground = history_ground if time < 0 else future_ground
        canvas.restore_region(ground)
        for artist in moving.at(time):
            ax.draw_artist(artist)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _with_gid(figure: Figure, prefixes: tuple[str, ...]) -> list[Artist]:
    """Artists in the axes with a gid that begins so, except artists of the legend."""
    found = []
    for artist in figure.axes[0].get_children():
        if str(artist.get_gid()).startswith(prefixes):
            found.append(artist)
    return found


class _Moving:
    """The artists that differ between frames."""

    def __init__(self, figure: Figure, content: Content) -> None:
        self.scene = content.scene
        self.content = content
        self.ax = figure.axes[0]
        agents = list(range(self.scene.num_agents))
        self.sizes = shown_sizes(self.scene, agents, self.ax)
        self.faces: list[str] = [style.CONTEXT_FACE] * len(agents)
        self.looks: list[Look | None] = [None] * len(agents)
        self.order: list[int] = []  # bottom to top
        for name, members in groups(self.scene).items():
            of_group = np.flatnonzero(members).tolist()
            faces, look = face_colors(self.scene, of_group, name, content.colors.face)
            for agent, face in zip(of_group, faces, strict=True):
                self.faces[agent] = face
                self.looks[agent] = look
            self.order += of_group
        self.clock = self.ax.text(0.02, 0.98, "", transform=self.ax.transAxes, va="top")
        self.clock.set(fontsize=style.FONT_PT, zorder=style.Z_LABEL)
        self.clock.set_path_effects([withStroke(linewidth=2.0, foreground=style.PAPER)])
        self.dots = self.ax.scatter([], [], s=_DOT_PT**2, edgecolors=style.PAPER, linewidths=0.4)

    def at(self, time: float) -> list[Artist]:
        """The artists of a frame, bottom to top."""
        poses, visible = poses_at(self.scene, time)
        shown = [agent for agent in self.order if visible[agent]]
        self.clock.set_text(f"{time:+.1f} s")
        artists: list[Artist] = [self._trails(time, shown)]
        if time >= 0 and self.content.forecasts:
            self._move_dots(time)
            artists.append(self.dots)
        artists += self._boxes(poses, shown)
        artists.append(self.clock)
        return artists

    def _boxes(self, poses: np.ndarray, shown: list[int]) -> list[Artist]:
        looks = [look for agent in shown if (look := self.looks[agent]) is not None]
        kinds = self.scene.agent_kind[shown].tolist()
        outlines = shapes(kinds, poses[shown], self.sizes[shown])
        boxes = PolyCollection(outlines, facecolors=[self.faces[agent] for agent in shown])
        boxes.set(edgecolors=[look.edge for look in looks])
        boxes.set(linewidths=[look.edge_width for look in looks])
        arrows = []
        colors = []
        for agent, look in zip(shown, looks, strict=True):
            for nose in noses(poses[[agent]], self.sizes[[agent]]):
                arrows.append(nose)
                colors.append(look.nose)
        lines = LineCollection(arrows, colors=colors, linewidths=0.6)
        for artist in (boxes, lines):
            self._attach(artist)
        return [boxes, lines]

    def _trails(self, time: float, shown: list[int]) -> Artist:
        """The last two seconds of each agent, fading with age."""
        scene = self.scene
        now = scene.num_history - 1 + int(np.floor(time / scene.period_s + 1e-6))
        now = min(now, scene.num_steps - 1)
        count = max(round(_TRAIL_S / scene.period_s), 1)
        segments = []
        colors = []
        for step in range(max(now - count, 0), now):
            opacity = 0.9 * (1.0 - (now - 1 - step) / count)
            for agent in shown:
                if scene.valid[agent, step] and scene.valid[agent, step + 1]:
                    segments.append(scene.position[agent, step : step + 2])
                    look = self.looks[agent]
                    trail = look.trail if look is not None else style.CONTEXT_EDGE
                    color = self.content.colors.face.get(agent, trail)
                    colors.append(to_rgba(color, opacity))
        trails = LineCollection(segments, colors=colors, linewidths=1.3)
        self._attach(trails)
        return trails

    def _move_dots(self, time: float) -> None:
        """Dots at the predicted positions, opaque where probable."""
        points = []
        colors = []
        looks = self.content.colors.modes
        for forecast, of_mode in zip(self.content.forecasts, looks, strict=True):
            points.append(predicted_at(self.scene, forecast.agent, forecast.position, time))
            relative = forecast.probability / max(float(forecast.probability.max()), 1e-12)
            for look, share in zip(of_mode, relative.tolist(), strict=True):
                colors.append(to_rgba(look.color, 0.3 + 0.7 * share))
        self.dots.set_offsets(np.concatenate(points))
        self.dots.set_facecolor(colors)

    def _attach(self, artist: LineCollection | PolyCollection) -> None:
        """Place an artist in the axes without keeping it there."""
        artist.set_figure(self.ax.get_figure(root=True))  # type: ignore[arg-type]
        artist.axes = self.ax
        artist.set_transform(self.ax.transData)
        artist.set_clip_path(self.ax.patch)


def poses_at(scene: Scene, time: float) -> tuple[np.ndarray, np.ndarray]:
    """Poses float64 [A, 3] at a time relative to step H - 1, and whether they are known, bool [A].

    Between two steps, both have to be recorded. Scenes without a recorded future stay at the
    present.
    """
    exact = scene.num_history - 1 + time / scene.period_s
    exact = min(exact, scene.num_steps - 1.0)
    first = int(np.floor(exact + 1e-6))
    share = exact - first
    pose = np.concatenate([scene.position, scene.heading[..., None]], -1).astype(np.float64)
    if share < 1e-6:
        return pose[:, first], scene.valid[:, first]
    step = pose[:, first + 1] - pose[:, first]
    step[:, 2] = wrap(step[:, 2])
    return pose[:, first] + share * step, scene.valid[:, first] & scene.valid[:, first + 1]


def predicted_at(scene: Scene, agent: int, position: np.ndarray, time: float) -> np.ndarray:
    """Positions [K, 2] of modes [K, F, 2] at a time from 0 to the horizon, interpolated."""
    now = scene.num_history - 1
    start = position[:, :1]
    if scene.valid[agent, now]:
        start = np.broadcast_to(scene.position[agent, now], start.shape)
    path = np.concatenate([start, position], 1)  # [K, 1 + F, 2]
    exact = min(time / scene.period_s, path.shape[1] - 1.0)
    first = min(int(np.floor(exact + 1e-6)), path.shape[1] - 2)
    return path[:, first] + (exact - first) * (path[:, first + 1] - path[:, first])
