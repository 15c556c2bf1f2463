"""Files that bear their name only once they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to, which takes its place when the block ends without an error.

    Raises:
        OSError: the folder cannot be made or written; no temporary file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically; raises as `atomically`."""
    with atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
