"""Times of a table that are dates: ISO 8601 text, or dates of Parquet, as seconds since 1970."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trajformer.errors import SceneError, one_line

EXAMPLE = "2024-05-01T12:00:00.1Z"
EMPTY = ("", "na", "n/a", "nan", "nat", "null", "none")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UTC_NAMES = (" UTC", " GMT", "UTC", "GMT")


def is_date(kind: pa.DataType) -> bool:
    """Whether a column of this type holds dates or durations."""
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)


def seconds_of_dates(column: pa.ChunkedArray) -> np.ndarray:
    """Dates or durations of any unit as seconds, float64 [n], NaN for an empty cell.

    Dates with a time zone are stored in UTC; dates without one count as UTC, too.
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    per_second = _PER_SECOND[column.type.unit]
    ticks = column.cast(pa.int64())
    # Whole seconds and the rest are divided separately, because float64 rounds nanoseconds.
    whole = pc.divide(ticks, per_second)
    rest = pc.subtract(ticks, pc.multiply(whole, per_second))
    numbers = whole.cast(pa.float64()).to_numpy()
    return numbers + rest.cast(pa.float64()).to_numpy() / per_second


def holds_dates(words: Sequence[str]) -> bool:
    """Whether one of the distinct words of a column is an ISO date and no number."""
    return any(not _is_number(word) and _date(word) is not None for word in words)


def seconds_of_words(
    words: Sequence[str], code: np.ndarray, where: str, row_name: Callable[[int], str]
) -> np.ndarray:
    """ISO dates as seconds, float64 [n]; NaN for an empty cell, infinity for another text.

    `words[code[i]]` is the cell of row i, `where` names file and column, `row_name(i)` names the
    row. Raises SceneError: dates with and without a time zone, or dates and numbers, because their
    distance in time is unknown.
    """
    seconds = np.full(len(words), np.inf)
    style = np.zeros(len(words), np.int64)  # index in `styles`, 0 for cells without a time
    styles = ("", "without a time zone", "with a time zone", "a number")
    for index, word in enumerate(words):
        if word.strip().lower() in EMPTY:
            seconds[index] = np.nan
        elif _is_number(word):
            style[index] = 3
        else:
            date = _date(word)
            if date is None:
                continue
            has_zone = date.tzinfo is not None
            style[index] = 1 + has_zone
            if not has_zone:
                date = date.replace(tzinfo=UTC)
            seconds[index] = (date - _EPOCH) / timedelta(seconds=1)

    row_style = style[code]
    known = np.flatnonzero(row_style)
    differs = row_style[known] != row_style[known[:1]]
    if differs.any():
        shown = []
        for row in (known[0], known[differs.argmax()]):
            word = one_line(words[code[row]])[:40]
            shown.append(f"{row_name(int(row))} is {styles[row_style[row]]} ({word!r})")
        raise SceneError(f"{where}: {shown[0]}, {shown[1]}; write all times in one form")
    return seconds[code]


def date_text(seconds: float) -> str:
    """Seconds since 1970 as an ISO date, for messages."""
    try:
        date = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds:.12g}"
    return date.replace(tzinfo=None).isoformat()


def _date(word: str) -> datetime | None:
    """An ISO date, without a time zone if the word has none; None for another text."""
    text = word.strip()
    for name in _UTC_NAMES:
        if text.endswith(name):
            text = text.removesuffix(name) + "Z"
            break
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _is_number(word: str) -> bool:
    try:
        float(word.replace("_", " _ "))
    except ValueError:
        return False
    return True
