"""Small Waymo records, and the official messages as the `protobuf` package reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from data_prep.readers.waymo.tfrecord import frame_record
from trajformer.scenes.wire import write_bytes, write_double, write_float, write_number

STEPS = 91
CORNER = np.array([-7800.0, 2300.0, 12.0])
CAR, EGO, WALKER, LATE = 11, 12, 13, 14  # ids of tracks
LANE_A, LANE_B, EDGE, LINE, CROSSWALK, STOP = 101, 102, 103, 104, 105, 106  # of features


def state(x: float, y: float, velocity: tuple[float, float], **more: float) -> bytes:
    """A valid state, with its fields in the official order."""
    heading = float(np.arctan2(velocity[1], velocity[0]))
    values = {"length": 4.5, "width": 2.0, "height": 1.5, "heading": heading} | more
    point = CORNER + np.array([x, y, 0.0])
    content = b"".join(write_double(2 + axis, point[axis]) for axis in range(3))
    numbers = [values["length"], values["width"], values["height"], values["heading"], *velocity]
    content += b"".join(write_float(5 + i, value) for i, value in enumerate(numbers))
    return content + write_number(11, 1)


def track(
    number: int,
    kind: int,
    begin: tuple[float, float],
    velocity: tuple[float, float],
    seen: range = range(STEPS),
    steps: int = STEPS,
) -> bytes:
    """A track at constant velocity, m/s; steps that are not seen have a height only."""
    content = write_number(1, number) + write_number(2, kind)
    for step in range(steps):
        x, y = np.array(begin) + 0.1 * step * np.array(velocity)
        one = write_double(4, 3.0) + write_number(11, 0)
        if step in seen:
            one = state(x, y, velocity)
        content += write_bytes(3, one)
    return content


def point(x: float, y: float) -> bytes:
    """A point of the map."""
    position = CORNER + np.array([x, y, 0.0])
    return b"".join(write_double(1 + axis, position[axis]) for axis in range(3))


def points(number: int, *ends: tuple[float, float], count: int = 41) -> bytes:
    """A straight line between two points as a repeated field."""
    line = np.linspace(*ends, count)
    return b"".join(write_bytes(number, point(x, y)) for x, y in line)


def lane(kind: int, begin: float, end: float, links: bytes) -> bytes:
    """A lane along the x axis."""
    content = write_double(1, 35.0) + write_number(2, kind)
    return content + points(8, (begin, 0.0), (end, 0.0)) + links


def features() -> list[bytes]:
    """Two lanes, an edge, a line, a crosswalk, a stop sign and a driveway."""
    to_b = write_bytes(10, b"\x66") + write_bytes(13, write_number(3, EDGE))
    to_a = write_bytes(9, b"\x65") + write_bytes(11, write_number(1, LANE_A))
    square = [(5.0, -3.0), (8.0, -3.0), (8.0, 3.0), (5.0, 3.0)]
    ring = b"".join(write_bytes(1, point(x, y)) for x, y in square)
    messages = {
        LANE_A: write_bytes(3, lane(2, -20.0, 0.0, to_b)),
        LANE_B: write_bytes(3, lane(3, 0.0, 20.0, to_a)),
        EDGE: write_bytes(5, write_number(1, 2) + points(2, (-20.0, 5.0), (20.0, 5.0))),
        LINE: write_bytes(4, write_number(1, 6) + points(2, (-20.0, 2.0), (20.0, 2.0))),
        CROSSWALK: write_bytes(8, ring),
        STOP: write_bytes(7, write_number(1, LANE_B) + write_bytes(2, point(1.0, 0.0))),
        107: write_bytes(10, ring),
    }
    return [write_number(1, number) + content for number, content in messages.items()]


def light(lane_id: int, number: int) -> bytes:
    """A state of a traffic light."""
    content = write_number(1, lane_id) + write_number(2, number) + write_bytes(3, point(0.0, 0.0))
    return write_bytes(1, content)


def scenario(name: str = "scene", steps: int = STEPS, predict: tuple[int, ...] = (0, 2)) -> bytes:
    """A car, the ego car, a walker, and a car that appears after the present."""
    tracks = [
        track(CAR, 1, (-15.0, 0.0), (2.0, 0.0), steps=steps),
        track(EGO, 1, (-5.0, 0.0), (1.0, 0.0), steps=steps),
        track(WALKER, 2, (6.0, -4.0), (0.0, 1.0), seen=range(3, 60), steps=steps),
        track(LATE, 1, (10.0, 0.0), (1.0, 0.0), seen=range(20, 91), steps=steps),
    ]
    content = b"".join(write_double(1, 0.1 * step) for step in range(steps))
    content += b"".join(write_bytes(2, each) for each in tracks)
    content += write_bytes(5, name.encode()) + write_number(6, 1)
    for step in range(steps):
        content += write_bytes(7, light(LANE_A, 4 if step < 8 else 6) + light(999, 1))
    content += b"".join(write_bytes(8, each) for each in features())
    content += write_number(10, 10) + write_number(4, WALKER) + write_number(4, CAR)
    for index in predict:
        content += write_bytes(11, write_number(1, index) + write_number(2, 2))
    return content


def tiny(name: str) -> bytes:
    """A record of a single car, for tests of many records."""
    return _TINY + write_bytes(5, name.encode())


_TINY = b"".join(write_double(1, 0.1 * step) for step in range(STEPS))
_TINY += write_bytes(2, track(CAR, 1, (0.0, 0.0), (5.0, 0.0)))
_TINY += write_number(10, 10) + write_bytes(11, write_number(1, 0))


def write(path: Path, *contents: bytes) -> None:
    """A TFRecord file of some records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(frame_record(content) for content in contents))


# ---- the protobuf package ------------------------------------------------------------------------

_OPTIONAL = 1
_REPEATED = 3
_TYPES = {"double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9}
# Field numbers as published; enums are read as int32.
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ObjectState": {
        "center_x": (2, "double"),
        "center_y": (3, "double"),
        "center_z": (4, "double"),
        "length": (5, "float"),
        "width": (6, "float"),
        "height": (7, "float"),
        "heading": (8, "float"),
        "velocity_x": (9, "float"),
        "velocity_y": (10, "float"),
        "valid": (11, "bool"),
    },
    "Track": {"id": (1, "int32"), "object_type": (2, "int32"), "states": (3, "*ObjectState")},
    "MapPoint": {"x": (1, "double"), "y": (2, "double"), "z": (3, "double")},
    "LaneState": {"lane": (1, "int64"), "state": (2, "int32"), "stop_point": (3, "MapPoint")},
    "DynamicMapState": {"lane_states": (1, "*LaneState")},
    "Neighbor": {
        "feature_id": (1, "int64"),
        "self_start_index": (2, "int32"),
        "self_end_index": (3, "int32"),
        "neighbor_start_index": (4, "int32"),
        "neighbor_end_index": (5, "int32"),
    },
    "Boundary": {
        "lane_start_index": (1, "int32"),
        "lane_end_index": (2, "int32"),
        "boundary_feature_id": (3, "int64"),
        "boundary_type": (4, "int32"),
    },
    "Lane": {
        "speed_limit_mph": (1, "double"),
        "type": (2, "int32"),
        "interpolating": (3, "bool"),
        "polyline": (8, "*MapPoint"),
        "entry_lanes": (9, "*int64"),
        "exit_lanes": (10, "*int64"),
        "left_neighbors": (11, "*Neighbor"),
        "right_neighbors": (12, "*Neighbor"),
        "left_boundaries": (13, "*Boundary"),
        "right_boundaries": (14, "*Boundary"),
    },
    "Line": {"type": (1, "int32"), "polyline": (2, "*MapPoint")},
    "StopSign": {"lane": (1, "*int64"), "position": (2, "MapPoint")},
    "Area": {"polygon": (1, "*MapPoint")},
    "MapFeature": {
        "id": (1, "int64"),
        "lane": (3, "Lane"),
        "road_line": (4, "Line"),
        "road_edge": (5, "Line"),
        "stop_sign": (7, "StopSign"),
        "crosswalk": (8, "Area"),
        "speed_bump": (9, "Area"),
        "driveway": (10, "Area"),
    },
    "RequiredPrediction": {"track_index": (1, "int32"), "difficulty": (2, "int32")},
    "Scenario": {
        "timestamps_seconds": (1, "*double"),
        "tracks": (2, "*Track"),
        "objects_of_interest": (4, "*int32"),
        "scenario_id": (5, "string"),
        "sdc_track_index": (6, "int32"),
        "dynamic_map_states": (7, "*DynamicMapState"),
        "map_features": (8, "*MapFeature"),
        "current_time_index": (10, "int32"),
        "tracks_to_predict": (11, "*RequiredPrediction"),
    },
}


def scenario_class() -> Any:
    """The class of `Scenario` messages."""
    return message_class(MESSAGES, "Scenario")


def message_class(messages: dict[str, dict[str, tuple[int, str]]], root: str) -> Any:
    """A class of messages, made by the `protobuf` package; `*` marks repeated fields."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="waymo.proto", package="waymo", syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            label = _REPEATED if kind.startswith("*") else _OPTIONAL
            kind = kind.removeprefix("*")
            field = message.field.add(name=field_name, number=number, label=label)
            field.type = _TYPES.get(kind, 11)
            if kind not in _TYPES:
                field.type_name = f".waymo.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"waymo.{root}"))
