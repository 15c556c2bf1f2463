"""Preparing needs the memory of one shard, for any number of shards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.odd_readers import Odd, small_scene

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.reader import Input
from trajformer.scenes.scene import Scene

EARLY, LATE = 500, 1500
GROWTH_MB = 30.0  # a scene of this test is 0.1 MB


def resident_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class Endless(Odd):
    """One file with any number of scenes; notes the memory of its process early and late."""

    scenes: int = LATE

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes, in one file."""
        return [Input(raw / split / "all.txt", f"{number:06d}") for number in range(self.scenes)]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """A scene of 50 agents, and an object that only garbage collection of cycles frees."""
        cycle: list[object] = [bytes(range(256)) * 120]
        cycle.append(cycle)
        if int(item.part) in (EARLY, LATE - 1):
            with (raw.parent / "memory").open("a") as file:
                file.write(f"{resident_mb()}\n")
        return small_scene(item.part, agents=50, steps=100)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_scenes(tmp_path: Path) -> None:
    (tmp_path / "raw" / "s").mkdir(parents=True)
    options = PrepareOptions(shard_size=100, progress=False)
    prepare(Endless(EARLY), tmp_path / "raw", tmp_path / "store", options)
    before = resident_mb()
    summary = prepare(Endless(), tmp_path / "raw", tmp_path / "store", options)
    assert (summary.scenes, summary.skipped) == (LATE, [])
    assert resident_mb() - before < GROWTH_MB
    early, late = map(float, (tmp_path / "memory").read_text().split())
    assert late - early < GROWTH_MB
