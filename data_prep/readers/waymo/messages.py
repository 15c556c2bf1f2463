"""Fields of many messages at once.

A loop over fields takes a microsecond for each. Lanes of a map, tracks and steps of traffic lights
are hundreds of similar messages, so their first fields are read together with numpy, then their
second fields, and so on.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from data_prep.readers.waymo.runs import Runs
from trajformer.scenes.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    MAX_FIELDS,
    VARINT,
    Field,
    WireError,
    read_field,
    read_number,
    read_numbers,
    read_span,
    signed,
)

RUN = 8  # in place of a wire type: a run of messages
_FEW = 24  # messages; fewer are read one by one
# By the tag of a field, a byte.
_TAG = np.arange(256)
_IS_USUAL = (_TAG >= 8) & (_TAG < 128) & np.isin(_TAG & 7, (VARINT, FIXED64, BYTES, FIXED32))
_HAS_VARINT = np.isin(_TAG & 7, (VARINT, BYTES)).astype(np.int64)
# The largest size of a varint after the tag that `read_together` reads: 5 = there is none to read.
_MAX_SIZE = np.where(_IS_USUAL, np.where(_HAS_VARINT, 4, 5), 0)
_FIXED_SIZE = np.array([0, 8, 0, 0, 0, 4, 0, 0])[_TAG & 7]


class Fields(NamedTuple):
    """Fields of many messages, sorted by message and by position.

    All are int64 [n]. The value of a varint is a signed number; fields with bytes have the start
    of their bytes, and runs their index in `Runs`.
    """

    message: np.ndarray  # index of the message
    number: np.ndarray  # of the field
    kind: np.ndarray  # wire type, or RUN
    value: np.ndarray
    end: np.ndarray  # position after the field

    def select(self, mask: np.ndarray) -> "Fields":
        """The fields of a mask, bool [n]."""
        index = mask.nonzero()[0]
        return Fields(*(column.take(index) for column in self))

    def check_kind(self, kind: int, noun: str) -> "Fields":
        """These fields (WireError: one has another wire type)."""
        wrong = (self.kind != kind).nonzero()[0]
        if len(wrong):
            number, other = self.number[wrong[0]], self.kind[wrong[0]]
            raise WireError(f"field {number}: wire type {other}, expected {noun}")
        return self

    def last_numbers(self, default: int, count: int) -> np.ndarray:
        """The whole number of the last field of each of `count` messages, int64 [count]."""
        self.check_kind(VARINT, "a whole number")
        values = np.full(count, default)
        values[self.message] = self.value
        return values


def spans(fields: Sequence[Field]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end, int64 [n], of messages; WireError if one is none."""
    # Numbers may be too large for an array, so they are refused before.
    for field in fields:
        if field[1] != BYTES:
            read_span(field)
    table = np.fromiter(chain.from_iterable(fields), np.int64, 4 * len(fields)).reshape(-1, 4)
    return table[:, 2], table[:, 3]


def read_messages(
    data: bytes,
    start: np.ndarray,
    end: np.ndarray,
    runs: Runs | None = None,
    run_number: np.ndarray | int = 0,
) -> Fields:
    """All fields of the messages data[start:end], int64 [n]; WireError if one is damaged.

    A run of `runs` that begins at a field with the number `run_number` is one field. It is an
    array with a number for each message, or one number.
    """
    reading = _Reading(data, start, end, runs, run_number)
    reading.read_together()
    for message in (reading.position < end).nonzero()[0].tolist():
        reading.read_one(message)
    return reading.fields()


class _Reading:
    """Messages that are being read; `position` [n] has the start of the next field of each."""

    def __init__(
        self,
        data: bytes,
        start: np.ndarray,
        end: np.ndarray,
        runs: Runs | None,
        run_number: np.ndarray | int,
    ) -> None:
        self.data = data
        self.position = start.copy()
        self.end = end
        self.runs = runs
        self.run_tag = np.broadcast_to(np.asarray(run_number) << 3 | BYTES, start.shape)
        self.words = every_word(data)
        self.parts: list[np.ndarray] = []  # int64 [5, m], columns of `Fields`

    def read_together(self) -> None:
        """Read the messages in steps, a field of each, until few have more."""
        active = ((self.position < self.end) & (self.end <= len(self.words))).nonzero()[0]
        position = self.position.take(active)
        end = self.end.take(active)
        while len(active) > _FEW:
            table = self._next_fields(active, position, end)
            self.parts.append(table)
            position = table[4]
            self.position[active] = position
            has_more = (position < end).nonzero()[0]
            active = active.take(has_more)
            position = position.take(has_more)
            end = end.take(has_more)

    def _next_fields(
        self, message: np.ndarray, position: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """The fields at positions of some messages, int64 [5, m]."""
        word = self.words[position]
        tag = word & 0xFF
        value, size = _short_varints(word >> 8)
        first = position + 1
        first += size * _HAS_VARINT.take(tag)

        table = np.empty((5, len(message)), np.int64)
        table[0] = message
        np.right_shift(tag, 3, out=table[1])
        kind = np.bitwise_and(tag, 7, out=table[2])
        table[3] = np.where(kind == VARINT, value, first)
        after = np.add(first, _FIXED_SIZE.take(tag), out=table[4])
        after += value * (kind == BYTES)

        # Tags of two bytes, long varints and errors.
        is_unusual = size > _MAX_SIZE.take(tag)
        is_unusual |= after > end
        if np.count_nonzero(is_unusual):  # three times as fast as `any`
            for row in is_unusual.nonzero()[0].tolist():
                field = read_field(self.data, int(position[row]), int(end[row]))
                table[1:, row] = _signed_field(field)
        if self.runs is not None:
            self._join_runs(table, position, end, tag == self.run_tag.take(message))
        return table

    def _join_runs(
        self, table: np.ndarray, position: np.ndarray, end: np.ndarray, is_tag: np.ndarray
    ) -> None:
        """Replace fields that begin a run by the run."""
        runs = self.runs
        row = is_tag.nonzero()[0]
        if runs is None or not len(runs.start) or not len(row):
            return
        run = np.minimum(runs.start.searchsorted(position[row]), len(runs.start) - 1)
        fits = (runs.start[run] == position[row]) & (runs.end[run] <= end[row])
        row = row[fits]
        run = run[fits]
        table[2, row] = RUN
        table[3, row] = run
        table[4, row] = runs.end[run]

    def read_one(self, message: int) -> None:
        """Read all remaining fields of a message."""
        position = int(self.position[message])
        end = int(self.end[message])
        run_tag = int(self.run_tag[message])
        rows = []
        for _ in range(MAX_FIELDS):
            if position >= end:
                break
            run = -1
            if self.runs is not None and self.data[position] == run_tag:
                run = self.runs.at(position, end)
            if run >= 0 and self.runs is not None:
                position = int(self.runs.end[run])
                rows.append((message, run_tag >> 3, RUN, run, position))
                continue
            field = read_field(self.data, position, end)
            position = field[3]
            rows.append((message, *_signed_field(field)))
        else:
            raise WireError(f"more than {MAX_FIELDS} fields")
        self.parts.append(np.array(rows, np.int64).T)

    def fields(self) -> Fields:
        """All fields, sorted by message."""
        if not self.parts:
            return Fields(*np.zeros((5, 0), np.int64))
        table = np.concatenate(self.parts, axis=1)
        return Fields(*table.take(table[0].argsort(kind="stable"), 1))


def _short_varints(word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Varints of at most four bytes, and their numbers of bytes (5 = more), int64 [n].

    Words int64 [n] have the first byte of a varint as their lowest byte.
    """
    value = word & 0x7F
    size = np.ones(len(word), np.int64)
    continues = (word >> 7) & 1  # 1 as long as all bytes before have the highest bit
    for index in range(1, 4):
        if not np.count_nonzero(continues):
            break
        byte = word >> (8 * index)
        value |= (byte & 0x7F) * continues << (7 * index)
        size += continues
        continues &= byte >> 7
    size += continues
    return value, size


def _signed_field(field: Field) -> Field:
    """A field with a signed number if it is a varint."""
    number, kind, value, end = field
    return number, kind, signed(value) if kind == VARINT else value, end


def first_numbers(data: bytes, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The number of field 1 of the messages data[start:end], int64 [n]; 0 if it is missing.

    If a message has several such fields, the first one counts.
    """
    words = every_word(data)
    if not (len(start) and len(words)):
        return np.zeros(len(start), np.int64)
    word = words[np.minimum(start, len(words) - 1)]
    values, size = _short_varints(word >> 8)
    is_first = (word & 0xFF == 0x08) & (start < len(words))
    is_usual = is_first & (size <= 4) & (start + 1 + size <= end)
    for index in (~is_usual).nonzero()[0].tolist():
        values[index] = _first_number(data, int(start[index]), int(end[index]))
    return values


def _first_number(data: bytes, position: int, end: int) -> int:
    while position < end:
        field = read_field(data, position, end)
        if field[0] == 1:
            return read_number(field)
        position = field[3]
    return 0


def all_numbers(data: bytes, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
    """The whole numbers of fields that may be packed, and the index of the field of each."""
    if (fields.kind != BYTES).any():
        lists = []
        for row in zip(*(column.tolist() for column in fields[1:]), strict=True):
            is_number = row[1] == VARINT  # signed already
            lists.append([row[2]] if is_number else read_numbers(data, row))
        field = np.arange(len(lists)).repeat([len(numbers) for numbers in lists])
        return np.array(list(chain(*lists)), np.int64), field
    length = fields.end - fields.value
    if length.max(initial=0) > MAX_FIELDS:
        raise WireError(f"more than {MAX_FIELDS} bytes of numbers")
    after = length.cumsum()
    if not length.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    # All bytes of all fields; the last byte of each number is below 128.
    index = np.arange(after[-1]) + (fields.value - after + length).repeat(length)
    byte = np.frombuffer(data, np.uint8)[index].astype(np.int64)
    is_last = byte < 0x80
    if not is_last[after[length > 0] - 1].all():
        raise WireError("truncated")
    last = is_last.nonzero()[0]
    first = np.append(0, last[:-1] + 1)
    size = last + 1 - first
    if size.max() > 10:
        raise WireError("a varint of more than 10 bytes")
    shift = 7 * (np.arange(len(byte)) - first.repeat(size))
    number = np.add.reduceat((byte & 0x7F) << shift, first)
    return number, after.searchsorted(last, side="right")


def every_word(data: bytes) -> np.ndarray:
    """The eight bytes at each position as a number, int64 [len(data) - 7]: a view."""
    return np.ndarray((max(len(data) - 7, 0),), "<i8", data, strides=(1,))
