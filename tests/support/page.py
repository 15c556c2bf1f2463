"""Reads the page of `trajformer view` as the browser does: data blocks, numbers and differences."""

import base64
import json
import re
import zlib
from typing import Any

import numpy as np


def block(html: str, name: str) -> bytes:
    """Content of a data block of a page."""
    pattern = f'<script type="application/octet-stream" id="{name}">([A-Za-z0-9+/=]*)</script>'
    (text,) = re.findall(pattern, html)
    return zlib.decompress(base64.b64decode(text))


def index_of(html: str) -> dict[str, Any]:
    """Settings and list of scenes of a page."""
    return json.loads(block(html, "index"))


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Header and streams of an encoded scene before compression."""
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    position = 4 + length
    streams: dict[str, list[int]] = {}
    for name, count in header["streams"]:
        streams[name] = []
        for _ in range(count):
            value, position = _number(content, position)
            streams[name].append(value)
    assert position == len(content)
    return header, streams


def _number(content: bytes, position: int) -> tuple[int, int]:
    """A zigzag number and the position after it."""
    unsigned = 0
    shift = 0
    while True:
        byte = content[position]
        position += 1
        unsigned |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if unsigned % 2:
        return -(unsigned + 1) // 2, position
    return unsigned // 2, position


def summed(values: list[int], lengths: list[int], order: int) -> np.ndarray:
    """The numbers of which `differences` made these values."""
    parts = [np.zeros(0, np.int64)]
    start = 0
    for length in lengths:
        part = np.array(values[start : start + length], np.int64)
        if order == 2 and length > 1:
            part[1:] = np.cumsum(part[1:])
        parts.append(np.cumsum(part))
        start += length
    assert start == len(values)
    return np.concatenate(parts)
