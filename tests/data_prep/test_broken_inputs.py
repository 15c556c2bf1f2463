"""Broken files of all formats with the expected reasons, and harmless differences between files."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.fixtures import write_argoverse2
from support.hostile import cell, column, encoded, json_value, prefix, read_checked, rows, table, text, words
from support.raw_folders import FOLDERS
from support.sensor_logs import T0

from data_prep.readers.names import READERS
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.testing.readers import Damage, change_bytes, read_all

Cases = dict[str, tuple[Damage, str]]  # by name: the damage, and a pattern of the expected reason
NAME = "agent_id: empty, over 200 characters, or with a newline"


def then(first: Damage, second: Damage) -> Damage:
    """Two damages in sequence."""

    def damage(path: Path) -> None:
        first(path)
        second(path)

    return damage


def where(condition: Callable[[pa.Table], Any]) -> Damage:
    """Keep the rows of a table that fulfil a condition."""
    return table(lambda whole: whole.filter(condition(whole)))


def constant(name: str, value: Any) -> Damage:
    """Replace a column by one repeated value."""
    return table(column(name, lambda values: value))


def added(name: str, value: Any) -> Damage:
    """Append a column with one repeated value."""
    return table(lambda whole: whole.append_column(name, pa.array([value] * len(whole))))


def without(*names: str) -> Damage:
    """Remove columns."""
    return table(lambda whole: whole.drop_columns(list(names)))


TWICE = table(lambda whole: pa.concat_tables([whole, whole]))
NO_ROWS = table(lambda whole: whole.slice(0, 0))

# ---- Argoverse 1 ---------------------------------------------------------------------------------------------------

NAMES = ("TIMESTAMP", "TRACK_ID", "OBJECT_TYPE", "X", "Y", "CITY_NAME")
AGENT = "00-agent"


def more_rows(tracks: int, steps: int) -> Damage:
    """Add tracks of some steps each to a sequence."""

    def change(whole: pa.Table) -> pa.Table:
        agent = whole.filter(pc.equal(whole["OBJECT_TYPE"], "AGENT")).slice(0, steps)
        more = rows(lambda size: np.arange(tracks * steps) % steps)(agent)
        ids = pa.array([f"t{index // steps}" for index in range(tracks * steps)])
        more = column("TRACK_ID", lambda values: ids)(more)
        return pa.concat_tables([whole, column("OBJECT_TYPE", lambda values: "OTHERS")(more)])

    return table(change)


SEQUENCES: Cases = {
    **{f"no {name}": (without(name), name) for name in NAMES},
    **{f"two {name}": (table(lambda t, n=name: t.append_column(n, t[n])), name) for name in NAMES[:5]},
    "no header": (text("^[^\n]*\n", ""), "TIMESTAMP"),
    "semicolons": (text(",", ";"), "TIMESTAMP"),
    "an open quote": (text("\n", '\n"', 1), "columns"),
    "a comma in a number": (table(cell("X", "12,5")), "conversion error"),
    "no rows": (NO_ROWS, "Empty CSV|TRACK_ID: no rows"),
    **{f"{name} {v or 'empty'}": (table(cell(name, v)), f"{name}: empty or NaN in 1 rows") for name in "XY" for v in ("", "nan")},
    **{f"{name} {v}": (table(cell(name, v)), f"{name}: ") for name in "XY" for v in ("inf", "-inf", "1e300", "-1e9")},
    **{f"{name} text": (table(cell(name, "north")), "north") for name in ("X", "Y", "TIMESTAMP")},
    "far": (table(cell("X", "90000.0")), "farther than 50 km|faster than"),
    "one more timestamp": (table(cell("TIMESTAMP", "1e10")), "TIMESTAMP: (51|21) different timestamps"),
    "infinite timestamp": (
        table(column("TIMESTAMP", lambda v: pc.if_else(pc.equal(v, pc.max(v)), "inf", v))),
        "TIMESTAMP: infinite",
    ),
    "one timestamp": (constant("TIMESTAMP", "1.0"), "TIMESTAMP: 1 different timestamps"),
    "no AGENT": (table(words("OBJECT_TYPE", "AGENT", "OTHERS")), "OBJECT_TYPE: 0 tracks are AGENT"),
    "two AGENTs": (table(words("OBJECT_TYPE", "AV", "AGENT")), "OBJECT_TYPE: 2 tracks are AGENT"),
    "unobserved AGENT": (
        where(lambda t: pc.or_(pc.not_equal(t["OBJECT_TYPE"], "AGENT"), pc.greater(t["TIMESTAMP"], "315971501.1"))),
        "no observed step|0 tracks are AGENT",
    ),
    "unknown type": (constant("OBJECT_TYPE", "T" * 9_000), "OBJECT_TYPE: unknown value 'T{40}'$"),
    "each row twice": (TWICE, "TRACK_ID: a track has two rows"),
    "many rows": (more_rows(3_000, 20), r"TRACK_ID: 6\d+ rows, far too many"),
    "many tracks": (more_rows(3_000, 1), r"TRACK_ID: 30\d+ tracks, far too many"),
    **{f"id {value[:3]!r}": (text(AGENT, value), NAME) for value in ("a" * 1_000, "\x1b[2J", "a\0b")},
    "two cities": (table(cell("CITY_NAME", "MIA")), "CITY_NAME: 2 cities"),
    **{
        f"city {label}": (constant("CITY_NAME", city), f"CITY_NAME: no map_files/pruned_argoverse_{pattern}_")
        for label, city, pattern in (
            ("outside", "../../etc/passwd", r"\.\./\.\./etc/passwd"),
            ("long", "C" * 900, "C{40}"),
            ("star", "*", r"\*"),
            ("newline", "a\nb", r"a\\nb"),
        )
    },
}


def nested_entities(levels: int, repeats: int) -> str:
    """Entities that refer to one another."""
    return '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * repeats}">' for n in range(levels))


DEEP = prefix(f"<!DOCTYPE a [{nested_entities(90_000, 1)}]>")
CITY_MAPS: Cases = {
    "other XML": (text("(?s)^.*$", "<a/>", 1), "way: no lanes"),
    "deep XML": (text("(?s)^.*$", "<a>" * 300_000 + "</a>" * 300_000, 1), "way: no lanes"),
    "exponential entities": (prefix(f"<!DOCTYPE a [{nested_entities(10, 10)}]>"), "it has a document type"),
    "deep entities in UTF-16": (then(DEEP, encoded("utf-16")), "it is not UTF-8"),
    "deep entities in EBCDIC": (
        then(then(DEEP, encoded("cp037")), prefix('<?xml version="1.0" encoding="cp037"?>')),
        "ParseError",
    ),
    **{
        f"{n} {v}": (text(f' {n}="[^"]*"', f' {n}="{v}"'), "not a vector map|not a point")
        for n in "xy"
        for v in ("nan", "inf", "1e9")
    },
    "x text": (text(' x="[^"]*"', ' x="east"'), "not a vector map: ValueError"),
    "missing node": (text('<node id="3"', '<node id="900"'), "not a vector map: KeyError: '3'"),
    "large lane id": (text('lane_id="[^"]*"', f'lane_id="{"9" * 30}"'), "way: lane_id: not within 64 bits"),
    "one lane id": (text('lane_id="[^"]*"', 'lane_id="7"'), "way: two lanes of one lane_id"),
    "turn": (text('(k="turn_direction" v=")[^"]*', r"\g<1>UP"), r"lane \d+: turn_direction: unknown value 'UP'"),
    "no points": (text("<nd [^>]*>", ""), r"lane \d+: centreline of 0 different points"),
}

# ---- Argoverse 2 ---------------------------------------------------------------------------------------------------

TEXT = ("track_id", "object_type", "city")
NUMBERS = ("timestep", "object_category", "position_x", "position_y", "heading", "velocity_x", "velocity_y")


def many_tracks(whole: pa.Table) -> pa.Table:
    more = rows(lambda size: np.full(20_000, size - 1))(whole)
    return pa.concat_tables([whole, column("track_id", lambda v: pa.array([f"t{i}" for i in range(len(v))]))(more)])


def one_row_many_times(whole: pa.Table) -> pa.Table:
    """Two million rows that need little space in the file."""
    index = pa.array(np.zeros(2_000_000, np.int8))
    return pa.table({n: pa.DictionaryArray.from_arrays(index, whole[n][:1].combine_chunks()) for n in (*TEXT, *NUMBERS)})


def long_list(values: pa.ChunkedArray) -> pa.Array:
    """The values as lists; the first one is very long."""
    offsets = np.concatenate([[0], 8_000_000 + np.arange(len(values))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.zeros(8_000_000 + len(values) - 1)))


def not_utf8(values: pa.ChunkedArray) -> pa.Array:
    return pa.array([b"\xff\xfe" + str(value).encode() for value in values], pa.binary()).cast(pa.string(), safe=False)


def claim_rows(count: int) -> Damage:
    """Change the number of rows in the metadata of a parquet file; the data stay."""

    def varint(value: int, length: int) -> bytes:
        digits = [(value << 1) >> 7 * n & 127 | 128 for n in range(length)]
        return bytes([*digits[:-1], digits[-1] & 127])

    def change(data: bytes) -> bytes:
        known = pq.read_metadata(pa.BufferReader(data)).num_rows
        length = -(-(known << 1).bit_length() // 7)
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        assert varint(known, length) in data[start:]
        return data[:start] + data[start:].replace(varint(known, length), varint(count, length), 1)

    return change_bytes(change)


SCENARIOS: Cases = {
    **{f"no {name}": (without(name), f"{name}: no such column") for name in (*TEXT, *NUMBERS)},
    **{
        f"two {name}": (table(lambda t, n=name: t.append_column(n, t[n])), f"{name}: two columns") for name in ("city", "heading")
    },
    **{f"{name} text": (constant(name, "one"), f"{name}: type string, expected a number") for name in NUMBERS},
    **{f"{name} number": (constant(name, 3.5), f"{name}: type double, expected text") for name in TEXT},
    **{f"empty {name}": (table(cell(name, None)), f"{name}: empty in 1 rows") for name in ("track_id", "timestep", "heading")},
    **{
        f"x as {pattern}": (table(column("position_x", change)), f"position_x: {pattern}")
        for pattern, change in {
            r"type decimal128\(2, 1\)": lambda v: decimal.Decimal("1.5"),
            "type bool": lambda v: True,
            "type timestamp": lambda v: pc.cast(pc.cast(v, pa.int64(), safe=False), pa.timestamp("ms")),
            "type halffloat": lambda v: pa.array(np.zeros(len(v), np.float16)),
            "type binary": lambda v: b"12345678",
            "type null": lambda v: pa.nulls(len(v)),
            "not one value a row": lambda v: pa.array([[1.0]] * len(v)),
        }.items()
    },
    "a record for x": (constant("position_x", {"x": 1.0}), "position_x: not one value a row"),
    "ids as lists": (constant("track_id", ["AV"]), "track_id: no such column"),
    "ids not UTF-8": (table(column("track_id", not_utf8)), "not a readable parquet file: .*(utf-8|UTF8)"),
    **{f"{n} {v}": (table(cell(n, float(v))), f"{n}: ") for n in NUMBERS for v in ("nan", "inf", "-1e300")},
    "far from the earth": (table(cell("position_y", 1e9)), r"position_y: 1e\+09, expected at most 1e\+08 either way"),
    "far apart": (table(cell("position_x", 70_000.0)), "position: farther than 50 km from the origin"),
    "degrees": (constant("heading", 170.0), "heading: 170, expected at most 6.28"),
    "fast": (table(cell("velocity_x", 3e8)), r"velocity_x: 3e\+08, expected at most 10000 either way"),
    **{f"step {v}": (table(cell("timestep", v)), "timestep: ") for v in (-1, 110, 2**62, -(2**63), 3.5)},
    **{f"category {v}": (constant("object_category", v), "object_category: ") for v in (-1, 4, 1.5)},
    "unknown type": (table(words("object_type", "vehicle", "tram" * 999)), "object_type: unknown value '(tram){10}'$"),
    "two focal": (constant("object_category", 3), "agent_role: more than one focal agent"),
    "two cities": (table(cell("city", "oslo")), "city: 2 cities in one scenario"),
    "no rows": (NO_ROWS, "track_id: no rows, so no agent"),
    "one row": (table(lambda t: t.slice(0, 1)), "timestep: one step only"),
    "no history": (where(lambda t: pc.greater_equal(t["timestep"], 50)), "timestep: no track has an observed step"),
    "each row twice": (TWICE, "timestep: a track has two rows with the same one"),
    "many rows": (table(rows(lambda n: np.arange(300_000) % n)), "track_id: 300000 rows, .* far too much"),
    "many tracks": (table(many_tracks), r"track_id: 200\d\d tracks, far too many for one scenario"),
    **{
        f"id {v[:3]!r}": (table(words("track_id", "AV", v)), NAME) for v in ("", "A\nV", "A\0V", "A" * 9_999, "\x1b[2J", "\u2028")
    },
    **{f"city {v[:3]!r}": (constant("city", v), "city: not usable as a name: ") for v in ("a\nb", "\x1b]0;x\x07", "c" * 9_999)},
    "wrong number of rows": (claim_rows(100), r"100 rows, its parts have \d+"),
    "codec": (table(lambda t: t, compression="zstd"), "compressed with ZSTD, expected SNAPPY or UNCOMPRESSED"),
    "two million rows": (table(one_row_many_times), "track_id: 2000000 rows, .* far too much"),
    "endless list": (table(column("position_x", long_list)), "position_x: not one value a row"),
    "endless text": (
        table(column("track_id", lambda v: pa.array(["x" * 70_000_000] + ["y"] * (len(v) - 1))), compression="zstd"),
        "far too much",
    ),
}
POINT = {"x": 1.0, "y": 2.0, "z": 0.0}
LANE = ("lane_segments", 0)
IN_LANE = r"lane_segments\[1\]: "


def lane(field: str, value: Any) -> Damage:
    return json_value(*LANE, field, value=value)


SECTIONS = ("lane_segments", "pedestrian_crossings", "drivable_areas")
FIELDS = {"id": "x", "lane_type": "TRAM", "is_intersection": 1, "left_lane_boundary": {}, "right_lane_boundary": [None]}
FIELDS |= {"successors": ["1"], "predecessors": None, "left_neighbor_id": [1], "right_neighbor_id": 1.5}
SCENARIO_MAPS: Cases = {
    **{f"no {name}": (json_value(name, drop=True), f"{name}: missing") for name in SECTIONS},
    **{f"{name} as a list": (json_value(name, value=[]), f"{name}: missing") for name in SECTIONS},
    **{f"lane without {name}": (json_value(*LANE, name, drop=True), rf"{IN_LANE}.*`{name}`") for name in FIELDS},
    **{f"lane {name}": (lane(name, value), IN_LANE) for name, value in FIELDS.items()},
    "not UTF-8": (text('"VEHICLE"', '"\udcff"'), "map cannot be read"),
    "deep lists": (prefix("[" * 100_000), "map cannot be read|lane_segments: missing"),
    "a deep field": (text("^{", '{"more":' + "[" * 100_000 + "]" * 100_000 + ","), "map cannot be read"),
    "large": (prefix(" " * (17 << 20)), r"map cannot be read: \d+ bytes, expected at most"),
    "a million lanes": (
        text('"lane_segments": {', '"lane_segments": {' + ", ".join(f'"{n}": {{}}' for n in range(10**6)) + ", "),
        r"lane_segments\[0\]: Object missing required field|map cannot be read: \d+ bytes",
    ),
    "large id": (lane("id", 2**63), IN_LANE),
    "many links": (lane("successors", [1] * 1_000_000), f"{IN_LANE}Expected `array` of length <= 100"),
    **{f"point {v}": (lane("left_lane_boundary", [POINT | {"x": v}]), f"{IN_LANE}Expected `float`") for v in (None, "1.0", True)},
    **{f"point {v}": (lane("left_lane_boundary", [POINT | {"x": float(v)}]), "map cannot be read") for v in ("nan", "inf")},
    **{f"point {v}": (lane("left_lane_boundary", [POINT | {"x": v}]), "a point over 1e.08 m from zero") for v in (1e300, -1e9)},
    "a far point": (lane("left_lane_boundary", [POINT, POINT | {"y": 2e5}]), "point: farther than 50 km from the origin"),
    "long key": (text('"lane_segments": {', '"lane_segments": {"' + "k" * 9_999 + '": {}, '), r"lane_segments\[k{40}\]"),
    "newline in a key": (text('"lane_segments": {', r'"lane_segments": {"a\\nb": {}, '), r"lane_segments\[a\\nb\]"),
    "one id": (lane("id", 2), "lane_segments: 3 entries with 2 ids"),
    "area of two points": (json_value(SECTIONS[2], 0, "area_boundary", value=[POINT] * 2), r"drivable_areas\[6\]: .*length >= 3"),
}

# ---- sensor logs ---------------------------------------------------------------------------------------------------

LOG_TEXT, LOG_NUMBERS = ("track_uuid", "category"), ("timestamp_ns", "qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
BEYOND = "NaN, infinity or a number beyond"
LOGS: Cases = {
    **{f"no {name}": (without(name), f"{name}: no such column") for name in (*LOG_NUMBERS, *LOG_TEXT)},
    **{f"{name} text": (constant(name, "one"), f"{name}: type string, expected") for name in LOG_NUMBERS},
    **{f"{name} number": (constant(name, 1.0), f"{name}: type double, expected text") for name in LOG_TEXT},
    **{f"empty {n}": (table(cell(n, None)), f"{n}: empty in 1 rows") for n in ("timestamp_ns", "qw", "track_uuid")},
    **{
        f"{n} {v}": (table(cell(n, float(v))), f"{n}: {BEYOND}") for n in ("qz", "tx_m", "ty_m") for v in ("nan", "inf", "-1e300")
    },
    "no rows": (NO_ROWS, "timestamp_ns: no rows"),
    "two qw": (table(lambda t: t.append_column("qw", t["qw"])), "qw: two columns of this name"),
    **{f"timestamp {v}": (table(cell("timestamp_ns", v)), "timestamp_ns: 131 sweeps spread over") for v in (40, 2**62, -(2**63))},
    "two sweeps of one step": (table(cell("timestamp_ns", T0 + 1)), "falls on the same step of 0.1 s as"),
    "each row twice": (TWICE, "track_uuid: a track has two rows with one timestamp_ns"),
    "category": (table(words("category", "BUS", "TRAM")), "category: unknown value 'TRAM'"),
    "no rotation": (constant("qw", 9.0), "qw, qx, qy, qz: a quaternion of length"),
    **{f"id {v[:3]!r}": (constant("track_uuid", v), f"{NAME}|a track has two rows") for v in ("a\nb", "-" * 400)},
    "not UTF-8": (
        then(table(lambda t: t), change_bytes(lambda data: data.replace(b"parked", b"park\xff\xff"))),
        "not a readable feather file: .*UTF8",
    ),
    "three million rows": (
        table(rows(lambda n: np.zeros(3_000_000)), compression="zstd"),
        "timestamp_ns: 3000000 rows, far too many for one log",
    ),
}
POSES: Cases = {
    "a gap": (table(lambda t: t.slice(0, len(t) // 2)), "timestamp_ns: no pose at"),
    "NaN": (constant("tx_m", float("nan")), f"tx_m: {BEYOND}"),
}

# ---- ETH/UCY -------------------------------------------------------------------------------------------------------


def word(index: int, value: str) -> Damage:
    """Replace a word of line 5."""

    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        row = lines[4].split()
        lines[4] = " ".join([*row[:index], value, *row[index + 1 :]])
        return "\n".join(lines).encode(errors="surrogateescape")

    return change_bytes(change)


RECORDINGS: Cases = {
    **{
        f"{name} {value}": (word(index, value), rf"line 5, column {index} \({name}\): '{value}', expected a (whole )?number")
        for name, index in (("frame", 0), ("id", 1), ("x", 13), ("y", 15))
        for value in ("nan", "inf", "1e300", "-1e300", "one", "1,5", "0x1")
    },
    "half a frame": (word(0, "780.5"), r"line 5, column 0 \(frame\): '780.5', expected a whole number"),
    "far": (word(13, "60000"), r"line 5, column 13 \(x\): '60000', expected a number of metres up to 50000"),
    "not UTF-8": (word(2, "P\udcff"), "not a readable text file"),
    "a lost block": (change_bytes(lambda data: data[:300] + bytes(90) + data[390:]), "it has zero bytes"),
    "commas": (text(" ", ","), "line 1: 1 columns, expected 17"),
    "each row twice": (change_bytes(lambda data: data + data), r"column 1 \(id\): .* is twice in frame"),
    "one line": (text("(?s)\n.*", ""), "frame: no pedestrian is present in 20 consecutive frames, of 1 in all"),
    "19 frames": (text("970.0 [^\n]*\n", ""), "no pedestrian is present in 20 consecutive frames, of 19 in all"),
    "a blank first line": (then(word(13, "east"), prefix("\n")), r"line 6, column 13 \(x\): 'east'"),
}

FILES: dict[str, tuple[str, str, Cases]] = {
    "sequence": ("argoverse1", "1.csv", SEQUENCES),
    "city-map": ("argoverse1", "*.xml", CITY_MAPS),
    "scenario": ("argoverse2", "*.parquet", SCENARIOS),
    "scenario-map": ("argoverse2", "*.json", SCENARIO_MAPS),
    "log": ("argoverse2_sensor", "annotations.feather", LOGS),
    "poses": ("argoverse2_sensor", "city_SE3*", POSES),
    "log-map": ("argoverse2_sensor", "log_map*", {"truncated": (text("}$", ""), "map cannot be read")}),
    "recording": ("eth_ucy", "*.txt", RECORDINGS),
}


@pytest.mark.parametrize(("file", "case"), [(file, case) for file, (*_, cases) in FILES.items() for case in cases])
def test_a_broken_input_is_refused_with_the_reason(tmp_path: Path, file: str, case: str) -> None:
    name, pattern, cases = FILES[file]
    damage, reason = cases[case]
    reader = FOLDERS[name](tmp_path / "raw")
    for path in (tmp_path / "raw").rglob(pattern):
        damage(path)
    reasons, growth_mb = read_checked(reader, tmp_path / "raw")
    assert reasons and all(isinstance(text, str) and re.search(reason, text) for text in reasons), reasons
    assert growth_mb < 500


HARMLESS: dict[str, tuple[str, str, Damage]] = {
    "shuffled rows": ("argoverse2", "*.parquet", table(rows(lambda n: np.random.default_rng(0).permutation(n)))),
    "row groups": ("argoverse2", "*.parquet", table(lambda t: t, row_group_size=100)),
    "not compressed": ("argoverse2", "*.parquet", table(lambda t: t, compression=None, use_dictionary=False)),
    "another column": ("argoverse2", "*.parquet", added("x", [1.0])),
    "float steps": ("argoverse2", "*.parquet", table(column("timestep", lambda v: v.cast(pa.float64())))),
    "small integers": ("argoverse2", "*.parquet", table(column("object_category", lambda v: v.cast(pa.uint8())))),
    "large strings": ("argoverse2", "*.parquet", table(column("track_id", lambda v: v.cast(pa.large_string())))),
    "dictionaries": ("argoverse2", "*.parquet", table(column("object_type", lambda v: v.dictionary_encode()))),
    "more fields": ("argoverse2", "*.json", text("^{", '{"more": [1, {"a": null}], ')),
    "white space": ("argoverse2", "*.json", text(", ", " ,\t\r\n")),
    "sorted by x": ("argoverse1", "*.csv", table(lambda t: t.sort_by("X"))),
    "Windows line ends": ("argoverse1", "*.csv", text("\n", "\r\n")),
    "byte order mark": ("argoverse1", "*.csv", prefix("\ufeff")),
    "extra column": ("argoverse1", "*.csv", added("MORE", "x")),
    "tabs": ("eth_ucy", "*.txt", text(" ", "\t")),
    "blank lines": ("eth_ucy", "*.txt", text("\n", " \r\n \n")),
    "reversed rows": ("eth_ucy", "*.txt", change_bytes(lambda data: b"\n".join(data.splitlines()[::-1]))),
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
        assert isinstance(left, Scene) and isinstance(right, Scene) and scenes_equal(left, right)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", ".hidden", "a\u202eb", "a\u2028b", "a\udcffb", "é" * 101, "x" * 230])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_argoverse2(tmp_path).parent
    for path in list(folder.iterdir()):
        path.rename(path.with_name(path.name.replace("s-1", name)))
    folder.rename(folder.with_name(name))
    [reason] = read_all(READERS["argoverse2"](), tmp_path, "val").values()
    assert "scene_id: not usable as a file name: " in str(reason)
