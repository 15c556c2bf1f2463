"""Progress of preparing: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.odd_readers import Odd, odd_folder

from data_prep.engine import progress
from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.engine.progress import Progress, duration_text, size_text
from data_prep.engine.tasks import ShardResult, ShardTask


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Eight inputs."""
    return odd_folder(tmp_path / "raw", *["fine"] * 8)


def test_a_log_gets_a_line_every_30_seconds(
    raw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    inputs = Odd().inputs(raw, "s")
    kept, *pending = (ShardTask(Odd(), raw, raw.parent / "store", "s", i, tuple(inputs[2 * i : 2 * i + 2])) for i in range(4))
    kept.path.parent.mkdir(parents=True)
    kept.path.write_bytes(b"x" * 3000)
    shown = Progress([kept, *pending], [kept], shown=True)
    for second in range(65):
        now[0] = 1000.0 + second
        if second == 40:
            shown.finish_shard(pending[0], ShardResult(5000, (0.1, 0.1), ""))
        shown.update(1 if second >= 10 else 0)
    shown.close()
    assert capsys.readouterr().err.splitlines() == [
        "prepare:  38% 3/8 [00:30<02:30, 30.00s/scene, store about 12.0 kB]",
        "prepare:  62% 5/8 [01:00<01:00, 20.00s/scene, store about 16.0 kB]",
    ]


def test_a_terminal_gets_a_bar(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for _ in range(2):  # the second time all shards are finished
        summary = prepare(Odd(), raw, tmp_path / "store", PrepareOptions(shard_size=3))
        printed = capsys.readouterr().err
        assert "8/8" in printed
        assert f"store about {size_text(summary.splits[0].bytes)}" in printed


def test_progress_is_optional(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    prepare(Odd(), raw, tmp_path / "store", PrepareOptions(shard_size=3, progress=False))
    assert capsys.readouterr().err == ""
    prepare(Odd(), raw, tmp_path / "store", PrepareOptions(shard_size=4))
    assert capsys.readouterr().err.startswith("prepare:   0% 0/8 [")


def test_sizes_and_durations_have_units() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 99_400, 99_600, 999_600, 1.44e9, 6e12, 6e16)] == [
        *("0 B", "999 B", "1.0 kB", "99.4 kB", "100 kB", "1.0 MB", "1.4 GB", "6.0 TB", "60000 TB")
    ]
    assert [duration_text(s) for s in (0.2, 59, 119, 5900, 6000, 86_400, 2.6e5)] == [
        *("1 s", "59 s", "2 min", "98 min", "1.7 h", "24.0 h", "3.0 days")
    ]
