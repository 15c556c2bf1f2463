"""Inputs are read in alternation, stage by stage, within a time limit.

The result is the same as one by one.
"""

import signal
import time
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fixtures
from support.odd_readers import Odd, odd_folder, small_scene

from data_prep.engine import tasks
from data_prep.engine.limits import Alarm, InputTimeout
from data_prep.engine.tasks import ShardTask, prepare_shard
from data_prep.raw_scenes import scenes_of_raw
from data_prep.reader import Input, Reader, StagedReader
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import SceneError
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import read_shard_info


class Staged(StagedReader, Odd):
    """Reads in three stages and misbehaves in the second."""

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        word = item.path.read_text()
        yield
        while word == "endless":
            time.sleep(0.02)
            yield
        if word == "huge":
            np.float64(1e300) * item.path.stat().st_size * 1e300
        if word == "bad":
            raise SceneError(f"{item.path}: bad")
        yield
        return small_scene(item.path.stem)


def task_of(reader: Reader, raw: Path, split: str = "s", **options: Any) -> ShardTask:
    inputs = tuple(reader.inputs(raw, split))
    return ShardTask(reader, raw, raw.parent / "store", split, 0, inputs, **options)


def test_strict_names_the_first_input_that_cannot_be_used(tmp_path: Path) -> None:
    # The second fails in stage two, the third in stage one.
    raw = odd_folder(tmp_path / "raw", "fine", "bad", "fine")
    (raw / "s" / "002.txt").unlink()
    (raw / "s" / "002.txt").mkdir()
    with pytest.raises(SceneError, match=r"001\.txt: bad"):
        prepare_shard(task_of(Staged(), raw, strict=True))


def test_the_bytes_are_the_same_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    reader = Argoverse2()
    for number in range(5):
        fixtures.write_argoverse2(raw, uuid=f"u-{number}")
    damaged = reader.inputs(raw, "val")[1].path
    damaged.write_bytes(damaged.read_bytes()[:300])
    task = task_of(reader, raw, "val")
    prepare_shard(task)
    in_alternation = task.path.read_bytes()
    monkeypatch.setattr(tasks, "GROUP_SIZE", 1)
    prepare_shard(task)
    assert task.path.read_bytes() == in_alternation
    info, count = read_shard_info(task.path)
    assert (count, len(info.skipped)) == (4, 1)


def test_numbers_that_overflow_are_left_to_the_checks_of_the_reader(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "huge")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        prepare_shard(task_of(Staged(), raw, strict=True))
        assert len(scenes_of_raw(Staged(), raw, "s")[0].agent_id) == 2


def test_the_limit_is_for_the_sum_of_all_stages(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "endless", "fine")  # an endless number of stages
    task = task_of(Staged(), raw, timeout_s=1.0)
    assert prepare_shard(task).seconds[1] >= 1.0
    info, count = read_shard_info(task.path)
    assert (count, info.skipped) == (2, (("s/001.txt", "s/001.txt: took longer than 1 s"),))


def test_an_alarm_starts_many_times_and_the_previous_handler_and_timer_are_restored() -> None:
    expired: list[object] = []
    before = signal.signal(signal.SIGALRM, expired.append)
    signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        with Alarm() as alarm:
            for _ in range(2):
                with pytest.raises(InputTimeout):
                    alarm.start(0.05)
                    time.sleep(600)
                alarm.start(60.0)
                alarm.stop()
                assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        with pytest.raises(KeyError), Alarm() as alarm:
            alarm.start(60.0)
            raise KeyError
        assert signal.getsignal(signal.SIGALRM) == expired.append
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_there_is_no_limit_outside_the_main_thread() -> None:
    def work() -> bool:
        with Alarm() as alarm:
            alarm.start(0.01)
            time.sleep(0.05)
            return True

    with ThreadPoolExecutor() as threads:
        assert threads.submit(work).result()
