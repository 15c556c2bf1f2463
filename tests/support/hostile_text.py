"""Broken ETH/UCY recordings and tables of one's own: what is done to real ones, and why they must be refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from support.hostile import SPECIAL, Cases, Damage, cell, column, cut, data, parquet, replaced, zeroed

X, Y, FRAME, ID, TYPE = 13, 15, 0, 1, 2


def word(index: int, value: str, every: bool = False) -> Damage:
    """One word of a recording's line, or of all its lines, is another."""

    def change(whole: bytes) -> bytes:
        lines = [line.split(b" ") for line in whole.splitlines()]
        for row in lines if every else lines[4:5]:
            row[index] = value.encode(errors="surrogateescape")
        return b"\n".join(b" ".join(row) for row in lines)

    return data(change)


def csv(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Another table."""

    def damage(path: Path) -> None:
        pa_csv.write_csv(change(pa_csv.read_csv(path)), path)

    return damage


def text_cell(name: str, value: str) -> Damage:
    """One cell of a csv table is another word."""
    return csv(lambda table: cell(name, value)(column(name, lambda v: pc.cast(v, pa.string()))(table)))


def to_parquet(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """The table as Parquet, beside where it was, changed."""

    def damage(path: Path) -> None:
        table = pa_csv.read_csv(path)
        path.unlink()
        pa.parquet.write_table(change(table), path.with_suffix(".parquet"))

    return damage


def parquet_bytes(damage: Damage) -> Damage:
    """The table as Parquet, then done to its file."""

    def both(path: Path) -> None:
        to_parquet(lambda table: table)(path)
        damage(path.with_suffix(".parquet"))

    return both


RECORDINGS: Cases = {
    **{f"txt-{name}": (damage, "cannot be read|not a readable text") for name, damage in SPECIAL.items() if name != "missing"},
    "txt-huge": (lambda path: path.open("r+b").truncate(1 << 40), "1099511627776 bytes, expected at most"),
    "txt-empty": (cut(0.0), "no rows, so no pedestrian"),
    "txt-blank": (replaced("\n \n\t\n"), "no rows, so no pedestrian"),
    "txt-cut": (data(lambda whole: whole[: len(whole) // 2 + 9]), r"line \d+"),
    "txt-zeros": (zeroed(3_000, 90), "it has zero bytes"),  # what is left of two lines looks like one
    "txt-gzip": (data(gzip.compress), "not a readable text file"),
    "txt-utf16": (data(lambda whole: whole.decode().encode("utf-16")), "not a readable text file"),
    "txt-not-utf8": (word(TYPE, "P\udcff"), "not a readable text file"),
    "txt-commas": (data(lambda whole: whole.replace(b" ", b",")), "line 1: 1 columns, expected 17"),
    "txt-one-column-more": (data(lambda whole: whole.replace(b"\n", b" 7\n", 1)), "line 1: 18 columns, expected 17"),
    "txt-type": (word(TYPE, "Biker"), r"line 5, column 2 \(type\): 'Biker'"),
    **{
        f"txt-{name}-{value}": (word(index, value), rf"line 5, column {index} \(\w+\): ")
        for name, index in (("frame", FRAME), ("id", ID), ("x", X), ("y", Y))
        for value in ("nan", "inf", "1e300", "-1e300", "one", "1,5", "0x1")
    },
    "txt-frame-half": (word(FRAME, "10.5"), r"line 5, column 0 \(frame\): '10.5', expected a whole number"),
    "txt-far": (word(X, "60000"), r"line 5, column 13 \(x\): '60000', expected a number of metres up to 50000"),
    "txt-rows-twice": (data(lambda whole: whole + b"\n" + whole), r"column 1 \(id\): .* is twice in frame"),
    "txt-one-frame": (word(FRAME, "1", every=True), "is twice in frame 1|frame: no pedestrian is there"),
    "txt-one-line": (data(lambda whole: whole.splitlines()[0]), "no pedestrian is present in 20 consecutive frames"),
}
TABLES: Cases = {
    "table-empty": (cut(0.0), "cannot be read: Empty CSV"),
    "table-header-only": (data(lambda whole: whole.splitlines()[0]), r"\.csv: \w"),
    "table-zeros": (zeroed(0, 300), r"\.csv: \w"),
    "table-gzip": (data(gzip.compress), r"\.csv: \w"),
    "table-utf16": (data(lambda whole: whole.decode().encode("utf-16")), r"\.csv: \w"),
    "table-json": (replaced('[{"x": 1}]'), r"\.csv: \w"),
    **{
        f"table-no-{name}": (csv(lambda t, n=name: t.drop_columns(n)), f"{name}: no such column")
        for name in ("track_id", "x", "y", "step")
    },
    **{
        f"table-{name}-{value or 'empty'}": (text_cell(name, value), f"{name}: |faster than|farther than")
        for name in ("x", "y", "step", "heading", "vx")
        for value in ("inf", "1e300", "north")
    },
    "table-no-place": (text_cell("x", ""), "x: empty or NaN"),
    "table-half-step": (text_cell("step", "2.5"), "step: 2.5, expected a whole number"),
    "table-far": (text_cell("y", "7e5"), "farther than|y: 700000"),
    "table-kind": (csv(column("kind", lambda v: "tram")), "kind: 'tram'"),
    "table-role": (csv(column("role", lambda v: "hero")), "role: 'hero'"),
    "table-rows-twice": (csv(lambda t: pa.concat_tables([t, t])), r"\.csv: \w"),
    "table-id-endless": (
        csv(column("track_id", lambda v: pa.array(["a" * 400 + str(i) for i in v.to_pylist()]))),
        "agent_id: empty, over 200|track_id",
    ),
    "table-id-escape": (
        csv(column("track_id", lambda v: pa.array([f"\x1b[{i}" for i in v.to_pylist()]))),
        "agent_id: empty, over|track_id",
    ),
    "table-city-escape": (csv(lambda t: t.append_column("city", pa.array(["\x1b[2J"] * len(t)))), "city: "),
    "parquet-cut": (parquet_bytes(cut(0.7)), "cannot be read"),
    "parquet-no-magic": (parquet_bytes(zeroed(-4, 4)), "cannot be read"),
    "parquet-x-list": (to_parquet(column("x", lambda v: [1.0])), "x: type list"),
    "parquet-x-text": (to_parquet(column("x", lambda v: "1.0")), "x: type string, expected numbers"),
    "parquet-x-nan": (to_parquet(cell("x", float("nan"))), "x: empty or NaN"),
    "parquet-two-x": (parquet_bytes(parquet(lambda t: t.append_column("x", t["x"]))), "x: two columns of this name"),
    "parquet-no-rows": (to_parquet(lambda t: t.slice(0, 0)), "track_id: no rows"),
}
