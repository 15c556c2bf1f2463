"""Pictures of detected objects, labeled boxes and attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Rectangle

from trajformer.heads.detr.data import Example
from trajformer.heads.detr.model import AttentionMaps, Objects
from trajformer.plotting import style
from trajformer.plotting.attention import draw_attention_map, draw_image
from trajformer.plotting.scene import save_figure

# The palette of Okabe and Ito. Dashes distinguish the classes without color.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1.2, 1.5)))


def draw_boxes(ax: Axes, image: np.ndarray, box: np.ndarray, label: Sequence[int], text: Sequence[str]) -> Axes:
    """Draw an image and boxes; each class has its color and dashes.

    Args:
        ax: axes with pixels as units, row 0 at the top.
        image: float [H, W, 3] in 0..1.
        box: corners [N, 4], pixels; the first box is drawn on top.
        label: classes [N].
        text: [N], written at the upper left corners; empty strings are not drawn.
    """
    draw_image(ax, image)
    for rank, (corners, kind, words) in enumerate(zip(np.asarray(box).tolist(), label, text, strict=True)):
        color, dash = COLORS[kind % len(COLORS)], DASHES[kind % len(DASHES)]
        zorder = style.Z_MODE - rank * 1e-3
        _draw_rectangle(ax, corners, color, dash, (2.6, 1.4), zorder, "box")
        if words:
            backing = {"boxstyle": "square,pad=0.15", "facecolor": color, "edgecolor": "none", "alpha": 0.85}
            corner = max(corners[0], 0.0), max(corners[1], 0.0)
            note = ax.annotate(words, corner, (1.5, -1.5), textcoords="offset points", bbox=backing)
            note.set(color=style.PAPER, fontsize=6.0, ha="left", va="top", zorder=zorder, parse_math=False, gid="label")
    ax.set(xlim=(0.0, image.shape[1]), ylim=(image.shape[0], 0.0))
    return ax


def draw_true_boxes(ax: Axes, box: np.ndarray) -> Axes:
    """Draw labeled boxes, corners [N, 4] in pixels, as dotted black lines with a white outline."""
    for corners in np.asarray(box).tolist():
        _draw_rectangle(ax, corners, style.TRUTH, ":", (1.8, 1.0), style.Z_LANE, "true box")
    return ax


def _draw_rectangle(
    ax: Axes, corners: Sequence[float], color: str, dash: str | tuple, widths: tuple[float, float], zorder: float, gid: str
) -> None:
    """A dashed line over a wider light one, which is visible on any background; `widths` are outer and inner."""
    left, top, right, bottom = corners
    for line, shade, width in (("-", style.PAPER, widths[0]), (dash, color, widths[1])):
        patch = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=shade, linewidth=width, linestyle=line)
        patch.set(zorder=zorder, gid=gid)
        ax.add_patch(patch)


def save_detections(
    path: Path, example: Example, objects: Objects, names: Sequence[str], maps: AttentionMaps | None = None, *, true: bool = False
) -> None:
    """Write an image with its detected objects as PNG, with attention maps at the right.

    Args:
        path: path of the PNG.
        example: the image and its labeled boxes.
        objects: detected objects, in pixels of the original image.
        names: names of the classes.
        maps: attention maps of the first objects.
        true: draw the labeled boxes, too.
    """
    image = example.image.permute(1, 2, 0).numpy()
    scale = np.array([image.shape[1] / example.original[1], image.shape[0] / example.original[0]] * 2)
    box, label = objects.box.numpy() * scale, objects.label.tolist()
    text = [f"{names[kind]} {score:.2f}" for kind, score in zip(label, objects.score.tolist(), strict=True)]
    columns = 0 if maps is None else len(maps.decoder)
    height = 4.4 * image.shape[0] / image.shape[1] + 0.3
    figure = Figure(figsize=(4.4 + 2.2 * columns, height), layout="constrained")
    if maps is None or not columns:
        main = figure.subplots()
    else:
        grid = figure.add_gridspec(2, columns + 1, width_ratios=[2.0, *[1.0] * columns])
        main = figure.add_subplot(grid[:, 0])
        _draw_maps(figure, grid, image, box, text, maps)
    draw_boxes(main, image, box, label, text)
    if true:
        draw_true_boxes(main, example.box.numpy())
    title = f"{example.name}: detections{' and labels (dotted)' if true else ''}"
    main.set_title(title, fontsize=style.FONT_PT, parse_math=False)
    save_figure(figure, path)
    figure.clear()


def _draw_maps(
    figure: Figure, grid: GridSpec, image: np.ndarray, box: np.ndarray, text: Sequence[str], maps: AttentionMaps
) -> None:
    for column, words in enumerate(text[: len(maps.decoder)]):
        left, top, right, bottom = box[column].tolist()
        center = ((left + right) / 2, (top + bottom) / 2)
        for row, (title, weights, query) in enumerate(
            ((f"{words}: decoder", maps.decoder, None), ("encoder, at its center", maps.encoder, center))
        ):
            ax = figure.add_subplot(grid[row, column + 1])
            draw_attention_map(ax, image, weights[column].numpy(), query=query)
            ax.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=style.TRUTH, linewidth=0.9))
            ax.set_title(title, fontsize=style.SMALL_PT, parse_math=False)
            ax.set(xlim=(0.0, image.shape[1]), ylim=(image.shape[0], 0.0))
