"""Other processes that import this tree."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """The current environment (Ray changes it), for a process that imports this tree."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in another process with options of `subprocess.run`."""
    defaults: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "env": environment(),
        "check": False,
    }
    return subprocess.run([sys.executable, *map(str, words)], **defaults | options)


def session(leader: int) -> list[int]:
    """The running processes of a session."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # has just ended
        if int(number) == leader and state != "Z":
            processes.append(int(folder.name))
    return processes
