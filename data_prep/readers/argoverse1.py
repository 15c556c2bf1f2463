"""Reader of Argoverse 1 motion forecasting: `<split>/data/<sequence>.csv` and vector maps.

A file holds positions only: 20 observed steps and, except in the test split, 30 future ones. The
timestamps are irregular, so a step is the rank of its timestamp. Velocity and heading are estimated
(see `kinematics` and `lane_heading`). Vector maps are XML files of nodes and ways,
`map_files/pruned_argoverse_<CITY>_<id>_vector_map.xml`.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from data_prep.reader import Input, StagedReader
from data_prep.readers import columns
from data_prep.readers.row_check import RowCheck
from trajformer.config import Config
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.kinematics import estimate_motion
from trajformer.scenes.lane_heading import face_along_lanes
from trajformer.scenes.parsed_file import cached_by_file, xml_elements
from trajformer.scenes.scene import (
    MAX_ORIGIN_M,
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    PolylineKind,
    Scene,
)
from trajformer.scenes.vector_map import VectorMap, build_map

PERIOD_S = 0.1
NUM_HISTORY = 20
NUM_FUTURE = 30
LANE_DISTANCE_M = 3.0  # the included weights were trained with it
# At least ten times the largest published sequence, and several times the largest city.
MAX_FILE_BYTES = 16 << 20
MAX_ROWS = 50_000
MAX_TRACKS = 2_000
MAX_MAP_BYTES = 64 << 20
_KINDS = {
    "AGENT": AgentKind.VEHICLE,
    "AV": AgentKind.VEHICLE,
    "OTHERS": AgentKind.UNKNOWN,
}
_ROLES = {"AGENT": AgentRole.FOCAL}  # the others are context
_LIMITS = {"TIMESTAMP": 1e15, "X": MAX_ORIGIN_M, "Y": MAX_ORIGIN_M}  # largest absolute values
_TEXT = ("TRACK_ID", "OBJECT_TYPE", "CITY_NAME")
_TURNS = {"NONE": LaneFlag.NONE, "LEFT": LaneFlag.TURN_LEFT, "RIGHT": LaneFlag.TURN_RIGHT}
_FLAGS = {"is_intersection": LaneFlag.INTERSECTION, "has_traffic_control": LaneFlag.TRAFFIC_CONTROL}
_LINKS = {
    "successor": EdgeKind.SUCCESSOR,
    "predecessor": EdgeKind.PREDECESSOR,
    "l_neighbor_id": EdgeKind.LEFT,
    "r_neighbor_id": EdgeKind.RIGHT,
}


@dataclass(frozen=True)
class Argoverse1(StagedReader, Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of Argoverse 1 motion forecasting.

    Attributes:
        map_radius_m: lanes within this distance of the observed path of the AGENT are kept.
    """

    map_radius_m: float = 100.0
    name: ClassVar[str] = "argoverse1"
    layout: ClassVar[str] = (
        "RAW/<split>/data/<sequence>.csv and "
        "RAW/map_files/pruned_argoverse_<CITY>_<id>_vector_map.xml"
    )
    published: ClassVar[dict[str, int]] = {"train": 205_942, "val": 39_472, "test_obs": 78_143}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder that have a `data` folder with csv files."""
        folders = [folder for folder in raw.glob("*/data") if next(folder.glob("*.csv"), None)]
        return sorted(folder.parent.name for folder in folders)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Csv files of a split, by sequence number."""
        files = list((raw / split / "data").glob("*.csv"))
        files.sort(key=lambda path: (len(path.stem), path.stem))
        return [Input(path) for path in files]

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a folder holds the maps."""
        return path.name == "map_files"

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one sequence in stages, see `Reader.read`."""
        path = item.path
        table, num_lost = columns.read_csv(path, _LIMITS, _TEXT, MAX_FILE_BYTES)
        columns.check_count(len(table), MAX_ROWS, "rows", path)
        yield

        number, text = _usable_rows(table, num_lost, path)
        # Rows of the table become arrays [A, T].
        step, num_steps = _steps(number["TIMESTAMP"], path)
        agent_id, first_row, agent = columns.groups(text["TRACK_ID"])
        columns.check_count(len(agent_id), MAX_TRACKS, "tracks", path)
        cell, valid = columns.cells(agent_id, agent, step, num_steps, f"{path}: TRACK_ID")
        xy = np.stack([number["X"], number["Y"]], -1)
        position = columns.fill(valid, cell, xy)  # [A, T, 2] in the city frame
        types = columns.values_at(text["OBJECT_TYPE"], first_row)
        kinds = columns.translate_types(types, _KINDS, "OBJECT_TYPE", path)
        kind = np.array(kinds, np.uint8)
        role = np.array([_ROLES.get(word, AgentRole.CONTEXT) for word in types], np.uint8)

        observed_path = _observed_path_of_focal(position, valid, role, path)
        city = columns.only_value(text, "CITY_NAME", path)
        map_file = _map_file(raw, city, path)
        lanes = load_map(map_file).near(observed_path, self.map_radius_m, map_file)
        yield

        velocity, heading, length = estimate_motion(position, valid, NUM_HISTORY, PERIOD_S)
        # OTHERS may be pedestrians, but most are vehicles.
        everyone = np.ones(len(valid), bool)
        heading = face_along_lanes(
            heading, length, position, valid, everyone, lanes, LANE_DISTANCE_M
        )
        agents = columns.Agents(agent_id, kind, role, position, heading, velocity, valid)
        name = (path.stem, self.name, split, city)
        clock = (PERIOD_S, NUM_HISTORY, NUM_FUTURE)
        return agents.scene(name, clock, observed_path[-1], lanes)


def _usable_rows(
    table: pa.Table, num_lost: int, path: Path
) -> tuple[dict[str, np.ndarray], dict[str, columns.Column]]:
    """Columns of numbers, float64 [n], and of text, without the rows that cannot be used.

    SceneError: they are many, or one of them is a row of the AGENT.
    """
    check = RowCheck(path, len(table))
    check.lose(num_lost, "another number of cells than the header")
    text = columns.usable_text(table, _TEXT, check)
    number = columns.usable_numbers(table, _LIMITS, check)
    agent_id, _, agent = columns.groups(text["TRACK_ID"])
    _, time = np.unique(number["TIMESTAMP"], return_inverse=True)
    xy = (number["X"], number["Y"])
    columns.drop_repeated_steps(agent_id, agent, time, xy, "TRACK_ID", check)
    if not check.is_usable.all():
        types, _, kind = columns.groups(text["OBJECT_TYPE"])
        is_focal = np.array([_ROLES.get(word) == AgentRole.FOCAL for word in types])[kind]
        check.need(np.isin(agent, agent[is_focal]))
    rows = check.finish()
    return columns.take_rows(number, rows), columns.take_rows(text, rows)


def _steps(timestamp: np.ndarray, path: Path) -> tuple[np.ndarray, int]:
    """Step of each row, the rank of its timestamp, int64 [n]; and the number of steps T."""
    times, step = np.unique(timestamp, return_inverse=True)
    allowed = (NUM_HISTORY, NUM_HISTORY + NUM_FUTURE)
    if len(times) not in allowed:
        expected = " or ".join(map(str, allowed))
        raise SceneError(
            f"{path}: TIMESTAMP: {len(times)} different timestamps, expected {expected}"
        )
    return step, len(times)


def _observed_path_of_focal(
    position: np.ndarray, valid: np.ndarray, role: np.ndarray, path: Path
) -> np.ndarray:
    """Positions [n, 2] of the AGENT in its observed steps; SceneError unless there is one AGENT."""
    [focal] = np.nonzero(role == AgentRole.FOCAL)
    observed = valid[focal, :NUM_HISTORY]
    if len(focal) != 1 or not observed.any():
        raise SceneError(
            f"{path}: OBJECT_TYPE: {len(focal)} tracks are AGENT, "
            "expected one with an observed step"
        )
    return position[focal, :NUM_HISTORY][observed]


# ---- vector maps ---------------------------------------------------------------------------------


def _map_file(raw: Path, city: str, path: Path) -> Path:
    """Vector map of the city of a sequence; SceneError without one."""
    files = _map_files(raw)
    if city not in files:
        known = ", ".join(sorted(files)) or "none"
        name = repr(city[:40])[1:-1]  # may hold a line break
        raise SceneError(
            f"{path}: CITY_NAME: no map_files/pruned_argoverse_{name}_*_vector_map.xml "
            f"(cities: {known})"
        )
    return files[city]


@lru_cache(maxsize=64)
def _map_files(raw: Path) -> dict[str, Path]:
    """Vector map of each city.

    The folder `map_files` may be in the raw folder, in a split, or next to the raw folder.
    """
    folders = [raw / "map_files", *sorted(raw.glob("*/map_files")), raw.parent / "map_files"]
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("pruned_argoverse_*_vector_map.xml")):
            match = re.fullmatch(r"pruned_argoverse_(\w+)_\d+_vector_map\.xml", path.name)
            if match:
                files.setdefault(match[1], path)
    return files


@dataclass(frozen=True)
class _Lane:
    """A lane of a vector map."""

    lane_id: int
    flags: int  # LaneFlag
    points: list[tuple[float, float]]  # x, y in metres
    links: list[tuple[int, int, int]]  # (lane id, lane id, EdgeKind), from this lane


@cached_by_file(8)
def load_map(path: Path) -> VectorMap:
    """All usable lanes of a city: those with two or more different points and an own id.

    The others are dropped and counted by cause. SceneError unless the file is XML with such lanes.
    """
    dropped = Counter[str]()
    try:
        lanes = _read_lanes(path, dropped)
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        problem = f"{type(error).__name__}: {one_line(error)}"
        raise SceneError(f"{path}: not a vector map: {problem}") from error
    if not lanes:
        problem = next(iter(dropped), "no lanes")
        raise SceneError(f"{path}: way: {problem}")

    # Points that repeat the previous point of their lane are dropped.
    lengths = [len(lane.points) for lane in lanes]
    all_points = chain.from_iterable(lane.points for lane in lanes)
    point = np.array(list(all_points)).reshape(-1, 2)
    lane_index = np.arange(len(lanes)).repeat(lengths)
    keep = np.ones(len(point), bool)
    keep[1:] = (lane_index[1:] != lane_index[:-1]) | (point[1:] != point[:-1]).any(1)
    point = point[keep]
    lane_index = lane_index[keep]

    num_points = np.bincount(lane_index, minlength=len(lanes))
    far = ~(np.abs(point) <= MAX_ORIGIN_M).all(1)  # also NaN
    num_far = np.bincount(lane_index, far, len(lanes))
    broken = (num_points < 2) | (num_far > 0)
    if broken.any():
        cause = f"expected two different points within {MAX_ORIGIN_M:g} m of zero"
        if broken.all():
            raise SceneError(f"{path}: lane {lanes[0].lane_id}: {cause}")
        dropped[f"way: {cause}"] += int(broken.sum())
        point = point[~broken[lane_index]]
        num_points = num_points[~broken]
        lanes = [lanes[index] for index in np.flatnonzero(~broken).tolist()]
    report_dropped(path, dropped)
    heads = [(lane.lane_id, int(PolylineKind.LANE_VEHICLE), lane.flags) for lane in lanes]
    links = chain.from_iterable(lane.links for lane in lanes)
    return build_map(heads, num_points, point, links)


def _read_lanes(path: Path, dropped: Counter[str]) -> list[_Lane]:
    """The ways of a file as lanes; unusable ways and fields are counted in `dropped`.

    Raises ParseError, KeyError, ValueError or OSError for another file.
    """
    nodes: dict[str, tuple[float, float]] = {}
    lanes: dict[int, _Lane] = {}
    for element in xml_elements(path, MAX_MAP_BYTES, ("node", "way")):
        if element.tag == "node":
            value = element.attrib
            nodes[value["id"]] = (_number(value["x"]), _number(value["y"]))
        else:
            try:
                lane = _parse_lane(element, nodes, dropped)
                if lane.lane_id in lanes:
                    raise ValueError("lane_id: also the id of another lane")
                lanes[lane.lane_id] = lane
            except KeyError as error:
                dropped[f"way: a missing node or field, such as {one_line(error)}"] += 1
            except ValueError as error:
                dropped[f"way: {one_line(error)}"] += 1
        element.clear()  # frees memory
    return list(lanes.values())


def _number(text: str) -> float:
    """A coordinate, NaN if it is no number."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _parse_lane(
    way: ElementTree.Element, nodes: dict[str, tuple[float, float]], dropped: Counter[str]
) -> _Lane:
    """The lane of an element (KeyError: something is missing, ValueError: something is wrong).

    Unknown turns and links are counted in `dropped`.
    """
    lane_id = int(way.attrib["lane_id"])
    tags = [(tag.attrib["k"], tag.attrib["v"]) for tag in way.iter("tag")]
    value = dict(tags)
    if not -(2**63) <= lane_id < 2**63:
        raise ValueError("lane_id: not within 64 bits")
    turn = value.get("turn_direction", "NONE")
    if turn not in _TURNS:
        dropped[f"way: turn_direction: unknown value {one_line(turn[:40])!r}"] += 1
    flags = int(_TURNS.get(turn, LaneFlag.NONE))
    for name, flag in _FLAGS.items():
        if value.get(name) == "True":
            flags |= int(flag)
    points = [nodes[nd.attrib["ref"]] for nd in way.iter("nd")]
    links = []
    for name, other in tags:  # a lane may have several successors and predecessors
        if name in _LINKS and other != "None":
            if re.fullmatch(r"-?\d{1,18}", other):
                links.append((lane_id, int(other), int(_LINKS[name])))
            else:
                dropped[f"way: {name}: no whole number"] += 1
    return _Lane(lane_id, flags, points, links)
