"""Files of tables of tracks, CSV or Parquet, to columns; a wrong cell must affect its own scene only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data_prep.readers.columns import DICTIONARY, READ_OPTIONS, groups, is_text
from data_prep.readers.raw_file import one_line, printable
from trajformer.errors import SceneError

SUFFIXES = (".csv", ".parquet")
TIME = ("step", "timestamp")
TEXT = ("track_id", "scene_id", "kind", "role", "city")
NUMBERS = ("x", "y", *TIME, "heading", "vx", "vy")
MAX_BYTES = 1 << 36  # tables are read into memory


@dataclass(frozen=True, eq=False)
class Columns:
    """The known columns of n rows.

    `number[name]` is float64 [n], NaN for an empty cell and infinity for a cell that is not a number. A text column is
    its distinct words, sorted, in `word[name]` and the index of each row's word, int64 [n], in `code[name]`; an empty
    cell is the word "".
    """

    number: dict[str, np.ndarray]
    word: dict[str, list[str]]
    code: dict[str, np.ndarray]

    def take(self, rows: np.ndarray | slice) -> Columns:
        """Some rows, or all of them in another order."""
        number, code = ({name: values[rows] for name, values in part.items()} for part in (self.number, self.code))
        return Columns(number, self.word, code)


def read_columns(path: Path, requested: Sequence[str] = (*TEXT, *NUMBERS)) -> Columns:
    """Read the requested columns that a file has.

    Raises:
        SceneError: the file cannot be read or has no rows, a column is missing or repeated, or a Parquet column
            has the wrong type; names file and column.
    """
    columns = Columns({}, {}, {})
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise SceneError(f"{path}: {size} bytes, expected at most {MAX_BYTES}")
        table = (_read_parquet if path.suffix.lower() == ".parquet" else _read_csv)(path, requested)
        if not len(table):
            raise SceneError(f"{path}: track_id: no rows")
        for name, column in zip(map(str.strip, table.column_names), table.columns, strict=True):
            if name in NUMBERS:
                columns.number[name] = _numbers(column, f"{path}: {name}")
            else:
                columns.word[name], columns.code[name] = _words(column, f"{path}: {name}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return columns


def _read_csv(path: Path, requested: Sequence[str]) -> pa.Table:
    with pa_csv.open_csv(path, READ_OPTIONS) as head:
        names = _select(head.schema.names, requested, path)

    def read(kinds: dict[str, pa.DataType]) -> pa.Table:
        options = pa_csv.ConvertOptions(column_types=kinds, include_columns=names)
        return pa_csv.read_csv(path, read_options=READ_OPTIONS, convert_options=options)

    try:
        return read({name: pa.float64() if name.strip() in NUMBERS else DICTIONARY for name in names})
    except pa.ArrowInvalid:  # text in a column of numbers: `_numbers` parses the cells
        return read(dict.fromkeys(names, DICTIONARY))


def _read_parquet(path: Path, requested: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        return file.read(_select(file.schema_arrow.names, requested, path), use_threads=False)


def _select(columns: Sequence[str], requested: Sequence[str], path: Path) -> list[str]:
    """Requested columns of a file, possibly with blanks around their names."""
    names = [name.strip() for name in columns]
    known = [name for name in names if name in TEXT or name in NUMBERS]
    if twice := next((name for name in known if known.count(name) > 1), None):
        raise SceneError(f"{path}: {twice}: two columns of this name")
    missing = [name for name in ("track_id", "x", "y") if name not in names]
    missing += [name for name, other in (("vx", "vy"), ("vy", "vx")) if other in names and name not in names]
    missing += [] if set(TIME) & set(names) else ["step (nor timestamp)"]
    if missing:
        raise SceneError(f"{path}: {missing[0]}: no such column; its columns are {printable(', '.join(names[:20]))}")
    return [name for name in columns if name.strip() in requested]


def _words(column: pa.ChunkedArray, where: str) -> tuple[list[str], np.ndarray]:
    """The distinct words of a column of n rows, sorted, and the index int64 [n] of each row's word."""
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise SceneError(f"{where}: type {column.type}, expected text or whole numbers")
    words, _, code = groups(column if column.type == DICTIONARY else pc.fill_null(pc.cast(column, pa.string()), ""))
    return words, code


def _numbers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """A column of numbers or of text as float64 [n]."""
    kind = column.type
    if is_text(kind):
        words, code = _words(column, where)
        return np.array([_number(word) for word in words])[code]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise SceneError(f"{where}: type {kind}, expected numbers")
    return pc.cast(column, pa.float64(), safe=False).to_numpy()


def _number(word: str) -> float:
    """NaN for an empty cell, infinity for a cell that is not a number."""
    try:
        return float(word.replace("_", " _ ") or "nan")  # Python would accept 1_000
    except ValueError:
        return float("nan" if word.strip().lower() in ("", "na", "n/a", "null") else "inf")
