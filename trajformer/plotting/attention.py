"""Attention weights as pictures: over an image, between the tokens of two sequences, over named things, over polylines.

Everything draws onto a given `Axes` and returns it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from trajformer.plotting import style

_DARK = "#5A2400"
SCALE = LinearSegmentedColormap.from_list("attention", [style.PAPER, "#F6D3B8", style.FOCAL, _DARK])  # lightness falls evenly
_LINES = LinearSegmentedColormap.from_list("attention lines", [style.CONTEXT_FACE, style.FOCAL, _DARK])
_VEIL = 0.7  # how much the highest weight hides of the picture
_NUMBERED = 100  # entries of a matrix that is small enough for numbers


def draw_attention_map(
    ax: Axes, image: np.ndarray, weights: np.ndarray, *, highest: float | None = None, query: tuple[float, float] | None = None
) -> Axes:
    """Draw a picture in grey, and over it, in orange, what is attended to: the more, the less the grey shows.

    Args:
        ax: gets pixels as its units, row 0 on top.
        image: float [H, W] or [H, W, 3] in 0..1.
        weights: [rows, columns] >= 0 of a grid that tiles the picture: patches, or a feature map.
        highest: the weight that is drawn strongest, to compare several pictures; the largest of this one by default.
        query: (x, y) pixels of who attends, marked with a cross.

    Raises:
        ValueError: image or weights have another shape.
    """
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or np.ndim(weights) != 2:
        raise ValueError(f"image {image.shape} and weights {np.shape(weights)}: expected [H, W] or [H, W, 3] and [rows, columns]")
    height, width = image.shape[:2]
    extent = (0.0, float(width), float(height), 0.0)
    grey = image if image.ndim == 2 else image @ np.array([0.299, 0.587, 0.114])
    ax.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, interpolation="nearest", gid="image")
    strength = np.clip(weights / max(float(np.max(weights)) if highest is None else highest, 1e-12), 0.0, 1.0)
    veil = np.empty((*strength.shape, 4))
    veil[..., :3], veil[..., 3] = to_rgb(style.FOCAL), _VEIL * strength
    ax.imshow(veil, extent=extent, interpolation="nearest", gid="attention")
    if query is not None:
        for colour, size in ((style.PAPER, 3.5), (style.TRUTH, 1.6)):
            ax.plot(*query, marker="x", markersize=8, markeredgewidth=size, color=colour, gid="query")
    return _bare(ax)


def draw_image(ax: Axes, image: np.ndarray) -> Axes:
    """Draw a picture float [H, W] or [H, W, 3] in 0..1; units are pixels, row 0 on top."""
    extent = (0.0, float(image.shape[1]), float(image.shape[0]), 0.0)
    ax.imshow(image, cmap="gray", vmin=0.0, vmax=1.0, extent=extent, interpolation="nearest", gid="image")
    return _bare(ax)


def _bare(ax: Axes) -> Axes:
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    return ax


def draw_attention_matrix(
    ax: Axes, weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, highest: float | None = None
) -> Axes:
    """Draw who attends to what: a row for each token that attends, a column for each that is attended to; the darker, the more.

    A small matrix has its weights in hundredths written on it (those above 0.05).

    Args:
        weights: [L, S] >= 0, a row sums to 1.
        rows: L tokens that attend, such as the words of a translation.
        columns: S tokens that are attended to, such as those of the source.
        highest: the weight drawn darkest; the largest one by default.

    Raises:
        ValueError: the names do not fit the weights.
    """
    weights = np.asarray(weights)
    if weights.shape != (len(rows), len(columns)):
        raise ValueError(f"weights {weights.shape}, but {len(rows)} rows and {len(columns)} columns are named")
    highest = max(float(weights.max(initial=0.0)) if highest is None else highest, 1e-12)
    ax.imshow(weights, cmap=SCALE, vmin=0.0, vmax=highest, aspect="equal", interpolation="nearest", gid="attention")
    size = style.SMALL_PT if max(weights.shape) <= 24 else 5.0
    ax.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size, parse_math=False)
    ax.set_yticks(range(len(rows)), rows, fontsize=size, parse_math=False)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=2)
    ax.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=style.FAINT_FACE, linewidth=0.4)
    ax.tick_params(which="minor", length=0)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    for row, column in np.argwhere(weights > 0.05) if weights.size <= _NUMBERED else ():
        value = float(weights[row, column])
        colour = style.PAPER if value > 0.55 * highest else style.INK
        ax.text(column, row, f"{100 * value:.0f}", color=colour, fontsize=6.5, ha="center", va="center", gid="weight")
    return ax


def draw_shares(ax: Axes, names: Sequence[str], shares: np.ndarray) -> Axes:
    """Draw a bar for each named thing, in the order given from the top: class probabilities, or weights over tokens.

    Args:
        names: N names.
        shares: [N] in 0..1; written at the bars in hundredths.

    Raises:
        ValueError: names and shares differ in number.
    """
    if np.shape(shares) != (len(names),):
        raise ValueError(f"{len(names)} names, but shares {np.shape(shares)}")
    places = range(len(names))
    ax.barh(places, shares, height=0.62, color=style.FOCAL, edgecolor=style.FOCAL_DARK, linewidth=0.6, gid="shares")
    for place, share in zip(places, np.asarray(shares).tolist(), strict=True):
        ax.text(share + 0.02, place, f"{share:.2f}", fontsize=style.SMALL_PT, va="center", color=style.INK, gid="share")
    short = [name if len(name) <= 24 else name[:23] + "…" for name in names]
    ax.set_yticks(places, short, fontsize=style.SMALL_PT, parse_math=False)
    ax.set(xlim=(0.0, 1.18), ylim=(len(names) - 0.4, -0.6), xticks=[0.0, 0.5, 1.0])
    ax.tick_params(labelsize=style.SMALL_PT, width=0.6, length=2.5)
    ax.tick_params(axis="y", length=0)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("bottom", "left"))
        spine.set_linewidth(0.6)
    return ax


def draw_attention_lines(ax: Axes, polylines: Sequence[np.ndarray], weights: np.ndarray, *, highest: float | None = None) -> Axes:
    """Draw polylines, such as lanes around an agent: the more one is attended to, the wider and darker, and the higher up.

    Those without weight are thin grey lines. Limits and aspect of `ax` are left alone.

    Args:
        polylines: M arrays [P, 2], data units; P may differ.
        weights: [M] >= 0.
        highest: the weight that is drawn strongest; the largest one by default.

    Raises:
        ValueError: there is not one weight a polyline.
    """
    weights = np.asarray(weights, np.float64)
    if weights.shape != (len(polylines),):
        raise ValueError(f"{len(polylines)} polylines, but weights {weights.shape}")
    order = np.argsort(weights, kind="stable")
    strength = np.clip(weights / max(float(weights.max(initial=0.0)) if highest is None else highest, 1e-12), 0.0, 1.0)[order]
    chosen = [np.asarray(polylines[index]) for index in order]
    lines = LineCollection(chosen, colors=_LINES(strength), linewidths=(0.7 + 3.3 * strength).tolist())
    lines.set(gid="attention", capstyle="round", zorder=style.Z_ARROW)
    ax.add_collection(lines, autolim=False)
    return ax
