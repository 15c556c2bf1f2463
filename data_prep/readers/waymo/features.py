"""Map features of a record. A loop reads their fields once; points are found by `Runs`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from data_prep.readers.columns import check_count
from data_prep.readers.waymo.repeated import Repeated, region
from data_prep.readers.waymo.runs import Layout, Runs
from trajformer.scenes.wire import (
    BYTES,
    MAX_FIELDS,
    Field,
    WireError,
    read_double,
    read_field,
    read_fields,
    read_number,
    read_numbers,
    read_span,
    read_varint,
    signed,
)

MAX_FEATURES = 20_000
MAX_POINTS = 1_000_000

# Field numbers of `MapFeature`: the kinds of features.
LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY = 3, 4, 5, 7, 8, 9, 10
FEATURE_KINDS = (LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY)
# Fields of lanes.
_TYPE, _INTERPOLATING, _ENTRIES, _EXITS, _LEFT, _RIGHT = 2, 3, 9, 10, 11, 12
# The field of the points of a feature; the tag is one byte, wire type 2.
_POINTS = {LANE: 8, ROAD_LINE: 2, ROAD_EDGE: 2, STOP_SIGN: 2}  # others 1
_LANE_POINTS = 8 << 3 | BYTES  # tag
_BYTES_TAGS = frozenset(number << 3 | BYTES for number in range(1, 16))  # of one byte
_POINT_TAGS = bytes([_LANE_POINTS, 2 << 3 | BYTES, 1 << 3 | BYTES])
_POINT_LAYOUT = Layout(29, {1: b"\x1b", 2: b"\x09", 11: b"\x11", 20: b"\x19", 0: _POINT_TAGS})
_POINT = np.dtype(
    {"names": ["x", "y", "z"], "formats": ["<f8"] * 3, "offsets": [3, 12, 21], "itemsize": 29}
)


class Lane(NamedTuple):
    """A lane and its links to others; the rest of the message: `lane_details.py`."""

    entries: list[int]
    exits: list[int]
    left: list[int]  # ids of neighbours
    right: list[int]
    interpolating: bool  # connects two other lanes, as in intersections
    span: tuple[int, int]  # of the message in `Record.content`


class Features:
    """Map features, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], path: Path) -> None:
        check_count(len(fields) + 1, MAX_FEATURES, "map features", path)
        self._content = content
        runs = Runs(content, *region(fields), [_POINT_LAYOUT])
        self._points = Repeated(runs, 8, read_point, MAX_POINTS)
        self.feature_id: list[int] = []
        self.kind: list[int] = []
        self.type: list[int] = []
        self.lanes: dict[int, Lane] = {}
        self.stop_lanes: list[int] = []
        ends = [0]
        for field in fields:
            feature_id, kind, start, end = _parts(content, *read_span(field))
            if not kind:  # a kind of a later version
                continue
            if kind == LANE:
                lane, feature_type = self._lane(start, end)
                self.lanes[len(self.kind)] = lane
            else:
                feature_type = self._other(kind, start, end)
            self.feature_id.append(feature_id)
            self.kind.append(kind)
            self.type.append(feature_type)
            ends.append(self._points.count)
        self.offset = np.array(ends)

        usual = runs.values(0, _POINT)
        others = np.array(self._points.others, np.float64).reshape(-1, 3)
        # A view of x, y and z, which are 9 bytes apart: half the time of np.stack.
        axes = as_strided(usual["x"], (len(usual), 3), (_POINT.itemsize, 9))
        table = axes.copy()
        self.point = self._points.take(table, others)

    def _lane(self, start: int, end: int) -> tuple[Lane, int]:
        """The lane data[start:end] and its type; its points are collected.

        Types are 0 undefined, 1 freeway, 2 surface street, 3 bike lane.
        """
        content = self._content
        span = (start, end)
        links: dict[int, list[int]] = {_ENTRIES: [], _EXITS: [], _LEFT: [], _RIGHT: []}
        lane_type = 0
        interpolating = False
        for _ in range(MAX_FIELDS):
            if start >= end:
                lane = Lane(
                    entries=links[_ENTRIES],
                    exits=links[_EXITS],
                    left=links[_LEFT],
                    right=links[_RIGHT],
                    interpolating=interpolating,
                    span=span,
                )
                return lane, lane_type
            if content[start] == _LANE_POINTS:
                start = self._points.collect_at(start, end)
                continue
            size = content[start + 1] if start + 1 < end else 0x80
            if content[start] in _BYTES_TAGS and size < 0x80 and start + 2 + size <= end:
                # Nearly all fields. `read_field` does the same, but takes three times as long.
                field = (content[start] >> 3, BYTES, start + 2, start + 2 + size)
            else:
                field = read_field(content, start, end)
            number, _, _, start = field
            if number > _RIGHT:  # boundaries
                continue
            if number >= _LEFT:
                links[number].append(_neighbor_id(content, *read_span(field)))
            elif number >= _ENTRIES:
                links[number] += read_numbers(content, field)
            elif number == _TYPE:
                lane_type = read_number(field)
            elif number == _INTERPOLATING:
                interpolating = read_number(field) != 0
        raise WireError(f"lane: more than {MAX_FIELDS} fields")

    def _other(self, kind: int, start: int, end: int) -> int:
        """Collect the points of a feature, note the lanes of a stop sign; return the type."""
        feature_type = 0
        for field in self._points.collect(start, end, _POINTS.get(kind, 1)):
            if field[0] != 1:
                continue
            if kind == STOP_SIGN:
                self.stop_lanes += read_numbers(self._content, field)
            elif kind in (ROAD_LINE, ROAD_EDGE):
                feature_type = read_number(field)
        return feature_type


def _parts(content: bytes, start: int, end: int) -> tuple[int, int, int, int]:
    """Id, kind, and start and end of the message of this kind, of a `MapFeature`."""
    if start < end and content[start] == 0x08:  # the id is the first of two fields as a rule
        value, position = read_varint(content, start + 1, end)
        if position < end:
            kind, wire_type, first, last = read_field(content, position, end)
            if last == end and wire_type == BYTES and kind in FEATURE_KINDS:
                return signed(value), kind, first, last
    feature_id = kind = first = last = 0
    for field in read_fields(content, start, end):
        if field[0] == 1:
            feature_id = read_number(field)
        elif field[0] in FEATURE_KINDS:
            kind = field[0]
            first, last = read_span(field)
    return feature_id, kind, first, last


def read_point(data: bytes, start: int, end: int) -> tuple[float, ...]:
    """x, y and z of a `MapPoint`."""
    values = [0.0] * 3
    for field in read_fields(data, start, end):
        if 1 <= field[0] <= 3:
            values[field[0] - 1] = read_double(data, field)
    return tuple(values)


def _neighbor_id(content: bytes, start: int, end: int) -> int:
    """Id of the lane of a `LaneNeighbor`."""
    if start < end and content[start] == 0x08:  # the first field as a rule
        return signed(read_varint(content, start + 1, end)[0])
    while start < end:
        part = read_field(content, start, end)
        if part[0] == 1:
            return read_number(part)
        start = part[3]
    return 0
