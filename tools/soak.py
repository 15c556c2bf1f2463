"""Repeat all long commands, and stop them with SIGKILL at random moments.

    python tools/soak.py --cycles 24 --kills 50 --json soak.json

A cycle simulates, prepares, trains, stops, resumes, evaluates, predicts, draws and merges, all in
this process except for the stopped training. All cycles must give equal results, and memory, open
files, threads and temporary files must not grow. Then every command is stopped and repeated; the
result must equal an undisturbed one.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
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

from trajformer.cli import main
from trajformer.cli.commands import load_command

RECIPE = """
model:
  se2former: {num_future: 60, max_history: 50, block: {width: 16, heads: 2, feedforward: 16}}
data:
  train: store
  val: store
  batch_size: 4
  learn_from: all
  batch: {polyline_points: 4}
augment: {crop: 8, max_targets: 4}
optim: {learning_rate: 1.0e-3, muon_rate: 2.0e-3}
trainer:
  epochs: 2
  threads: 1
  accelerator: cpu
  log_every: 1
  checkpoint_minutes: 0.01
"""
TRAIN = "train --config recipe.yaml --out run"
CONVERT = "weights convert trajformer run/last.ckpt weights.safetensors --overwrite"
PREDICT = "predict --checkpoint run/last.ckpt --store store --split val --out forecasts.parquet"
EXPORT = "store export-scene store --split train --scene {scene} --out scene.json --overwrite"
CYCLE = (
    "evaluate --checkpoint run/last.ckpt --store store --json metrics.json",
    PREDICT,
    "plot store --split val --forecasts forecasts.parquet --random 2 --out pictures",
    "store merge store --out merged",
)
KILLED = {  # command: its output, and the command after a kill if it differs
    "synthesize raw --scenes 12 --workers 1": ("raw", ""),
    "preprocess argoverse2 raw store --workers 1": ("store", ""),
    TRAIN: ("run", f"{TRAIN} --resume"),
    "store merge store --out merged": ("merged", ""),
    EXPORT: ("scene.json", ""),
    f"{PREDICT} --overwrite": ("forecasts.parquet", ""),
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
    """Execute a command in a fork and stop it after some seconds; return whether it was busy."""
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
    """Digests of a file or of all files in a folder.

    Of a training only the weights count, because logs and checkpoints contain times.
    """
    if (path / "last.ckpt").is_file():
        run(CONVERT)
        path = Path("weights.safetensors")
    files = [path, *sorted(path.rglob("*"))]
    return {str(file): digest(file) for file in files if file.is_file()}


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def remove(*names: str) -> None:
    """Remove files and folders that exist."""
    for name in names:
        path = Path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def cycle(rng: random.Random) -> dict[str, Any]:
    """All commands once: digests of the results, and the resources held afterwards."""
    for path in list(Path().iterdir()):
        if path.name not in ("recipe.yaml", "temporary"):
            remove(path.name)
    run("synthesize raw --scenes 12 --workers 1")
    run("preprocess argoverse2 raw store --workers 1")
    killed = run_killed(TRAIN, rng.uniform(0.1, 0.8))
    run(f"{TRAIN} --resume")
    for command in CYCLE:
        run(command)
    results = digests(Path("run")) | digests(Path("merged")) | digests(Path("forecasts.parquet"))
    status = Path("/proc/self/status").read_text()
    memory_kb = re.search(r"VmRSS:\s*(\d+)", status)
    assert memory_kb
    return {
        "killed": killed,
        "metrics": digest(Path("metrics.json")),
        "files": hashlib.sha256(json.dumps(results).encode()).hexdigest(),
        "memory_mb": int(memory_kb[1]) // 1024,
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "temporary": len(list(Path("temporary").iterdir())),
        "left_over": len(list(Path().rglob("*.tmp"))),
    }


def kills(command: str, output: str, again: str, count: int, rng: random.Random) -> dict[str, Any]:
    """Stop a command `count` times, repeat it and compare.

    Each time nothing has been written before.
    """
    remove(output)
    start_time = time.monotonic()
    run(command)
    seconds = time.monotonic() - start_time
    expected = digests(Path(output))
    row: dict[str, Any] = {
        "command": command,
        "seconds": round(seconds, 1),
        "kills": 0,
        "different": 0,
    }
    while row["kills"] < count:
        remove(output)
        if run_killed(command, rng.uniform(0, 1.2 * seconds)):
            row["kills"] += 1
            run(again or command)
            row["different"] += digests(Path(output)) != expected
    return row


def stable(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names of results that differ between cycles or grow after the third, when caches are full."""
    problems = []
    for name in ("metrics", "files"):
        if any(row[name] != rows[0][name] for row in rows):
            problems.append(name)
    if len(rows) < 3:
        return problems
    early = rows[2]
    late = rows[-1]
    for name in ("open_files", "threads", "temporary", "left_over"):
        if late[name] > early[name]:
            problems.append(name)
    if late["memory_mb"] > 1.1 * early["memory_mb"]:
        problems.append("memory_mb")
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
    rng = random.Random(0)
    cycles = []
    kill_rows = []
    out = args.json and args.json.absolute()
    for name in ("preprocess", "store", "train"):  # forked processes start with their modules
        load_command(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("recipe.yaml").write_text(RECIPE)
        Path("temporary").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = f"{folder}/temporary"
        for _ in range(max(args.cycles, 1)):
            cycles.append(cycle(rng))
            print(cycles[-1], flush=True)
        scene = next(Path("raw/train").iterdir()).name
        if args.kills:
            for template, (output, again) in KILLED.items():
                command = template.format(scene=scene)
                kill_rows.append(kills(command, output, again, args.kills, rng))
                print(kill_rows[-1], flush=True)
    problems = stable(cycles)
    problems += [row["command"] for row in kill_rows if row["different"]]
    print("differs or grows: " + (", ".join(problems) or "nothing"))
    if out:
        record = {"cycles": cycles, "kills": kill_rows, "problems": problems}
        out.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(soak())
