"""Thinning of polylines: points that deviate little from a straight segment are left out."""

import numpy as np

MAX_STRIDE = 32  # points of the longest segment, 16 m for points 0.5 m apart


def thin_polylines(point: np.ndarray, offset: np.ndarray, tolerance_m: float) -> np.ndarray:
    """The points to keep, bool [P], so that the others are within a distance of the segments.

    Polyline m has the points [offset[m]:offset[m + 1]] of `point`, float64 [P, 2] in metres. Both
    its ends are kept. Two neighbouring segments are joined if their common end is near the straight
    line, then pairs of joined segments, and so on; distances of a point are added up.
    """
    count = np.diff(offset)
    first = offset[:-1].repeat(count)
    number = np.arange(len(point)) - first  # index of the point in its polyline
    remaining = count.repeat(count) - 1 - number  # points after it
    plane = np.ascontiguousarray(point, np.float64).view(np.complex128)[:, 0]
    keep = np.ones(len(point), bool)
    # Of each segment that begins at a point: the largest distance of the points between its ends.
    deviation = np.zeros(len(point))
    start = np.arange(len(point))
    stride = 2  # a power of 2
    while stride <= MAX_STRIDE:
        half = stride // 2
        start = start[(number[start] & (stride - 1) == 0) & (remaining[start] >= stride)]
        first_end = plane[start]
        chord = plane[start + stride] - first_end
        middle = plane[start + half] - first_end
        along = middle * chord.conj()  # real: along the chord, imaginary: across it
        squared = chord.real**2 + chord.imag**2
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = np.abs(along.imag) / np.sqrt(squared)
        # The two halves are at most the distance of their common end from the chord.
        distance += np.maximum(deviation[start], deviation[start + half])
        is_near = (distance <= tolerance_m) & (along.real >= 0) & (along.real <= squared)
        deviation[start] = np.where(is_near, distance, np.inf)
        keep[start[is_near] + half] = False
        stride *= 2
    return keep
