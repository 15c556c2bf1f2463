"""The map below a scene: drivable area, crosswalks, and centrelines by kind with sparse direction arrows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from trajformer.plotting import style
from trajformer.scenes.scene import LaneFlag, PolylineKind, Scene

ARROW_EVERY_M = 30.0
ARROW_SIZE_M = 1.0
SHORTEST_WITH_ARROW_M = 8.0


def draw_map(ax: Axes, scene: Scene) -> Axes:
    """Draw all polylines of a scene, metres relative to its `origin`; a scene without a map draws nothing.

    Artists carry gids: "drivable", "crosswalks", "lanes:<KIND>", "lanes:<KIND>:intersection", "lanes:arrows".
    """
    drivable, crosswalks = (_of_kind(scene, k) for k in (PolylineKind.DRIVABLE_AREA, PolylineKind.CROSSWALK))
    if drivable:
        areas = PolyCollection(drivable, facecolors=style.DRIVABLE_FACE, edgecolors=style.DRIVABLE_EDGE)
        areas.set(linewidth=0.5, gid="drivable", zorder=style.Z_DRIVABLE)
        ax.add_collection(areas, autolim=True)
    if crosswalks:
        stripes = PolyCollection(crosswalks, facecolors=style.PAPER, edgecolors=style.CROSSWALK, label="crosswalk")
        stripes.set(linewidth=0.5, hatch="/" * 5, hatch_linewidth=0.6, gid="crosswalks", zorder=style.Z_CROSSWALK)
        ax.add_collection(stripes, autolim=True)
    for kind in style.LANES:
        _draw_lanes(ax, scene, kind)
    return ax


def _indices(scene: Scene, kind: PolylineKind) -> list[int]:
    return np.flatnonzero(scene.polyline_kind == kind).tolist()


def _of_kind(scene: Scene, kind: PolylineKind) -> list[np.ndarray]:
    return [scene.polyline(index) for index in _indices(scene, kind)]


def _draw_lanes(ax: Axes, scene: Scene, kind: PolylineKind) -> None:
    look = style.LANES[kind]
    indices = np.array(_indices(scene, kind), np.int64)
    inside = (scene.polyline_flags[indices] & LaneFlag.INTERSECTION) != 0
    for part, colour, suffix in ((inside, look.light, ":intersection"), (~inside, look.colour, "")):
        lines = [scene.polyline(int(index)) for index in indices[part]]
        if not lines:
            continue
        lanes = LineCollection(lines, colors=colour, linewidths=look.width, linestyles=[look.dashes])
        lanes.set(gid=f"lanes:{kind.name}{suffix}", zorder=style.Z_LANE, capstyle="butt")
        lanes.set_label(look.name if not suffix else "")
        ax.add_collection(lanes, autolim=True)
        if not suffix and (chevrons := list(_chevrons(lines))):
            arrows = LineCollection(chevrons, colors=colour, linewidths=0.8, zorder=style.Z_ARROW)
            arrows.set(gid="lanes:arrows", capstyle="round")
            ax.add_collection(arrows, autolim=False)


def _chevrons(lines: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    """Small open arrowheads [3, 2] in driving direction, spread evenly over each line that is long enough."""
    for line in lines:
        arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
        length = float(arc[-1])
        if length < SHORTEST_WITH_ARROW_M:
            continue
        count = max(round(length / ARROW_EVERY_M), 1)
        for place in (np.arange(count) + 0.5) / count * length:
            here, behind = (_at(line, arc, place + shift) for shift in (ARROW_SIZE_M / 2, -ARROW_SIZE_M / 2))
            along = here - behind
            across = np.array([-along[1], along[0]]) * 0.55
            yield np.stack([behind + across, here, behind - across])


def _at(line: np.ndarray, arc: np.ndarray, place: float) -> np.ndarray:
    return np.array([np.interp(place, arc, line[:, 0]), np.interp(place, arc, line[:, 1])])
