"""Packing of integers: differences, zigzag, variable-length bytes and zlib.

Recorded paths are smooth, so their second differences in centimetres are small and most take one
byte. `source/decode.js` reverses each function.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_VALUE = 1 << 30  # with a margin, so that differences fit zigzag numbers of 32 bits
_PAYLOAD_BITS = 7  # of a byte; the last bit says that another byte follows
_MAX_BYTES = 5


def quantize(values: np.ndarray, step: float) -> np.ndarray:
    """Multiples of `step` as int64; NaN is 0, and infinite or larger values are limited."""
    finite = np.nan_to_num(np.asarray(values, np.float64), nan=0.0)
    limited = np.clip(finite, -MAX_VALUE * step, MAX_VALUE * step)
    return np.rint(limited / step).astype(np.int64)


def differences(values: np.ndarray, lengths: np.ndarray, order: int) -> np.ndarray:
    """Differences of order 1 or 2 within consecutive groups of these lengths.

    A group begins with its first value and, with order 2, its first difference.
    """
    lengths = lengths[lengths > 0]
    starts = np.cumsum(lengths) - lengths
    result = values
    for pass_number in range(order):
        changed = np.diff(result, prepend=0)
        # the first values of each group were final before this pass
        for kept in range(pass_number + 1):
            index = (starts + kept)[lengths > kept]
            changed[index] = result[index]
        result = changed
    return result


def to_bytes(values: np.ndarray) -> bytes:
    """Signed integers as zigzag numbers of 1 to 5 bytes, low bits first."""
    signed = values.astype(np.int64)
    unsigned = np.where(signed < 0, -2 * signed - 1, 2 * signed)
    sizes = np.ones(len(unsigned), np.int64)
    for count in range(1, _MAX_BYTES):
        sizes += unsigned >= 1 << _PAYLOAD_BITS * count
    offsets = np.cumsum(sizes) - sizes
    packed = np.zeros(int(sizes.sum()), np.uint8)
    for number in range(_MAX_BYTES):
        has_byte = sizes > number
        payload = (unsigned[has_byte] >> _PAYLOAD_BITS * number) & 0x7F
        follows = sizes[has_byte] > number + 1
        packed[offsets[has_byte] + number] = payload | (follows << _PAYLOAD_BITS)
    return packed.tobytes()


def pack(header: Mapping[str, Any], streams: Mapping[str, np.ndarray]) -> bytes:
    """A header of plain values and named streams of integers, compressed.

    Layout before compression: length of the header in bytes (uint32, little-endian), header as
    JSON with the names and lengths of the streams in "streams", then the streams (`to_bytes`).
    """
    counts = [[name, len(values)] for name, values in streams.items()]
    text = json.dumps({**header, "streams": counts}, separators=(",", ":"), allow_nan=False)
    encoded = text.encode()
    parts = [len(encoded).to_bytes(4, "little"), encoded]
    for values in streams.values():
        parts.append(to_bytes(values))
    return zlib.compress(b"".join(parts), 9)
