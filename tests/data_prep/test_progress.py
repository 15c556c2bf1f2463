"""Progress of preparing: a bar on a terminal, lines in a log."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.odd_readers import Odd, odd_folder

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.engine.progress import Progress
from data_prep.engine.tasks import ShardResult, ShardTask

EIGHT = ["fine"] * 8  # inputs


def test_a_log_gets_a_line_every_30_seconds(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = odd_folder(tmp_path / "raw", *EIGHT)
    now = [1000.0]
    for clock in ("data_prep.engine.progress.time.monotonic", "tqdm.std.time"):
        monkeypatch.setattr(clock, lambda: now[0])
    inputs = Odd().inputs(raw, "s")
    tasks = []
    for index in range(4):
        shard_inputs = tuple(inputs[2 * index : 2 * index + 2])
        tasks.append(ShardTask(Odd(), raw, tmp_path / "store", "s", index, shard_inputs))
    kept = tasks[0]
    kept.path.parent.mkdir(parents=True)
    kept.path.write_bytes(b"x" * 3000)
    shown = Progress(tasks, [kept], shown=True)
    for second in range(65):
        now[0] = 1000.0 + second
        if second == 40:
            shown.finish_shard(tasks[1], ShardResult(5000, (0.1, 0.1), ""))
        unfinished = 1 if second >= 10 else 0
        shown.update(unfinished)
    shown.close()
    assert capsys.readouterr().err.splitlines() == [
        "prepare:  38% 3/8 [00:30<02:30, 30.00s/scene, store about 12.0kB]",
        "prepare:  62% 5/8 [01:00<01:00, 20.00s/scene, store about 16.0kB]",
    ]


def test_a_terminal_gets_a_bar_and_progress_is_optional(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = odd_folder(tmp_path / "raw", *EIGHT)
    prepare(Odd(), raw, tmp_path / "silent", PrepareOptions(shard_size=3, progress=False))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for _ in range(2):  # the second time all shards are finished
        summary = prepare(Odd(), raw, tmp_path / "store", PrepareOptions(shard_size=3))
        printed = capsys.readouterr().err
        size = f"{summary.splits[0].bytes / 1000:.1f}kB"
        assert "8/8" in printed
        assert f"store about {size}" in printed
