"""Thinning of polylines: points that deviate little from a straight segment are left out."""

import numpy as np

MAX_STRIDE = 32  # points of the longest segment, 16 m for points 0.5 m apart


def thin_polylines(
    x: np.ndarray, y: np.ndarray, offset: np.ndarray, tolerance_m: float
) -> np.ndarray:
    """Indices int64 of the points to keep, so that the others are near the segments between them.

    Polyline m has the points [offset[m]:offset[m + 1]] of x and y, float64 [P] in metres. Both its
    ends are kept. Two neighbouring segments are joined if their common end is near the straight
    line, then pairs of joined segments, and so on; distances of a point are added up, to at most
    the tolerance.
    """
    num_segments = np.diff(offset) - 1
    # Each polyline begins at a multiple of the longest stride, so that all pairs of segments are
    # slices. Their indices would take longer than the cells between polylines.
    room = (num_segments // MAX_STRIDE + 1) * MAX_STRIDE
    start = room.cumsum() - room
    last = (offset[1:] - 1).repeat(room)  # point of the polyline of each cell
    num_cells = len(last)
    point = np.arange(num_cells + 1)
    point[:-1] += (offset[:-1] - start).repeat(room)
    is_kept = np.append(point[:-1] <= last, False)
    # Of the segment from each cell to the next: the largest distance of the points between its
    # ends. It is infinite between polylines and where segments are not joined.
    deviation = np.where(point[:-1] < last, 0.0, np.inf)
    np.minimum(point, len(x) - 1, out=point)
    x = x.take(point)
    y = y.take(point)

    stride = 2  # a power of 2
    while stride <= MAX_STRIDE:
        middle_x = x[1::2].copy()
        middle_y = y[1::2].copy()
        x = x[0::2].copy()
        y = y[0::2].copy()
        # Relative to the start of each pair. Updates in place are faster.
        middle_x -= x[:-1]
        middle_y -= y[:-1]
        chord_x = x[1:] - x[:-1]
        chord_y = y[1:] - y[:-1]
        along = middle_x * chord_x
        along += middle_y * chord_y
        squared = chord_x * chord_x
        squared += chord_y * chord_y
        across = np.multiply(middle_y, chord_x, out=middle_y)
        across -= np.multiply(middle_x, chord_y, out=middle_x)
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = np.abs(across, out=across)
            distance /= np.sqrt(squared)
        # The two halves are at most the distance of their common end from the chord.
        distance += np.maximum(deviation[0::2], deviation[1::2])
        is_near = distance <= tolerance_m
        is_near &= along >= 0
        is_near &= along <= squared
        is_kept[stride // 2 :: stride] &= ~is_near
        deviation = np.where(is_near, distance, np.inf)
        stride *= 2
    return point.take(is_kept.nonzero()[0])
