"""Exit statuses and the line on standard error with which a program ends.

| status | reason |
| --- | --- |
| 0 | success |
| 1 | an error of the user: one line |
| 2 | a malformed command line: one line, written by the parser |
| 70 | a bug: a traceback and a line on how to report it |
| 130 | Ctrl-C: one line with a hint how to resume |
| 143 | SIGTERM (the end of a cluster job) or SIGHUP (of the terminal): the same line |
| 141 | the reader of the output, `head` for example, has closed it: no line |
"""

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from trajformer.errors import (
    TERMINATION_SIGNALS,
    Terminated,
    TrajformerError,
    TrajformerWarning,
    escape,
    one_line,
)
from trajformer.scenes.notices import write_line

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
    _open_standard_streams()
    _ignore_settings_of_matplotlib()
    with _termination_raises_terminated():
        try:
            with redirect_stdout(_EscapedOutput(sys.stdout)), _warnings_as_lines(program):
                run()
        except BrokenPipeError:
            _discard_output()
            return 141
        except (Exception, KeyboardInterrupt) as error:
            status, line = _end(error, hint)
            write_line(f"{program}: {line}")
            return status
        return 0


def _end(error: BaseException, hint: str) -> tuple[int, str]:
    """The exit status and the last line of a program that an error ended; a bug is printed."""
    message = one_line(error)
    if isinstance(error, TrajformerError):
        return 1, message
    if isinstance(error, UnicodeEncodeError) and not error.object.isprintable():
        return 1, f"{one_line(error.object)}: a name that is not UTF-8; rename it"
    if isinstance(error, OSError):  # no space, no permission: the message names the file
        return 1, one_line(f"{error.filename or 'file system'}: {error.strerror or error}")
    if isinstance(error, Terminated):
        return 143, f"terminated; {hint}"
    if isinstance(error, KeyboardInterrupt):
        return 130, f"interrupted; {hint}"
    if _is_out_of_memory(error):
        return 1, f"out of memory: {message[:200]}".rstrip(": ")
    for line in "".join(traceback.format_exception(error)).splitlines():
        write_line(line)
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
def _termination_raises_terminated() -> Iterator[None]:
    """Signals for the end raise `Terminated`, which unwinds the program.

    An ignored signal stays ignored (`nohup`). Only a main thread can handle signals.
    """

    def terminate(*_: object) -> None:
        for number in before:  # a second signal must not interrupt the end
            signal.signal(number, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in TERMINATION_SIGNALS}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open_standard_streams() -> None:
    """Replace closed streams: the next opened file would have their number and their output.

    Characters that the encoding of the output lacks are escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w" if number else "r")))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _ignore_settings_of_matplotlib() -> None:
    """Import matplotlib without a `matplotlibrc` of the working directory, which may be damaged.

    PyTorch's metrics import it too.
    """
    for name in ("MPLBACKEND", "MATPLOTLIBRC"):
        os.environ.pop(name, None)
    if os.path.lexists("matplotlibrc"):
        with chdir(Path(__file__).parent):
            import_module("matplotlib")


class _EscapedOutput:
    """Standard output that escapes control characters, which names in files may contain."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write escaped text."""
        return int(self.stream.write(escape(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _warnings_as_lines(program: str) -> Iterator[None]:
    """Every `TrajformerWarning` is one line on standard error; other warnings are unchanged."""
    show = warnings.showwarning

    def show_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, TrajformerWarning):
            write_line(f"{program}: warning: {one_line(message)}")
        else:
            show(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TrajformerWarning)
        warnings.showwarning = show_line
        yield
