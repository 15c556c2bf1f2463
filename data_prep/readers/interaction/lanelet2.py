"""Lanelet2 maps in metres, `maps/<location>.osm_xy`, to `VectorMap`.

A lanelet is a piece of a lane between a left and a right boundary (`way`), and each boundary may be stored in either direction.
The directions follow from the geometry: both boundaries run the same way, and the left one lies on the left. The centerline
runs midway between points at equal shares of the lengths of the two boundaries.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.readers.raw_file import cached_by_file, one_line, xml_elements
from data_prep.readers.vector_map import VectorMap, build_map
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind

SPACING_M = 2.0  # of the points of a centerline
MAX_BYTES = 16 << 20  # over a hundred times the largest map
MAX_LENGTH_M = 10_000.0  # of a boundary, and so a limit of the number of points
_KINDS = {  # by `subtype`; other lanelets, such as walkways, are left out
    "road": PolylineKind.LANE_VEHICLE,
    "highway": PolylineKind.LANE_VEHICLE,
    "bus_lane": PolylineKind.LANE_BUS,
    "bicycle_lane": PolylineKind.LANE_BIKE,
}
_UNITS_M_S = {"mph": 0.44704, "kmh": 1 / 3.6}
_SUCCESSOR, _PREDECESSOR, _LEFT, _RIGHT = map(int, EdgeKind)
_DRIVABLE_AREA = int(PolylineKind.DRIVABLE_AREA)
_Line = tuple[str, ...]  # ids of nodes
_Nodes = dict[str, tuple[float, float]]  # x and y in metres by id


@dataclass(frozen=True, eq=False)
class LaneletMap:
    """The lanelets of a location.

    A scene holds `lanes` only, in which lanes with a rule to yield have the flag TRAFFIC_CONTROL. It has no field for speed
    limits and for the lanes with the right of way, but its `polyline_id` are the ids of the lanelets.
    """

    lanes: VectorMap  # L centerlines with edges, then L outlines as drivable areas, each with the id of its lanelet
    speed_limit_m_s: np.ndarray  # float64 [L], NaN without a limit
    yields_to: np.ndarray  # int64 [2, R], indices of lanes: the first one yields to the second one

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


@cached_by_file(32)
def read_lanelets(path: Path) -> LaneletMap:
    """The lanelets of a map file; a SceneError names file, element and field."""
    try:
        nodes, ways, relations = _elements(path)
        lanelets = _lanelets(relations, nodes, ways)
        speed, yields = _rules(relations)
    except (ElementTree.ParseError, KeyError, ValueError, OverflowError, OSError) as error:
        missing = "no " if isinstance(error, KeyError) else ""
        raise SceneError(
            f"{path}: not a Lanelet2 map in metres (.osm_xy): {missing}{one_line(error)}"
        ) from error
    if not lanelets:
        raise SceneError(f"{path}: relation: no lanelet of subtype {', '.join(_KINDS)}")
    index = {lanelet_id: number for number, lanelet_id in enumerate(lanelets)}
    limits = [
        next((speed[rule] for rule in lanelet.rules if rule in speed), np.nan)
        for lanelet in lanelets.values()
    ]
    pairs = [(index[a], index[b]) for a, b in yields if a in index and b in index]
    controlled = {lanelet_id for lanelet_id, _ in yields}
    heads = [
        (i, lane.kind, int(LaneFlag.TRAFFIC_CONTROL) if i in controlled else 0)
        for i, lane in lanelets.items()
    ]
    heads += [(lanelet_id, _DRIVABLE_AREA, 0) for lanelet_id in lanelets]
    boundaries = [
        [np.array([nodes[node] for node in line]) for line in (x.left, x.right)]
        for x in lanelets.values()
    ]
    lines = [centerline(left, right) for left, right in boundaries]
    lines += [np.concatenate([left, right[::-1], left[:1]]) for left, right in boundaries]
    lanes = build_map(heads, [len(line) for line in lines], np.concatenate(lines), _links(lanelets))
    return LaneletMap(
        lanes, np.array(limits), np.array(sorted(set(pairs)), np.int64).reshape(-1, 2).T
    )


def centerline(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Points [p, 2] midway between the boundaries [n, 2] and [m, 2] of equal direction, at most `SPACING_M` apart on these."""
    arcs = [np.append(0.0, np.hypot(*np.diff(line, axis=0).T).cumsum()) for line in (left, right)]
    shares = np.linspace(
        0.0, 1.0, max(2, int(np.ceil(max(arc[-1] for arc in arcs) / SPACING_M)) + 1)
    )
    even = [
        [np.interp(shares * arc[-1], arc, axis) for axis in line.T]
        for line, arc in zip((left, right), arcs, strict=True)
    ]
    return np.array(even).mean(0).T


# ---- elements of the file ------------------------------------------------------------------------------------------


def _elements(path: Path) -> tuple[_Nodes, dict[str, _Line], list[ElementTree.Element]]:
    """Nodes, ways and relations of a file; ValueError, KeyError or ParseError if one is invalid."""
    nodes: _Nodes = {}
    ways: dict[str, _Line] = {}
    relations = []
    for element in xml_elements(path, MAX_BYTES, ("node", "way", "relation")):
        number = element.attrib["id"]
        if element.tag == "node":
            nodes[number] = x, y = float(element.attrib["x"]), float(element.attrib["y"])
            if not (abs(x) <= MAX_ORIGIN_M and abs(y) <= MAX_ORIGIN_M):  # also refuses NaN
                raise ValueError(
                    f"node {number[:40]}: x, y: {x:g}, {y:g}, expected metres up to {MAX_ORIGIN_M:g} either way"
                )
        elif element.tag == "way":
            ways[number] = tuple(nd.attrib["ref"] for nd in element.iter("nd"))
        else:
            relations.append(element)
        if element.tag != "relation":
            element.clear()  # frees memory
    return nodes, ways, relations


def _tags(element: ElementTree.Element) -> dict[str, str]:
    return {tag.attrib["k"]: tag.attrib["v"] for tag in element.iter("tag")}


def _members(relation: ElementTree.Element, role: str, kind: str) -> list[str]:
    """Ids of the members of a relation with a role, of a kind `way` or `relation`."""
    members = [member.attrib for member in relation.iter("member")]
    return [member["ref"] for member in members if (member["role"], member["type"]) == (role, kind)]


def _lanelets(
    relations: list[ElementTree.Element], nodes: _Nodes, ways: dict[str, _Line]
) -> dict[int, _Lanelet]:
    """The lanelets that are lanes by id; ValueError if one cannot be used."""
    lanelets: dict[int, _Lanelet] = {}
    for relation in relations:
        tags = _tags(relation)
        if (
            tags.get("type") == "lanelet"
            and (kind := _KINDS.get(tags.get("subtype", ""))) is not None
        ):
            number = int(relation.attrib["id"])
            if number in lanelets or not abs(number) < 2**63:
                raise ValueError(
                    f"lanelet {str(number)[:40]}: id: used twice, or not within 64 bits"
                )
            rules = tuple(_members(relation, "regulatory_element", "relation"))
            lanelets[number] = _Lanelet(int(kind), *_boundaries(relation, nodes, ways), rules)
    return lanelets


def _boundaries(
    relation: ElementTree.Element, nodes: _Nodes, ways: dict[str, _Line]
) -> tuple[_Line, _Line]:
    """The left and the right boundary of a lanelet in the direction of travel; ValueError if they cannot be used."""
    where = f"lanelet {relation.attrib['id'][:40]}"
    lines: list[_Line] = []
    for role in ("left", "right"):
        members = _members(relation, role, "way")
        if len(members) != 1:
            raise ValueError(f"{where}: {role}: {len(members)} ways, expected one")
        if members[0] not in ways:
            raise ValueError(
                f"{where}: {role}: way {members[0][:40]} is missing; get the complete file"
            )
        line = ways[members[0]]
        if absent := [node for node in line if node not in nodes]:
            raise ValueError(
                f"{where}: {role}: node {absent[0][:40]} of way {members[0][:40]} is missing; get the complete file"
            )
        points = np.array([nodes[node] for node in line]).reshape(-1, 2)
        if not 0 < np.abs(np.diff(points, axis=0)).sum() <= MAX_LENGTH_M:
            raise ValueError(
                f"{where}: {role}: way {members[0][:40]} has no length, or over {MAX_LENGTH_M:g} m"
            )
        lines.append(line)
    left, right = lines
    if set(left) == set(right):
        raise ValueError(f"{where}: left and right share one way, expected two")
    return _directed(left, right, nodes)


def _directed(left: _Line, right: _Line, nodes: _Nodes) -> tuple[_Line, _Line]:
    """The boundaries in the direction of travel: the same for both, with the left one on the left."""
    begin, end, right_begin, right_end = (
        complex(*nodes[line[i]]) for line in (left, right) for i in (0, -1)
    )
    if abs(begin - right_begin) + abs(end - right_end) > abs(begin - right_end) + abs(
        end - right_begin
    ):
        right = right[::-1]
    ring = np.array([complex(*nodes[node]) for node in (*left, *right[::-1])])
    ring -= ring[0]
    counter_clockwise = (
        ring.conj() * np.roll(ring, -1)
    ).imag.sum() > 0  # twice the area, along left and back along right
    return (left[::-1], right[::-1]) if counter_clockwise else (left, right)


def _links(lanelets: dict[int, _Lanelet]) -> Iterator[tuple[int, int, int]]:
    """(lanelet id, lanelet id, `EdgeKind`): successors share their end nodes, neighbors of one direction a boundary."""
    starts: dict[tuple[str, str], list[int]] = {}
    rights: dict[_Line, list[int]] = {}
    for number, lane in lanelets.items():
        starts.setdefault((lane.left[0], lane.right[0]), []).append(number)
        rights.setdefault(lane.right, []).append(number)
    for number, lane in lanelets.items():
        for other in starts.get((lane.left[-1], lane.right[-1]), []):
            yield number, other, _SUCCESSOR
            yield other, number, _PREDECESSOR
        for other in rights.get(lane.left, []):
            yield number, other, _LEFT
            yield other, number, _RIGHT


def _rules(
    relations: list[ElementTree.Element],
) -> tuple[dict[str, float], list[tuple[int, int | None]]]:
    """Speed limits in m/s by the id of the rule; and pairs (lanelet that yields, lanelet with the right of way or None)."""
    speed, yields = {}, list[tuple[int, int | None]]()
    for relation in relations:
        tags = _tags(relation)
        if tags.get("subtype") == "speed_limit":
            sign = tags.get("sign_type", "")
            if not (match := re.fullmatch(r"(\d{1,3}) ?(mph|kmh)", sign)):
                raise ValueError(
                    f"rule {relation.attrib['id'][:40]}: sign_type: {sign[:40]!r}, expected 25mph or 50kmh"
                )
            speed[relation.attrib["id"]] = int(match[1]) * _UNITS_M_S[match[2]]
        elif tags.get("subtype") in ("right_of_way", "all_way_stop"):
            others: list[int | None] = [
                int(ref) for ref in _members(relation, "right_of_way", "relation")
            ]
            lanes = [int(ref) for ref in _members(relation, "yield", "relation")]
            yields += [(lane, other) for lane in lanes for other in others or [None]]
    return speed, yields
