"""Reader of nuPlan (Caesar et al. 2021): logs of up to some minutes at 20 Hz, with maps.

A log is a SQLite file: poses of the ego car, boxes of tracked objects and states of traffic lights
for each point cloud (`lidar_pc`). The ego pose is the middle of the rear axle; scenes have the
middle of the car. Velocities of boxes are predictions of a network that do not fit the positions,
so velocities of other agents are estimated. **No original file was available**: the reader follows
the published schema, and its tests build databases with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers.nuplan.database import Database, numbers, open_database, token
from data_prep.readers.nuplan.map import read_map
from data_prep.readers.track_files import (
    Recorded,
    TrackFiles,
    columns_of,
    load_windows,
    with_word,
)
from trajformer.errors import SceneError
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import LightState, Scene
from trajformer.scenes.vector_map import VectorMap

ALL = "all"  # the split of logs directly in RAW
EGO = "AV"
EGO_LENGTH_M = 5.176
EGO_WIDTH_M = 2.297
REAR_AXLE_TO_CENTER_M = 1.461
_MAX_DEVIATION = 0.1  # of a step from the period
_KINDS = {
    "vehicle": "vehicle",
    "bicycle": "cyclist",
    "pedestrian": "pedestrian",
    "traffic_cone": "construction",
    "barrier": "construction",
    "czone_sign": "construction",
    "generic_object": "static",
}
_LIGHTS = {"red": LightState.RED, "yellow": LightState.YELLOW, "green": LightState.GREEN}
_PLACES = {"las_vegas": "us-nv-las-vegas-strip"}  # an old name of a map
_POSE = ("x", "y", "qw", "qx", "qy", "qz", "vx", "vy", "angular_rate_z")
_BOX = ("x", "y", "yaw", "length", "width")


class Log(NamedTuple):
    """The point clouds of a log that are steps, and the lights of each: (step, lane) to state."""

    recorded: Recorded
    place: str
    lights: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Nuplan(TrackFiles):
    """Reader of nuPlan logs.

    Attributes:
        period_s: seconds between steps, a multiple of the 0.05 s of the logs.
        num_history: observed steps of a window.
        num_future: steps to predict.
        stride: steps between the starts of windows.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
        maps: folder with `<place>/<version>/map.gpkg`; by default RAW/maps.
    """

    num_history: int = 21
    num_future: int = 80
    maps: str = ""
    name: ClassVar[str] = "nuplan"
    layout: ClassVar[str] = "RAW/<split>/*.db, or RAW/*.db, and <maps>/<place>/<version>/map.gpkg"

    def splits(self, raw: Path) -> list[str]:
        """Folders with logs, and "all" for logs in the raw folder."""
        names = {path.parent.name for path in raw.glob("*/[!.]*.db")}
        if any(raw.glob("[!.]*.db")):
            names.add(ALL)
        return sorted(names)

    def recordings(self, raw: Path, split: str) -> Sequence[Path]:
        """Logs of a split."""
        paths = {*(raw / split).glob("[!.]*.db")}
        if split == ALL:
            paths |= {*raw.glob("[!.]*.db")}
        return sorted(path for path in paths if not path.is_dir())

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a folder or file holds maps."""
        return path.suffix in (".gpkg", ".json") or path == raw / "maps"

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a log, see `TrackFiles`."""
        return read_log(files[0], self.period_s).recorded

    def map_near(self, path: Path, raw: Path, positions: np.ndarray) -> VectorMap:
        """Lanes, crosswalks and drivable areas of the place of a log."""
        place = read_log(path, self.period_s).place
        folder = raw / "maps"
        if self.maps:
            folder = Path(self.maps)
        found = sorted((folder / place).glob("*/map.gpkg")) if place else []
        if not found:
            missing = folder / (place or "<place>")
            raise SceneError(f"{missing}: no map.gpkg of this place; --maps sets the folder")
        return read_map(found[-1]).near(positions, self.map_radius_m, found[-1])

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window, with the traffic lights of its lanes."""
        scene = super().read(item, split, raw)
        lights = read_log(item.path, self.period_s).lights
        scenes = load_windows(self, item.path)
        cut = scenes.cuts[item.part]
        # The number of the point cloud of each step, from the rows of the window.
        cloud = np.full(scene.num_steps, -1)
        rows = slice(cut.begin, cut.end)
        cloud[scenes.step[rows] - cut.first_step] = scenes.columns.number["cloud"][rows]
        lanes = {number for _, number in lights}
        found = [place for place, number in enumerate(scene.polyline_id) if int(number) in lanes]
        states = np.zeros((len(found), scene.num_steps), np.uint8)
        for row, place in enumerate(found):
            number = int(scene.polyline_id[place])
            states[row] = [lights.get((step, number), 0) for step in cloud.tolist()]
        lit = states.any(1) & (scene.polyline_kind[found] == 0)
        return replace(
            scene, light_lane=np.array(found, np.int32)[lit], light_state=states[lit]
        ).validate()


@cached_by_file(2)
def read_log(path: Path, period_s: float) -> Log:
    """Read and check a log; a SceneError names the file and the table."""
    with open_database(path) as database:
        clouds = _clouds(path, database, period_s)
        ego = _ego(path, database, clouds)
        boxes = _boxes(path, database, clouds)
        lights = {}
        for cloud, lane, status in database.rows(
            "traffic_light_status", ("lidar_pc_token", "lane_connector_id", "status")
        ):
            [number] = numbers([lane])
            key = token(cloud)
            if key in clouds.number_of and 0 <= number < 1 << 53:
                state = _LIGHTS.get(str(status).lower(), LightState.UNKNOWN)
                lights[clouds.number_of[key], int(number)] = int(state)
        place = _place(database)
    parts = [part for part in (ego, boxes) if len(part.track)]
    if not parts:
        raise SceneError(f"{path}: lidar_box: no ego pose and no box")
    number = {}
    for name in ("x", "y", "heading", "vx", "vy", "length", "width", "cloud"):
        number[name] = np.concatenate([part.number[name] for part in parts])
    number["timestamp"] = clouds.seconds[number["cloud"].astype(np.int64)]
    track = [word for part in parts for word in part.track]
    kind = [word for part in parts for word in part.kind]
    columns = with_word(columns_of(number, track, kind), "city", place)
    return Log(Recorded(columns), place, lights)


class _Clouds(NamedTuple):
    """The point clouds that are steps: their number by token, and the token of their ego pose."""

    number_of: dict[str, int]
    pose: list[str]
    seconds: np.ndarray  # float64 [n]


class _Part(NamedTuple):
    """Rows of agents."""

    track: list[str]
    kind: list[str]
    number: dict[str, np.ndarray]


def _clouds(path: Path, database: Database, period_s: float) -> _Clouds:
    """Every k-th point cloud, so that the steps have the period."""
    rows = database.rows("lidar_pc", ("token", "ego_pose_token", "timestamp"))
    microseconds = numbers([row[2] for row in rows])
    order = np.argsort(microseconds, kind="stable")
    order = order[np.isfinite(microseconds[order])]
    if len(order) < 2:
        raise SceneError(f"{path}: lidar_pc: timestamp: fewer than two point clouds")
    seconds = (microseconds[order] - microseconds[order[0]]) / 1e6
    interval = float(np.median(np.diff(seconds)))
    every = round(period_s / interval) if interval > 0 else 0
    if every < 1 or abs(every * interval - period_s) > _MAX_DEVIATION * period_s:
        raise SceneError(
            f"{path}: lidar_pc: point clouds are {interval:.3g} s apart; "
            f"--period-s must be a multiple, not {period_s:g}"
        )
    # Numbers of periods, so that a missing point cloud does not shift the steps after it.
    near = np.rint(seconds / interval).astype(np.int64)
    kept = np.flatnonzero(near % every == 0)
    chosen = order[kept].tolist()
    index = {token(rows[row][0]): number for number, row in enumerate(chosen)}
    return _Clouds(index, [token(rows[row][1]) for row in chosen], seconds[kept])


def _ego(path: Path, database: Database, clouds: _Clouds) -> _Part:
    """The ego car at each point cloud with a usable pose."""
    poses = {}
    for row in database.rows("ego_pose", ("token", *_POSE)):
        poses[token(row[0])] = row[1:]
    known = [number for number, pose in enumerate(clouds.pose) if pose in poses]
    values = numbers([cell for number in known for cell in poses[clouds.pose[number]]])
    x, y, qw, qx, qy, qz, forward, left, turn_rate = values.reshape(-1, len(_POSE)).T
    heading = np.arctan2(2 * (qw * qz + qx * qy), 1 - 2 * (qy**2 + qz**2))
    # From the rear axle to the middle of the car, which moves sideways when it turns.
    left = left + np.nan_to_num(turn_rate) * REAR_AXLE_TO_CENTER_M
    cosine = np.cos(heading)
    sine = np.sin(heading)
    number = {
        "x": x + REAR_AXLE_TO_CENTER_M * cosine,
        "y": y + REAR_AXLE_TO_CENTER_M * sine,
        "heading": heading,
        "vx": cosine * forward - sine * left,
        "vy": sine * forward + cosine * left,
        "length": np.full(len(x), EGO_LENGTH_M),
        "width": np.full(len(x), EGO_WIDTH_M),
        "cloud": np.array(known, np.float64),
    }
    return _usable(_Part([EGO] * len(x), ["vehicle"] * len(x), number), path, "ego_pose")


def _boxes(path: Path, database: Database, clouds: _Clouds) -> _Part:
    """The boxes of other agents, with their headings and sizes."""
    category = {token(row[0]): str(row[1]) for row in database.rows("category", ("token", "name"))}
    kinds = {}
    for track, name in database.rows("track", ("token", "category_token")):
        kinds[token(track)] = _KINDS.get(category.get(token(name), ""), "")
    rows = []
    cloud = []
    for row in database.rows("lidar_box", ("lidar_pc_token", "track_token", *_BOX)):
        step = clouds.number_of.get(token(row[0]))
        if step is not None:
            rows.append(row)
            cloud.append(step)
    values = numbers([cell for row in rows for cell in row[2:]])
    x, y, yaw, length, width = values.reshape(-1, len(_BOX)).T
    unknown = np.full(len(rows), np.nan)
    number = {"x": x, "y": y, "heading": np.arctan2(np.sin(yaw), np.cos(yaw))}
    number |= {"vx": unknown, "vy": unknown, "length": length, "width": width}
    number["cloud"] = np.array(cloud, np.float64)
    tracks = [token(row[1]) for row in rows]
    part = _Part(tracks, [kinds.get(name, "") for name in tracks], number)
    return _usable(part, path, "lidar_box")


def _usable(part: _Part, path: Path, table: str) -> _Part:
    """The rows with a position; others are counted as dropped."""
    keep = np.isfinite(part.number["x"]) & np.isfinite(part.number["y"])
    num_dropped = int(np.count_nonzero(~keep))
    if not num_dropped:
        return part
    report_dropped(path, {f"row: {table}: x, y: no finite number": num_dropped})
    rows = np.flatnonzero(keep).tolist()
    number = {name: values[keep] for name, values in part.number.items()}
    track = [part.track[row] for row in rows]
    return _Part(track, [part.kind[row] for row in rows], number)


def _place(database: Database) -> str:
    """Name of the folder of the map of a log, "" without a usable one."""
    for [version] in database.rows("log", ("map_version",)):
        place = str(version or "")
        place = _PLACES.get(place, place)
        if place.replace("-", "").replace("_", "").isalnum():
            return place[:100]
    return ""
