"""Lines on standard error, also for a step that takes long."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trajformer.errors import MAX_MESSAGE, escape, shorten

NOTICE_S = 3.0  # without output, a user waits for this time at most


def write_line(line: str) -> None:
    """Write a line to standard error, which may be missing, closed or a lost terminal."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{shorten(escape(line), MAX_MESSAGE)}\n")
        sys.stderr.flush()


def on_terminal() -> bool:
    """Whether standard error is a terminal, for progress bars; it may be missing."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def notice(text: str) -> Iterator[None]:
    """Print a line if the block has not ended after `NOTICE_S`.

    So a quick error is the only line of its command.
    """
    timer = threading.Timer(NOTICE_S, write_line, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
