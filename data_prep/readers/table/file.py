"""The columns of one CSV or Parquet file of tracks as numpy arrays, read without a look at what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trajformer.errors import SceneError

SUFFIXES = (".csv", ".parquet")
TIME = ("step", "timestamp")
TEXT = ("track_id", "scene_id", "kind", "role", "city")
NUMBERS = ("x", "y", *TIME, "heading", "vx", "vy")
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_READ = pa_csv.ReadOptions(use_threads=False)


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns that a file has, n rows.

    `number[name]` is float64 [n], NaN where a cell is empty and infinite where it is no number. Text is kept as the
    file's different words, sorted, in `word[name]` and the index of each row's word, int64 [n], in `code[name]`; an
    empty cell is the word "".
    """

    number: dict[str, np.ndarray]
    word: dict[str, list[str]]
    code: dict[str, np.ndarray]

    def take(self, order: np.ndarray) -> Columns:
        """The same rows in another order (int64 [n])."""
        number = {name: values[order] for name, values in self.number.items()}
        return Columns(number, self.word, {name: values[order] for name, values in self.code.items()})


def read_columns(path: Path, wanted: Sequence[str] = (*TEXT, *NUMBERS)) -> Columns:
    """Read the wanted columns of a file, as far as it has them.

    Raises:
        SceneError: the file cannot be read or has no rows, a column is missing or there twice, or a Parquet column
            has the wrong type; names file and column.
    """
    try:
        table = (_read_parquet if path.suffix.lower() == ".parquet" else _read_csv)(path, wanted)
        if not len(table):
            raise SceneError(f"{path}: track_id: no rows")
        text = {name: _words(table[name]) for name in TEXT if name in table.column_names}
        number = {name: table[name].to_numpy() for name in NUMBERS if name in table.column_names}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return Columns(number, {name: words for name, (words, _) in text.items()}, {name: code for name, (_, code) in text.items()})


def _present(found: Sequence[str], wanted: Sequence[str], path: Path) -> dict[str, str]:
    """The wanted columns that the file has, by the name they have there (which may have blanks around it)."""
    names = [name.strip() for name in found]
    known = [name for name in names if name in TEXT or name in NUMBERS]
    if twice := next((name for name in known if known.count(name) > 1), None):
        raise SceneError(f"{path}: {twice}: two columns of this name")
    missing = [name for name in ("track_id", "x", "y") if name not in names]
    missing += [name for name, other in (("vx", "vy"), ("vy", "vx")) if other in names and name not in names]
    missing += [] if set(TIME) & set(names) else ["step"]
    if missing:
        also = " (nor timestamp)" if missing[0] == "step" else ""
        raise SceneError(f"{path}: {missing[0]}: no such column{also}; its columns are {', '.join(names[:20])}")
    return {raw: name for raw, name in zip(found, names, strict=True) if name in wanted}


def _read_csv(path: Path, wanted: Sequence[str]) -> pa.Table:
    with pa_csv.open_csv(path, _READ) as head:
        name_of = _present(head.schema.names, wanted, path)
    kinds = {raw: pa.float64() if name in NUMBERS else _DICTIONARY for raw, name in name_of.items()}
    try:
        table = _convert_csv(path, kinds)
    except pa.ArrowInvalid:  # a word among the numbers spoils its own scene only: read again, more patiently
        table = _convert_csv(path, dict.fromkeys(kinds, _DICTIONARY))
    return table.rename_columns([name_of[raw] for raw in table.column_names])


def _convert_csv(path: Path, kinds: dict[str, pa.DataType]) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    table = pa_csv.read_csv(path, read_options=_READ, convert_options=options)
    for index, raw in enumerate(table.column_names):
        if raw.strip() in NUMBERS and kinds[raw] == _DICTIONARY and len(table):
            words, code = _words(table[raw])
            table = table.set_column(index, raw, pa.array(np.array([_number(word) for word in words])[code]))
    return table


def _number(word: str) -> float:
    """NaN for an empty cell, infinity for what is no number."""
    try:
        return float(word.replace("_", " _ ") or "nan")  # Python would take 1_000 for a number
    except ValueError:
        return float("nan" if word.strip().lower() in ("", "na", "n/a", "null") else "inf")


def _read_parquet(path: Path, wanted: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        name_of = _present(file.schema_arrow.names, wanted, path)
        table = file.read(list(name_of), use_threads=False)
    table = table.rename_columns([name_of[raw] for raw in table.column_names])
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        whole, is_number = pa.types.is_integer(kind), name in NUMBERS
        if is_number and not (whole or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise SceneError(f"{path}: {name}: type {column.type}, expected numbers")
        if not is_number and not (whole or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise SceneError(f"{path}: {name}: type {column.type}, expected text or whole numbers")
        table = table.set_column(index, name, pc.cast(column, pa.float64() if is_number else pa.string(), safe=False))
    return table


def _words(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """The different words of a column of n rows, sorted, and the index int64 [n] of each row's word."""
    if not pa.types.is_dictionary(column.type):
        column = pc.fill_null(column, "").dictionary_encode()
    whole = column.combine_chunks()
    words = whole.dictionary.to_pylist()
    order = sorted(range(len(words)), key=words.__getitem__)
    rank = np.empty(len(words), np.int64)
    rank[order] = np.arange(len(words))
    return [words[index] for index in order], rank[whole.indices.to_numpy()]
