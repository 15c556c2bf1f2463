"""Columns of Arrow tables as numpy arrays, without `to_numpy`: its first call imports pandas, which takes 0.25 s."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa

Column: TypeAlias = pa.ChunkedArray | pa.Array


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type becomes float64 without loss of meaning."""
    return pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind.bit_width > 16)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, possibly encoded as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def numbers(column: Column) -> np.ndarray:
    """A column of numbers without nulls, read-only."""
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def _encoded(column: Column) -> pa.DictionaryArray:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array if isinstance(array, pa.DictionaryArray) else array.dictionary_encode()


def values_at(column: Column, rows: np.ndarray) -> list[str]:
    """Values of a text column at the given rows (int64 [n])."""
    array = _encoded(column)
    words = array.dictionary.to_pylist()
    return [words[code] for code in np.from_dlpack(array.indices)[rows].tolist()]


def groups(column: Column) -> tuple[list[str], np.ndarray, np.ndarray]:
    """`np.unique` of a text column of n rows, computed on its dictionary codes.

    Returns:
        the A distinct values, sorted; the first row of each, int64 [A]; the index of each row's value, int64 [n].
    """
    array = _encoded(column)
    words, codes = array.dictionary.to_pylist(), np.from_dlpack(array.indices)
    if not len(codes):
        return [], np.zeros(0, np.int64), np.zeros(0, np.int64)
    # rows of one value are mostly consecutive: work on runs of equal values
    bound = np.concatenate([[0], (codes[1:] != codes[:-1]).nonzero()[0] + 1, [len(codes)]])
    start, code = bound[:-1], codes[bound[:-1]]
    first = np.full(len(words), len(codes))
    first[code[::-1]] = start[::-1]  # of repeated indices, the last assignment remains
    used = [index for index, row in enumerate(first.tolist()) if row < len(codes)]
    used.sort(key=words.__getitem__)
    rank = np.empty(len(words), np.int64)
    rank[used] = np.arange(len(used))
    return [words[index] for index in used], first[used], rank[code].repeat(bound[1:] - start)
