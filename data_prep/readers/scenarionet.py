"""ScenarioNet, a format for scenes of Waymo, nuScenes, nuPlan, Lyft, Argoverse 2 and simulators, to `Scene`.

`RAW/dataset_mapping.pkl` maps the file name of each scenario to its folder, `RAW/dataset_summary.pkl` to its metadata. A scenario
has tracks over all its steps, lanes, lines and crossings of the map, and states of traffic lights. A scene is a window of it.

Stored velocities are not used: in nuScenes they are differences to the *next* step, so the last observed one would contain
the future. The velocity is the difference to the previous step. nuScenes positions are interpolated between keyframes 0.5 s
apart, at steps 0, 5, 10, ...: with the default of 21 observed steps, the last one is a keyframe; after other steps, the observed
positions point at the next keyframe.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers.columns import Agents, check_count
from data_prep.readers.kinematics import difference_velocity
from data_prep.readers.plain_pickle import load_plain_pickle
from data_prep.readers.raw_file import cached_by_file, printable
from data_prep.readers.vector_map import VectorMap, build_map
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import (
    MAX_ORIGIN_M,
    MAX_SIZE_M,
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
)

ROOT_SPLIT = "scenarios"  # the split of a data set directly in the raw folder
MAPPING, SUMMARY = "dataset_mapping.pkl", "dataset_summary.pkl"
EGO_ID = "AV"  # of the ego car in scenes of all data sets
MAX_BYTES, MAX_UNPACKED = 64 << 20, 512 << 20  # of a file; a scenario has about 1 MB and 5 MB
MAX_STEPS, MAX_CELLS, MAX_FEATURES, MAX_POINTS = (
    10_000,
    1_000_000,
    20_000,
    1_000_000,
)  # a value may occur many times
MAX_LINKS = 32  # of one lane and kind
CLOCK_TOLERANCE = 0.2  # of a step between timestamps, relative to the period
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
_ROAD_USERS = (AgentKind.VEHICLE, AgentKind.PEDESTRIAN, AgentKind.CYCLIST)
_LINES = "BROKEN_SINGLE_WHITE SOLID_SINGLE_WHITE SOLID_DOUBLE_WHITE BROKEN_SINGLE_YELLOW BROKEN_DOUBLE_YELLOW SOLID_SINGLE_YELLOW"
_LINES += " SOLID_DOUBLE_YELLOW PASSING_DOUBLE_YELLOW"
FEATURES: dict[str, tuple[PolylineKind, LaneFlag] | None] = {
    "LANE_SURFACE_STREET": (PolylineKind.LANE_VEHICLE, LaneFlag.NONE),
    "LANE_SURFACE_UNSTRUCTURE": (
        PolylineKind.LANE_VEHICLE,
        LaneFlag.INTERSECTION,
    ),  # connects lanes across an intersection
    "LANE_FREEWAY": (PolylineKind.LANE_VEHICLE, LaneFlag.NONE),
    "LANE_UNKNOWN": (PolylineKind.LANE_VEHICLE, LaneFlag.NONE),
    "LANE_BIKE_LANE": (PolylineKind.LANE_BIKE, LaneFlag.NONE),
    "CROSSWALK": (PolylineKind.CROSSWALK, LaneFlag.NONE),
    **{f"ROAD_LINE_{line}": (PolylineKind.ROAD_LINE, LaneFlag.NONE) for line in _LINES.split()},
    "UNKNOWN_LINE": (PolylineKind.ROAD_LINE, LaneFlag.NONE),
    **{
        f"ROAD_EDGE_{edge}": (PolylineKind.ROAD_EDGE, LaneFlag.NONE)
        for edge in ("BOUNDARY", "MEDIAN", "SIDEWALK")
    },
    "UNKNOWN": (PolylineKind.ROAD_EDGE, LaneFlag.NONE),
    **dict.fromkeys(("STOP_SIGN", "SPEED_BUMP", "DRIVEWAY")),  # ignored
}
_LINKS = {
    "exit_lanes": EdgeKind.SUCCESSOR,
    "entry_lanes": EdgeKind.PREDECESSOR,
    "left_neighbor": EdgeKind.LEFT,
    "right_neighbor": EdgeKind.RIGHT,
}
_WAYMO = {"STOP": LightState.RED, "CAUTION": LightState.YELLOW, "GO": LightState.GREEN}
LIGHTS = {
    f"LANE_STATE_{arrow}{name}": state for name, state in _WAYMO.items() for arrow in ("", "ARROW_")
}
LIGHTS |= {
    "LANE_STATE_FLASHING_STOP": LightState.UNKNOWN,
    "LANE_STATE_FLASHING_CAUTION": LightState.YELLOW,
}
LIGHTS |= {f"TRAFFIC_LIGHT_{state.name}": state for state in LightState} | {
    "LANE_STATE_UNKNOWN": LightState.UNKNOWN
}


@dataclass(frozen=True)
class ScenarioNet(Config, limits={"period_s": (0.001, 60.0), "map_radius_m": (0, np.inf)}):
    """Reader of ScenarioNet data sets.

    Attributes:
        history_s: length of the observed part of a scene, seconds.
        future_s: length of the part to predict, seconds.
        stride_s: seconds between the starts of scenes of a scenario; 0 = one scene, at the start of the scenario.
        period_s: seconds between steps; scenarios with other timestamps are skipped.
        scored: `listed` = the tracks to predict of the scenario's metadata; `all` = vehicles, cyclists and pedestrians except
            the ego car. Both only if they are seen in the last observed step.
        map_radius_m: polylines within this distance of a scored agent or the ego car in the last observed step are kept.
    """

    history_s: float = 2.1
    future_s: float = 6.0
    stride_s: float = 0.0
    period_s: float = 0.1
    scored: Literal["listed", "all"] = "listed"
    map_radius_m: float = 100.0
    name: ClassVar[str] = "scenarionet"
    layout: ClassVar[str] = (
        "RAW/[<split>/]dataset_mapping.pkl, dataset_summary.pkl and the folders of scenarios that these name"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the data set

    def __post_init__(self) -> None:
        """Check that the times are whole steps."""
        super().__post_init__()
        for option, minimum in (("history_s", 2), ("future_s", 1), ("stride_s", 0)):
            steps = getattr(self, option) / self.period_s
            if not (minimum - 1e-6 < steps < MAX_STEPS and abs(steps - round(steps)) < 1e-6):
                limit = f"a multiple of {self.period_s:g} s (period_s), at least {minimum * self.period_s:g} s"
                raise ConfigError(option, f"{getattr(self, option):g} s, expected {limit}")

    def splits(self, raw: Path) -> list[str]:
        """`scenarios` for a data set directly in raw, else the sub-folders that are data sets."""
        return (
            [ROOT_SPLIT]
            if (raw / MAPPING).is_file()
            else sorted(path.parent.name for path in raw.glob(f"*/{MAPPING}"))
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The windows of each scenario, in the order of the file names; an unreadable list is one input, the mapping."""
        folder = raw if split == ROOT_SPLIT and (raw / MAPPING).is_file() else raw / split
        try:
            return list(self._windows(folder))
        except SceneError:
            return [Input(folder / MAPPING)]

    def _windows(self, folder: Path) -> Iterator[Input]:
        files, stride = _scenario_files(folder / MAPPING), self._steps(self.stride_s)
        if not stride:
            yield from (Input(path) for path in files)
            return
        size = self._steps(self.history_s + self.future_s)
        summary = load_plain_pickle(folder / SUMMARY, MAX_BYTES, MAX_UNPACKED)
        for path in files:
            metadata = _get(summary, path.name, dict, f"{folder / SUMMARY}: ")
            length = len(_timestamps(metadata, f"{folder / SUMMARY}: {printable(path.name)}."))
            starts = range(0, length - size + 1, stride) or range(1)
            yield from (Input(path, f"{start:03d}of{length:03d}") for start in starts)

    def _steps(self, seconds: float) -> int:
        return round(seconds / self.period_s)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window; SceneError also if the scenario is shorter, has another clock, or no agent to score."""
        path = item.path
        if path.name == MAPPING:
            raise SceneError(
                f"{path}: {len(list(self._windows(path.parent)))} windows now, the list was unreadable before"
            )
        scenario, history, future = (
            _parse(path),
            self._steps(self.history_s),
            self._steps(self.future_s),
        )
        first, _, length = item.part.partition("of")
        start, total = int(first or 0), len(scenario.time)
        if length and int(length) != total:
            raise SceneError(
                f"{path}: length: {total} steps, {SUMMARY} has {int(length)}: make the summary again"
            )
        self._check_clock(scenario.time, path)
        window = slice(start, start + history + future)
        if window.stop > total:
            raise SceneError(
                f"{path}: length: {total} steps, a scene has {history + future} (history_s and future_s)"
            )
        role = self._roles(scenario, scenario.valid[:, start + history - 1], path)
        kept = scenario.valid[:, window].any(1)
        position, valid = scenario.position[kept, window], scenario.valid[kept, window]
        role, is_ego, last = role[kept], scenario.is_ego[kept], valid[:, history - 1]
        velocity = difference_velocity(position, valid, history, self.period_s)
        rank = 3 * (role == AgentRole.FOCAL) + 2 * (is_ego & last) + (role == AgentRole.SCORED)
        origin = position[rank.argmax(), history - 1].copy()
        lanes = scenario.lanes.near(
            position[last & (is_ego | (role > AgentRole.CONTEXT)), history - 1], self.map_radius_m
        )
        agents = Agents(
            [
                EGO_ID if ego else scenario.agent_id[index]
                for index, ego in zip(np.flatnonzero(kept), is_ego, strict=True)
            ],
            *(
                scenario.kind[kept],
                role,
                position - origin,
                scenario.heading[kept, window],
                velocity,
                valid,
            ),
        )
        name = (path.stem + (f"-{start:03d}" if first else ""), self.name, split, scenario.city)
        scene = agents.scene(name, (self.period_s, history, future), origin, lanes)
        seen = np.where(
            valid[:, :history].any(1),
            history - 1 - valid[:, history - 1 :: -1].argmax(1),
            valid.argmax(1),
        )
        size = scenario.size[kept, window][np.arange(len(seen)), seen].astype(
            np.float32
        )  # as of the last observed step
        index = {feature: index for index, feature in enumerate(lanes.polyline_id.tolist())}
        lights = [light for light, feature in enumerate(scenario.light_lane) if feature in index]
        if not lights:
            return replace(scene, agent_size=size)
        light_lane = np.array([index[scenario.light_lane[light]] for light in lights], np.int32)
        return replace(
            scene,
            agent_size=size,
            light_lane=light_lane,
            light_state=scenario.light_state[lights, window],
        )

    def _check_clock(self, time: np.ndarray, path: Path) -> None:
        """SceneError unless the timestamps are `period_s` apart."""
        step, drift = np.diff(time), (time[-1] - time[0]) / (len(time) - 1) / self.period_s - 1.0
        if not (
            np.abs(step - self.period_s).max() <= CLOCK_TOLERANCE * self.period_s
            and abs(drift) < 0.01
        ):
            between = (
                f"{step.min():g} s"
                if np.ptp(step) < 1e-6
                else f"{step.min():g} to {step.max():g} s"
            )
            raise SceneError(
                f"{path}: metadata.ts: {between} between steps, expected {self.period_s:g} s (period_s)"
            )

    def _roles(self, scenario: "_Scenario", last: np.ndarray, path: Path) -> np.ndarray:
        """AgentRole uint8 [A]; `last` is bool [A], True for agents in the last observed step."""
        if self.scored == "all":
            chosen = np.isin(scenario.kind, _ROAD_USERS) & ~scenario.is_ego & last
        else:
            chosen = np.isin(scenario.agent_id, scenario.listed) & last
        if not chosen.any():
            problem = (
                f"none of {len(scenario.listed)} listed tracks is"
                if self.scored == "listed"
                else "no road user is"
            )
            raise SceneError(
                f"{path}: metadata.tracks_to_predict: {problem} seen in the last observed step (scored, history_s)"
            )
        focal = self.scored == "listed" and len(scenario.listed) == 1
        return np.where(
            chosen, AgentRole.FOCAL if focal else AgentRole.SCORED, AgentRole.CONTEXT
        ).astype(np.uint8)


# ---- files ---------------------------------------------------------------------------------------------------------


def _scenario_files(mapping: Path) -> list[Path]:
    """The scenarios of a data set, by name; SceneError if one is not in its folder."""
    folders = load_plain_pickle(mapping, MAX_BYTES, MAX_UNPACKED)
    if type(folders) is not dict or not folders:
        raise SceneError(f"{mapping}: expected a dict of file names and folders")
    files = []
    for name, folder in folders.items():
        text = type(name) is type(folder) is str and "\0" not in name + folder
        outside = (
            not text
            or "/" in name
            or PurePosixPath(folder).is_absolute()
            or ".." in PurePosixPath(folder).parts
        )
        if outside or not name.endswith(".pkl"):
            entry = printable(
                f"{str(name)[:80]!r}: {folder[:80]!r}" if type(folder) is str else str(name)[:80]
            )
            raise SceneError(
                f"{mapping}: {entry}: not a file in a folder inside {mapping.parent}: copy or link the folder there"
            )
        files.append(mapping.parent / folder / name)
    return sorted(files)


class _Scenario(NamedTuple):
    """A scenario of L steps; invalid entries are zero."""

    time: np.ndarray  # float64 [L], seconds
    city: str
    agent_id: list[str]
    listed: list[str]  # ids of the tracks to predict
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
def _parse(path: Path) -> _Scenario:
    data = load_plain_pickle(path, MAX_BYTES, MAX_UNPACKED)
    metadata, tracks, features, lights = (
        _get(data, key, dict, f"{path}: ")
        for key in ("metadata", "tracks", "map_features", "dynamic_map_states")
    )
    time = _timestamps(metadata, f"{path}: metadata.")
    if (length := _get(data, "length", int, f"{path}: ")) != len(time):
        raise SceneError(f"{path}: length: {length}, metadata.ts has {len(time)} timestamps")
    check_count(len(tracks) * length, MAX_CELLS, "steps of all tracks", path)
    kinds, states = [], []
    for name, track in tracks.items():
        where = f"{path}: tracks[{printable(str(name)[:40])}]."
        kinds.append(_meaning(AGENT_KINDS, track, where))
        states.append(_states(_get(track, "state", dict, where), length, f"{where}state."))
    table, agent_id = np.array(states), [str(name) for name in tracks]  # [A, L, 6]
    ego = (
        str(metadata["sdc_id"]) if type(metadata.get("sdc_id")) in (str, int) else None
    )  # a simulation may have none
    if ego is not None and ego not in agent_id:
        raise SceneError(f"{path}: metadata.sdc_id: no track {printable(ego[:40])!r}")
    if EGO_ID in agent_id and ego != EGO_ID:
        raise SceneError(
            f"{path}: tracks[{EGO_ID}]: this id is reserved for the ego car (metadata.sdc_id)"
        )
    listed = (
        _get(metadata, "tracks_to_predict", dict, f"{path}: metadata.")
        if "tracks_to_predict" in metadata
        else ()
    )
    is_ego = np.array([name == ego for name in agent_id])
    table[is_ego, :, 3:5] = np.sort(table[is_ego, :, 3:5])[
        ..., ::-1
    ]  # in nuScenes, the ego car's length and width are exchanged
    lanes, number = _map(features, path)
    light_lane, light_state = _lights(lights, number, length, path)
    city = metadata.get("map")
    return _Scenario(
        time=time,
        city=city if type(city) is str else "",
        agent_id=agent_id,
        listed=[str(name) for name in listed],
        kind=np.array(kinds, np.uint8),
        is_ego=is_ego,
        position=table[..., :2],
        heading=wrap(table[..., 2]),
        size=table[..., 3:5],
        valid=table[..., 5] != 0.0,
        lanes=lanes,
        light_lane=light_lane,
        light_state=light_state,
    )


def _get(parent: Any, key: str, kind: type, where: str) -> Any:
    """`parent[key]`; the SceneError for a missing value or a wrong type starts with `where`."""
    value = parent.get(key) if type(parent) is dict else None
    if type(value) is not kind:
        problem = "missing" if value is None else f"of type {type(value).__name__}"
        raise SceneError(f"{where}{key}: {problem}, expected {kind.__name__}")
    return value


def _meaning(meanings: dict[str, Any], parent: Any, where: str) -> Any:
    """The meaning of the type of a track or feature."""
    word = _get(parent, "type", str, where)
    if word not in meanings:
        raise SceneError(f"{where}type: unknown value {printable(word[:40])!r}")
    return meanings[word]


def _timestamps(metadata: dict[str, Any], where: str) -> np.ndarray:
    """Timestamps float64 [L] in seconds."""
    time = metadata.get("ts")
    if type(time) is list and all(type(value) in (int, float) for value in time):
        time = np.array(time, np.float64)
    if (
        type(time) is not np.ndarray
        or time.dtype.kind not in "iuf"
        or time.ndim != 1
        or not 2 <= len(time) <= MAX_STEPS
    ):
        raise SceneError(f"{where}ts: expected 2 to {MAX_STEPS} timestamps")
    if not np.abs(time).max() < 1e12:
        raise SceneError(f"{where}ts: a timestamp is NaN or over 1e12, expected seconds")
    return time.astype(np.float64)


def _states(state: dict[str, Any], length: int, where: str) -> np.ndarray:
    """x, y, heading, length, width and valid of a track, float64 [L, 6], zero where not valid; an unknown size is zero."""
    table = np.zeros((length, 6))
    columns = {"position": 0, "heading": 2, "length": 3, "width": 4, "valid": 5}
    limits = {
        "position": MAX_ORIGIN_M,
        "heading": 1e3,
        "length": MAX_SIZE_M,
        "width": MAX_SIZE_M,
        "valid": 1.0,
    }
    for key, column in columns.items():
        if key in ("length", "width") and key not in state:
            continue
        values, wide = _get(state, key, np.ndarray, where), 1 + (key == "position")
        if (
            values.dtype.kind == "U"
            or values.ndim not in (1, 2)
            or len(values) != length
            or values.size < length * wide
        ):
            raise SceneError(
                f"{where}{key}: {values.dtype} of shape {values.shape}, expected numbers [{length}, {wide}]"
            )
        table[:, column : column + wide] = values.reshape(length, -1)[:, :wide]
    table[table[:, 5] == 0.0] = 0.0  # invalid entries may have any value
    for key, column in columns.items():
        if not np.abs(table[:, column : column + 1 + (key == "position")]).max() <= limits[key]:
            raise SceneError(f"{where}{key}: NaN or over {limits[key]:g} at a valid step")
    if table[:, 3:].min() < 0.0 or not np.isin(table[:, 5], (0.0, 1.0)).all():
        raise SceneError(
            f"{where}valid, length, width: a negative size, or valid is neither 0 nor 1"
        )
    return table


def _map(features: dict[str, Any], path: Path) -> tuple[VectorMap, dict[str, int]]:
    """The map, and the number of each feature by its id; features with a single point are dropped, as Waymo has some."""
    check_count(len(features) + 1, MAX_FEATURES, "map_features", path)
    number = {str(name): index for index, name in enumerate(features)}
    heads, lines, links, points = [], [np.zeros((0, 2))], [], 0
    for name, feature in features.items():
        where = f"{path}: map_features[{printable(str(name)[:40])}]."
        if (meaning := _meaning(FEATURES, feature, where)) is None:
            continue
        kind, flags = meaning
        key = "polyline" if "polyline" in feature else "polygon"
        line = _get(feature, key, np.ndarray, where)
        if (
            line.dtype.kind not in "iuf"
            or line.ndim != 2
            or line.shape[1] < 2
            or not np.abs(line).max(initial=0) <= MAX_ORIGIN_M
        ):
            problem = f"{line.dtype} of shape {line.shape}, or NaN or over {MAX_ORIGIN_M:g} m"
            raise SceneError(f"{where}{key}: {problem}, expected points [P, 2]")
        points += len(line)
        check_count(points + 1, MAX_POINTS, "points", path)
        if len(line) < 2:
            continue
        line = line[:, :2].astype(np.float64)
        if (key == "polygon" or kind == PolylineKind.CROSSWALK) and (line[0] != line[-1]).any():
            line = np.concatenate([line, line[:1]])
        heads.append((number[str(name)], int(kind), int(flags)))
        lines.append(line)
        for field, link in _LINKS.items() if kind <= PolylineKind.LANE_BIKE else ():
            others = feature.get(field, [])
            if type(others) is not list or len(others) > MAX_LINKS:
                raise SceneError(f"{where}{field}: expected a list of at most {MAX_LINKS} lanes")
            names = [
                other.get("feature_id") if type(other) is dict else other for other in others
            ]  # Waymo has dicts
            links += [
                (heads[-1][0], number.get(str(other)), int(link))
                for other in names
                if type(other) in (str, int)
            ]
    return build_map(heads, [len(line) for line in lines[1:]], np.concatenate(lines), links), number


def _lights(
    lights: dict[str, Any], number: dict[str, int], length: int, path: Path
) -> tuple[list[int], np.ndarray]:
    """The feature of each traffic light and its states, uint8 [N, L]."""
    check_count(len(lights) * length + 1, MAX_CELLS, "states of traffic lights", path)
    lanes, rows = [], [np.zeros(length, np.uint8)]
    for name, light in lights.items():
        where = f"{path}: dynamic_map_states[{printable(str(name)[:40])}]."
        states = _get(light, "state", dict, where).get("object_state")
        words = states.tolist() if type(states) is np.ndarray and states.ndim == 1 else states
        if type(words) not in (list, tuple) or len(words) != length:
            raise SceneError(
                f"{where}state.object_state: expected {length} states, one for each timestamp"
            )
        if unknown := [
            word
            for word in words
            if word is not None and (type(word) is not str or word not in LIGHTS)
        ]:
            shown = (
                printable(unknown[0][:40]) if type(unknown[0]) is str else type(unknown[0]).__name__
            )
            raise SceneError(f"{where}state.object_state: unknown value {shown!r}")
        lane = light.get("lane", name)
        if type(lane) in (str, int) and str(lane) in number:
            lanes.append(number[str(lane)])
            rows.append(
                np.array([LIGHTS.get(word, LightState.UNKNOWN) for word in words], np.uint8)
            )
    return lanes, np.stack(rows)[1:]
