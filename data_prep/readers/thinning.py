"""Thinning of polylines: points that deviate little from a straight segment are left out."""

import numpy as np

MAX_STRIDE = 32  # points of the longest segment, 16 m for points 0.5 m apart


def thin_polylines(point: np.ndarray, offset: np.ndarray, tolerance_m: float) -> np.ndarray:
    """The points to keep, bool [P], so that the others are within a distance of the segments.

    Polyline m has the points [offset[m]:offset[m + 1]] of `point`, float64 [P, 2] in metres. Both
    its ends are kept. Two neighbouring segments are joined if all points between their ends are
    near the straight line, then pairs of joined segments, and so on.
    """
    count = np.diff(offset)
    first = offset[:-1].repeat(count)
    number = np.arange(len(point)) - first  # index of the point in its polyline
    remaining = count.repeat(count) - 1 - number  # points after it
    plane = np.ascontiguousarray(point, np.float64).view(np.complex128)[:, 0]
    keep = np.ones(len(point), bool)
    start = np.arange(len(point))  # of the segments that could be joined
    is_joined = np.ones(len(point) + MAX_STRIDE, bool)
    stride = 2
    while stride <= MAX_STRIDE:
        half = stride // 2
        is_start = (number[start] % stride == 0) & (remaining[start] >= stride)
        start = start[is_start]
        start = start[is_joined[start] & is_joined[start + half]]
        chord = plane[start + stride] - plane[start]
        inner = plane[start[:, None] + np.arange(1, stride)] - plane[start, None]
        along = inner * chord.conj()[:, None]  # real: along the chord, imaginary: across it
        squared = np.abs(chord) ** 2
        is_near = np.abs(along.imag).max(1) <= tolerance_m * np.abs(chord)
        is_near &= squared > 0.0
        is_near &= (along.real.min(1) >= 0) & (along.real.max(1) <= squared)
        start = start[is_near]
        is_joined[:] = False
        is_joined[start] = True
        keep[start + half] = False
        stride *= 2
    return keep
