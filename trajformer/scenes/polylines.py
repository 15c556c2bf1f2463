"""Resampling of ragged polylines to pieces of equal length, vectorised in numpy."""

import numpy as np


def resample(
    point: np.ndarray, offset: np.ndarray, num_points: int, max_length_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cut every polyline into equal pieces no longer than `max_length_m`, each with `num_points` equidistant points.

    Centrelines in the sources have 2 to 100 points and are 0.2 to 200 m long; a model needs tokens of similar size. Polyline m
    has the points [offset[m]:offset[m + 1]], at least two, of float32 [P, 2]. A piece includes both its ends. Returns the pieces,
    float32 [N, num_points, 2], in the order of the polylines, and the polyline of each piece, int64 [N].
    """
    count = len(offset) - 1
    if count == 0:
        return np.zeros((0, num_points, 2), np.float32), np.zeros(0, np.int64)
    step = (point[1:] - point[:-1]).astype(np.float64)
    step *= step
    length = np.sqrt(step[:, 0] + step[:, 1])
    length[offset[1:-1] - 1] = (
        1.0  # a gap between polylines makes one global, increasing arc coordinate
    )
    arc = np.zeros(len(point))
    length.cumsum(out=arc[1:])
    start, end = arc[offset[:-1]], arc[offset[1:] - 1]
    # The tolerance of 1e-5 pieces prevents a third piece for 40 m and a limit of 20 m due to rounding.
    pieces = np.maximum(np.ceil((end - start) / max_length_m - 1e-5), 1.0).astype(np.int64)
    owner = np.arange(count).repeat(pieces)
    number = (
        np.arange(len(owner)) - (pieces.cumsum() - pieces)[owner]
    )  # index of the piece in its polyline
    piece_length = ((end - start) / pieces)[owner]
    query = (start[owner] + number * piece_length)[:, None] + piece_length[:, None] * np.linspace(
        0.0, 1.0, num_points
    )
    # x and y as one complex number need a single search.
    plane = np.ascontiguousarray(point, np.float32).view(np.complex64)[:, 0]
    return np.interp(query, arc, plane).view(np.float64).reshape(*query.shape, 2).astype(
        np.float32
    ), owner
