"""Inputs are read side by side, stage by stage; what is found is what one after the other would find."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import fixtures
from support.odd_readers import Odd, odd_folder, small_scene

from data_prep.engine import reading, tasks
from data_prep.engine.overtime import Alarm, Overtime
from data_prep.engine.tasks import ShardTask, prepare_shard
from data_prep.reader import Input, Reader, Stages, finish
from data_prep.readers.argoverse1 import Argoverse1
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import SceneError
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import read_shard_info


@dataclass(frozen=True)
class Staged(Odd):
    """Misbehaves in its second of three stages, and remembers who went through which."""

    name: ClassVar[str] = "staged"
    order: list[str] = field(default_factory=list, repr=False)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """All stages."""
        return finish(self.stages(item, split, raw))

    def stages(self, item: Input, split: str, raw: Path) -> Stages:
        """One, two, three."""
        name, word = item.path.stem, item.path.read_text()
        self.order.append(f"{name} one")
        yield
        self.order.append(f"{name} two")
        if word == "large":
            time.sleep(2 * reading.LARGE_S)
        if word == "long":
            time.sleep(0.3)
        if word == "bad":
            raise SceneError(f"{item.path}: bad")
        yield
        self.order.append(f"{name} three")
        if word == "long":
            time.sleep(0.3)
        return small_scene(name)


def task_of(reader: Reader, raw: Path, split: str = "s", **options: Any) -> ShardTask:
    """All of a split as one shard."""
    return ShardTask(reader, raw, raw.parent / "store", split, 0, tuple(reader.inputs(raw, split)), **options)


def test_all_inputs_go_through_a_stage_before_any_begins_the_next(tmp_path: Path) -> None:
    reader, told = Staged(), []
    raw = odd_folder(tmp_path / "raw", "fine", "bad", "fine")
    result = prepare_shard(task_of(reader, raw), told.append)
    names = [f"{i:03d}" for i in range(3)]
    assert reader.order == [f"{n} one" for n in names] + [f"{n} two" for n in names] + ["000 three", "002 three"]
    assert told[:6] == [0, 1, 2] * 2
    assert told[-1] == 3
    assert len(result.seconds) == 3
    assert read_shard_info(task_of(reader, raw).path)[0].skipped == (("s/001.txt", "s/001.txt: bad"),)


def test_no_more_than_so_many_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SIDE_BY_SIDE", 2)
    reader = Staged()
    prepare_shard(task_of(reader, odd_folder(tmp_path / "raw", *["fine"] * 3)))
    assert reader.order[4:] == ["000 three", "001 three", "002 one", "002 two", "002 three"]


def test_a_large_input_is_finished_at_once(tmp_path: Path) -> None:
    reader = Staged()
    prepare_shard(task_of(reader, odd_folder(tmp_path / "raw", "fine", "large", "fine")))
    assert reader.order[3:] == ["000 two", "001 two", "001 three", "002 two", "000 three", "002 three"]


def test_the_time_of_all_stages_counts(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "long", "fine")
    result = prepare_shard(task := task_of(Staged(), raw, timeout_s=0.45))
    info, count = read_shard_info(task.path)
    assert (count, info.skipped) == (2, (("s/001.txt", "s/001.txt: took longer than 0.45 s"),))
    assert 0.4 < result.seconds[1] < 2.0
    assert max(result.seconds[0], result.seconds[2]) < 0.3


def test_strict_names_the_first_input_that_cannot_be_used(tmp_path: Path) -> None:
    words = ("fine", "bad", "value")  # the second fails in its second stage, the third as soon as it is opened
    raw = odd_folder(tmp_path / "raw", *words)
    (raw / "s" / "002.txt").unlink()
    (raw / "s" / "002.txt").mkdir()
    with pytest.raises(SceneError, match=r"001\.txt: bad"):
        prepare_shard(task_of(Staged(), raw, strict=True))


@pytest.mark.parametrize("name", ["argoverse1", "argoverse2"])
def test_the_shard_is_that_of_reading_one_after_the_other(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, split, reader = tmp_path / "raw", "val", Argoverse2() if name == "argoverse2" else Argoverse1()
    if name == "argoverse1":
        fixtures.argoverse1_folder(raw, sequences=5, splits=(split,))
    else:
        for number in range(5):
            fixtures.write_argoverse2(raw, uuid=f"u-{number}")
    item = reader.inputs(raw, split)[1]
    item.path.write_bytes(item.path.read_bytes()[:300])
    prepare_shard(task := task_of(reader, raw, split))
    together = task.path.read_bytes()
    monkeypatch.setattr(tasks, "SIDE_BY_SIDE", 1)
    prepare_shard(task)
    assert task.path.read_bytes() == together
    info, count = read_shard_info(task.path)
    assert (count, len(info.skipped)) == (4, 1)


def test_an_alarm_is_started_and_stopped_many_times() -> None:
    def work() -> Generator[None, None, None]:
        with Alarm() as alarm:
            for seconds in (0.05, 10.0, 0.05):
                try:
                    alarm.start(seconds)
                    time.sleep(0.0 if seconds > 1 else 5.0)
                    yield
                except Overtime:
                    pass
                finally:
                    alarm.stop()
                time.sleep(0.1)  # nothing goes off here

    before, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    assert len(list(work())) == 1
    assert time.monotonic() - began < 4
    assert signal.getsignal(signal.SIGALRM) is before
