"""Columns of Arrow tables as numpy arrays, without `to_numpy`: that waits a quarter of a second for pandas."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

Column: TypeAlias = pa.ChunkedArray | pa.Array


def numbers(column: Column) -> np.ndarray:
    """A column of numbers without nulls, read-only."""
    return np.from_dlpack(_whole(column))


def _whole(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _codes(column: Column) -> pa.DictionaryArray:
    whole = _whole(column)
    return whole if isinstance(whole, pa.DictionaryArray) else whole.dictionary_encode()


def values_at(column: Column, rows: np.ndarray) -> list[str]:
    """The values of a text column at some rows."""
    chunk = _codes(column)
    names = chunk.dictionary.to_pylist()
    return [names[code] for code in np.from_dlpack(chunk.indices)[rows].tolist()]


def groups(column: Column) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Sort the different values of a text column of n rows; as `np.unique`, but on its codes.

    Returns:
        the values, sorted; the first row int64 [A] of each; the value's index int64 [n] of each row.
    """
    chunk = _codes(column)
    names, codes = chunk.dictionary.to_pylist(), np.from_dlpack(chunk.indices)
    if not len(codes):
        return [], np.zeros(0, np.int64), np.zeros(0, np.int64)
    # rows of one value mostly follow each other: what is said of such a run is said of all its rows
    bound = np.concatenate([[0], (codes[1:] != codes[:-1]).nonzero()[0] + 1, [len(codes)]])
    start, code = bound[:-1], codes[bound[:-1]]
    first = np.full(len(names), len(codes))
    first[code[::-1]] = start[::-1]  # the last one written stays
    used = [index for index, row in enumerate(first.tolist()) if row < len(codes)]
    used.sort(key=names.__getitem__)
    place = np.array(used)
    rank = np.empty(len(names), np.int64)
    rank[place] = np.arange(len(used))
    return [names[index] for index in used], first[place], rank[code].repeat(bound[1:] - start)
