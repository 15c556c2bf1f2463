"""The map of a scene while it is being read: ragged polylines and typed edges, float64 in the city frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain

import numpy as np

from trajformer.scenes.scene import PolylineKind


@dataclass(frozen=True, eq=False)
class VectorMap:
    """Polylines and the edges between them; fields as in `Scene`, but float64 metres in the city frame."""

    polyline_id: np.ndarray  # int64 [M]
    polyline_kind: np.ndarray  # uint8 [M]
    polyline_flags: np.ndarray  # uint8 [M]
    polyline_offset: np.ndarray  # int32 [M + 1]
    point: np.ndarray  # float64 [P, 2]
    edge: np.ndarray  # int32 [2, E]
    edge_kind: np.ndarray  # uint8 [E]

    def select(self, keep: np.ndarray) -> VectorMap:
        """The polylines whose entry of keep (bool [M]) is True, and the edges between two of them."""
        chosen = keep.nonzero()[0]
        start = self.polyline_offset[chosen]
        length = self.polyline_offset[chosen + 1] - start
        offset = np.zeros(len(chosen) + 1, np.int32)
        length.cumsum(out=offset[1:])
        place = np.full(len(keep), -1, np.int32)
        place[chosen] = np.arange(len(chosen))
        inner = (place[self.edge[0]] >= 0).nonzero()[0]
        inner = inner[place[self.edge[1, inner]] >= 0]
        return VectorMap(
            polyline_id=self.polyline_id[chosen],
            polyline_kind=self.polyline_kind[chosen],
            polyline_flags=self.polyline_flags[chosen],
            polyline_offset=offset,
            point=self.point[np.arange(offset[-1]) + (start - offset[:-1]).repeat(length)],
            edge=place[self.edge[:, inner]],
            edge_kind=self.edge_kind[inner],
        )

    def near(self, around: np.ndarray, radius_m: float) -> VectorMap:
        """The polylines that come within radius_m of a position in around [n, 2], and the edges between two of them."""
        if not (len(around) and len(self.polyline_id)):
            return self.select(np.zeros(len(self.polyline_id), bool))
        low, high = around.min(0) - radius_m, around.max(0) + radius_m
        least, most = self._boxes
        part = self.select((most[0] >= low[0]) & (least[0] <= high[0]) & (most[1] >= low[1]) & (least[1] <= high[1]))
        start, end, owner = part.segments
        near = ((np.maximum(start, end) >= low) & (np.minimum(start, end) <= high)).all(1).nonzero()[0]
        keep = np.zeros(len(part.polyline_id), bool)
        keep[owner[near[distance_to_segments(around, start[near], end[near]).min(0) <= radius_m]]] = True
        return part.select(keep)

    @cached_property
    def _boxes(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest x and y [2, M] of every polyline."""
        first, axes = self.polyline_offset[:-1], np.ascontiguousarray(self.point.T)
        return np.minimum.reduceat(axes, first, axis=1), np.maximum.reduceat(axes, first, axis=1)

    @cached_property
    def segments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start [S, 2] and end [S, 2] of every straight piece, and the polyline [S] that it belongs to."""
        owner = np.arange(len(self.polyline_id)).repeat(np.diff(self.polyline_offset))
        inner = (owner[1:] == owner[:-1]).nonzero()[0]
        return self.point[inner], self.point[inner + 1], owner[inner]

    def scene_fields(self, origin: np.ndarray) -> dict[str, np.ndarray]:
        """The map fields of a `Scene`, points float32 relative to origin (float64 [2])."""
        return {name: getattr(self, name) for name in _FIELDS} | {"point": (self.point - origin).astype(np.float32)}


_FIELDS = tuple(field.name for field in fields(VectorMap))


def build_map(
    heads: Sequence[tuple[int, int, int]],
    lengths: Sequence[int],
    point: np.ndarray,
    links: Iterable[tuple[int, int, int]],
) -> VectorMap:
    """Put polylines and the links between lanes together.

    Args:
        heads: raw id, `PolylineKind` and `LaneFlag` bits of M polylines; lane ids are unique among all kinds of lanes.
        lengths: number of points of each.
        point: float64 [P, 2], their points one after the other, metres in the city frame.
        links: (lane id, lane id, `EdgeKind`); one that names an absent lane is left out, a repeated one kept once.
    """
    last_lane = int(PolylineKind.LANE_BIKE)
    place = {head[0]: index for index, head in enumerate(heads) if head[1] <= last_lane}.get
    known = {  # a dict, unlike a set, keeps the order
        (a, b, kind): None for own, other, kind in links if (a := place(own)) is not None and (b := place(other)) is not None
    }
    edges = np.fromiter(chain.from_iterable(known), np.int32, 3 * len(known)).reshape(-1, 3)
    head = np.fromiter(chain.from_iterable(heads), np.int64, 3 * len(heads)).reshape(-1, 3)
    offset = np.zeros(len(heads) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return VectorMap(
        polyline_id=head[:, 0].copy(),
        polyline_kind=head[:, 1].astype(np.uint8),
        polyline_flags=head[:, 2].astype(np.uint8),
        polyline_offset=offset,
        point=point,
        edge=np.ascontiguousarray(edges[:, :2].T),
        edge_kind=edges[:, 2].astype(np.uint8),
    )


def without_repeats(points: np.ndarray) -> np.ndarray:
    """Points [p, 2] without those that equal their predecessor."""
    return points[np.concatenate([[True], (np.diff(points, axis=0) != 0).any(1)])] if len(points) else points


def distance_to_segments(query: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Distances [Q, S] in metres from points query [Q, 2] to straight pieces start, end [S, 2]."""
    along_x, along_y = (end - start).T.copy()
    length = np.maximum(along_x * along_x + along_y * along_y, 1e-12)
    x, y = query[:, :1] - start[:, 0], query[:, 1:] - start[:, 1]  # [Q, S]
    share = np.clip((x * along_x + y * along_y) / length, 0.0, 1.0)
    x -= share * along_x
    y -= share * along_y
    x *= x
    y *= y
    x += y
    return np.sqrt(x, out=x)
