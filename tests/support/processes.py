"""Other processes that import this tree."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """The current environment of this process (Ray changes it), for a process that imports this tree."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in another process; `options` are those of `subprocess.run`."""
    defaults: dict[str, Any] = {"capture_output": True, "text": True, "env": environment(), "check": False}
    return subprocess.run([sys.executable, *map(str, words)], **defaults | options)
