"""Command lines, run in this process."""

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
    assert (
        text.startswith(f"trajformer {words[0]}: ")
        and text.count("\n") == 1
        and text.endswith("\n")
    ), text
    return text


class Evil:
    """Creates the file "executed" in the working directory if it is unpickled without `weights_only`."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("executed"),)
