"""Ctrl-C, SIGTERM and SIGHUP: each long command ends within seconds, and prints how to resume.

Its child processes end too.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support.uses import Case, Stop

RERUN = "run the same command again"
LONG = "--trainer.epochs 100000"


def comparison() -> None:
    Path("table.yaml").write_text(
        "- {name: mm, config: recipe.yaml, arguments: {trainer.epochs: 100000}}\n"
    )


class Command(NamedTuple):
    """A long command."""

    name: str
    words: str
    progress_file: str  # pattern of a file that appears while the command works
    hint: str  # how to resume
    prepare: Callable[[], object]


PREPARE = Command(
    "prepare",
    "preprocess argoverse2 raw out --timeout-s 600",
    "out/*/source.json",
    "finished shards are kept",
    list,
)
TRAIN = Command(
    "train",
    f"train --config recipe.yaml --out out {LONG}",
    "out/last.ckpt",
    "continue with --resume",
    list,
)
SYNTHESIZE = Command(
    "synthesize",
    "synthesize out --scenes 5000",
    "out/*/*/*.parquet",
    "finished scenes are kept; run the same",
    list,
)
TRAIN_WITH_WORKERS = Command(
    "train with workers",
    f"{TRAIN.words} --data.workers 1",
    "out/last.ckpt",
    "continue with --res",
    list,
)
DEMO = Command(
    "demo",
    "demo --out out --scenes 4 --epochs 100000",
    "out/run/last.ckpt",
    f"finished steps are kept; {RERUN}",
    list,
)
COMPARE = Command(
    "compare",
    "tools/compare/models.py --store store --table table.yaml --out out",
    "out/mm/seed0/last.ckpt",
    RERUN,
    comparison,
)


def stopped(command: Command, number: signal.Signals, name: str, status: int) -> Case:
    return Case(
        f"{name}: {command.name}",
        command.words,
        f"(interrupted|terminated); .*{command.hint}",
        command.prepare,
        stop=Stop(number, command.progress_file, 0.2),
        status=status,
        limit_s=60.0,
    )


def ctrl_c(command: Command) -> Case:
    return stopped(command, signal.SIGINT, "Ctrl-C", 130)


def sigterm(command: Command) -> Case:
    return stopped(command, signal.SIGTERM, "SIGTERM", 143)


def sighup(command: Command) -> Case:
    return stopped(command, signal.SIGHUP, "SIGHUP", 143)


CASES = [
    *map(ctrl_c, (PREPARE, TRAIN, DEMO, COMPARE)),
    *map(sigterm, (PREPARE, TRAIN, SYNTHESIZE, TRAIN_WITH_WORKERS)),
    *map(sighup, (PREPARE, TRAIN)),
]
