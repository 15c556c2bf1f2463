"""Map features of a record: lanes with their links, road lines and edges, crosswalks and others."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.readers.columns import check_count
from data_prep.readers.waymo.messages import (
    Fields,
    all_numbers,
    first_numbers,
    read_messages,
    spans,
)
from data_prep.readers.waymo.repeated import Repeated, region
from data_prep.readers.waymo.runs import Layout, Runs
from trajformer.scenes.wire import BYTES, Field, read_double, read_fields

MAX_FEATURES = 20_000
MAX_POINTS = 1_000_000

# Field numbers of `MapFeature`: the kinds of features.
LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY = 3, 4, 5, 7, 8, 9, 10
FEATURE_KINDS = (LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY)
_MAX_KIND = 10
_IS_KIND = np.isin(np.arange(_MAX_KIND + 2), FEATURE_KINDS)
# Fields of lanes.
_TYPE, _INTERPOLATING = 2, 3
ENTRIES, EXITS, LEFT, RIGHT = 9, 10, 11, 12
# The field of the points of a feature by its kind.
_POINTS = np.ones(_MAX_KIND + 1, np.int64)
_POINTS[[ROAD_LINE, ROAD_EDGE, STOP_SIGN]] = 2
_POINTS[LANE] = 8
_POINT_TAGS = bytes((np.unique(_POINTS) << 3 | BYTES).tolist())
_POINT_LAYOUT = Layout(29, {1: b"\x1b", 2: b"\x09", 11: b"\x11", 20: b"\x19", 0: _POINT_TAGS})
_POINT = np.dtype(
    {"names": ["x", "y", "z"], "formats": ["<f8"] * 3, "offsets": [3, 12, 21], "itemsize": 29}
)


class Links(NamedTuple):
    """Links from lanes to other lanes, E; in any order."""

    feature: np.ndarray  # int64 [E], index of the lane among the features
    kind: np.ndarray  # int64 [E], ENTRIES, EXITS, LEFT or RIGHT
    lane_id: np.ndarray  # int64 [E], of the other lane


class Features:
    """Map features, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], path: Path) -> None:
        check_count(len(fields) + 1, MAX_FEATURES, "map features", path)
        start, end = spans(fields)
        runs = Runs(content, *region(start, end), [_POINT_LAYOUT])
        count = len(start)
        parts = read_messages(content, start, end)
        feature_id = parts.select(parts.number == 1).last_numbers(0, count)

        # A feature of a kind of a later version is left out.
        is_body = _IS_KIND[np.minimum(parts.number, _MAX_KIND + 1)]
        bodies = parts.select(is_body).check_kind(BYTES, "a message")
        kind = np.zeros(count, np.int64)
        kind[bodies.message] = bodies.number
        span = np.zeros((count, 2), np.int64)
        span[bodies.message, 0] = bodies.value
        span[bodies.message, 1] = bodies.end
        is_known = kind > 0
        self.feature_id: np.ndarray = feature_id[is_known]
        self.kind: np.ndarray = kind[is_known]
        self.span: np.ndarray = span[is_known]
        self._read_bodies(content, runs)

    def _read_bodies(self, content: bytes, runs: Runs) -> None:
        """Read the fields of all features."""
        count = len(self.kind)
        point_number = _POINTS[self.kind]
        fields = read_messages(content, self.span[:, 0], self.span[:, 1], runs, point_number)
        is_point = fields.number == point_number[fields.message]
        points = Repeated(fields.select(is_point), runs, read_point, MAX_POINTS)
        self.offset = points.offsets(count)
        usual = runs.values(0, _POINT)
        others = np.array(points.others, np.float64).reshape(-1, 3)
        # Copied by axis, in half the time of a copy by point.
        axes = np.stack([usual["x"], usual["y"], usual["z"]])
        self.point = points.take(axes.T, others)

        kind = self.kind[fields.message]
        is_lane = kind == LANE
        is_line = (kind == ROAD_LINE) | (kind == ROAD_EDGE)
        is_type = (is_lane & (fields.number == _TYPE)) | (is_line & (fields.number == 1))
        self.type = fields.select(is_type).last_numbers(0, count)
        is_interpolating = is_lane & (fields.number == _INTERPOLATING)
        self.interpolating = fields.select(is_interpolating).last_numbers(0, count) != 0
        is_stop = (kind == STOP_SIGN) & (fields.number == 1)
        self.stop_lanes, _ = all_numbers(content, fields.select(is_stop))
        is_link = is_lane & (fields.number >= ENTRIES) & (fields.number <= RIGHT)
        self.links = _links(content, fields.select(is_link))


def _links(content: bytes, fields: Fields) -> Links:
    """The links of the fields `ENTRIES` to `RIGHT` of lanes."""
    others = fields.select(fields.number < LEFT)
    other_id, field = all_numbers(content, others)
    neighbors = fields.select(fields.number >= LEFT).check_kind(BYTES, "a message")
    neighbor_id = first_numbers(content, neighbors.value, neighbors.end)
    return Links(
        feature=np.append(others.message[field], neighbors.message),
        kind=np.append(others.number[field], neighbors.number),
        lane_id=np.append(other_id, neighbor_id),
    )


def read_point(data: bytes, start: int, end: int) -> tuple[float, ...]:
    """x, y and z of a `MapPoint`."""
    values = [0.0] * 3
    for field in read_fields(data, start, end):
        if 1 <= field[0] <= 3:
            values[field[0] - 1] = read_double(data, field)
    return tuple(values)
