"""Argoverse 1 motion forecasting: `RAW/<split>/data/<sequence>.csv` and the vector maps in `map_files`, to `Scene`.

A file holds positions only: 20 observed steps and, except in the test split, 30 future ones. The timestamps are
irregular, so a step is the rank of its timestamp. Velocity and heading are estimated (see `kinematics`).
Vector maps are files `pruned_argoverse_<CITY>_<id>_vector_map.xml` of nodes and ways.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input, StagedReader
from data_prep.readers import columns
from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.raw_file import cached_by_file, one_line, xml_elements
from data_prep.readers.vector_map import VectorMap, build_map, distance_to_segments
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.scene import (
    MAX_ORIGIN_M,
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    PolylineKind,
    Scene,
)

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 20, 30
LANE_DISTANCE_M = 3.0  # an agent this close to a lane takes the heading of the lane ...
LANE_HEADING_M = (
    1.5  # ... until it has moved this far: up to there, lanes are more accurate than displacements
)
NOISE_M = 0.5  # without a lane, the heading of a shorter displacement is set to 0
MAX_FILE_BYTES, MAX_ROWS, MAX_TRACKS = (
    16 << 20,
    50_000,
    2_000,
)  # at least ten times the largest published sequence
MAX_MAP_BYTES = 64 << 20  # several times the largest city
_KINDS = {
    "AGENT": (AgentKind.VEHICLE, AgentRole.FOCAL),
    "AV": (AgentKind.VEHICLE, AgentRole.CONTEXT),
    "OTHERS": (AgentKind.UNKNOWN, AgentRole.CONTEXT),
}
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
        "RAW/<split>/data/<sequence>.csv and RAW/map_files/pruned_argoverse_<CITY>_<id>_vector_map.xml"
    )
    published: ClassVar[dict[str, int]] = {"train": 205_942, "val": 39_472, "test_obs": 78_143}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder that have a `data` folder with csv files."""
        return sorted(
            path.parent.name for path in raw.glob("*/data") if next(path.glob("*.csv"), None)
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Csv files of a split, by sequence number."""
        files = sorted(
            (raw / split / "data").glob("*.csv"), key=lambda path: (len(path.stem), path.stem)
        )
        return [Input(path) for path in files]

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one sequence in stages, see `Reader.read`."""
        path = item.path
        table = columns.read_csv(path, _LIMITS, _TEXT, MAX_FILE_BYTES)
        columns.check_count(len(table), MAX_ROWS, "rows", path)
        yield
        number = columns.numbers_within(table, _LIMITS, path)
        times, step = np.unique(number["TIMESTAMP"], return_inverse=True)
        if len(times) not in (NUM_HISTORY, NUM_HISTORY + NUM_FUTURE):
            allowed = f"{NUM_HISTORY} or {NUM_HISTORY + NUM_FUTURE}"
            raise SceneError(
                f"{path}: TIMESTAMP: {len(times)} different timestamps, expected {allowed}"
            )
        agent_id, first, agent = columns.groups(table["TRACK_ID"])
        columns.check_count(len(agent_id), MAX_TRACKS, "tracks", path)
        cell, valid = columns.cells(agent_id, agent, step, len(times), f"{path}: TRACK_ID")
        position = columns.fill(
            valid, cell, np.stack([number["X"], number["Y"]], -1)
        )  # [A, T, 2] in the city frame
        types = columns.translate(
            columns.values_at(table["OBJECT_TYPE"], first), _KINDS, "OBJECT_TYPE", path
        )
        kind, role = np.array(types, np.uint8).T.copy()
        focal = np.flatnonzero(role == AgentRole.FOCAL)
        if len(focal) != 1 or not valid[focal, :NUM_HISTORY].any():
            raise SceneError(
                f"{path}: OBJECT_TYPE: {len(focal)} tracks are AGENT, expected one with an observed step"
            )
        observed_path = position[focal, :NUM_HISTORY][valid[focal, :NUM_HISTORY]]
        city = columns.only_value(table, "CITY_NAME", path)
        if not (map_file := _map_files(raw).get(city)):
            known, name = (
                ", ".join(sorted(_map_files(raw))) or "none",
                repr(city[:40])[1:-1],
            )  # may hold a line break
            raise SceneError(
                f"{path}: CITY_NAME: no map_files/pruned_argoverse_{name}_*_vector_map.xml (cities: {known})"
            )
        lanes = load_map(map_file).near(observed_path, self.map_radius_m)
        yield
        velocity, heading, length = estimate_motion(position, valid, NUM_HISTORY, PERIOD_S)
        heading = _face_along_lanes(heading, length, position, valid, lanes)
        origin = observed_path[-1].copy()
        agents = columns.Agents(agent_id, kind, role, position - origin, heading, velocity, valid)
        return agents.scene(
            (path.stem, self.name, split, city), (PERIOD_S, NUM_HISTORY, NUM_FUTURE), origin, lanes
        )


def _face_along_lanes(
    heading: np.ndarray,
    length: np.ndarray,
    position: np.ndarray,
    valid: np.ndarray,
    lanes: VectorMap,
) -> np.ndarray:
    """Heading [A, T]; after short displacements (length [A, T]) the direction of the lane at the track's first step."""
    short = (length < LANE_HEADING_M) & valid
    agents = short.any(1).nonzero()[0]
    first = position[agents, valid[agents].argmax(1)]
    start, end, _ = lanes.segments()
    x, y = first.T[..., None]
    margin = 1.01 * LANE_DISTANCE_M  # comparisons are faster than distances
    low, high = (
        (np.minimum(start, end) - margin).T.copy(),
        (np.maximum(start, end) + margin).T.copy(),
    )
    candidates = np.flatnonzero((x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1]))
    agent, segment = np.divmod(candidates, max(len(start), 1))
    distance = distance_to_segments(
        first.take(agent, 0), start.take(segment, 0), end.take(segment, 0)
    )
    order = distance.argsort(kind="stable")[
        ::-1
    ]  # nearest last: of repeated indices, the last assignment remains
    order = order[distance[order] <= LANE_DISTANCE_M]
    along = (end - start)[segment[order]]
    direction = np.full(len(valid), np.nan)
    direction[agents[agent[order]]] = np.arctan2(along[:, 1], along[:, 0])
    heading = np.where(length < NOISE_M, 0.0, heading)
    return np.where(short & ~np.isnan(direction)[:, None], direction[:, None], heading)


# ---- vector maps ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _map_files(raw: Path) -> dict[str, Path]:
    """Vector map of each city; `map_files` may be in the raw folder, in a split, or next to the raw folder."""
    folders = [raw / "map_files", *sorted(raw.glob("*/map_files")), raw.parent / "map_files"]
    files: dict[str, Path] = {}
    for path in (
        path
        for folder in folders
        for path in sorted(folder.glob("pruned_argoverse_*_vector_map.xml"))
    ):
        if match := re.fullmatch(r"pruned_argoverse_(\w+)_\d+_vector_map\.xml", path.name):
            files.setdefault(match[1], path)
    return files


@cached_by_file(8)
def load_map(path: Path) -> VectorMap:
    """All lanes of a city; SceneError unless the file is XML, and the lanes have two or more points at known nodes."""
    nodes: dict[str, tuple[float, float]] = {}
    heads: list[tuple[int, int, int]] = []
    links: list[tuple[int, int | None, int]] = []
    points: list[tuple[float, float]] = []
    lengths: list[int] = []
    try:
        for element in xml_elements(path, MAX_MAP_BYTES, ("node", "way")):
            if element.tag == "node":
                value = element.attrib
                nodes[value["id"]] = float(value["x"]), float(value["y"])
            else:
                head, tags = _lane(element)
                heads.append(head)
                line = [nodes[nd.attrib["ref"]] for nd in element.iter("nd")]
                points += line
                lengths.append(len(line))
                links += [
                    (head[0], int(v), int(_LINKS[k]))
                    for k, v in tags
                    if k in _LINKS and v != "None"
                ]
            element.clear()  # frees memory
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        raise SceneError(
            f"{path}: not a vector map: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not 0 < len(heads) == len({head[0] for head in heads}):
        raise SceneError(f"{path}: way: {'two lanes of one lane_id' if heads else 'no lanes'}")
    point, lane = np.array(points).reshape(-1, 2), np.arange(len(heads)).repeat(lengths)
    changes = np.ones(len(point), bool)  # False where a point repeats the previous one
    changes[1:] = (lane[1:] != lane[:-1]) | (point[1:] != point[:-1]).any(1)
    point, lane = point[changes], lane[changes]
    length, far = (
        np.bincount(lane, weight, len(heads))
        for weight in (None, ~(np.abs(point) <= MAX_ORIGIN_M).all(1))
    )
    if (broken := (length < 2) | (far > 0)).any():
        lane_id = heads[broken.argmax()][0]
        raise SceneError(
            f"{path}: lane {lane_id}: expected two different points within {MAX_ORIGIN_M:g} m of zero"
        )
    return build_map(heads, length, point, links)


def _lane(way: ElementTree.Element) -> tuple[tuple[int, int, int], list[tuple[str, str]]]:
    """Id, kind and flags of a lane, and its tags."""
    lane_id, tags = (
        int(way.attrib["lane_id"]),
        [(tag.attrib["k"], tag.attrib["v"]) for tag in way.iter("tag")],
    )
    value = dict(tags)
    if not -(2**63) <= lane_id < 2**63:
        raise ValueError("way: lane_id: not within 64 bits")
    if (turn := value.get("turn_direction", "NONE")) not in _TURNS:
        raise ValueError(f"lane {lane_id}: turn_direction: unknown value {turn[:40]!r}")
    flags = int(_TURNS[turn]) + sum(
        int(flag) for name, flag in _FLAGS.items() if value.get(name) == "True"
    )
    return (lane_id, int(PolylineKind.LANE_VEHICLE), flags), tags
