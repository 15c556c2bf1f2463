"""One record of the Waymo Open Motion data set: a `Scenario` message as arrays.

Field numbers come from `waymo.open_dataset.Scenario` and `MapFeature`. Unknown fields are
skipped, and fields may have any order. Letters: A tracks, L steps, M map features, P points, N
states of traffic lights.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from data_prep.readers.columns import check_count
from data_prep.readers.waymo import tfrecord
from data_prep.readers.waymo.features import Features, Links, read_point
from data_prep.readers.waymo.messages import read_messages, spans
from data_prep.readers.waymo.repeated import Repeated, region
from data_prep.readers.waymo.runs import Layout, Runs
from trajformer.errors import SceneError
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.wire import (
    VARINT,
    Field,
    WireError,
    read_double,
    read_fields,
    read_float,
    read_number,
    read_numbers,
    read_span,
)

MAX_STEPS = 1_000
MAX_TRACKS = 10_000
MAX_CELLS = 1_000_000  # steps of all tracks
MAX_LIGHTS = 1_000_000  # states

# Field numbers of `Scenario`.
_TIMESTAMPS, _TRACKS, _INTEREST, _ID, _EGO = 1, 2, 4, 5, 6
_LIGHTS, _FEATURES, _CURRENT, _PREDICT = 7, 8, 10, 11
_STATES = 3  # of `Track`

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
        # The first of three positions, three sizes and two velocities.
        "names": ["x", "length", "heading", "velocity_x", "valid"],
        "formats": ["<f8", "<f4", "<f4", "<f4", "u1"],
        "offsets": [3, 30, 45, 50, 60],
        "itemsize": 61,
    }
)
_STATE_BYTES = np.dtype((np.void, _STATE.itemsize))
_GROUPS = {
    "x": (3, 9),
    "length": (3, 5),
    "velocity_x": (2, 5),
}  # numbers, bytes from one to the next
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
    feature_id: np.ndarray  # int64 [M]
    feature_kind: np.ndarray  # int64 [M], one of `FEATURE_KINDS`
    # int64 [M]; lanes: 0 undefined, 1 freeway, 2 surface street, 3 bike lane; road lines and edges
    feature_type: np.ndarray
    feature_span: np.ndarray  # int64 [M, 2], start and end of the feature in `content`
    feature_offset: np.ndarray  # int64 [M + 1], feature m has point[offset[m]:offset[m + 1]]
    point: np.ndarray  # float64 [P, 3], metres
    interpolating: np.ndarray  # bool [M], a lane connects two others, as in intersections
    links: Links  # between lanes
    stop_lanes: np.ndarray  # int64, ids of the lanes with a stop sign
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
    features = Features(content, parts.get(_FEATURES, []), path)
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
        track_type=tracks.track_type,
        position=tracks.position,
        size=tracks.size,
        heading=tracks.heading,
        velocity=tracks.velocity,
        valid=tracks.valid,
        feature_id=features.feature_id,
        feature_kind=features.kind,
        feature_type=features.type,
        feature_span=features.span,
        feature_offset=features.offset,
        point=features.point,
        interpolating=features.interpolating,
        links=features.links,
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


# ---- tracks ------------------------------------------------------------------------------------


class _Tracks:
    """Tracks and their states, see `Record`."""

    def __init__(self, content: bytes, fields: list[Field], steps: int, path: Path) -> None:
        count = len(fields)
        check_count(count, MAX_TRACKS, "tracks", path)
        check_count(count * steps, MAX_CELLS, "steps of all tracks", path)
        start, end = spans(fields)
        runs = Runs(content, *region(start, end), _STATE_LAYOUTS)
        parts = read_messages(content, start, end, runs, _STATES)
        self.track_id = parts.select(parts.number == 1).last_numbers(0, count).tolist()
        track_type = parts.select(parts.number == 2).last_numbers(0, count)
        is_type = (track_type >= 0) & (track_type < 256)
        self.track_type = np.where(is_type, track_type, 0).astype(np.uint8)

        states = Repeated(parts.select(parts.number == _STATES), runs, _read_state, MAX_CELLS)
        num_states = np.diff(states.offsets(count))
        wrong = (num_states != steps).nonzero()[0]
        if len(wrong):
            problem = f"{num_states[wrong[0]]} states for {steps} timestamps"
            raise WireError(f"tracks[{wrong[0]}]: {problem}")
        self._arrange(states, runs, count, steps)

    def _arrange(self, states: Repeated, runs: Runs, tracks: int, steps: int) -> None:
        """The states as arrays [A, L, ...]; cells without a valid state are zero."""
        parts = [runs.values(0, _STATE), _state_rows(states.others), np.zeros(1, _STATE)]
        # Plain bytes are copied faster than fields.
        table = np.concatenate([part.view(_STATE_BYTES) for part in parts])
        is_valid = table.view(_STATE)["valid"] != 0
        # The row of each message; those that are not valid have the last one, of zeros.
        zeros = len(table) - 1
        row_of = np.full(len(runs.position) + len(states.others), zeros)
        has_row = np.append(runs.layout == 0, np.ones(len(states.others), bool))
        row_of[has_row] = np.where(is_valid, np.arange(len(table)), zeros)[:-1]

        row = row_of[states.numbers()]
        cell = table.take(row).view(_STATE)
        shape = (tracks, steps, -1)
        self.valid = is_valid.take(row).reshape(tracks, steps)
        self.position = _numbers(cell, "x").copy().reshape(shape)
        self.size = _numbers(cell, "length").copy().reshape(shape)
        self.heading = cell["heading"].copy().reshape(tracks, steps)
        self.velocity = _numbers(cell, "velocity_x").copy().reshape(shape)


def _numbers(states: np.ndarray, name: str) -> np.ndarray:
    """The numbers [n, 2 or 3] of a group in rows of `_STATE`: a view."""
    count, distance = _GROUPS[name]
    return as_strided(states[name], (len(states), count), (_STATE.itemsize, distance))


def _state_rows(others: list[tuple[float, ...]]) -> np.ndarray:
    """Rows of `_STATE` for states with other layouts, from `_read_state`."""
    rows = np.zeros(len(others), _STATE)
    values = np.array(others, np.float64).reshape(-1, 10)
    _numbers(rows, "x")[:] = values[:, :3]
    _numbers(rows, "length")[:] = values[:, 3:6]
    rows["heading"] = values[:, 6]
    _numbers(rows, "velocity_x")[:] = values[:, 7:9]
    rows["valid"] = values[:, 9]
    return rows


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
        start, end = spans(fields)
        runs = Runs(content, *region(start, end), _LIGHT_LAYOUTS)
        parts = read_messages(content, start, end, runs, 1)
        lights = Repeated(parts.select(parts.number == 1), runs, _read_light, MAX_LIGHTS)
        self.step = np.arange(len(fields)).repeat(np.diff(lights.offsets(len(fields))))

        table = np.zeros((len(runs.position), 5))
        for layout, lane_bytes in enumerate(_LANE_BYTES):
            values = runs.values(layout, _LIGHT_DTYPES[layout])
            if not len(values):
                continue
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
            point = read_point(data, *read_span(field))
    if abs(lane) >= 1 << 53:
        raise WireError(f"lane_states: lane {lane}, expected at most 2^53")
    # A state of a later version is unknown.
    state = state if 0 <= state < 256 else 0
    return (float(lane), float(state), *point)
