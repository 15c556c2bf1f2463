"""Plane curves as polylines, in metres and radians."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def wrap(angle: ArrayLike) -> Array:
    """Return angles (radians, any shape) folded into [-pi, pi)."""
    return np.mod(np.asarray(angle) + np.pi, 2.0 * np.pi) - np.pi


def smoothstep(x: ArrayLike) -> Array:
    """Return the quintic ramp from 0 to 1, flat at both ends; ``x`` is clipped to [0, 1]."""
    t = np.clip(np.asarray(x), 0.0, 1.0)
    return t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


def direction(heading: ArrayLike) -> Array:
    """Return unit vectors [..., 2] in the directions ``heading`` [...] (radians)."""
    return np.stack((np.cos(heading), np.sin(heading)), axis=-1)


def offset(points: Array, heading: Array, lateral: ArrayLike) -> Array:
    """Return ``points`` [..., 2] moved by ``lateral`` metres [...] to the left of ``heading``."""
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    return points + normal * np.asarray(lateral)[..., None]


def distance(points: Array, other: Array) -> Array:
    """Return the distances [...] between points [..., 2]."""
    gap = points - other
    return np.hypot(gap[..., 0], gap[..., 1])


def headings(points: Array) -> Array:
    """Return the unwrapped tangent direction [..., N] (radians) of polylines [..., N, 2]."""
    tangent = np.gradient(points, axis=-2)
    return np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=-1)


def arc_length(points: Array) -> Array:
    """Return the distance [N] in metres along the polyline ``points`` [N, 2] up to each vertex."""
    step_x, step_y = np.diff(points, axis=0).T
    return np.concatenate(([0.0], np.cumsum(np.hypot(step_x, step_y))))


def at_length(points: Array, length: Array, positions: Array) -> Array:
    """Interpolate a polyline [N, 2] at ``positions`` [M] along it; returns [M, 2].

    ``length`` [N] is the arc length at each vertex.
    """
    x = np.interp(positions, length, points[:, 0])
    y = np.interp(positions, length, points[:, 1])
    return np.stack((x, y), axis=-1)


def equally_spaced(points: Array, step: float) -> Array:
    """Return a polyline [N, 2] as [M, 2], about ``step`` metres apart, with the same ends."""
    length = arc_length(points)
    count = max(2, round(float(length[-1]) / step) + 1)
    return at_length(points, length, np.linspace(0.0, length[-1], count))


def bridge(start: Array, heading_in: float, end: Array, heading_out: float, step: float) -> Array:
    """Return a cubic Bezier curve [N, 2] from ``start`` [2] to ``end`` [2].

    It has the given directions at its ends. Vertices are about ``step`` metres apart.
    """
    # This handle length makes a quarter turn close to a circle, and a straight line without a turn.
    turn = abs(float(wrap(heading_out - heading_in)))
    gap_x, gap_y = end - start
    handle = float(np.hypot(gap_x, gap_y)) * (1.0 / 3.0 + 0.035 * turn**2)
    first_control = start + handle * direction(heading_in)
    second_control = end - handle * direction(heading_out)
    t = np.linspace(0.0, 1.0, 40)[:, None]
    curve = (1 - t) ** 3 * start
    curve = curve + 3 * t * (1 - t) ** 2 * first_control
    curve = curve + 3 * t**2 * (1 - t) * second_control
    curve = curve + t**3 * end
    return equally_spaced(curve, step)


def smooth(points: Array) -> Array:
    """Return polylines [..., N, 2] (N > 4) smoothed over two vertices on either side.

    The two vertices at each end stay.
    """
    count = points.shape[-2] - 4
    total = np.zeros_like(points[..., 2:-2, :])
    for shift, weight in enumerate((1.0, 2.0, 3.0, 2.0, 1.0)):
        total = total + weight / 9.0 * points[..., shift : shift + count, :]
    smoothed = points.copy()
    smoothed[..., 2:-2, :] = total
    return smoothed
