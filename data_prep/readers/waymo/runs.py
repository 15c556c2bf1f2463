"""Runs of messages with a fixed layout, found with numpy.

A field that is read in Python takes 0.3 microseconds each, so messages that are repeated
thousands of times, as the points of a line, need another way: `Runs` finds all messages with a
fixed layout at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BLOCK = 65_536  # bytes


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
        position = position[index]
        fits = np.ones(len(position), bool)
        for offset, values in others:
            fits &= _has_byte(data, position, offset, values)
        return index[fits]


def _has_byte(data: np.ndarray, position: np.ndarray, offset: int, values: bytes) -> np.ndarray:
    """Whether the byte at an offset from positions is one of some values, bool [n]."""
    byte = data[offset:].take(position)
    if len(values) == 1:
        is_value: np.ndarray = byte == values[0]
        return is_value
    is_allowed = np.zeros(256, bool)
    is_allowed[list(values)] = True
    return is_allowed[byte]


def _find_byte(data: np.ndarray, value: int) -> np.ndarray:
    """Positions int64 [n] of a byte in data, in blocks that stay in the cache."""
    parts = [np.zeros(0, np.int64)]
    for start in range(0, len(data), _BLOCK):
        parts.append((data[start : start + _BLOCK] == value).nonzero()[0] + start)
    return np.concatenate(parts)


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
        candidate = _find_byte(window[offset:], values[0])
        layout_of = np.full(len(candidate), -1)
        for index, layout in enumerate(layouts):
            layout_of[layout.find(window, candidate)] = index
        is_message = (layout_of >= 0).nonzero()[0]
        self.layout = layout_of[is_message]
        position = candidate[is_message]

        sizes = np.array([layout.size for layout in layouts])
        after = position + (sizes[self.layout] if len(layouts) > 1 else sizes)
        tag = window.take(position)
        is_end = (position[1:] != after[:-1]) | (tag[1:] != tag[:-1])
        is_some = len(position) > 0
        self.last = np.append(is_end.nonzero()[0] + 1, len(position))[: None if is_some else 0]
        self.first = np.append(0, self.last[:-1])[: len(self.last)]
        self.position = position + start
        self.start = self.position[self.first]
        self.end = after[self.last - 1] + start

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
