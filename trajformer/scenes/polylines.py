"""Cutting of ragged polylines into pieces with equidistant points, vectorised in numpy."""

import numpy as np

from trajformer.scenes.geometry import on_grid


def cut_polylines(
    point: np.ndarray, offset: np.ndarray, num_points: int, max_length_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cut every polyline into equal pieces, each with `num_points` equidistant points.

    Centrelines in the sources have 2 to 100 points and are 0.2 to 200 m long; a model needs tokens
    of similar size. Polyline m has the points [offset[m]:offset[m + 1]], at least two, of float32
    [P, 2]. Its pieces are no longer than `max_length_m`, and each includes both its ends. Returns
    the pieces, float32 [N, num_points, 2], rounded to `GRID_M`, in the order of the polylines, and
    the polyline of each piece, int64 [N].
    """
    num_polylines = len(offset) - 1
    if num_polylines == 0:
        return np.zeros((0, num_points, 2), np.float32), np.zeros(0, np.int64)
    arc = _arc_coordinate(point, offset)
    start = arc[offset[:-1]]
    length = arc[offset[1:] - 1] - start

    # The tolerance of 1e-5 pieces prevents a third piece for 40 m and a limit of 20 m by rounding.
    num_pieces = np.ceil(length / max_length_m - 1e-5)
    num_pieces = np.maximum(num_pieces, 1.0).astype(np.int64)
    owner = np.arange(num_polylines).repeat(num_pieces)  # the polyline of each piece
    first_piece = num_pieces.cumsum() - num_pieces
    number = np.arange(len(owner)) - first_piece[owner]  # index of the piece in its polyline

    piece_length = (length / num_pieces)[owner]
    piece_start = start[owner] + number * piece_length
    progress = np.linspace(0.0, 1.0, num_points)
    query = piece_start[:, None] + piece_length[:, None] * progress  # [N, num_points]

    # x and y as one complex number need a single search.
    plane = np.ascontiguousarray(point, np.float32).view(np.complex64)[:, 0]
    piece = np.interp(query, arc, plane).view(np.float64).reshape(*query.shape, 2)
    return on_grid(piece).astype(np.float32), owner


def _arc_coordinate(point: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Distance of each point along the chain of all polylines, increasing, float64 [P]."""
    step = (point[1:] - point[:-1]).astype(np.float64)
    step *= step
    length = np.sqrt(step[:, 0] + step[:, 1])
    length[offset[1:-1] - 1] = 1.0  # the gap between two polylines, of any length above zero
    arc = np.zeros(len(point))
    length.cumsum(out=arc[1:])
    return arc
