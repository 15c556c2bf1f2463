"""Output folders and files of commands, and progress bars."""

from __future__ import annotations

import sys
from pathlib import Path

from trajformer.errors import TrajformerError


def bars() -> bool:
    """True if progress bars are shown: on a terminal, not in a log file."""
    return sys.stderr.isatty()


def make_folder(out: Path, file: Path | None = None) -> None:
    """Make a folder before the work of a command starts; `file` is the name for the error message, by default `out`.

    Raises:
        TrajformerError: the folder cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrajformerError(f"{file or out}: cannot be written: {error.filename}: {error.strerror}") from error


def make_room(*files: Path | None) -> None:
    """Make the folders of output files before the work of a command starts.

    Raises:
        TrajformerError: a folder cannot be made, or a file is a folder.
    """
    for file in filter(None, files):
        if file.is_dir():
            raise TrajformerError(f"{file}: cannot be written: is a folder")
        make_folder(file.parent, file)
