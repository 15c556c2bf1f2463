"""Draw the composition of every model of the zoo: docs/images/models/<field of ModelConfig>.svg.

    python tools/draw_models.py [--out docs/images/models] [--only NAME ...] [--png]

What is drawn stands in tools/model_drawings.py. A box is a part of the model, its colours say which parts of the core do the
work. The same drawings give the same bytes, whenever they are drawn; --png draws pictures to look at instead.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from model_drawings import DRAWINGS, Box, Drawing, Part

ROOT = Path(__file__).parent.parent
WIDTH_IN, ROW_IN, LEGEND_IN = 6.2, 0.58, 0.24  # of the picture, of a row of boxes, of a row of the legend
GAP_X, GAP_Y = 0.10, 0.36  # between boxes, in shares of a column and of a row
TITLE_PT, SHAPE_PT = 8.4, 7.4
INK, FAINT, PAPER = "#262626", "#555555", "#FFFFFF"
COLOURS: dict[Part, str] = {
    "input": "#FFFFFF",
    "learned queries": "#FFFFFF",
    "linear layers": "#E4E4E4",
    "LSTM": "#D8CBB8",
    "self-attention": "#A9D3F2",
    "cross-attention": "#F9CE96",
    "attention per mode": "#F0A9A0",
    "agent-aware attention": "#CDBBEA",
    "graph attention": "#A6DDC2",
    "squeeze-and-excite": "#F4E88B",
    "latent queries": "#9FE0E3",
    "clustering": "#D3DDB0",
    "loss": "#F6D3E4",
}
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "trajformer",  # names of clip paths do not change from run to run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib; a browser without it takes another one, most are narrower
}


def place(box: Box) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a box; rows and columns are 1 high and wide, the first row ends at 0 and goes down."""
    return box.column + GAP_X / 2, -box.row - 1 + GAP_Y / 2, box.span - GAP_X, 1 - GAP_Y


def draw_box(axes: Axes, box: Box) -> None:
    """A box in the colours of its parts, side by side, with its lines of text."""
    left, bottom, width, height = place(box)
    parts = box.parts
    for number, part in enumerate(parts):
        share = width / len(parts)
        corner = (left + number * share, bottom)
        axes.add_patch(Rectangle(corner, share, height, facecolor=COLOURS[part], edgecolor="none", zorder=2))
    dashes = "--" if parts == ("learned queries",) else "-"
    thick = 1.6 if parts == ("loss",) else 0.9
    axes.add_patch(Rectangle((left, bottom), width, height, fill=False, edgecolor=INK, lw=thick, ls=dashes, zorder=3))
    for up, text, size, colour in ((0.14, box.title, TITLE_PT, INK), (-0.16, box.shape, SHAPE_PT, FAINT)):
        place_of = (left + width / 2, bottom + height / 2 + up)
        axes.text(*place_of, text, ha="center", va="center", fontsize=size, color=colour, zorder=4)


def way(source: Box, target: Box) -> list[tuple[float, float]]:
    """Corners of the line from one box to another: straight on, or down, aside above the target, and down."""
    a, b = place(source), place(target)
    if source.row == target.row:
        right = source.column < target.column
        height = a[1] + a[3] / 2
        return [(a[0] + a[2] if right else a[0], height), (b[0] if right else b[0] + b[2], height)]
    low, high = max(a[0], b[0]), min(a[0] + a[2], b[0] + b[2])
    if low < high:  # one above the other
        middle = (low + high) / 2
        if source.row > target.row:
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
    """The picture of one model: its boxes and arrows, and a legend of the parts that it has."""
    columns = max(box.column + box.span for box in drawing.boxes)
    rows = 1 + max(box.row for box in drawing.boxes)
    used = [part for part in COLOURS if part != "input" and any(part in box.parts for box in drawing.boxes)]
    lines = -(-len(used) // 4)
    height = rows * ROW_IN + lines * LEGEND_IN
    figure = Figure((WIDTH_IN, height), facecolor=PAPER)
    axes = figure.add_axes((0.0, lines * LEGEND_IN / height, 1.0, rows * ROW_IN / height))
    axes.set(xlim=(0, columns), ylim=(-rows, 0))
    axes.set_axis_off()
    boxes = {box.name: box for box in drawing.boxes}
    for source, target in drawing.edges:
        draw_edge(axes, way(boxes[source], boxes[target]))
    for box in drawing.boxes:
        draw_box(axes, box)
    keys = [
        Patch(facecolor=COLOURS[part], edgecolor=INK, lw=0.7, ls="--" if part == "learned queries" else "-", label=part)
        for part in used
    ]
    look = {"frameon": False, "fontsize": SHAPE_PT, "handlelength": 1.3, "handleheight": 0.9, "columnspacing": 1.4}
    figure.legend(handles=keys, loc="lower center", ncols=-(-len(keys) // lines), borderaxespad=0.2, labelspacing=0.35, **look)
    return figure


def picture(drawing: Drawing, form: str = "svg") -> bytes:
    """The same drawing gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        unsaid = {"Date": None, "Creator": None} if form == "svg" else {}
        draw(drawing).savefig(buffer, format=form, dpi=160, metadata=unsaid)
    return buffer.getvalue()


def main() -> None:
    """Write the pictures."""
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
