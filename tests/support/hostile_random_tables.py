"""Random damage to tables: strategies of functions that damage a Parquet or feather file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyarrow import feather
from support.hostile import Damage
from support.hostile_random import PLACE, WORDS

NUMBERS = [0.0, -0.0, -1.0, 0.5, 1e9, -1e9, 1e300, -1e300, 5e-324, 2.0**31, 2.0**53, 2.0**63, float("nan"), float("inf"), None]
TYPES = [
    pa.string(),
    pa.large_string(),
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.binary(),
]
TYPES += [
    pa.decimal128(20, 3),
    pa.timestamp("ns"),
    pa.date32(),
    pa.dictionary(pa.int16(), pa.string()),
    pa.null(),
    pa.list_(pa.float64()),
]
Change = Callable[[pa.Table], pa.Table]


def rows(kind: str, first: int, second: int, seed: int) -> Change:
    """Rows dropped, repeated or shuffled."""

    def change(table: pa.Table) -> pa.Table:
        size, rng = len(table), np.random.default_rng(seed)
        a, b = sorted((first % (size + 1), second % (size + 1)))
        order = {
            "drop": [*range(a), *range(b, size)],
            "keep": range(a, b),
            "repeat": [*range(b), *range(a, size)],
            "shuffle": rng.permutation(size),
            "sample": rng.integers(0, max(size, 1), size),
        }
        return table.take(pa.array(np.array(order[kind], np.int64)))

    return change


def cells(which: int, place: int, number: float | None, word: str, run: int) -> Change:
    """Some values of a column are one odd value."""

    def change(table: pa.Table) -> pa.Table:
        index = which % table.num_columns
        values, kind = table.column(index).to_pylist(), table.column(index).type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        start = place % max(len(values), 1)
        odd = [word if is_text else number] * len(values[start : start + run])
        values[start : start + run] = odd
        if pa.types.is_integer(kind) and isinstance(number, float):
            values, kind = [value if value is None else float(value) for value in values], pa.float64()
        try:
            return table.set_column(index, table.column_names[index], pa.array(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a column whose type was changed before
            return table

    return change


def columns(kind: str, which: int, other: int, number: int) -> Change:
    """A column dropped, renamed, doubled, exchanged with another, of another type, or shuffled by itself."""

    def change(table: pa.Table) -> pa.Table:
        a, b = which % table.num_columns, other % table.num_columns
        names = table.column_names
        if kind == "drop":
            return table.remove_column(a) if table.num_columns > 1 else table
        if kind == "rename":
            return table.rename_columns([name if i != a else name.upper() for i, name in enumerate(names)])
        if kind == "double":
            return table.append_column(names[a], table.column(b))
        if kind == "exchange":
            return table.set_column(a, names[a], table.column(b))
        if kind == "roll":
            return table.set_column(a, names[a], table.column(a).take(pa.array(np.roll(np.arange(len(table)), number))))
        return table.set_column(a, names[a], retyped(table.column(a), TYPES[number % len(TYPES)]))

    return change


def retyped(values: pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Values as another type, as well as that can be."""
    if pa.types.is_list(kind):
        return pa.array([[1.0]] * len(values))
    try:
        return pc.cast(values, kind, safe=False)
    except (pa.ArrowException, ValueError, OverflowError):
        return pa.nulls(len(values), kind)


def tables_damaged(form: str) -> st.SearchStrategy[Damage]:
    """One to three changes of a table, written with any codec."""
    kinds = st.sampled_from(["drop", "rename", "double", "exchange", "roll", "retype", "retype"])
    row_kinds = st.sampled_from(["drop", "keep", "repeat", "shuffle", "sample"])
    change = st.one_of(
        st.builds(cells, PLACE, PLACE, st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.sampled_from([1, 1, 9, 9999])),
        st.builds(columns, kinds, PLACE, PLACE, PLACE),
        st.builds(rows, row_kinds, PLACE, PLACE, PLACE),
    )

    def damage(changes: list[Change], codec: str) -> Damage:
        def apply(path: Path) -> None:
            table = pq.read_table(path) if form == "parquet" else feather.read_table(path, memory_map=False)
            for change in changes:
                table = change(table)
            if form == "parquet":
                pq.write_table(table, path, compression=codec)
            else:
                sink = pa.OSFile(str(path), "wb")  # `write_feather` refuses two columns of one name
                with sink, pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table)

        return apply

    return st.builds(damage, st.lists(change, min_size=1, max_size=3), st.sampled_from(["snappy", "none", "zstd"]))
