"""Messages of a repeated field as arrays: runs of the usual layouts, and others one by one."""

from collections.abc import Callable

import numpy as np

from data_prep.readers.waymo.runs import Runs
from trajformer.scenes.wire import BYTES, MAX_FIELDS, Field, WireError, read_field, read_span


class Repeated:
    """The messages of a repeated field, in order: runs of usual ones, and single others.

    Args:
        runs: the usual messages.
        number: of the field.
        read: parses a message that has another layout.
        maximum: number of messages.
    """

    def __init__(
        self,
        runs: Runs,
        number: int,
        read: Callable[[bytes, int, int], tuple[float, ...]],
        maximum: int,
    ) -> None:
        self.runs = runs
        self.number = number
        self.read = read
        self.maximum = maximum
        self.others: list[tuple[float, ...]] = []
        self.count = 0
        self._ranges: list[tuple[int, int]] = []

    def collect(self, start: int, end: int, number: int | None = None) -> list[Field]:
        """Collect the messages of the message data[start:end]; return its other fields."""
        data = self.runs.data
        tag = (self.number if number is None else number) << 3 | BYTES
        fields: list[Field] = []
        while start < end:
            if data[start] == tag:
                start = self.collect_at(start, end)
                continue
            field = read_field(data, start, end)
            fields.append(field)
            start = field[3]
            if len(fields) > MAX_FIELDS:
                raise WireError(f"more than {MAX_FIELDS} fields")
        return fields

    def collect_at(self, start: int, end: int) -> int:
        """Collect the run or the single message at a position; return the position after it."""
        run = self.runs.at(start, end)
        if run is not None:
            first, last, after = run
        else:
            data = self.runs.data
            field = read_field(data, start, end)
            first = len(self.runs.position) + len(self.others)
            last = first + 1
            self.others.append(self.read(data, *read_span(field)))
            after = field[3]
        self._ranges.append((first, last))
        self.count += last - first
        if self.count > self.maximum:
            raise WireError(f"field {self.number}: more than {self.maximum} messages")
        return after

    def take(self, usual: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The values [n, ...] of the collected messages, in order.

        `usual` has the values of all messages of `runs`, `others` those of `self.others`.
        """
        if not self._ranges:
            return usual[:0]
        first, last = np.array(self._ranges).T
        if (first[1:] == last[:-1]).all() and last[-1] <= len(usual):  # no message was left out
            return usual[first[0] : last[-1]]
        length = last - first
        shift = first - (length.cumsum() - length)
        index = np.arange(self.count) + shift.repeat(length)
        values: np.ndarray = np.concatenate([usual, others.astype(usual.dtype)]).take(index, 0)
        return values


def region(fields: list[Field]) -> tuple[int, int]:
    """Start and end of the messages of a field."""
    spans = [read_span(field) for field in fields]
    if not spans:
        return 0, 0
    return min(start for start, _ in spans), max(end for _, end in spans)
