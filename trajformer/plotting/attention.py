"""Attention weights over an image, between the tokens of two sequences and over named items."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from trajformer.plotting import style
from trajformer.plotting.fonts import escaped, families

# Lightness decreases evenly.
SCALE = LinearSegmentedColormap.from_list(
    "attention", [style.PAPER, "#F6D3B8", style.FOCAL, "#5A2400"]
)
_MAX_ALPHA = 0.7  # of the overlay, at the largest weight
_MAX_NUMBERED = 100  # entries of a matrix that is small enough for numbers


def draw_attention_map(
    ax: Axes, image: np.ndarray, weights: np.ndarray, *, query: tuple[float, float] | None = None
) -> Axes:
    """Draw an image in gray under an orange overlay that is more opaque where weights are larger.

    The image is float [H, W] or [H, W, 3] in 0..1; units of `ax` become pixels, row 0 on top.
    `weights` [rows, columns] >= 0 form a grid over the image: patches, or a feature map. A cross
    marks the position (x, y) of the query in pixels.
    """
    if image.ndim == 3:
        image = image @ np.array([0.299, 0.587, 0.114])  # lightness of red, green and blue
    draw_image(ax, image)
    overlay = np.empty((*weights.shape, 4))
    overlay[..., :3] = to_rgb(style.FOCAL)
    largest = max(float(np.max(weights, initial=0.0)), 1e-12)
    overlay[..., 3] = _MAX_ALPHA * weights / largest
    ax.imshow(overlay, extent=ax.images[0].get_extent(), interpolation="nearest", gid="attention")
    if query is not None:
        # black on a white halo
        for color, width in ((style.PAPER, 3.5), (style.TRUTH, 1.6)):
            (cross,) = ax.plot(*query, marker="x", markersize=8, color=color)
            cross.set(markeredgewidth=width, gid="query")
    return ax


def draw_image(ax: Axes, image: np.ndarray) -> Axes:
    """Draw an image float [H, W] or [H, W, 3] in 0..1; units are pixels, row 0 on top."""
    height, width = image.shape[:2]
    drawn = ax.imshow(image, cmap="gray", vmin=0.0, vmax=1.0, extent=(0, width, height, 0))
    drawn.set(interpolation="nearest", gid="image")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_linewidth(0.6)
    return ax


def draw_attention_matrix(
    ax: Axes, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> Axes:
    """Draw a matrix of weights [L, S] >= 0: rows are query tokens, columns key tokens.

    Each row sums to 1; large weights are dark. In a small matrix, weights above 0.05 are written in
    hundredths.
    """
    vmax = max(float(weights.max(initial=0.0)), 1e-12)
    drawn = ax.imshow(weights, cmap=SCALE, vmin=0.0, vmax=vmax, aspect="equal")
    drawn.set(interpolation="nearest", gid="attention")
    size = style.SMALL_PT if max(weights.shape) <= 24 else 5.0
    column_names = [escaped(name) for name in columns]
    row_names = [escaped(name) for name in rows]
    text_style: dict[str, Any] = {"fontsize": size, "fontfamily": families(), "parse_math": False}
    ax.set_xticks(range(len(columns)), column_names, rotation=90, **text_style)
    ax.set_yticks(range(len(rows)), row_names, **text_style)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2)
    ax.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=style.FAINT_FACE, linewidth=0.4)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_linewidth(0.6)
    if weights.size <= _MAX_NUMBERED:
        _write_weights(ax, weights, vmax)
    return ax


def _write_weights(ax: Axes, weights: np.ndarray, vmax: float) -> None:
    for row, column in np.argwhere(weights > 0.05):
        value = float(weights[row, column])
        text = ax.text(column, row, f"{100 * value:.0f}", ha="center", va="center")
        color = style.PAPER if value > 0.55 * vmax else style.INK
        text.set(color=color, fontsize=6.5, gid="weight")


def draw_bars(ax: Axes, names: Sequence[str], values: np.ndarray) -> Axes:
    """Draw one bar per name with its value [N] in 0..1, from the top.

    The values are class probabilities, or weights of tokens.
    """
    rows = range(len(names))
    bars = ax.barh(rows, values, height=0.62, color=style.FOCAL, gid="bars")
    for bar in bars:
        bar.set(edgecolor=style.FOCAL_DARK, linewidth=0.6)
    for row, value in zip(rows, np.asarray(values).tolist(), strict=True):
        text = ax.text(value + 0.02, row, f"{value:.2f}", va="center")
        text.set(fontsize=style.SMALL_PT, color=style.INK, gid="value")
    short = [_shorten(escaped(name)) for name in names]
    text_style: dict[str, Any] = {
        "fontsize": style.SMALL_PT,
        "fontfamily": families(),
        "parse_math": False,
    }
    ax.set_yticks(rows, short, **text_style)
    ax.set(xlim=(0.0, 1.18), ylim=(len(names) - 0.4, -0.6), xticks=[0.0, 0.5, 1.0])
    ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_linewidth(0.6)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _shorten(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"
