"""One file of a ScenarioNet data set: tracks, map and traffic lights of a scenario."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.readers.columns import check_count
from data_prep.readers.plain_pickle import load_plain_pickle
from data_prep.readers.row_check import MAX_UNUSABLE
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.geometry import wrap
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import (
    MAX_ORIGIN_M,
    MAX_SIZE_M,
    AgentKind,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
)
from trajformer.scenes.vector_map import VectorMap, build_map

MAX_BYTES = 64 << 20  # of a file; a scenario has about 1 MB
MAX_UNPACKED = 512 << 20  # a scenario has about 5 MB
MAX_UNUSABLE_TRACKS = 0.5  # the largest fraction; a scene has few of them
# A value may occur many times in a file, so its size limits none of these.
MAX_STEPS = 10_000
MAX_CELLS = 1_000_000
MAX_FEATURES = 20_000
MAX_POINTS = 1_000_000
MAX_LINKS = 32  # of one lane and kind
EGO_ID = "AV"  # of the ego car in scenes of all data sets

AGENT_KINDS = {
    "VEHICLE": AgentKind.VEHICLE,
    "PEDESTRIAN": AgentKind.PEDESTRIAN,
    "CYCLIST": AgentKind.CYCLIST,  # also motorcyclists of nuScenes
    "TRAFFIC_CONE": AgentKind.CONSTRUCTION,
    "TRAFFIC_BARRIER": AgentKind.CONSTRUCTION,
    "TRAFFIC_OBJECT": AgentKind.STATIC,
    "OTHER": AgentKind.UNKNOWN,
    "UNSET": AgentKind.UNKNOWN,
}
# Kind of each map feature; features without a kind are ignored.
FEATURES: dict[str, PolylineKind | None] = {
    "LANE_SURFACE_STREET": PolylineKind.LANE_VEHICLE,
    "LANE_SURFACE_UNSTRUCTURE": PolylineKind.LANE_VEHICLE,
    "LANE_FREEWAY": PolylineKind.LANE_VEHICLE,
    "LANE_UNKNOWN": PolylineKind.LANE_VEHICLE,
    "LANE_BIKE_LANE": PolylineKind.LANE_BIKE,
    "CROSSWALK": PolylineKind.CROSSWALK,
    "ROAD_LINE_BROKEN_SINGLE_WHITE": PolylineKind.ROAD_LINE,
    "ROAD_LINE_SOLID_SINGLE_WHITE": PolylineKind.ROAD_LINE,
    "ROAD_LINE_SOLID_DOUBLE_WHITE": PolylineKind.ROAD_LINE,
    "ROAD_LINE_BROKEN_SINGLE_YELLOW": PolylineKind.ROAD_LINE,
    "ROAD_LINE_BROKEN_DOUBLE_YELLOW": PolylineKind.ROAD_LINE,
    "ROAD_LINE_SOLID_SINGLE_YELLOW": PolylineKind.ROAD_LINE,
    "ROAD_LINE_SOLID_DOUBLE_YELLOW": PolylineKind.ROAD_LINE,
    "ROAD_LINE_PASSING_DOUBLE_YELLOW": PolylineKind.ROAD_LINE,
    "UNKNOWN_LINE": PolylineKind.ROAD_LINE,
    "ROAD_EDGE_BOUNDARY": PolylineKind.ROAD_EDGE,
    "ROAD_EDGE_MEDIAN": PolylineKind.ROAD_EDGE,
    "ROAD_EDGE_SIDEWALK": PolylineKind.ROAD_EDGE,
    "UNKNOWN": PolylineKind.ROAD_EDGE,
    "STOP_SIGN": None,
    "SPEED_BUMP": None,
    "DRIVEWAY": None,
}
INTERSECTION_LANE = "LANE_SURFACE_UNSTRUCTURE"  # connects lanes across an intersection
LIGHTS = {
    "LANE_STATE_STOP": LightState.RED,
    "LANE_STATE_ARROW_STOP": LightState.RED,
    "LANE_STATE_CAUTION": LightState.YELLOW,
    "LANE_STATE_ARROW_CAUTION": LightState.YELLOW,
    "LANE_STATE_FLASHING_CAUTION": LightState.YELLOW,
    "LANE_STATE_GO": LightState.GREEN,
    "LANE_STATE_ARROW_GO": LightState.GREEN,
    "LANE_STATE_FLASHING_STOP": LightState.UNKNOWN,
    "LANE_STATE_UNKNOWN": LightState.UNKNOWN,
    **{f"TRAFFIC_LIGHT_{state.name}": state for state in LightState},
}
_LINKS = {
    "exit_lanes": EdgeKind.SUCCESSOR,
    "entry_lanes": EdgeKind.PREDECESSOR,
    "left_neighbor": EdgeKind.LEFT,
    "right_neighbor": EdgeKind.RIGHT,
}


class _StateField(NamedTuple):
    """A field of a track's state and its columns in the table of all fields."""

    column: int
    width: int
    limit: float  # largest absolute value


_STATE = {
    "position": _StateField(0, 2, MAX_ORIGIN_M),
    "heading": _StateField(2, 1, 1e3),
    "length": _StateField(3, 1, MAX_SIZE_M),
    "width": _StateField(4, 1, MAX_SIZE_M),
    "valid": _StateField(5, 1, 1.0),
}
_OPTIONAL = ("length", "width")


class Scenario(NamedTuple):
    """A scenario of L steps; invalid entries are zero."""

    time: np.ndarray  # float64 [L], seconds
    city: str
    agent_id: list[str]
    listed: list[str]  # ids of the tracks to predict; empty if the data set lists none
    kind: np.ndarray  # uint8 [A]
    is_ego: np.ndarray  # bool [A]
    position: np.ndarray  # float64 [A, L, 2], metres
    heading: np.ndarray  # float64 [A, L], radians
    size: np.ndarray  # float64 [A, L, 2], length and width in metres
    valid: np.ndarray  # bool [A, L]
    lanes: VectorMap  # `polyline_id` is the number of the feature in the file
    light_lane: list[int]  # feature of each light
    light_state: np.ndarray  # uint8 [N, L]


@cached_by_file(2)  # all windows of a scenario are read in sequence
def read_scenario(path: Path) -> Scenario:
    """Read a scenario; a SceneError names the file and the field that cannot be used."""
    data = load_plain_pickle(path, MAX_BYTES, MAX_UNPACKED)
    metadata = get_value(data, "metadata", dict, f"{path}: ")
    tracks = get_value(data, "tracks", dict, f"{path}: ")
    features = get_value(data, "map_features", dict, f"{path}: ")
    lights = get_value(data, "dynamic_map_states", dict, f"{path}: ")
    time = get_timestamps(metadata, f"{path}: metadata.")
    length = get_value(data, "length", int, f"{path}: ")
    if length != len(time):
        raise SceneError(f"{path}: length: {length}, metadata.ts has {len(time)} timestamps")

    listed: Any = ()
    if metadata.get("tracks_to_predict") is not None:
        listed = get_value(metadata, "tracks_to_predict", dict, f"{path}: metadata.")
    listed_ids = [str(name) for name in listed]
    needed = [*listed_ids, str(metadata.get("sdc_id"))]
    dropped = Counter[str]()
    agent_id, kinds, states = _tracks(tracks, needed, length, path, dropped)
    ego_id = _ego_id(metadata, agent_id, path)
    is_ego = np.array([name == ego_id for name in agent_id])
    # In nuScenes, the ego car's length and width are exchanged.
    states[is_ego, :, 3:5] = np.sort(states[is_ego, :, 3:5])[..., ::-1]

    number_of = {str(name): index for index, name in enumerate(features)}
    lanes = _map(features, number_of, path, dropped)
    light_lane, light_state = _lights(lights, number_of, length, path, dropped)
    report_dropped(path, dropped)
    city = metadata.get("map")
    return Scenario(
        time=time,
        city=city if type(city) is str else "",
        agent_id=agent_id,
        listed=listed_ids,
        kind=kinds,
        is_ego=is_ego,
        position=states[..., :2],
        heading=wrap(states[..., 2]),
        size=states[..., 3:5],
        valid=states[..., 5] != 0.0,
        lanes=lanes,
        light_lane=light_lane,
        light_state=light_state,
    )


# ---- values --------------------------------------------------------------------------------------


def get_value(parent: Any, key: str, kind: type, where: str) -> Any:
    """`parent[key]`; the SceneError for a missing value or a wrong type starts with `where`."""
    value = parent.get(key) if type(parent) is dict else None
    if isinstance(value, np.ndarray):
        value = np.asarray(value)  # of a subclass
    if type(value) is not kind:
        problem = "missing" if value is None else f"of type {type(value).__name__}"
        raise SceneError(f"{where}{key}: {problem}, expected {kind.__name__}")
    return value


def get_timestamps(metadata: dict[str, Any], where: str) -> np.ndarray:
    """Timestamps float64 [L] in seconds; the message of a SceneError starts with `where`."""
    time: Any = metadata.get("ts")
    if type(time) is list and all(type(value) in (int, float) for value in time):
        time = np.array(time, np.float64)
    is_numbers = isinstance(time, np.ndarray) and time.dtype.kind in "iuf" and time.ndim == 1
    if not is_numbers or not 2 <= len(time) <= MAX_STEPS:
        raise SceneError(f"{where}ts: expected 2 to {MAX_STEPS} timestamps")
    time = np.asarray(time, np.float64)
    is_wrong = ~(np.abs(time) < 1e12)
    if is_wrong.sum() > MAX_UNUSABLE * len(time):
        raise SceneError(f"{where}ts: timestamps are NaN or over 1e12, expected seconds")
    return np.where(is_wrong, np.nan, time)  # windows with such a step are refused


# ---- tracks --------------------------------------------------------------------------------------


def _tracks(
    tracks: dict[Any, Any],
    needed: Collection[str],
    length: int,
    path: Path,
    dropped: Counter[str],
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Ids, AgentKind uint8 [A] and states float64 [A, L, 6] of the usable tracks.

    The others and unknown types are counted in `dropped`. SceneError: most tracks or one of the ids
    `needed` are unusable.
    """
    check_count(len(tracks) * length, MAX_CELLS, "steps of all tracks", path)
    agent_id = []
    kinds = []
    states = []
    first_problem = ""
    for name, track in tracks.items():
        where = f"{path}: tracks[{one_line(str(name)[:40])}]."
        try:
            word = get_value(track, "type", str, "")
            state = _states(get_value(track, "state", dict, ""), length, "state.", dropped)
        except SceneError as error:
            # A scene is not right without a target or the ego car.
            if str(name) in needed:
                raise SceneError(f"{where}{error}") from error
            first_problem = first_problem or f"{where}{error}"
            dropped[f"tracks: {error}"] += 1
            continue
        if word not in AGENT_KINDS:
            dropped[f"tracks: unknown type {one_line(word[:40])!r}"] += 1
        agent_id.append(str(name))
        kinds.append(AGENT_KINDS.get(word, AgentKind.UNKNOWN))
        states.append(state)
    if len(states) < (1 - MAX_UNUSABLE_TRACKS) * len(tracks):
        raise SceneError(first_problem)
    return agent_id, np.array(kinds, np.uint8), np.array(states)


def _ego_id(metadata: dict[str, Any], agent_id: list[str], path: Path) -> str | None:
    """Id of the ego car; a simulation may have none."""
    value = metadata.get("sdc_id")
    ego_id = str(value) if type(value) in (str, int) else None
    if ego_id is not None and ego_id not in agent_id:
        raise SceneError(f"{path}: metadata.sdc_id: no track {one_line(ego_id[:40])!r}")
    if EGO_ID in agent_id and ego_id != EGO_ID:
        raise SceneError(
            f"{path}: tracks[{EGO_ID}]: this id is reserved for the ego car (metadata.sdc_id)"
        )
    return ego_id


def _states(state: dict[str, Any], length: int, where: str, dropped: Counter[str]) -> np.ndarray:
    """x, y, heading, length, width and valid of a track, float64 [L, 6].

    All are zero where the track is not valid; an unknown size is zero. A few valid steps without
    usable numbers become invalid, and are counted in `dropped`. SceneError: many are unusable.
    """
    table = np.zeros((length, 6))
    for key, field in _STATE.items():
        if key in _OPTIONAL and key not in state:
            continue
        values = get_value(state, key, np.ndarray, where)
        is_table = values.dtype.kind != "U" and values.ndim in (1, 2) and len(values) == length
        if not is_table or values.size < length * field.width:
            raise SceneError(
                f"{where}{key}: {values.dtype} of shape {values.shape}, "
                f"expected numbers [{length}, {field.width}]"
            )
        columns = slice(field.column, field.column + field.width)
        table[:, columns] = values.reshape(length, -1)[:, : field.width]

    is_invalid = table[:, 5] == 0.0
    table[is_invalid] = 0.0  # invalid entries may have any value
    max_wrong = MAX_UNUSABLE * np.count_nonzero(~is_invalid)
    is_dropped = np.zeros(length, bool)
    for key, field in _STATE.items():
        columns = slice(field.column, field.column + field.width)
        is_wrong = ~(np.abs(table[:, columns]) <= field.limit).all(1)  # also NaN
        if key in ("length", "width", "valid"):
            is_wrong |= table[:, field.column] < 0.0
        if key == "valid":
            is_wrong |= ~np.isin(table[:, field.column], (0.0, 1.0))
        is_wrong &= ~is_dropped
        if is_wrong.any():
            cause = f"{where}{key}: NaN, negative or over {field.limit:g} at a valid step"
            is_dropped |= is_wrong
            if np.count_nonzero(is_dropped) > max_wrong:
                raise SceneError(cause)
            dropped[f"tracks: {cause}"] += int(np.count_nonzero(is_wrong))
    table[is_dropped] = 0.0
    return table


# ---- map and traffic lights ----------------------------------------------------------------------


def _map(
    features: dict[Any, Any], number_of: dict[str, int], path: Path, dropped: Counter[str]
) -> VectorMap:
    """The map; features with a single point are left out, as Waymo has some.

    `number_of` has the number of each feature by its id. Unusable features are counted in
    `dropped`.
    """
    check_count(len(features) + 1, MAX_FEATURES, "map_features", path)
    heads: list[tuple[int, int, int]] = []  # number, kind, flags
    lines: list[np.ndarray] = []
    links: list[tuple[int, int | None, int]] = []
    num_points = 0
    for name, feature in features.items():
        try:
            word = get_value(feature, "type", str, "")
            if word not in FEATURES:
                raise SceneError(f"unknown type {one_line(word[:40])!r}")
            kind = FEATURES[word]
            if kind is None:
                continue
            key = "polyline" if "polyline" in feature else "polygon"
            line = _points(feature, key)
        except SceneError as error:
            dropped[f"map_features: {error}"] += 1
            continue
        num_points += len(line)
        check_count(num_points + 1, MAX_POINTS, "points", path)
        if len(line) < 2:
            continue
        is_ring = key == "polygon" or kind == PolylineKind.CROSSWALK
        if is_ring and (line[0] != line[-1]).any():
            line = np.concatenate([line, line[:1]])
        number = number_of[str(name)]
        flags = LaneFlag.INTERSECTION if word == INTERSECTION_LANE else LaneFlag.NONE
        heads.append((number, int(kind), int(flags)))
        lines.append(line)
        if kind <= PolylineKind.LANE_BIKE:
            for other, link in _links(feature, dropped):
                links.append((number, number_of.get(other), int(link)))
    lengths = [len(line) for line in lines]
    points = np.concatenate([np.zeros((0, 2)), *lines])
    return build_map(heads, lengths, points, links)


def _points(feature: dict[str, Any], key: str) -> np.ndarray:
    """Points float64 [P, 2] of a feature in the city frame."""
    line = get_value(feature, key, np.ndarray, "")
    is_table = line.dtype.kind in "iuf" and line.ndim == 2 and line.shape[1] >= 2
    if not is_table or not np.abs(line).max(initial=0) <= MAX_ORIGIN_M:
        raise SceneError(
            f"{key}: no table of numbers, or NaN or over {MAX_ORIGIN_M:g} m, expected points [P, 2]"
        )
    points: np.ndarray = line[:, :2].astype(np.float64)
    return points


def _links(feature: dict[str, Any], dropped: Counter[str]) -> list[tuple[str, EdgeKind]]:
    """The ids of the linked lanes of a lane; unusable fields are counted in `dropped`."""
    links = []
    for field, kind in _LINKS.items():
        others = feature.get(field)
        if others is None:
            continue
        if type(others) not in (list, tuple) or len(others) > MAX_LINKS:
            dropped[f"map_features: {field}: expected a list of at most {MAX_LINKS} lanes"] += 1
            continue
        for other in others:
            if type(other) is dict:  # of Waymo
                other = other.get("feature_id")
            if type(other) in (str, int):
                links.append((str(other), kind))
    return links


def _lights(
    lights: dict[Any, Any],
    number_of: dict[str, int],
    length: int,
    path: Path,
    dropped: Counter[str],
) -> tuple[list[int], np.ndarray]:
    """The feature of each traffic light and its states, uint8 [N, L].

    Unusable lights and states are counted in `dropped`.
    """
    check_count(len(lights) * length + 1, MAX_CELLS, "states of traffic lights", path)
    lanes: list[int] = []
    rows: list[list[int]] = []
    for name, light in lights.items():
        try:
            states = _light_states(light, length, dropped)
        except SceneError as error:
            dropped[f"dynamic_map_states: {error}"] += 1
            continue
        lane = light.get("lane", name)
        if type(lane) in (str, int) and str(lane) in number_of:
            lanes.append(number_of[str(lane)])
            rows.append(states)
    return lanes, np.array(rows, np.uint8).reshape(len(lanes), length)


def _light_states(light: Any, length: int, dropped: Counter[str]) -> list[int]:
    """LightState of a traffic light at each of L steps; an unknown word is an unknown state."""
    words = get_value(light, "state", dict, "").get("object_state")
    if isinstance(words, np.ndarray) and words.ndim == 1:
        words = words.tolist()
    if type(words) not in (list, tuple) or len(words) != length:
        raise SceneError("state.object_state: expected a state for each timestamp")
    states = []
    for word in words:
        if word is None:
            states.append(int(LightState.UNKNOWN))
        elif type(word) is str and word in LIGHTS:
            states.append(int(LIGHTS[word]))
        elif type(word) is str and word.upper() in LightState.__members__:  # such as green
            states.append(int(LightState[word.upper()]))
        else:
            shown = one_line(word[:40]) if type(word) is str else type(word).__name__
            dropped[f"dynamic_map_states: state.object_state: unknown value {shown!r}"] += 1
            states.append(int(LightState.UNKNOWN))
    return states
