"""What preparing would do is told beforehand, close to what it then does, and nothing is written."""

from __future__ import annotations

import shutil
import tempfile
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from support import fixtures
from support.odd_readers import Odd, odd_folder, reads, small_scene

from data_prep.engine.amounts import duration_text, size_text
from data_prep.engine.estimate import SAMPLE, estimate
from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.engine.tasks import KILLED
from data_prep.reader import Input
from trajformer.cli import main
from trajformer.cli import run_data as data
from trajformer.errors import TrajformerError
from trajformer.scenes.scene import Scene

OPTIONS = PrepareOptions(shard_size=40, workers=2, progress=False)


@dataclass(frozen=True)
class Growing(Odd):
    """Scenes of every size, known from their names, and a data set of which one split is missing here."""

    published: ClassVar[dict[str, int]] = {"s": 1000, "elsewhere": 500}

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Between 2 and 50 agents, unless the file says otherwise."""
        super().read(item, split, raw)
        return small_scene(item.path.stem, agents=2 + int(item.path.stem) % 49, steps=50)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """200 inputs, some of them fatal."""
    words = ["fine"] * 200
    words[0], words[100] = "kill", "value"
    return odd_folder(tmp_path / "raw", *words)


def everything(folder: Path) -> set[str]:
    """Every file and folder below one, but the note of what was read."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {"reads"}


def test_the_estimate_is_close_and_nothing_is_written(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = everything(tmp_path)
    found = estimate(Growing(), raw, tmp_path / "new" / "store", OPTIONS)
    assert everything(tmp_path) == before
    assert len(set(reads(raw))) == SAMPLE
    [split] = found.splits
    assert (split.split, split.scenes, split.shards, split.finished_shards, split.sampled) == ("s", 200, 5, 0, SAMPLE)
    assert split.raw_bytes == sum(path.stat().st_size for path in raw.rglob("*.txt"))
    assert split.skipped == (("s/000.txt", f"s/000.txt: {KILLED}"), ("s/100.txt", "s/100.txt: ValueError: a number is wrong"))
    assert found.seconds > 0.0
    summary = prepare(Growing(), raw, tmp_path / "new" / "store", OPTIONS)
    assert split.store_bytes == found.bytes_to_write == pytest.approx(summary.splits[0].bytes, rel=0.15)


def test_finished_shards_need_no_more_room(raw: Path, tmp_path: Path) -> None:
    prepare(Growing(), raw, tmp_path / "store", replace(OPTIONS, limit=80))
    before = everything(tmp_path)
    found = estimate(Growing(), raw, tmp_path / "store", OPTIONS)
    assert everything(tmp_path) == before
    [split] = found.splits
    assert (split.shards, split.finished_shards, split.scenes_to_read) == (5, 2, 120)
    assert split.bytes_to_write == pytest.approx(0.6 * split.store_bytes, abs=2)
    again = estimate(Growing(), raw, tmp_path / "store", replace(OPTIONS, retry_skipped=True))
    assert again.splits[0].finished_shards == 1, "the first one lists an input that kills its process"


def test_the_complete_data_set_is_foretold(raw: Path, tmp_path: Path) -> None:
    found = estimate(Growing(), raw, tmp_path / "store", replace(OPTIONS, shard_size=20))
    [split] = found.splits
    assert found.published is not None
    scenes, size, seconds = found.published
    assert scenes == 1500
    assert size == pytest.approx(split.store_bytes * 1500 / 200, rel=0.01)
    assert seconds == pytest.approx(found.seconds * 1500 / 200)
    assert estimate(Odd(), raw, tmp_path / "store", OPTIONS).published is None


def test_what_the_command_says(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**6, 0, 10**5))
    data.preprocess_dry_run(Growing(), raw, tmp_path / "store", shard_size=40)
    out = capsys.readouterr().out
    assert "s: 200 scenes, 801 B raw; 0 of 5 shards finished\n" in out
    assert f"2 of {SAMPLE} sampled scenes skipped\n    would skip s/000.txt: s/000.txt: killed its process" in out
    assert "100 kB free there: WARNING: " in out
    assert " will not fit\n" in out
    assert "the complete published odd: 1,500 scenes, about " in out
    assert out.endswith("dry run: nothing was written\n")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, store = fixtures.argoverse1_folder(tmp_path / "raw", sequences=3), tmp_path / "store"
    (raw / "train" / "data" / "2.csv").write_text("broken\n")
    words = ["preprocess", "argoverse1", str(raw), str(store), "--shard-size", "1", "--workers", "1"]
    assert main([*words, "--dry-run"]) == 0
    assert "train: 3 scenes" in capsys.readouterr().out
    assert not store.exists()
    assert main(words) == 0
    assert main([*words, "--dry-run", "--retry-skipped"]) == 0
    assert "raw; 2 of 3 shards finished\n" in capsys.readouterr().out
    assert main([*words, "--timeout-s", "0"]) == 1
    assert "timeout_s must be greater than 0" in capsys.readouterr().err


def test_errors_come_as_when_preparing(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(TrajformerError, match="nowhere: no such folder"):
        estimate(Odd(), tmp_path / "nowhere", tmp_path / "store", OPTIONS)


def test_a_split_without_inputs_and_one_without_a_usable_scene(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "value", "value")
    (raw / "empty").mkdir()
    found = estimate(Odd(), raw, tmp_path / "store", OPTIONS)
    assert [(split.split, split.scenes, len(split.skipped)) for split in found.splits] == [("empty", 0, 0), ("s", 2, 2)]


def test_amounts_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 99_400, 99_600, 999_600, 1.44e9, 6e12, 6e16)] == [
        *("0 B", "999 B", "1.0 kB", "99.4 kB", "100 kB", "1.0 MB", "1.4 GB", "6.0 TB", "60000 TB")
    ]
    assert [duration_text(s) for s in (0.2, 59, 119, 5900, 6000, 86_400, 2.6e5)] == [
        *("1 s", "59 s", "2 min", "98 min", "1.7 h", "24.0 h", "3.0 days")
    ]
