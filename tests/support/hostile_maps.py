"""Broken vector maps of Argoverse 2: what is done to a real one, and why it must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.hostile import SPECIAL, Cases, Damage, cut, data, replaced, text, then, zeroed

Archive = dict[str, Any]
DEEP = 100_000
POINT = '{"x":1.0,"y":2.0,"z":0.0}'
SECTIONS = ("lane_segments", "pedestrian_crossings", "drivable_areas")
LANE_FIELDS = {
    "id": "int",
    "lane_type": "str",
    "is_intersection": "bool",
    "left_lane_boundary": "array",
    "right_lane_boundary": "array",
    "successors": "array",
    "predecessors": "array",
}


def archive(change: Callable[[Archive], Any]) -> Damage:
    """The map, changed in place or replaced by what is returned."""

    def damage(whole: bytes) -> bytes:
        value = json.loads(whole)
        changed = change(value)
        return json.dumps(value if changed is None else changed).encode()

    return data(damage)


def entry(section: str, **fields: Any) -> Damage:
    """Fields of the third entry of a section."""
    return archive(lambda value: list(value[section].values())[min(2, len(value[section]) - 1)].update(fields))


def lane(**fields: Any) -> Damage:
    """Fields of a lane."""
    return entry("lane_segments", **fields)


def without(section: str, field: str) -> Damage:
    """An entry lacks a field."""
    return archive(lambda value: next(iter(value[section].values())).__delitem__(field))


def same_id(section: str) -> Damage:
    """All entries of a section have one id."""
    return archive(lambda value: [item.update(id=7) for item in value[section].values()] and None)


def put(content: str) -> Damage:
    """Text in front of everything else that the map holds."""
    return data(lambda whole: b"{" + content.encode() + whole[1:])


def line(x: Any, y: Any = 2.0) -> list[dict[str, Any]]:
    """A boundary of two points, the second one odd."""
    return [{"x": 1.0, "y": 2.0, "z": 0.0}, {"x": x, "y": y, "z": 0.0}]


def million_keys(whole: bytes) -> bytes:
    """A million empty lanes before the others."""
    lanes = ", ".join(f'"{number}": {{}}' for number in range(1_000_000))
    return whole.replace(b'"lane_segments": {', b'"lane_segments": {' + lanes.encode() + b", ", 1)


UNREADABLE = r"log_map_archive_\S+: map cannot be read: "
STRUCTURE: Cases = {
    **{f"map-{name}": (damage, UNREADABLE) for name, damage in SPECIAL.items()},
    **{f"map-cut-{part}": (cut(part), UNREADABLE) for part in (0.0, 0.001, 0.25, 0.5, 0.75, 0.9999)},
    "map-zeros": (zeroed(5_000, 40), UNREADABLE),
    "map-is-parquet": (replaced(b"PAR1" + bytes(100) + b"PAR1"), UNREADABLE),
    "map-utf-16": (data(lambda whole: whole.decode().encode("utf-16")), UNREADABLE),
    "map-two-documents": (data(lambda whole: whole + whole), UNREADABLE),
    "map-single-quotes": (data(lambda whole: whole.replace(b'"', b"'")), UNREADABLE),
    "map-comment": (put("/* lanes */"), UNREADABLE),
    "map-trailing-comma": (data(lambda whole: whole[:-1] + b",}"), UNREADABLE),
    "map-not-utf8": (data(lambda whole: whole.replace(b'"lane_type": "V', b'"lane_type": "\xff', 1)), UNREADABLE),
    "map-deep-list": (replaced("[" * DEEP), r"map\S* (cannot be read|missing)|lane_segments: missing"),
    "map-deep-field": (put('"more":' + "[" * DEEP + "]" * DEEP + ","), UNREADABLE),
    "map-deep-object": (put('"more":' + '{"a":' * DEEP + "1" + "}" * DEEP + ","), UNREADABLE),
    "map-deep-lane": (text('"lane_segments": {', '"lane_segments": {"1":' + "[" * DEEP, 1), UNREADABLE),
    "map-is-huge": (data(lambda whole: whole + b" " * (17 << 20)), r"map cannot be read: \d+ bytes, expected at most"),
    **{f"map-is-{value}": (replaced(value), "lane_segments: missing") for value in ("null", "3", "[]", '"map"', "{}", "true")},
    **{f"map-no-{name}": (archive(lambda v, n=name: v.pop(n) and None), f"{name}: missing") for name in SECTIONS},
    **{
        f"map-{name}-is-{label}": (archive(lambda v, n=name, x=value: v.update({n: x})), f"{name}: missing")
        for name in SECTIONS
        for label, value in (("list", []), ("text", "x"))
    },
    "map-million-keys": (data(million_keys), r"lane_segments\[0\]: Object missing required field"),
}
FIELDS: Cases = {
    **{f"lane-no-{name}": (without("lane_segments", name), rf"lane_segments\[\d+\]: .*`{name}`") for name in LANE_FIELDS},
    **{
        f"lane-{name}-is-{label}": (lane(**{name: value}), r"lane_segments\[\d+\]: ")
        for name, own in LANE_FIELDS.items()
        for label, value in {"null": None, "text": "x", "number": 1.5, "object": {"a": 1}, "array": [None]}.items()
    },
    "lane-id-too-large": (lane(id=2**63), r"lane_segments\[\d+\]: "),
    "lane-id-enormous": (lane(id=10**400), r"lane_segments\[\d+\]: |map cannot be read"),
    "lane-type": (lane(lane_type="vehicle"), r"lane_segments\[\d+\]: Invalid enum value 'vehicle'"),
    "lane-successor": (lane(successors=["1"]), r"lane_segments\[\d+\]: Expected `int`, got `str`"),
    "lane-many-successors": (lane(successors=[1] * 1_000_000), r"lane_segments\[\d+\]: Expected `array` of length <= 100"),
    "lane-neighbour": (lane(left_neighbor_id=[1]), r"lane_segments\[\d+\]: Expected `int \| null`, got `array`"),
    "lane-no-points": (lane(left_lane_boundary=[]), r"lane_segments\[\d+\]: Expected `array` of length >= 1"),
    "lane-points-as-lists": (lane(left_lane_boundary=[[1.0, 2.0, 0.0]]), r"lane_segments\[\d+\]: Expected `object`, got `array`"),
    "lane-point-without-z": (lane(left_lane_boundary=[{"x": 1.0, "y": 2.0}]), r"lane_segments\[\d+\]: .*`z`"),
    **{
        f"lane-point-{label}": (lane(right_lane_boundary=line(value)), r"lane_segments\[\d+\]: Expected `float`")
        for label, value in {"null": None, "text": "1.0", "bool": True, "array": [1.0]}.items()
    },
    "lane-point-nan": (lane(right_lane_boundary=line(float("nan"))), UNREADABLE),
    "lane-point-infinity": (lane(right_lane_boundary=line(float("inf"))), UNREADABLE),
    "lane-point-1e999": (then(lane(right_lane_boundary=line(77.125)), text("77.125", "1e999")), "Number out of range"),
    "lane-point-long-number": (
        then(lane(right_lane_boundary=line(77.125)), text("77.125", "9" * 400)),
        "Number out of range",
    ),
    "lane-point-1e300": (lane(right_lane_boundary=line(1e300)), r"a point over 1e\+08 m from zero"),
    "lane-point-1e9": (lane(left_lane_boundary=line(3.0, -1e9)), r"a point over 1e\+08 m from zero"),
    "lane-point-far": (lane(left_lane_boundary=line(3.0, 200_000.0)), "point: farther than 50 km from the origin"),
    "lane-key-endless": (
        text('"lane_segments": {', '"lane_segments": {"' + "k" * 10_000 + '": {}, ', 1),
        r"lane_segments\[k{40}\]",
    ),
    "lane-key-newline": (text('"lane_segments": {', '"lane_segments": {"a\\nb": {}, ', 1), r"lane_segments\[a\\nb\]"),
    **{f"{name}-one-id": (same_id(name), rf"{name}: \d+ entries with 1 ids") for name in SECTIONS[::2]},
    "crossing-one-point": (entry("pedestrian_crossings", edge1=line(3.0)[:1]), r"pedestrian_crossings\[\d+\]: .*length >= 2"),
    "crossing-no-edge": (without("pedestrian_crossings", "edge2"), r"pedestrian_crossings\[\d+\]: .*`edge2`"),
    "area-two-points": (entry("drivable_areas", area_boundary=line(3.0)), r"drivable_areas\[\d+\]: .*length >= 3"),
    "area-no-id": (without("drivable_areas", "id"), r"drivable_areas\[\d+\]: .*`id`"),
}
CASES: Cases = STRUCTURE | FIELDS
