"""What preparing would do and how large the store gets, from a sample of every split; nothing is written to the store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.engine.plan import PrepareOptions, plan
from data_prep.engine.runners import Crew
from data_prep.engine.tasks import ShardResult, ShardTask
from data_prep.reader import Input, Reader
from trajformer.scenes.shard import ShardInfo, read_shard_info, write_shard

SAMPLE = 20  # inputs of each split, all read twice: the first time fills caches (libraries, maps of a city)


@dataclass(frozen=True)
class SplitEstimate:
    """One split; `skipped` holds (input, reason) of the sample."""

    split: str
    scenes: int
    raw_bytes: int
    shards: int
    finished_shards: int
    scenes_to_read: int
    store_bytes: int  # of the whole split
    bytes_to_write: int
    seconds: float  # of one process, for the scenes to read
    sampled: int
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Estimate:
    """All splits, the room there is, and the complete published data set: (scenes, bytes, seconds of one process)."""

    splits: tuple[SplitEstimate, ...]
    free_bytes: int
    published: tuple[int, int, float] | None

    @property
    def bytes_to_write(self) -> int:
        """Of all splits."""
        return sum(split.bytes_to_write for split in self.splits)

    @property
    def seconds(self) -> float:
        """Of one process, for all splits."""
        return sum(split.seconds for split in self.splits)


@dataclass(frozen=True)
class _Cost:
    """What one scene costs, and a shard without scenes."""

    scene_bytes: float
    scene_seconds: float
    shard_bytes: int

    def store_bytes(self, scenes: int, shards: int) -> int:
        return round(scenes * self.scene_bytes + shards * self.shard_bytes)


class _Results:
    """A `runners.Report` that keeps what was found."""

    def __init__(self) -> None:
        self.by_split: dict[str, ShardResult] = {}

    def reading(self, inputs: int) -> None:
        """Nobody waits long."""

    def finished(self, task: ShardTask, result: ShardResult) -> None:
        """Keep it."""
        self.by_split[task.split] = result


def estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> Estimate:
    """Plan a run of `prepare` with the same arguments, and make a small shard of every split in a temporary folder.

    Raises:
        TrajformerError: as `prepare` before it begins.
    """
    raw, store = Path(raw), Path(store)
    splits = plan(reader, raw, store, options)
    with tempfile.TemporaryDirectory(prefix="trajformer-") as folder:
        room = Path(folder)
        samples = [
            replace(tasks[0], store=room, strict=False, inputs=_spread([item for task in tasks for item in task.inputs]) * 2)
            for tasks in splits.values()
        ]
        results = _Results()
        with Crew(options.workers) as crew:
            crew.make(samples, results)
        write_shard(room / "empty.arrow", [], ShardInfo(reader.name, ""))
        empty = (room / "empty.arrow").stat().st_size
        costs = {split: _cost(result, empty) for split, result in results.by_split.items()}
        skipped = {sample.split: tuple(dict.fromkeys(read_shard_info(sample.path)[0].skipped)) for sample in samples}
    found = []
    for (split, tasks), sample in zip(splits.items(), samples, strict=True):
        todo = [task for task in tasks if not task.finished(options.retry_skipped)]
        count, left = (sum(len(task.inputs) for task in part) for part in (tasks, todo))
        cost = costs[split]
        sizes = cost.store_bytes(count, len(tasks)), cost.store_bytes(left, len(todo))
        counts = count, _raw_bytes(raw, split, tasks), len(tasks), len(tasks) - len(todo), left
        found.append(SplitEstimate(split, *counts, *sizes, left * cost.scene_seconds, len(sample.inputs) // 2, skipped[split]))
    return Estimate(tuple(found), _free(store), _published(reader, costs, options))


def _spread(inputs: Sequence[Input]) -> tuple[Input, ...]:
    count = min(SAMPLE, len(inputs))
    return tuple(inputs[i * len(inputs) // count] for i in range(count))


def _cost(result: ShardResult, empty: int) -> _Cost:
    count = result.inputs // 2
    seconds = sum(result.seconds[count:]) / max(count, 1)
    return _Cost((result.bytes - empty) / max(result.inputs, 1), seconds, empty)


def _raw_bytes(raw: Path, split: str, tasks: Sequence[ShardTask]) -> int:
    """Size of the split's folder, or of the listed files where a split is no folder."""
    folder = raw / split
    if folder.is_dir():
        files = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    else:
        files = (path for path in {str(item.path) for task in tasks for item in task.inputs})
    return sum(os.path.getsize(path) for path in files if os.path.isfile(path))


def _free(store: Path) -> int:
    place = Path(os.path.abspath(store))
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _published(reader: Reader, costs: dict[str, _Cost], options: PrepareOptions) -> tuple[int, int, float] | None:
    """The complete data set, at the cost of the sampled splits or, for another split, at their mean."""
    if not reader.published:
        return None
    scene_bytes = sum(cost.scene_bytes for cost in costs.values()) / len(costs)
    scene_seconds = sum(cost.scene_seconds for cost in costs.values()) / len(costs)
    mean = _Cost(scene_bytes, scene_seconds, next(iter(costs.values())).shard_bytes)
    size, seconds = 0, 0.0
    for split, scenes in reader.published.items():
        cost = costs.get(split, mean)
        size += cost.store_bytes(scenes, -(-scenes // options.shard_size))
        seconds += scenes * cost.scene_seconds
    return sum(reader.published.values()), size, seconds
