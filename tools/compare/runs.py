"""Trainings of a comparison as processes, several at a time; they can be stopped and resumed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from compare.rows import Plan

COMMAND = [sys.executable, "-m", "trajformer.cli"]
RECORD_EVERY_S = 30.0  # updates of the minutes in run.json
GRACE_S = 120.0  # time for a process to stop


@dataclass
class Training:
    """A training process; its output is in log.txt of the run's folder."""

    plan: Plan
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        folder = self.plan.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.plan.add_minutes(0.0)
        self.start_time = time.monotonic()
        resume = ["--resume"] if (folder / "last.ckpt").exists() else []
        with (folder / "log.txt").open("ab") as log:
            command = [*COMMAND, "train", *self.plan.words, f"--out={folder}", *resume]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def record_time(self, done: bool = False) -> None:
        """Add the time since the last call to run.json."""
        now = time.monotonic()
        self.plan.add_minutes((now - self.start_time) / 60, done)
        self.start_time = now

    def has_ended(self) -> bool:
        """Whether the process has ended; also updates run.json from time to time."""
        code = self.process.poll()
        if code is not None:
            self.record_time(done=code == 0)
        elif time.monotonic() - self.start_time > RECORD_EVERY_S:
            self.record_time()
        return code is not None

    def last_line(self) -> str:
        """Last line of the log."""
        lines = (self.plan.folder / "log.txt").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def train_all(plans: list[Plan], jobs: int) -> dict[Plan, str]:
    """Run trainings, `jobs` at a time; returns the failed ones with the last lines of their logs.

    Raises:
        KeyboardInterrupt: after an interrupt, when all processes have ended; the same call resumes them.
    """
    waiting, running, failed = list(plans), list[Training](), dict[Plan, str]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Training(waiting.pop(0)))
                print(f"{running[-1].plan.folder}: {running[-1].plan.recipe.trainer.epochs} epochs", flush=True)
            time.sleep(0.1)
            for training in [one for one in running if one.has_ended()]:
                running.remove(training)
                if training.process.returncode:
                    failed[training.plan] = training.last_line()
                minutes, result = training.plan.record()["minutes"], failed.get(training.plan, "done")
                print(f"{training.plan.folder}: {result}, {minutes:.1f} minutes", flush=True)
    finally:
        stop(running)
    return failed


def stop(running: list[Training]) -> None:
    """Stop processes: a training writes a checkpoint and exits after SIGTERM; after `GRACE_S` it is killed."""
    for training in running:
        training.process.send_signal(signal.SIGTERM)  # Ctrl-C reaches them as well; only a second one stops them at once
    try:
        for training in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.process.wait(GRACE_S)
    finally:
        for training in running:
            training.process.kill()
            training.process.wait()
            training.record_time()
