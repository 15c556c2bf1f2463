"""Columns of tables, with checks; rows of tracks as arrays [A, T]; the scene of tracks and a map.

Columns become arrays without `to_numpy`: its first call imports pandas, which takes 0.25 s.
`pyarrow.parquet` takes 0.05 s and is imported when it is needed.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from data_prep.readers.csv_rows import read_rows, utf8
from data_prep.readers.raw_file import read_file
from data_prep.readers.row_check import RowCheck
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.files import SIZE_SCALE
from trajformer.scenes.geometry import minus, relative_position, scene_origin
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import METRES, AgentKind, Scene
from trajformer.scenes.vector_map import VectorMap

Column: TypeAlias = pa.ChunkedArray | pa.Array
Columns: TypeAlias = pa.Table | Mapping[str, Column]
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_Meaning = TypeVar("_Meaning")
_Values = TypeVar("_Values", np.ndarray, pa.Array, pa.ChunkedArray)
_DECIMAL = re.compile(r"-?\d+\.0")

# ---- reading and checks --------------------------------------------------------------------------


def read_csv(
    path: Path,
    numbers: Collection[str],
    text: Collection[str],
    max_bytes: int,
    optional: Collection[str] = (),
) -> tuple[pa.Table, int]:
    """Columns of a CSV file with a header: numbers as float64, text as dictionaries.

    A number is null if its cell is empty or no number. A SceneError names the file and the column
    that cannot be used; columns of `optional` must exist, too, but may be empty.

    Returns:
        the table; the number of lines with too few or too many cells, which are left out.
    """
    number_names = [*numbers, *optional]
    words = dict.fromkeys((*number_names, *text), DICTIONARY)
    kinds = words | dict.fromkeys(number_names, pa.float64())
    try:
        data = utf8(read_file(path, max_bytes))
        first_line = data[: data.find(b"\n") + 1].decode("utf-8-sig")
        names = first_line.replace('"', "").strip().split(",")
        check_names(names, kinds, path)  # pyarrow would use one of two columns
        try:
            table, num_lost = read_rows(data, kinds)
        except pa.ArrowInvalid:  # text in a column of numbers
            table, num_lost = read_rows(data, words)
            for name in number_names:
                index = table.schema.get_field_index(name)
                table = table.set_column(index, name, numbers_of_words(table[name]))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: {one_line(error)}") from error
    if num_lost and not len(table):
        count = f"expected {len(names)} as in the first line"
        raise SceneError(f"{path}: all lines have another number of columns, {count}")
    check_types(table, number_names, text, path)
    return table, num_lost


def numbers_of_words(column: pa.ChunkedArray) -> pa.Array:
    """A column of words as float64, null where a word is no number."""
    encoded = _encoded(column)
    values: list[float | None] = []
    for word in encoded.dictionary.to_pylist():
        try:
            values.append(float(word))
        except ValueError:
            values.append(None)
    return pa.array(values, pa.float64()).take(encoded.indices)


class ParquetBounds(NamedTuple):
    """Largest size of a parquet file, checked before it is decompressed."""

    file_bytes: int
    num_bytes: int  # uncompressed
    rows: int


def read_parquet(
    path: Path,
    numbers: Collection[str],
    text: Collection[str],
    bounds: ParquetBounds,
    optional: Collection[str] = (),
) -> dict[str, pa.Array]:
    """Columns of a parquet file: numbers, and text as dictionaries. Cells may be null.

    Ids may be whole numbers, and become text. A missing `optional` column of text is left out. A
    SceneError names the file and the column or size that cannot be used.
    """
    import pyarrow.parquet as pq

    # Text is read as a dictionary: grouping is fast, and a small file cannot expand to much text.
    try:
        data = pa.BufferReader(read_file(path, bounds.file_bytes))
        schema = pq.read_schema(data)
        text = [name for name in text if name not in optional or name in schema.names]
        check_names(schema.names, (*text, *numbers), path)
        dictionaries = [name for name in text if is_text(schema.field(name).type)]
        data.seek(0)
        with pq.ParquetFile(data, pre_buffer=False, read_dictionary=dictionaries) as file:
            _check_parquet(file.schema_arrow, file.metadata, (*text, *numbers), bounds, path)
            table = file.read([*text, *numbers], use_threads=False)
        for name in text:  # numbers need no such check
            table.column(name).validate(full=True)
        table = _with_text(table, text)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: not a readable parquet file: {one_line(error)}") from error
    [batch] = table.combine_chunks().to_batches()
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    check_types(arrays, numbers, text, path)
    return arrays


def _with_text(table: pa.Table, text: Collection[str]) -> pa.Table:
    """The table with whole numbers and other kinds of text as dictionaries."""
    for name in text:
        column = table.column(name)
        is_other_text = is_text(column.type) and column.type != DICTIONARY
        if is_other_text or pa.types.is_integer(column.type):
            column = column.cast(pa.string()).dictionary_encode()
            table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@cached_by_file(8)
def check_opens(path: Path) -> None:
    """SceneError if a parquet file ends a process that reads its metadata, a fault of pyarrow.

    It is tried in another process, which imports nothing from the current folder (-P).
    """
    if not path.is_file():  # a pipe, which would wait
        return
    read_metadata = "pyarrow.parquet.ParquetFile(sys.argv[1]).metadata.to_dict()"  # with the codecs
    program = f"import sys, pyarrow.parquet; {read_metadata}"
    command = [sys.executable, "-P", "-c", program, str(path)]
    status = subprocess.run(command, stderr=subprocess.DEVNULL).returncode
    if status < 0:  # ended by a signal
        raise SceneError(
            f"{path}: not a readable parquet file: it ends the process that opens it; "
            "download it again"
        )


def _check_parquet(
    schema: pa.Schema, metadata: Any, names: Sequence[str], bounds: ParquetBounds, path: Path
) -> None:
    """Check columns and the declared size before the file is decompressed."""
    check_names(schema.names, names, path)
    # Not from `metadata.schema`, which would keep memory until the next collection.
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name in names:
        if pa.types.is_nested(kinds[name]):  # a list may expand to any size
            raise SceneError(f"{path}: {name}: not one value a row")

    row_count = 0
    byte_count = 0
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        row_count += group.num_rows
        byte_count += group.total_byte_size
    if row_count != metadata.num_rows:
        raise SceneError(
            f"{path}: not a readable parquet file: {metadata.num_rows} rows, "
            f"its parts have {row_count}"
        )
    check_count(row_count, bounds.rows, "rows", path)
    check_count(byte_count, bounds.num_bytes, "bytes uncompressed", path)


def check_names(names: Sequence[str], required: Iterable[str], path: Path) -> None:
    """SceneError unless each required column exists once."""
    for name in required:
        count = names.count(name)
        if count == 0:
            raise SceneError(f"{path}: {name}: no such column")
        if count > 1:
            raise SceneError(f"{path}: {name}: two columns of this name")


def check_types(
    columns: Columns, numbers: Collection[str], text: Collection[str], path: Path
) -> None:
    """SceneError unless the columns hold numbers or text."""
    for name in numbers:
        if not is_number(columns[name].type):
            raise SceneError(f"{path}: {name}: type {columns[name].type}, expected a number")
    for name in text:
        if not is_text(columns[name].type):
            raise SceneError(f"{path}: {name}: type {columns[name].type}, expected text")


def check_count(count: int, maximum: int, noun: str, path: Path) -> None:
    """SceneError unless the file has 1 to `maximum` rows or tracks, as `noun` says."""
    scaled_maximum = maximum * SIZE_SCALE.get()
    if not 0 < count <= scaled_maximum:
        raise SceneError(f"{path}: {count} {noun}, expected 1 to {scaled_maximum:.0f}")


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type becomes float64 without loss of meaning."""
    return (pa.types.is_floating(kind) and kind.bit_width > 16) or pa.types.is_integer(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, possibly encoded as a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_view = pa.types.is_string_view(kind)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view


# ---- values --------------------------------------------------------------------------------------


def array(column: Column) -> np.ndarray:
    """A column of numbers without nulls, read-only."""
    return np.from_dlpack(_one_chunk(column))


def _one_chunk(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def usable_numbers(
    columns: Columns, limits: Mapping[str, float], check: RowCheck
) -> dict[str, np.ndarray]:
    """Columns of numbers as float64 [R] by name.

    Rows are dropped in which a value is null, NaN or above the limit of its column either way; the
    value is 0 there.
    """
    matrix = np.array([with_nan(columns[name]) for name in limits], np.float64)
    if not matrix.size:
        return dict(zip(limits, matrix, strict=True))
    extremes = zip(limits.items(), matrix.min(1).tolist(), matrix.max(1).tolist(), strict=True)
    for row, ((name, limit), low, high) in enumerate(extremes):
        if low >= -limit and high <= limit:  # not for NaN
            continue
        drop_numbers(matrix[row].copy(), name, limit, check)
        matrix[row, ~(np.abs(matrix[row]) <= limit)] = 0.0
    return dict(zip(limits, matrix, strict=True))


def drop_numbers(values: np.ndarray, name: str, limit: float, check: RowCheck) -> None:
    """Drop the rows with a value, float64 [R], that is NaN or above the limit either way."""

    def problem(row: int) -> str:
        if np.isfinite(values[row]):
            return f"{name}: {abs(values[row]):g}, expected at most {limit:g} either way"
        return f"{name}: empty, no number, NaN or infinity"

    is_wrong = ~(np.abs(values) <= limit)
    check.drop(is_wrong, f"{name}: expected a number of at most {limit:g} either way", problem)


def usable_whole_numbers(
    values: np.ndarray, maximum: int, name: str, check: RowCheck
) -> np.ndarray:
    """Values [R] as int64; rows without a whole number from 0 to `maximum` are dropped, 0 there."""
    whole = values.astype(np.int64)
    is_wrong = (whole < 0) | (whole > maximum) | (whole != values)
    expected = f"expected a whole number from 0 to {maximum}"
    check.drop(
        is_wrong, f"{name}: {expected}", lambda row: f"{name}: {values[row]:.12g}, {expected}"
    )
    return np.where(is_wrong, 0, whole)


def usable_text(columns: Columns, names: Iterable[str], check: RowCheck) -> dict[str, Column]:
    """Columns of text by name, without nulls; rows with an empty cell are dropped."""
    text = {}
    for name in names:
        column = columns[name]
        if column.null_count:
            column = column.cast(pa.string()).fill_null("").dictionary_encode()
        text[name] = column
        encoded = _encoded(column)
        is_blank = np.array([not word.strip() for word in encoded.dictionary.to_pylist()], bool)
        if is_blank.any():
            wrong = is_blank[np.from_dlpack(encoded.indices)]
            check.drop(wrong, f"{name}: empty", partial(_empty, name))
    return text


def _empty(name: str, row: int) -> str:
    return f"{name}: empty"


def drop_repeated_steps(
    agent_id: Sequence[str],
    agent: np.ndarray,
    step: np.ndarray,
    values: Iterable[np.ndarray],
    name: str,
    check: RowCheck,
) -> None:
    """Drop rows that have the agent and step of another row, int64 [R], see `RowCheck`.

    `values` are float64 [R] each; `name` is a column for messages.
    """
    rows = np.flatnonzero(check.is_usable)
    if not len(rows) or np.bincount((agent * (step.max() + 1) + step)[rows]).max() < 2:
        return
    check.drop_repeated(
        np.stack([agent, step]),
        np.stack(list(values), -1),
        f"{name}: two rows for a step of a track",
        lambda row: f"{name}: two rows for step {step[row]} of track {agent_id[agent[row]][:40]!r}",
    )


def take_rows(columns: Mapping[str, _Values], rows: np.ndarray) -> dict[str, _Values]:
    """The rows bool [R] of columns."""
    if rows.all():
        return dict(columns)
    taken = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            taken[name] = values[rows]
        else:
            taken[name] = values.filter(pa.array(rows))
    return taken


def with_nan(column: Column) -> np.ndarray:
    """A column of numbers as an array, with NaN for nulls."""
    if column.null_count:
        column = column.cast(pa.float64()).fill_null(np.nan)
    return array(column)


def whole_numbers(values: np.ndarray, maximum: int, where: str) -> np.ndarray:
    """Values as int64 if they are whole numbers from 0 to `maximum`.

    Else a SceneError, which starts with `where`.
    """
    whole = values.astype(np.int64)
    if whole.min() < 0 or whole.max() > maximum or (whole != values).any():
        raise SceneError(
            f"{where}: {values.min():g} to {values.max():g}, expected whole numbers 0 to {maximum}"
        )
    return whole


def _encoded(column: Column) -> pa.DictionaryArray:
    whole = _one_chunk(column)
    return whole if isinstance(whole, pa.DictionaryArray) else whole.dictionary_encode()


def values_at(column: Column, rows: np.ndarray) -> list[str]:
    """Values of a text column at the given rows (int64 [n])."""
    encoded = _encoded(column)
    words = encoded.dictionary.to_pylist()
    return [words[code] for code in np.from_dlpack(encoded.indices)[rows].tolist()]


def only_value(columns: Columns, name: str, path: Path) -> str:
    """The value of a text column that has the same one in all rows, else a SceneError."""
    words = _encoded(columns[name]).dictionary.to_pylist()
    if len(words) != 1:
        words, _, _ = groups(columns[name])  # the dictionary may hold unused words
    if len(words) != 1:
        shown = ", ".join(map(repr, words))[:80]
        raise SceneError(f"{path}: {name}: {len(words)} different values in one scene: {shown}")
    return words[0]


def translate(
    words: Sequence[str], meaning: Mapping[str, _Meaning], name: str, path: Path
) -> list[_Meaning]:
    """The meaning of each word of a column, SceneError if a word has none."""
    unknown = sorted(set(words) - set(meaning))
    if unknown:
        raise SceneError(f"{path}: {name}: unknown value {unknown[0][:40]!r}")
    return [meaning[word] for word in words]


def translate_types(
    words: Sequence[str], kinds: Mapping[str, int], name: str, path: Path
) -> list[int]:
    """The AgentKind of each type of agent; unknown types are UNKNOWN, and counted as dropped."""
    unknown = Counter(word for word in words if word.strip() not in kinds)
    causes = {f"{name}: unknown value {one_line(word[:40])!r}": n for word, n in unknown.items()}
    report_dropped(path, causes)
    return [kinds.get(word.strip(), AgentKind.UNKNOWN) for word in words]


def stripped_groups(column: Column) -> tuple[list[str], np.ndarray]:
    """The distinct ids of a column without blanks around them, and the index of each row's id.

    An id that is also written as a decimal number, such as 1.0 in addition to 1, is one id.
    """
    words, _, code = groups(column)
    plain = [word.strip() for word in words]
    whole = {word.removesuffix(".0") for word in plain if _DECIMAL.fullmatch(word)}
    both = whole & set(plain)
    merged = []
    for word in plain:
        if _DECIMAL.fullmatch(word) and word.removesuffix(".0") in both:
            word = word.removesuffix(".0")
        merged.append(word)
    if merged == words:
        return words, code
    ids = sorted(set(merged))
    index = {word: number for number, word in enumerate(ids)}
    return ids, np.array([index[word] for word in merged])[code]


def groups(column: Column) -> tuple[list[str], np.ndarray, np.ndarray]:
    """`np.unique` of a text column of n rows, computed on its dictionary codes.

    Returns:
        the A distinct values, sorted; the first row of each, int64 [A]; the index of each row's
        value, int64 [n].
    """
    encoded = _encoded(column)
    words = encoded.dictionary.to_pylist()
    codes = np.from_dlpack(encoded.indices)
    first = np.full(len(words), len(codes))
    backwards = np.arange(len(codes))[::-1]
    first[codes[::-1]] = backwards  # of repeated indices, the last assignment remains
    used = [index for index, row in enumerate(first.tolist()) if row < len(codes)]
    used.sort(key=words.__getitem__)
    rank = np.empty(len(words), np.int64)
    rank[used] = np.arange(len(used))
    return [words[index] for index in used], first[used], rank[codes]


# ---- tracks --------------------------------------------------------------------------------------


def rows_between(values: np.ndarray, low: int, high: int) -> slice:
    """The rows with values, ascending int64 [n], of at least `low` and below `high`."""
    begin, end = np.searchsorted(values, (low, high)).tolist()
    return slice(begin, end)


def cells(
    agent_id: Sequence[str], agent: np.ndarray, step: np.ndarray, num_steps: int, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Arrange the n rows of a table, each with its agent and step (int64 [n]), in arrays [A, T].

    Returns the index of each row in the flat array, int64 [n]; and bool [A, T], True where there is
    a row. Raises SceneError: two rows have one agent and step; the message starts with `where`.
    """
    cell = agent * num_steps + step
    count = np.bincount(cell, minlength=len(agent_id) * num_steps)
    if count.max() > 1:
        track, repeated_step = divmod(int(count.argmax()), num_steps)
        name = agent_id[track][:40]
        raise SceneError(f"{where}: two rows for step {repeated_step} of track {name!r}")
    return cell, count.astype(bool).reshape(len(agent_id), num_steps)


_PACKED = {4: np.int32, 8: np.int64, 16: np.complex128}  # by bytes


def fill(valid: np.ndarray, cell: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Array [A, T, ...] with the values of the rows at their `cells`, zero elsewhere.

    `values` is [n, ...], one or two numbers for each row.
    """
    # A pair is copied as one number, which is many times faster.
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    packed: np.ndarray = flat.view(_PACKED[flat.shape[1] * flat.itemsize])
    out = np.zeros(valid.size, packed.dtype)
    out[cell] = packed[:, 0]
    return out.view(values.dtype).reshape(*valid.shape, *values.shape[1:])


class Agents(NamedTuple):
    """A agents over T steps, as in `Scene`.

    Headings and velocities are float32 or float64; positions may have any value where invalid.
    """

    agent_id: Sequence[str]
    kind: np.ndarray  # uint8 [A]
    role: np.ndarray  # uint8 [A]
    position: np.ndarray  # float64 [A, T, 2], metres in the city frame
    heading: np.ndarray  # [A, T], radians, zero where invalid
    velocity: np.ndarray  # [A, T, 2], metres per second, zero where invalid
    valid: np.ndarray  # bool [A, T]

    def scene(
        self,
        name: tuple[str, str, str, str],
        clock: tuple[float, int, int],
        center: np.ndarray,
        lanes: VectorMap,
        unit: str = METRES,
    ) -> Scene:
        """The scene of these agents, with a map in the city frame.

        `name` is scene id, source, split and city; `clock` the period in seconds, H and F; `center`
        float64 [2], metres in the city frame, becomes the origin, rounded to metres.
        """
        origin = scene_origin(center)
        polylines: dict[str, Any] = {}
        for field in VectorMap.__dataclass_fields__:
            polylines[field] = getattr(lanes, field)
        polylines["point"] = relative_position(lanes.point, origin)
        position = minus(self.position, origin).astype(np.float32)
        num_history = clock[1]
        position[:, :num_history] = relative_position(self.position[:, :num_history], origin)
        # Clearing x and y as one number is four times faster.
        pairs = position.view(np.int64)[..., 0]
        visible = np.where(self.valid, pairs, 0).view(np.float32)
        return Scene(
            *name,
            *clock,
            origin,
            agent_id=tuple(self.agent_id),
            agent_kind=self.kind,
            agent_role=self.role,
            position=visible.reshape(position.shape),
            heading=self.heading.astype(np.float32, copy=False),
            velocity=self.velocity.astype(np.float32, copy=False),
            valid=self.valid,
            **polylines,
            unit=unit,
        )
