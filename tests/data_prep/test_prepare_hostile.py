"""Whatever one input does, the run goes on: failures of every kind, inputs that hang or kill their process, odd folders."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support import fixtures
from support.odd_readers import Odd, Unreadable, odd_folder, reads, small_scene

from data_prep.engine import tasks
from data_prep.engine.overtime import Overtime, time_bound
from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.engine.tasks import KILLED, ShardTask, prepare_shard
from data_prep.reader import Input
from data_prep.readers.argoverse1 import Argoverse1
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.manifest import read_manifest
from trajformer.scenes.shard import ShardInfo, read_shard_info, write_shard
from trajformer.scenes.store import SceneStore

SMALL = PrepareOptions(shard_size=3, progress=False)


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


# ---- failures ------------------------------------------------------------------------------------------------------


def test_every_failure_is_listed_with_its_type(tmp_path: Path) -> None:
    words = ("value", "fine", "agent", "os", "bug", "memory", "recursion", "arrow", "nothing", "text", "long", "fine")
    raw = odd_folder(tmp_path / "raw", *words)
    summary = prepare(Odd(), raw, tmp_path / "store", replace(SMALL, shard_size=50))
    assert summary.scenes == 2
    skipped = dict(summary.skipped)
    assert list(skipped) == [f"s/{i:03d}.txt" for i, word in enumerate(words) if word != "fine"]
    reasons = {words[int(Path(name).stem)]: reason for name, reason in skipped.items()}
    assert reasons["value"] == "s/000.txt: ValueError: a number is wrong"
    assert "scene 002: agent_id: " in reasons["agent"]
    assert reasons["os"].startswith("s/003.txt: NotADirectoryError: ")
    types = {"bug": "ZeroDivisionError", "memory": "MemoryError", "recursion": "RecursionError", "arrow": "ArrowInvalid"}
    for word, name in (types | {"nothing": "AttributeError"}).items():
        assert f".txt: {name}" in reasons[word]
    assert len(reasons["long"]) < 600
    assert not any("\n" in reason for reason in reasons.values())


def test_a_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "value")
    (raw / "s" / "001.txt").rename(raw / "s" / "\udcff.txt")
    for _ in range(2):
        summary = prepare(Odd(), raw, tmp_path / "store", SMALL)
        assert summary.skipped == [("s/\\udcff.txt", "s/\\udcff.txt: ValueError: a number is wrong")]
    assert summary.splits[0].kept_shards == 1


def test_a_scene_that_cannot_be_stored_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(path: Path, scenes: list, info: ShardInfo) -> None:
        if any(scene["scene_id"] == "001" for scene in scenes):
            raise OverflowError("too far")
        write_shard(path, scenes, info)

    raw = odd_folder(tmp_path / "raw", "fine", "fine", "value", "fine")
    task = ShardTask(Odd(), raw, tmp_path / "store", "s", 0, tuple(Odd().inputs(raw, "s")))
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_shard", picky)
        prepare_shard(task)
        with pytest.raises(SceneError, match=r"001\.txt: cannot be stored: OverflowError: too far"):
            (raw / "s" / "002.txt").write_text("fine")
            prepare_shard(replace(task, strict=True))
        patch.setattr(tasks, "write_shard", lambda path, scenes, info: 1 / (len(scenes) < 2))
        with pytest.raises(TrajformerError, match=r"00000\.arrow: cannot be written: ZeroDivisionError"):
            prepare_shard(task)
    assert [path.name for path in (tmp_path / "store" / "s").iterdir()] == ["00000.arrow"]
    info, count = read_shard_info(task.path)
    assert (count, [name for name, _ in info.skipped]) == (2, ["s/001.txt", "s/002.txt"])
    assert task.finished()


def test_skipped_inputs_are_tried_again_on_request(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "fine", "fine", "value", "fine")
    prepare(Odd(), raw, tmp_path / "store", SMALL)
    (raw / "s" / "003.txt").write_text("fine")
    assert len(prepare(Odd(), raw, tmp_path / "store", SMALL).skipped) == 1
    summary = prepare(Odd(), raw, tmp_path / "store", replace(SMALL, retry_skipped=True))
    assert (summary.skipped, summary.scenes, summary.splits[0].kept_shards) == ([], 5, 1)


# ---- inputs that change under the run ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vanishing1(Argoverse1):
    """After the listing, one file is gone and another is a folder."""

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """List, then change."""
        items = super().inputs(raw, split)
        for item in items[1:3]:
            item.path.unlink()
        items[2].path.mkdir()
        return items


@dataclass(frozen=True)
class Vanishing2(Argoverse2):
    """After the listing, one folder is gone, one map is gone, and one file is cut short."""

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """List, then change."""
        items = super().inputs(raw, split)
        shutil.rmtree(items[0].path.parent)
        next(items[1].path.parent.glob("*.json")).unlink()
        items[2].path.write_bytes(items[2].path.read_bytes()[:200])
        return items


def test_inputs_that_vanish_or_change_are_listed(tmp_path: Path) -> None:
    raw = fixtures.argoverse1_folder(tmp_path / "one", sequences=4, splits=("train",))
    summary = prepare(Vanishing1(), raw, tmp_path / "store1", SMALL)
    assert (summary.scenes, [name for name, _ in summary.skipped]) == (2, ["train/data/2.csv", "train/data/3.csv"])
    for number in range(4):
        fixtures.write_argoverse2(tmp_path / "two", uuid=f"u-{number}")
    summary = prepare(Vanishing2(), tmp_path / "two", tmp_path / "store2", SMALL)
    assert (summary.scenes, len(summary.skipped)) == (1, 3)
    assert all(reason.startswith("val/u-") for _, reason in summary.skipped)


# ---- inputs that kill or hang their process ------------------------------------------------------------------------


def test_inputs_that_kill_their_process_are_listed(tmp_path: Path) -> None:
    words = ("fine", "kill", "fine", "exit", "abort", "leave", "once", "fine")
    for workers in (1, 2):
        raw = odd_folder(tmp_path / f"{workers}" / "raw", *words)
        summary = prepare(Odd(), raw, tmp_path / f"store{workers}", replace(SMALL, workers=workers))
        names = [f"s/{i:03d}.txt" for i in (1, 3, 4, 5)]
        assert summary.skipped == [(name, f"{name}: {KILLED}") for name in names]
        assert SceneStore(tmp_path / f"store{workers}", "s").scene_ids() == ["000", "002", "006", "007"]
        counts = [reads(raw).count(f"{i:03d}") for i in (1, 3, 4, 5)]
        assert counts == [2, 2, 2, 2], "a second chance, then never again"
    assert content(tmp_path / "store1") == content(tmp_path / "store2")


def test_a_killing_input_is_an_error_in_strict_mode(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "fine", "fine", "kill", "fine")
    with pytest.raises(SceneError, match=r"003\.txt: killed its process"):
        prepare(Odd(), raw, tmp_path / "store", replace(SMALL, strict=True))
    assert [path.name for path in (tmp_path / "store" / "s").iterdir()] == ["00000.arrow"]


def test_processes_that_die_for_no_input_are_an_error(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine")
    with pytest.raises(TrajformerError, match=r"00000\.arrow: the process that makes it is killed \(out of memory\?\)"):
        prepare(Unreadable(), raw, tmp_path / "store", SMALL)
    assert list((tmp_path / "store" / "s").iterdir()) == []


def test_inputs_that_take_too_long_are_listed(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "slow", "fine", "deaf", "fine")
    began = time.monotonic()
    summary = prepare(Odd(), raw, tmp_path / "store", replace(SMALL, workers=2, timeout_s=0.4))
    assert summary.skipped == [(n, f"{n}: took longer than 0.4 s") for n in ("s/001.txt", "s/003.txt")]
    assert summary.scenes == 3
    assert time.monotonic() - began < 60, "neither was waited for"


def test_the_alarm_is_put_back() -> None:
    def other(*_: object) -> None:
        raise AssertionError("not yet")

    before = signal.signal(signal.SIGALRM, other)
    try:
        signal.setitimer(signal.ITIMER_REAL, 500)
        with pytest.raises(Overtime), time_bound(0.05):
            time.sleep(10)
        with time_bound(0.05):
            pass
        assert signal.getsignal(signal.SIGALRM) is other
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 400
        with time_bound(0.05), pytest.raises(KeyError):
            raise KeyError
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_there_is_no_bound_outside_the_main_thread() -> None:
    done = []

    def work() -> None:
        with time_bound(0.01):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


# ---- folders -------------------------------------------------------------------------------------------------------


def test_places_that_make_no_sense(tmp_path: Path) -> None:
    raw, file = odd_folder(tmp_path / "raw", "fine"), tmp_path / "file"
    file.write_text("")
    for store, message in (
        (raw, "must lie outside of the raw folder"),
        (raw / "s" / ".." / "store", "must lie outside of the raw folder"),
        (file, "file: the store cannot be written: a file of that name exists"),
    ):
        with pytest.raises(TrajformerError, match=message):
            prepare(Odd(), raw, store, SMALL)
    with pytest.raises(TrajformerError, match="file: not a folder"):
        prepare(Odd(), file, tmp_path / "store", SMALL)
    for options, message in (({"timeout_s": 0.0}, "timeout_s"), ({"ray_address": "a:1"}, "for the executor ray")):
        with pytest.raises(TrajformerError, match=message):
            prepare(Odd(), raw, tmp_path / "store", replace(SMALL, **options))
    assert not (tmp_path / "store").exists()
    assert sorted(path.name for path in raw.rglob("*")) == ["000.txt", "s"]


def test_an_unchanged_store_keeps_its_manifest(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "fine", "value", "fine")
    first = prepare(Odd(), raw, tmp_path / "store", SMALL)
    manifest = tmp_path / "store" / "manifest.json"
    inode, told = manifest.stat().st_ino, read_manifest(tmp_path / "store")
    again = prepare(Odd(), raw, tmp_path / "store", SMALL)
    assert (manifest.stat().st_ino, again.skipped) == (inode, first.skipped)
    write_shard(tmp_path / "store" / "other" / "00000.arrow", [small_scene("x")], ShardInfo("odd", "other"))
    prepare(Odd(), raw, tmp_path / "store", SMALL)
    assert read_manifest(tmp_path / "store")["splits"].keys() == {"other", "s"}
    manifest.write_text('{"splits": []}')
    prepare(Odd(), raw, tmp_path / "store", replace(SMALL, splits=("s",)))
    assert read_manifest(tmp_path / "store")["splits"]["s"] == told["splits"]["s"]
