"""Lanelet2 maps (`.osm`, and `.osm_xy` of INTERACTION) to `VectorMap`.

A lanelet is a piece of a lane between a left and a right boundary (`way`), and each boundary may be
stored in either direction. The directions follow from the geometry: both boundaries run the same
way, and the left one lies on the left. The centerline runs midway between points at equal fractions
of the lengths of the two boundaries.

The position of a node is, in this order: its attributes `x` and `y`; its tags `local_x` and
`local_y`, as Autoware has them; or latitude and longitude, which are projected as by Lanelet2's
UtmProjector. With an origin, metres are relative to the origin in its zone. Without one, they are
UTM coordinates of the zone of the first node; a map within 0.1 degrees of latitude and longitude 0,
as recordings from drones have it, is relative to this point.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.parsed_file import cached_by_file, xml_elements
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind
from trajformer.scenes.utm import MAX_LATITUDE, utm, utm_zone
from trajformer.scenes.vector_map import VectorMap, build_map

SPACING_M = 2.0  # of the points of a centerline
MAX_BYTES = 16 << 20  # over a hundred times the largest map
MAX_LENGTH_M = 10_000.0  # of a boundary, and so a limit of the number of points
_KINDS = {  # by `subtype`; other lanelets, such as walkways, are left out
    "road": PolylineKind.LANE_VEHICLE,
    "": PolylineKind.LANE_VEHICLE,  # crossings of SIND
    "main_road": PolylineKind.LANE_VEHICLE,  # of SIND
    "highway": PolylineKind.LANE_VEHICLE,
    "bus_lane": PolylineKind.LANE_BUS,
    "bicycle_lane": PolylineKind.LANE_BIKE,
}
_SUBTYPES = ", ".join(filter(None, _KINDS))
_UNITS_M_S = {"mph": 0.44704, "kmh": 1 / 3.6}
_CROSSWALKS = {"crosswalk": PolylineKind.CROSSWALK}
_TURNS = {"left": LaneFlag.TURN_LEFT, "right": LaneFlag.TURN_RIGHT}  # by `turn_direction`
_DRIVABLE_AREA = int(PolylineKind.DRIVABLE_AREA)
_CROSSWALK = int(PolylineKind.CROSSWALK)
LOCAL_DEGREES = 0.1  # a map nearer to latitude and longitude 0 is in a local frame
Origin = tuple[float, float]  # latitude and longitude in degrees
_Line = tuple[str, ...]  # ids of nodes
_Nodes = dict[str, tuple[float, float]]  # x and y in metres by id


@dataclass(frozen=True, eq=False)
class LaneletMap:
    """The lanelets of a location.

    A scene holds `lanes` only, in which lanes with a rule to yield have the flag TRAFFIC_CONTROL.
    It has no field for speed limits and for the lanes with the right of way, but its `polyline_id`
    are the ids of the lanelets.

    Attributes:
        lanes: L centerlines with edges, then L outlines as drivable areas, each with the id of its
            lanelet, then crosswalks.
        speed_limit_m_s: float64 [L], NaN without a limit.
        yields_to: int64 [2, R], indices of lanes: the first one yields to the second one.
    """

    lanes: VectorMap
    speed_limit_m_s: np.ndarray
    yields_to: np.ndarray

    @property
    def lanelet_id(self) -> np.ndarray:
        """The ids of the L lanelets, int64 [L]."""
        return self.lanes.polyline_id[: len(self.speed_limit_m_s)]


@dataclass(frozen=True)
class _Lanelet:
    """A lanelet with boundaries in the direction of travel."""

    kind: int
    left: _Line
    right: _Line
    rules: tuple[str, ...]  # ids of regulatory elements
    flags: int  # LaneFlag

    def outline(self, nodes: _Nodes) -> np.ndarray:
        """The ring [n, 2] of both boundaries."""
        left = np.array([nodes[node] for node in self.left])
        right = np.array([nodes[node] for node in self.right])
        return np.concatenate([left, right[::-1], left[:1]])

    def speed_limit(self, limits: dict[str, float]) -> float:
        """The first limit of its rules in m/s, NaN without one; `limits` by the id of the rule."""
        for rule in self.rules:
            if rule in limits:
                return limits[rule]
        return np.nan


def read_lanelets(path: Path, origin: Origin | None = None) -> LaneletMap:
    """The lanelets of a map file; a SceneError names file, element and field.

    `origin` is latitude and longitude of the zero of the frame, for maps in degrees.
    """
    return _read_lanelets(path, origin)


@cached_by_file(32)
def _read_lanelets(path: Path, origin: Origin | None) -> LaneletMap:
    try:
        dropped = Counter[str]()
        nodes, ways, relations = _elements(path, origin)
        lanelets = _lanelets(relations, nodes, ways, _KINDS, dropped)
        crosswalks = _lanelets(relations, nodes, ways, _CROSSWALKS, dropped)
        speed_limit = _speed_limits(relations)
        yields = _yields(relations)
    except (ElementTree.ParseError, KeyError, ValueError, OverflowError, OSError) as error:
        problem = one_line(error)
        if isinstance(error, KeyError):
            problem = f"no {problem}"
        raise SceneError(f"{path}: not a Lanelet2 map: {problem}") from error
    if not lanelets:
        problem = next(iter(dropped), f"no lanelet of subtype {_SUBTYPES}")
        raise SceneError(f"{path}: relation: {problem}")
    report_dropped(path, dropped)

    # Centerlines of all lanelets, then their outlines, then crosswalks.
    controlled = {lanelet_id for lanelet_id, _ in yields}
    heads = []  # id, kind and flags of each polyline
    lines = []
    for lanelet_id, lanelet in lanelets.items():
        left = np.array([nodes[node] for node in lanelet.left])
        right = np.array([nodes[node] for node in lanelet.right])
        flags = lanelet.flags
        if lanelet_id in controlled:
            flags |= int(LaneFlag.TRAFFIC_CONTROL)
        heads.append((lanelet_id, lanelet.kind, flags))
        lines.append(centerline(left, right))
    heads += [(lanelet_id, _DRIVABLE_AREA, 0) for lanelet_id in lanelets]
    lines += [lanelet.outline(nodes) for lanelet in lanelets.values()]
    heads += [(lanelet_id, _CROSSWALK, 0) for lanelet_id in crosswalks]
    lines += [lanelet.outline(nodes) for lanelet in crosswalks.values()]
    lengths = [len(line) for line in lines]
    vector_map = build_map(heads, lengths, np.concatenate(lines), _links(lanelets))

    # Rules may name lanelets that are no lanes.
    index = {lanelet_id: number for number, lanelet_id in enumerate(lanelets)}
    pairs = {(index[a], index[b]) for a, b in yields if a in index and b in index}
    yields_to = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    limits = [lanelet.speed_limit(speed_limit) for lanelet in lanelets.values()]
    return LaneletMap(vector_map, np.array(limits), yields_to)


def centerline(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Points [p, 2] midway between the boundaries [n, 2] and [m, 2], which run the same way.

    The points on the boundaries are at most `SPACING_M` apart.
    """
    left_arc = _arc_length(left)
    right_arc = _arc_length(right)
    longest = max(left_arc[-1], right_arc[-1])
    count = int(np.ceil(longest / SPACING_M)) + 1
    fractions = np.linspace(0.0, 1.0, max(2, count))
    even_left = [np.interp(fractions * left_arc[-1], left_arc, axis) for axis in left.T]
    even_right = [np.interp(fractions * right_arc[-1], right_arc, axis) for axis in right.T]
    return np.array([even_left, even_right]).mean(0).T


def _arc_length(line: np.ndarray) -> np.ndarray:
    """Length [n] of a line [n, 2] from its first point to each of its points."""
    step = np.diff(line, axis=0)
    return np.append(0.0, np.hypot(step[:, 0], step[:, 1]).cumsum())


# ---- elements of the file ------------------------------------------------------------------------


def _elements(
    path: Path, origin: Origin | None
) -> tuple[_Nodes, dict[str, _Line], list[ElementTree.Element]]:
    """Nodes, ways and relations of a file; ValueError, KeyError or ParseError if one is invalid."""
    node_ids: list[str] = []
    positions: list[_Position] = []
    ways: dict[str, _Line] = {}
    relations = []
    for element in xml_elements(path, MAX_BYTES, ("node", "way", "relation")):
        element_id = element.attrib["id"]
        if element.tag == "relation":
            relations.append(element)
            continue
        if element.tag == "node":
            node_ids.append(element_id)
            positions.append(_parse_node(element))
        else:
            ways[element_id] = tuple(nd.get("ref", "") for nd in element.iter("nd"))
        element.clear()  # frees memory
    points = _in_metres(positions, origin)
    nodes = {}
    for node_id, (x, y) in zip(node_ids, points.tolist(), strict=True):
        nodes[node_id] = (x, y)
    return nodes, ways, relations


class _Position(NamedTuple):
    """Two coordinates of a node, NaN if they are no numbers."""

    first: float  # x in metres, or the latitude
    second: float  # y, or the longitude
    is_degrees: bool


def _parse_node(element: ElementTree.Element) -> _Position:
    """The position of a node; KeyError without one."""
    attributes = element.attrib
    tags = _tags(element)
    if "local_x" in tags and "local_y" in tags and "x" not in attributes:
        first, second, is_degrees = tags["local_x"], tags["local_y"], False
    elif "lat" in attributes and "x" not in attributes:
        first, second, is_degrees = attributes["lat"], attributes["lon"], True
    else:
        first, second, is_degrees = attributes["x"], attributes["y"], False
    try:
        return _Position(float(first), float(second), is_degrees)
    except ValueError:
        return _Position(np.nan, np.nan, is_degrees)


def _in_metres(positions: list[_Position], origin: Origin | None) -> np.ndarray:
    """Positions float64 [n, 2] in metres, NaN if they are unusable.

    ValueError: some nodes are in degrees and others in metres, or an origin is of no use.
    """
    is_degrees = {position.is_degrees for position in positions}
    if len(is_degrees) > 1:
        raise ValueError("node: some have metres (local_x or x), others only degrees")
    points = np.array([position[:2] for position in positions], np.float64).reshape(-1, 2)
    limit = (MAX_LATITUDE, 360.0) if True in is_degrees else (MAX_ORIGIN_M, MAX_ORIGIN_M)
    is_usable = np.all(np.abs(points) <= np.array(limit), axis=1)  # NaN is not
    points[~is_usable] = np.nan
    if True in is_degrees and is_usable.any():
        return _project(points, is_usable, origin)
    if origin is not None:
        raise ValueError("an origin is given, but nodes are in metres; leave it out")
    return points


def _project(points: np.ndarray, is_usable: np.ndarray, origin: Origin | None) -> np.ndarray:
    """Metres of latitudes and longitudes [n, 2], as the text of the module says."""
    first = points[is_usable.argmax()]
    if origin is None and (np.abs(points[is_usable]) < LOCAL_DEGREES).all():
        origin = (0.0, 0.0)
    reference = first if origin is None else np.array(origin, np.float64)
    zone = utm_zone(float(reference[1]))
    is_south = bool(reference[0] < 0)
    projected = utm(points[:, 0], points[:, 1], zone, is_south)
    if origin is None:
        return projected
    return projected - utm(reference[0], reference[1], zone, is_south)


def _tags(element: ElementTree.Element) -> dict[str, str]:
    return {tag.get("k", ""): tag.get("v", "") for tag in element.iter("tag")}


def _members(relation: ElementTree.Element, role: str, kind: str) -> list[str]:
    """Ids of the members of a relation with a role, of a kind `way` or `relation`."""
    members = []
    for member in relation.iter("member"):
        if member.get("role") == role and member.get("type") == kind:
            members.append(member.get("ref", ""))
    return members


def _lanelets(
    relations: list[ElementTree.Element],
    nodes: _Nodes,
    ways: dict[str, _Line],
    kinds: dict[str, PolylineKind],
    dropped: Counter[str],
) -> dict[int, _Lanelet]:
    """The usable lanelets of some kinds by id; unusable ones are counted in `dropped`."""
    lanelets: dict[int, _Lanelet] = {}
    for relation in relations:
        tags = _tags(relation)
        subtype = tags.get("subtype", "")
        if tags.get("type") != "lanelet" or subtype not in kinds:
            continue
        try:
            lanelet_id = int(relation.attrib["id"])
            if lanelet_id in lanelets or not abs(lanelet_id) < 2**63:
                raise ValueError("id: used twice, or not within 64 bits")
            left, right = _boundaries(relation, nodes, ways)
        except ValueError as error:
            dropped[f"lanelet: {one_line(error)}"] += 1
            continue
        rules = tuple(_members(relation, "regulatory_element", "relation"))
        turn = _TURNS.get(tags.get("turn_direction", ""), LaneFlag.NONE)
        lanelets[lanelet_id] = _Lanelet(int(kinds[subtype]), left, right, rules, int(turn))
    return lanelets


def _boundaries(
    relation: ElementTree.Element, nodes: _Nodes, ways: dict[str, _Line]
) -> tuple[_Line, _Line]:
    """The left and the right boundary of a lanelet in the direction of travel.

    ValueError if they cannot be used.
    """
    left = _boundary(relation, "left", nodes, ways)
    right = _boundary(relation, "right", nodes, ways)
    if set(left) == set(right):
        raise ValueError("left and right share one way, expected two")
    return _directed(left, right, nodes)


def _boundary(
    relation: ElementTree.Element, role: str, nodes: _Nodes, ways: dict[str, _Line]
) -> _Line:
    """The boundary of a lanelet with the role left or right; ValueError if it cannot be used."""
    members = _members(relation, role, "way")
    if len(members) != 1:
        raise ValueError(f"{role}: {len(members)} ways, expected one")
    if members[0] not in ways:
        raise ValueError(f"{role}: its way is missing; get the complete file")
    line = ways[members[0]]
    for node in line:
        if node not in nodes:
            raise ValueError(f"{role}: a node of its way is missing; get the complete file")
    points = np.array([nodes[node] for node in line]).reshape(-1, 2)
    if np.isnan(points).any():
        limit = f"metres up to {MAX_ORIGIN_M:g} either way"
        raise ValueError(f"{role}: x or y of a node is no number, expected {limit}")
    length = np.abs(np.diff(points, axis=0)).sum()
    if not 0 < length <= MAX_LENGTH_M:
        raise ValueError(f"{role}: its way has no length, or over {MAX_LENGTH_M:g} m")
    return line


def _directed(left: _Line, right: _Line, nodes: _Nodes) -> tuple[_Line, _Line]:
    """The boundaries in the direction of travel: equal for both, with the left one on the left."""
    left_begin = complex(*nodes[left[0]])
    left_end = complex(*nodes[left[-1]])
    right_begin = complex(*nodes[right[0]])
    right_end = complex(*nodes[right[-1]])
    same_way = abs(left_begin - right_begin) + abs(left_end - right_end)
    opposite = abs(left_begin - right_end) + abs(left_end - right_begin)
    if same_way > opposite:
        right = right[::-1]
    # The ring runs along left and back along right. It is clockwise if left lies on the left.
    ring = np.array([complex(*nodes[node]) for node in (*left, *right[::-1])])
    ring -= ring[0]
    twice_the_area = (ring.conj() * np.roll(ring, -1)).imag.sum()  # positive if counter-clockwise
    if twice_the_area > 0:
        return left[::-1], right[::-1]
    return left, right


def _links(lanelets: dict[int, _Lanelet]) -> Iterator[tuple[int, int, int]]:
    """Links as (lanelet id, lanelet id, `EdgeKind`).

    A successor begins at the end nodes of a lanelet. Neighbors of one direction share a boundary.
    """
    starts: dict[tuple[str, str], list[int]] = {}
    rights: dict[_Line, list[int]] = {}
    for lanelet_id, lanelet in lanelets.items():
        starts.setdefault((lanelet.left[0], lanelet.right[0]), []).append(lanelet_id)
        rights.setdefault(lanelet.right, []).append(lanelet_id)
    for lanelet_id, lanelet in lanelets.items():
        for other in starts.get((lanelet.left[-1], lanelet.right[-1]), []):
            yield lanelet_id, other, int(EdgeKind.SUCCESSOR)
            yield other, lanelet_id, int(EdgeKind.PREDECESSOR)
        for other in rights.get(lanelet.left, []):
            yield lanelet_id, other, int(EdgeKind.LEFT)
            yield other, lanelet_id, int(EdgeKind.RIGHT)


def _speed_limits(relations: list[ElementTree.Element]) -> dict[str, float]:
    """Speed limits in m/s by the id of the rule.

    Signs of other forms, such as de274-60, have no known limit.
    """
    limits = {}
    for relation in relations:
        tags = _tags(relation)
        if tags.get("subtype") != "speed_limit":
            continue
        rule = relation.attrib["id"]
        sign = tags.get("sign_type", "")
        match = re.fullmatch(r"(\d{1,3}) ?(mph|kmh)", sign)
        if match:
            limits[rule] = int(match[1]) * _UNITS_M_S[match[2]]
    return limits


def _yields(relations: list[ElementTree.Element]) -> list[tuple[int, int | None]]:
    """Pairs of the lanelet that yields and the lanelet with the right of way, None if not known.

    Rules with an id that is no number are left out: they name no lanelet.
    """
    pairs: list[tuple[int, int | None]] = []
    for relation in relations:
        if _tags(relation).get("subtype") not in ("right_of_way", "all_way_stop"):
            continue
        priority = _numbers(_members(relation, "right_of_way", "relation"))
        for lanelet_id in _numbers(_members(relation, "yield", "relation")):
            if priority:
                pairs += [(lanelet_id, other) for other in priority]
            else:
                pairs.append((lanelet_id, None))
    return pairs


def _numbers(ids: list[str]) -> list[int]:
    return [int(text) for text in ids if re.fullmatch(r"-?\d{1,18}", text)]
