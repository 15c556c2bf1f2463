"""Command lines, run in this process."""

import re
from pathlib import Path

import pytest

from trajformer import cli


def run(*words: object) -> int:
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:  # a malformed command line, or --help
        return int(stop.code or 0)


def error_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The only line on standard error of a command line that must fail."""
    capsys.readouterr()
    assert run(*words) in (1, 2)
    text = capsys.readouterr().err
    program = rf"trajformer {words[0]}( \S+)?: "  # with the variant of the command
    assert re.fullmatch(program + r"[^\n]+\n", text), text
    return text


class Evil:
    """Creates the file "executed" in the working directory if `pickle` loads it."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("executed"),)
