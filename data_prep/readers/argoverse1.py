"""Argoverse 1 motion forecasting: `RAW/<split>/data/<sequence>.csv` and the vector maps in `map_files`, to `Scene`.

A file holds positions only: 20 observed steps and, except in the test split, 30 future ones. The timestamps are
irregular, so a step is the rank of its timestamp. Velocity and heading are estimated (see `kinematics`).
Vector maps are files `pruned_argoverse_<CITY>_<id>_vector_map.xml` of nodes and ways.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from data_prep.reader import Input, StagedReader
from data_prep.readers.columns import groups, numbers, values_at
from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.raw_file import cached_by_file, one_line, read_file
from data_prep.readers.vector_map import VectorMap, build_map, distance_to_segments, without_repeats
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 20, 30
LANE_DISTANCE_M = 3.0  # an agent this close to a lane takes the heading of the lane ...
LANE_HEADING_M = 1.5  # ... until it has moved this far: up to there, lanes are more accurate than displacements
NOISE_M = 0.5  # without a lane, the heading of a shorter displacement is set to 0
MAX_FILE_BYTES, MAX_ROWS, MAX_TRACKS = 16 << 20, 50_000, 2_000  # at least ten times the largest published sequence
MAX_MAP_BYTES = 64 << 20  # several times the largest city
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
_TURNS = {"NONE": LaneFlag.NONE, "LEFT": LaneFlag.TURN_LEFT, "RIGHT": LaneFlag.TURN_RIGHT}
_LINKS = {
    "successor": EdgeKind.SUCCESSOR,
    "predecessor": EdgeKind.PREDECESSOR,
    "l_neighbor_id": EdgeKind.LEFT,
    "r_neighbor_id": EdgeKind.RIGHT,
}


@dataclass(frozen=True)
class Argoverse1(StagedReader):
    """Reader of Argoverse 1 motion forecasting.

    Attributes:
        map_radius_m: lanes within this distance of the observed path of the AGENT are kept.
    """

    map_radius_m: float = 100.0
    name: ClassVar[str] = "argoverse1"
    layout: ClassVar[str] = "RAW/<split>/data/<sequence>.csv and RAW/map_files/pruned_argoverse_<CITY>_<id>_vector_map.xml"
    published: ClassVar[dict[str, int]] = {"train": 205_942, "val": 39_472, "test_obs": 78_143}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder that have a `data` folder with csv files."""
        return sorted(path.parent.name for path in raw.glob("*/data") if next(path.glob("*.csv"), None))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Csv files of a split, by sequence number."""
        files = sorted((raw / split / "data").glob("*.csv"), key=lambda path: (len(path.stem), path.stem))
        return [Input(path) for path in files]

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one sequence in stages.

        Raises:
            SceneError: a value or the map cannot be used; names the file and the column, or the map file.
        """
        path = item.path
        table = _read_csv(path)
        yield
        tracks = _Tracks.of(table, path)
        city = _city(table, path)
        focal = tracks.focal(path)
        observed_path = tracks.position[focal, :NUM_HISTORY][tracks.valid[focal, :NUM_HISTORY]]
        lanes = load_map(map_file(raw, city, path)).near(observed_path, self.map_radius_m)
        yield
        velocity, heading, length = estimate_motion(tracks.position, tracks.valid, NUM_HISTORY, PERIOD_S)
        heading = _face_along_lanes(heading, length, tracks, lanes)
        origin = observed_path[-1].copy()
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
        data = read_file(path, MAX_FILE_BYTES)
        table = pa_csv.read_csv(pa.BufferReader(data), read_options=_READ, convert_options=_CONVERT)
    except (pa.ArrowException, OSError) as error:
        raise SceneError(f"{path}: {one_line(error)}") from error
    header = data[: max(data.find(b"\n"), 0)].decode(errors="replace").replace('"', "").strip().split(",")
    if twice := [name for name in _COLUMNS if header.count(name) > 1]:  # pyarrow would use one of them
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
        """Arrange rows by track and step."""
        times, step = np.unique(numbers(table["TIMESTAMP"]), return_inverse=True)
        if len(times) not in (NUM_HISTORY, NUM_HISTORY + NUM_FUTURE):
            allowed = f"{NUM_HISTORY} or {NUM_HISTORY + NUM_FUTURE}"
            raise SceneError(f"{path}: TIMESTAMP: {len(times)} different timestamps, expected {allowed}")
        xy = np.stack([numbers(table["X"]), numbers(table["Y"])], -1)
        if not np.isfinite(times[-1] - times[0]):
            raise SceneError(f"{path}: TIMESTAMP: infinite")
        for name, value in zip("XY", np.abs(xy).max(0), strict=True):
            if not value <= MAX_ORIGIN_M:
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
        focal = np.flatnonzero(self.role == AgentRole.FOCAL)
        if len(focal) != 1:
            raise SceneError(f"{path}: OBJECT_TYPE: {len(focal)} tracks are AGENT, expected one")
        if not self.valid[focal[0], :NUM_HISTORY].any():
            raise SceneError(f"{path}: OBJECT_TYPE: the AGENT has no observed step")
        return int(focal[0])


def _face_along_lanes(heading: np.ndarray, length: np.ndarray, tracks: _Tracks, lanes: VectorMap) -> np.ndarray:
    """Heading [A, T]; after short displacements (length [A, T]) the direction of the lane at the track's first step."""
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


# ---- vector maps ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _map_files(raw: Path) -> dict[str, Path]:
    """Vector map of each city; `map_files` may be in the raw folder, in a split, or next to the raw folder."""
    folders = [raw / "map_files", *sorted(raw.glob("*/map_files")), raw.parent / "map_files"]
    files: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("pruned_argoverse_*_vector_map.xml"))):
        if match := re.fullmatch(r"pruned_argoverse_(\w+)_\d+_vector_map\.xml", path.name):
            files.setdefault(match[1], path)
    return files


def map_file(raw: Path, city: str, path: Path) -> Path:
    """The vector map of a city.

    Raises:
        SceneError: the city has no map; names `path`, the csv file with this city, and the known cities.
    """
    files = _map_files(raw)
    if city not in files:
        known = ", ".join(sorted(files)) or "none"
        name = repr(city[:40])[1:-1]  # may hold a line break
        raise SceneError(f"{path}: CITY_NAME: no map_files/pruned_argoverse_{name}_*_vector_map.xml (cities: {known})")
    return files[city]


@cached_by_file(8)
def load_map(path: Path) -> VectorMap:
    """All lanes of a city.

    Raises:
        SceneError: the file is not XML, or a lane names a missing node or has fewer than two points.
    """
    lanes = _LaneBuilder()
    try:
        data = read_file(path, MAX_MAP_BYTES)
        # Entities of a document type can expand to any size, and deeply nested ones crash the parser.
        if b"<!DOCTYPE" in data:
            raise ValueError("it has a document type")
        if b"\0" in data:  # UTF-16 could hide a document type
            raise ValueError("it is not UTF-8")
        parser = ElementTree.XMLParser(target=lanes, encoding="utf-8")  # overrides a declared encoding
        parser.feed(data)
        parser.close()
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        raise SceneError(f"{path}: not a vector map: {type(error).__name__}: {one_line(error)}") from error
    except SceneError as error:
        raise SceneError(f"{path}: {error}") from error
    if not lanes.lines:
        raise SceneError(f"{path}: way: no lanes")
    if len({head[0] for head in lanes.heads}) < len(lanes.heads):
        raise SceneError(f"{path}: way: two lanes of one lane_id")
    return build_map(lanes.heads, [len(line) for line in lanes.lines], np.concatenate(lanes.lines), lanes.links)


class _LaneBuilder:
    """Target of the XML parser: receives nodes, then ways with tags and references to nodes."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, int, int]] = []  # id, kind, flags
        self.lines: list[np.ndarray] = []  # centerlines [p, 2]
        self.links: list[tuple[int, int, int]] = []
        self._nodes: dict[str, tuple[float, float]] = {}
        self._tags: list[tuple[str, str]] = []  # of the current way
        self._points: list[tuple[float, float]] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle an opening tag."""
        if tag == "node":
            x, y = float(attributes["x"]), float(attributes["y"])
            if not (abs(x) <= MAX_ORIGIN_M and abs(y) <= MAX_ORIGIN_M):  # also refuses NaN
                raise SceneError(f"node {attributes['id'][:40]!r}: not a point within {MAX_ORIGIN_M:g} m of zero")
            self._nodes[attributes["id"]] = x, y
        elif tag == "nd":
            self._points.append(self._nodes[attributes["ref"]])
        elif tag == "tag":
            self._tags.append((attributes["k"], attributes["v"]))
        elif tag == "way":
            self._lane_id = int(attributes["lane_id"])
            self._tags, self._points = [], []

    def end(self, tag: str) -> None:
        """Handle a closing tag; a way becomes a lane."""
        if tag != "way":
            return
        lane_id, value = self._lane_id, dict(self._tags)
        if not -(2**63) <= lane_id < 2**63:
            raise SceneError("way: lane_id: not within 64 bits")
        if (turn := value.get("turn_direction", "NONE")) not in _TURNS:
            raise SceneError(f"lane {lane_id}: turn_direction: unknown value {turn[:40]!r}")
        flags = _TURNS[turn]
        flags |= LaneFlag.INTERSECTION if value.get("is_intersection") == "True" else LaneFlag.NONE
        flags |= LaneFlag.TRAFFIC_CONTROL if value.get("has_traffic_control") == "True" else LaneFlag.NONE
        line = without_repeats(np.array(self._points).reshape(-1, 2))
        if len(line) < 2:
            raise SceneError(f"lane {lane_id}: centreline of {len(line)} different points")
        self.heads.append((lane_id, int(PolylineKind.LANE_VEHICLE), int(flags)))
        self.lines.append(line)
        links = [(key, other) for key, other in self._tags if key in _LINKS and other != "None"]
        self.links += [(lane_id, int(other), int(_LINKS[key])) for key, other in links]
