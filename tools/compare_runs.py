"""Trainings of a comparison (`compare_models.py`) as processes, some at a time, that can be stopped and gone on with."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from compare_rows import Plan

COMMAND = [sys.executable, "-m", "trajformer.cli"]
_NOTE_S, _GRACE_S = 30.0, 120.0  # between notes of the time a run has taken; for a run that is to stop


@dataclass
class Training:
    """A training as a process; its output is in log.txt of the run's folder."""

    plan: Plan
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        folder, words = self.plan.folder, list(self.plan.words)
        folder.mkdir(parents=True, exist_ok=True)
        self.plan.note(0.0)
        self.since = time.monotonic()
        again = ["--resume"] if (folder / "last.ckpt").exists() else []
        with (folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen([*COMMAND, "train", *words, f"--out={folder}", *again], stdout=log, stderr=log)

    def note(self, done: bool = False) -> None:
        """Write down the time since the last note."""
        now = time.monotonic()
        self.plan.note((now - self.since) / 60, done)
        self.since = now

    def ended(self) -> bool:
        """Whether the process has come to an end; its time is noted now and then."""
        code = self.process.poll()
        if code is not None:
            self.note(done=code == 0)
        elif time.monotonic() - self.since > _NOTE_S:
            self.note()
        return code is not None

    def last_line(self) -> str:
        """Of the log."""
        lines = (self.plan.folder / "log.txt").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def train_all(plans: list[Plan], jobs: int) -> dict[Plan, str]:
    """Train what is not done, so many at a time; those that failed, with the last lines of their logs.

    Raises:
        KeyboardInterrupt: it is to stop; the processes have ended and can be gone on with.
    """
    waiting, running, failed = list(plans), list[Training](), dict[Plan, str]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Training(waiting.pop(0)))
                print(f"{running[-1].plan.folder}: {running[-1].plan.recipe.trainer.epochs} epochs", flush=True)
            time.sleep(0.1)
            for training in [one for one in running if one.ended()]:
                running.remove(training)
                if training.process.returncode:
                    failed[training.plan] = training.last_line()
                minutes, said = training.plan.record()["minutes"], failed.get(training.plan, "done")
                print(f"{training.plan.folder}: {said}, {minutes:.1f} minutes", flush=True)
    finally:
        _stop(running)
    return failed


def _stop(running: list[Training]) -> None:
    """End processes: a training writes its checkpoint between two steps and exits."""
    for training in running:
        training.process.send_signal(signal.SIGTERM)  # Ctrl-C has reached them, too; only a second Ctrl-C stops them at once
    try:
        for training in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.process.wait(_GRACE_S)
    finally:
        for training in running:
            training.process.kill()
            training.process.wait()
            training.note()
