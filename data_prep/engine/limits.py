"""Limits of time and memory for reading one input."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trajformer.scenes.files import SIZE_SCALE

if sys.platform == "linux":
    import resource

TIMEOUT_S = 60.0
MEMORY_GB = 8.0


class InputTimeout(BaseException):
    """The time limit is exceeded.

    Not an `Exception`, so that a reader's `except Exception` does not catch it.
    """


class Alarm:
    """Raises `InputTimeout` between `start` and `stop`.

    The `with` block restores the previous timer and handler. There is no limit outside the main
    thread or on a system without interval timers. A call into a C library is interrupted only when
    it returns: `WorkerPool` kills a process that does not react.
    """

    def __enter__(self) -> Alarm:
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._supported = hasattr(signal, "setitimer") and in_main_thread
        self._running = False
        if self._supported:
            self._handler = signal.signal(signal.SIGALRM, self._expire)
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self._supported:
                signal.setitimer(signal.ITIMER_REAL, *self._timer)
                signal.signal(signal.SIGALRM, self._handler)

    def _expire(self, *_: Any) -> None:
        if self._running:
            raise InputTimeout

    def start(self, seconds: float) -> None:
        """Raise `InputTimeout` after `seconds`, and again every second.

        The repetition is needed because Python drops exceptions raised in destructors.
        """
        self._running = True
        if self._supported:
            delay = max(seconds, 1e-3)  # a timer of zero seconds never expires
            signal.setitimer(signal.ITIMER_REAL, delay, 1.0)

    def stop(self) -> None:
        """Cancel. A timeout that happens at this moment is raised here, none afterwards."""
        try:
            self._running = False
        finally:
            self._running = False
            if self._supported:
                signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def memory_limit(gigabytes: float) -> Iterator[None]:
    """Limit the growth of the memory of this process to a number of gigabytes, on Linux only.

    A larger allocation raises a MemoryError. More than `MEMORY_GB` also raises the readers' limits
    of sizes, on every system.
    """
    scale = SIZE_SCALE.set(max(gigabytes / MEMORY_GB, 1.0))
    try:
        if sys.platform == "linux":
            before = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + int(gigabytes * 1e9)
            existing_limits = [value for value in before if value != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_AS, (min([limit, *existing_limits]), before[1]))
        yield
    finally:
        SIZE_SCALE.reset(scale)
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, before)
