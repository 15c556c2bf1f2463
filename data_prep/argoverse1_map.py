"""Argoverse 1 vector maps, `pruned_argoverse_<CITY>_<id>_vector_map.xml` of nodes and ways, to `VectorMap`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.vector_map import VectorMap, build_map, without_repeats
from trajformer.errors import SceneError
from trajformer.scene import EdgeKind, LaneFlag, PolylineKind

_TURNS = {"NONE": LaneFlag.NONE, "LEFT": LaneFlag.TURN_LEFT, "RIGHT": LaneFlag.TURN_RIGHT}
_LINKS = {
    "successor": EdgeKind.SUCCESSOR,
    "predecessor": EdgeKind.PREDECESSOR,
    "l_neighbor_id": EdgeKind.LEFT,
    "r_neighbor_id": EdgeKind.RIGHT,
}


@lru_cache(maxsize=64)
def _map_files(raw: Path) -> dict[str, Path]:
    """Vector map of every city, found in the raw folder, beside its splits, or beside the folder itself."""
    folders = [raw / "map_files", *sorted(raw.glob("*/map_files")), raw.parent / "map_files"]
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("pruned_argoverse_*_vector_map.xml"))):
        if match := re.fullmatch(r"pruned_argoverse_(\w+)_\d+_vector_map\.xml", path.name):
            found.setdefault(match[1], path)
    return found


def map_file(raw: Path, city: str, path: Path) -> Path:
    """The vector map of a city.

    Raises:
        SceneError: there is none; the message names `path`, the csv file that needs it, and the known cities.
    """
    files = _map_files(raw)
    if city not in files:
        known = ", ".join(sorted(files)) or "none"
        raise SceneError(f"{path}: CITY_NAME: no map_files/pruned_argoverse_{city}_*_vector_map.xml (cities: {known})")
    return files[city]


@lru_cache(maxsize=8)
def load_map(path: Path) -> VectorMap:
    """All lanes of a city, parsed once a process.

    Raises:
        SceneError: the file is not XML, or a lane names a missing node or has fewer than two points.
    """
    nodes: dict[str, tuple[float, float]] = {}
    heads: list[tuple[int, int, int]] = []
    lines: list[np.ndarray] = []
    links: list[tuple[int, int, int]] = []
    try:
        for _, element in ElementTree.iterparse(path):
            if element.tag == "node":
                nodes[element.attrib["id"]] = float(element.attrib["x"]), float(element.attrib["y"])
            elif element.tag == "way":
                head, line, others = _lane(element, nodes, path)
                heads.append(head)
                lines.append(line)
                links += others
                element.clear()
    except (ElementTree.ParseError, OSError, KeyError, ValueError) as error:
        raise SceneError(f"{path}: not a vector map: {type(error).__name__}: {error}") from error
    if not lines:
        raise SceneError(f"{path}: way: no lanes")
    return build_map(heads, [len(line) for line in lines], np.concatenate(lines), links)


def _lane(
    way: ElementTree.Element, nodes: dict[str, tuple[float, float]], path: Path
) -> tuple[tuple[int, int, int], np.ndarray, list[tuple[int, int, int]]]:
    """Head (id, kind, flags), centreline [p, 2] and links of one lane."""
    lane_id = int(way.attrib["lane_id"])
    tags = [(tag.attrib["k"], tag.attrib["v"]) for tag in way.iter("tag")]
    value = dict(tags)
    flags = _TURNS[value.get("turn_direction", "NONE")]
    flags |= LaneFlag.INTERSECTION if value.get("is_intersection") == "True" else LaneFlag.NONE
    flags |= LaneFlag.TRAFFIC_CONTROL if value.get("has_traffic_control") == "True" else LaneFlag.NONE
    line = without_repeats(np.array([nodes[nd.attrib["ref"]] for nd in way.iter("nd")]).reshape(-1, 2))
    if len(line) < 2:
        raise SceneError(f"{path}: lane {lane_id}: centreline of {len(line)} different points")
    links = [(lane_id, int(other), int(_LINKS[key])) for key, other in tags if key in _LINKS and other != "None"]
    return (lane_id, int(PolylineKind.LANE_VEHICLE), int(flags)), line, links
