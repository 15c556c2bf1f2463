"""A bound on the time that one input may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

AGAIN_S = 1.0  # the alarm repeats, should it go off where Python drops exceptions, as in a destructor


class Overtime(BaseException):
    """The time is up; no `Exception`, so that a reader's own `except Exception` does not swallow it."""


class Alarm:
    """Raises Overtime between `start` and `stop`; with the end of the `with` block timer and handler are put back.

    There is no bound outside the main thread or on a system without interval timers, and a call into a C library
    is interrupted only when it returns: `runners.Crew` ends a process that does not hear the alarm.
    """

    def __init__(self) -> None:
        self._works = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        self._running = False

    def __enter__(self) -> Alarm:
        if self._works:
            self._handler = signal.signal(signal.SIGALRM, self._expire)
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._works:
            signal.setitimer(signal.ITIMER_REAL, *self._timer)
            signal.signal(signal.SIGALRM, self._handler)

    def _expire(self, *_: Any) -> None:
        if self._running:
            raise Overtime

    def start(self, seconds: float) -> None:
        """Raise Overtime in so many seconds."""
        self._running = True
        if self._works:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)

    def stop(self) -> None:
        """Not any more. An alarm of this very moment is raised here, and no other afterwards."""
        try:
            self._running = False
        finally:
            self._running = False
            if self._works:
                signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def time_bound(seconds: float) -> Iterator[None]:
    """Raise Overtime in the body when it takes longer than `seconds`."""
    with Alarm() as alarm:
        try:
            alarm.start(seconds)
            yield
        finally:
            alarm.stop()
