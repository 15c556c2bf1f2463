"""Output folders and files of commands, progress bars, and a clean end on Ctrl-C and SIGTERM."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class _Terminated(BaseException):
    """SIGTERM was received. Not an `Exception`, so that no handler of errors catches it."""


@contextmanager
def stops_cleanly(command: str, hint: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM (the end of a cluster job) unwind the body, then report the signal and `hint` in one line.

    Raises:
        KeyboardInterrupt: after Ctrl-C, with the hint.
        SystemExit: after SIGTERM, with 143.
    """

    def terminate(*_: Any) -> None:
        raise _Terminated

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; {hint}") from None
    except _Terminated:
        print(f"trajformer {command}: terminated; {hint}", file=sys.stderr)
        raise SystemExit(143) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
