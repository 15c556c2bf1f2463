"""Contents of prepared stores and the command that prepares them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store by its name, hidden files too."""
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def preprocess_command(*arguments: object) -> list[str]:
    """The words of `trajformer preprocess ARGUMENTS`."""
    return [sys.executable, "-m", "trajformer.cli", "preprocess", *map(str, arguments)]


def environment() -> dict[str, str]:
    """The current environment of this process (Ray changes it), for a process that imports this tree."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in another process."""
    return subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
