"""Repeat all long commands, and stop them with SIGKILL at random moments.

    python tools/soak.py --cycles 24 --kills 50 --json soak.json

A cycle simulates, prepares, trains, stops, resumes, evaluates, predicts, draws and merges, all in this process except for the
stopped training. All cycles must give equal results, and memory, open files, threads and temporary files must not grow. Then
every command is stopped and repeated; the result must equal an undisturbed one.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trajformer.cli import load_command, main

RECIPE = """
model: {se2former: {num_future: 60, max_history: 50, block: {width: 16, heads: 2, feedforward: 16}}}
data: {train: store, val: store, batch_size: 4, learn_from: all, batch: {max_agents: 8, polyline_points: 4}}
augment: {max_targets: 4}
optim: {learning_rate: 1.0e-3, muon_rate: 2.0e-3}
trainer: {epochs: 2, threads: 1, accelerator: cpu, log_every: 1, checkpoint_minutes: 0.01}
"""
TRAIN = "train --config recipe.yaml --out run"
CONVERT = "weights convert trajformer run/last.ckpt weights.safetensors --overwrite"
CYCLE = (
    "evaluate --checkpoint run/last.ckpt --store store --json figures.json",
    "predict --checkpoint run/last.ckpt --store store --split val --out forecasts.parquet",
    "plot store --split val --forecasts forecasts.parquet --random 2 --out pictures",
    "store merge store --out merged",
)
KILLED = {  # command: its output, and the command after a kill if it differs
    "synthesize raw --scenes 12 --workers 1": ("raw", ""),
    "preprocess argoverse2 raw store --workers 1": ("store", ""),
    TRAIN: ("run", f"{TRAIN} --resume"),
    "store merge store --out merged": ("merged", ""),
    "store export-scene store --split train --scene {scene} --out scene.json --overwrite": (
        "scene.json",
        "",
    ),
    "predict --checkpoint run/last.ckpt --store store --split val --out forecasts.parquet --overwrite": (
        "forecasts.parquet",
        "",
    ),
    CONVERT: ("weights.safetensors", ""),
}


def run(command: str) -> None:
    """Execute a command here, without output."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            status = main(command.split())
        except SystemExit as error:  # a malformed command line
            status = error.code
    if status:
        sys.exit(f"{command}: exit status {status}: {errors.getvalue()[-500:]}")


def run_killed(command: str, seconds: float) -> bool:
    """Execute a command in a fork, stop it after some seconds, and return whether it was still busy."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.dup2(2, 1)
        os._exit(main(command.split()))
    os.setpgid(child, child)  # the child may not have come to its own call yet
    time.sleep(seconds)
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return not ended


def digests(path: Path) -> dict[str, str]:
    """Digests of a file, a folder, or the weights of a training, because logs and checkpoints contain times."""
    if (path / "last.ckpt").is_file():
        run(CONVERT)
        path = Path("weights.safetensors")
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def remove(*names: str) -> None:
    """Remove files and folders that exist."""
    for path in map(Path, names):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def cycle(moment: random.Random) -> dict[str, Any]:
    """All commands once: digests of the results, and the resources held afterwards."""
    remove(
        *(path.name for path in Path().iterdir() if path.name not in ("recipe.yaml", "temporary"))
    )
    run("synthesize raw --scenes 12 --workers 1")
    run("preprocess argoverse2 raw store --workers 1")
    killed = run_killed(TRAIN, moment.uniform(0.1, 0.8))
    run(f"{TRAIN} --resume")
    for command in CYCLE:
        run(command)
    results = {
        **digests(Path("run")),
        **digests(Path("merged")),
        **digests(Path("forecasts.parquet")),
    }
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "killed": killed,
        "figures": hashlib.sha256(Path("figures.json").read_bytes()).hexdigest(),
        "files": hashlib.sha256(json.dumps(results).encode()).hexdigest(),
        "memory_mb": int(status["VmRSS"].split()[0]) // 1024,
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "temporary": len(list(Path("temporary").iterdir())),
        "left_over": len([path for path in Path().rglob("*") if path.name.endswith(".tmp")]),
    }


def kills(
    command: str, output: str, again: str, count: int, moment: random.Random
) -> dict[str, Any]:
    """Stop a command `count` times, each time with nothing written before, repeat it and compare."""
    remove(output)
    start = time.monotonic()
    run(command)
    seconds, expected = time.monotonic() - start, digests(Path(output))
    row: dict[str, Any] = {
        "command": command,
        "seconds": round(seconds, 1),
        "kills": 0,
        "different": 0,
    }
    while row["kills"] < count:
        remove(output)
        if run_killed(command, moment.uniform(0, 1.2 * seconds)):
            row["kills"] += 1
            run(again or command)
            row["different"] += digests(Path(output)) != expected
    return row


def stable(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names of results that differ between cycles or grow after the third, when caches are full."""
    problems = [name for name in ("figures", "files") if len({row[name] for row in rows}) > 1]
    for early, late in [(rows[2], rows[-1])] if len(rows) > 2 else []:
        problems += [
            name
            for name in ("open_files", "threads", "temporary", "left_over")
            if late[name] > early[name]
        ]
        problems += ["memory_mb"] if late["memory_mb"] > 1.1 * early["memory_mb"] else []
    return problems


def soak() -> int:
    """Print the cycles, then the stopped commands; returns 1 if something differs or grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=24)
    parser.add_argument("--kills", type=int, default=50, help="kills of each command")
    parser.add_argument("--json", type=Path, help="also write the record to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    moment, record, out = (
        random.Random(0),
        {"cycles": [], "kills": []},
        args.json and args.json.absolute(),
    )
    for name in ("preprocess", "store", "train"):  # forked processes start with their modules
        load_command(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("recipe.yaml").write_text(RECIPE)
        Path("temporary").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = f"{folder}/temporary"
        for _ in range(max(args.cycles, 1)):
            record["cycles"].append(cycle(moment))
            print(record["cycles"][-1], flush=True)
        scene = next(Path("raw/train").iterdir()).name
        for command, (output, again) in KILLED.items() if args.kills else ():
            record["kills"].append(
                kills(command.format(scene=scene), output, again, args.kills, moment)
            )
            print(record["kills"][-1], flush=True)
    problems = stable(record["cycles"]) + [
        row["command"] for row in record["kills"] if row["different"]
    ]
    print("differs or grows: " + (", ".join(problems) or "nothing"))
    if out:
        out.write_text(json.dumps(record | {"problems": problems}, indent=1) + "\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(soak())
