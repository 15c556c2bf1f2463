"""The command line, `trajformer COMMAND --help`.

An error of the user ends in one line on standard error and exit status 1 (2 for a malformed command line). A bug ends in a
traceback, a line on how to report it, and exit status 70. To add a command, write `NAME_parser` and `run_NAME` in a module of
this package and add a line to `COMMANDS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import trajformer
from trajformer.errors import Terminated, TrajformerError, TrajformerWarning

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from trajformer.cli.parsing import Parser

COMMANDS = {  # modules and summaries; a module is imported for its command only, so that `trajformer --help` is fast
    "synthesize": ("data", "simulate traffic in the raw layout of Argoverse 2"),
    "preprocess": ("data", "prepare a store from a raw data set"),
    "store": ("store", "print, check, merge or resample stores, or export a scene"),
    "recipes": ("models", "list the recipes with data set, size, expected result and time"),
    "train": ("models", "train a recipe"),
    "average": ("models", "write the mean of the weights of several checkpoints"),
    "evaluate": ("models", "score a model on a store, or print the table of a benchmark"),
    "predict": ("models", "forecast a split and write a file for the Argoverse 2 challenge"),
    "plot": ("models", "draw scenes with their map, tracks and predicted modes"),
    "demo": ("demo", "simulate, prepare, train, evaluate and plot in a few minutes"),
    "classify": ("heads", "classify images, or score a classifier"),
    "detect": ("heads", "detect objects in images, or score a detector"),
    "translate": ("heads", "translate a text file, one sentence per line"),
    "pretrained": ("models", "list the weights that are part of trajformer"),
    "weights": ("models", "convert published weights, or a checkpoint of a run"),
}

REPORT = "this is a bug of trajformer; please open an issue with the lines above, the command and its input"
OUT_OF_MEMORY = (  # texts of torch, C++ and Python
    "[enforce fail at alloc_cpu",
    "DefaultCPUAllocator",
    "CUDA out of memory",
    "std::bad_alloc",
    "can't start new thread",
)
RERUN = "run the same command again"
HINTS = {  # after an interruption
    "synthesize": f"finished scenes are kept; {RERUN} to resume",
    "preprocess": f"finished shards are kept; {RERUN} to resume",
    "store": f"shards copied by a merge are kept; {RERUN}",
    "train": "continue with --resume",
    "demo": f"finished steps are kept; {RERUN} to resume",
}


def load_command(name: str) -> tuple[Callable[..., Parser], Callable[[Namespace], None]]:
    """The function that makes the parser of a command, and the function that runs it."""
    module = import_module(f"trajformer.cli.{COMMANDS[name][0]}")
    return getattr(module, f"{name}_parser"), getattr(module, f"run_{name}")


def run_command(name: str, words: list[str]) -> None:
    """Parse the words after the name of a command, and run it. Some parsers depend on the source, the action or the task."""
    make_parser, run = load_command(name)
    variant = words[:1] if name in ("preprocess", "store") else []
    if name == "train":
        from trajformer.cli.models import read_words

        words, task = read_words(words)
        variant = [task]
    parser = make_parser(*variant)
    parser.prog = f"trajformer {name}"
    run(parser.parse_words(words))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "--version"):
        lines = [
            "usage: trajformer COMMAND ...\n\nMulti-agent trajectory prediction on one shared attention core.\n"
        ]
        lines += [f"  {name:<12}{summary}" for name, (_, summary) in COMMANDS.items()]
        text = (
            trajformer.__version__
            if words[:1] == ["--version"]
            else "\n".join([*lines, "\nSee `trajformer COMMAND --help`."])
        )
        status = exit_status("trajformer", lambda: print(text, flush=True))
        return status if words else 2
    if words[0] not in COMMANDS:
        print(
            f"trajformer: no command '{words[0]}' (commands: {', '.join(COMMANDS)})",
            file=sys.stderr,
        )
        return 2
    return exit_status(
        f"trajformer {words[0]}",
        lambda: run_command(words[0], words[1:]),
        HINTS.get(words[0], RERUN),
    )


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one that it followed, says that no memory was left; a writer may fail again when it is closed."""
    while error is not None:
        if isinstance(error, MemoryError) or str(error).startswith(OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the end
    raise Terminated


def exit_status(program: str, run: Callable[[], object], hint: str = RERUN) -> int:
    """Run a program; a warning, an error of the user or an interrupt becomes a line on standard error.

    Ctrl-C and SIGTERM (the end of a cluster job) unwind the program. The line then has the `hint` how to resume.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if main_thread else None
    show = warnings.showwarning

    def show_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, TrajformerWarning):
            print(f"{program}: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *rest, **more)

    def end(status: int, message: str) -> int:
        print(f"{program}: {message}", file=sys.stderr)
        return status

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TrajformerWarning)
            warnings.showwarning = show_line
            run()
    except TrajformerError as error:
        return end(1, " ".join(str(error).split()))
    except BrokenPipeError:  # the reader of the output, `head` for example, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # no space, no permission: the message names the file
        return end(1, f"{error.filename or 'file system'}: {error.strerror or error}")
    except Terminated:
        return end(143, f"terminated; {hint}")
    except KeyboardInterrupt:
        return end(130, f"interrupted; {hint}")
    except Exception as error:
        if _is_out_of_memory(error):
            return end(1, f"out of memory: {' '.join(str(error).split())[:200]}".rstrip(": "))
        traceback.print_exc()
        return end(70, REPORT)
    finally:
        if main_thread:
            signal.signal(signal.SIGTERM, before)
    return 0
