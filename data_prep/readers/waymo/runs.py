"""Runs of messages with a fixed layout in a protocol buffer.

Parsing field by field in Python takes 0.3 microseconds each, so messages that are repeated
thousands of times, as the points of a line, need another way: `Runs` finds all messages with a
fixed layout at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BLOCK = 65_536  # bytes
_FIRST = 2  # fixed bytes that are compared everywhere


class Layout(NamedTuple):
    """Bytes of a field with a message, from the tag of the field on."""

    size: int
    fixed: dict[int, bytes]  # possible bytes at some offsets, first those with a single one

    def find(self, data: np.ndarray) -> np.ndarray:
        """Positions int64 [n] in data, uint8, where the fixed bytes are as in this layout."""
        fixed = list(self.fixed.items())
        count = len(data) - self.size + 1
        parts = [np.zeros(0, np.int64)]
        # Comparing neighbouring bytes is fast, in blocks that stay in the cache.
        for start in range(0, count, _BLOCK):
            end = min(start + _BLOCK, count)
            (offset, values), *others = fixed[:_FIRST]
            matches = data[start + offset : end + offset] == values[0]
            for offset, values in others:
                matches &= data[start + offset : end + offset] == values[0]
            parts.append(matches.nonzero()[0] + start)
        position = np.concatenate(parts)

        # Few places are left.
        for offset, values in fixed[_FIRST:]:
            if not len(position):
                break
            found = data[position + offset]
            if len(values) == 1:
                position = position[found == values[0]]
            else:
                is_allowed = np.zeros(256, bool)
                is_allowed[list(values)] = True
                position = position[is_allowed[found]]
        return position


class Run(NamedTuple):
    """Consecutive messages `first` to `last`, without `last`, of `Runs.position`."""

    first: int
    last: int
    end: int  # position after the last one


class Runs:
    """All places in data[start:end] that look like messages of given layouts.

    Some of them may lie inside other values by chance. But a run that begins where a field begins
    is certain, because tags and lengths of its messages have been compared.
    """

    def __init__(self, data: bytes, start: int, end: int, layouts: Sequence[Layout]) -> None:
        self.data = data
        self.layouts = layouts
        window = np.frombuffer(data, np.uint8, end - start, start)
        found = [layout.find(window) for layout in layouts]
        position = np.concatenate(found) + start
        layout_index = np.arange(len(layouts)).repeat([len(each) for each in found])
        if len(layouts) > 1:
            order = position.argsort(kind="stable")
            position = position[order]
            layout_index = layout_index[order]
        self.position = position  # int64 [n]
        self.layout = layout_index  # int64 [n], index of the layout
        self._by_start = self._chain(window, start)

    def _chain(self, window: np.ndarray, start: int) -> dict[int, Run]:
        """The runs by their start."""
        position = self.position
        if not len(position):
            return {}
        sizes = np.array([layout.size for layout in self.layouts])
        after = position + sizes[self.layout]
        tag = window[position - start]
        ends = (position[1:] != after[:-1]) | (tag[1:] != tag[:-1])
        first = np.append(0, ends.nonzero()[0] + 1)
        last = np.append(first[1:], len(position))
        runs = map(Run, first.tolist(), last.tolist(), after[last - 1].tolist())
        return dict(zip(position[first].tolist(), runs, strict=True))

    def at(self, position: int, end: int) -> Run | None:
        """The run that begins at a position and ends at `end` or before, if there is one."""
        run = self._by_start.get(position)
        if run is None or run.end > end:
            return None
        return run

    def values(self, layout: int, dtype: np.dtype) -> np.ndarray:
        """The messages of a layout as records: `dtype` describes bytes from the tag on."""
        is_one = len(self.layouts) == 1
        position = self.position if is_one else self.position[self.layout == layout]
        size = self.layouts[layout].size
        if not len(position):
            return np.zeros(0, dtype)
        # A view of every `size` bytes; taking plain bytes is faster than taking records.
        count = len(self.data) - size + 1
        every = np.ndarray((count,), f"V{size}", self.data, strides=(1,))
        return every[position].view(dtype)
