"""A line on standard error for a step that takes long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trajformer.errors import write_line

NOTICE_S = 3.0  # without output, a user waits for this time at most


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
