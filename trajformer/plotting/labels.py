"""Texts next to points of a picture, without overlaps."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke

from trajformer.plotting import style
from trajformer.plotting.fonts import families

# Candidate positions of a label: its distance from the point, and the angle to its direction.
_DISTANCES_PT = (4.0, 9.0, 16.0, 24.0)
_ANGLES = np.array([0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.5, -2.5])  # radians
_MIN_LEADER_PT = 9.0  # a label at this distance needs a line to its point
_END_RADIUS_PT = 2.5
_GAP_PT = 0.5  # between two labels, and between a label and a line
_HEIGHT_PT = 1.0  # relative to the font size


class Label(NamedTuple):
    """A text for a point [2]; free space is searched in `direction` [2] first, data units."""

    text: str
    point: np.ndarray
    direction: np.ndarray
    color: str | None = None  # None: the color of all labels


def place_labels(
    ax: Axes, labels: Sequence[Label], lines: np.ndarray, ends: np.ndarray, color: str
) -> None:
    """Write the labels on a white halo; gid "label".

    The first labels are the most important ones. A label for which the axes have no free space is
    not written. Free space depends on the current limits and size of `ax`. Labels avoid the points
    `lines` [N, 2] if possible, and never cover the points `ends` [E, 2], both in data units.
    """
    ax.autoscale_view()  # matplotlib delays this until it draws, but the limits are needed now
    ax.apply_aspect()
    figure = ax.get_figure(root=True)
    assert figure is not None, "labels need an Axes with a figure"
    to_points = 72.0 / figure.dpi
    frame = np.array(ax.bbox.extents).reshape(2, 2) * to_points
    lines_pt = ax.transData.transform(lines.reshape(-1, 2)) * to_points
    ends_pt = ax.transData.transform(ends.reshape(-1, 2)) * to_points
    # every combination of a distance (outer) and an angle (inner)
    rank = np.repeat(np.arange(len(_DISTANCES_PT)), len(_ANGLES))
    angle = np.tile(_ANGLES, len(_DISTANCES_PT))
    distance = np.array(_DISTANCES_PT)[rank]  # [candidates]
    # close boxes straight ahead are best
    preference = 3.0 * rank + np.abs(angle)
    occupied = np.zeros((0, 2, 2))  # boxes [n, 2, 2]: lower left and upper right corner
    for label in labels:
        anchor = ax.transData.transform(label.point) * to_points
        ahead = ax.transData.transform(label.point + label.direction) * to_points - anchor
        box = _candidates(label.text, anchor, ahead, distance, angle)
        cost = preference + 1.5 * _count_inside(lines_pt, box, _GAP_PT)
        outside = (box[:, 0] < frame[0]) | (box[:, 1] > frame[1])
        cost[outside.any(-1)] = np.inf
        cost[_count_inside(ends_pt, box, _END_RADIUS_PT) > 0] = np.inf
        cost[_overlaps(box, occupied)] = np.inf
        best = int(cost.argmin())
        if np.isfinite(cost[best]):
            occupied = np.concatenate([occupied, box[best : best + 1]])
            offset = box[best].mean(0) - anchor
            with_leader = bool(distance[best] >= _MIN_LEADER_PT)
            _write(ax, label, offset, label.color or color, with_leader)


def _candidates(
    text: str, anchor: np.ndarray, ahead: np.ndarray, distance: np.ndarray, angle: np.ndarray
) -> np.ndarray:
    """Boxes [candidates, 2, 2] of a text around its anchor [2], in points."""
    size = np.array([_width(text), _HEIGHT_PT * style.LABEL_PT])
    absolute = np.arctan2(ahead[1], ahead[0]) + angle
    unit = np.stack([np.cos(absolute), np.sin(absolute)], -1)
    # the distance is measured from the anchor to the edge of the box, not to its middle
    to_middle = distance + np.abs(unit) @ size / 2
    middle = anchor + unit * to_middle[:, None]
    corners = np.array([-0.5, 0.5])[:, None] * size
    return middle[:, None] + corners


@cache
def _width(text: str) -> float:
    """Width of a text in points; characters of other scripts come from other fonts."""
    font = FontProperties(family=families(), size=style.LABEL_PT)
    renderer = RendererAgg(1, 1, 72.0)
    width, _, _ = renderer.get_text_width_height_descent(text, font, False)
    return float(width) + 1.0  # whole pixels in the picture


def _count_inside(points: np.ndarray, box: np.ndarray, margin: float) -> np.ndarray:
    """Number of points [n, 2] in each box [candidates, 2, 2], widened by a margin."""
    above = points > box[:, None, 0] - margin
    below = points < box[:, None, 1] + margin
    return (above & below).all(-1).sum(-1)


def _overlaps(box: np.ndarray, occupied: np.ndarray) -> np.ndarray:
    """Whether each box [candidates, 2, 2] overlaps one of the occupied ones, bool [candidates]."""
    starts_before = box[:, None, 0] < occupied[:, 1] + _GAP_PT
    ends_after = occupied[:, 0] < box[:, None, 1] + _GAP_PT
    overlap = starts_before & ends_after
    return np.asarray(overlap.all(-1).any(-1))


def _write(ax: Axes, label: Label, offset: np.ndarray, color: str, with_leader: bool) -> None:
    leader = None
    if with_leader:
        leader = {"arrowstyle": "-", "linewidth": 0.4, "color": color}
        leader |= {"shrinkA": 0.0, "shrinkB": 2.0}
    annotation = ax.annotate(
        label.text,
        tuple(label.point.tolist()),
        tuple(offset),
        textcoords="offset points",
        annotation_clip=True,
        ha="center",
        va="center_baseline",
        fontsize=style.LABEL_PT,
        fontfamily=families(),
        parse_math=False,
        color=color,
        arrowprops=leader,
        zorder=style.Z_LABEL,
        gid="label",
        path_effects=[withStroke(linewidth=1.6, foreground=style.PAPER)],
    )
    annotation.set_in_layout(False)
