"""Text columns of Arrow tables as numpy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def text(column: pa.ChunkedArray) -> np.ndarray:
    """Return a dictionary-encoded column of n rows as a str array [n]."""
    chunk = column.combine_chunks()
    return np.array(chunk.dictionary.to_pylist(), str)[chunk.indices.to_numpy()]


def groups(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the different values of a dictionary-encoded column of n rows; as `np.unique`, but on its codes.

    Returns:
        the values str [A], sorted; the first row int64 [A] of each; the value's index int64 [n] of each row.
    """
    chunk = column.combine_chunks()
    names, rank = np.unique(np.array(chunk.dictionary.to_pylist(), str), return_inverse=True)
    used, first, index = np.unique(rank[chunk.indices.to_numpy()], return_index=True, return_inverse=True)
    return names[used], first, index
