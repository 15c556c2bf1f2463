"""Time of `trajformer evaluate` without options, relative to another version of the source.

    git worktree add ../before COMMIT
    python tools/bench_evaluate.py --store STORE --before ../before [--checkpoint CKPT]

Both versions score the same split in new processes, alternately, so that start and imports count
and other work of the machine affects both. Times are CPU seconds of the processes: medians, and
the median of the ratios of consecutive runs. The metrics of both versions are compared, too.
COMMIT 99357a6 is the version before intervals over scenes.
"""

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import new_parser, parse, report, times_s

HERE = Path(__file__).resolve().parents[1]
NAMES = ("minADE6", "minFDE6", "MR6", "brier_minFDE6", "minADE1", "minFDE1")


def evaluate(source: Path, words: list[str]) -> str:
    """The output of `trajformer evaluate` of a source tree (RuntimeError: it failed)."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "trajformer.cli", "evaluate", *words]
    # another folder: the current one comes before PYTHONPATH
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True
        )
    if result.returncode != 0:
        raise RuntimeError(f"{source}: {result.stderr.strip()}")
    return result.stdout


def metrics(text: str) -> dict[str, float]:
    """The first value of each metric in the tables of an output."""
    values: dict[str, float] = {}
    lines = text.splitlines()
    for header, row in itertools.pairwise(lines):
        # the first column of the row is a name, without a heading
        pairs = zip(reversed(header.split()), reversed(row.split()), strict=False)
        for name, value in pairs:
            if name in NAMES and name not in values:
                values[name] = float(value)
    return values


def rows(sources: dict[str, Path], words: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """CPU and wall seconds of each version, after a run that fills the caches of files."""
    outputs: dict[str, str] = {}

    def run(name: str) -> None:
        outputs[name] = evaluate(sources[name], words)

    runs = {name: partial(run, name) for name in sources}
    times = times_s(runs, repeats)
    baseline = times["before"][:, 1]
    for name in sources:
        wall, cpu = times[name].T
        yield {
            "version": name,
            "cpu_s": float(np.median(cpu)),
            "wall_s": float(np.median(wall)),
            "cpu_ratio": float(np.median(cpu / baseline)),
            **metrics(outputs[name]),
        }


def main() -> None:
    parser = new_parser(__doc__, repeats=5)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--before", type=Path, required=True, help="source tree to compare with")
    parser.add_argument("--checkpoint", help="default: constant velocity")
    args = parse(parser)
    words = ["--store", str(args.store.resolve()), "--split", args.split]
    words += ["--threads", str(args.threads or 1)]
    if args.checkpoint:
        words += ["--checkpoint", args.checkpoint]
    else:
        words += ["--model", "constant_velocity"]
    sources = {"before": args.before.resolve(), "now": HERE}
    report(args, {"evaluate": rows(sources, words, args.repeats)})


if __name__ == "__main__":
    main()
