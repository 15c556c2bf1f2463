"""Reader of CommonRoad scenarios (XML, versions 2018b and 2020a).

A scenario has lanelets with boundaries and links, obstacles with a recorded trajectory at multiples
of `timeStepSize`, and planning problems, which are not read. Boundaries run in the direction of
travel. Obstacles that are predicted as sets of occupied areas have no positions: they are counted
as dropped, and so are states with an interval instead of a position.
"""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.readers.table.table_file import TableColumns
from data_prep.readers.track_files import (
    Recorded,
    columns_of,
    from_frames,
    with_velocity,
)
from data_prep.readers.xml_files import XmlFiles
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.lanelet2 import centerline
from trajformer.scenes.parsed_file import cached_by_file, xml_elements
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.vector_map import NO_MAP, VectorMap, build_map, without_repeats

MAX_BYTES = 256 << 20  # a hundred times the largest scenario
MAX_POINTS = 1_000_000  # of the map
MAX_COORDINATE_M = 1e8
MAX_STATIC_ROWS = 1_000_000
MAX_LANE_M = 10_000.0  # a limit of the number of points of a centerline
_TAGS = ("lanelet", "obstacle", "dynamicObstacle", "staticObstacle", "commonRoad")
_KINDS = {
    "car": "vehicle",
    "truck": "vehicle",
    "taxi": "vehicle",
    "priorityVehicle": "vehicle",
    "bus": "bus",
    "bicycle": "cyclist",
    "motorcycle": "motorcyclist",
    "pedestrian": "pedestrian",
    "parkedVehicle": "vehicle",
    "constructionZone": "construction",
    "roadBoundary": "static",
    "building": "static",
    "pillar": "static",
    "median_strip": "static",
    "mediumStrip": "static",
    "unknown": "",
}
_LANES = {"bus": PolylineKind.LANE_BUS, "busLane": PolylineKind.LANE_BUS}
_LANES |= {"bicycleLane": PolylineKind.LANE_BIKE}
_NO_LANES = ("sidewalk", "crosswalk", "parking", "border")


@dataclass
class _Rows:
    """The states of all obstacles, in lists of the same length."""

    track: list[int] = field(default_factory=list)
    values: list[tuple[float, float, float, float, float]] = field(default_factory=list)
    sizes: dict[int, tuple[float, float]] = field(default_factory=dict)  # by track
    static: dict[int, tuple[float, float, float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scenario:
    """A file: its rows by obstacle and time step, its lanes and the seconds between steps."""

    columns: TableColumns
    lanes: VectorMap
    step_s: float


@dataclass(frozen=True)
class CommonRoad(XmlFiles):
    """Reader of CommonRoad scenarios.

    Attributes:
        period_s: seconds between steps. Scenarios with another step are interpolated, unless a step
            is a whole number of theirs.
        num_history: observed steps of a window.
        num_future: steps to predict.
        stride: steps between the starts of windows.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
    """

    num_history: int = 10
    num_future: int = 30
    name: ClassVar[str] = "commonroad"
    layout: ClassVar[str] = "RAW/<split>/*.xml, or RAW/*.xml"

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a scenario, see `TrackFiles`."""
        scenario = read_scenario(files[0])
        return from_frames(scenario.columns, 1.0 / scenario.step_s, self.period_s)

    def map_near(self, path: Path, raw: Path, positions: np.ndarray) -> VectorMap:
        """Lanelets near the agents."""
        lanes = read_scenario(path).lanes
        if lanes is NO_MAP:
            return lanes
        return lanes.near(positions, self.map_radius_m, path)


@cached_by_file(4)
def read_scenario(path: Path) -> Scenario:
    """Read and check a file; a SceneError names the file and the element."""
    dropped = Counter[str]()
    rows = _Rows()
    names: list[str] = []
    kinds: list[str] = []
    lanelets: dict[int, _Lanelet] = {}
    step_s = np.nan
    try:
        for element in xml_elements(path, MAX_BYTES, _TAGS):
            if element.tag == "commonRoad":
                step_s = float(element.get("timeStepSize", "nan"))
                continue
            try:
                if element.tag == "lanelet":
                    _add_lanelet(element, lanelets)
                else:
                    name = element.attrib["id"].strip()
                    kinds.append(_add_obstacle(element, len(names), rows, dropped))
                    names.append(name)
            except (ValueError, KeyError) as error:
                dropped[f"{element.tag}: {one_line(error)}"] += 1
            element.clear()  # frees memory
    except (ElementTree.ParseError, ValueError, OSError) as error:
        raise SceneError(f"{path}: not a CommonRoad scenario: {one_line(error)}") from error
    if not 1e-3 <= step_s <= 60.0:
        raise SceneError(f"{path}: timeStepSize: {step_s:g}, expected seconds from .001 to 60")
    if not rows.track:
        problem = next(iter(dropped), "no obstacle with a trajectory")
        raise SceneError(f"{path}: dynamicObstacle: {problem}")
    report_dropped(path, dropped)
    _repeat_static(rows)
    return Scenario(_columns(names, kinds, rows), _vector_map(path, lanelets), step_s)


# ---- obstacles -----------------------------------------------------------------------------------


def _add_obstacle(
    element: ElementTree.Element, number: int, rows: _Rows, dropped: Counter[str]
) -> str:
    """Add the states of an obstacle, and return its kind; ValueError without a usable state."""
    states = [element.find("initialState"), *element.iterfind("trajectory/state")]
    if element.find("occupancySet") is not None:
        raise ValueError("predicted as occupied areas, which have no positions")
    rectangle = element.find("shape/rectangle")
    length, width = 0.0, 0.0
    if rectangle is not None:
        length = _number(rectangle, "length")
        width = _number(rectangle, "width")
    used = []
    for state in states:
        if state is None:
            continue
        try:
            used.append(_state(state))
        except ValueError as error:
            dropped[f"state: {one_line(error)}"] += 1
    if not used:
        raise ValueError("no usable state")
    rows.track += [number] * len(used)
    rows.values += used
    rows.sizes[number] = (length, width)
    if element.tag == "staticObstacle" or element.findtext("role", "") == "static":
        rows.static[number] = used[0]
    word = element.findtext("type", "unknown").strip()
    if word not in _KINDS:
        dropped[f"type: unknown value {one_line(word[:40])!r}"] += 1
    return _KINDS.get(word, "")


def _repeat_static(rows: _Rows) -> None:
    """Add the state of static obstacles at all later times of the other ones."""
    times = {values[0] for values in rows.values}
    if len(times) * len(rows.static) > MAX_STATIC_ROWS:
        return  # they have one state then
    for number, (time, *rest) in rows.static.items():
        x, y, heading, _ = rest
        later = [(other, x, y, heading, 0.0) for other in times if other > time]
        rows.track += [number] * len(later)
        rows.values += later


def _state(state: ElementTree.Element) -> tuple[float, float, float, float, float]:
    """Time step, x, y, orientation and speed of a state, NaN for a missing speed."""
    point = state.find("position/point")
    if point is None:
        raise ValueError("position: no point")
    x = _number(point, "x")
    y = _number(point, "y")
    if not (abs(x) <= MAX_COORDINATE_M and abs(y) <= MAX_COORDINATE_M):
        raise ValueError("position: expected metres")
    time = _number(state, "time/exact")
    heading = _number(state, "orientation/exact")
    speed = np.nan
    if state.find("velocity/exact") is not None:
        speed = _number(state, "velocity/exact")
    return time, x, y, heading, speed


def _number(element: ElementTree.Element, name: str) -> float:
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"{name}: no such element")
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(f"{name}: no finite number")
    return value


def _columns(names: list[str], kinds: list[str], rows: _Rows) -> TableColumns:
    """The rows of obstacles as a table; velocities along the orientation."""
    track = np.array(rows.track, np.int64)
    time, x, y, heading, speed = np.array(rows.values, np.float64).T
    size = np.array([rows.sizes.get(number, (0.0, 0.0)) for number in range(len(names))])
    number = {"step": time, "x": x, "y": y, "heading": heading}
    number |= {"length": size[track, 0], "width": size[track, 1]}
    ids = [names[index] for index in rows.track]
    words = [kinds[index] for index in rows.track]
    return columns_of(with_velocity(number, speed), ids, words)


# ---- lanelets ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Lanelet:
    """A lanelet that is a lane."""

    kind: int
    flags: int
    left: np.ndarray  # float64 [n, 2], in the direction of travel, like the right boundary
    right: np.ndarray
    links: tuple[tuple[int, int, int], ...]


def _add_lanelet(element: ElementTree.Element, lanelets: dict[int, _Lanelet]) -> None:
    """Add a lanelet, unless it is no lane; ValueError if it cannot be used."""
    lanelet_id = int(element.attrib["id"])
    if lanelet_id in lanelets or not abs(lanelet_id) < 2**63:
        raise ValueError("id: used twice, or not within 64 bits")
    types = [word.text or "" for word in element.iterfind("laneletType")]
    if any(word.strip() in _NO_LANES for word in types):
        return
    kind = PolylineKind.LANE_VEHICLE
    for word in types:
        kind = _LANES.get(word.strip(), kind)
    flags = LaneFlag.NONE
    if any(word.strip() == "intersection" for word in types):
        flags |= LaneFlag.INTERSECTION
    if element.find("stopLine") is not None or element.find("trafficLightRef") is not None:
        flags |= LaneFlag.TRAFFIC_CONTROL
    left = _boundary(element, "leftBound")
    right = _boundary(element, "rightBound")
    links = tuple(_links(lanelet_id, element))
    lanelets[lanelet_id] = _Lanelet(int(kind), int(flags), left, right, links)


def _boundary(element: ElementTree.Element, name: str) -> np.ndarray:
    """Points float64 [n, 2] of a boundary; ValueError for fewer than two."""
    points = []
    for point in element.iterfind(f"{name}/point"):
        points.append((_number(point, "x"), _number(point, "y")))
    line = without_repeats(np.array(points, np.float64).reshape(-1, 2))
    if len(line) < 2 or np.abs(line).max() > MAX_COORDINATE_M:
        raise ValueError(f"{name}: expected at least two points in metres")
    if np.abs(np.diff(line, axis=0)).sum() > MAX_LANE_M:
        raise ValueError(f"{name}: longer than {MAX_LANE_M:g} m")
    return line


def _links(lanelet_id: int, element: ElementTree.Element) -> Iterator[tuple[int, int, int]]:
    """Links to other lanelets; neighbors of the opposite direction have none."""
    names = {"successor": EdgeKind.SUCCESSOR, "predecessor": EdgeKind.PREDECESSOR}
    names |= {"adjacentLeft": EdgeKind.LEFT, "adjacentRight": EdgeKind.RIGHT}
    for name, kind in names.items():
        for link in element.iterfind(name):
            if link.get("drivingDir", "same") == "same":
                yield lanelet_id, int(link.get("ref", "")), int(kind)


def _vector_map(path: Path, lanelets: dict[int, _Lanelet]) -> VectorMap:
    """Centerlines of the lanelets, then their outlines as drivable areas."""
    heads = []
    lines = []
    outlines = []
    links: list[tuple[int, int | None, int]] = []
    for lanelet_id, lanelet in lanelets.items():
        heads.append((lanelet_id, lanelet.kind, lanelet.flags))
        lines.append(centerline(lanelet.left, lanelet.right))
        ring = [lanelet.left, lanelet.right[::-1], lanelet.left[:1]]
        outlines.append(np.concatenate(ring))
        links += lanelet.links
    if not lines:
        return NO_MAP
    heads += [(lanelet_id, int(PolylineKind.DRIVABLE_AREA), 0) for lanelet_id in lanelets]
    lines += outlines
    lengths = [len(line) for line in lines]
    if sum(lengths) > MAX_POINTS:
        raise SceneError(f"{path}: lanelet: {sum(lengths)} points, expected up to {MAX_POINTS}")
    return build_map(heads, lengths, np.concatenate(lines), links)
