"""Thinning of polylines: points that deviate little from a straight segment are left out."""

import numpy as np

MAX_STRIDE = 32  # points of the longest segment, 16 m for points 0.5 m apart


def thin_polylines(point: np.ndarray, offset: np.ndarray, tolerance_m: float) -> np.ndarray:
    """The points to keep, bool [P], so that the others are within a distance of the segments.

    Polyline m has the points [offset[m]:offset[m + 1]] of `point`, float64 [P, 2] in metres. Both
    its ends are kept. Two neighbouring segments are joined if their common end is near the straight
    line, then pairs of joined segments, and so on; distances of a point are added up.
    """
    x = np.ascontiguousarray(point[:, 0], np.float64)
    y = np.ascontiguousarray(point[:, 1], np.float64)
    first = offset[:-1].astype(np.int64)
    num_segments = np.diff(offset) - 1
    keep = np.ones(len(point), bool)
    # Of each segment: the largest distance of the points between its ends.
    deviation = np.zeros(int(num_segments.sum()))
    segment = num_segments.cumsum() - num_segments  # index of the first one of each polyline
    stride = 2  # a power of 2
    while stride <= MAX_STRIDE:
        # Pairs of segments; polyline m has count[m] pairs.
        half = stride // 2
        count = num_segments // stride
        pair = count.cumsum() - count
        index = np.arange(int(count.sum()))
        start = stride * index + (first - stride * pair).repeat(count)
        left = 2 * index + (segment - 2 * pair).repeat(count)

        start_x = x.take(start)
        start_y = y.take(start)
        chord_x = x.take(start + stride) - start_x
        chord_y = y.take(start + stride) - start_y
        middle_x = x.take(start + half) - start_x
        middle_y = y.take(start + half) - start_y
        along = middle_x * chord_x + middle_y * chord_y
        across = middle_y * chord_x - middle_x * chord_y
        squared = chord_x**2 + chord_y**2
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = np.abs(across) / np.sqrt(squared)
        # The two halves are at most the distance of their common end from the chord.
        distance += np.maximum(deviation.take(left), deviation.take(left + 1))
        is_near = (distance <= tolerance_m) & (along >= 0) & (along <= squared)
        keep[start[is_near] + half] = False
        deviation = np.where(is_near, distance, np.inf)
        segment = pair
        stride *= 2
    return keep
