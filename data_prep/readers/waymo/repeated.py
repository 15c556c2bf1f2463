"""Messages of a repeated field as arrays: runs of the usual layouts, and others one by one."""

from collections.abc import Callable

import numpy as np

from data_prep.readers.waymo.messages import RUN, Fields
from data_prep.readers.waymo.runs import Runs
from trajformer.scenes.wire import BYTES, WireError

# Parses the message data[start:end].
Parse = Callable[[bytes, int, int], tuple[float, ...]]


class Repeated:
    """The messages of a repeated field, in order: usual ones, and others one by one.

    Args:
        fields: the field in all messages that contain it, from `read_messages`.
        runs: the usual messages.
        parse: parses a message that has another layout.
        maximum: number of messages.

    Attributes:
        others: the values of messages with other layouts.
    """

    def __init__(self, fields: Fields, runs: Runs, parse: Parse, maximum: int) -> None:
        # Fields with other types are unknown fields.
        fields = fields.select((fields.kind == RUN) | (fields.kind == BYTES))
        is_run = fields.kind == RUN
        self._first = np.zeros(len(is_run), np.int64)
        self._last = np.zeros(len(is_run), np.int64)
        run = fields.value[is_run]
        self._first[is_run] = runs.first[run]
        self._last[is_run] = runs.last[run]

        # Other messages are numbered after the messages of `runs`.
        other = (~is_run).nonzero()[0]
        self._first[other] = len(runs.position) + np.arange(len(other))
        self._last[other] = self._first[other] + 1
        self._length = self._last - self._first
        self._message = fields.message
        self.count = int(self._length.sum())
        if self.count > maximum:
            raise WireError(f"field {fields.number[0]}: more than {maximum} messages")
        single = fields.select(~is_run)
        bounds = zip(single.value.tolist(), single.end.tolist(), strict=True)
        self.others = [parse(runs.data, start, end) for start, end in bounds]

    def offsets(self, count: int) -> np.ndarray:
        """The index of the first value of each of `count` messages, and the end, int64."""
        before = np.append(0, self._length.cumsum())
        return before[self._message.searchsorted(np.arange(count + 1))]

    def numbers(self) -> np.ndarray | slice:
        """The numbers [n] of the messages in order: first `runs` are numbered, then `others`."""
        first = self._first
        last = self._last
        if len(first) and (first[1:] == last[:-1]).all():  # nothing was left out
            return slice(int(first[0]), int(last[-1]))
        shift = first - (self._length.cumsum() - self._length)
        return np.arange(self.count) + shift.repeat(self._length)

    def take(self, usual: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The values [n, ...], in order.

        `usual` has the values of the messages of `runs`, `others` the values of `self.others`.
        """
        if len(others):
            usual = np.concatenate([usual, others.astype(usual.dtype)])
        values: np.ndarray = usual[self.numbers()]
        return values


def region(start: np.ndarray, end: np.ndarray) -> tuple[int, int]:
    """Start and end of the part of the data with all messages."""
    if not len(start):
        return 0, 0
    return int(start.min()), int(end.max())
