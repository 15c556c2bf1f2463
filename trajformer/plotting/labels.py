"""Short texts next to points, placed in order so that no text hides another text or an end point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from trajformer.plotting import style

_DISTANCES_PT = (4.0, 9.0, 16.0, 24.0)
_MIN_LEADER_PT = 9.0  # a label at this distance needs a line to its point
_END_RADIUS_PT = 2.5
_DIGIT_PT, _HEIGHT_PT = 0.62, 1.0  # relative to the font size; wide enough for the widest digit


@dataclass(frozen=True)
class Label:
    """A text for a point [2]; free space is searched in `direction` [2] first, data units."""

    text: str
    point: np.ndarray
    direction: np.ndarray


def place_labels(ax: Axes, labels: Sequence[Label], lines: np.ndarray, ends: np.ndarray, color: str) -> list[Annotation]:
    """Write the labels in the order given; a label without free space inside the axes is left out.

    Args:
        ax: the current limits and size decide about free space.
        labels: most important first.
        lines: [N, 2] points that labels avoid if possible, data units.
        ends: [E, 2] points that labels never cover, data units.
        color: of the text, on a white halo.

    Returns:
        The annotations, gid "label".
    """
    ax.autoscale_view()  # matplotlib delays this until it draws, but the limits are needed now
    ax.apply_aspect()
    figure = ax.get_figure(root=True)
    assert figure is not None, "labels need an Axes with a figure"
    to_points = 72.0 / figure.dpi
    frame = np.array(ax.bbox.extents) * to_points
    lines_pt, ends_pt = (ax.transData.transform(xy.reshape(-1, 2)) * to_points for xy in (lines, ends))
    occupied: list[np.ndarray] = []
    annotations = []
    for label in labels:
        anchor = ax.transData.transform(label.point) * to_points
        direction = ax.transData.transform(label.point + label.direction) * to_points - anchor
        size = np.array([len(label.text) * _DIGIT_PT, _HEIGHT_PT]) * style.LABEL_PT
        best: tuple[float, np.ndarray, float] | None = None
        for penalty, distance, box in _candidates(anchor, direction, size):
            if not _inside(box, frame) or any(_overlap(box, other) for other in occupied):
                continue
            if _num_covered(box, ends_pt, _END_RADIUS_PT):
                continue
            cost = penalty + 1.5 * _num_covered(box, lines_pt, 0.5)
            if best is None or cost < best[0]:
                best = (cost, box, distance)
        if best is not None:
            occupied.append(best[1])
            annotations.append(_write(ax, label, best[1], best[2], anchor, color))
    return annotations


def _candidates(anchor: np.ndarray, direction: np.ndarray, size: np.ndarray) -> Iterator[tuple[float, float, np.ndarray]]:
    """Penalty, distance and box [4] (left, bottom, right, top); close boxes straight ahead have the smallest penalty."""
    angle = float(np.arctan2(direction[1], direction[0]))
    for rank, distance in enumerate(_DISTANCES_PT):
        for turn in (0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.5, -2.5):
            unit = np.array([np.cos(angle + turn), np.sin(angle + turn)])
            middle = anchor + unit * (distance + np.abs(unit) @ size / 2)
            yield 3.0 * rank + abs(turn), distance, np.concatenate([middle - size / 2, middle + size / 2])


def _inside(box: np.ndarray, frame: np.ndarray) -> bool:
    return bool((box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all())


def _overlap(box: np.ndarray, other: np.ndarray) -> bool:
    return bool((box[:2] < other[2:] + 0.5).all() and (other[:2] < box[2:] + 0.5).all())


def _num_covered(box: np.ndarray, points: np.ndarray, margin: float) -> int:
    return int(((points > box[:2] - margin) & (points < box[2:] + margin)).all(-1).sum())


def _write(ax: Axes, label: Label, box: np.ndarray, distance: float, anchor: np.ndarray, color: str) -> Annotation:
    leader = {"arrowstyle": "-", "linewidth": 0.4, "color": color, "shrinkA": 0.0, "shrinkB": 2.0}
    annotation = ax.annotate(
        label.text,
        xy=(float(label.point[0]), float(label.point[1])),
        xytext=tuple((box[:2] + box[2:]) / 2 - anchor),
        textcoords="offset points",
        ha="center",
        va="center_baseline",
        fontsize=style.LABEL_PT,
        color=color,
        arrowprops=leader if distance >= _MIN_LEADER_PT else None,
        path_effects=[withStroke(linewidth=1.6, foreground=style.PAPER)],
        annotation_clip=True,
        zorder=style.Z_LABEL,
        gid="label",
    )
    annotation.set_in_layout(False)
    return annotation
