"""The commands of `trajformer`.

Each command has a module of its name in this package with two functions: `parser` makes its
command-line parser, and `run` receives the parsed arguments. To add a command, write such a module
and add a line to `COMMANDS`.

A command may have variants: `trajformer store merge`. Its module lists their names in `VARIANTS`,
and `parser` takes a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import trajformer
from trajformer.cli.status import RERUN, exit_status
from trajformer.errors import TrajformerError
from trajformer.scenes.notices import notice, write_line

# Numbers of a process and of all processes, which a launcher sets. Lightning reads the first four
# when it is imported.
RANKS = (
    "RANK",
    "LOCAL_RANK",
    "SLURM_PROCID",
    "JSM_NAMESPACE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "JSM_NAMESPACE_SIZE",
)
SAFE_PATH = "PYTHONSAFEPATH"  # Python leaves the current folder out of its search path


class Command(NamedTuple):
    """A line of the overview, and the hint after an interruption."""

    summary: str
    hint: str = RERUN


COMMANDS = {
    "synthesize": Command(
        "simulate traffic in the raw layout of Argoverse 2",
        f"finished scenes are kept; {RERUN} to resume",
    ),
    "preprocess": Command(
        "prepare a store from a raw data set",
        f"finished shards are kept; {RERUN} to resume",
    ),
    "store": Command(
        "print, check, merge or resample stores, or export a scene",
        f"shards copied by a merge are kept; {RERUN}",
    ),
    "recipes": Command("list the recipes with data set, size, expected result and time"),
    "pretrained": Command("list the weights that are part of trajformer"),
    "train": Command("train a recipe", "continue with --resume"),
    "evaluate": Command("score a model on a store"),
    "score": Command("score forecast files of any program on a store"),
    "report": Command("score forecast files and write one HTML page with charts and scenes"),
    "benchmark": Command("score models by the rules of a published benchmark"),
    "predict": Command("forecast a split and write a file for the Argoverse 2 challenge"),
    "stream": Command("replay recordings as live tracks: forecasts, latency, minFDE"),
    "plot": Command("draw scenes with their map, tracks and predicted modes"),
    "view": Command("write scenes as one HTML file that plays in a browser"),
    "export-mcap": Command("write scenes and forecasts as an MCAP file for Foxglove"),
    "export": Command("write a model as a file for onnxruntime or torch.export"),
    "latency": Command("time the forecasts of a model in several runtimes"),
    "demo": Command(
        "simulate, prepare, train, evaluate and plot in a few minutes",
        f"finished steps are kept; {RERUN} to resume",
    ),
    "classify": Command("classify images, or score a classifier"),
    "detect": Command("detect objects in images, or score a detector"),
    "translate": Command("translate a text file, one sentence per line"),
    "weights": Command("convert published weights, or a checkpoint of a run"),
}


SLOW_IMPORTS = ("train", "demo")  # seconds, and half a minute on a busy machine


def load_command(name: str) -> ModuleType:
    """The module of a command, imported only when it is used: `trajformer --help` is fast."""
    module = name.replace("-", "_")
    return import_module(f"trajformer.cli.{module}")


def run_command(name: str, words: Sequence[str]) -> None:
    """Parse the words after the name of a command, and run it.

    The first word selects a variant, if the command has a variant of this name.
    """
    for variable in RANKS:
        value = os.environ.get(variable, "0")
        if not value.isdigit():
            raise TrajformerError(f"{variable}={value!r} in the environment: no number; unset it")
    if name in SLOW_IMPORTS:
        with notice(f"trajformer {name}: loading PyTorch and Lightning ..."):
            module = load_command(name)
    else:
        module = load_command(name)
    variants = getattr(module, "VARIANTS", ())
    selected = [word for word in words[:1] if word in variants]
    parser = module.parser(*selected)
    parser.prog = " ".join(["trajformer", name, *selected])
    module.run(parser.parse_words(list(words[len(selected) :])))


def run_program(words: Sequence[str]) -> int:
    """Run one command line without the name of the program; returns the exit status."""
    if not words:
        exit_status("trajformer", _print_overview)
        return 2
    name = words[0]
    if name in ("-h", "--help"):
        return exit_status("trajformer", _print_overview)
    if name == "--version":
        return exit_status("trajformer", lambda: print(trajformer.__version__, flush=True))
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        write_line(f"trajformer: no command '{name}' (commands: {known})")
        return 2
    with _safe_path():
        return exit_status(
            f"trajformer {name}", lambda: run_command(name, words[1:]), COMMANDS[name].hint
        )


@contextmanager
def _safe_path() -> Iterator[None]:
    """No child process imports modules of the current folder, a pyarrow.py next to data.

    The variable is inherited by all: worker processes, their helpers and those of PyTorch.
    """
    before = os.environ.get(SAFE_PATH, "")  # an empty value is as none
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ[SAFE_PATH] = before


def _print_overview() -> None:
    print("usage: trajformer COMMAND ...\n")
    print("Multi-agent trajectory prediction on one shared attention core.\n")
    for name, command in COMMANDS.items():
        print(f"  {name:<12}{command.summary}")
    print("\nSee `trajformer COMMAND --help`.", flush=True)
