"""Argoverse 2 vector maps, `log_map_archive_*.json` of forecasting scenarios and sensor logs alike, to `VectorMap`.

A lane's centreline is what av2's `ArgoverseStaticMap.get_lane_segment_centerline` gives: ten points midway between
the two boundaries, each resampled evenly. (av2 ignores the `centerline` that forecasting maps also store, rounded
to a centimetre; the two are up to 0.4 m apart in tight turns. Sensor maps have no `centerline`.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.vector_map import VectorMap, build_map
from trajformer.errors import SceneError
from trajformer.scene import EdgeKind, LaneFlag, PolylineKind

try:
    from orjson import loads
except ImportError:  # a wheel that not every platform has; five times faster on these files
    from json import loads  # type: ignore[assignment]

CENTERLINE_POINTS = 10
_LANE_KINDS = {
    "VEHICLE": int(PolylineKind.LANE_VEHICLE),
    "BUS": int(PolylineKind.LANE_BUS),
    "BIKE": int(PolylineKind.LANE_BIKE),
}
_SUCCESSOR, _PREDECESSOR, _LEFT, _RIGHT = map(int, EdgeKind)
_INTERSECTION = int(LaneFlag.INTERSECTION)
_xy, _xyz = itemgetter("x", "y"), itemgetter("x", "y", "z")
_Triple = tuple[int, int, int]  # of a polyline: id, kind, flags; of a link: id, id, kind


def read_map(path: Path) -> VectorMap:
    """Lanes with their edges, crosswalks and drivable areas (closed rings) of one map file.

    Raises:
        SceneError: the file is missing or cut short, or an entry of it lacks something; names file and entry.
    """
    try:
        archive = loads(path.read_bytes())
    except (OSError, json.JSONDecodeError) as error:
        raise SceneError(f"{path}: map cannot be read: {error}") from error
    heads: list[_Triple] = []
    links: list[_Triple] = []
    boundaries: list[list[Any]] = []
    for key, lane in _section(archive, "lane_segments", path):
        with _Entry(path, "lane_segments", key):
            heads.append(_lane(lane, boundaries))
            _add_links(lane, links)
    rings: list[list[Any]] = []
    for key, crossing in _section(archive, "pedestrian_crossings", path):
        with _Entry(path, "pedestrian_crossings", key):
            rings.append(_ring([*crossing["edge1"], *reversed(crossing["edge2"])]))
            heads.append((int(crossing["id"]), int(PolylineKind.CROSSWALK), 0))
    for key, area in _section(archive, "drivable_areas", path):
        with _Entry(path, "drivable_areas", key):
            rings.append(_ring(area["area_boundary"]))
            heads.append((int(area["id"]), int(PolylineKind.DRIVABLE_AREA), 0))
    even = resample(_points(boundaries, _xyz, path), np.array([len(line) for line in boundaries], int), CENTERLINE_POINTS)
    centre = (even[::2] + even[1::2]) / 2  # boundaries are left, right, left, right ...
    lengths = [CENTERLINE_POINTS] * len(centre) + [len(ring) for ring in rings]
    return build_map(heads, lengths, np.concatenate([centre.reshape(-1, 2), _points(rings, _xy, path)]), links)


def _section(archive: Any, name: str, path: Path) -> Iterable[tuple[str, Any]]:
    section = archive.get(name) if isinstance(archive, dict) else None
    if not isinstance(section, dict):
        raise SceneError(f"{path}: {name}: missing")
    return section.items()


class _Entry:
    """Context in which an error of one entry of the map becomes a SceneError that names it."""

    def __init__(self, path: Path, section: str, key: str) -> None:
        self.where = path, section, key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError)):
            path, section, key = self.where
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise SceneError(f"{path}: {section}[{key}]: {reason}") from error


def _lane(lane: dict[str, Any], boundaries: list[list[Any]]) -> _Triple:
    """Id, kind and flags; the lane's left and right boundary are appended to `boundaries`."""
    for side in ("left_lane_boundary", "right_lane_boundary"):
        if not lane[side]:
            raise ValueError(f"{side}: no points")
        boundaries.append(lane[side])
    if "centerline" in lane and len(lane["centerline"]) < 2:  # not used, but the sign of a broken file
        raise ValueError(f"centerline: {len(lane['centerline'])} points")
    return int(lane["id"]), _LANE_KINDS[lane["lane_type"]], _INTERSECTION if lane["is_intersection"] else 0


def _add_links(lane: dict[str, Any], links: list[_Triple]) -> None:
    own = lane["id"]
    links += [(own, other, _SUCCESSOR) for other in lane["successors"]]
    links += [(own, other, _PREDECESSOR) for other in lane["predecessors"]]
    links += [(own, other, _LEFT) for other in (lane["left_neighbor_id"],) if other is not None]
    links += [(own, other, _RIGHT) for other in (lane["right_neighbor_id"],) if other is not None]


def _ring(points: list[Any]) -> list[Any]:
    """The points with the first repeated at the end."""
    if len(points) < 3:
        raise ValueError(f"a ring of {len(points)} points")
    return [*points, points[0]]


def _points(lines: list[list[Any]], axes: Callable[[Any], tuple[float, ...]], path: Path) -> np.ndarray:
    """All points [P, 2] or [P, 3] of lines of {"x", "y", "z"}, one after the other."""
    try:
        numbers = chain.from_iterable(map(axes, chain.from_iterable(lines)))
        point = np.fromiter(numbers, np.float64).reshape(-1, 2 if axes is _xy else 3)
    except (KeyError, TypeError, ValueError) as error:
        raise SceneError(f"{path}: a point without a number {error}") from error
    if not np.isfinite(point).all():
        raise SceneError(f"{path}: a point with NaN or infinity")
    return point


def resample(point: np.ndarray, length: np.ndarray, count: int) -> np.ndarray:
    """Points [L, count, 2] evenly spaced by arc length along each of L lines; a single point is repeated.

    Args:
        point: float64 [P, 3], the lines one after the other; as in av2, arc length counts the slope.
        length: int64 [L], points of each, at least one.
        count: points wanted of each.
    """
    if not len(length):
        return np.zeros((0, count, 2))
    start = np.cumsum(length) - length
    step = np.linalg.norm(np.diff(point, axis=0, prepend=point[:1]), axis=1)
    step[start] = 0.0
    arc = np.cumsum(step)
    arc -= np.repeat(arc[start], length)
    total = arc[start + length - 1]
    # one common axis for all lines: the share 0 to 1 of line i's arc length lies at 2 i to 2 i + 1
    axis = np.repeat(2.0 * np.arange(len(length)), length) + arc / np.repeat(np.maximum(total, 1e-9), length)
    wanted = 2.0 * np.arange(len(length))[:, None] + np.linspace(0.0, 1.0, count) * (total[:, None] > 0)
    return np.stack([np.interp(wanted, axis, point[:, 0]), np.interp(wanted, axis, point[:, 1])], -1)
