"""Lanes from files, arrays, JSON documents and scenes, to `VectorMap`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.lane_json import lanes_of_document, read_lanes
from trajformer.scenes.lanelet2 import Origin, read_lanelets
from trajformer.scenes.scene import MAX_ORIGIN_M, PolylineKind, Scene
from trajformer.scenes.vector_map import VectorMap, build_map, without_repeats

LANELET2_ENDINGS = (".osm", ".osm_xy")
JSON_ENDINGS = (".json", ".geojson")
Lanes: TypeAlias = VectorMap | Scene | str | Path | Mapping[str, Any] | Sequence[Any]


def read_lane_file(path: Path, origin: Origin | None = None) -> VectorMap:
    """The lanes of a Lanelet2 file (`.osm`), a GeoJSON file or a plain JSON file.

    `origin` is latitude and longitude of the zero of the frame, for Lanelet2 maps in degrees.
    Raises SceneError: the file cannot be used, or the origin is of no use.
    """
    name = path.name.lower()
    if name.endswith(LANELET2_ENDINGS):
        return read_lanelets(path, origin).lanes
    if origin is not None:
        raise SceneError(f"{path}: origin: only Lanelet2 files have degrees; leave it out")
    if name.endswith(JSON_ENDINGS):
        return read_lanes(path)
    expected = ", ".join((*LANELET2_ENDINGS, *JSON_ENDINGS))
    raise SceneError(f"{path}: lanes: unknown ending, expected one of {expected}")


def as_vector_map(lanes: Lanes, origin: Origin | None = None) -> VectorMap:
    """Lanes in one of these forms as a map, metres in the frame of the tracks.

    Args:
        lanes: the path of a file; a GeoJSON document or `{"lanes": [...]}`; a scene, whose map is
            taken; a `VectorMap`; or a list of arrays [p, 2], centrelines in the direction of
            travel.
        origin: as for `read_lane_file`.

    Raises SceneError: the lanes cannot be used.
    """
    if isinstance(lanes, str | Path):
        return read_lane_file(Path(lanes), origin)
    if origin is not None:
        raise SceneError("origin: only Lanelet2 files have degrees; leave it out")
    if isinstance(lanes, VectorMap):
        return lanes
    if isinstance(lanes, Scene):
        return _map_of_scene(lanes)
    if isinstance(lanes, Mapping):
        return lanes_of_document(dict(lanes), Path("lanes"))
    return _map_of_arrays(lanes)


def _map_of_scene(scene: Scene) -> VectorMap:
    return VectorMap(
        polyline_id=scene.polyline_id,
        polyline_kind=scene.polyline_kind,
        polyline_flags=scene.polyline_flags,
        polyline_offset=scene.polyline_offset,
        point=scene.point + scene.origin,
        edge=scene.edge,
        edge_kind=scene.edge_kind,
    )


def _map_of_arrays(lanes: Sequence[Any]) -> VectorMap:
    lines = []
    for index, points in enumerate(lanes):
        line = np.asarray(points)
        if line.dtype.kind not in "fiu" or line.ndim != 2 or line.shape[1] not in (2, 3):
            shape = f"{line.dtype} of shape {line.shape}, expected numbers [p, 2]"
            raise SceneError(f"lanes[{index}]: {shape}")
        line = without_repeats(line[:, :2].astype(np.float64))
        if len(line) < 2 or not (np.abs(line) <= MAX_ORIGIN_M).all():
            raise SceneError(f"lanes[{index}]: expected two different points in metres")
        lines.append(line)
    heads = [(index, int(PolylineKind.LANE_VEHICLE), 0) for index in range(len(lines))]
    lengths = [len(line) for line in lines]
    return build_map(heads, lengths, np.concatenate([np.zeros((0, 2)), *lines]), [])
