"""No input can end a run: inputs that fail, hang or kill their process are skipped and listed.

Preparing needs the memory of one shard.
"""

import mmap
import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.hostile import memory_mb
from support.odd_readers import Odd, Unreadable, odd_folder, reads, small_scene
from support.prepared import content

from data_prep.engine import tasks
from data_prep.engine.limits import MEMORY_GB, memory_limit
from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.engine.tasks import KILLED, ShardTask, prepare_shard
from data_prep.reader import Input
from data_prep.readers.columns import check_count
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.files import read_file
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, read_shard_info, write_shard
from trajformer.scenes.store import SceneStore

SMALL = PrepareOptions(shard_size=3, progress=False)


def test_every_failure_is_listed_with_its_type(tmp_path: Path) -> None:
    errors = ("agent", "os", "bug", "memory", "recursion", "arrow", "nothing", "text", "long")
    words = ("value", "fine", *errors, "fine")
    raw = odd_folder(tmp_path / "raw", *words)
    summary = prepare(Odd(), raw, tmp_path / "store", replace(SMALL, shard_size=50))
    assert summary.scenes == 2
    skipped = dict(summary.skipped)
    assert list(skipped) == [f"s/{i:03d}.txt" for i, word in enumerate(words) if word != "fine"]
    reasons = {}
    for name, reason in skipped.items():
        word = words[int(Path(name).stem)]
        reasons[word] = reason
    assert reasons["value"] == "s/000.txt: ValueError: a number is wrong"
    assert "scene 002: agent_id: " in reasons["agent"]
    assert reasons["os"].startswith("s/003.txt: NotADirectoryError: ")
    types = {
        "bug": "ZeroDivisionError",
        "memory": "MemoryError",
        "recursion": "RecursionError",
        "arrow": "ArrowInvalid",
        "nothing": "AttributeError",
    }
    for word, name in types.items():
        assert f".txt: {name}" in reasons[word]
    assert len(reasons["long"]) < 600
    assert not any("\n" in reason for reason in reasons.values())


def test_a_file_name_that_is_not_text_is_listed(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "value")
    (raw / "s" / "001.txt").rename(raw / "s" / "\udcff.txt")
    for _ in range(2):
        summary = prepare(Odd(), raw, tmp_path / "store", SMALL)
        reason = "the name of the file is not UTF-8: rename it"
        assert summary.skipped == [("s/\\udcff.txt", reason)]
    assert summary.splits[0].kept_shards == 1


def test_a_scene_that_cannot_be_stored_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_if_near(path: Path, scenes: list, info: ShardInfo) -> None:
        if any(scene["scene_id"] == "001" for scene in scenes):
            raise OverflowError("too far")
        write_shard(path, scenes, info)

    raw = odd_folder(tmp_path / "raw", "fine", "fine", "value", "fine")
    task = ShardTask(Odd(), raw, tmp_path / "store", "s", 0, tuple(Odd().inputs(raw, "s")))
    monkeypatch.setattr(tasks, "write_shard", write_if_near)
    prepare_shard(task)
    info, count = read_shard_info(task.path)
    assert count == 2
    assert [name for name, _ in info.skipped] == ["s/001.txt", "s/002.txt"]
    assert task.is_finished()
    (raw / "s" / "002.txt").write_text("fine")
    with pytest.raises(SceneError, match=r"001\.txt: cannot be stored: OverflowError: too far"):
        prepare_shard(replace(task, strict=True))
    monkeypatch.setattr(tasks, "write_shard", lambda path, scenes, info: 1 / (len(scenes) < 2))
    message = r"00000\.arrow: cannot be written: ZeroDivisionError"
    with pytest.raises(TrajformerError, match=message):
        prepare_shard(task)
    names = [path.name for path in task.path.parent.iterdir()]
    assert names == ["00000.arrow"], "no temporary file"


def test_inputs_that_kill_their_process_are_listed(tmp_path: Path) -> None:
    words = ("fine", "kill", "leave", "once", "fine")
    for workers in (1, 2):
        raw = odd_folder(tmp_path / f"{workers}" / "raw", *words)
        store = tmp_path / f"store{workers}"
        summary = prepare(Odd(), raw, store, replace(SMALL, workers=workers))
        names = ["s/001.txt", "s/002.txt"]
        assert summary.skipped == [(name, f"{name}: {KILLED}") for name in names]
        assert SceneStore(store, "s").scene_ids() == ["000", "003", "004"]
        attempts = [reads(raw).count(name) for name in ("001", "002", "003")]
        assert attempts == [2, 2, 2]
    assert content(tmp_path / "store1") == content(tmp_path / "store2")
    with pytest.raises(SceneError, match=r"001\.txt: killed its process"):
        prepare(Odd(), raw, tmp_path / "strict", replace(SMALL, strict=True))


def test_a_process_that_dies_without_an_input_is_an_error(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine")
    message = r"00000\.arrow: the process that makes it is killed \(out of memory\?\)"
    with pytest.raises(TrajformerError, match=message):
        prepare(Unreadable(), raw, tmp_path / "store", SMALL)
    assert content(tmp_path / "store") == {}


def test_inputs_that_take_too_long_are_listed(tmp_path: Path) -> None:
    # "slow" and "deaf" take ten minutes.
    raw = odd_folder(tmp_path / "raw", "fine", "slow", "fine", "deaf", "fine")
    summary = prepare(Odd(), raw, tmp_path / "store", replace(SMALL, workers=2, timeout_s=2.0))
    names = ["s/001.txt", "s/003.txt"]
    assert summary.skipped == [(name, f"{name}: took longer than 2 s") for name in names]
    assert summary.scenes == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")
def test_inputs_that_need_too_much_memory_are_listed(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "gigabyte", "fine")
    reason = "MemoryError: more than 0.5 GB are needed (--memory-gb), or no memory is left"
    low = prepare(Odd(), raw, tmp_path / "low", replace(SMALL, memory_gb=0.5))
    assert low.skipped == [("s/001.txt", f"s/001.txt: {reason}")]
    high = prepare(Odd(), raw, tmp_path / "high", replace(SMALL, memory_gb=2.0))
    assert high.skipped == []
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(OSError, match="memory"), memory_limit(0.5):
        # An array could get memory that this process has and does not use.
        mmap.mmap(-1, 1_000_000_000)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_more_memory_raises_the_limits_of_sizes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1" * 30)
    with memory_limit(5 * MEMORY_GB):
        assert read_file(path, 10) == b"1" * 30
        check_count(30, 10, "rows", path)
    with memory_limit(MEMORY_GB / 2), pytest.raises(OSError, match="30 bytes, expected at most 10"):
        read_file(path, 10)


EARLY = 150  # scenes
LATE = 550
GROWTH_MB = 30.0  # a scene of this test is 0.1 MB


@dataclass(frozen=True)
class Endless(Odd):
    """One file with any number of scenes; notes the memory of its process early and late."""

    scenes: int = LATE

    def inputs(self, raw: Path, split: str) -> list[Input]:
        return [Input(raw / split / "all.txt", f"{number:06d}") for number in range(self.scenes)]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """A scene of 50 agents, and an object that only garbage collection of cycles frees."""
        cycle: list[object] = [bytes(range(256)) * 120]
        cycle.append(cycle)
        if int(item.part) in (EARLY, LATE - 1):
            with (raw.parent / "memory").open("a") as file:
                file.write(f"{memory_mb('VmRSS')}\n")
        return small_scene(item.part, agents=50, steps=100)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_scenes(tmp_path: Path) -> None:
    (tmp_path / "raw" / "s").mkdir(parents=True)
    options = PrepareOptions(shard_size=100, progress=False)
    prepare(Endless(EARLY), tmp_path / "raw", tmp_path / "store", options)
    before = memory_mb("VmRSS")
    options = replace(options, overwrite=True)
    summary = prepare(Endless(), tmp_path / "raw", tmp_path / "store", options)
    assert (summary.scenes, summary.skipped) == (LATE, [])
    assert memory_mb("VmRSS") - before < GROWTH_MB
    early, late = map(float, (tmp_path / "memory").read_text().split())
    assert late - early < GROWTH_MB
