"""Annotations, poses and map of an Argoverse 2 sensor log, to tracks in the city frame, `SensorLog`.

Annotations are cuboids in the frame of the ego vehicle, one row per object and lidar sweep. `city_SE3_egovehicle.feather`
holds the pose of the ego vehicle at the timestamp of each sweep. Their product is the pose of the object in the city.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep.readers.argoverse2.map import read_map
from data_prep.readers.columns import groups, is_number, is_text, numbers
from data_prep.readers.raw_file import one_line, read_file
from data_prep.readers.vector_map import VectorMap
from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind

PERIOD_NS = 100_000_000
ANNOTATIONS = ("annotations.feather", "annotations_with_ego.feather")  # the second adds the ego vehicle as a track
POSES = "city_SE3_egovehicle.feather"
EGO_ID, EGO_CATEGORY = "AV", "EGO_VEHICLE"
MAX_VALUE = 1e6  # metres; a city is about 10 km wide
MAX_BYTES, MAX_ROWS = 64 << 20, 1_000_000  # a hundred times the usual
MAX_STEPS_PER_SWEEP = 10  # on average; sparser sweeps mean that a timestamp is wrong
_QUATERNION, _TRANSLATION = ("qw", "qx", "qy", "qz"), ("tx_m", "ty_m", "tz_m")
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
KINDS = {category: kind for kind, categories in _CATEGORIES.items() for category in categories.split()}


@dataclass(frozen=True, eq=False)
class SensorLog:
    """Tracks of a log of L steps of 0.1 s: the ego vehicle first, then the annotated objects by id.

    Step k is the sweep nearest to 0.1 k s after the first annotated sweep. All agents are invalid at the step of a missing
    sweep. Invalid entries are zero.
    """

    agent_id: tuple[str, ...]
    kind: np.ndarray  # uint8 [A], AgentKind
    position: np.ndarray  # float64 [A, L, 2], metres in the city frame; rear axle of the ego vehicle
    heading: np.ndarray  # float64 [A, L], radians
    valid: np.ndarray  # bool [A, L]
    lanes: VectorMap
    city: str

    @property
    def num_steps(self) -> int:
        """L."""
        return int(self.valid.shape[1])

    def window(self, start: int, history: int, future: int) -> SensorLog:
        """`history + future` steps from step `start`, with the agents that are valid in the first `history` steps."""
        observed = np.flatnonzero(self.valid[:, start : start + history].any(1))
        agent_id = tuple(self.agent_id[index] for index in observed)
        position, heading, valid = (
            array[observed, start : start + history + future] for array in (self.position, self.heading, self.valid)
        )
        return SensorLog(agent_id, self.kind[observed], position, heading, valid, self.lanes, self.city)


def load_log(path: Path) -> SensorLog:
    """The log of an annotations file, cached until one of its files changes.

    Raises:
        SceneError: names the file and the column, the map file and its entry, or the missing file.
    """
    files = _files(path)
    stamps = [file.stat() for file in files]
    return _parse(files, tuple((stamp.st_size, stamp.st_mtime_ns) for stamp in stamps))


def count_steps(path: Path) -> int:
    """L of the log of an annotations file, computed from its timestamps.

    Raises:
        SceneError: a file is missing or its timestamps cannot be used; names the file.
    """
    _files(path)
    return int(_sweeps(_read(path, ("timestamp_ns",)), path)[1][-1]) + 1


def _files(path: Path) -> tuple[Path, Path, Path]:
    """Annotations, poses and map of a log."""
    maps = sorted((path.parent / "map").glob("log_map_archive_*.json"))
    if len(maps) != 1:
        raise SceneError(f"{path.parent / 'map'}: {len(maps)} files log_map_archive_*.json, expected one")
    files = path, path.with_name(POSES), maps[0]
    if missing := [file for file in files if not file.is_file()]:
        raise SceneError(f"{missing[0]}: no such file")
    return files


@lru_cache(maxsize=2)  # all windows of a log are read in sequence
def _parse(files: tuple[Path, Path, Path], stamp: object) -> SensorLog:
    """Parse a log; `stamp` is part of the cache key only."""
    path, poses, archive = files
    table = _read(path, ("timestamp_ns", "track_uuid", "category", *_QUATERNION, *_TRANSLATION))
    times, steps, sweep = _sweeps(table, path)
    rotation, translation = _poses(poses, times)
    categories, _, category_index = groups(table["category"])
    if unknown := sorted(set(categories) - {*KINDS, EGO_CATEGORY}):
        raise SceneError(f"{path}: category: unknown value {unknown[0]!r}")
    category = np.array(categories)[category_index]
    objects = np.flatnonzero(category != EGO_CATEGORY)
    table, sweep = table.take(objects), sweep[objects]
    agent_id, first, agent = groups(table["track_uuid"])
    kind = np.array([AgentKind.VEHICLE, *(KINDS[name] for name in category[objects][first])], np.uint8)

    valid = np.zeros((1 + len(agent_id), int(steps[-1]) + 1), bool)
    valid[0, steps] = valid[1 + agent, steps[sweep]] = True
    if valid[1:].sum() != len(agent):
        raise SceneError(f"{path}: track_uuid: a track has two rows with one timestamp_ns")
    center = _rotate(rotation[sweep], _columns(table, _TRANSLATION, path)) + translation[sweep]
    direction = _rotate(rotation[sweep], _forward(_quaternions(table, path)))
    position, heading = np.zeros((*valid.shape, 2)), np.zeros(valid.shape)
    position[0, steps], position[1 + agent, steps[sweep]] = translation[:, :2], center[:, :2]
    heading[0, steps], heading[1 + agent, steps[sweep]] = _yaw(_forward(rotation)), _yaw(direction)
    city = archive.stem.rpartition("____")[2].split("_")[0]  # log_map_archive_<log>____PIT_city_57819
    return SensorLog((EGO_ID, *agent_id), kind, position, heading, valid, read_map(archive), city)


def _sweeps(table: pa.Table, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Timestamp int64 [S] and step int64 [S] of each sweep, ascending, and the sweep int64 [n] of each row."""
    times, sweep = np.unique(_timestamps(table), return_inverse=True)
    span = int(times[-1]) - int(times[0])
    if span > MAX_STEPS_PER_SWEEP * len(times) * PERIOD_NS:
        raise SceneError(f"{path}: timestamp_ns: {len(times)} sweeps spread over {span / 1e9:g} s")
    steps = (times - times[0] + PERIOD_NS // 2) // PERIOD_NS
    if (np.diff(steps) == 0).any():
        at = times[1:][np.diff(steps) == 0][0]
        raise SceneError(f"{path}: timestamp_ns: {at} falls on the same step of 0.1 s as the sweep before it")
    return times, steps, sweep


def _poses(path: Path, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotation, unit quaternions [S, 4], and translation [S, 3] of the ego vehicle in the city at timestamps [S]."""
    table = _read(path, ("timestamp_ns", *_QUATERNION, *_TRANSLATION))
    known, row = np.unique(_timestamps(table), return_index=True)
    nearest = np.minimum(np.searchsorted(known, times), len(known) - 1)
    if (missing := times[known[nearest] != times]).size:
        raise SceneError(f"{path}: timestamp_ns: no pose at {missing[0]}, and at {len(missing) - 1} other sweeps")
    return _quaternions(table, path)[row[nearest]], _columns(table, _TRANSLATION, path)[row[nearest]]


# ---- columns -------------------------------------------------------------------------------------------------------


def _read(path: Path, names: tuple[str, ...]) -> pa.Table:
    """Columns of an Arrow file: text, whole numbers (`timestamp_ns`) or numbers, without nulls."""
    try:
        source = pa.BufferReader(read_file(path, MAX_BYTES))
        file = pa.ipc.open_file(source)
        if wrong := [name for name in names if file.schema.names.count(name) != 1]:
            count = "two columns of this name" if wrong[0] in file.schema.names else "no such column"
            raise SceneError(f"{path}: {wrong[0]}: {count}")
        if (rows := file.count_rows()) > MAX_ROWS:
            raise SceneError(f"{path}: {names[0]}: {rows} rows, far too many for one log")
        fields = [file.schema.get_field_index(name) for name in names]
        table = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: column names that are not UTF-8
        raise SceneError(f"{path}: not a readable feather file: {one_line(error)}") from error
    if not len(table):
        raise SceneError(f"{path}: {names[0]}: no rows")
    for name in names:
        kind, fits, expected = table[name].type, is_number, "a number"
        if name in ("track_uuid", "category"):
            fits, expected = is_text, "text"
        elif name == "timestamp_ns":
            fits, expected = pa.types.is_integer, "whole numbers"
        if not fits(kind):
            raise SceneError(f"{path}: {name}: type {kind}, expected {expected}")
        if table[name].null_count:
            raise SceneError(f"{path}: {name}: empty in {table[name].null_count} rows")
    return table


def _timestamps(table: pa.Table) -> np.ndarray:
    return numbers(table["timestamp_ns"]).astype(np.int64)


def _columns(table: pa.Table, names: tuple[str, ...], path: Path) -> np.ndarray:
    """Columns as float64 [n, len(names)], finite and below `MAX_VALUE`."""
    for name in names:
        if not (np.abs(numbers(table[name])) < MAX_VALUE).all():
            raise SceneError(f"{path}: {name}: NaN, infinity or a number beyond {MAX_VALUE:g}")
    return np.stack([numbers(table[name]).astype(np.float64) for name in names], -1)


# ---- rotations -----------------------------------------------------------------------------------------------------


def _quaternions(table: pa.Table, path: Path) -> np.ndarray:
    """Unit quaternions (w, x, y, z) [n, 4]."""
    values = _columns(table, _QUATERNION, path)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    if (np.abs(length - 1.0) > 0.01).any():
        farthest = length[np.abs(length - 1.0).argmax(), 0]
        raise SceneError(f"{path}: qw, qx, qy, qz: a quaternion of length {farthest:g}, expected 1")
    return values / length


def _rotate(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate vectors [n, 3] by unit quaternions [n, 4]."""
    real, imaginary = quaternion[:, :1], quaternion[:, 1:]
    twice = 2.0 * np.cross(imaginary, vector)
    return vector + real * twice + np.cross(imaginary, twice)


def _forward(quaternion: np.ndarray) -> np.ndarray:
    """Direction [n, 3] of the rotated x axis."""
    return _rotate(quaternion, np.broadcast_to([1.0, 0.0, 0.0], (len(quaternion), 3)))


def _yaw(direction: np.ndarray) -> np.ndarray:
    return np.arctan2(direction[:, 1], direction[:, 0])
