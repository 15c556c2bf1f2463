"""Lanelet2 maps in degrees and with local coordinates, and the forms of lanes."""

from pathlib import Path

import numpy as np
import pytest

from trajformer.errors import SceneError
from trajformer.scenes.lane_files import as_vector_map, read_lane_file
from trajformer.scenes.scene import LaneFlag, PolylineKind
from trajformer.scenes.utm import utm, utm_zone

METRE = 1 / 111_000  # degrees


def write(path: Path, nodes: str, tags: str = "") -> Path:
    """A map of one lanelet from nodes 1, 2 (left) and 3, 4 (right)."""
    path.write_text(
        f"<osm>{nodes}"
        "<way id='5'><nd ref='1'/><nd ref='2'/></way><way id='6'><nd ref='3'/><nd ref='4'/></way>"
        "<relation id='7'><member type='way' ref='5' role='left'/>"
        "<member type='way' ref='6' role='right'/>"
        f"<tag k='type' v='lanelet'/><tag k='subtype' v='road'/>{tags}</relation></osm>"
    )
    return path


def degrees(latitude: float, longitude: float) -> str:
    """A lanelet of 100 m to the north, 4 m wide."""
    places = [(0, 0), (100, 0), (0, 4), (100, 4)]
    nodes = ""
    for number, (north, east) in enumerate(places, 1):
        lat = latitude + north * METRE
        lon = longitude + east * METRE / np.cos(np.radians(latitude))
        nodes += f"<node id='{number}' lat='{lat:.12f}' lon='{lon:.12f}'/>"
    return nodes


@pytest.mark.parametrize(
    ("latitude", "longitude", "zone", "expected"),
    [
        (48.8582, 2.2945, 31, (448251.795, 5411932.678)),  # the Eiffel Tower
        (0.0, 3.0, 31, (500000.0, 0.0)),  # a central meridian
    ],
)
def test_utm(latitude: float, longitude: float, zone: int, expected: tuple[float, float]) -> None:
    assert utm_zone(longitude) == zone
    north = utm(np.array(latitude), np.array(longitude), zone, False)
    assert north == pytest.approx(np.array(expected), abs=1e-3)
    south = utm(np.array(-latitude), np.array(longitude), zone, True)
    assert south == pytest.approx(np.array([north[0], 1e7 - north[1]]), abs=1e-6)


def test_degrees_become_utm_or_metres_from_an_origin(tmp_path: Path) -> None:
    path = write(tmp_path / "a.osm", degrees(48.99, 8.44))
    lanes = read_lane_file(path)
    zero = utm(np.array(48.99), np.array(8.44), 32, False)
    assert lanes.point[0] == pytest.approx(zero + np.array([2.0, 0.0]), abs=0.1)
    local = read_lane_file(path, (48.99, 8.44))
    assert local.point == pytest.approx(lanes.point - zero, abs=1e-6)
    first, last = local.polyline_offset[:2]
    length = np.linalg.norm(np.diff(local.point[first:last], axis=0), axis=1).sum()
    assert length == pytest.approx(100, rel=5e-3)


def test_a_map_near_latitude_and_longitude_zero_is_local(tmp_path: Path) -> None:
    lanes = read_lane_file(write(tmp_path / "a.osm", degrees(0.0001, 0.0002)))
    assert np.abs(lanes.point).max() < 150


def test_local_coordinates_of_autoware_come_first(tmp_path: Path) -> None:
    nodes = ""
    for number, (x, y) in enumerate([(0, 3), (50, 3), (0, 0), (50, 0)], 1):
        nodes += f"<node id='{number}' lat='35.1' lon='139.2'><tag k='local_x' v='{1000 + x}'/>"
        nodes += f"<tag k='local_y' v='{2000 + y}'/></node>"
    tags = "<tag k='turn_direction' v='left'/>"
    lanes = as_vector_map(str(write(tmp_path / "a.osm", nodes, tags)))
    assert lanes.point[0].tolist() == [1000, 2001.5]
    assert lanes.polyline_kind.tolist() == [PolylineKind.LANE_VEHICLE, PolylineKind.DRIVABLE_AREA]
    assert lanes.polyline_flags[0] == LaneFlag.TURN_LEFT


def test_mixed_nodes_and_useless_origins_are_errors(tmp_path: Path) -> None:
    nodes = degrees(48.0, 8.0)
    mixed = nodes.replace("<node id='1' ", "<node id='1' x='1' y='2' ")
    with pytest.raises(SceneError, match="others only degrees"):
        read_lane_file(write(tmp_path / "mixed.osm", mixed))
    metres = "".join(f"<node id='{n}' x='{n}' y='{n * n}'/>" for n in range(1, 5))
    with pytest.raises(SceneError, match="nodes are in metres"):
        read_lane_file(write(tmp_path / "metres.osm", metres), (1.0, 2.0))
    with pytest.raises(SceneError, match="unknown ending"):
        read_lane_file(tmp_path / "a.xodr")


def test_arrays_and_documents() -> None:
    lanes = as_vector_map([np.array([[0, 0], [5, 0]]), [[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]])
    assert lanes.point.tolist() == [[0, 0], [5, 0], [1, 2], [3, 4]]
    line = {"type": "LineString", "coordinates": [[700000, 5e6], [700050, 5e6]]}
    feature = {"type": "Feature", "geometry": line, "properties": {"kind": "bus"}}
    document = as_vector_map({"type": "FeatureCollection", "features": [feature]})
    assert document.polyline_kind.tolist() == [PolylineKind.LANE_BUS]
    with pytest.raises(SceneError, match="expected numbers"):
        as_vector_map([np.zeros(3)])
    with pytest.raises(SceneError, match="two different points"):
        as_vector_map([np.zeros((4, 2))])
