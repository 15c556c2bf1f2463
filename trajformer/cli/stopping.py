"""Clean end of long commands on Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
