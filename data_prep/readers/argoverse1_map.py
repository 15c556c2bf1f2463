"""Argoverse 1 vector maps, `pruned_argoverse_<CITY>_<id>_vector_map.xml` of nodes and ways, to `VectorMap`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from functools import lru_cache
from pathlib import Path

import numpy as np

from data_prep.readers.raw_file import read_file, told
from data_prep.readers.vector_map import VectorMap, build_map, without_repeats
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, EdgeKind, LaneFlag, PolylineKind

MAX_BYTES = 64 << 20  # several times the largest city's
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
        name = repr(city[:40])[1:-1]  # on one line, whatever it holds
        raise SceneError(f"{path}: CITY_NAME: no map_files/pruned_argoverse_{name}_*_vector_map.xml (cities: {known})")
    return files[city]


def load_map(path: Path) -> VectorMap:
    """All lanes of a city, parsed once a process, whether they can be used or not.

    Raises:
        SceneError: the file is not XML, or a lane names a missing node or has fewer than two points.
    """
    loaded = _load_once(path)
    if isinstance(loaded, str):
        raise SceneError(loaded)
    return loaded


@lru_cache(maxsize=8)
def _load_once(path: Path) -> VectorMap | str:
    """The lanes, or what is wrong with them."""
    lanes = _Lanes()
    try:
        data = read_file(path, MAX_BYTES)
        _check_markup(data)
        parser = ElementTree.XMLParser(target=lanes, encoding="utf-8")  # whatever the file declares
        parser.feed(data)
        parser.close()
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        return f"{path}: not a vector map: {type(error).__name__}: {told(error)}"
    except SceneError as error:
        return f"{path}: {error}"
    if not lanes.lines:
        return f"{path}: way: no lanes"
    if len({head[0] for head in lanes.heads}) < len(lanes.heads):
        return f"{path}: way: two lanes of one lane_id"
    return build_map(lanes.heads, [len(line) for line in lanes.lines], np.concatenate(lanes.lines), lanes.links)


def _check_markup(data: bytes) -> None:
    """No document type: its entities unpack to any size, and nested deeply they crash the parser, deaf to a handler's error."""
    if b"<!DOCTYPE" in data:
        raise ValueError("it has a document type")
    if b"\0" in data:  # UTF-16, where one could hide
        raise ValueError("it is not UTF-8")


class _Lanes:
    """Takes what an XML parser finds: nodes, then ways with tags and references to nodes."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, int, int]] = []  # id, kind, flags
        self.lines: list[np.ndarray] = []  # centrelines [p, 2]
        self.links: list[tuple[int, int, int]] = []
        self._nodes: dict[str, tuple[float, float]] = {}
        self._tags: list[tuple[str, str]] = []  # of the way under way
        self._points: list[tuple[float, float]] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if tag == "node":
            x, y = float(attributes["x"]), float(attributes["y"])
            if not (abs(x) <= MAX_ORIGIN_M and abs(y) <= MAX_ORIGIN_M):  # NaN, too
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
        """An element ends; a way becomes a lane."""
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
