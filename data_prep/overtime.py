"""A bound on the time that one input may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_S = 1.0  # the alarm repeats, should it go off where Python drops exceptions, as in a destructor


class Overtime(BaseException):
    """The time is up; no `Exception`, so that a reader's own `except Exception` does not swallow it."""


@contextmanager
def time_bound(seconds: float) -> Iterator[None]:
    """Raise Overtime in the body when it takes longer than `seconds`; the timer and its handler are put back.

    There is no bound outside the main thread or on a system without interval timers, and a call into a C library
    is interrupted only when it returns: `runners.Crew` ends a process that does not hear the alarm.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def expire(*_: object) -> None:
        if running:
            raise Overtime

    handler = signal.signal(signal.SIGALRM, expire)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        try:
            yield
        finally:
            running = False
    finally:  # an alarm in the line above ends up here too
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
