"""Exit statuses and the line on standard error with which a program ends.

| status | reason |
| --- | --- |
| 0 | success |
| 1 | an error of the user: one line |
| 2 | a malformed command line: one line, written by the parser |
| 70 | a bug: a traceback and a line on how to report it |
| 130, 143 | Ctrl-C or SIGTERM (the end of a cluster job): one line with a hint how to resume |
| 141 | the reader of the output, `head` for example, has closed it: no line |
"""

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trajformer.errors import Terminated, TrajformerError, TrajformerWarning

RERUN = "run the same command again"
REPORT = (
    "this is a bug of trajformer; "
    "please open an issue with the lines above, the command and its input"
)
OUT_OF_MEMORY = (  # texts of torch, C++ and Python
    "[enforce fail at alloc_cpu",
    "DefaultCPUAllocator",
    "CUDA out of memory",
    "std::bad_alloc",
    "can't start new thread",
)


def exit_status(program: str, run: Callable[[], object], hint: str = RERUN) -> int:
    """Run a program and return its exit status.

    A warning, an error of the user or an interruption becomes a line on standard error. After an
    interruption the line has the `hint` how to resume.
    """
    with _sigterm_raises_terminated():
        try:
            with _warnings_as_lines(program):
                run()
        except BrokenPipeError:
            _discard_output()
            return 141
        except (Exception, KeyboardInterrupt) as error:
            status, line = _end(error, hint)
            print(f"{program}: {line}", file=sys.stderr)
            return status
        return 0


def _end(error: BaseException, hint: str) -> tuple[int, str]:
    """The exit status and the last line of a program that an error ended; a bug is printed."""
    message = " ".join(str(error).split())
    if isinstance(error, TrajformerError):
        return 1, message
    if isinstance(error, OSError):  # no space, no permission: the message names the file
        return 1, f"{error.filename or 'file system'}: {error.strerror or error}"
    if isinstance(error, Terminated):
        return 143, f"terminated; {hint}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {hint}"
    if _is_out_of_memory(error):
        return 1, f"out of memory: {message[:200]}".rstrip(": ")
    traceback.print_exception(error)
    return 70, REPORT


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or an error before it, says that no memory was left.

    A writer that ran out of memory may fail again when it is closed.
    """
    while error is not None:
        if isinstance(error, MemoryError) or str(error).startswith(OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _discard_output() -> None:
    """Replace a closed standard output, or Python would complain about it at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _sigterm_raises_terminated() -> Iterator[None]:
    """SIGTERM raises `Terminated`, which unwinds the program. Only a main thread can do this."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the end
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _warnings_as_lines(program: str) -> Iterator[None]:
    """Every `TrajformerWarning` is one line on standard error; other warnings are unchanged."""
    show = warnings.showwarning

    def show_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, TrajformerWarning):
            print(f"{program}: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TrajformerWarning)
        warnings.showwarning = show_line
        yield
