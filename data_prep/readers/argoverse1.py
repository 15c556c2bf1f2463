"""Argoverse 1 motion forecasting: `RAW/<split>/data/<sequence>.csv` and the vector maps in `map_files`, to `Scene`.

A file holds positions only: 20 observed steps and, outside the test split, 30 future ones. Its timestamps are
irregular, so a step is the rank of its timestamp. Velocity and heading are estimated (see `kinematics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from data_prep.reader import Input, Stages, finish
from data_prep.readers.argoverse1_map import load_map, map_file
from data_prep.readers.columns import groups, numbers, values_at
from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.raw_file import read_file, told
from data_prep.readers.vector_map import VectorMap, distance_to_segments
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 20, 30
LANE_DISTANCE_M = 3.0  # an agent that hardly moves and is this close to a lane is taken to face along it:
LANE_HEADING_M = 1.5  # until it has moved so far, that is right more often than its displacement
MAX_FILE, MAX_ROWS, MAX_TRACKS = 16 << 20, 50_000, 2_000  # ten times the largest sequence, and a file of a hundred
NOISE_M = 0.5  # off the lanes, a displacement shorter than this says nothing: heading 0
_KINDS = {
    "AGENT": (AgentKind.VEHICLE, AgentRole.FOCAL),
    "AV": (AgentKind.VEHICLE, AgentRole.CONTEXT),
    "OTHERS": (AgentKind.UNKNOWN, AgentRole.CONTEXT),
}
_TEXT = pa.dictionary(pa.int32(), pa.string())
_COLUMNS = {
    "TIMESTAMP": pa.float64(),
    "TRACK_ID": _TEXT,
    "OBJECT_TYPE": _TEXT,
    "X": pa.float64(),
    "Y": pa.float64(),
    "CITY_NAME": _TEXT,
}
_READ = pa_csv.ReadOptions(use_threads=False)
_CONVERT = pa_csv.ConvertOptions(column_types=_COLUMNS, include_columns=list(_COLUMNS))


@dataclass(frozen=True)
class Argoverse1:
    """Reader of Argoverse 1 motion forecasting.

    Attributes:
        map_radius_m: lanes that come this close to the AGENT's observed path are kept.
    """

    map_radius_m: float = 100.0
    name: ClassVar[str] = "argoverse1"
    layout: ClassVar[str] = "RAW/<split>/data/<sequence>.csv and RAW/map_files/pruned_argoverse_<CITY>_<id>_vector_map.xml"
    published: ClassVar[dict[str, int]] = {"train": 205_942, "val": 39_472, "test_obs": 78_143}

    def splits(self, raw: Path) -> list[str]:
        """Names of the splits in a raw folder: its sub-folders with a `data` folder of csv files."""
        return sorted(path.parent.name for path in raw.glob("*/data") if next(path.glob("*.csv"), None))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Csv files of a split, by sequence number."""
        files = sorted((raw / split / "data").glob("*.csv"), key=lambda path: (len(path.stem), path.stem))
        return [Input(path) for path in files]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """One sequence.

        Raises:
            SceneError: names the file and the column, or the map file, that cannot be used.
        """
        return finish(self.stages(item, split, raw))

    def stages(self, item: Input, split: str, raw: Path) -> Stages:
        """The same in stages (`StagedReader`)."""
        path = item.path
        table = _read_csv(path)
        yield
        tracks = _Tracks.of(table, path)
        city = _city(table, path)
        focal = tracks.focal(path)
        seen = tracks.position[focal, :NUM_HISTORY][tracks.valid[focal, :NUM_HISTORY]]
        lanes = load_map(map_file(raw, city, path)).near(seen, self.map_radius_m)
        yield
        velocity, heading, length = estimate_motion(tracks.position, tracks.valid, NUM_HISTORY, PERIOD_S)
        heading = _face_along_lanes(heading, length, tracks, lanes)
        origin = seen[-1].copy()
        position = np.where(tracks.valid[..., None], tracks.position - origin, 0.0)
        return Scene(
            scene_id=path.stem,
            source=self.name,
            split=split,
            city=city,
            period_s=PERIOD_S,
            num_history=NUM_HISTORY,
            num_future=NUM_FUTURE,
            origin=origin,
            agent_id=tracks.agent_id,
            agent_kind=tracks.kind,
            agent_role=tracks.role,
            position=position.astype(np.float32),
            heading=heading.astype(np.float32),
            velocity=velocity.astype(np.float32),
            valid=tracks.valid,
            **lanes.scene_fields(origin),
        )


def _read_csv(path: Path) -> pa.Table:
    try:
        data = read_file(path, MAX_FILE)
        table = pa_csv.read_csv(pa.BufferReader(data), read_options=_READ, convert_options=_CONVERT)
    except (pa.ArrowException, OSError) as error:
        raise SceneError(f"{path}: {told(error)}") from error
    header = data[: max(data.find(b"\n"), 0)].decode(errors="replace").replace('"', "").strip().split(",")
    if twice := [name for name in _COLUMNS if header.count(name) > 1]:  # pyarrow takes one of them
        raise SceneError(f"{path}: {twice[0]}: two columns of this name")
    for name in _COLUMNS:
        if table[name].null_count:
            raise SceneError(f"{path}: {name}: empty or NaN in {table[name].null_count} rows")
    if not len(table):
        raise SceneError(f"{path}: TRACK_ID: no rows, so no agent")
    if len(table) > MAX_ROWS:
        raise SceneError(f"{path}: TRACK_ID: {len(table)} rows, far too many for one sequence")
    return table


def _city(table: pa.Table, path: Path) -> str:
    cities = table["CITY_NAME"].unique().to_pylist()
    if len(cities) != 1:
        raise SceneError(f"{path}: CITY_NAME: {len(cities)} cities in one file: {', '.join(map(repr, sorted(cities)))[:80]}")
    return cities[0]


@dataclass(frozen=True, eq=False)
class _Tracks:
    """Tracks of one file: agents by id; position float64 [A, T, 2] in the city frame, zero where not valid [A, T]."""

    agent_id: tuple[str, ...]
    kind: np.ndarray
    role: np.ndarray
    position: np.ndarray
    valid: np.ndarray

    @classmethod
    def of(cls, table: pa.Table, path: Path) -> _Tracks:
        """Rows sorted into tracks and steps."""
        times, step = np.unique(numbers(table["TIMESTAMP"]), return_inverse=True)
        if len(times) not in (NUM_HISTORY, NUM_HISTORY + NUM_FUTURE):
            allowed = f"{NUM_HISTORY} or {NUM_HISTORY + NUM_FUTURE}"
            raise SceneError(f"{path}: TIMESTAMP: {len(times)} different timestamps, expected {allowed}")
        xy = np.stack([numbers(table["X"]), numbers(table["Y"])], -1)
        if not np.isfinite(times[-1] - times[0]):
            raise SceneError(f"{path}: TIMESTAMP: infinite")
        if not (largest := np.abs(xy).max(0)).max() <= MAX_ORIGIN_M:
            name, value = ("X", largest[0]) if largest[0] >= largest[1] else ("Y", largest[1])
            problem = f"{value:g}, expected at most {MAX_ORIGIN_M:g} m either way" if np.isfinite(value) else "infinite"
            raise SceneError(f"{path}: {name}: {problem}")
        agent_id, first, agent = groups(table["TRACK_ID"])
        if len(agent_id) > MAX_TRACKS:
            raise SceneError(f"{path}: TRACK_ID: {len(agent_id)} tracks, far too many for one sequence")
        valid = np.zeros((len(agent_id), len(times)), bool)
        position = np.zeros((*valid.shape, 2))
        valid[agent, step], position[agent, step] = True, xy
        if valid.sum() != len(agent):
            raise SceneError(f"{path}: TRACK_ID: a track has two rows with one TIMESTAMP")
        types = values_at(table["OBJECT_TYPE"], first)
        if unknown := set(types) - set(_KINDS):
            raise SceneError(f"{path}: OBJECT_TYPE: unknown value {sorted(unknown)[0][:40]!r}")
        kind, role = np.array([_KINDS[name] for name in types], np.uint8).T.copy()
        return cls(tuple(agent_id), kind, role, position, valid)

    def focal(self, path: Path) -> int:
        """Index of the AGENT."""
        found = np.flatnonzero(self.role == AgentRole.FOCAL)
        if len(found) != 1:
            raise SceneError(f"{path}: OBJECT_TYPE: {len(found)} tracks are AGENT, expected one")
        if not self.valid[found[0], :NUM_HISTORY].any():
            raise SceneError(f"{path}: OBJECT_TYPE: the AGENT has no observed step")
        return int(found[0])


def _face_along_lanes(heading: np.ndarray, length: np.ndarray, tracks: _Tracks, lanes: VectorMap) -> np.ndarray:
    """Heading [A, T], where the displacement behind it is short replaced by the lane's at the track's first step."""
    heading = np.where(length < NOISE_M, 0.0, heading)
    short = (length < LANE_HEADING_M) & tracks.valid
    agents = short.any(1).nonzero()[0]
    start, end, _ = lanes.segments
    if len(agents) and len(start):
        first = tracks.position[agents, tracks.valid[agents].argmax(1)]
        distance = distance_to_segments(first, start, end)
        along = (end - start)[distance.argmin(1)]
        replace = short[agents] & (distance.min(1) <= LANE_DISTANCE_M)[:, None]
        heading[agents] = np.where(replace, np.arctan2(along[:, 1], along[:, 0])[:, None], heading[agents])
    return heading
