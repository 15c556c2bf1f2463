"""Text files with rows of words, one of which may be wrong."""

import io
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.readers.raw_file import read_file
from data_prep.readers.row_check import RowCheck
from trajformer.errors import SceneError, one_line

MAX_BYTES = 16 << 20  # eight times the largest recording


class NumberColumn(NamedTuple):
    """A column of numbers."""

    name: str
    number: int  # of the column, from 0
    limit: float  # largest absolute value
    noun: str = ""  # of the unit; whole numbers have none


class TextRows:
    """The R rows of a text file.

    Attributes:
        num_columns: number of words of a usable row.
        line: number of the line of each row, for messages.
        words: the words of each row.
        check: the unusable rows.
    """

    def __init__(self, path: Path, *num_columns: int) -> None:
        """Read a file whose rows have one of these numbers of words. Blank lines are no rows.

        Rows with another number of words than most rows cannot be used. Raises SceneError: not a
        text file, no rows, or no row has one of the numbers.
        """
        text, is_utf8 = _text(path)
        self.path = path
        self.line: list[int] = []
        self.words: list[list[str]] = []
        for number, line in enumerate(io.StringIO(text, newline=None), 1):
            words = line.split()
            if words:
                self.line.append(number)
                self.words.append(words)
        if not self.words:
            raise SceneError(f"{path}: no rows, so no agent")
        self.check = RowCheck(path, len(self.words))
        if not is_utf8:
            self._drop_other_encodings()

        counts = Counter(len(words) for words in self.words if len(words) in num_columns)
        expected = " or ".join(map(str, num_columns))
        if not counts:
            raise SceneError(
                f"{path}: line {self.line[0]}: {len(self.words[0])} columns, expected {expected}"
            )
        [(self.num_columns, _)] = counts.most_common(1)
        expected = f"expected {self.num_columns}"
        self._is_complete = np.array([len(words) == self.num_columns for words in self.words])
        self.check.drop(
            ~self._is_complete,
            f"another number of columns, {expected}",
            lambda row: f"line {self.line[row]}: {len(self.words[row])} columns, {expected}",
        )

    def _drop_other_encodings(self) -> None:
        is_wrong = np.array([not "".join(words).isprintable() for words in self.words])
        self.check.drop(
            is_wrong, "not text in UTF-8", lambda row: f"line {self.line[row]}: not text in UTF-8"
        )

    def column(self, index: int) -> list[str]:
        """The words of a column; "" in rows without it."""
        return [words[index] if index < len(words) else "" for words in self.words]

    def numbers(self, column: NumberColumn) -> np.ndarray:
        """A column as float64 [R]; 0 in the rows without a finite number within its limit."""
        words = self.column(column.number)
        try:
            values = np.array(words, np.float64)
        except ValueError:
            values = np.array([_number(word) for word in words])
        is_wrong, expected = _wrong_values(values, column)
        name = f"column {column.number} ({column.name})"
        self.check.drop(
            is_wrong,
            f"{name}: {expected}",
            lambda row: f"line {self.line[row]}, {name}: {words[row][:40]!r}, {expected}",
        )
        return np.where(is_wrong, 0.0, values)

    def number(self, row: int, column: NumberColumn) -> float:
        """The number of one row; SceneError unless it is within the limit of the column."""
        word = self.words[row][column.number]
        value = _number(word)
        is_wrong, expected = _wrong_values(np.array([value]), column)
        if is_wrong[0]:
            where = f"line {self.line[row]}, column {column.number} ({column.name})"
            raise SceneError(f"{self.path}: {where}: {word[:40]!r}, {expected}")
        return value


def _wrong_values(values: np.ndarray, column: NumberColumn) -> tuple[np.ndarray, str]:
    """Which values [n] cannot be in a column, bool [n], and what is expected."""
    is_wrong = ~(np.abs(values) <= column.limit)  # also NaN
    if column.noun:
        return is_wrong, f"expected a number of {column.noun} up to {column.limit:g}"
    is_wrong |= values != np.rint(values)
    return is_wrong, "expected a whole number"


def _text(path: Path) -> tuple[str, bool]:
    """The content of a file, and whether it is UTF-8.

    Other bytes become surrogates, which are not printable. SceneError: it cannot be read.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except OSError as error:
        raise SceneError(f"{path}: not a readable text file: {one_line(error)}") from error
    problem = ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = one_line(error)
        text = data.decode("utf-8-sig", "surrogateescape")
    if "\0" in text:  # a lost block; the remains of the lines around it may look like a valid line
        problem = problem or "it has zero bytes"
        raise SceneError(f"{path}: not a readable text file: {problem}")
    return text, not problem


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan
