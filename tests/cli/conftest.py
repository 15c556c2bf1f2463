"""Fixtures for `trajformer store ...`, which run it in an empty folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import run as run_words

Run = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `trajformer store ...`; returns exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: (run_words("store", *words), *capsys.readouterr())


@pytest.fixture
def error_of(fails: Fails) -> Fails:
    """The error line of `trajformer store ...`."""
    return lambda *words: fails("store", *words)
