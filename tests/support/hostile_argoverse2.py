"""Broken Argoverse 2 scenarios: what is done to a real one's parquet file, and why it must be refused."""

from __future__ import annotations

import decimal
import gzip
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.hostile import SPECIAL, Cases, cell, column, cut, data, parquet, replaced, then, words, zeroed

TEXT = ("track_id", "object_type", "city")
NUMBERS = ("timestep", "object_category", "position_x", "position_y", "heading", "velocity_x", "velocity_y")
Change = Callable[[pa.Table], pa.Table]


def keep(condition: Callable[[pa.Table], Any]) -> Change:
    """Some of the rows."""
    return lambda table: table.filter(pc.fill_null(condition(table), False))


def repeated(rows: Callable[[int], np.ndarray]) -> Change:
    """Rows by their numbers, in any order and number."""
    return lambda table: table.take(pa.array(rows(len(table))))


def many_tracks(count: int) -> Change:
    """So many tracks of one row each besides the real ones."""

    def change(table: pa.Table) -> pa.Table:
        more = table.take(pa.array(np.zeros(count, int)))
        more = column("track_id", lambda values: pa.array([f"t{i}" for i in range(count)]))(more)
        return pa.concat_tables([table, column("object_category", lambda values: pa.array([1] * count))(more)])

    return change


def two_focal(table: pa.Table) -> pa.Table:
    """The ego vehicle becomes a focal track too."""
    category = pc.if_else(pc.equal(table["track_id"], "AV"), 3, table["object_category"])
    return column("object_category", lambda values: category)(table)


def twice(name: str) -> Change:
    """A column is there twice."""
    return lambda table: table.append_column(name, table[name])


def listed(length: int) -> Callable[[pa.ChunkedArray], pa.Array]:
    """The values as lists, the first of which is `length` long."""

    def change(values: pa.ChunkedArray) -> pa.Array:
        flat = pa.array(np.zeros(length + len(values) - 1))
        offsets = np.concatenate([[0], length + np.arange(len(values))]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, flat)

    return change


def not_utf8(values: pa.ChunkedArray) -> pa.Array:
    """Bytes that pretend to be text."""
    return pa.array([b"\xff\xfe" + str(value).encode() for value in values], pa.binary()).cast(pa.string(), safe=False)


def rows_of_one(rows: int) -> Change:
    """The first row very often, which takes next to nothing in the file."""

    def change(table: pa.Table) -> pa.Table:
        index = pa.array(np.zeros(rows, np.int8))
        whole = {name: pa.DictionaryArray.from_arrays(index, table[name][:1].combine_chunks()) for name in (*TEXT, *NUMBERS)}
        return pa.table(whole)

    return change


def claimed(rows: int) -> Callable[[bytes], bytes]:
    """The footer's first mention of the number of rows is another."""

    def change(whole: bytes) -> bytes:
        start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        found = varint(pa.parquet.read_metadata(pa.BufferReader(whole)).num_rows)
        new = varint(rows)
        assert len(found) >= len(new)
        new = new if len(new) == len(found) else new[:-1] + bytes([new[-1] | 128]) + b"\x80" * (len(found) - len(new) - 1) + b"\0"
        return whole[:start] + whole[start:].replace(found, new, 1)

    return change


def varint(value: int) -> bytes:
    """A whole number as the footer has it."""
    value, out = value << 1, []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


STRUCTURE: Cases = {
    **{f"parquet-{name}": (damage, r"scenario_\S+: not a readable parquet file") for name, damage in SPECIAL.items()},
    **{f"parquet-cut-{part}": (cut(part), "not a readable parquet file") for part in (0.0, 0.0001, 0.3, 0.6, 0.9, 0.99, 0.99999)},
    "parquet-no-magic": (zeroed(-4, 4), "not a readable parquet file: Parquet magic bytes not found"),
    "parquet-no-footer": (zeroed(-9000, 8000), "not a readable parquet file"),
    "parquet-zeros-in-front": (zeroed(0, 20_000), "not a readable parquet file"),
    "parquet-all-zeros": (data(lambda whole: bytes(len(whole))), "not a readable parquet file"),
    "parquet-twice-the-middle": (data(lambda whole: whole[:9000] + whole[5000:]), "not a readable parquet file"),
    "parquet-swapped-blocks": (data(lambda b: b[40_000:80_000] + b[:40_000] + b[80_000:]), "not a readable parquet file"),
    "parquet-long-footer": (data(lambda b: b[:-8] + b"\xff\xff\xff\x7fPAR1"), "not a readable parquet file"),
    "parquet-is-json": (replaced(json.dumps({"track_id": ["AV"]})), "not a readable parquet file"),
    "parquet-is-csv": (replaced("track_id,timestep\nAV,3\n"), "not a readable parquet file"),
    "parquet-is-gzip": (data(gzip.compress), "not a readable parquet file"),
    "parquet-is-huge": (lambda path: path.open("r+b").truncate(1 << 40), "1099511627776 bytes, expected at most"),
    "parquet-claims-fewer-rows": (data(claimed(1000)), r"1000 rows, its parts have \d+"),
}
COLUMNS: Cases = {
    **{f"no-{name}": (parquet(lambda t, n=name: t.drop_columns(n)), f"{name}: no such column") for name in (*TEXT, *NUMBERS)},
    "upper-case-names": (parquet(lambda t: t.rename_columns([n.upper() for n in t.column_names])), "TRACK_ID|track_id: no such"),
    **{f"two-{name}": (parquet(twice(name)), f"{name}: two columns of this name") for name in ("city", "position_x")},
    **{
        f"{name}-as-text": (parquet(column(name, lambda v: pc.cast(v, pa.string()))), f"{name}: type string, expected a number")
        for name in NUMBERS
    },
    **{
        f"{name}-as-{label}": (
            parquet(column(name, lambda v, a=value: pa.array([a] * len(v)))),
            f"{name}: type {kind}, expected text",
        )
        for name in TEXT
        for label, value, kind in (("number", 3.5, "double"), ("bool", True, "bool"))
    },
    "steps-as-bool": (parquet(column("timestep", lambda v: pc.greater(v, 50))), "timestep: type bool, expected a number"),
    "x-as-decimal": (parquet(column("position_x", lambda v: decimal.Decimal("1.5"))), r"position_x: type decimal128\(2, 1\)"),
    "x-as-time": (
        parquet(column("position_x", lambda v: pc.cast(pc.cast(v, pa.int64(), safe=False), pa.timestamp("ms")))),
        "x: type timestamp",
    ),
    "x-as-half": (parquet(column("position_x", lambda v: pa.array(np.zeros(len(v), np.float16)))), "position_x: type halffloat"),
    "x-as-bytes": (parquet(column("position_x", lambda v: b"12345678")), "position_x: type binary, expected a number"),
    "x-as-nothing": (parquet(column("position_x", lambda v: pa.nulls(len(v)))), "position_x: type null, expected a number"),
    "x-as-list": (parquet(column("position_x", listed(1))), "position_x: not one value a row"),
    "x-and-a-list": (
        parquet(lambda t: t.append_column("track_id", pa.array([["AV"]] * len(t)))),
        "track_id: not one value a row",
    ),
    "x-and-a-record": (
        parquet(lambda t: t.append_column("heading", pa.array([{"x": 1.0}] * len(t)))),
        "heading: not one value a row",
    ),
    "x-as-record": (parquet(column("position_x", lambda v: {"x": 1.0})), "position_x: not one value a row"),
    "ids-as-list": (parquet(column("track_id", lambda v: ["AV"])), "track_id: no such column"),
    "ids-as-bytes": (parquet(column("track_id", lambda v: pc.cast(v, pa.binary()))), "track_id: type .*, expected text"),
    **{f"empty-{name}": (parquet(cell(name, None)), f"{name}: empty in 1 rows") for name in ("track_id", "timestep", "heading")},
}
VALUES: Cases = {
    **{
        f"{name}-{value}": (parquet(cell(name, float(value))), f"{name}: ")
        for name in NUMBERS
        for value in ("nan", "inf", "-inf", "1e300", "-1e300")
    },
    "ends-of-the-earth": (parquet(cell("position_y", 1e9)), r"position_y: 1e\+09, expected at most 1e\+08 either way"),
    "far-apart": (parquet(cell("position_x", 70_000.0)), "position: farther than 50 km from the origin"),
    "everybody-far-away": (parquet(column("position_x", lambda v: 1e17)), r"position_x: 1e\+17"),
    "heading-in-degrees": (parquet(column("heading", lambda v: 170.0)), "heading: 170, expected at most 6.28"),
    "faster-than-light": (parquet(cell("velocity_x", 3e8)), r"velocity_x: 3e\+08, expected at most 10000 either way"),
    **{f"step-{v}": (parquet(cell("timestep", v)), "timestep: ") for v in (-1, 110, 2**31, 2**62, -(2**63), 3.5)},
    **{f"category-{v}": (parquet(column("object_category", lambda _, v=v: v)), "object_category: ") for v in (-1, 4, 1.5, 255)},
    "unknown-type": (parquet(words("object_type", "vehicle", "tram")), "object_type: unknown value 'tram'"),
    "endless-type": (parquet(words("object_type", "vehicle", "v" * 5_000)), "object_type: unknown value 'v{40}'$"),
    "two-focal": (parquet(two_focal), "agent_role: more than one focal agent"),
    "two-cities": (parquet(cell("city", "oslo")), "city: 2 cities in one scenario"),
    "no-rows": (parquet(lambda t: t.slice(0, 0)), "track_id: no rows, so no agent"),
    "one-row": (parquet(lambda t: t.slice(0, 1)), "timestep: one step only"),
    "no-history": (parquet(keep(lambda t: pc.greater_equal(t["timestep"], 50))), "timestep: no track has an observed step"),
    "rows-twice": (parquet(repeated(lambda n: np.arange(n).repeat(2))), "timestep: a track has two rows with the same one"),
    "many-rows": (parquet(repeated(lambda n: np.arange(300_000) % n)), "track_id: 300000 rows, .* far too much"),
    "many-tracks": (parquet(many_tracks(20_000)), r"track_id: 200\d\d tracks, far too many for one scenario"),
}
IDS: Cases = {
    **{
        f"id-{label}": (
            parquet(words("track_id", "AV", value)),
            "agent_id: empty, over 200 characters, or with a newline or other",
        )
        for label, value in {
            "empty": "",
            "newline": "A\nV",
            "nul": "A\0V",
            "endless": "A" * 10_000,
            "escape": "\x1b[2J",
            "separator": "\u2028",
        }.items()
    },
    "city-newline": (parquet(column("city", lambda v: "a\nb")), "city: not usable as a name: 'a\\\\nb'"),
    "city-escape": (parquet(column("city", lambda v: "\x1b]0;x\x07")), "city: not usable as a name: '.x1b"),
    "city-endless": (parquet(column("city", lambda v: "c" * 10_000)), "city: not usable as a name: 'c{40}'$"),
    "ids-not-utf8": (
        parquet(column("track_id", not_utf8)),
        "not a readable parquet file: 'utf-8' codec|not a readable parquet file: .*UTF8",
    ),
    "types-not-utf8": (parquet(column("object_type", not_utf8)), "not a readable parquet file"),
}
BOMBS: Cases = {
    "rows-bomb": (parquet(rows_of_one(2_000_000)), "track_id: 2000000 rows, .* far too much"),
    "rows-bomb-that-lies": (then(parquet(rows_of_one(2_000_000)), data(claimed(1000))), "1000 rows, its parts have 2000000"),
    "list-bomb": (parquet(column("position_x", listed(8_000_000))), "position_x: not one value a row"),
    "text-bomb": (
        parquet(column("track_id", lambda v: pa.array(["x" * 70_000_000] + ["y"] * (len(v) - 1))), compression="zstd"),
        "far too much",
    ),
    "zstd": (parquet(lambda t: t, compression="zstd"), "track_id: compressed with ZSTD, expected SNAPPY or UNCOMPRESSED"),
}
CASES: Cases = STRUCTURE | COLUMNS | VALUES | IDS | BOMBS
