"""Broken maps of all data sets, with the expected reasons."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.damages import Cases, Files, check_dropped, check_refused, names_of_cases, then
from support.hostile import encoded, json_value, prefix, text

from trajformer.testing.readers import Damage, change_bytes

# ---- Argoverse 1 ---------------------------------------------------------------------------------


def nested_entities(levels: int, repeats: int) -> str:
    entities = ['<!ENTITY a0 "ha">']
    for level in range(levels):
        content = f"&a{level};" * repeats
        entities.append(f'<!ENTITY a{level + 1} "{content}">')
    return "".join(entities)


DEEP = prefix(f"<!DOCTYPE a [{nested_entities(90_000, 1)}]>")
CITY_MAPS: Cases = {
    "deep XML": (text("(?s)^.*$", "<a>" * 300_000 + "</a>" * 300_000, 1), "way: no lanes"),
    "exponential entities": (
        prefix(f"<!DOCTYPE a [{nested_entities(10, 10)}]>"),
        "a document type",
    ),
    "deep entities in UTF-16": (then(DEEP, encoded("utf-16")), "an encoding other than UTF-8"),
    "x NaN": (
        text(' x="[^"]*"', ' x="nan"'),
        r"lane \d+: expected two different points within 1e\+08 m of zero",
    ),
    "large lane id": (
        text('lane_id="[^"]*"', f'lane_id="{"9" * 30}"'),
        "way: way: lane_id: not within 64 bits",
    ),
    "no points": (text("<nd [^>]*>", ""), r"lane \d+: expected two different points"),
}

CITY_MAP_DETAILS: Cases = {
    "missing node": (
        text('<node id="3"', '<node id="900"'),
        "way: a missing node or field, such as '3'",
    ),
    "one lane id": (
        text('lane_id="[^"]*"', 'lane_id="7"'),
        "way: lane_id: also the id of another lane",
    ),
    "turn": (
        text('(k="turn_direction" v=")[^"]*', r"\g<1>UP"),
        "way: turn_direction: unknown value 'UP'",
    ),
}

# ---- Argoverse 2 ---------------------------------------------------------------------------------

POINT = {"x": 1.0, "y": 2.0, "z": 0.0}
LANE = ("lane_segments", 0)
IN_LANE = "lane_segments: "


MILLION_LANES = ", ".join(f'"{number}": {{}}' for number in range(10**6))


def lane(field: str, value: Any) -> Damage:
    return json_value(*LANE, field, value=value)


SCENARIO_MAPS: Cases = {
    "no lanes": (
        json_value("lane_segments", drop=True),
        "lane_segments: Expected `object`, got `null`",
    ),
    "not UTF-8": (text('"VEHICLE"', '"\udcff"'), "map cannot be read"),
    "large": (prefix(" " * (17 << 20)), r"map cannot be read: \d+ bytes, expected at most"),
    "point NaN": (lane("left_lane_boundary", [POINT | {"x": float("nan")}]), "map cannot be read"),
    "a far point": (
        lane("left_lane_boundary", [POINT, POINT | {"y": 2e5}]),
        "point: farther than 50 km from the origin",
    ),
}

SCENARIO_MAP_DETAILS: Cases = {
    "lane id": (lane("id", 2**63), IN_LANE),
    "lane lane_type": (lane("lane_type", "TRAM"), IN_LANE),
    "lane is_intersection": (lane("is_intersection", 1), IN_LANE),
    "lane successors": (lane("successors", ["1"]), IN_LANE),
    "a million lanes": (
        text('"lane_segments": {', f'"lane_segments": {{{MILLION_LANES}, '),
        "lane_segments: Object missing required field",
    ),
    "many links": (
        lane("successors", [1] * 1_000_000),
        f"{IN_LANE}Expected `array` of length <= 100",
    ),
    "point 1e300": (
        lane("left_lane_boundary", [POINT | {"x": 1e300}]),
        "a point over 1e.08 m from zero",
    ),
    "long key": (
        text('"lane_segments": {', '"lane_segments": {"' + "k" * 9_999 + '": {}, '),
        "lane_segments: Object missing required field",
    ),
    "one id": (lane("id", 2), "lane_segments: id: also the id of another entry"),
    "small area": (
        json_value("drivable_areas", 0, "area_boundary", value=[POINT] * 2),
        "drivable_areas: .*length >= 3",
    ),
}

LOG_MAPS: Cases = {"truncated": (text("}$", ""), "map cannot be read")}

# ---- INTERACTION ---------------------------------------------------------------------------------

LANELETS: Cases = {
    "other XML": (
        text("(?s)^.*$", "<a/>", 1),
        "relation: no lanelet of subtype road, main_road, highway",
    ),
    "external entity": (
        prefix('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'),
        "a document type",
    ),
    "degrees": (text(' x="', ' lon="'), "no 'x'"),
    "two left boundaries": (
        text('role="right"', 'role="left"'),
        "relation: lanelet: left: 2 ways, expected one",
    ),
    "no length": (
        text('<nd ref="[^"]*" />', '<nd ref="1001" />'),
        "relation: lanelet: left: its way has no length",
    ),
}

LANELET_DETAILS: Cases = {
    "x NaN": (
        text(' x="[^"]*"', ' x="nan"', 1),
        "lanelet: .*: x or y of a node is no number, expected metres",
    ),
    "missing node": (
        text('<node id="1003"[^>]*>', ""),
        "lanelet: (left|right): a node of its way is missing",
    ),
    "missing way": (text('<way id="13"', '<way id="99"'), "lanelet: right: its way is missing"),
    "one way on both sides": (
        text('ref="11" role="right"', 'ref="10" role="right"'),
        "lanelet: left and right share one way",
    ),
    "one id": (text('<relation id="101"', '<relation id="100"'), "lanelet: id: used twice"),
    "large id": (
        text('<relation id="101"', f'<relation id="{"9" * 30}"'),
        "lanelet: id: .* not within 64 bits",
    ),
}

# ---- nuScenes prediction -------------------------------------------------------------------------


def raster(change: Callable[[Image.Image], Image.Image]) -> Damage:
    def damage(path: Path) -> None:
        with Image.open(path) as image:
            change(image).save(path, "PNG")

    return damage


def claim_size(data: bytes) -> bytes:
    """Another width in the header of a PNG file; its pixels stay."""
    head = data[12:16] + (60_000).to_bytes(4) + data[20:29]
    return data[:12] + head + zlib.crc32(head).to_bytes(4) + data[33:]


RASTERS: Cases = {
    "wide": (
        raster(lambda image: image.resize((4_001, 8))),
        "4001 x 8 pixels, expected at most 4000 either way",
    ),
    "claimed width": (
        change_bytes(claim_size),
        "60000 x 600 pixels, expected at most 4000 either way",
    ),
    "other tracks": (
        raster(lambda image: image.crop((0, 0, 450, 30))),
        "target 1 is outside the raster",
    ),
    "JPEG": (change_bytes(lambda data: b"\xff\xd8\xff" + data), "not a readable PNG image"),
}

FILES: Files = {
    "city-map": ("argoverse1", "*.xml", CITY_MAPS),
    "scenario-map": ("argoverse2", "*.json", SCENARIO_MAPS),
    "log-map": ("argoverse2_sensor", "log_map*", LOG_MAPS),
    "lanelets": ("interaction", "*.osm_xy", LANELETS),
    "raster": ("nuscenes_prediction", "*.png", RASTERS),
}

DETAILS: Files = {
    "city-map": ("argoverse1", "*.xml", CITY_MAP_DETAILS),
    "scenario-map": ("argoverse2", "*.json", SCENARIO_MAP_DETAILS),
    "lanelets": ("interaction", "*.osm_xy", LANELET_DETAILS),
}


@pytest.mark.parametrize(("kind", "case"), names_of_cases(FILES))
def test_a_broken_map_is_refused_with_the_reason(tmp_path: Path, kind: str, case: str) -> None:
    check_refused(FILES, kind, case, tmp_path / "raw")


@pytest.mark.parametrize(("kind", "case"), names_of_cases(DETAILS))
def test_an_unusable_part_of_a_map_is_dropped_and_counted(
    tmp_path: Path, kind: str, case: str
) -> None:
    check_dropped(DETAILS, kind, case, tmp_path / "raw")
