"""The map of a scene while it is read: ragged polylines and typed edges in the city frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from trajformer.scenes.lane_checks import check_no_lanes_near
from trajformer.scenes.scene import PolylineKind


@dataclass(frozen=True, eq=False)
class VectorMap:
    """M polylines with P points in total, and E edges between polylines.

    The fields are as in `Scene`, but points are float64 metres in the city frame.
    """

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
        # An edge remains if both of its polylines do; -1 marks the others.
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

    def near(self, positions: np.ndarray, radius_m: float, path: Path) -> VectorMap:
        """Polylines within radius_m of any of the positions [n, 2], and the edges between them.

        If none is near, a warning names the `path` of the map; a radius of 0 asks for none. Raises
        SceneError: map and positions are not in one frame.
        """
        if not (len(positions) and len(self.polyline_id) and radius_m > 0):
            return self.select(np.zeros(len(self.polyline_id), bool))
        # Distances to segments are expensive: polylines with a distant bounding box need none.
        low = positions.min(0) - radius_m
        high = positions.max(0) + radius_m
        box_low, box_high = self.boxes
        inside_x = (box_high[0] >= low[0]) & (box_low[0] <= high[0])
        inside_y = (box_high[1] >= low[1]) & (box_low[1] <= high[1])
        candidates = (inside_x & inside_y).nonzero()[0]
        start, end, polyline = self.segments(candidates)
        keep = np.zeros(len(self.polyline_id), bool)
        for query in (positions[-1:], positions):  # one position decides for most polylines
            rest = (~keep[polyline]).nonzero()[0]
            rest_start = start.take(rest, 0)
            rest_end = end.take(rest, 0)
            distance = distance_to_segments(query[:, None], rest_start, rest_end).min(0)
            near = rest[distance <= radius_m]
            keep[polyline[near]] = True
        if not keep.any():
            check_no_lanes_near(path, self.boxes, positions, radius_m)
        return self.select(keep)

    @cached_property
    def boxes(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest x and y [2, M] of each polyline."""
        first = self.polyline_offset[:-1]
        axes = np.ascontiguousarray(self.point.T)
        low = np.minimum.reduceat(axes, first, axis=1)
        high = np.maximum.reduceat(axes, first, axis=1)
        return low, high

    def segments(
        self, polylines: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The straight segments of some polylines (int64 [m]), by default of all.

        Returns:
            start float64 [S, 2], end float64 [S, 2] and index of the polyline int64 [S].
        """
        if polylines is None:
            polylines = np.arange(len(self.polyline_id))
        first = self.polyline_offset[polylines]
        count = self.polyline_offset[polylines + 1] - first - 1
        index = _ranges(first, count)
        return self.point.take(index, 0), self.point.take(index + 1, 0), polylines.repeat(count)


def _ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The whole numbers from `start` to `start + length`, one range after the other."""
    if not len(length):
        return np.arange(0)
    end = length.cumsum()
    shift = start - (end - length)  # from the index in the result to the number
    return np.arange(end[-1]) + shift.repeat(length)


def build_map(
    heads: Sequence[tuple[int, int, int]],
    lengths: Sequence[int] | np.ndarray,
    point: np.ndarray,
    links: Iterable[tuple[int, int | None, int]],
) -> VectorMap:
    """Combine polylines and the links between lanes.

    Args:
        heads: raw id, `PolylineKind` and `LaneFlag` bits of each of M polylines; an id is unique
            among the lanes of all kinds.
        lengths: number of points of each polyline.
        point: float64 [P, 2], the concatenated points, metres in the city frame.
        links: (lane id, lane id or None, `EdgeKind`). Repeated links and links to absent lanes are
            dropped.
    """
    count = len(heads)
    last_lane_kind = int(PolylineKind.LANE_BIKE)
    index: dict[int | None, int] = {}
    for number, (polyline_id, kind, _) in enumerate(heads):
        if kind <= last_lane_kind:
            index[polyline_id] = number
    keys = []
    for from_id, to_id, kind in links:
        if from_id in index and to_id in index:
            pair = index[from_id] * count + index[to_id]
            keys.append(pair * 4 + kind)
    return join_map(heads, lengths, point, keys)


def join_map(
    heads: Sequence[tuple[int, int, int]],
    lengths: Sequence[int] | np.ndarray,
    point: np.ndarray,
    keys: Iterable[int],
) -> VectorMap:
    """As `build_map`, with one number for each link.

    The number of a link from polyline i to polyline j is (i * M + j) * 4 + `EdgeKind`.
    """
    unique = dict.fromkeys(keys)  # unlike a set, a dict keeps the order
    key = np.fromiter(unique, np.int64, len(unique))
    ends = np.divmod(key >> 2, max(len(heads), 1))
    head = np.fromiter(chain.from_iterable(heads), np.int64, 3 * len(heads)).reshape(-1, 3)
    offset = np.zeros(len(heads) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return VectorMap(
        polyline_id=head[:, 0].copy(),
        polyline_kind=head[:, 1].astype(np.uint8),
        polyline_flags=head[:, 2].astype(np.uint8),
        polyline_offset=offset,
        point=point,
        edge=np.array(ends, np.int32),
        edge_kind=(key & 3).astype(np.uint8),
    )


def joined(first: VectorMap, second: VectorMap) -> VectorMap:
    """The polylines of both maps, which are in one frame."""
    num_points = first.polyline_offset[-1]
    return VectorMap(
        polyline_id=np.concatenate([first.polyline_id, second.polyline_id]),
        polyline_kind=np.concatenate([first.polyline_kind, second.polyline_kind]),
        polyline_flags=np.concatenate([first.polyline_flags, second.polyline_flags]),
        polyline_offset=np.concatenate(
            [first.polyline_offset, second.polyline_offset[1:] + num_points]
        ),
        point=np.concatenate([first.point, second.point]),
        edge=np.concatenate([first.edge, second.edge + len(first.polyline_id)], 1),
        edge_kind=np.concatenate([first.edge_kind, second.edge_kind]),
    )


NO_MAP = build_map([], [], np.zeros((0, 2)), [])


def without_repeats(points: np.ndarray) -> np.ndarray:
    """Points [p, 2] without consecutive duplicates."""
    if not len(points):
        return points
    moved = (np.diff(points, axis=0) != 0).any(1)
    keep = np.append(True, moved)
    return points[keep]


def distance_to_segments(query: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Distances in metres from points to straight segments.

    `query` is [..., 2], `start` and `end` are [S, 2]; the axes `...` are broadcast with S.
    """
    # Contiguous x and y, and updates in place, make this several times faster.
    from_x, from_y = start.T.copy()
    along_x, along_y = (end - start).T.copy()
    squared_length = np.maximum(along_x * along_x + along_y * along_y, 1e-12)
    x = query[..., 0] - from_x
    y = query[..., 1] - from_y
    fraction = (x * along_x + y * along_y) / squared_length  # of the segment, to the nearest point
    fraction = np.clip(fraction, 0.0, 1.0)
    x -= fraction * along_x
    y -= fraction * along_y
    x *= x
    y *= y
    x += y
    return np.sqrt(x, out=x)
