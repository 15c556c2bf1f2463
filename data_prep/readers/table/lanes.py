"""The file with the lanes of a table of tracks, and its lanes near agents."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from data_prep.readers.table.table_file import table_stem
from trajformer.scenes.lane_checks import check_lanes_near
from trajformer.scenes.lane_files import read_lane_file
from trajformer.scenes.scene import PolylineKind
from trajformer.scenes.vector_map import VectorMap

ENDINGS = ("lanes.geojson", "lanes.json", "lanes.osm")


def is_lanes_file(path: Path) -> bool:
    """Whether a name is one that `find_lanes` looks for."""
    name = path.name.lower()
    return name in ENDINGS or name.endswith(tuple(f".{ending}" for ending in ENDINGS))


def lane_files(folder: Path) -> dict[str, Path]:
    """The lanes of a folder by name in lower case, also those that cannot be opened."""
    files: dict[str, Path] = {}
    for name in sorted(os.listdir(folder), reverse=True):  # lower case comes first and remains
        if is_lanes_file(Path(name)):
            files.setdefault(name.lower(), folder / name)
    return files


def find_lanes(
    path: Path, raw: Path, files: Callable[[Path], dict[str, Path]] = lane_files
) -> Path | None:
    """The lanes of a table.

    They are `<stem>.lanes.geojson`, `.json` or `.osm` in its folder, else `lanes.*` in its folder,
    else `lanes.*` in `raw`. Capital letters make no difference. `files` lists the lanes of a
    folder.
    """
    stem = table_stem(path).lower()
    specific = [f"{stem}.{ending}" for ending in ENDINGS]
    in_folder = files(path.parent)
    for name in (*specific, *ENDINGS):
        if name in in_folder:
            return in_folder[name]
    in_raw = files(raw)
    for name in ENDINGS:
        if name in in_raw:
            return in_raw[name]
    return None


def lanes_near(path: Path, positions: np.ndarray, radius_m: float) -> VectorMap:
    """Polylines of a file within radius_m of any position (float64 [n, 2], n >= 1).

    Raises SceneError also for lanes in another frame.
    """
    lanes = read_lane_file(path)
    kept = lanes.near(positions, radius_m, path)
    kept_lanes = np.flatnonzero(kept.polyline_kind <= PolylineKind.LANE_BIKE)
    if len(kept_lanes):
        start, end, _ = kept.segments(kept_lanes)
        check_lanes_near(path, (start, end), lanes.boxes, positions)
    return kept
