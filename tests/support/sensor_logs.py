"""Small sensor logs in the layout of Argoverse 2, and functions that read and compare them."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import feather
from support import fixtures
from support.fixtures import Track

from data_prep.reader import Input
from data_prep.readers.argoverse2.sensor import Argoverse2Sensor
from trajformer.scenes.scene import Scene

H, F = 50, 60
T0 = 315_966_253_660_357_000  # of the first sweep, nanoseconds
CITY_XY = np.array([1000.0, -700.0])  # position of the map of `fixtures`
EGO_YAW = 0.3
Columns = dict[str, np.ndarray]
straight = partial(fixtures.straight, origin=CITY_XY)


def ego_path(steps: int) -> np.ndarray:
    """Positions [steps, 2] of the ego vehicle: 5 m/s along +x."""
    return straight(steps, (0.0, -4.0), (5.0, 0.0))


def small_tracks(steps: int = 130) -> list[Track]:
    """Objects near the ego vehicle: a car, a slower bus, a pedestrian, a parked car and a cone.

    A bicycle appears late, and one object is seen in one step.
    """
    tracks: list[Track] = []

    def add(name: str, kind: str, positions: np.ndarray, **more: Any) -> None:
        tracks.append(Track(name, kind, positions, **more))

    add("car", "REGULAR_VEHICLE", straight(steps, (-30.0, 10.0), (10.0, 0.0)))
    add("bus", "BUS", straight(steps, (5.0, 0.0), (4.0, 0.0)))
    add("walker", "PEDESTRIAN", straight(steps, (40.0, 20.0), (0.0, -1.4)), heading=-np.pi / 2)
    add("parked", "REGULAR_VEHICLE", straight(steps, (12.0, -9.0), (0.0, 0.0)), heading=3.0)
    add("cone", "CONSTRUCTION_CONE", straight(steps, (14.0, -9.0), (0.0, 0.0)))
    late = straight(steps - 60, (20.0, 5.0), (-6.0, 0.0))
    add("late", "BICYCLIST", late, start=60, heading=np.pi)
    add("glimpse", "DOG", straight(1, (9.0, 9.0), (0.0, 0.0)), start=30)
    return tracks


def stamps(step: np.ndarray) -> np.ndarray:
    """Timestamps int64 [n] of steps, up to 4 ms off the grid."""
    jitter = np.where(step % 3 == 1, 4_000_000, -3_000_000)
    jitter[step == 0] = 0
    return T0 + 100_000_000 * step + jitter


def annotations(tracks: list[Track]) -> Columns:
    """Rows of the annotations file: cuboids in the frame of the ego vehicle."""
    parts = [_cuboids(track) for track in tracks]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cuboids(track: Track) -> Columns:
    count = len(track.positions)
    step = track.start + np.arange(count)
    ego_position = ego_path(int(step[-1]) + 1)[step]
    x, y = (track.positions - ego_position).T
    cos = np.cos(EGO_YAW)
    sin = np.sin(EGO_YAW)
    half_angle = (track.heading - EGO_YAW) / 2
    return {
        "timestamp_ns": stamps(step),
        "tx_m": cos * x + sin * y,
        "ty_m": cos * y - sin * x,
        "qw": np.full(count, np.cos(half_angle)),
        "qx": np.zeros(count),
        "qy": np.zeros(count),
        "tz_m": np.zeros(count),
        "qz": np.full(count, np.sin(half_angle)),
        "track_uuid": np.full(count, track.name),
        "category": np.full(count, track.kind),
    }


def poses(steps: int = 130) -> Columns:
    """Rows of the pose file: a pose at every sweep and one between each two."""
    step = np.arange(steps)
    time = np.stack([stamps(step), stamps(step) + 50_000_000], 1).ravel()
    x, y = ego_path(steps).repeat(2, 0).T
    count = len(time)
    return {
        "timestamp_ns": time,
        "qw": np.full(count, np.cos(EGO_YAW / 2)),
        "qx": np.zeros(count),
        "qy": np.zeros(count),
        "qz": np.full(count, np.sin(EGO_YAW / 2)),
        "tx_m": x,
        "ty_m": y,
        "tz_m": np.zeros(count),
    }


def take(columns: Columns, keep: np.ndarray) -> Columns:
    """The rows where keep is True, or with these numbers."""
    return {name: value[keep] for name, value in columns.items()}


def write_log(folder: Path, rows: Columns | None = None, pose_rows: Columns | None = None) -> Path:
    """Write a log into folder, by convention RAW/<split>/<log>; returns its annotations."""
    if rows is None:
        rows = annotations(small_tracks())
    if pose_rows is None:
        pose_rows = poses()
    (folder / "map").mkdir(parents=True, exist_ok=True)
    path = folder / "annotations.feather"
    feather.write_feather(pa.table(rows), path)
    feather.write_feather(pa.table(pose_rows), folder / "city_SE3_egovehicle.feather")
    archive = folder / "map" / f"log_map_archive_{folder.name}____PIT_city_57819.json"
    archive.write_text(json.dumps(fixtures.argoverse2_map()))
    (folder / "map" / f"{folder.name}___img_Sim2_city.json").write_text("{}")
    return path


def read(path: Path, part: str = "000", **options: Any) -> Scene:
    """Read a window of the log at RAW/val/<log>."""
    reader = Argoverse2Sensor(**options)
    return reader.read(Input(path, part), "val", path.parents[2]).validate()


def make(folder: Path, tracks: list[Track], **options: Any) -> Scene:
    """Write a log with these tracks and read its first window."""
    return read(write_log(folder / "raw" / "val" / "log-1", annotations(tracks)), **options)


def without_future(path: Path, cut_ns: int, out: Path) -> Path:
    """A copy of a log in which everything after a timestamp is scrambled, lost or new."""
    out = out / "val" / path.parent.name
    shutil.copytree(path.parent / "map", out / "map")
    shutil.copy(path.with_name("city_SE3_egovehicle.feather"), out)
    table = feather.read_table(path)
    rows = {name: np.array(table[name].to_numpy()) for name in table.column_names}
    rng = np.random.default_rng(0)
    later = rows["timestamp_ns"] > cut_ns
    for name in ("tx_m", "ty_m"):
        rows[name] = rows[name] + np.where(later, rng.normal(0.0, 30.0, len(later)), 0.0)
    is_last = rows["timestamp_ns"] == rows["timestamp_ns"].max()
    keep = ~later | is_last | (rng.random(len(later)) < 0.5)
    new = np.flatnonzero(later)[:3]
    rows["track_uuid"][new] = [f"{i}-new" for i in range(3)]
    feather.write_feather(pa.table(take(rows, keep)), out / path.name)
    return out / path.name
