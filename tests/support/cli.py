"""Command lines, run in this process."""

import pytest

from trajformer import cli


def run(*words: object) -> int:
    """The exit status of a command line."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:  # a malformed command line, or --help
        return int(stop.code or 0)


def error_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The only line on standard error of a command line that must fail."""
    capsys.readouterr()
    assert run(*words) in (1, 2)
    text = capsys.readouterr().err
    assert text.startswith(f"trajformer {words[0]}: ") and text.count("\n") == 1 and text.endswith("\n"), text
    return text
