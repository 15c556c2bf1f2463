"""Contents of prepared stores and the command that prepares them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store by its name, hidden files too."""
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def preprocess_command(*arguments: object) -> list[str]:
    """The words of `trajformer preprocess ARGUMENTS`."""
    return [sys.executable, "-m", "trajformer.cli", "preprocess", *map(str, arguments)]


def run_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in another process."""
    return subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)
