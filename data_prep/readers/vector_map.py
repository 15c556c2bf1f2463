"""The map of a scene during reading: ragged polylines and typed edges, float64 in the city frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from trajformer.scenes.scene import PolylineKind


@dataclass(frozen=True, eq=False)
class VectorMap:
    """M polylines with P points, and E edges between them; fields as in `Scene`, but float64 metres in the city frame."""

    polyline_id: np.ndarray  # int64 [M]
    polyline_kind: np.ndarray  # uint8 [M]
    polyline_flags: np.ndarray  # uint8 [M]
    polyline_offset: np.ndarray  # int32 [M + 1]
    point: np.ndarray  # float64 [P, 2]
    edge: np.ndarray  # int32 [2, E]
    edge_kind: np.ndarray  # uint8 [E]

    def select(self, keep: np.ndarray) -> VectorMap:
        """Polylines with True in `keep` (bool [M]), and the edges between them."""
        chosen = keep.nonzero()[0]
        start = self.polyline_offset[chosen]
        length = self.polyline_offset[chosen + 1] - start
        offset = np.zeros(len(chosen) + 1, np.int32)
        length.cumsum(out=offset[1:])
        new_index = np.full(len(keep), -1, np.int32)
        new_index[chosen] = np.arange(len(chosen))
        inner = (new_index[self.edge[0]] >= 0).nonzero()[0]
        inner = inner[new_index[self.edge[1, inner]] >= 0]
        return VectorMap(
            polyline_id=self.polyline_id[chosen],
            polyline_kind=self.polyline_kind[chosen],
            polyline_flags=self.polyline_flags[chosen],
            polyline_offset=offset,
            point=self.point.take(_ranges(start, length), 0),
            edge=new_index[self.edge[:, inner]],
            edge_kind=self.edge_kind[inner],
        )

    def near(self, positions: np.ndarray, radius_m: float) -> VectorMap:
        """Polylines within radius_m of any of the positions [n, 2], and the edges between them."""
        if not (len(positions) and len(self.polyline_id)):
            return self.select(np.zeros(len(self.polyline_id), bool))
        low, high = positions.min(0) - radius_m, positions.max(0) + radius_m
        box_low, box_high = self._boxes
        inside = (
            (box_high[0] >= low[0])
            & (box_low[0] <= high[0])
            & (box_high[1] >= low[1])
            & (box_low[1] <= high[1])
        )
        start, end, owner = self.segments(inside.nonzero()[0])
        keep = np.zeros(len(self.polyline_id), bool)
        for query in (positions[-1:], positions):  # one position decides for most polylines
            rest = (~keep[owner]).nonzero()[0]
            distance = distance_to_segments(
                query[:, None], start.take(rest, 0), end.take(rest, 0)
            ).min(0)
            keep[owner[rest[distance <= radius_m]]] = True
        return self.select(keep)

    @cached_property
    def _boxes(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest x and y [2, M] of each polyline."""
        first, axes = self.polyline_offset[:-1], np.ascontiguousarray(self.point.T)
        return np.minimum.reduceat(axes, first, axis=1), np.maximum.reduceat(axes, first, axis=1)

    def segments(
        self, polylines: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start [S, 2], end [S, 2] and polyline [S] of each straight segment of some polylines (int64 [m]) or of all."""
        polylines = np.arange(len(self.polyline_id)) if polylines is None else polylines
        first = self.polyline_offset[polylines]
        count = self.polyline_offset[polylines + 1] - first - 1
        index = _ranges(first, count)
        return self.point.take(index, 0), self.point.take(index + 1, 0), polylines.repeat(count)


def _ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The whole numbers from `start` to `start + length`, one range after the other."""
    end = length.cumsum()
    return np.arange(end[-1] if len(end) else 0) + (start - end + length).repeat(length)


def build_map(
    heads: Sequence[tuple[int, int, int]],
    lengths: Sequence[int] | np.ndarray,
    point: np.ndarray,
    links: Iterable[tuple[int, int | None, int]],
) -> VectorMap:
    """Combine polylines and the links between lanes.

    `heads` are raw id, `PolylineKind` and `LaneFlag` bits of M polylines, with unique ids among lanes of all kinds; `lengths`
    their numbers of points; `point` the concatenated points, float64 [P, 2], metres in the city frame; `links` (lane id, lane id
    or None, `EdgeKind`). Links to absent lanes and repeated links are dropped.
    """
    last_lane, count = int(PolylineKind.LANE_BIKE), len(heads)
    index: dict[int | None, int] = {
        head[0]: index for index, head in enumerate(heads) if head[1] <= last_lane
    }
    keys = [
        (index[a] * count + index[b]) * 4 + kind
        for a, b, kind in links
        if a in index and b in index
    ]
    return join_map(heads, lengths, point, keys)


def join_map(
    heads: Sequence[tuple[int, int, int]],
    lengths: Sequence[int] | np.ndarray,
    point: np.ndarray,
    keys: Iterable[int],
) -> VectorMap:
    """As `build_map`, with each link from polyline i to j as one number, (i * M + j) * 4 + `EdgeKind`."""
    known = dict.fromkeys(keys)  # unlike a set, a dict keeps the order
    key = np.fromiter(known, np.int64, len(known))
    head = np.fromiter(chain.from_iterable(heads), np.int64, 3 * len(heads)).reshape(-1, 3)
    edge = np.empty((2, len(key)), np.int32)
    edge[0], edge[1] = np.divmod(key >> 2, max(len(heads), 1))
    offset = np.zeros(len(heads) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return VectorMap(
        polyline_id=head[:, 0].copy(),
        polyline_kind=head[:, 1].astype(np.uint8),
        polyline_flags=head[:, 2].astype(np.uint8),
        polyline_offset=offset,
        point=point,
        edge=edge,
        edge_kind=(key & 3).astype(np.uint8),
    )


NO_MAP = build_map([], [], np.zeros((0, 2)), [])


def without_repeats(points: np.ndarray) -> np.ndarray:
    """Points [p, 2] without consecutive duplicates."""
    return (
        points[np.concatenate([[True], (np.diff(points, axis=0) != 0).any(1)])]
        if len(points)
        else points
    )


def distance_to_segments(query: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Distances in metres from points query [..., 2] to straight segments start, end [S, 2]; `...` is broadcast with S."""
    (from_x, from_y), (along_x, along_y) = start.T.copy(), (end - start).T.copy()
    length = np.maximum(along_x * along_x + along_y * along_y, 1e-12)
    x, y = query[..., 0] - from_x, query[..., 1] - from_y
    share = np.clip((x * along_x + y * along_y) / length, 0.0, 1.0)
    x -= share * along_x
    y -= share * along_y
    x *= x
    y *= y
    x += y
    return np.sqrt(x, out=x)
