"""A dry run estimates the result of preparing and writes nothing."""

import shutil
import tempfile
import time
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.odd_readers import Odd, odd_folder, reads, small_scene

from data_prep.engine.estimate import SAMPLE_SIZE, estimate
from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.engine.tasks import KILLED
from data_prep.reader import Input
from trajformer.cli import preprocess
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import Scene

OPTIONS = PrepareOptions(shard_size=40, workers=2, progress=False)


@dataclass(frozen=True)
class Growing(Odd):
    """Scenes with a size that follows from their names; one more split is published."""

    published: ClassVar[dict[str, int]] = {"s": 1000, "elsewhere": 500}

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Between 2 and 50 agents, if the file does not say otherwise."""
        super().read(item, split, raw)
        return small_scene(item.path.stem, agents=2 + int(item.path.stem) % 49, steps=50)


PARSE_S = 0.02


@cached_by_file(1)
def parse(path: Path) -> None:
    """A file that takes some time to parse."""
    time.sleep(PARSE_S)


@dataclass(frozen=True)
class Recordings(Odd):
    """Files with 20 scenes each."""

    def inputs(self, raw: Path, split: str) -> list[Input]:
        inputs = []
        for item in super().inputs(raw, split):
            for part in range(20):
                inputs.append(Input(item.path, str(part)))
        return inputs

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        parse(item.path)
        return small_scene(f"{item.path.stem}-{item.part}")


def files_in(folder: Path) -> set[str]:
    """Every file and folder in `folder` except the notes of the reader."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {"reads"}


def test_the_estimate_is_close_to_the_prepared_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of 200 inputs kills its process, one is unusable; the estimate writes nothing."""
    words = ["fine"] * 200
    words[0] = "kill"
    words[100] = "value"
    raw = odd_folder(tmp_path / "raw", *words)
    store = tmp_path / "new" / "store"
    (tmp_path / "temporary").mkdir()
    before = files_in(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    estimated = estimate(Growing(), raw, store, OPTIONS)
    assert files_in(tmp_path) == before
    assert len(set(reads(raw))) == SAMPLE_SIZE
    [split] = estimated.splits
    assert (split.split, split.scenes, split.sampled) == ("s", 200, SAMPLE_SIZE)
    assert (split.shards, split.finished_shards) == (5, 0)
    assert split.raw_bytes == sum(path.stat().st_size for path in raw.rglob("*.txt"))
    assert split.skipped == (
        ("s/000.txt", f"s/000.txt: {KILLED}"),
        ("s/100.txt", "s/100.txt: ValueError: a number is wrong"),
    )
    assert estimated.seconds > 0.0
    assert estimated.published is not None
    scenes, size, seconds = estimated.published
    assert scenes == 1500
    assert seconds == pytest.approx(estimated.seconds * 1500 / 200)
    assert size == pytest.approx(split.store_bytes * 1500 / 200, rel=0.01)
    summary = prepare(Growing(), raw, store, OPTIONS)
    assert estimated.bytes_to_write == split.store_bytes
    assert split.store_bytes == pytest.approx(summary.splits[0].bytes, rel=0.15)


def test_the_time_to_parse_a_file_counts_once_for_all_its_scenes(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", *["fine"] * 40)
    estimated = estimate(Recordings(), raw, tmp_path / "store", OPTIONS)
    assert estimated.splits[0].scenes == 800
    assert 40 * PARSE_S <= estimated.seconds < 400 * PARSE_S  # all 800 scenes with parsing: 16 s


def test_finished_shards_are_not_counted(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "value", *["fine"] * 9)
    store = tmp_path / "store"
    options = replace(OPTIONS, shard_size=2)
    prepare(Odd(), raw, store, replace(options, limit=4))
    before = files_in(tmp_path)
    result = estimate(Odd(), raw, store, options)
    assert files_in(tmp_path) == before
    assert result.published is None
    [split] = result.splits
    assert (split.shards, split.finished_shards) == (5, 2)
    assert split.bytes_to_write == pytest.approx(0.6 * split.store_bytes, abs=2)
    again = estimate(Odd(), raw, store, replace(options, retry_skipped=True))
    assert again.splits[0].finished_shards == 1, (
        "the first shard lists an input that cannot be used"
    )


def test_the_command_prints_the_estimate(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**6, 0, 1000))
    raw = odd_folder(tmp_path / "raw", "value", *["fine"] * 24)
    preprocess.print_estimate(Growing(), raw, tmp_path / "store", PrepareOptions(shard_size=5))
    out = capsys.readouterr().out
    assert "s: 25 scenes, 101B raw; 0 of 5 shards finished\n" in out
    assert f"1 of {SAMPLE_SIZE} sampled scenes skipped\n    would skip s/000.txt: " in out
    assert "s/000.txt: s/000.txt: ValueError: a number is wrong" in out
    assert "1.00kB free: WARNING: " in out
    assert " will not fit\n" in out
    assert "the complete published odd: 1,500 scenes, about " in out
    assert out.endswith("dry run: nothing was written\n")
