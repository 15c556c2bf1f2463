"""Runs of messages with a fixed layout, found with numpy.

A field that is read in Python takes 0.3 microseconds each, so messages that are repeated
thousands of times, as the points of a line, need another way: `Runs` finds all messages with a
fixed layout at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_FEW = 4  # values; more are looked up in a table


class Layout(NamedTuple):
    """Bytes of a field with a message, from the tag of the field on."""

    size: int
    # Possible bytes at some offsets. The first item has a single byte, the second one is rare.
    fixed: dict[int, bytes]

    def find(self, data: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Indices, int64 [m], of the positions in data, uint8, that have this layout.

        Positions, int64 [n], are sorted.
        """
        length, *others = list(self.fixed.items())[1:]
        position = position[: position.searchsorted(len(data) - self.size, side="right")]
        index = _has_byte(data, position, *length).nonzero()[0]
        if not len(index):
            return index
        position = position.take(index)
        fits = np.ones(len(position), bool)
        for offset, values in others:
            fits &= _has_byte(data, position, offset, values)
        return index if fits.all() else index[fits]


def _has_byte(data: np.ndarray, position: np.ndarray, offset: int, values: bytes) -> np.ndarray:
    """Whether the byte at an offset from positions is one of some values, bool [n]."""
    byte = data[offset:].take(position)
    is_value: np.ndarray = byte == values[0]
    if len(values) > _FEW:
        is_allowed = np.zeros(256, bool)
        is_allowed[list(values)] = True
        return is_allowed.take(byte)
    for value in values[1:]:
        is_value |= byte == value
    return is_value


class Runs:
    """All places in data[start:end] that look like messages of given layouts.

    Some may be parts of other values by chance. A run that begins where a field begins is certain,
    because tags and lengths of its messages have been compared.

    Args:
        data: the bytes.
        start: of the part that is searched.
        end: of the part that is searched.
        layouts: all begin with the same item of `fixed`.

    Attributes:
        position: int64 [n], of each message.
        layout: int64 [n], index of its layout.
        start: int64 [r], position of each run of consecutive messages.
        end: int64 [r], position after the run.
        first: int64 [r], index of the first message of the run.
        last: int64 [r], index after the last one.
    """

    def __init__(self, data: bytes, start: int, end: int, layouts: Sequence[Layout]) -> None:
        self.data = data
        self.layouts = layouts
        window = np.frombuffer(data, np.uint8, end - start, start)
        offset, values = next(iter(layouts[0].fixed.items()))
        # One comparison of all bytes; few positions are left for the others.
        candidate = (window[offset:] == values[0]).nonzero()[0]
        found = [layout.find(window, candidate) for layout in layouts]
        used = [number for number, index in enumerate(found) if len(index)]
        if len(used) > 1:
            layout_of = np.full(len(candidate), -1, np.int8)
            for number in used:
                layout_of[found[number]] = number
            index = (layout_of >= 0).nonzero()[0]
            self.layout = layout_of.take(index)
            size = np.array([layout.size for layout in layouts]).take(self.layout)
        else:
            number = used[0] if used else 0
            index = found[number]
            self.layout = np.full(len(index), number, np.int8)
            size = np.array([layouts[number].size])
        position = candidate.take(index)

        after = position + size
        tag = window.take(position)
        is_end = np.ones(len(position), bool)  # of a run
        np.not_equal(position[1:], after[:-1], out=is_end[:-1])
        is_end[:-1] |= tag[1:] != tag[:-1]
        self.last = is_end.nonzero()[0] + 1
        self.first = np.zeros_like(self.last)
        self.first[1:] = self.last[:-1]
        self.position = position + start
        self.start = self.position.take(self.first)
        self.end = after.take(self.last - 1) + start

    def at(self, position: int, end: int) -> int:
        """Index of the run that begins at a position and ends at `end` or before, or -1."""
        run = int(self.start.searchsorted(position))
        if run == len(self.start) or self.start[run] != position or self.end[run] > end:
            return -1
        return run

    def values(self, layout: int, dtype: np.dtype) -> np.ndarray:
        """The messages of a layout as records: `dtype` describes bytes from the tag on."""
        is_one = len(self.layouts) == 1
        position = self.position if is_one else self.position[self.layout == layout]
        size = self.layouts[layout].size
        if not len(position):
            return np.zeros(0, dtype)
        # A view of `size` bytes at each position; taking plain bytes is faster than taking records.
        count = len(self.data) - size + 1
        every = np.ndarray((count,), f"V{size}", self.data, strides=(1,))
        return every[position].view(dtype)
