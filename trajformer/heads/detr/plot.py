"""Boxes over a picture: what was found, and beside it what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Rectangle

from trajformer.heads.detr.data.batch import Example
from trajformer.heads.detr.model import AttentionMaps, Found
from trajformer.plotting import style
from trajformer.plotting.attention import draw_attention_map, draw_image
from trajformer.plotting.scene import save_figure

# Okabe and Ito's colours, and dashes that tell the classes apart without colour.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1.2, 1.5)))


def draw_boxes(ax: Axes, image: np.ndarray, box: np.ndarray, label: Sequence[int], text: Sequence[str]) -> Axes:
    """Draw a picture and the boxes found in it, each class in its own colour and dashes.

    Args:
        ax: gets pixels as its units, row 0 on top.
        image: float [H, W, 3] in 0..1.
        box: corners [N, 4] in pixels, the surest first; less sure ones lie below.
        label: classes [N].
        text: [N], written at the upper left corners; an empty one is not.

    Raises:
        ValueError: boxes, classes and texts differ in number.
    """
    if not len(box) == len(label) == len(text):
        raise ValueError(f"{len(box)} boxes, {len(label)} classes, {len(text)} texts")
    draw_image(ax, image)
    for rank, ((left, top, right, bottom), kind, words) in enumerate(zip(np.asarray(box).tolist(), label, text, strict=True)):
        colour, dash = COLOURS[kind % len(COLOURS)], DASHES[kind % len(DASHES)]
        height = style.Z_MODE - rank * 1e-3
        for line, shade, width in (("-", style.PAPER, 2.6), (dash, colour, 1.4)):  # a light margin: visible on any ground
            patch = Rectangle(
                (left, top), right - left, bottom - top, fill=False, edgecolor=shade, linewidth=width, linestyle=line
            )
            patch.set(zorder=height, gid="box")
            ax.add_patch(patch)
        if words:
            backing = {"boxstyle": "square,pad=0.15", "facecolor": colour, "edgecolor": "none", "alpha": 0.85}
            place = ax.annotate(words, (max(left, 0.0), max(top, 0.0)), (1.5, -1.5), textcoords="offset points", bbox=backing)
            place.set(color=style.PAPER, fontsize=6.0, ha="left", va="top", zorder=height, parse_math=False, gid="label")
    ax.set(xlim=(0.0, image.shape[1]), ylim=(image.shape[0], 0.0))
    return ax


def draw_true_boxes(ax: Axes, box: np.ndarray) -> Axes:
    """Draw boxes that are there, corners [N, 4] in pixels, as dotted black lines on a white margin."""
    for left, top, right, bottom in np.asarray(box).tolist():
        for line, shade, width in (("-", style.PAPER, 1.8), (":", style.TRUTH, 1.0)):
            patch = Rectangle(
                (left, top), right - left, bottom - top, fill=False, edgecolor=shade, linewidth=width, linestyle=line
            )
            patch.set(zorder=style.Z_LANE, gid="true box")
            ax.add_patch(patch)
    return ax


def save_detections(
    path: Path, example: Example, found: Found, names: Sequence[str], maps: AttentionMaps | None = None, *, true: bool = False
) -> None:
    """Write a picture with the objects found in it as PNG, and beside it what the surest were found by.

    Args:
        path: of the PNG.
        example: the picture, and what is there.
        found: in pixels of the original.
        names: of the classes.
        maps: attention behind the first objects found.
        true: draw what is there, too.
    """
    image = example.image.permute(1, 2, 0).numpy()
    scale = np.array([image.shape[1] / example.original[1], image.shape[0] / example.original[0]] * 2)
    box, label = found.box.numpy() * scale, found.label.tolist()
    text = [f"{names[kind]} {sure:.2f}" for kind, sure in zip(label, found.score.tolist(), strict=True)]
    columns = 1 if maps is None else max(len(maps.decoder), 1)
    tall = 4.4 * image.shape[0] / image.shape[1]
    if maps is None or not len(maps.decoder):
        figure = Figure(figsize=(4.4, tall + 0.3), layout="constrained")
        main = figure.subplots()
    else:
        figure = Figure(figsize=(4.4 + 2.2 * columns, tall + 0.3), layout="constrained")
        grid = figure.add_gridspec(2, columns + 1, width_ratios=[2.0, *[1.0] * columns])
        main = figure.add_subplot(grid[:, 0])
        _draw_maps(figure, grid, image, box, text, maps)
    FigureCanvasAgg(figure)
    draw_boxes(main, image, box, label, text)
    if true:
        draw_true_boxes(main, example.box.numpy())
    main.set_title(
        f"{example.name}: found{' and, dotted, what is there' if true else ''}", fontsize=style.FONT_PT, parse_math=False
    )
    save_figure(figure, path)
    figure.clear()


def _draw_maps(
    figure: Figure, grid: GridSpec, image: np.ndarray, box: np.ndarray, text: Sequence[str], maps: AttentionMaps
) -> None:
    for column, words in enumerate(text[: len(maps.decoder)]):
        left, top, right, bottom = box[column].tolist()
        for row, (part, weights) in enumerate((("decoder", maps.decoder), ("encoder", maps.encoder))):
            ax = figure.add_subplot(grid[row, column + 1])
            middle = ((left + right) / 2, (top + bottom) / 2) if part == "encoder" else None
            draw_attention_map(ax, image, weights[column].numpy(), query=middle)
            ax.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=style.TRUTH, linewidth=0.9))
            title = f"{words}: decoder" if row == 0 else "encoder, at its middle"
            ax.set_title(title, fontsize=style.SMALL_PT, parse_math=False)
            ax.set(xlim=(0.0, image.shape[1]), ylim=(image.shape[0], 0.0))
