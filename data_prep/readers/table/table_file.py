"""The columns of a table of tracks, CSV or Parquet, as arrays. A wrong cell affects its own row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from data_prep.readers.columns import DICTIONARY, is_text, stripped_groups
from data_prep.readers.csv_rows import READ_OPTIONS, read_rows, utf8_file
from data_prep.readers.raw_file import open_table
from data_prep.readers.row_check import RowCheck
from data_prep.readers.table.dates import (
    holds_dates,
    is_date,
    seconds_of_dates,
    seconds_of_words,
)
from trajformer.config import MAX_TEXT
from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import check_parquet

TIME = ("step", "timestamp")
TEXT = ("track_id", "scene_id", "kind", "role", "city")
SIZE = ("length", "width")
NUMBERS = ("x", "y", *TIME, "heading", "vx", "vy", *SIZE)
REQUIRED = ("track_id", "x", "y")
SUFFIXES = (".csv", ".csv.gz", ".parquet")
NO_OTHER_NAMES: Mapping[str, str] = MappingProxyType({})
MAX_BYTES = 1 << 36  # tables are read into memory


@dataclass(frozen=True, eq=False)
class TableColumns:
    """The known columns of n rows.

    `number[name]` is float64 [n], NaN for an empty cell and infinity for a cell that is not a
    number. A text column is its distinct words, sorted, in `word[name]` and the index of each row's
    word, int64 [n], in `code[name]`; an empty cell is the word "". With `has_dates`, timestamps
    were written as dates and are seconds since 1970.
    """

    number: dict[str, np.ndarray]
    word: dict[str, list[str]]
    code: dict[str, np.ndarray]
    has_dates: bool = False

    def take(self, rows: np.ndarray | slice) -> TableColumns:
        """Some rows, or all rows in another order."""
        number = {name: values[rows] for name, values in self.number.items()}
        code = {name: values[rows] for name, values in self.code.items()}
        return TableColumns(number, self.word, code, self.has_dates)


def table_stem(path: Path) -> str:
    """The name of a table without its suffix."""
    if path.name.lower().endswith(".csv.gz"):
        return path.name[: -len(".csv.gz")]
    return path.stem


def read_table(
    path: Path,
    requested: Sequence[str] = (*TEXT, *NUMBERS),
    written: Mapping[str, str] = NO_OTHER_NAMES,
    optional: Sequence[str] = (),
) -> TableColumns:
    """Read the requested columns that a file has.

    `written` is the name in the file of columns with another name than here; a file has all of
    them but the `optional` ones. A SceneError names the file and the column that cannot be used.
    """
    columns = TableColumns({}, {}, {})
    has_dates = False
    selection = _Selection(path, requested, written, optional)
    try:
        with open_table(path, MAX_BYTES) as file:
            if path.suffix.lower() == ".parquet":
                table = _read_parquet(path, file, selection)
            else:
                table = _read_csv(path, file, selection)
        if not len(table):
            raise SceneError(f"{path}: track_id: no rows")
        for written_name, column in zip(table.column_names, table.columns, strict=True):
            name = selection.name(written_name)
            if name == "timestamp":
                columns.number[name], has_dates = _timestamps(column, path)
            elif name in NUMBERS:
                columns.number[name] = _numbers(column, f"{path}: {name}")
            else:
                columns.word[name], columns.code[name] = _words(column, f"{path}: {name}")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return replace(columns, has_dates=has_dates)


class _Selection(NamedTuple):
    """The columns to read: their names here, and in the file if they differ."""

    path: Path
    requested: Sequence[str]
    written: Mapping[str, str]
    optional: Sequence[str]

    def name(self, written_name: str) -> str:
        """The name here of a column of the file, "" for one that is replaced by another."""
        stripped = written_name.strip()
        for name, other_name in self.written.items():
            if other_name == stripped:
                return name
        return "" if stripped in self.written else stripped

    def select(self, columns: Sequence[str]) -> list[str]:
        """Requested columns of a file, possibly with blanks around their names."""
        names = [self.name(column) for column in columns]
        for name in names:
            if name in (*TEXT, *NUMBERS) and names.count(name) > 1:
                raise SceneError(f"{self.path}: {name}: two columns of this name")

        missing = [self.written.get(name, name) for name in REQUIRED if name not in names]
        for name, other_name in self.written.items():
            if name not in names and name not in self.optional:
                missing.append(other_name)
        if "vy" in names and "vx" not in names:
            missing.append("vx")
        if "vx" in names and "vy" not in names:
            missing.append("vy")
        if not set(TIME) & set(names):
            missing.append("step (nor timestamp)")
        if missing:
            known = one_line(", ".join(column.strip() for column in columns[:20]), 300)
            raise SceneError(f"{self.path}: {missing[0]}: no such column; its columns are {known}")
        return [column for column in columns if self.name(column) in self.requested]


def _read_csv(path: Path, file: BinaryIO, selection: _Selection) -> pa.Table:
    text = utf8_file(file)
    header = next((line for line in text if line.strip()), b"")
    head = pa_csv.read_csv(pa.BufferReader(header), READ_OPTIONS)
    names = selection.select(head.column_names)
    types = dict.fromkeys(names, DICTIONARY)
    numbers = [name for name in names if selection.name(name) in NUMBERS]
    try:
        table, num_lost = read_rows(text, types | dict.fromkeys(numbers, pa.float64()))
    except pa.ArrowInvalid:  # text in a column of numbers: `_numbers` parses the cells
        table, num_lost = read_rows(text, types)
    check = RowCheck(path, len(table))
    expected = f"expected {len(head.column_names)} as in the first line"
    check.lose(num_lost, f"another number of columns, {expected}")
    check.finish()
    return table


def _read_parquet(path: Path, file: BinaryIO, selection: _Selection) -> pa.Table:
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    names = selection.select(schema.names)
    text = [name for name in names if pa.types.is_string(schema.field(name).type)]
    # Text as a dictionary: a repeated long word does not expand.
    with pq.ParquetFile(file, read_dictionary=text) as table:
        check_parquet(path, table.metadata)
        rows = table.read(names, use_threads=False)
    for name in text:
        for chunk in rows.column(name).chunks:
            length = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
            if length > MAX_TEXT:
                raise SceneError(f"{path}: {name}: a word of {length} bytes")
    return rows


def _words(column: pa.ChunkedArray, where: str) -> tuple[list[str], np.ndarray]:
    """The distinct words of a column of n rows, sorted, and the index int64 [n] of each word.

    Blanks around a word make no difference.
    """
    if pa.types.is_floating(column.type):  # pandas stores whole numbers and empty cells so
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise SceneError(f"{where}: type {column.type}, expected text or whole numbers")
    if column.type != DICTIONARY or column.null_count:
        column = column.cast(pa.string()).fill_null("")
    return stripped_groups(column)


def _numbers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """A column of numbers or of text as float64 [n]."""
    kind = column.type
    if is_text(kind):
        words, code = _words(column, where)
        return np.array([_number(word) for word in words])[code]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise SceneError(f"{where}: type {kind}, expected numbers")
    return column.cast(pa.float64(), safe=False).to_numpy()


def _timestamps(column: pa.ChunkedArray, path: Path) -> tuple[np.ndarray, bool]:
    """Timestamps float64 [n], and whether they were dates, which become seconds since 1970."""
    where = f"{path}: timestamp"
    if is_date(column.type):
        return seconds_of_dates(column), True
    if is_text(column.type):
        words, code = _words(column, where)
        if holds_dates(words):
            is_text_file = path.suffix.lower() != ".parquet"

            def row_name(row: int) -> str:
                # The first line of a text file has the names of the columns.
                return f"line {row + 2}" if is_text_file else f"row {row + 1}"

            return seconds_of_words(words, code, where, row_name), True
    return _numbers(column, where), False


def _number(word: str) -> float:
    """NaN for an empty cell, infinity for a cell that is not a number."""
    if word.strip().lower() in ("", "na", "n/a", "null"):
        return np.nan
    try:
        return float(word.replace("_", " _ "))  # Python would accept 1_000
    except ValueError:
        return np.inf
