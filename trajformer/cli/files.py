"""Folders, files and progress bars of a command."""

from __future__ import annotations

import sys
from pathlib import Path

from trajformer.errors import TrajformerError


def bars() -> bool:
    """Progress bars are for terminals; a log file would fill with them."""
    return sys.stderr.isatty()


def make_folder(out: Path, wanted_for: Path | None = None) -> None:
    """Make a folder before the work begins.

    Raises:
        TrajformerError: it cannot be made; names what was to be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrajformerError(f"{wanted_for or out}: cannot be written: {error.filename}: {error.strerror}") from error


def make_room(*files: Path | None) -> None:
    """Make the folders of files that will be written, before the work begins."""
    for file in files:
        if file is not None and file.is_dir():
            raise TrajformerError(f"{file}: cannot be written: is a folder")
        if file is not None:
            make_folder(file.parent, file)
