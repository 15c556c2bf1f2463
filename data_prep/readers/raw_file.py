"""Safe reading of raw files, and one-line messages of errors."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_MESSAGE = 300  # characters
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Bytes of a regular file; pipes and devices are refused, because reading them may never end.

    Raises:
        OSError: the file is missing, unreadable, not a regular file, or larger than `max_bytes`.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("a folder" if stat.S_ISDIR(state.st_mode) else "neither a file nor a folder")
        if state.st_size > max_bytes:
            raise OSError(f"{state.st_size} bytes, expected at most {max_bytes}")
        data = os.read(descriptor, state.st_size)
        while len(data) < state.st_size and (more := os.read(descriptor, state.st_size - len(data))):
            data += more  # a read may return fewer bytes than requested
        return data
    finally:
        os.close(descriptor)


def one_line(error: BaseException) -> str:
    """The message of an error as `printable` text."""
    return printable(getattr(error, "strerror", None) or str(error))


def printable(text: str) -> str:
    """Text that may quote the content of a file, as one printable line of limited length."""
    text = " ".join(text.split())
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]} ..."
