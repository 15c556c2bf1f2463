"""Ctrl-C and SIGTERM: each long command ends within seconds, also its child processes, and prints how to resume."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from support.uses import Case, Guard, Stop

HANDLER = Guard(
    "trajformer/cli/__init__.py",
    "before = signal.signal(signal.SIGTERM, _terminate) if main_thread else None",
    "before = signal.SIG_DFL",
)
STEP = Guard(
    "trajformer/training/resume.py", "signal.signal(number, self._request)", "pass"
)  # finishes a step of `train`
LINE = Guard(
    "trajformer/cli/__init__.py",
    "    except KeyboardInterrupt:\n",
    "    except ZeroDivisionError:\n",
)
RERUN = "run the same command again"
LONG = "--trainer.epochs 100000"


def eth_store() -> None:
    """Splits of the five leave-one-out sets."""
    for name in ("eth", "hotel", "univ", "zara1", "zara2"):
        for part in ("train", "val"):
            Path(f"store/{name}_{part}").symlink_to(part)


COMPARE_TABLE = partial(
    Path("table.yaml").write_text,
    "- {name: mm, config: recipe.yaml, arguments: {trainer.epochs: 100000}}\n",
)
INT, TERM = (signal.SIGINT,), (signal.SIGTERM,)
PREPARE = "preprocess argoverse2 raw out --timeout-s 600"
TRAIN = f"train --config recipe.yaml --out out {LONG}"
COMPARE = "tools/compare/models.py --store store --table table.yaml --out out"
Row = tuple[str, str, str, str, Callable[[], object], tuple[signal.Signals, ...]]
COMMANDS: list[Row] = [  # name, words, file that shows progress, hint, preparation, signals
    (
        "synthesize",
        "synthesize out --scenes 5000",
        "out/*/*/*.parquet",
        "finished scenes are kept; run the same",
        list,
        TERM,
    ),
    ("prepare", PREPARE, "out/*/source.json", "finished shards are kept", list, INT + TERM),
    ("train", TRAIN, "out/last.ckpt", "continue with --resume", list, INT + TERM),
    (
        "train with workers",
        f"{TRAIN} --data.workers 1",
        "out/last.ckpt",
        "continue with --res",
        list,
        TERM,
    ),
    (
        "demo",
        "demo --out out --scenes 4 --epochs 100000",
        "out/run/last.ckpt",
        f"finished steps are kept; {RERUN}",
        list,
        INT,
    ),
    ("compare", COMPARE, "out/mm/seed0/last.ckpt", RERUN, COMPARE_TABLE, INT),
]

CASES = [
    Case(
        f"{'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}: {name}",
        words,
        f"(interrupted|terminated); .*{hint}",
        prepare,
        LINE if number == signal.SIGINT else STEP if name.startswith("train") else HANDLER,
        stop=Stop(number, file, 0.2),
        status=130 if number == signal.SIGINT else 143,
        limit_s=60.0,
    )
    for name, words, file, hint, prepare, numbers in COMMANDS
    for number in numbers
]
