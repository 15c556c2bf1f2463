"""Fields of lanes that a scene has no place for: speed limits, neighbours and boundaries."""

import math
from typing import Any, NamedTuple

from data_prep.readers.waymo.record import Record
from trajformer.scenes.wire import read_double, read_fields, read_number, read_span

_SPEED_LIMIT = 1
_NEIGHBORS = (11, 12)
_BOUNDARIES = (13, 14)


class LaneDetails(NamedTuple):
    """Fields of a lane that a scene has no place for; indices are points of the lines."""

    speed_limit_mph: float  # NaN without a limit
    # id, first and last point of the lane, first and last point of its neighbour
    left_neighbors: list[tuple[int, int, int, int, int]]
    right_neighbors: list[tuple[int, int, int, int, int]]
    # first and last point of the lane, id of the road line or edge, and type of the road line
    left_boundaries: list[tuple[int, int, int, int]]
    right_boundaries: list[tuple[int, int, int, int]]


def lane_details(record: Record, feature: int) -> LaneDetails:
    """Speed limit, neighbours and boundaries of the lane with this index among the features."""
    speed_limit = math.nan
    parts: dict[int, list[tuple[int, ...]]] = {number: [] for number in (*_NEIGHBORS, *_BOUNDARIES)}
    for field in read_fields(record.content, *record.feature_span[feature].tolist()):
        number = field[0]
        if number == _SPEED_LIMIT:
            speed_limit = read_double(record.content, field)
        elif number in parts:
            size = 5 if number in _NEIGHBORS else 4
            values = [0] * size
            for part in read_fields(record.content, *read_span(field)):
                if part[0] <= size:
                    values[part[0] - 1] = read_number(part)
            parts[number].append(tuple(values))
    lists: Any = parts.values()
    return LaneDetails(speed_limit, *lists)
