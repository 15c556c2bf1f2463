"""Plane curves as polylines: integrate, offset, connect, resample. Metres and radians throughout."""

from __future__ import annotations

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
    """Return ``points`` [..., 2] moved by ``lateral`` metres [...] to the left of ``heading`` [...]."""
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    return points + normal * np.asarray(lateral)[..., None]


def headings(points: Array) -> Array:
    """Return the unwrapped tangent direction [..., N] in radians of the polylines ``points`` [..., N, 2]."""
    tangent = np.gradient(points, axis=-2)
    return np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=-1)


def arc_length(points: Array) -> Array:
    """Return the distance [N] in metres along the polyline ``points`` [N, 2] up to each vertex."""
    return np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))))


def at_length(points: Array, length: Array, where: Array) -> Array:
    """Interpolate ``points`` [N, 2] with arc lengths ``length`` [N] at the arc lengths ``where`` [M]; returns [M, 2]."""
    return np.stack((np.interp(where, length, points[:, 0]), np.interp(where, length, points[:, 1])), axis=-1)


def resample(points: Array, step: float) -> Array:
    """Return ``points`` [N, 2] as [M, 2] with equal spacing close to ``step`` metres; both ends are kept."""
    length = arc_length(points)
    return at_length(points, length, np.linspace(0.0, length[-1], max(2, round(float(length[-1]) / step) + 1)))


def integrate(start: Array, heading: float, curvature: Array) -> Array:
    """Return the curve [N + 1, 2] that begins at ``start`` [2] with direction ``heading`` (radians).

    ``curvature`` [N] in 1/m, positive to the left, is constant between two vertices; these are 1 m apart.
    """
    turned = heading + np.concatenate(([0.0], np.cumsum(curvature)))
    moves = direction(0.5 * (turned[1:] + turned[:-1]))
    return start + np.concatenate((np.zeros((1, 2)), np.cumsum(moves, axis=0)))


def bridge(start: Array, heading_in: float, end: Array, heading_out: float, step: float) -> Array:
    """Return a cubic Bezier curve [N, 2] from ``start`` [2] to ``end`` [2] with the given directions at both ends.

    Vertices are about ``step`` metres apart.
    """
    # This handle length makes a quarter turn close to a circle, and a straight line without a turn.
    turn = abs(float(wrap(heading_out - heading_in)))
    handle = float(np.hypot(*(end - start))) * (1.0 / 3.0 + 0.035 * turn**2)
    inner, outer = start + handle * direction(heading_in), end - handle * direction(heading_out)
    t = np.linspace(0.0, 1.0, 40)[:, None]
    curve = (1 - t) ** 3 * start + 3 * t * (1 - t) ** 2 * inner + 3 * t**2 * (1 - t) * outer + t**3 * end
    return resample(curve, step)


def soften(points: Array) -> Array:
    """Return ``points`` [..., N, 2] (N > 4) smoothed over two vertices on either side; the two vertices at each end stay."""
    out, count = points.copy(), points.shape[-2] - 4
    shifted = [weight / 9.0 * points[..., i : i + count, :] for i, weight in enumerate((1.0, 2.0, 3.0, 2.0, 1.0))]
    out[..., 2:-2, :] = sum(shifted)
    return out
