"""The part of a map around the agents, which moves with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajformer.data.sample import BatchConfig, MapPieces, cut_map
from trajformer.scenes.geometry import relative_position, scene_origin
from trajformer.scenes.scene import PolylineKind
from trajformer.scenes.vector_map import VectorMap

MARGIN_M = 100.0  # how far agents may move before the window moves
LOST_M = 100.0  # how far an agent may have come since it was lost
_FACING = (PolylineKind.LANE_VEHICLE, PolylineKind.LANE_BUS)


@dataclass(frozen=True, eq=False)
class MapWindow:
    """Polylines of a box around the agents.

    Coordinates are relative to the median position of the agents, so that float32 is precise
    enough. While the window stays, the frame stays, and so the encoding of a map can be kept.

    Attributes:
        lanes: the whole map.
        origin: float64 [2], metres in the frame of the tracks.
        low, high: corners [2] of the box in which agents may be.
        pieces: the polylines in pieces, relative to the origin.
        facing: lanes along which vehicles face that have not moved, in the frame of the tracks.
    """

    lanes: VectorMap
    origin: np.ndarray
    low: np.ndarray
    high: np.ndarray
    pieces: MapPieces
    facing: VectorMap

    @classmethod
    def around(cls, lanes: VectorMap, position: np.ndarray, config: BatchConfig) -> MapWindow:
        """The window for agents at positions float64 [n, 2]."""
        low = position.min(0) - MARGIN_M
        high = position.max(0) + MARGIN_M
        origin = scene_origin(np.median(position, 0))
        keep = np.zeros(len(lanes.polyline_id), np.bool_)
        if len(keep):
            box_low, box_high = lanes.boxes
            reach = config.map_radius_m + LOST_M
            is_below = (box_low <= (high + reach)[:, None]).all(0)
            keep = is_below & (box_high >= (low - reach)[:, None]).all(0)
        near = lanes.select(keep)
        facing = near.select(np.isin(near.polyline_kind, _FACING))
        pieces = cut_map(near, relative_position(near.point, origin), config)
        return cls(lanes, origin, low, high, pieces, facing)

    def contains(self, position: np.ndarray) -> bool:
        """Whether all positions [n, 2] are in the box."""
        is_inside = (position >= self.low) & (position <= self.high)
        return bool(is_inside.all())
