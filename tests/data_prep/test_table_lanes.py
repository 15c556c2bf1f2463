"""Lanes for a table of tracks: search order, both formats, broken files, selection by distance."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tables
from support.scenes import named_edges
from support.tables import SMALL, read, two_tracks, write, write_lanes

from data_prep.reader import Input
from data_prep.readers.table.reader import Table
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.lane_json import read_lanes
from trajformer.scenes.scene import EdgeKind, LaneFlag, PolylineKind

LINE = [[0, 0], [9, 0]]
RING = [[0, 0], [9, 0], [9, 3], [0, 3]]


def test_the_most_specific_lanes_file_is_used(tmp_path: Path) -> None:
    table = write(tmp_path / "val" / "drive.csv", two_tracks())
    write(tmp_path / "val" / "other.csv", two_tracks())
    names = [
        "lanes.json",
        "lanes.geojson",
        "val/lanes.json",
        "val/lanes.geojson",
        "val/drive.lanes.json",
        "val/drive.lanes.geojson",
    ]
    for number, name in enumerate(names):
        lane = {"id": number, "points": LINE}
        write_lanes(tmp_path / name, lane, geojson=name.endswith("geojson"))
        scene = SMALL.read(Input(table), "val", tmp_path)
        assert scene.polyline_id.tolist() == [number]
    other = SMALL.read(Input(tmp_path / "val" / "other.csv"), "val", tmp_path)
    assert other.polyline_id.tolist() == [3]


@pytest.mark.parametrize("geojson", [False, True])
def test_kinds_flags_and_links(tmp_path: Path, geojson: bool) -> None:
    vehicle = {"id": 1, "points": LINE, "successors": [2, "gone"], "left": 3}
    bus = {"id": 2, "kind": "bus", "points": [[9, 0], [12, 0], [12, 0], [12, 8]]}
    bus |= {"intersection": True, "turn": "left"}
    bike = {"id": 3, "kind": "bike", "points": [[0, 3, 100], [9, 3, 100]], "right": 1}
    bike |= {"turn": "right", "traffic_control": 1}
    plain_lane = {"id": 4, "points": [[20, 0], [30, 0]], "predecessors": [2, 2]}
    plain_lane |= {"turn": None, "intersection": None}
    # A ring may have the id of a lane, and has no links.
    crosswalk = {"id": 1, "kind": "crosswalk", "points": RING, "successors": [3]}
    area = {"kind": "drivable_area", "points": [*RING, RING[0]]}
    lanes = (vehicle, bus, bike, plain_lane, crosswalk, area)
    write_lanes(tmp_path / "lanes.json", *lanes, geojson=geojson)
    scene = read(tmp_path, two_tracks())
    assert scene.polyline_id.tolist()[:5] == [1, 2, 3, 4, 1]
    rings = [PolylineKind.CROSSWALK, PolylineKind.DRIVABLE_AREA]
    assert scene.polyline_kind.tolist() == [0, 1, 2, 0, *rings]
    left = LaneFlag.TURN_LEFT | LaneFlag.INTERSECTION
    right = LaneFlag.TURN_RIGHT | LaneFlag.TRAFFIC_CONTROL
    assert scene.polyline_flags.tolist() == [0, left, right, 0, 0, 0]
    assert np.diff(scene.polyline_offset).tolist() == [2, 3, 2, 2, 5, 5]
    assert np.allclose(scene.polyline(1) + scene.origin, [[9, 0], [12, 0], [12, 8]])
    for ring in (4, 5):
        assert np.allclose(scene.polyline(ring) + scene.origin, [*RING, RING[0]])
    successor, predecessor = EdgeKind.SUCCESSOR, EdgeKind.PREDECESSOR
    both = {(1, 2, successor), (2, 1, predecessor), (2, 4, successor), (4, 2, predecessor)}
    assert named_edges(scene) == both | {(1, 3, EdgeKind.LEFT), (3, 1, EdgeKind.RIGHT)}
    assert scene.edge.shape[1] == 6


def test_a_feature_is_a_lane_or_an_area_by_its_shape(tmp_path: Path) -> None:
    line = {"type": "LineString", "coordinates": LINE}
    hole = [[1, 1], [2, 2], [1, 2]]
    area = {"type": "Polygon", "coordinates": [RING, hole]}
    ring = {"type": "LineString", "coordinates": RING}
    linked = {"id": None, "kind": None, "successors": ["way/7"]}
    features: list[dict[str, Any]] = [
        {"id": "way/7", "geometry": line, "properties": None},
        {"geometry": area, "properties": {"name": "Elm Street"}},
        {"geometry": ring, "properties": {"kind": "crosswalk"}},
        {"id": 5, "geometry": line, "properties": linked},
        {"id": 6, "geometry": area, "properties": {"kind": None}},
    ]
    for entry in features:
        entry["type"] = "Feature"
    path = tmp_path / "lanes.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    lanes = read_lanes(path)
    kinds = [0, PolylineKind.DRIVABLE_AREA, PolylineKind.CROSSWALK, 0, PolylineKind.DRIVABLE_AREA]
    assert lanes.polyline_kind.tolist() == kinds
    assert lanes.edge.shape == (2, 2)
    assert np.diff(lanes.polyline_offset).tolist() == [2, 5, 5, 2, 5]  # the hole is gone


def test_ids_may_be_text(tmp_path: Path) -> None:
    names = ["north arm", "é", "12", "012", 12.0, "123456789012345678901234567890", "-7", ""]
    first = [{"id": name, "points": LINE} for name in names if name != 12.0]
    path = write_lanes(tmp_path / "a.json", *first, {"id": 99, "points": LINE, "successors": names})
    lanes = read_lanes(path)
    ids = lanes.polyline_id.tolist()
    assert len(set(ids)) == len(ids) == 8
    assert ids[2] == 12
    assert ids[5] == -7
    successors = {(a, b) for a, b, kind in named_edges(lanes) if kind == EdgeKind.SUCCESSOR}
    assert successors == {(99, number) for number in ids[:-1]}
    # The same text gives the same number in another file.
    again = read_lanes(write_lanes(tmp_path / "b.json", *reversed(first)))
    assert again.polyline_id.tolist() == ids[-2::-1]


def test_lanes_near_last_observed_positions_are_kept(tmp_path: Path) -> None:
    gone = tables.track("gone", range(3), (0.0, 499.0))
    later = tables.track("later", range(5, 10), (0, 900))
    table = tables.frame(two_tracks(), gone, later)
    lanes = [{"id": y, "points": [[-5000, y], [5000, y]]} for y in (0, 120, 400, 900)]
    lanes.append({"id": 7, "points": [[200, 0], [300, 0]], "predecessors": [0]})
    write_lanes(tmp_path / "lanes.json", *lanes)
    assert read(tmp_path, table).polyline_id.tolist() == [0, 400]
    near = Table(num_history=5, num_future=5, map_radius_m=198.5)
    scene = read(tmp_path, table, near)
    assert scene.polyline_id.tolist() == [0, 120, 400, 7]
    assert named_edges(scene) == {(0, 7, EdgeKind.SUCCESSOR), (7, 0, EdgeKind.PREDECESSOR)}


def plain(**fields: Any) -> dict[str, Any]:
    """A lane with these fields."""
    return {"id": 1, "points": LINE} | fields


def feature(geometry: Any, **properties: Any) -> dict[str, Any]:
    return {"geometry": geometry, "properties": properties}


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "one point": (plain(points=[[1, 1]]), "points: 1 different ones, expected at least 2"),
    "huge": (plain(points=[[1, 1], [2, 1e9]]), "points: infinite or huge"),
    "a ring of two": (
        plain(kind="crosswalk", points=LINE),
        "points: 2 different ones, expected at least 3",
    ),
    "kind": (
        plain(kind="tram"),
        "kind: 'tram', expected one of vehicle, bus, bike, crosswalk, drivable_area",
    ),
    "turn": (plain(turn="back"), "turn: 'back', expected one of none, left, right"),
    "flag": (
        plain(intersection="no"),
        "Expected `bool | int | null`, got `str` - at `$.intersection`",
    ),
    "id": (plain(id=1.5), "id: 1.5, expected text or a whole number"),
    "no geometry": (feature(None), "geometry: missing"),
    "another geometry": (
        feature({"type": "Point"}),
        "geometry: 'Point', expected one of LineString, MultiLineString, Polygon, MultiPolygon",
    ),
    "no lines": (feature({"type": "MultiLineString", "coordinates": []}), "geometry: empty"),
    "a lane's outline": (
        feature({"type": "Polygon", "coordinates": [RING]}, kind="bus"),
        "kind: a polygon is a crosswalk or a drivable_area",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_entry_is_dropped_and_counted(tmp_path: Path, case: str) -> None:
    entry, cause = UNUSABLE[case]
    section = "features" if "geometry" in entry else "lanes"
    good: dict[str, Any] = {"id": 0, "points": LINE}
    if section == "features":
        good = {"id": 0, "geometry": {"type": "LineString", "coordinates": LINE}}
    path = tmp_path / "lanes.json"
    path.write_text(json.dumps({section: [good, entry, entry]}))
    for _ in range(2):  # the second reading comes from the cache
        with collect_dropped() as dropped:
            scene = read(tmp_path, two_tracks())
        assert scene.polyline_id.tolist() == [0]
        assert dropped == {(path, f"{section}: {cause}"): 2}

    # Without a usable entry, the file is refused.
    path.write_text(json.dumps({section: [entry]}))
    with pytest.raises(SceneError, match=re.escape(f"{path}: no usable entry: {section}[0]: ")):
        read(tmp_path, two_tracks())


def test_an_id_of_two_lanes_is_of_the_first(tmp_path: Path) -> None:
    path = write_lanes(tmp_path / "lanes.json", plain(), plain(id="1", kind="bus"), plain(id=2))
    with collect_dropped() as dropped:
        lanes = read_lanes(path)
    assert lanes.polyline_id.tolist() == [1, 2]
    assert lanes.polyline_kind.tolist() == [0, 0]
    assert dropped == {(path, "lanes: id: also the id of another entry"): 1}


def test_each_part_of_a_geometry_is_a_polyline(tmp_path: Path) -> None:
    lines = {"type": "MultiLineString", "coordinates": [LINE, [[5, 5]], [[0, 5], [9, 5]]]}
    areas = {"type": "MultiPolygon", "coordinates": [[RING], [RING]]}
    features = [{"id": 4, "geometry": lines}, {"geometry": areas}]
    path = tmp_path / "lanes.geojson"
    path.write_text(json.dumps({"features": features}))
    with collect_dropped() as dropped:
        lanes = read_lanes(path)
    assert lanes.polyline_id[0] == 4
    assert len(set(lanes.polyline_id.tolist())) == 4
    assert np.diff(lanes.polyline_offset).tolist() == [2, 2, 5, 5]
    assert list(dropped.values()) == [1]  # the part of one point


FIELDS: dict[str, tuple[str, str]] = {
    "misspelt": (
        '{"lanes": [{"points": [[0, 0], [9, 0]], "successor": [2]}]}',
        "lanes: unknown field 'successor', expected 'successors'",
    ),
    "unknown": (
        '{"lanes": [{"points": [[0, 0], [9, 0]], "speed_limit": 50}]}',
        "lanes: unknown field 'speed_limit'",
    ),
    "misspelt property": (
        '{"features": [{"geometry": {"type": "LineString", "coordinates": [[0, 0], [9, 0]]}, '
        '"properties": {"name": "Elm Street", "predecesors": [2]}}]}',
        "features: unknown field 'predecesors', expected 'predecessors'",
    ),
    "a key twice": (
        '{"lanes": [{"points": [[0, 0], [9, 0]]}, '
        '{"points": [[0, 0], [9, 0]], "kind": "bus", "kind": "bike"}]}',
        "lanes: kind: twice in one object",
    ),
}


@pytest.mark.parametrize("case", FIELDS)
def test_fields_without_effect_are_counted(tmp_path: Path, case: str) -> None:
    content, cause = FIELDS[case]
    path = tmp_path / "lanes.json"
    path.write_text(content)
    with collect_dropped() as dropped:
        assert len(read_lanes(path).polyline_id) == 1
    assert dropped == {(path, cause): 1}


def test_capital_letters_and_a_byte_order_mark_make_no_difference(tmp_path: Path) -> None:
    lanes = {"lanes": [{"id": 3, "points": LINE}]}
    path = tmp_path / "val" / "Drive.Lanes.JSON"
    path.parent.mkdir()
    path.write_text(json.dumps(lanes), encoding="utf-8-sig")
    assert read(tmp_path, two_tracks()).polyline_id.tolist() == [3]


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link to nothing": (link_to_nothing, "No such file or directory"),
    "a pipe": (os.mkfifo, "neither a file nor a folder"),
    "a folder": (Path.mkdir, "a folder"),
    "UTF-16": (lambda path: path.write_text("{}", encoding="utf-16"), "text in UTF-16"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_lanes_that_cannot_be_opened_are_not_absent(tmp_path: Path, case: str) -> None:
    make, reason = UNREADABLE[case]
    make(tmp_path / "lanes.json")
    with pytest.raises(SceneError, match=rf"lanes\.json: (lanes )?cannot be read: {reason}"):
        read(tmp_path, two_tracks())


BROKEN: dict[str, tuple[str, str]] = {
    "a list": ("[]", "lanes: no list 'lanes' and no list 'features' (GeoJSON)"),
    "a list twice": ('{"lanes": [], "lanes": []}', "lanes: twice in one object"),
    "degrees": (
        json.dumps(
            {"features": [feature({"type": "LineString", "coordinates": [[8, 49], [8.001, 49]]})]}
        ),
        "coordinates look like degrees",
    ),
    "far away": (
        json.dumps({"lanes": [{"points": [[5e5, 4e6], [6e5, 4e6]]}]}),
        "not the same frame",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_lanes_are_named_with_entry_and_field(tmp_path: Path, case: str) -> None:
    content, message = BROKEN[case]
    path = tmp_path / "lanes.json"
    path.write_text(content)
    with pytest.raises(SceneError) as caught:
        read(tmp_path, two_tracks())
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'val' / 'drive.csv'}: {path}: ")
    assert message in text and len(text) < 500
