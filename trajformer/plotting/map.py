"""The map of a scene: drivable area, crosswalks, and centrelines by kind with direction arrows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from trajformer.plotting import style
from trajformer.scenes.scene import LaneFlag, PolylineKind, Scene

ARROW_SPACING_M = 30.0
ARROW_SIZE_M = 1.0
MIN_LANE_WITH_ARROW_M = 8.0


def draw_map(ax: Axes, scene: Scene) -> Axes:
    """Draw all polylines of a scene, metres relative to its `origin`; without a map nothing is drawn.

    Artists have the gids "drivable", "crosswalks", "lanes:<KIND>", "lanes:<KIND>:intersection" and "lanes:arrows".
    """
    if drivable := _polylines(scene, scene.polyline_kind == PolylineKind.DRIVABLE_AREA):
        areas = PolyCollection(drivable, facecolors=style.DRIVABLE_FACE, edgecolors=style.DRIVABLE_EDGE)
        areas.set(linewidth=0.5, gid="drivable", zorder=style.Z_DRIVABLE)
        ax.add_collection(areas, autolim=True)
    if crosswalks := _polylines(scene, scene.polyline_kind == PolylineKind.CROSSWALK):
        stripes = PolyCollection(crosswalks, facecolors=style.PAPER, edgecolors=style.CROSSWALK, label="crosswalk")
        stripes.set(linewidth=0.5, hatch="/" * 5, hatch_linewidth=0.6, gid="crosswalks", zorder=style.Z_CROSSWALK)
        ax.add_collection(stripes, autolim=True)
    for kind in style.LANES:
        _draw_lanes(ax, scene, kind)
    return ax


def _polylines(scene: Scene, selected: np.ndarray) -> list[np.ndarray]:
    """Polylines [P, 2] of a mask [M]."""
    return [scene.polyline(index) for index in np.flatnonzero(selected).tolist()]


def _draw_lanes(ax: Axes, scene: Scene, kind: PolylineKind) -> None:
    look, of_kind = style.LANES[kind], scene.polyline_kind == kind
    inside, gid = (scene.polyline_flags & LaneFlag.INTERSECTION) != 0, f"lanes:{kind.name}"
    crossing, lines = _polylines(scene, of_kind & inside), _polylines(scene, of_kind & ~inside)
    for part, color, name, end in ((crossing, look.light, "", ":intersection"), (lines, look.color, look.name, "")):
        if part:
            lanes = LineCollection(part, colors=color, linewidths=look.width, linestyles=[look.dashes])
            lanes.set(gid=gid + end, zorder=style.Z_LANE, capstyle="butt", label=name)
            ax.add_collection(lanes, autolim=True)
    if chevrons := list(_chevrons(lines)):
        arrows = LineCollection(chevrons, colors=look.color, linewidths=0.8, zorder=style.Z_ARROW)
        arrows.set(gid="lanes:arrows", capstyle="round")
        ax.add_collection(arrows, autolim=False)


def _chevrons(lines: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Small open arrowheads [3, 2] in driving direction, at equal distances along each line of sufficient length."""
    for line in lines:
        arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
        length = float(arc[-1])
        if length < MIN_LANE_WITH_ARROW_M:
            continue
        count = max(round(length / ARROW_SPACING_M), 1)
        for distance in (np.arange(count) + 0.5) / count * length:
            ends = distance + np.array([ARROW_SIZE_M / 2, -ARROW_SIZE_M / 2])
            tip, back = np.stack([np.interp(ends, arc, line[:, axis]) for axis in (0, 1)], -1)
            along = tip - back
            across = np.array([-along[1], along[0]]) * 0.55
            yield np.stack([back + across, tip, back - across])
