"""How far preparing has come: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.odd_readers import Odd, odd_folder

from data_prep.engine import progress
from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.engine.progress import Progress
from data_prep.engine.tasks import ShardResult, ShardTask


def tasks_of(raw: Path, count: int) -> list[ShardTask]:
    """So many shards of two inputs each."""
    inputs = Odd().inputs(raw, "s")
    return [ShardTask(Odd(), raw, raw.parent / "store", "s", i, tuple(inputs[2 * i : 2 * i + 2])) for i in range(count)]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Eight inputs."""
    return odd_folder(tmp_path / "raw", *["fine"] * 8)


def test_a_log_gets_a_line_now_and_then(raw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    kept, *pending = tasks_of(raw, 4)
    kept.path.parent.mkdir(parents=True)
    kept.path.write_bytes(b"x" * 3000)
    shown = Progress([kept, *pending], [kept], shown=True)
    for step in range(65):  # seconds
        now[0] = 1000.0 + step
        if step == 40:
            shown.finished(pending[0], ShardResult(5000, (0.1, 0.1), ""))
        shown.reading(1 if step >= 10 else 0)
    shown.close()
    assert capsys.readouterr().err.splitlines() == [
        "prepare: 3 of 8 scenes (37.5 %), 2.0 scenes/min, 02:30 left, store about 12.0 kB",
        "prepare: 5 of 8 scenes (62.5 %), 3.0 scenes/min, 01:00 left, store about 16.0 kB",
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where to write."""
    return tmp_path / "store"


def test_a_terminal_gets_a_bar(
    raw: Path, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    options = PrepareOptions(shard_size=3, workers=2)
    for _ in range(2):  # the second time all is there already
        summary = prepare(Odd(), raw, store, options)
        said = capsys.readouterr().err
        assert "8/8" in said
        assert f"store about {progress.size_text(summary.splits[0].bytes)}" in said


def test_silence_on_request(raw: Path, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    prepare(Odd(), raw, store, PrepareOptions(shard_size=3, progress=False))
    assert capsys.readouterr().err == ""
    prepare(Odd(), raw, store, PrepareOptions(shard_size=4))
    assert capsys.readouterr().err.startswith("prepare: 0 of 8 scenes (0.0 %)\n")
