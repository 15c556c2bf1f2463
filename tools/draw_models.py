"""Draw the composition of the models: docs/images/models/<name in recipes>.svg.

    python tools/draw_models.py [--out docs/images/models] [--only NAME ...] [--png]

The content is in tools/model_drawings.py. A box is a part of the model; its colors show the parts of the core that it uses.
Equal drawings give equal bytes. --png writes PNG files instead.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from model_drawings import COLORS, DRAWINGS, Box, Drawing

ROOT = Path(__file__).parent.parent
WIDTH_IN, ROW_IN, LEGEND_IN = 6.2, 0.58, 0.24  # width; heights: row of boxes, legend
GAP_X, GAP_Y = 0.10, 0.36  # between boxes, relative to a column and a row
TITLE_PT, SHAPE_PT = 8.4, 7.4
INK, FAINT, PAPER = "#262626", "#555555", "#FFFFFF"
STYLE = {
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "trajformer",  # constant names of clip paths
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # part of matplotlib; the fallback of a browser is usually narrower
}


def rectangle(box: Box) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a box; rows have height 1 and columns width 1, the first row is from 0 to -1."""
    row, column = box.at
    return column + GAP_X / 2, -row - 1 + GAP_Y / 2, box.span - GAP_X, 1 - GAP_Y


def draw_box(axes: Axes, box: Box) -> None:
    """A box in the colors of its parts, with two lines of text."""
    left, bottom, width, height = rectangle(box)
    parts = box.parts
    for number, part in enumerate(parts):
        share = width / len(parts)
        corner = (left + number * share, bottom)
        axes.add_patch(Rectangle(corner, share, height, facecolor=COLORS[part], edgecolor="none", zorder=2))
    dashes = "--" if parts == ("learned queries",) else "-"
    thick = 1.6 if parts == ("loss",) else 0.9
    axes.add_patch(Rectangle((left, bottom), width, height, fill=False, edgecolor=INK, lw=thick, ls=dashes, zorder=3))
    x, y = left + width / 2, bottom + height / 2
    for dy, text, size, color in ((0.14, box.title, TITLE_PT, INK), (-0.16, box.shape, SHAPE_PT, FAINT)):
        axes.text(x, y + dy, text, ha="center", va="center", fontsize=size, color=color, zorder=4)


def corners_of(source: Box, target: Box) -> list[tuple[float, float]]:
    """Corners of the arrow between two boxes: straight, or down, sideways above the target, and down."""
    a, b = rectangle(source), rectangle(target)
    if source.at[0] == target.at[0]:
        right = source.at[1] < target.at[1]
        height = a[1] + a[3] / 2
        return [(a[0] + a[2] if right else a[0], height), (b[0] if right else b[0] + b[2], height)]
    low, high = max(a[0], b[0]), min(a[0] + a[2], b[0] + b[2])
    if low < high:  # the columns overlap
        middle = (low + high) / 2
        if source.at[0] > target.at[0]:
            return [(middle, a[1] + a[3]), (middle, b[1])]
        return [(middle, a[1]), (middle, b[1] + b[3])]
    start = a[0] + a[2] / 2
    end = b[0] + b[2] * (0.25 if start < b[0] else 0.75)
    turn = b[1] + b[3] + GAP_Y * 0.55
    return [(start, a[1]), (start, turn), (end, turn), (end, b[1] + b[3])]


def draw_edge(axes: Axes, corners: list[tuple[float, float]]) -> None:
    """An arrow along these corners."""
    xs, ys = zip(*corners[:-1], strict=True)
    if len(xs) > 1:
        axes.plot(xs, ys, color=INK, lw=0.9, zorder=1, solid_capstyle="butt")
    arrow = {"arrowstyle": "-|>,head_length=0.35,head_width=0.16", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", corners[-1], corners[-2], arrowprops=arrow, zorder=1)


def draw(drawing: Drawing) -> Figure:
    """The drawing of one model: boxes, arrows and a legend of its parts."""
    columns = max(box.at[1] + box.span for box in drawing.boxes)
    rows = 1 + max(box.at[0] for box in drawing.boxes)
    used = [part for part in COLORS if part != "input" and any(part in box.parts for box in drawing.boxes)]
    lines = -(-len(used) // 4)
    height = rows * ROW_IN + lines * LEGEND_IN
    figure = Figure((WIDTH_IN, height), facecolor=PAPER)
    axes = figure.add_axes((0.0, lines * LEGEND_IN / height, 1.0, rows * ROW_IN / height))
    axes.set(xlim=(0, columns), ylim=(-rows, 0))
    axes.set_axis_off()
    boxes = {box.name: box for box in drawing.boxes}
    for source, target in drawing.edges:
        draw_edge(axes, corners_of(boxes[source], boxes[target]))
    for box in drawing.boxes:
        draw_box(axes, box)
    keys = [
        Patch(facecolor=COLORS[part], edgecolor=INK, lw=0.7, ls="--" if part == "learned queries" else "-", label=part)
        for part in used
    ]
    look = {"frameon": False, "fontsize": SHAPE_PT, "handlelength": 1.3, "handleheight": 0.9, "columnspacing": 1.4}
    figure.legend(handles=keys, loc="lower center", ncols=-(-len(keys) // lines), borderaxespad=0.2, labelspacing=0.35, **look)
    return figure


def picture(drawing: Drawing, form: str = "svg") -> bytes:
    """The drawing as a file; equal drawings give equal bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        metadata = {"Date": None, "Creator": None} if form == "svg" else {}
        draw(drawing).savefig(buffer, format=form, dpi=160, metadata=metadata)
    return buffer.getvalue()


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "models")
    parser.add_argument("--only", nargs="+", choices=sorted(DRAWINGS), default=sorted(DRAWINGS))
    parser.add_argument("--png", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    form = "png" if args.png else "svg"
    for name in args.only:
        path = args.out / f"{name}.{form}"
        path.write_bytes(picture(DRAWINGS[name], form))
        print(path)


if __name__ == "__main__":
    main()
