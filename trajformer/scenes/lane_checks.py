"""Checks whether lanes and tracks are in one frame, in metres."""

from pathlib import Path

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.spec import warn

OTHER_FRAME_M = 10_000.0  # lanes at a larger distance from the tracks are in another frame
NEAR_LANE_M = 10.0  # from an agent to the bounding box of a lane
MAX_COMPARED = 8  # agents
MIN_COMMON = 3  # agents that are compared with exchanged lanes
COMMON_FRACTION = 0.9  # of the agents
MIN_EXCHANGED_EXTENT_M = 50.0  # of the positions; in a small area exchanged lanes may be near
# Of the agents that are near a lane as it is, if x and y may be exchanged.
MAX_EXCHANGED = 0.3
MAX_DEGREES_LENGTH = 0.5  # of all polylines of a place
MIN_LANE_M = 0.05  # in degrees most lanes are shorter


def look_like_degrees(points: np.ndarray, lengths: np.ndarray) -> bool:
    """Whether polylines with points [P, 2] and `lengths` [M] are longitudes and latitudes.

    In degrees, all polylines of a place are short, and most of a region with long roads.
    """
    is_inside = bool((np.abs(points) <= 180.0).all())
    is_place = bool((lengths < MAX_DEGREES_LENGTH).all())
    is_region = 2 * (lengths < MIN_LANE_M).sum() >= len(lengths)
    return is_inside and bool(len(lengths)) and (is_place or bool(is_region))


def check_no_lanes_near(
    path: Path, boxes: tuple[np.ndarray, np.ndarray], positions: np.ndarray, radius_m: float
) -> None:
    """Warn that no polyline of a file is within a radius of any position.

    `boxes` are the smallest and largest x and y, each [2, M], of the polylines, `positions` [n, 2]
    the agents, all in metres in the frame of the file. Raises SceneError: polylines and agents are
    certainly not in one frame.
    """
    low, high = boxes
    _check_exchanged(path, boxes, positions)
    gap_above = low.min(1) - positions.max(0)
    gap_below = positions.min(0) - high.max(1)
    distance = float(np.hypot(*np.maximum(np.maximum(gap_above, gap_below), 0.0)))
    if distance > OTHER_FRAME_M:
        lane = _point_text(low[:, 0])
        agent = _point_text(positions[0])
        unit = ""
        if (np.abs(positions) <= 180.0).all():
            unit = "; are the tracks in degrees, or relative to another point?"
        raise SceneError(
            f"{path}: the lanes are {distance / 1e3:.0f} km from the tracks (lanes at {lane}, "
            f"tracks at {agent}): not the same frame{unit}"
        )
    warn(
        f"{path}: no lane within {radius_m:g} m of any agent: are lanes and tracks in one frame? "
        "(--map-radius-m)"
    )


def check_lanes_near(
    path: Path,
    segments: tuple[np.ndarray, np.ndarray],
    boxes: tuple[np.ndarray, np.ndarray],
    positions: np.ndarray,
) -> None:
    """Warn if no agent is near a lane, although lanes are within the radius of the map.

    `segments` are start and end, each [S, 2], of the straight segments of these lanes; other
    arguments are as for `check_no_lanes_near`. Raises SceneError: x and y of the lanes are
    exchanged.
    """
    start, end = segments
    segment_boxes = (np.minimum(start, end).T, np.maximum(start, end).T)
    near = _fraction_near(segment_boxes, _sample(positions))
    if near > MAX_EXCHANGED:
        return
    _check_exchanged(path, boxes, positions)
    if near == 0:
        warn(
            f"{path}: no lane within {NEAR_LANE_M:g} m of any of {len(positions)} agents: "
            "are lanes and tracks in one frame?"
        )


def _check_exchanged(
    path: Path, boxes: tuple[np.ndarray, np.ndarray], positions: np.ndarray
) -> None:
    """Raise SceneError: nearly all agents are near a lane if x and y of the lanes are exchanged."""
    low, high = boxes
    sample = _sample(positions)
    extent = float((positions.max(0) - positions.min(0)).max())
    if len(sample) < MIN_COMMON or extent < MIN_EXCHANGED_EXTENT_M:
        return
    near = _fraction_near((low[::-1], high[::-1]), sample)
    if near >= COMMON_FRACTION:
        raise SceneError(
            f"{path}: {near:.0%} of the agents are near a lane only if x and y of the lanes are "
            "exchanged: correct their order"
        )


def _sample(positions: np.ndarray) -> np.ndarray:
    """At most about twice `MAX_COMPARED` of the positions [n, 2]."""
    return positions[:: max(1, len(positions) // MAX_COMPARED)]


def _fraction_near(boxes: tuple[np.ndarray, np.ndarray], positions: np.ndarray) -> float:
    """Fraction of positions [n, 2] that are near the box of a lane, with corners [2, M]."""
    low, high = boxes
    x = positions[:, :1]
    y = positions[:, 1:]
    is_near = (x >= low[0] - NEAR_LANE_M) & (x <= high[0] + NEAR_LANE_M)
    is_near &= (y >= low[1] - NEAR_LANE_M) & (y <= high[1] + NEAR_LANE_M)
    return float(is_near.any(1).mean())


def _point_text(point: np.ndarray) -> str:
    x, y = point.tolist()
    return f"({x:.6g}, {y:.6g})"
