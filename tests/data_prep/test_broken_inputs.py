"""Broken files of all formats with the expected reasons, and harmless differences between files."""

import decimal
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.fixtures import write_argoverse2
from support.hostile import (
    cell,
    column,
    encoded,
    json_value,
    prefix,
    read_checked,
    rows,
    table,
    text,
    words,
)
from support.raw_folders import FOLDERS
from support.sensor_logs import T0

from data_prep.readers.names import READERS
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.testing.readers import Damage, change_bytes, read_all

Cases = dict[str, tuple[Damage, str]]  # by name: the damage, and a pattern of the expected reason
NAME = "agent_id: empty, over 200 characters, or with a newline"


def then(first: Damage, second: Damage) -> Damage:
    def damage(path: Path) -> None:
        first(path)
        second(path)

    return damage


def constant(name: str, value: Any) -> Damage:
    return table(column(name, lambda values: value))


def with_row_many_times(count: int, name: str) -> Damage:
    """Append the last row many times, each with another word in one column."""

    def change(whole: pa.Table) -> pa.Table:
        more = rows(lambda size: np.full(count, size - 1))(whole)
        new_words = pa.array([f"t{index}" for index in range(count)])
        return pa.concat_tables([whole, column(name, lambda values: new_words)(more)])

    return table(change)


def without(name: str) -> Damage:
    return table(lambda whole: whole.drop_columns([name]))


def twice(name: str) -> Damage:
    return table(lambda whole: whole.append_column(name, whole[name]))


TWICE = table(lambda whole: pa.concat_tables([whole, whole]))
NO_ROWS = table(lambda whole: whole.slice(0, 0))

# ---- Argoverse 1 ---------------------------------------------------------------------------------


def unobserved_agent(whole: pa.Table) -> pa.Table:
    is_other = pc.not_equal(whole["OBJECT_TYPE"], "AGENT")
    is_late = pc.greater(whole["TIMESTAMP"], "315971501.1")
    return whole.filter(pc.or_(is_other, is_late))


SEQUENCES: Cases = {
    "no column": (without("X"), "X: no such column"),
    "no header": (text("^[^\n]*\n", ""), "TIMESTAMP: no such column"),
    "an open quote": (text("\n", '\n"', 1), "columns"),
    "no rows": (NO_ROWS, "Empty CSV|0 rows, expected 1 to 50000"),
    "NaN": (table(cell("Y", "nan")), "Y: empty or NaN in 1 rows"),
    "text": (table(cell("TIMESTAMP", "north")), "north"),
    "far": (table(cell("X", "90000.0")), "farther than 50 km|faster than"),
    "one more timestamp": (
        table(cell("TIMESTAMP", "1e10")),
        "TIMESTAMP: (51|21) different timestamps",
    ),
    "no AGENT": (table(words("OBJECT_TYPE", "AGENT", "OTHERS")), "OBJECT_TYPE: 0 tracks are AGENT"),
    "two AGENTs": (table(words("OBJECT_TYPE", "AV", "AGENT")), "OBJECT_TYPE: 2 tracks are AGENT"),
    "unobserved AGENT": (
        table(unobserved_agent),
        "tracks are AGENT, expected one with an observed step",
    ),
    "unknown type": (constant("OBJECT_TYPE", "T" * 9_000), "OBJECT_TYPE: unknown value 'T{40}'$"),
    "each row twice": (TWICE, "TRACK_ID: two rows for step 0 of track '00-agent'"),
    "many rows": (with_row_many_times(60_000, "TRACK_ID"), r"60\d+ rows, expected 1 to 50000"),
    "many tracks": (with_row_many_times(3_000, "TRACK_ID"), r"30\d+ tracks, expected 1 to 2000"),
    **{
        f"id {value[:3]!r}": (text("00-agent", value), NAME)
        for value in ("a" * 1_000, "\x1b[2J", "a\0b")
    },
    "two cities": (
        table(cell("CITY_NAME", "MIA")),
        "CITY_NAME: 2 different values in one scene: 'MIA', 'PIT'",
    ),
    "city outside": (
        constant("CITY_NAME", "../../etc/p"),
        r"CITY_NAME: no map_files/pruned_argoverse_\.\./\.\./etc/p_",
    ),
    "city of two lines": (
        constant("CITY_NAME", "a\n" + "b" * 900),
        r"CITY_NAME: no map_files/pruned_argoverse_a\\nb{38}_",
    ),
}


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
    "missing node": (text('<node id="3"', '<node id="900"'), "not a vector map: KeyError: '3'"),
    "large lane id": (
        text('lane_id="[^"]*"', f'lane_id="{"9" * 30}"'),
        "way: lane_id: not within 64 bits",
    ),
    "one lane id": (text('lane_id="[^"]*"', 'lane_id="7"'), "way: two lanes of one lane_id"),
    "turn": (
        text('(k="turn_direction" v=")[^"]*', r"\g<1>UP"),
        r"lane \d+: turn_direction: unknown value 'UP'",
    ),
    "no points": (text("<nd [^>]*>", ""), r"lane \d+: expected two different points"),
}

# ---- Argoverse 2 ---------------------------------------------------------------------------------

TEXT = ("track_id", "object_type", "city")
NUMBERS = (
    "timestep",
    "object_category",
    "position_x",
    "position_y",
    "heading",
    "velocity_x",
    "velocity_y",
)


def one_row_many_times(whole: pa.Table) -> pa.Table:
    """Two million rows that need little space in the file."""
    index = pa.array(np.zeros(2_000_000, np.int8))
    columns = {}
    for name in (*TEXT, *NUMBERS):
        first = whole[name][:1].combine_chunks()
        columns[name] = pa.DictionaryArray.from_arrays(index, first)
    return pa.table(columns)


def long_list(values: pa.ChunkedArray) -> pa.Array:
    """The values as lists; the first one is very long."""
    offsets = np.concatenate([[0], 8_000_000 + np.arange(len(values))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.zeros(8_000_000 + len(values) - 1)))


def not_utf8(values: pa.ChunkedArray) -> pa.Array:
    texts = [b"\xff\xfe" + str(value).encode() for value in values]
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)


def claim_rows(count: int) -> Damage:
    """Change the number of rows in the metadata of a parquet file; the data stay."""

    def varint(value: int, length: int) -> bytes:
        digits = [(value << 1) >> 7 * n & 127 | 128 for n in range(length)]
        return bytes([*digits[:-1], digits[-1] & 127])

    def change(data: bytes) -> bytes:
        known = pq.read_metadata(pa.BufferReader(data)).num_rows
        length = -(-(known << 1).bit_length() // 7)
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        metadata = data[start:]
        assert varint(known, length) in metadata
        return data[:start] + metadata.replace(varint(known, length), varint(count, length), 1)

    return change_bytes(change)


SCENARIOS: Cases = {
    **{f"no {name}": (without(name), f"{name}: no such column") for name in ("city", "heading")},
    **{f"two {name}": (twice(name), f"{name}: two columns") for name in ("city", "heading")},
    "text": (constant("position_x", "one"), "position_x: type string, expected a number"),
    "a number": (constant("city", 3.5), "city: type double, expected text"),
    **{
        f"empty {name}": (table(cell(name, None)), f"{name}: empty or NaN in 1 rows")
        for name in ("track_id", "heading")
    },
    **{
        f"x as {pattern}": (table(column("position_x", change)), f"position_x: {pattern}")
        for pattern, change in {
            r"type decimal128\(2, 1\)": lambda v: decimal.Decimal("1.5"),
            "type timestamp": lambda v: pc.cast(
                pc.cast(v, pa.int64(), safe=False), pa.timestamp("ms")
            ),
            "type halffloat": lambda v: pa.array(np.zeros(len(v), np.float16)),
            "type null": lambda v: pa.nulls(len(v)),
            "not one value a row": long_list,
        }.items()
    },
    "ids not UTF-8": (
        table(column("track_id", not_utf8)),
        "not a readable parquet file: .*(utf-8|UTF8)",
    ),
    **{
        f"velocity {v}": (table(cell("velocity_x", float(v))), "velocity_x: ")
        for v in ("nan", "3e8")
    },
    "far from the earth": (
        table(cell("position_y", 1e9)),
        r"position_y: 1e\+09, expected at most 1e\+08 either way",
    ),
    "far apart": (
        table(cell("position_x", 70_000.0)),
        "position: farther than 50 km from the origin",
    ),
    "degrees": (constant("heading", 170.0), "heading: 170, expected at most 6.28"),
    **{f"step {v}": (table(cell("timestep", v)), "timestep: ") for v in (-1, 110, 3.5)},
    **{
        f"category {v}": (constant("object_category", v), "object_category: .* 0 to 3")
        for v in (4, 1.5)
    },
    "unknown type": (
        table(words("object_type", "vehicle", "tram" * 999)),
        "object_type: unknown value '(tram){10}'$",
    ),
    "two focal": (constant("object_category", 3), "agent_role: more than one focal agent"),
    "two cities": (
        table(cell("city", "oslo")),
        "city: 2 different values in one scene: 'austin', 'oslo'",
    ),
    "one row": (table(lambda t: t.slice(0, 1)), "timestep: one step only"),
    "no history": (
        table(lambda t: t.filter(pc.greater_equal(t["timestep"], 50))),
        "timestep: no track has an observed step",
    ),
    "each row twice": (TWICE, r"timestep: two rows for step \d+ of track '10'"),
    "many tracks": (with_row_many_times(20_000, "track_id"), r"200\d\d tracks, expected 1 to 5000"),
    **{
        f"id {v[:3]!r}": (table(words("track_id", "AV", v)), NAME)
        for v in ("", "A\nV", "A" * 9_999)
    },
    **{
        f"city {v[:3]!r}": (constant("city", v), "city: not usable as a name: ")
        for v in ("a\nb", "c" * 9_999)
    },
    "another codec": (
        table(lambda t: t, compression="zstd"),
        "compressed with ZSTD, expected SNAPPY or UNCOMPRESSED",
    ),
    "wrong number of rows": (claim_rows(100), r"100 rows, its parts have \d+"),
    "two million rows": (table(one_row_many_times), "2000000 rows, expected 1 to 200000"),
    "endless text": (
        table(
            column("track_id", lambda v: pa.array(["x" * 70_000_000] + ["y"] * (len(v) - 1))),
            compression="zstd",
        ),
        r"7\d+ bytes uncompressed, expected 1 to",
    ),
}
POINT = {"x": 1.0, "y": 2.0, "z": 0.0}
LANE = ("lane_segments", 0)
IN_LANE = r"lane_segments\[1\]: "


def lane(field: str, value: Any) -> Damage:
    return json_value(*LANE, field, value=value)


SCENARIO_MAPS: Cases = {
    "no lanes": (
        json_value("lane_segments", drop=True),
        "lane_segments: Expected `object`, got `null`",
    ),
    **{
        f"lane {name}": (lane(name, value), IN_LANE)
        for name, value in {
            "id": 2**63,
            "lane_type": "TRAM",
            "is_intersection": 1,
            "successors": ["1"],
        }.items()
    },
    "not UTF-8": (text('"VEHICLE"', '"\udcff"'), "map cannot be read"),
    "large": (prefix(" " * (17 << 20)), r"map cannot be read: \d+ bytes, expected at most"),
    "a million lanes": (
        text(
            '"lane_segments": {',
            '"lane_segments": {' + ", ".join(f'"{n}": {{}}' for n in range(10**6)) + ", ",
        ),
        r"lane_segments\[0\]: Object missing required field|map cannot be read: \d+ bytes",
    ),
    "many links": (
        lane("successors", [1] * 1_000_000),
        f"{IN_LANE}Expected `array` of length <= 100",
    ),
    "point NaN": (lane("left_lane_boundary", [POINT | {"x": float("nan")}]), "map cannot be read"),
    "point 1e300": (
        lane("left_lane_boundary", [POINT | {"x": 1e300}]),
        "a point over 1e.08 m from zero",
    ),
    "a far point": (
        lane("left_lane_boundary", [POINT, POINT | {"y": 2e5}]),
        "point: farther than 50 km from the origin",
    ),
    "long key": (
        text('"lane_segments": {', '"lane_segments": {"' + "k" * 9_999 + '": {}, '),
        r"lane_segments\[k{40}\]",
    ),
    "one id": (lane("id", 2), "lane_segments: 3 entries with 2 ids"),
    "small area": (
        json_value("drivable_areas", 0, "area_boundary", value=[POINT] * 2),
        r"drivable_areas\[6\]: .*length >= 3",
    ),
}

# ---- sensor logs ---------------------------------------------------------------------------------

LOGS: Cases = {
    "fractions of nanoseconds": (
        constant("timestamp_ns", 1.5),
        "timestamp_ns: type double, expected whole numbers",
    ),
    **{
        f"timestamp {v}": (table(cell("timestamp_ns", v)), "timestamp_ns: 131 sweeps spread over")
        for v in (40, 2**62)
    },
    "two sweeps of one step": (
        table(cell("timestamp_ns", T0 + 1)),
        "falls on the same step of 0.1 s as",
    ),
    "each row twice": (TWICE, "track_uuid: two rows for step 0 of track 'bus'"),
    "category": (table(words("category", "BUS", "TRAM")), "category: unknown value 'TRAM'"),
    "no rotation": (constant("qw", 9.0), "qw, qx, qy, qz: a quaternion of length"),
    "not UTF-8": (
        then(
            table(lambda t: t), change_bytes(lambda data: data.replace(b"parked", b"park\xff\xff"))
        ),
        "not a readable feather file: .*UTF8",
    ),
    "three million rows": (
        table(rows(lambda n: np.zeros(3_000_000)), compression="zstd"),
        "3000000 rows, expected 1 to",
    ),
}
POSES: Cases = {
    "a gap": (table(lambda t: t.slice(0, len(t) // 2)), "timestamp_ns: no pose at"),
    "NaN": (constant("tx_m", float("nan")), "tx_m: NaN or infinity"),
}

# ---- ETH/UCY -------------------------------------------------------------------------------------


def word(index: int, value: str) -> Damage:
    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        row = lines[4].split()
        row[index] = value
        lines[4] = " ".join(row)
        return "\n".join(lines).encode(errors="surrogateescape")

    return change_bytes(change)


RECORDINGS: Cases = {
    **{
        f"{name} {value}": (
            word(index, value),
            rf"line 5, column {index} \({name}\): '{value}', expected a (whole )?number",
        )
        for name, index in (("frame", 0), ("x", 13))
        for value in ("nan", "-1e300")
    },
    "half a frame": (
        word(0, "780.5"),
        r"line 5, column 0 \(frame\): '780.5', expected a whole number",
    ),
    "long": (word(13, "9" + "e" * 5000), r"line 5, column 13 \(x\): '9e{39}', expected a number"),
    "far": (
        word(13, "60000"),
        r"line 5, column 13 \(x\): '60000', expected a number of metres up to 50000",
    ),
    "a lost block": (
        change_bytes(lambda data: data[:300] + bytes(90) + data[390:]),
        "it has zero bytes",
    ),
    "commas": (text(" ", ","), "line 1: 1 columns, expected 17"),
    "each row twice": (
        change_bytes(lambda data: data + data),
        r"column 1 \(id\): .* is twice in frame",
    ),
    "one line": (
        text("(?s)\n.*", ""),
        "frame: no agent is present in 20 consecutive frames, of 1 in all",
    ),
    "19 frames": (
        text("970.0 [^\n]*\n", ""),
        "no agent is present in 20 consecutive frames, of 19 in all",
    ),
}

# ---- INTERACTION ---------------------------------------------------------------------------------


def downsampled(renumber: bool) -> Damage:
    """Every second frame, with the same numbers or with consecutive ones."""

    def change(whole: pa.Table) -> pa.Table:
        frame = pc.cast(whole["frame_id"], pa.int64()).to_numpy()
        whole = whole.filter(pa.array(frame % 2 == 1))
        half = pa.array(((frame[frame % 2 == 1] + 1) // 2).astype(str))
        return column("frame_id", lambda v: half)(whole) if renumber else whole

    return table(change)


TRACKS: Cases = {
    "a car without heading": (
        table(cell("psi_rad", "")),
        "psi_rad: nan of vehicle '1', expected a number up to 7",
    ),
    "degrees": (
        table(cell("psi_rad", "170")),
        "psi_rad: 170 of vehicle '1', expected a number up to 7",
    ),
    "a car without width": (table(cell("width", "inf")), "width: inf of vehicle '1'"),
    "unknown type": (table(words("agent_type", "car", "tram")), "agent_type: unknown value 'tram'"),
    "half a frame": (table(cell("frame_id", "7.5")), "frame_id: .* expected whole numbers"),
    "each row twice": (TWICE, r"track_id: two rows for step \d+ of track"),
}
RATES: Cases = {
    "5 Hz": (
        downsampled(renumber=True),
        r"timestamp_ms: \d+\.?\d* ms from frame to frame, expected 100 \(10 Hz\)",
    ),
    "every second frame": (
        downsampled(renumber=False),
        r"frame_id: most steps are 200 ms long, expected 100 \(10 Hz\)",
    ),
}
LANELETS: Cases = {
    "other XML": (text("(?s)^.*$", "<a/>", 1), "relation: no lanelet of subtype road, highway"),
    "external entity": (
        prefix('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'),
        "a document type",
    ),
    "degrees": (text(' x="', ' lon="'), "no 'x'"),
    "x NaN": (text(' x="[^"]*"', ' x="nan"', 1), r"node \d+: x, y: nan, .*, expected metres"),
    "missing node": (
        text('<node id="1003"[^>]*>', ""),
        r"lanelet \d+: (left|right): node 1003 of way \d+ is missing",
    ),
    "missing way": (text('<way id="13"', '<way id="99"'), "lanelet 101: right: way 13 is missing"),
    "one way on both sides": (
        text('ref="11" role="right"', 'ref="10" role="right"'),
        "lanelet 100: .* share one way",
    ),
    "two left boundaries": (
        text('role="right"', 'role="left"'),
        r"lanelet \d+: left: 2 ways, expected one",
    ),
    "no length": (
        text('<nd ref="[^"]*" />', '<nd ref="1001" />'),
        r"lanelet \d+: left: way \d+ has no length",
    ),
    "one id": (text('<relation id="101"', '<relation id="100"'), "lanelet 100: id: used twice"),
    "large id": (
        text('<relation id="101"', f'<relation id="{"9" * 30}"'),
        "lanelet 9{30}: id: .* not within 64 bits",
    ),
    "speed limit": (text("25mph", "fast"), "rule 500: sign_type: 'fast', expected 25mph or 50kmh"),
}

# ---- Stanford Drone ------------------------------------------------------------------------------

DRONES: Cases = {
    "scenes as text": (constant("scene", "one"), "scene: type string, expected a number"),
    "empty agent": (table(cell("agent", None)), "agent: empty or NaN in 1 rows"),
    **{
        f"x {value}": (table(cell("x", value)), "x: ")
        for value in (float("nan"), float("inf"), 60_000.0)
    },
    "step 20": (table(cell("step", 20)), "step: 0 to 20, expected whole numbers 0 to 19"),
    "each row twice": (TWICE, ": train-7: two rows for step 0 of track '0'"),
    "19 steps": (
        table(lambda t: t.filter(pc.less(t["step"], 19))),
        "no agent is present in all 20 frames",
    ),
    "wrong number of rows": (claim_rows(60), "60 rows, its parts have 40"),
    "another codec": (
        table(lambda t: t, compression="gzip"),
        "compressed with GZIP, expected ZSTD or SNAPPY or UNCOMPRESSED",
    ),
}
PLACES: Cases = {
    "5 columns": (text("\n", " 1\n"), "line 1: 5 columns, expected 4"),
    "x NaN": (
        word(2, "nan"),
        r"line 5, column 2 \(x\): 'nan', expected a number of pixels up to 50000",
    ),
    "far": (
        word(3, "60000"),
        r"line 5, column 3 \(y\): '60000', expected a number of pixels up to 50000",
    ),
    "19 frames": (
        text("\n228 [^\n]*", ""),
        "no agent is present in 20 consecutive frames, of 19 in all",
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


LABELS: Cases = {
    "17 columns": (text(r" [^ \n]*\n", "\n"), "line 1: 17 columns, expected 18"),
    "unknown kind": (word(2, "Tram"), r"line 5, column 2 \(kind\): 'Tram', expected Car, Truck"),
    "long kind": (word(2, "T" * 5000), r"line 5, column 2 \(kind\): 'T{40}', expected Car, Truck"),
    "x": (word(13, "nan"), r"line 5, column 13 \(x\): 'nan', expected a number of metres"),
    "yaw": (word(16, "inf"), r"line 5, column 16 \(yaw\): 'inf', expected a number of radians"),
    "target 2": (word(17, "2"), r"line 5, column 17 \(target\): '2', expected a whole number"),
    "10 Hz": (
        text(r"(?m)^(\d+) ", r"\g<1>0 "),
        r"column 0 \(frame\): frames are 10 apart, expected 1, a frame every 0.5 s",
    ),
    "each row twice": (
        change_bytes(lambda data: data + data),
        r"#[34]: two rows for step 0 of track '1'",
    ),
    "no target": (text(r" 1\.0\n", " 0.0\n"), r"column 17 \(target\): no row is a target"),
    "incomplete future": (text(r"(?m)^12 1 .*\n", ""), "target 1 has 11 of 12 future steps"),
}
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
METAS: Cases = {
    "no scale": (text("3.00", "0"), r"line 3, column 0 \(scale\): 0, expected more than 0"),
    "another place": (text("620.00", "900.00"), "target 1 is outside the raster"),
}

FILES: dict[str, tuple[str, str, Cases]] = {
    "sequence": ("argoverse1", "1.csv", SEQUENCES),
    "city-map": ("argoverse1", "*.xml", CITY_MAPS),
    "scenario": ("argoverse2", "*.parquet", SCENARIOS),
    "scenario-map": ("argoverse2", "*.json", SCENARIO_MAPS),
    "log": ("argoverse2_sensor", "annotations.feather", LOGS),
    "poses": ("argoverse2_sensor", "city_SE3*", POSES),
    "log-map": (
        "argoverse2_sensor",
        "log_map*",
        {"truncated": (text("}$", ""), "map cannot be read")},
    ),
    "recording": ("eth_ucy", "*.txt", RECORDINGS),
    "tracks": ("interaction", "[vD]*.csv", TRACKS),
    "frame-rates": ("interaction", "*.csv", RATES),
    "lanelets": ("interaction", "*.osm_xy", LANELETS),
    "drones": ("sdd", "*.parquet", DRONES),
    "place": ("sdd", "*.txt", PLACES),
    "labels": ("nuscenes_prediction", "scene-*.txt", LABELS),
    "raster": ("nuscenes_prediction", "*.png", RASTERS),
    "raster-meta": ("nuscenes_prediction", "meta_*.txt", METAS),
}


ALL_CASES = [(file, case) for file, (_, _, cases) in FILES.items() for case in cases]


@pytest.mark.parametrize(("file", "case"), ALL_CASES)
def test_a_broken_input_is_refused_with_the_reason(tmp_path: Path, file: str, case: str) -> None:
    name, pattern, cases = FILES[file]
    damage, reason = cases[case]
    reader = FOLDERS[name](tmp_path / "raw")
    for path in (tmp_path / "raw").rglob(pattern):
        damage(path)
    outcomes, growth_mb = read_checked(reader, tmp_path / "raw")
    if name == "sdd":  # reads each file on its own
        outcomes = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert outcomes
    for outcome in outcomes:
        assert isinstance(outcome, str)
        assert re.search(reason, outcome), outcome
    assert growth_mb < 500


HARMLESS: dict[str, tuple[str, str, Damage]] = {
    "shuffled rows": (
        "argoverse2",
        "*.parquet",
        table(rows(lambda n: np.random.default_rng(0).permutation(n))),
    ),
    "row groups": ("argoverse2", "*.parquet", table(lambda t: t, row_group_size=100)),
    "another column": (
        "argoverse2",
        "*.parquet",
        table(lambda t: t.append_column("x", pa.array([[1.0]] * len(t)))),
    ),
    "float steps": (
        "argoverse2",
        "*.parquet",
        table(column("timestep", lambda v: v.cast(pa.float64()))),
    ),
    "small integers": (
        "argoverse2",
        "*.parquet",
        table(column("object_category", lambda v: v.cast(pa.uint8()))),
    ),
    "dictionaries": (
        "argoverse2",
        "*.parquet",
        table(column("object_type", lambda v: v.dictionary_encode())),
    ),
    "more fields": ("argoverse2", "*.json", text("^{", '{"more": [1, {"a": null}], ')),
    "Windows line ends": ("argoverse1", "*.csv", text("\n", "\r\n")),
    "byte order mark": ("argoverse1", "*.csv", prefix("\ufeff")),
    "tabs": ("eth_ucy", "*.txt", text(" ", "\t")),
    "blank lines": ("eth_ucy", "*.txt", text("\n", " \r\n \n")),
    "reversed rows": (
        "eth_ucy",
        "*.txt",
        change_bytes(lambda data: b"\n".join(data.splitlines()[::-1])),
    ),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_a_harmless_difference_gives_the_same_scene(tmp_path: Path, case: str) -> None:
    name, pattern, change = HARMLESS[case]
    raw = tmp_path / "raw"
    reader = FOLDERS[name](raw)
    split = reader.splits(raw)[0]
    before = read_all(reader, raw, split)
    FOLDERS[name](tmp_path / "changed")
    for path in (tmp_path / "changed").rglob(pattern):
        change(path)
    after = read_all(reader, tmp_path / "changed", split)
    for left, right in zip(before.values(), after.values(), strict=True):
        assert isinstance(left, Scene)
        assert isinstance(right, Scene)
        assert scenes_equal(left, right)


@pytest.mark.parametrize("name", ["a\nb", ".hidden", "a\u202eb", "a\udcffb", "x" * 230])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_argoverse2(tmp_path).parent
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace("s-1", name)))
    folder.rename(folder.with_name(name))
    [reason] = read_all(READERS["argoverse2"](), tmp_path, "val").values()
    assert "scene_id: not usable as a file name: " in str(reason)
