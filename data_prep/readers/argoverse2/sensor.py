"""Reader of Argoverse 2 sensor logs: annotations, poses and a map, cut into forecasting scenes.

Annotations are cuboids in the frame of the ego vehicle, one row per object and lidar sweep.
`city_SE3_egovehicle.feather` holds the pose of the ego vehicle at the timestamp of each sweep.
Their product is the pose of the object in the city.

A scene is a window of a log. Sweeps are 96 to 103 ms apart, but the positions of a track are as
evenly spaced as with steps of 0.1 s. Tracks are smooth, so the velocity is the difference to the
previous step: constant-velocity predictions have an error of 3.4 m after 3 s for moving vehicles
(pedestrians 0.68 m), against 3.8 m (0.74 m) with the mean of five steps; a parabola through ten
steps is as accurate as the difference.

Roles depend on the observed steps only, except for the focal agent `farthest`. Therefore a model
may use them as inputs, and they exist when the future is unknown.
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
from data_prep.readers.argoverse2.sweeps import POSES, Sweeps, find_sweeps
from data_prep.readers.raw_file import list_parts, read_file
from data_prep.readers.row_check import RowCheck
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError, one_line
from trajformer.scenes.kinematics import difference_velocity
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import AgentKind, AgentRole, Scene
from trajformer.scenes.vector_map import VectorMap

PERIOD_S = 0.1
ROOT_SPLIT = "logs"  # the split of logs directly in the raw folder
# The second name is of files that have the ego vehicle as a track, too.
ANNOTATIONS = ("annotations.feather", "annotations_with_ego.feather")
EGO = 0  # index of the ego vehicle in a log
EGO_ID = "AV"
EGO_CATEGORY = "EGO_VEHICLE"
MAX_BYTES = 64 << 20  # a hundred times the usual size, as the next one
MAX_ROWS = 1_000_000
_QUATERNION = ("qw", "qx", "qy", "qz")
_TRANSLATION = ("tx_m", "ty_m", "tz_m")
_POSE = (*_QUATERNION, *_TRANSLATION)
_LIMITS = dict.fromkeys(_POSE, 1e6)  # largest absolute values; a city is about 10 km wide
_TEXT = ("track_uuid", "category")
_ROAD_USERS = (
    AgentKind.VEHICLE,
    AgentKind.BUS,
    AgentKind.PEDESTRIAN,
    AgentKind.CYCLIST,
    AgentKind.MOTORCYCLIST,
)
KINDS = {
    "REGULAR_VEHICLE": AgentKind.VEHICLE,
    "LARGE_VEHICLE": AgentKind.VEHICLE,
    "BOX_TRUCK": AgentKind.VEHICLE,
    "TRUCK": AgentKind.VEHICLE,
    "TRUCK_CAB": AgentKind.VEHICLE,
    "VEHICULAR_TRAILER": AgentKind.VEHICLE,
    "RAILED_VEHICLE": AgentKind.VEHICLE,
    "BUS": AgentKind.BUS,
    "SCHOOL_BUS": AgentKind.BUS,
    "ARTICULATED_BUS": AgentKind.BUS,
    "PEDESTRIAN": AgentKind.PEDESTRIAN,
    "OFFICIAL_SIGNALER": AgentKind.PEDESTRIAN,
    "WHEELCHAIR": AgentKind.PEDESTRIAN,
    "BICYCLIST": AgentKind.CYCLIST,
    "WHEELED_RIDER": AgentKind.CYCLIST,  # stands on a scooter or a skateboard
    "MOTORCYCLIST": AgentKind.MOTORCYCLIST,
    "BICYCLE": AgentKind.RIDERLESS_BICYCLE,
    "CONSTRUCTION_BARREL": AgentKind.CONSTRUCTION,
    "CONSTRUCTION_CONE": AgentKind.CONSTRUCTION,
    "MESSAGE_BOARD_TRAILER": AgentKind.CONSTRUCTION,
    "TRAFFIC_LIGHT_TRAILER": AgentKind.CONSTRUCTION,
    "BOLLARD": AgentKind.STATIC,
    "SIGN": AgentKind.STATIC,
    "STOP_SIGN": AgentKind.STATIC,
    "MOBILE_PEDESTRIAN_CROSSING_SIGN": AgentKind.STATIC,
    "MOTORCYCLE": AgentKind.STATIC,  # without a rider
    "WHEELED_DEVICE": AgentKind.STATIC,  # without a rider
    "ANIMAL": AgentKind.UNKNOWN,
    "DOG": AgentKind.UNKNOWN,
    "STROLLER": AgentKind.UNKNOWN,
}


@dataclass(frozen=True)
class Argoverse2Sensor(Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of Argoverse 2 sensor logs of about 15.6 s each.

    Attributes:
        history_s: length of the observed part of a scene, seconds.
        future_s: length of the part to predict, seconds.
        stride_s: seconds between the starts of scenes.
        focal: `nearest` = the scored agent nearest to the ego vehicle in the last observed step;
            `moving` = the scored agent with the longest observed travel (it often leaves the range
            of the sensors before the scene ends); `farthest` = the scored agent with the longest
            travel in the complete scene, which uses the future like published data sets; `ego` =
            the ego vehicle; `none` = no agent.
        min_observed_s: a road user in the last observed step is scored if it was observed for at
            least this time and its travel reached `min_travel_m`.
        min_travel_m: distance from the first position; labels of parked cars move by 1 m.
        map_radius_m: polylines within this distance of a scored agent or the ego vehicle in the
            last observed step are kept.
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
        "RAW/<split>/<log>/annotations.feather with city_SE3_egovehicle.feather "
        "and map/log_map_archive_*.json"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def __post_init__(self) -> None:
        """Check that the times are whole steps."""
        super().__post_init__()
        minima = {"history_s": 2 * PERIOD_S, "future_s": PERIOD_S, "stride_s": PERIOD_S}
        for name, minimum in minima.items():
            value = getattr(self, name)
            is_whole = abs(value - PERIOD_S * _steps(value)) < 1e-6
            if not (value > minimum - 1e-6 and is_whole):
                expected = f"expected a multiple of {PERIOD_S} s, at least {minimum:g} s"
                raise ConfigError(name, f"{value:g} s, {expected}")
        if self.min_observed_s > self.history_s:
            expected = f"expected 0 to history_s ({self.history_s:g} s)"
            raise ConfigError("min_observed_s", f"{self.min_observed_s:g} s, {expected}")

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with at least one annotated log, and `logs` for logs directly in raw.

        Test logs have no annotations.
        """
        splits = set()
        for name in ANNOTATIONS:
            splits |= {path.parent.parent.name for path in raw.glob(f"*/*/{name}")}
            if next(raw.glob(f"*/{name}"), None):
                splits.add(ROOT_SPLIT)
        return sorted(splits)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all logs by first step; a log without a window is one input without a part."""
        length = _steps(self.history_s + self.future_s)
        stride = _steps(self.stride_s)

        def windows(path: Path) -> list[str]:
            starts = sweeps_of(path).first_steps(length, stride)
            return [f"{start:03d}" for start in starts] or [""]

        return list_parts(_annotations(raw, split), windows)

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file or folder is part of a log."""
        return path.name in (POSES, "map", "sensors", "calibration")

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window of a log.

        SceneError also if the log is shorter than a window or has no agent to score.
        """
        log = load_log(item.path)
        start = int(item.part or 0)
        history = _steps(self.history_s)
        future = _steps(self.future_s)
        window = slice(start, start + history + future)
        num_steps = log.valid.shape[1]
        if window.stop > num_steps or not item.part:
            length = f"{num_steps} steps of {PERIOD_S} s, a scene has {history + future}"
            if window.stop <= num_steps:
                length = f"a pause of the clock in all windows of {history + future} steps"
            raise SceneError(f"{item}: timestamp_ns: {length} (history_s and future_s)")

        # Agents that appear only in the future would leak it.
        observed = np.flatnonzero(log.valid[:, start : start + history].any(1))
        kind = log.kind[observed]
        position = log.position[observed, window]
        heading = log.heading[observed, window]
        valid = log.valid[observed, window]
        agent_id = [log.agent_id[index] for index in observed]
        role = self._roles(kind, position, valid, item)
        velocity = difference_velocity(position, valid, history, PERIOD_S)

        last_position = position[:, history - 1]
        focal = role.argmax() if role.max() == AgentRole.FOCAL else EGO
        center = last_position[focal]
        keeps_map = role > AgentRole.CONTEXT
        keeps_map[EGO] = True
        lanes = log.lanes.near(last_position[keeps_map], self.map_radius_m, item.path)
        agents = columns.Agents(agent_id, kind, role, position, heading, velocity, valid)
        name = (f"{item.path.parent.name}-{start:03d}", self.name, split, log.city)
        clock = (PERIOD_S, history, future)
        scene = agents.scene(name, clock, center, lanes)
        check_recorded(scene, heading=True, where=item)
        return scene

    def _roles(
        self, kind: np.ndarray, position: np.ndarray, valid: np.ndarray, item: Input
    ) -> np.ndarray:
        """AgentRole [A] of a window.

        A scored agent is valid in the last observed step. So is the ego vehicle, because objects
        are annotated in its frame.
        """
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
            return role
        if not scored.any():
            raise SceneError(
                f"{item}: track_uuid: no moving agent in the last observed step "
                "(min_observed_s, min_travel_m)"
            )
        if self.focal == "none":
            return role
        if self.focal == "nearest":
            last_position = position[:, history - 1]
            offset = last_position - last_position[EGO]
            rank = -np.hypot(offset[:, 0], offset[:, 1])
        elif self.focal == "moving":
            rank = travel
        else:
            rank = _travel(position, valid)
        role[np.where(scored, rank, -np.inf).argmax()] = AgentRole.FOCAL
        return role


def _steps(seconds: float) -> int:
    return round(seconds / PERIOD_S)


def _annotations(raw: Path, split: str) -> list[Path]:
    """The annotations file of each log of a split.

    A folder with poses is a log, also if its annotations are missing.
    """
    folders = [raw / split]
    if split == ROOT_SPLIT:
        folders.append(raw)
    logs: set[Path] = set()
    for folder in folders:
        for name in (*ANNOTATIONS, POSES):
            logs |= {file.parent for file in folder.glob(f"*/{name}")}
    return [_annotations_of_log(log) for log in sorted(logs)]


def _annotations_of_log(log: Path) -> Path:
    """The first of the two possible files that exists, else the usual one."""
    for name in ANNOTATIONS:
        if (log / name).is_file():
            return log / name
    return log / ANNOTATIONS[0]


def _travel(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Largest distance [A] in metres of an agent's positions [A, T, 2] from its first one."""
    first = position[np.arange(len(valid)), valid.argmax(1)]
    distance = np.linalg.norm(position - first[:, None], axis=-1)
    return (distance * valid).max(1, initial=0.0)


# ---- logs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SensorLog:
    """Tracks of a log of L steps of 0.1 s: the ego vehicle first, then the annotated objects by id.

    Step k is the sweep nearest to 0.1 k s after the first annotated sweep. All agents are invalid
    at the step of a missing sweep. Invalid entries are zero. The position of the ego vehicle is its
    rear axle.
    """

    agent_id: tuple[str, ...]
    kind: np.ndarray  # uint8 [A], AgentKind
    position: np.ndarray  # float64 [A, L, 2], metres in the city frame
    heading: np.ndarray  # float64 [A, L], radians
    valid: np.ndarray  # bool [A, L]
    lanes: VectorMap
    city: str


def load_log(path: Path) -> SensorLog:
    """The log of an annotations file, cached until a file of the log changes.

    A SceneError names file and column.
    """
    return _parse(*_files(path))


def sweeps_of(path: Path) -> Sweeps:
    """The usable sweeps of the log of an annotations file.

    SceneError if these cannot be used or a file is missing.
    """
    _, poses, _ = _files(path)
    time = _timestamps(_read(path, ("timestamp_ns",)))
    known, _, _ = _poses(poses)
    return find_sweeps(time, known, RowCheck(path, len(time)))


def _files(path: Path) -> tuple[Path, Path, Path]:
    """Annotations, poses and map of a log."""
    map_folder = path.parent / "map"
    maps = sorted(map_folder.glob("log_map_archive_*.json"))
    if len(maps) != 1:
        raise SceneError(f"{map_folder}: {len(maps)} files log_map_archive_*.json, expected one")
    files = (path, path.with_name(POSES), maps[0])
    for file in files:
        if not file.is_file():
            raise SceneError(f"{file}: no such file")
    return files


@cached_by_file(2)  # all windows of a log are read in sequence
def _parse(path: Path, poses: Path, archive: Path) -> SensorLog:
    table = _read(path, ("timestamp_ns", *_LIMITS, *_TEXT))
    check = RowCheck(path, len(table))
    pose_time, pose_rotation, pose_translation = _poses(poses)
    sweeps = find_sweeps(_timestamps(table), pose_time, check)
    pose_row = np.searchsorted(pose_time, sweeps.time)
    ego_rotation = pose_rotation[pose_row]
    ego_translation = pose_translation[pose_row]
    rotation, translation = _transforms(table, check)
    text = columns.usable_text(table, _TEXT, check)
    names, _, track = columns.groups(text["track_uuid"])
    check.drop_repeated(
        np.stack([sweeps.row_sweep, track]),
        np.concatenate([rotation, translation], 1),
        "track_uuid: two rows for a step of a track",
        lambda row: (
            f"track_uuid: two rows for step {sweeps.step[sweeps.row_sweep[row]]} "
            f"of track {names[track[row]][:40]!r}"
        ),
    )

    # The ego vehicle is the first agent. Its pose comes from the poses, not from the annotations.
    categories, _, category = columns.groups(text["category"])
    is_object = np.array(categories)[category] != EGO_CATEGORY
    objects = np.flatnonzero(check.finish() & is_object)
    sweep = sweeps.row_sweep[objects]
    rows = pa.array(objects)
    object_id, first_row, row_object = columns.groups(text["track_uuid"].take(rows))
    object_types = columns.values_at(text["category"], objects[first_row])
    object_kinds = columns.translate_types(object_types, KINDS, "category", path)
    agent_id = [EGO_ID, *object_id]
    agent = np.append(np.zeros_like(sweeps.step), 1 + row_object)
    step = np.append(sweeps.step, sweeps.step[sweep])
    num_steps = int(sweeps.step[-1]) + 1
    cell, valid = columns.cells(agent_id, agent, step, num_steps, f"{path}: track_uuid")

    # Pose in the city = pose of the ego vehicle in the city * pose in the frame of the ego vehicle.
    row_rotation = ego_rotation[sweep]
    center = _rotate(row_rotation, translation[objects]) + ego_translation[sweep]
    ahead = _rotate(row_rotation, _rotate(rotation[objects], _FORWARD))
    position = np.concatenate([ego_translation, center])[:, :2]
    direction = np.concatenate([_rotate(ego_rotation, _FORWARD), ahead])
    heading = np.arctan2(direction[:, 1], direction[:, 0])
    return SensorLog(
        agent_id=tuple(agent_id),
        kind=np.array([AgentKind.VEHICLE, *object_kinds], np.uint8),
        position=columns.fill(valid, cell, position),
        heading=columns.fill(valid, cell, heading),
        valid=valid,
        lanes=read_map(archive),
        city=_city_of(archive),
    )


def _city_of(archive: Path) -> str:
    """`PIT` of `log_map_archive_<log>____PIT_city_57819.json`."""
    map_name = archive.stem.rpartition("____")[2]
    return map_name.split("_")[0]


def _timestamps(table: pa.Table) -> np.ndarray:
    return columns.array(table["timestamp_ns"].fill_null(0)).astype(np.int64)


@cached_by_file(2)
def _poses(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Timestamps [N], and rotation and translation of the ego vehicle in the city there.

    Unit quaternions [N, 4] and metres [N, 3]. Poses that cannot be used are dropped.
    """
    table = _read(path, ("timestamp_ns", *_LIMITS))
    check = RowCheck(path, len(table))
    rotation, translation = _transforms(table, check)
    rows = np.flatnonzero(check.finish())
    known, first = np.unique(_timestamps(table)[rows], return_index=True)
    return known, rotation[rows[first]], translation[rows[first]]


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    """Columns of an Arrow file."""
    try:
        source = pa.BufferReader(read_file(path, MAX_BYTES))
        file = pa.ipc.open_file(source)
        columns.check_names(file.schema.names, names, path)
        columns.check_count(file.count_rows(), MAX_ROWS, "rows", path)
        fields = [file.schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        table = pa.ipc.open_file(source, options=options).read_all()
        table.validate(full=True)
    # A ValueError means that the names of columns are not UTF-8.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SceneError(f"{path}: not a readable feather file: {one_line(error)}") from error
    number_names = [name for name in names if name not in _TEXT]
    text_names = [name for name in names if name in _TEXT]
    columns.check_types(table, number_names, text_names, path)
    time_type = table["timestamp_ns"].type
    if not pa.types.is_integer(time_type):
        raise SceneError(f"{path}: timestamp_ns: type {time_type}, expected whole numbers")
    return table


# ---- rotations -----------------------------------------------------------------------------------

_FORWARD = np.array([[1.0, 0.0, 0.0]])


def _transforms(table: pa.Table, check: RowCheck) -> tuple[np.ndarray, np.ndarray]:
    """Unit quaternions (w, x, y, z) [n, 4] and translations [n, 3] of the rows.

    Rows that cannot be used are dropped; they have no rotation and no translation.
    """
    number = columns.usable_numbers(table, _LIMITS, check)
    quaternion = np.stack([number[name] for name in _QUATERNION], -1)
    translation = np.stack([number[name] for name in _TRANSLATION], -1)
    length = np.linalg.norm(quaternion, axis=1, keepdims=True)
    is_wrong = np.abs(length[:, 0] - 1.0) > 0.01
    check.drop(
        is_wrong,
        "qw, qx, qy, qz: a quaternion of another length than 1",
        lambda row: f"qw, qx, qy, qz: a quaternion of length {length[row, 0]:g}, expected 1",
    )
    safe_length = np.where(is_wrong[:, None], 1.0, length)
    return quaternion / safe_length, translation


def _rotate(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate vectors [n, 3] (or one for all, [1, 3]) by unit quaternions [n, 4]."""
    real = quaternion[:, :1]
    imaginary = quaternion[:, 1:]
    twice = 2.0 * np.cross(imaginary, vector)
    return vector + real * twice + np.cross(imaginary, twice)
