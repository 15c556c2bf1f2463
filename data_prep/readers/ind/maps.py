"""Lanes of recordings in the layout of inD: Lanelet2 files, or markings of highD."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_prep.readers.ind.metadata import number_of, read_recording
from trajformer.errors import SceneError, one_line
from trajformer.scenes.lanelet2 import read_lanelets
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import PolylineKind
from trajformer.scenes.vector_map import NO_MAP, VectorMap, build_map

HIGHD_LENGTH_M = 420.0  # of the recorded part of a road
MAX_MARKING_M = 10_000.0  # from the origin
MAX_MARKINGS = 50


def place_maps(raw: Path, location: str) -> list[Path]:
    """Lanelet2 maps of a place, by its number in the name of the file."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", location):
        return []
    pattern = re.compile(rf"location_?0*{int(location)}\.osm", re.IGNORECASE)
    found = []
    for folder in ("maps", "lanelets"):
        found += [path for path in (raw / folder).rglob("*.osm") if pattern.fullmatch(path.name)]
    return sorted(found)


@cached_by_file(16)
def local_lanes(path: Path, meta: Path) -> VectorMap:
    """Lanes of a Lanelet2 map in degrees in the frame of a recording, by its UTM origin."""
    recording = read_recording(meta)
    origin = [number_of(recording, name, meta) for name in ("xUtmOrigin", "yUtmOrigin")]
    lanes = read_lanelets(path).lanes
    return replace(lanes, point=lanes.point - origin)


@cached_by_file(16)
def highd_lanes(path: Path) -> VectorMap:
    """Lanes between the markings of a recording of highD: the upper ones lead to -x."""
    recording = read_recording(path)
    heads: list[tuple[int, int, int]] = []
    lines: list[list[tuple[float, float]]] = []
    for name, (start, end) in (
        ("upperLaneMarkings", (HIGHD_LENGTH_M, 0.0)),
        ("lowerLaneMarkings", (0.0, HIGHD_LENGTH_M)),
    ):
        try:
            marks = sorted(float(word) for word in recording.get(name, "").split(";") if word)
        except ValueError as error:
            raise SceneError(f"{path}: {name}: {one_line(error)}") from error
        if len(marks) > MAX_MARKINGS or any(not abs(mark) < MAX_MARKING_M for mark in marks):
            raise SceneError(f"{path}: {name}: expected up to {MAX_MARKINGS} numbers of metres")
        for upper, lower in pairwise(marks):
            y = -(upper + lower) / 2  # y points down in the file
            heads.append((len(heads), int(PolylineKind.LANE_VEHICLE), 0))
            lines.append([(start, y), (end, y)])
    if not lines:
        return NO_MAP
    points = np.array(lines, np.float64).reshape(-1, 2)
    return build_map(heads, [2] * len(lines), points, [])
