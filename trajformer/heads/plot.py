"""Pictures of the results of the heads: attention of translations, classified images, detected objects."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from trajformer.heads.detr.data import Example
from trajformer.heads.detr.model import Objects
from trajformer.heads.translation import Translator
from trajformer.plotting import style
from trajformer.plotting.attention import (
    draw_attention_map,
    draw_attention_matrix,
    draw_bars,
    draw_image,
)
from trajformer.plotting.scene import save_figure

# The palette of Okabe and Ito. Dashes distinguish the classes without color.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (5, 1.5, 1.2, 1.5)),
)


def save_cross_attention(path: Path, model: Translator, source: str, target: str) -> None:
    """Write the attention of target tokens to source tokens as PNG: the last layer, averaged over heads."""
    rows, columns, weights = model.cross_attention(source, target)
    figure = Figure(
        figsize=(1.5 + 0.28 * len(columns), 1.5 + 0.28 * len(rows)), layout="constrained"
    )
    draw_attention_matrix(figure.subplots(), weights[-1].mean(0).cpu().numpy(), rows, columns)
    save_figure(figure, path)


def save_classification(
    path: Path, title: str, image: Tensor, rollout: Tensor, names: list[str], p: np.ndarray
) -> None:
    """Write an image [C, H, W] in 0..1, its attention rollout [rows, columns] and its most probable classes as PNG."""
    pixels = image.permute(1, 2, 0).squeeze(-1).numpy()
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    draw_image(left, pixels).set_title(title, fontsize=style.FONT_PT, parse_math=False)
    rollout = rollout.float().cpu()
    draw_attention_map(middle, pixels, rollout.numpy()).set_title(
        "attention rollout", fontsize=style.FONT_PT
    )
    draw_bars(right, names, p).set_title("probability", fontsize=style.FONT_PT)
    save_figure(figure, path)


def save_detections(
    path: Path,
    example: Example,
    objects: Objects,
    names: Sequence[str],
    maps: tuple[Tensor, Tensor] | None = None,
    *,
    true: bool,
) -> None:
    """Write an image with its detected objects as PNG, with attention maps at the right. Each class has its color and dashes.

    Objects are in pixels of the original image; `maps` are attention maps of the first ones (`attention_maps`). With `true`, the
    labeled boxes are drawn, too.
    """
    image = example.image.permute(1, 2, 0).numpy()
    height, width, _ = image.shape
    box = objects.box.numpy() * np.array(
        [width / example.original[1], height / example.original[0]] * 2
    )
    label = objects.label.tolist()
    text = [
        f"{names[kind]} {score:.2f}"
        for kind, score in zip(label, objects.score.tolist(), strict=True)
    ]
    columns = 0 if maps is None else len(maps[0])
    figure = Figure(figsize=(4.4 + 2.2 * columns, 4.4 * height / width + 0.3), layout="constrained")
    grid = figure.add_gridspec(
        2 if columns else 1, columns + 1, width_ratios=[2.0, *[1.0] * columns]
    )
    main = figure.add_subplot(grid[:, 0])
    for column in range(columns):
        assert maps is not None
        center = box[column].reshape(2, 2).mean(0).tolist()
        for row, title in enumerate((f"{text[column]}: decoder", "encoder, at its center")):
            ax = figure.add_subplot(grid[row, column + 1])
            draw_attention_map(ax, image, maps[row][column].numpy(), query=center if row else None)
            _draw_box(ax, box[column], edgecolor=style.TRUTH, linewidth=0.9)
            ax.set_title(title, fontsize=style.SMALL_PT, parse_math=False)
            ax.set(xlim=(0.0, width), ylim=(height, 0.0))
    draw_image(main, image)
    for rank, (corners, kind, words) in enumerate(
        zip(box, label, text, strict=True)
    ):  # the first box is drawn on top
        color, dash, zorder = (
            COLORS[kind % len(COLORS)],
            DASHES[kind % len(DASHES)],
            style.Z_MODE - rank * 1e-3,
        )
        for line, shade, stroke in (("-", style.PAPER, 2.6), (dash, color, 1.4)):
            _draw_box(
                main,
                corners,
                edgecolor=shade,
                linestyle=line,
                linewidth=stroke,
                zorder=zorder,
                gid="box",
            )
        backing = {
            "boxstyle": "square,pad=0.15",
            "facecolor": color,
            "edgecolor": "none",
            "alpha": 0.85,
        }
        note = main.annotate(
            words, corners[:2].clip(0.0), (1.5, -1.5), textcoords="offset points", bbox=backing
        )
        note.set(
            color=style.PAPER,
            fontsize=6.0,
            ha="left",
            va="top",
            zorder=zorder,
            parse_math=False,
            gid="label",
        )
    main.set(xlim=(0.0, width), ylim=(height, 0.0))
    if true:
        for (
            corners
        ) in example.box.numpy():  # visible on any background: a dotted black line over a white one
            for line, color, stroke in (("-", style.PAPER, 1.8), (":", style.TRUTH, 1.0)):
                _draw_box(
                    main,
                    corners,
                    edgecolor=color,
                    linestyle=line,
                    linewidth=stroke,
                    zorder=style.Z_LANE,
                    gid="true box",
                )
    title = f"{example.name}: detections{' and labels (dotted)' if true else ''}"
    main.set_title(title, fontsize=style.FONT_PT, parse_math=False)
    save_figure(figure, path)


def _draw_box(ax: Axes, corners: np.ndarray, **options: object) -> None:
    """An empty rectangle with the corners (left, top, right, bottom)."""
    left, top, right, bottom = corners.tolist()
    patch = Rectangle((left, top), right - left, bottom - top, fill=False)
    patch.set(**options)
    ax.add_patch(patch)
