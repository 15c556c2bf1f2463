"""Pictures of the results: attention of translations, classified images, detected objects."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from trajformer.heads.detr.data import Example
from trajformer.heads.detr.objects import Objects
from trajformer.heads.translation.translator import Translator
from trajformer.plotting import style
from trajformer.plotting.attention import (
    draw_attention_map,
    draw_attention_matrix,
    draw_bars,
    draw_image,
)
from trajformer.plotting.files import save_figure
from trajformer.plotting.fonts import escaped, families

# The palette of Okabe and Ito. Dashes distinguish the classes without color.
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MIN_ASPECT, MAX_ASPECT = 0.2, 4.0  # of a drawn image
DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (5, 1.5, 1.2, 1.5)),
)


@style.fixed_style
def save_cross_attention(path: Path, model: Translator, source: str, target: str) -> None:
    """Write the attention of target tokens to source tokens as PNG.

    The weights are of the last layer, averaged over heads.
    """
    rows, columns, weights = model.cross_attention(source, target)
    size = (1.5 + 0.28 * len(columns), 1.5 + 0.28 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    last_layer = weights[-1].mean(0).cpu().numpy()
    draw_attention_matrix(figure.subplots(), last_layer, rows, columns)
    save_figure(figure, path)


@style.fixed_style
def save_classification(
    path: Path, title: str, image: Tensor, rollout: Tensor, names: list[str], p: np.ndarray
) -> None:
    """Write an image, its attention rollout and its most probable classes as PNG.

    Args:
        path: the PNG file.
        title: title of the image.
        image: [C, H, W] in 0..1.
        rollout: [rows, columns].
        names: names of the most probable classes.
        p: their probabilities.
    """
    pixels = image.permute(1, 2, 0).squeeze(-1).numpy()
    figure = Figure(figsize=(7.2, 2.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
    _set_title(draw_image(left, pixels), title, style.FONT_PT)
    draw_attention_map(middle, pixels, rollout.float().cpu().numpy())
    middle.set_title("attention rollout", fontsize=style.FONT_PT)
    draw_bars(right, names, p).set_title("probability", fontsize=style.FONT_PT)
    save_figure(figure, path)


@style.fixed_style
def save_detections(
    path: Path,
    example: Example,
    objects: Objects,
    names: Sequence[str],
    maps: tuple[Tensor, Tensor] | None = None,
    *,
    true: bool,
) -> None:
    """Write an image with its detected objects as PNG. Each class has its color and dashes.

    Args:
        path: the PNG file.
        example: the image.
        objects: in pixels of the original image.
        names: names of the classes.
        maps: attention maps of the first objects (`attention_maps`), drawn at the right.
        true: also draw the labeled boxes.
    """
    image = example.image.permute(1, 2, 0).numpy()
    height, width, _ = image.shape
    original_height, original_width = example.original
    box = objects.box.numpy() * np.array([width / original_width, height / original_height] * 2)
    text = []
    for _, score, label in objects.rows():
        text.append(f"{names[label]} {score:.2f}")

    columns = 0 if maps is None else len(maps[0])
    # Thin images are drawn smaller: matplotlib limits the number of pixels.
    aspect = min(max(height / width, MIN_ASPECT), MAX_ASPECT)
    size = (4.4 + 2.2 * columns, 4.4 * aspect + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    rows = 2 if columns else 1
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[2.0, *[1.0] * columns])
    main = figure.add_subplot(grid[:, 0])
    if maps is not None:
        decoder, encoder = maps
        for column in range(columns):
            ax = figure.add_subplot(grid[0, column + 1])
            draw_attention_map(ax, image, decoder[column].numpy())
            _finish_map(ax, image, box[column], f"{text[column]}: decoder")
            ax = figure.add_subplot(grid[1, column + 1])
            x, y = box[column].reshape(2, 2).mean(0).tolist()
            draw_attention_map(ax, image, encoder[column].numpy(), query=(x, y))
            _finish_map(ax, image, box[column], "encoder, at its center")

    draw_image(main, image)
    for rank, label in enumerate(objects.label.tolist()):
        # The first box is drawn on top.
        _draw_object(main, box[rank], label, text[rank], style.Z_MODE - rank * 1e-3)
    title = f"{example.name}: detections"
    if true:
        title += " and labels (dotted)"
        for corners in example.box.numpy():
            _draw_true_box(main, corners)
    main.set(xlim=(0.0, width), ylim=(height, 0.0))
    _set_title(main, title, style.FONT_PT)
    save_figure(figure, path)


def _set_title(ax: Axes, title: str, size: float) -> None:
    """Write a title with names of the user: files and classes."""
    ax.set_title(escaped(title), fontsize=size, fontfamily=families(), parse_math=False)


def _finish_map(ax: Axes, image: np.ndarray, corners: np.ndarray, title: str) -> None:
    """Add the box of the object and a title to an attention map."""
    height, width, _ = image.shape
    _draw_box(ax, corners, edgecolor=style.TRUTH, linewidth=0.9)
    _set_title(ax, title, style.SMALL_PT)
    ax.set(xlim=(0.0, width), ylim=(height, 0.0))


def _draw_object(ax: Axes, corners: np.ndarray, label: int, text: str, zorder: float) -> None:
    """A box in the style of its class over a white one, and its text at the top left."""
    color = COLORS[label % len(COLORS)]
    dashes = DASHES[label % len(DASHES)]
    common = {"zorder": zorder, "gid": "box"}
    _draw_box(ax, corners, edgecolor=style.PAPER, linestyle="-", linewidth=2.6, **common)
    _draw_box(ax, corners, edgecolor=color, linestyle=dashes, linewidth=1.4, **common)
    background = {"boxstyle": "square,pad=0.15", "facecolor": color, "edgecolor": "none"}
    left, top = corners[:2].clip(0.0).tolist()
    note = ax.annotate(
        escaped(text),
        (left, top),
        (1.5, -1.5),
        textcoords="offset points",
        bbox={**background, "alpha": 0.85},
    )
    note.set(color=style.PAPER, fontsize=6.0, ha="left", va="top", zorder=zorder)
    note.set(parse_math=False, fontfamily=families(), gid="label")


def _draw_true_box(ax: Axes, corners: np.ndarray) -> None:
    """A dotted black line over a white one, which is visible on any background."""
    common = {"zorder": style.Z_LANE, "gid": "true box"}
    _draw_box(ax, corners, edgecolor=style.PAPER, linestyle="-", linewidth=1.8, **common)
    _draw_box(ax, corners, edgecolor=style.TRUTH, linestyle=":", linewidth=1.0, **common)


def _draw_box(ax: Axes, corners: np.ndarray, **options: object) -> None:
    """An empty rectangle with the corners (left, top, right, bottom)."""
    left, top, right, bottom = corners.tolist()
    patch = Rectangle((left, top), right - left, bottom - top, fill=False)
    patch.set(**options)
    ax.add_patch(patch)
