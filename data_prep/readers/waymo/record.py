"""One record of the Waymo Open Motion data set: a `Scenario` message as arrays.

Field numbers are those of `waymo.open_dataset.Scenario` and `MapFeature`. Unknown fields are
skipped, and fields may have any order. Letters: A tracks, L steps, M map features, P points, N
states of traffic lights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.readers.columns import check_count
from data_prep.readers.waymo import tfrecord
from data_prep.readers.waymo.runs import Layout, Runs
from trajformer.errors import SceneError
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.wire import (
    BYTES,
    VARINT,
    Field,
    WireError,
    read_double,
    read_field,
    read_fields,
    read_float,
    read_number,
    read_numbers,
    read_span,
    read_varint,
    scan_fields,
    signed,
)

MAX_STEPS = 1_000
MAX_TRACKS = 10_000
MAX_CELLS = 1_000_000  # steps of all tracks
MAX_FEATURES = 20_000
MAX_POINTS = 1_000_000
MAX_LIGHTS = 1_000_000  # states

# Field numbers of `Scenario`.
_TIMESTAMPS, _TRACKS, _INTEREST, _ID, _EGO = 1, 2, 4, 5, 6
_LIGHTS, _FEATURES, _CURRENT, _PREDICT = 7, 8, 10, 11
# Field numbers of `MapFeature`: the kinds of features.
LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY = 3, 4, 5, 7, 8, 9, 10
FEATURE_KINDS = (LANE, ROAD_LINE, ROAD_EDGE, STOP_SIGN, CROSSWALK, SPEED_BUMP, DRIVEWAY)
_ENTRIES, _EXITS, _LEFT, _RIGHT = 9, 10, 11, 12  # of lanes
_BOUNDARIES = bytes([13 << 3 | BYTES, 14 << 3 | BYTES])  # tags
# The field of the points of a feature; the tag is one byte, wire type 2.
_POINTS = {LANE: 8, ROAD_LINE: 2, ROAD_EDGE: 2, STOP_SIGN: 2}  # others 1
_POINT_TAGS = bytes([8 << 3 | 2, 2 << 3 | 2, 1 << 3 | 2])

# ---- layouts of the usual messages, from the tag of their field on -------------------------------

_FIXED_STATE = {0: b"\x1a", 1: b"\x3b", 2: b"\x11", 11: b"\x19", 20: b"\x21", 29: b"\x2d"}
_FIXED_STATE |= {34: b"\x35", 39: b"\x3d", 44: b"\x45", 49: b"\x4d", 54: b"\x55", 59: b"\x58"}
_STATE_LAYOUTS = (
    Layout(61, _FIXED_STATE | {60: b"\0\1"}),  # all fields
    Layout(13, {0: b"\x1a", 1: b"\x0b", 2: b"\x21", 11: b"\x58", 12: b"\0"}),  # z, not valid
    Layout(4, {0: b"\x1a", 1: b"\x02", 2: b"\x58", 3: b"\0"}),  # not valid
)
_STATE = np.dtype(
    {
        "names": ["x", "y", "z", "size", "heading", "velocity_x", "velocity_y", "valid"],
        "formats": ["<f8", "<f8", "<f8", "V15", "<f4", "<f4", "<f4", "u1"],
        "offsets": [3, 12, 21, 29, 45, 50, 55, 60],
        "itemsize": 61,
    }
)
_SIZE_PART = np.dtype({"names": ["value"], "formats": ["<f4"], "offsets": [1], "itemsize": 5})
_POINT_LAYOUT = Layout(29, {1: b"\x1b", 2: b"\x09", 11: b"\x11", 20: b"\x19", 0: _POINT_TAGS})
_POINT = np.dtype(
    {"names": ["x", "y", "z"], "formats": ["<f8"] * 3, "offsets": [3, 12, 21], "itemsize": 29}
)
_LANE_BYTES = (1, 2, 3)  # of the varint with the lane of a light


def _light_layout(lane_bytes: int) -> Layout:
    """A state of a traffic light: lane, state and stop point."""
    after = 3 + lane_bytes
    single = {0: b"\x0a", 1: bytes([32 + lane_bytes]), 2: b"\x08", after: b"\x10"}
    single |= {after + 2: b"\x1a", after + 3: b"\x1b"}
    single |= {after + 4: b"\x09", after + 13: b"\x11", after + 22: b"\x19"}
    # The bytes of a varint are 128 and more, except the last one.
    several = {3 + i: bytes(range(128, 256)) for i in range(lane_bytes - 1)}
    several |= {after - 1: bytes(range(128)), after + 1: bytes(range(128))}
    return Layout(34 + lane_bytes, single | several)


_LIGHT_LAYOUTS = tuple(_light_layout(count) for count in _LANE_BYTES)


def _light_dtype(lane_bytes: int) -> np.dtype:
    after = 3 + lane_bytes
    return np.dtype(
        {
            "names": ["lane", "state", "x", "y", "z"],
            "formats": [f"({lane_bytes},)u1", "u1", "<f8", "<f8", "<f8"],
            "offsets": [3, after + 1, after + 5, after + 14, after + 23],
            "itemsize": 34 + lane_bytes,
        }
    )


_LIGHT_DTYPES = tuple(_light_dtype(count) for count in _LANE_BYTES)


# ---- the record ----------------------------------------------------------------------------------


class Lane(NamedTuple):
    """A lane and its links to others; the rest of the message: `lane_details.py`."""

    entries: list[int]
    exits: list[int]
    left: list[int]  # ids of neighbours
    right: list[int]
    interpolating: bool  # connects two other lanes, as in intersections
    span: tuple[int, int]  # of the message in `Record.content`


class Record(NamedTuple):
    """A `Scenario` message; states that are not valid are zero."""

    scenario_id: str
    time: np.ndarray  # float64 [L], seconds
    current: int  # index of the present step
    ego: int  # index of the track of the recording car
    interest: list[int]  # ids of the tracks that interact
    predict: list[tuple[int, int]]  # index of a track, and difficulty (0 unknown, 1, 2)
    track_id: list[int]  # A
    track_type: np.ndarray  # uint8 [A], 0 unset, 1 vehicle, 2 pedestrian, 3 cyclist, 4 other
    position: np.ndarray  # float64 [A, L, 3], metres
    size: np.ndarray  # float32 [A, L, 3], length, width and height in metres
    heading: np.ndarray  # float32 [A, L], radians
    velocity: np.ndarray  # float32 [A, L, 2], m/s
    valid: np.ndarray  # bool [A, L]
    feature_id: list[int]  # M
    feature_kind: list[int]  # M, one of `FEATURE_KINDS`
    feature_type: list[int]  # M, of lanes, road lines and road edges
    feature_offset: np.ndarray  # int64 [M + 1], feature m has point[offset[m]:offset[m + 1]]
    point: np.ndarray  # float64 [P, 3], metres
    lanes: dict[int, Lane]  # by index of the feature
    stop_lanes: list[int]  # ids of the lanes with a stop sign
    light_step: np.ndarray  # int64 [N]
    light_lane: np.ndarray  # int64 [N], id of the lane
    light_state: np.ndarray  # uint8 [N]
    light_point: np.ndarray  # float64 [N, 3], metres
    content: bytes  # the message


def read_record(path: Path, offset: int) -> Record:
    """Read the record at an offset in bytes; a SceneError names the file, record and field."""
    content = tfrecord.read_record(path, offset)
    try:
        return parse_record(content, path)
    except (WireError, SceneError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise SceneError(f"{path}: record at byte {offset}: {reason}") from error


# For the windows of a record, which are read in sequence.
read_record_once = cached_by_file(2)(read_record)


def count_steps(path: Path, offset: int) -> int:
    """The number of timestamps of the record at an offset; raises as `read_record`."""
    content = tfrecord.read_record(path, offset)
    try:
        fields = read_fields(content, 0, len(content))
        return len(_timestamps(content, [each for each in fields if each[0] == _TIMESTAMPS]))
    except WireError as error:
        raise SceneError(f"{path}: record at byte {offset}: {error}") from error


def parse_record(content: bytes, path: Path) -> Record:
    """The record of a message (SceneError or WireError: it is no usable `Scenario`)."""
    parts: dict[int, list[Field]] = {}
    for field in read_fields(content, 0, len(content)):
        parts.setdefault(field[0], []).append(field)
    time = _timestamps(content, parts.get(_TIMESTAMPS, []))
    check_count(len(time), MAX_STEPS, "timestamps_seconds (field 1)", path)
    scenario_id = ""
    for field in parts.get(_ID, []):
        start, end = read_span(field)
        scenario_id = content[start:end].decode("utf-8", "replace")

    tracks = _Tracks(content, parts.get(_TRACKS, []), len(time), path)
    features = _Features(content, parts.get(_FEATURES, []), path)
    lights = _Lights(content, parts.get(_LIGHTS, []), path)
    interest = []
    for field in parts.get(_INTEREST, []):
        interest += read_numbers(content, field)
    return Record(
        scenario_id=scenario_id,
        time=time,
        current=_last_number(parts.get(_CURRENT, [])),
        ego=_last_number(parts.get(_EGO, []), missing=-1),
        interest=interest,
        predict=[_prediction(content, field) for field in parts.get(_PREDICT, [])],
        track_id=tracks.track_id,
        track_type=np.array(tracks.track_type, np.uint8),
        position=tracks.position,
        size=tracks.size,
        heading=tracks.heading,
        velocity=tracks.velocity,
        valid=tracks.valid,
        feature_id=features.feature_id,
        feature_kind=features.kind,
        feature_type=features.type,
        feature_offset=features.offset,
        point=features.point,
        lanes=features.lanes,
        stop_lanes=features.stop_lanes,
        light_step=lights.step,
        light_lane=lights.lane,
        light_state=lights.state,
        light_point=lights.point,
        content=content,
    )


def _timestamps(content: bytes, fields: list[Field]) -> np.ndarray:
    """Timestamps float64 [L] in seconds; the repeated field may be packed."""
    packed = []
    for field in fields:
        _, kind, start, end = field
        if kind == VARINT or (end - start) % 8:
            problem = "no numbers of the type double: a tf.Example instead of a Scenario?"
            raise WireError(f"timestamps_seconds (field 1): {problem}")
        packed.append(content[start:end])
    return np.frombuffer(b"".join(packed), "<f8").astype(np.float64)


def _last_number(fields: list[Field], missing: int = 0) -> int:
    return read_number(fields[-1]) if fields else missing


def _prediction(content: bytes, field: Field) -> tuple[int, int]:
    """Index and difficulty of a track to predict."""
    index = difficulty = 0
    for part in read_fields(content, *read_span(field)):
        if part[0] == 1:
            index = read_number(part)
        elif part[0] == 2:
            difficulty = read_number(part)
    return index, difficulty


# ---- repeated messages ---------------------------------------------------------------------------


class _Repeated:
    """The messages of a repeated field, in order: runs of usual ones, and single others.

    Args:
        runs: the usual messages.
        number: of the field.
        read: parses a message that has another layout.
        maximum: number of messages.
    """

    def __init__(
        self,
        runs: Runs,
        number: int,
        read: Callable[[bytes, int, int], tuple[float, ...]],
        maximum: int,
    ) -> None:
        self.runs = runs
        self.number = number
        self.read = read
        self.maximum = maximum
        self.others: list[tuple[float, ...]] = []
        self.count = 0
        self._ranges: list[tuple[int, int]] = []

    def collect(
        self, start: int, end: int, number: int | None = None, ignored: bytes = b""
    ) -> list[Field]:
        """Collect the messages of the message data[start:end]; return its other fields.

        Messages with the tags `ignored` are left out.
        """
        data = self.runs.data
        number = self.number if number is None else number
        tag = number << 3 | BYTES
        fields: list[Field] = []
        while True:
            start = scan_fields(data, start, end, tag, fields, ignored)
            if start >= end:
                return fields
            run = self.runs.at(start, end)
            if run is not None:
                self._add(run.first, run.last)
                start = run.end
                continue
            first, start = read_span(read_field(data, start, end))
            index = len(self.runs.position) + len(self.others)
            self.others.append(self.read(data, first, start))
            self._add(index, index + 1)

    def _add(self, first: int, last: int) -> None:
        self._ranges.append((first, last))
        self.count += last - first
        if self.count > self.maximum:
            raise WireError(f"field {self.number}: more than {self.maximum} messages")

    def take(self, usual: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The values [n, ...] of the collected messages, in order.

        `usual` has the values of all messages of `runs`, `others` those of `self.others`.
        """
        if not self._ranges:
            return usual[:0]
        first, last = np.array(self._ranges).T
        if (first[1:] == last[:-1]).all() and last[-1] <= len(usual):  # no message was left out
            return usual[first[0] : last[-1]]
        length = last - first
        shift = first - (length.cumsum() - length)
        index = np.arange(self.count) + shift.repeat(length)
        values: np.ndarray = np.concatenate([usual, others.astype(usual.dtype)]).take(index, 0)
        return values


def _region(fields: list[Field]) -> tuple[int, int]:
    """Start and end of the messages of a field."""
    spans = [read_span(field) for field in fields]
    if not spans:
        return 0, 0
    return min(start for start, _ in spans), max(end for _, end in spans)


class _Tracks:
    """Tracks and their states, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], steps: int, path: Path) -> None:
        check_count(len(fields), MAX_TRACKS, "tracks", path)
        check_count(len(fields) * steps, MAX_CELLS, "steps of all tracks", path)
        runs = Runs(content, *_region(fields), _STATE_LAYOUTS)
        states = _Repeated(runs, 3, _read_state, len(fields) * steps)
        self.track_id: list[int] = []
        self.track_type: list[int] = []
        for index, field in enumerate(fields):
            before = states.count
            track_id = track_type = 0
            for part in states.collect(*read_span(field)):
                if part[0] == 1:
                    track_id = read_number(part)
                elif part[0] == 2:
                    track_type = read_number(part)
            if states.count - before != steps:
                count = states.count - before
                raise WireError(f"tracks[{index}]: {count} states for {steps} timestamps")
            self.track_id.append(track_id)
            self.track_type.append(track_type if 0 <= track_type < 256 else 0)
        self._arrange(states, len(fields), steps)

    def _arrange(self, states: _Repeated, tracks: int, steps: int) -> None:
        """The states as arrays [A, L, ...]."""
        runs = states.runs
        usual = runs.values(0, _STATE)
        others = np.array(states.others, np.float64).reshape(-1, 10)
        # Rows of usual states that are not valid stay zero.
        is_full = (runs.layout == 0).nonzero()[0]
        num_usual = len(runs.position)
        size = usual["size"].copy().view(_SIZE_PART)["value"].reshape(-1, 3)
        parts = {
            "position": (np.stack([usual["x"], usual["y"], usual["z"]], -1), others[:, :3]),
            "size": (size, others[:, 3:6]),
            "heading": (usual["heading"], others[:, 6]),
            "velocity": (
                np.stack([usual["velocity_x"], usual["velocity_y"]], -1),
                others[:, 7:9],
            ),
            "valid": (usual["valid"].astype(bool), others[:, 9].astype(bool)),
        }
        arrays = {}
        for name, (values, other_values) in parts.items():
            rows = np.zeros((num_usual, *values.shape[1:]), values.dtype)
            rows[is_full] = values
            taken = states.take(rows, other_values)
            arrays[name] = taken.reshape(tracks, steps, *values.shape[1:])
        self.valid: np.ndarray = arrays.pop("valid")
        invalid = ~self.valid
        for values in arrays.values():
            values[invalid] = 0
        self.position = arrays["position"]
        self.size = arrays["size"]
        self.heading = arrays["heading"]
        self.velocity = arrays["velocity"]


def _read_state(data: bytes, start: int, end: int) -> tuple[float, ...]:
    """Position, size, heading, velocity and valid of an `ObjectState`."""
    values = [0.0] * 10
    for field in read_fields(data, start, end):
        if 2 <= field[0] <= 4:
            values[field[0] - 2] = read_double(data, field)
        elif 5 <= field[0] <= 10:
            values[field[0] - 2] = read_float(data, field)
        elif field[0] == 11:
            values[9] = float(read_number(field) != 0)
    return tuple(values)


# ---- map -----------------------------------------------------------------------------------------


class _Features:
    """Map features, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], path: Path) -> None:
        check_count(len(fields) + 1, MAX_FEATURES, "map features", path)
        runs = Runs(content, *_region(fields), [_POINT_LAYOUT])
        points = _Repeated(runs, 8, _read_point, MAX_POINTS)
        self.feature_id: list[int] = []
        self.kind: list[int] = []
        self.type: list[int] = []
        self.lanes: dict[int, Lane] = {}
        self.stop_lanes: list[int] = []
        ends = [0]
        for field in fields:
            feature_id = kind = 0
            message = (0, 0)
            for part in read_fields(content, *read_span(field)):
                if part[0] == 1:
                    feature_id = read_number(part)
                elif part[0] in FEATURE_KINDS:
                    kind = part[0]
                    message = read_span(part)
            if not kind:  # a kind of a later version
                continue
            ignored = _BOUNDARIES if kind == LANE else b""
            parts = points.collect(*message, _POINTS.get(kind, 1), ignored)
            self.feature_id.append(feature_id)
            self.kind.append(kind)
            self.type.append(self._attributes(content, kind, parts, message))
            ends.append(points.count)
        self.offset = np.array(ends)

        usual = runs.values(0, _POINT)
        others = np.array(points.others, np.float64).reshape(-1, 3)
        table = np.stack([usual["x"], usual["y"], usual["z"]], -1)
        self.point = points.take(table, others)

    def _attributes(
        self, content: bytes, kind: int, parts: list[Field], span: tuple[int, int]
    ) -> int:
        """Note the links of a lane and the lanes of a stop sign; return the type."""
        if kind == LANE:
            lane, lane_type = _lane(content, parts, span)
            self.lanes[len(self.kind) - 1] = lane
            return lane_type
        if kind == STOP_SIGN:
            for part in parts:
                if part[0] == 1:
                    self.stop_lanes += read_numbers(content, part)
        elif kind in (ROAD_LINE, ROAD_EDGE):
            return _last_number([part for part in parts if part[0] == 1])
        return 0


def _read_point(data: bytes, start: int, end: int) -> tuple[float, ...]:
    """x, y and z of a `MapPoint`."""
    values = [0.0] * 3
    for field in read_fields(data, start, end):
        if 1 <= field[0] <= 3:
            values[field[0] - 1] = read_double(data, field)
    return tuple(values)


def _lane(content: bytes, parts: list[Field], span: tuple[int, int]) -> tuple[Lane, int]:
    """A lane and its type (0 undefined, 1 freeway, 2 surface street, 3 bike lane)."""
    links: dict[int, list[int]] = {_ENTRIES: [], _EXITS: [], _LEFT: [], _RIGHT: []}
    lane_type = 0
    interpolating = False
    for part in parts:
        number = part[0]
        if number == 2:
            lane_type = read_number(part)
        elif number == 3:
            interpolating = read_number(part) != 0
        elif number in (_ENTRIES, _EXITS):
            links[number] += read_numbers(content, part)
        elif number in (_LEFT, _RIGHT):
            links[number].append(_neighbor_id(content, part))
    lane = Lane(
        entries=links[_ENTRIES],
        exits=links[_EXITS],
        left=links[_LEFT],
        right=links[_RIGHT],
        interpolating=interpolating,
        span=span,
    )
    return lane, lane_type


def _neighbor_id(content: bytes, field: Field) -> int:
    """Id of the lane of a `LaneNeighbor`."""
    start, end = read_span(field)
    if start < end and content[start] == 0x08:  # the first field as a rule
        return signed(read_varint(content, start + 1, end)[0])
    while start < end:
        part = read_field(content, start, end)
        if part[0] == 1:
            return read_number(part)
        start = part[3]
    return 0


# ---- traffic lights ------------------------------------------------------------------------------


class _Lights:
    """States of traffic lights, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], path: Path) -> None:
        check_count(len(fields) + 1, MAX_STEPS + 1, "steps of traffic lights", path)
        self.step = np.zeros(0, np.int64)
        self.lane = np.zeros(0, np.int64)
        self.state = np.zeros(0, np.uint8)
        self.point = np.zeros((0, 3))
        if not fields:
            return
        runs = Runs(content, *_region(fields), _LIGHT_LAYOUTS)
        lights = _Repeated(runs, 1, _read_light, MAX_LIGHTS)
        counts = []
        for field in fields:
            before = lights.count
            lights.collect(*read_span(field))
            counts.append(lights.count - before)
        self.step = np.arange(len(fields)).repeat(counts)

        table = np.zeros((len(runs.position), 5))
        for layout, lane_bytes in enumerate(_LANE_BYTES):
            values = runs.values(layout, _LIGHT_DTYPES[layout])
            weight = 128 ** np.arange(lane_bytes)
            lane = (values["lane"] & 0x7F) @ weight
            columns = [lane, *(values[name] for name in ("state", "x", "y", "z"))]
            table[runs.layout == layout] = np.stack(columns, -1)
        others = np.array(lights.others, np.float64).reshape(-1, 5)
        rows = lights.take(table, others)
        self.lane = rows[:, 0].astype(np.int64)
        self.state = rows[:, 1].astype(np.uint8)
        self.point = rows[:, 2:]


def _read_light(data: bytes, start: int, end: int) -> tuple[float, ...]:
    """Lane, state and stop point of a `TrafficSignalLaneState`."""
    lane = state = 0
    point: tuple[float, ...] = (0.0, 0.0, 0.0)
    for field in read_fields(data, start, end):
        if field[0] == 1:
            lane = read_number(field)
        elif field[0] == 2:
            state = read_number(field)
        elif field[0] == 3:
            point = _read_point(data, *read_span(field))
    if not (abs(lane) < 1 << 53 and 0 <= state < 256):
        raise WireError(f"lane_states: lane {lane}, state {state}")
    return (float(lane), float(state), *point)
