"""Argoverse 2 sensor logs, `RAW/<split>/<log>/` with annotations, poses and a map, cut into forecasting scenes.

Annotations are cuboids in the frame of the ego vehicle, one row per object and lidar sweep. `city_SE3_egovehicle.feather`
holds the pose of the ego vehicle at the timestamp of each sweep. Their product is the pose of the object in the city.

A scene is a window of a log. Sweeps are 96 to 103 ms apart, but the positions of a track are as evenly spaced as with
steps of 0.1 s. Tracks are smooth, so the velocity is the difference to the previous step: constant-velocity predictions
have an error of 3.4 m after 3 s for moving vehicles (pedestrians 0.68 m), against 3.8 m (0.74 m) with the mean of five
steps; a parabola through ten steps is as accurate as the difference.

Roles depend on the observed steps only, except for the focal agent `farthest`. Therefore a model may use them as inputs,
and they exist when the future is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.argoverse2.map import read_map
from data_prep.readers.kinematics import difference_velocity
from data_prep.readers.raw_file import cached_by_file, list_parts, one_line, read_file
from data_prep.readers.vector_map import VectorMap
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

PERIOD_S, PERIOD_NS = 0.1, 100_000_000
ROOT_SPLIT = "logs"  # the split of logs directly in the raw folder
ANNOTATIONS = (
    "annotations.feather",
    "annotations_with_ego.feather",
)  # the second adds the ego vehicle as a track
POSES = "city_SE3_egovehicle.feather"
EGO, EGO_ID, EGO_CATEGORY = (
    0,
    "AV",
    "EGO_VEHICLE",
)  # the ego vehicle's index in a log, id and category
MAX_BYTES, MAX_ROWS = 64 << 20, 1_000_000  # a hundred times the usual
MAX_STEPS_PER_SWEEP = 10  # on average; sparser sweeps mean that a timestamp is wrong
_QUATERNION, _TRANSLATION = ("qw", "qx", "qy", "qz"), ("tx_m", "ty_m", "tz_m")
_LIMITS = dict.fromkeys(
    (*_QUATERNION, *_TRANSLATION), 1e6
)  # largest absolute values; a city is about 10 km wide
_TEXT = ("track_uuid", "category")
_ROAD_USERS = (
    AgentKind.VEHICLE,
    AgentKind.BUS,
    AgentKind.PEDESTRIAN,
    AgentKind.CYCLIST,
    AgentKind.MOTORCYCLIST,
)
_CATEGORIES = {
    AgentKind.VEHICLE: "REGULAR_VEHICLE LARGE_VEHICLE BOX_TRUCK TRUCK TRUCK_CAB VEHICULAR_TRAILER RAILED_VEHICLE",
    AgentKind.BUS: "BUS SCHOOL_BUS ARTICULATED_BUS",
    AgentKind.PEDESTRIAN: "PEDESTRIAN OFFICIAL_SIGNALER WHEELCHAIR",
    AgentKind.CYCLIST: "BICYCLIST WHEELED_RIDER",  # wheeled riders stand on a scooter or a skateboard
    AgentKind.MOTORCYCLIST: "MOTORCYCLIST",
    AgentKind.RIDERLESS_BICYCLE: "BICYCLE",
    AgentKind.CONSTRUCTION: "CONSTRUCTION_BARREL CONSTRUCTION_CONE MESSAGE_BOARD_TRAILER TRAFFIC_LIGHT_TRAILER",
    AgentKind.STATIC: "BOLLARD SIGN STOP_SIGN MOBILE_PEDESTRIAN_CROSSING_SIGN MOTORCYCLE WHEELED_DEVICE",  # without a rider
    AgentKind.UNKNOWN: "ANIMAL DOG STROLLER",
}
KINDS = {
    category: kind for kind, categories in _CATEGORIES.items() for category in categories.split()
}


@dataclass(frozen=True)
class Argoverse2Sensor(Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of Argoverse 2 sensor logs of about 15.6 s each.

    Attributes:
        history_s: length of the observed part of a scene, seconds.
        future_s: length of the part to predict, seconds.
        stride_s: seconds between the starts of scenes.
        focal: `nearest` = the scored agent nearest to the ego vehicle in the last observed step; `moving` = the scored agent
            with the longest observed travel (it often leaves the range of the sensors before the scene ends); `farthest` =
            the scored agent with the longest travel in the complete scene, which uses the future like published data sets;
            `ego` = the ego vehicle; `none` = no agent.
        min_observed_s: a road user in the last observed step is scored if it was observed for at least this time and ...
        min_travel_m: ... if its distance from its first position reached this value; labels of parked cars move by 1 m.
        map_radius_m: polylines within this distance of a scored agent or the ego vehicle in the last observed step are kept.
    """

    history_s: float = 5.0
    future_s: float = 6.0
    stride_s: float = 1.0
    focal: Literal["nearest", "moving", "farthest", "ego", "none"] = "nearest"
    min_observed_s: float = 2.0
    min_travel_m: float = 2.0
    map_radius_m: float = 100.0
    name: ClassVar[str] = "argoverse2_sensor"
    layout: ClassVar[str] = (
        "RAW/<split>/<log>/annotations.feather with city_SE3_egovehicle.feather and map/log_map_archive_*.json"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def __post_init__(self) -> None:
        """Check that the times are whole steps."""
        super().__post_init__()
        for name, minimum in (
            ("history_s", 2 * PERIOD_S),
            ("future_s", PERIOD_S),
            ("stride_s", PERIOD_S),
        ):
            value = getattr(self, name)
            if not (value > minimum - 1e-6 and abs(value - PERIOD_S * _steps(value)) < 1e-6):
                raise ConfigError(
                    name,
                    f"{value:g} s, expected a multiple of {PERIOD_S} s, at least {minimum:g} s",
                )
        if self.min_observed_s > self.history_s:
            raise ConfigError(
                "min_observed_s",
                f"{self.min_observed_s:g} s, expected 0 to history_s ({self.history_s:g} s)",
            )

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with at least one annotated log (test logs have no annotations), and `logs` for logs directly in raw."""
        folders = {
            path.parent.parent
            for name in ANNOTATIONS
            for path in [*raw.glob(f"*/*/{name}"), *raw.glob(f"*/{name}")]
        }
        return sorted({ROOT_SPLIT if folder == raw else folder.name for folder in folders})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all logs of the split, by first step; a log without a window is one input without a part."""
        length, stride = _steps(self.history_s + self.future_s), _steps(self.stride_s)

        def starts(path: Path) -> list[str]:
            return [
                f"{start:03d}" for start in range(0, count_steps(path) - length + 1, stride)
            ] or [""]

        return list_parts(_annotations(raw, split), starts)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window of a log; SceneError also if the log is shorter than a window or has no agent to score."""
        log, start = load_log(item.path), int(item.part or 0)
        history, future = _steps(self.history_s), _steps(self.future_s)
        window = slice(start, start + history + future)
        if window.stop > log.valid.shape[1]:
            length = f"{log.valid.shape[1]} steps of {PERIOD_S} s, a scene has {history + future}"
            raise SceneError(f"{item}: timestamp_ns: {length} (history_s and future_s)")
        seen = np.flatnonzero(log.valid[:, start : start + history].any(1))
        kind, position, valid = log.kind[seen], log.position[seen, window], log.valid[seen, window]
        role = self._roles(kind, position, valid, item)
        velocity = difference_velocity(position, valid, history, PERIOD_S)
        last = position[:, history - 1]
        origin = last[role.argmax() if role.max() == AgentRole.FOCAL else EGO].copy()
        near = role > AgentRole.CONTEXT
        near[EGO] = True
        agent_id, heading = [log.agent_id[index] for index in seen], log.heading[seen, window]
        agents = columns.Agents(agent_id, kind, role, position - origin, heading, velocity, valid)
        name = (f"{item.path.parent.name}-{start:03d}", self.name, split, log.city)
        return agents.scene(
            name, (PERIOD_S, history, future), origin, log.lanes.near(last[near], self.map_radius_m)
        )

    def _roles(
        self, kind: np.ndarray, position: np.ndarray, valid: np.ndarray, item: Input
    ) -> np.ndarray:
        """AgentRole [A] of a window; in every returned window the ego vehicle is valid in the last observed step."""
        history = _steps(self.history_s)
        observed = valid[:, :history]
        travel = _travel(position[:, :history], observed)
        scored = np.isin(kind, _ROAD_USERS) & observed[:, -1] & (travel >= self.min_travel_m)
        scored &= observed.sum(1) >= _steps(self.min_observed_s)
        scored[:1] = False  # the plan of the ego vehicle is known
        role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        if self.focal == "ego":
            if not observed[:1, -1].any():
                raise SceneError(
                    f"{item}: timestamp_ns: no sweep, so no ego vehicle, in the last observed step"
                )
            role[EGO] = AgentRole.FOCAL
        elif not scored.any():
            options = "(min_observed_s, min_travel_m)"
            raise SceneError(
                f"{item}: track_uuid: no moving agent in the last observed step {options}"
            )
        elif self.focal != "none":
            distance = np.hypot(*(position[:, history - 1] - position[EGO, history - 1]).T)
            rank = {"nearest": -distance, "moving": travel, "farthest": _travel(position, valid)}[
                self.focal
            ]
            role[np.where(scored, rank, -np.inf).argmax()] = AgentRole.FOCAL
        return role


def _steps(seconds: float) -> int:
    return round(seconds / PERIOD_S)


def _annotations(raw: Path, split: str) -> list[Path]:
    """The annotations file of each log of a split; a folder with poses is a log, also if its annotations are missing."""
    folders = [raw / split, raw] if split == ROOT_SPLIT else [raw / split]
    logs = {
        file.parent
        for folder in folders
        for name in (*ANNOTATIONS, POSES)
        for file in folder.glob(f"*/{name}")
    }
    paths = [[log / name for name in ANNOTATIONS] for log in sorted(logs)]
    return [next((path for path in names if path.is_file()), names[0]) for names in paths]


def _travel(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Largest distance [A] in metres of an agent's positions [A, T, 2] from its first one."""
    first = position[np.arange(len(valid)), valid.argmax(1)]
    return (np.linalg.norm(position - first[:, None], axis=-1) * valid).max(1, initial=0.0)


# ---- logs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SensorLog:
    """Tracks of a log of L steps of 0.1 s: the ego vehicle first, then the annotated objects by id.

    Step k is the sweep nearest to 0.1 k s after the first annotated sweep. All agents are invalid at the step of a missing
    sweep. Invalid entries are zero.
    """

    agent_id: tuple[str, ...]
    kind: np.ndarray  # uint8 [A], AgentKind
    position: (
        np.ndarray
    )  # float64 [A, L, 2], metres in the city frame; rear axle of the ego vehicle
    heading: np.ndarray  # float64 [A, L], radians
    valid: np.ndarray  # bool [A, L]
    lanes: VectorMap
    city: str


def load_log(path: Path) -> SensorLog:
    """The log of an annotations file, cached until a file of the log changes; a SceneError names file and column."""
    return _parse(*_files(path))


def count_steps(path: Path) -> int:
    """L of the log of an annotations file, from its timestamps; SceneError if these cannot be used or a file is missing."""
    _files(path)
    return int(_sweeps(_read(path, ("timestamp_ns",)), path)[1][-1]) + 1


def _files(path: Path) -> tuple[Path, Path, Path]:
    """Annotations, poses and map of a log."""
    maps = sorted((path.parent / "map").glob("log_map_archive_*.json"))
    if len(maps) != 1:
        raise SceneError(
            f"{path.parent / 'map'}: {len(maps)} files log_map_archive_*.json, expected one"
        )
    files = path, path.with_name(POSES), maps[0]
    if missing := [file for file in files if not file.is_file()]:
        raise SceneError(f"{missing[0]}: no such file")
    return files


@cached_by_file(2)  # all windows of a log are read in sequence
def _parse(path: Path, poses: Path, archive: Path) -> SensorLog:
    table = _read(path, ("timestamp_ns", *_LIMITS, *_TEXT))
    times, steps, sweep = _sweeps(table, path)
    rotation, translation = _poses(poses, times)
    categories, _, index = columns.groups(table["category"])
    objects = np.flatnonzero(np.array(categories)[index] != EGO_CATEGORY)
    table, step, sweep = table.take(objects), steps[sweep[objects]], sweep[objects]
    agent_id, first, agent = columns.groups(table["track_uuid"])
    kind = columns.translate(columns.values_at(table["category"], first), KINDS, "category", path)
    own_rotation, own_translation = _transforms(table, path)

    agent_id = [EGO_ID, *agent_id]
    agent, step = np.append(np.zeros_like(steps), 1 + agent), np.append(steps, step)
    cell, valid = columns.cells(agent_id, agent, step, int(steps[-1]) + 1, f"{path}: track_uuid")
    center = _rotate(rotation[sweep], own_translation) + translation[sweep]
    direction = np.concatenate(
        [_rotate(rotation, _FORWARD), _rotate(rotation[sweep], _rotate(own_rotation, _FORWARD))]
    )
    return SensorLog(
        agent_id=tuple(agent_id),
        kind=np.array([AgentKind.VEHICLE, *kind], np.uint8),
        position=columns.fill(valid, cell, np.concatenate([translation, center])[:, :2]),
        heading=columns.fill(valid, cell, np.arctan2(direction[:, 1], direction[:, 0])),
        valid=valid,
        lanes=read_map(archive),
        city=archive.stem.rpartition("____")[2].split("_")[
            0
        ],  # log_map_archive_<log>____PIT_city_57819
    )


def _sweeps(table: pa.Table, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Timestamp int64 [S] and step int64 [S] of each sweep, ascending, and the sweep int64 [n] of each row."""
    times, sweep = np.unique(
        columns.array(table["timestamp_ns"]).astype(np.int64), return_inverse=True
    )
    span = int(times[-1]) - int(times[0])
    if span > MAX_STEPS_PER_SWEEP * len(times) * PERIOD_NS:
        raise SceneError(f"{path}: timestamp_ns: {len(times)} sweeps spread over {span / 1e9:g} s")
    steps = (times - times[0] + PERIOD_NS // 2) // PERIOD_NS
    if (np.diff(steps) == 0).any():
        at = times[1:][np.diff(steps) == 0][0]
        raise SceneError(
            f"{path}: timestamp_ns: {at} falls on the same step of 0.1 s as the sweep before it"
        )
    return times, steps, sweep


def _poses(path: Path, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotation, unit quaternions [S, 4], and translation [S, 3] of the ego vehicle in the city at timestamps [S]."""
    table = _read(path, ("timestamp_ns", *_LIMITS))
    known, row = np.unique(columns.array(table["timestamp_ns"]).astype(np.int64), return_index=True)
    nearest = np.minimum(np.searchsorted(known, times), len(known) - 1)
    if (missing := times[known[nearest] != times]).size:
        raise SceneError(
            f"{path}: timestamp_ns: no pose at {missing[0]}, and at {len(missing) - 1} other sweeps"
        )
    rotation, translation = _transforms(table, path)
    return rotation[row[nearest]], translation[row[nearest]]


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    """Columns of an Arrow file, without nulls."""
    try:
        source = pa.BufferReader(read_file(path, MAX_BYTES))
        file = pa.ipc.open_file(source)
        columns.check_names(file.schema.names, names, path)
        columns.check_count(file.count_rows(), MAX_ROWS, "rows", path)
        fields = [file.schema.get_field_index(name) for name in names]
        table = pa.ipc.open_file(
            source, options=pa.ipc.IpcReadOptions(included_fields=fields)
        ).read_all()
        table.validate(full=True)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
    ) as error:  # ValueError: column names that are not UTF-8
        raise SceneError(f"{path}: not a readable feather file: {one_line(error)}") from error
    columns.check_types(
        table,
        [name for name in names if name not in _TEXT],
        [name for name in names if name in _TEXT],
        path,
    )
    if not pa.types.is_integer(table["timestamp_ns"].type):
        raise SceneError(
            f"{path}: timestamp_ns: type {table['timestamp_ns'].type}, expected whole numbers"
        )
    return table


# ---- rotations -----------------------------------------------------------------------------------------------------

_FORWARD = np.array([[1.0, 0.0, 0.0]])


def _transforms(table: pa.Table, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Unit quaternions (w, x, y, z) [n, 4] and translations [n, 3] of the rows."""
    number = (
        columns.numbers_within(table, _LIMITS, path)
        if len(table)
        else dict.fromkeys(_LIMITS, np.zeros(0))
    )
    quaternion = np.stack([number[name] for name in _QUATERNION], -1)
    length = np.linalg.norm(quaternion, axis=1, keepdims=True)
    if (np.abs(length - 1.0) > 0.01).any():
        farthest = length[np.abs(length - 1.0).argmax(), 0]
        raise SceneError(f"{path}: qw, qx, qy, qz: a quaternion of length {farthest:g}, expected 1")
    return quaternion / length, np.stack([number[name] for name in _TRANSLATION], -1)


def _rotate(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate vectors [n, 3] (or one for all, [1, 3]) by unit quaternions [n, 4]."""
    real, imaginary = quaternion[:, :1], quaternion[:, 1:]
    twice = 2.0 * np.cross(imaginary, vector)
    return vector + real * twice + np.cross(imaginary, twice)
