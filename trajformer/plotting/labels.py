"""Short texts beside points, placed one after the other so that none hides another or an end point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from trajformer.plotting import style

_DISTANCES_PT = (4.0, 9.0, 16.0, 24.0)
_LEADER_FROM_PT = 9.0  # a label this far away needs a line to its point
_END_RADIUS_PT = 2.5
_DIGIT_PT, _HEIGHT_PT = 0.62, 1.0  # of the font size; wide enough for the widest digit


@dataclass(frozen=True)
class Label:
    """A text for a point [2]; `direction` [2] (data units) is where to look for room first."""

    text: str
    point: np.ndarray
    direction: np.ndarray


def place_labels(ax: Axes, labels: Sequence[Label], lines: np.ndarray, ends: np.ndarray, colour: str) -> list[Annotation]:
    """Write the labels, in the order given; one that finds no free place inside the axes is left out.

    Args:
        ax: its present limits and size decide where there is room.
        labels: most important first.
        lines: [N, 2] points that labels should rather not cover, data units.
        ends: [E, 2] points that labels must not cover, data units.
        colour: of the text, on a white halo.

    Returns:
        The annotations drawn, gid "label".
    """
    ax.autoscale_view()  # matplotlib puts this off until it draws; room is measured now
    ax.apply_aspect()
    figure = ax.get_figure(root=True)
    assert figure is not None, "labels are placed in an Axes of a figure"
    to_points = 72.0 / figure.dpi
    frame = np.array(ax.bbox.extents) * to_points
    lines_pt, ends_pt = (ax.transData.transform(xy.reshape(-1, 2)) * to_points for xy in (lines, ends))
    taken: list[np.ndarray] = []
    drawn = []
    for label in labels:
        anchor = ax.transData.transform(label.point) * to_points
        ahead = ax.transData.transform(label.point + label.direction) * to_points - anchor
        size = np.array([len(label.text) * _DIGIT_PT, _HEIGHT_PT]) * style.LABEL_PT
        best: tuple[float, np.ndarray, float] | None = None
        for penalty, distance, box in _candidates(anchor, ahead, size):
            if not _inside(box, frame) or any(_overlap(box, other) for other in taken):
                continue
            if _covered(box, ends_pt, _END_RADIUS_PT):
                continue
            cost = penalty + 1.5 * _covered(box, lines_pt, 0.5)
            if best is None or cost < best[0]:
                best = (cost, box, distance)
        if best is not None:
            taken.append(best[1])
            drawn.append(_write(ax, label, best[1], best[2], anchor, colour))
    return drawn


def _candidates(anchor: np.ndarray, ahead: np.ndarray, size: np.ndarray) -> Iterator[tuple[float, float, np.ndarray]]:
    """Boxes [4] (left, bottom, right, top) around a point with a penalty: near and straight ahead first."""
    angle = float(np.arctan2(ahead[1], ahead[0]))
    for near, distance in enumerate(_DISTANCES_PT):
        for turn in (0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.5, -2.5):
            unit = np.array([np.cos(angle + turn), np.sin(angle + turn)])
            middle = anchor + unit * (distance + np.abs(unit) @ size / 2)
            yield 3.0 * near + abs(turn), distance, np.concatenate([middle - size / 2, middle + size / 2])


def _inside(box: np.ndarray, frame: np.ndarray) -> bool:
    return bool((box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all())


def _overlap(box: np.ndarray, other: np.ndarray) -> bool:
    return bool((box[:2] < other[2:] + 0.5).all() and (other[:2] < box[2:] + 0.5).all())


def _covered(box: np.ndarray, points: np.ndarray, margin: float) -> int:
    return int(((points > box[:2] - margin) & (points < box[2:] + margin)).all(-1).sum())


def _write(ax: Axes, label: Label, box: np.ndarray, distance: float, anchor: np.ndarray, colour: str) -> Annotation:
    leader = {"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 0.0, "shrinkB": 2.0}
    note = ax.annotate(
        label.text,
        xy=(float(label.point[0]), float(label.point[1])),
        xytext=tuple((box[:2] + box[2:]) / 2 - anchor),
        textcoords="offset points",
        ha="center",
        va="center_baseline",
        fontsize=style.LABEL_PT,
        color=colour,
        arrowprops=leader if distance >= _LEADER_FROM_PT else None,
        path_effects=[withStroke(linewidth=1.6, foreground=style.PAPER)],
        annotation_clip=True,
        zorder=style.Z_LABEL,
        gid="label",
    )
    note.set_in_layout(False)
    return note
