"""Atomic writing of files."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it is renamed to `path` if the block ends without an error.

    Raises:
        OSError: the folder cannot be made or written. The temporary file or folder is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically; raises as `atomically`."""
    with atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
