"""Maps of nuPlan: layers of a GeoPackage in degrees, to `VectorMap` in the UTM zone of the place.

Lanes are the baseline paths of lanes and lane connectors, which cross intersections. Crosswalks
and drivable areas are outlines. Links of connectors and the sides of neighbors follow from the
geometry. Walkways, intersections, stop polygons and car parks have no counterpart in a scene.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.readers.nuplan.database import Cell, Database, numbers, open_database
from data_prep.readers.nuplan.geometry import lines_of
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.utm import utm
from trajformer.scenes.vector_map import VectorMap, build_map, without_repeats

MAX_POINTS = 5_000_000
_UTM = re.compile(r"epsg:32([67])(\d\d)", re.IGNORECASE)
_AREAS = {
    "crosswalks": PolylineKind.CROSSWALK,
    "generic_drivable_areas": PolylineKind.DRIVABLE_AREA,
}
_Lanes = dict[int, "_Lane"]


class _Lane(NamedTuple):
    """A baseline path."""

    line: np.ndarray  # float64 [n, 2], metres
    flags: int


@cached_by_file(4)
def read_map(path: Path) -> VectorMap:
    """The map of a place; a SceneError names file, layer and field."""
    dropped = Counter[str]()
    with open_database(path) as database:
        layers = _Layers(path, database, dropped)
        lanes = layers.lanes()
        links = layers.links(lanes)
        areas = layers.areas()
    report_dropped(path, dropped)
    if not lanes:
        raise SceneError(f"{path}: baseline_paths: no lane")
    heads = [(number, int(PolylineKind.LANE_VEHICLE), lane.flags) for number, lane in lanes.items()]
    lines = [lane.line for lane in lanes.values()]
    for number, (kind, line) in enumerate(areas):
        heads.append((number, int(kind), 0))
        lines.append(line)
    lengths = [len(line) for line in lines]
    if sum(lengths) > MAX_POINTS:
        raise SceneError(f"{path}: {sum(lengths)} points, expected up to {MAX_POINTS}")
    return build_map(heads, lengths, np.concatenate(lines), links)


class _Layers:
    """The layers of an open map."""

    def __init__(self, path: Path, database: Database, dropped: Counter[str]) -> None:
        self._path = path
        self._database = database
        self._dropped = dropped
        self._geometry: dict[Cell, Cell] = {}  # name of the column by layer
        for layer, column in database.rows("gpkg_geometry_columns", ("table_name", "column_name")):
            self._geometry[layer] = column
        meta = {str(key): value for key, value in database.rows("meta", ("key", "value"))}
        match = _UTM.fullmatch(str(meta.get("projectedCoordSystem", "")))
        if not match or not 1 <= int(match[2]) <= 60:
            raise SceneError(f"{path}: meta: projectedCoordSystem: expected a UTM zone, epsg:326..")
        self._is_south = match[1] == "7"
        self._zone = int(match[2])

    def lanes(self) -> _Lanes:
        """Baseline paths of lanes and connectors by their id."""
        controlled = set()
        names = ("fid", "traffic_light_stop_line_fids")
        for number, stops in self._database.rows("lane_connectors", names):
            if stops not in (None, ""):
                controlled.add(number)
        lanes: _Lanes = {}
        for lane, connector, blob in self._rows("baseline_paths", "lane_fid", "lane_connector_fid"):
            lane_id = _id(lane)
            flags = LaneFlag.NONE
            if lane_id is None:
                lane_id = _id(connector)
                flags = LaneFlag.INTERSECTION
                if lane_id in controlled:
                    flags |= LaneFlag.TRAFFIC_CONTROL
            for line in self._lines("baseline_paths", blob):
                if lane_id is None or lane_id in lanes:
                    self._dropped["baseline_paths: no id, or one that is used twice"] += 1
                    continue
                lanes[lane_id] = _Lane(line, int(flags))
        return lanes

    def areas(self) -> list[tuple[PolylineKind, np.ndarray]]:
        """Outlines of crosswalks and drivable areas."""
        areas = []
        for layer, kind in _AREAS.items():
            if layer not in self._database.tables:
                continue
            for [blob] in self._rows(layer):
                areas += [(kind, line) for line in self._lines(layer, blob)]
        return areas

    def links(self, lanes: _Lanes) -> list[tuple[int, int | None, int]]:
        """Links between connectors and lanes, and between lanes of a group side by side."""
        links: list[tuple[int, int | None, int]] = []
        names = ("fid", "exit_lane_fid", "entry_lane_fid")
        for row in self._database.rows("lane_connectors", names):
            connector, *others = (_id(cell) for cell in row)
            for other in others:
                if connector in lanes and other in lanes and connector is not None:
                    links += _successors(connector, int(other or 0), lanes)
        groups: dict[Cell, list[tuple[float, int]]] = {}
        names = ("lane_fid", "lane_group_fid", "lane_index")
        for lane, group, index in self._database.rows("lanes_polygons", names):
            lane_id = _id(lane)
            [place] = numbers([index])
            if lane_id in lanes and lane_id is not None and np.isfinite(place):
                groups.setdefault(group, []).append((float(place), lane_id))
        for members in groups.values():
            for (first, one), (second, other) in pairwise(sorted(members)):
                if second - first == 1:
                    links += _neighbors(one, other, lanes)
        return links

    def _rows(self, layer: str, *names: str) -> list[tuple[Cell, ...]]:
        """Rows of a layer with some columns and, last, the geometry."""
        column = self._geometry.get(layer)
        if not isinstance(column, str) or not re.fullmatch(r"\w{1,64}", column):
            raise SceneError(f"{self._path}: {layer}: no column with geometries")
        return self._database.rows(layer, (*names, column))

    def _lines(self, layer: str, blob: Cell) -> Sequence[np.ndarray]:
        """Lines of a geometry in metres; unusable ones are counted."""
        try:
            if not isinstance(blob, bytes):
                raise ValueError("no geometry")
            return [self._in_metres(line) for line in lines_of(blob)]
        except ValueError as error:
            self._dropped[f"{layer}: {one_line(error)}"] += 1
            return []

    def _in_metres(self, degrees: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            is_usable = (np.abs(degrees) <= (180.0, 84.0)).all()
        if not is_usable:  # also NaN
            raise ValueError("geometry: expected degrees of longitude and latitude")
        metres = utm(degrees[:, 1], degrees[:, 0], self._zone, self._is_south)
        line = without_repeats(metres)
        if len(line) < 2 or not np.isfinite(line).all() or np.ptp(line, axis=0).max() > 50_000:
            raise ValueError("geometry: no line of up to 50 km in the UTM zone")
        return line


def _id(cell: Cell) -> int | None:
    """An id, which is stored as a number or as text; None without one."""
    try:
        number = int(float(cell))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1 << 53 else None


def _successors(connector: int, lane: int, lanes: _Lanes) -> list[tuple[int, int | None, int]]:
    """Links of a connector and a lane, in the order in which their ends meet."""
    start, end = lanes[connector].line[[0, -1]]
    lane_start, lane_end = lanes[lane].line[[0, -1]]
    first, second = connector, lane
    if np.hypot(*(lane_end - start)) < np.hypot(*(lane_start - end)):
        first, second = lane, connector
    return [
        (first, second, int(EdgeKind.SUCCESSOR)),
        (second, first, int(EdgeKind.PREDECESSOR)),
    ]


def _neighbors(one: int, other: int, lanes: _Lanes) -> list[tuple[int, int | None, int]]:
    """Links of two lanes side by side."""
    line = lanes[one].line
    along = line[-1] - line[0]
    across = lanes[other].line.mean(0) - line.mean(0)
    left, right = other, one
    if along[0] * across[1] - along[1] * across[0] < 0:
        left, right = one, other
    return [(right, left, int(EdgeKind.LEFT)), (left, right, int(EdgeKind.RIGHT))]
