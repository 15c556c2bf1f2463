"""Raw files that nobody vouches for: read only what is a file of a sensible size, and say in one line what is wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LONGEST_MESSAGE = 300  # characters
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read_file(path: Path, largest: int) -> bytes:
    """The bytes of a regular file of at most `largest` bytes; a pipe would keep its reader waiting, a device never ends.

    Raises:
        OSError: it is missing, cannot be read, is no file, or larger.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("a folder" if stat.S_ISDIR(state.st_mode) else "neither a file nor a folder")
        if state.st_size > largest:
            raise OSError(f"{state.st_size} bytes, expected at most {largest}")
        data = os.read(descriptor, state.st_size)
        while len(data) < state.st_size and (more := os.read(descriptor, state.st_size - len(data))):
            data += more  # the read before was interrupted
        return data
    finally:
        os.close(descriptor)


def told(error: BaseException) -> str:
    """What an error says, on one line, cut to a sensible length and printable, for it may quote whatever a file holds."""
    text = " ".join((getattr(error, "strerror", None) or str(error)).split())
    text = text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} ..."
    return text if text.isprintable() else repr(text)[1:-1]
