"""Estimates size and duration of a run of `prepare` from a sample of each split; writes nothing to the store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from data_prep.engine.plan import PrepareOptions, plan
from data_prep.engine.runners import WorkerPool
from data_prep.engine.tasks import ShardResult, ShardTask
from data_prep.reader import Reader
from trajformer.scenes.shard import ShardInfo, read_shard_info, write_shard

SAMPLE_SIZE = 20  # inputs of each split, all read twice: the first time fills caches (libraries, maps of a city)


@dataclass(frozen=True)
class SplitEstimate:
    """One split."""

    split: str
    scenes: int
    raw_bytes: int
    shards: int
    finished_shards: int
    scenes_to_read: int
    store_bytes: int  # of the whole split
    bytes_to_write: int
    seconds: float  # of one process, for the scenes to read
    sampled: int  # inputs in the sample
    skipped: tuple[tuple[str, str], ...]  # (input, reason) in the sample


@dataclass(frozen=True)
class Estimate:
    """All splits."""

    splits: tuple[SplitEstimate, ...]
    free_bytes: int
    published: tuple[int, int, float] | None  # the complete data set: scenes, bytes, seconds of one process

    @property
    def bytes_to_write(self) -> int:
        """Sum over all splits."""
        return sum(split.bytes_to_write for split in self.splits)

    @property
    def seconds(self) -> float:
        """Seconds of one process for all splits."""
        return sum(split.seconds for split in self.splits)


class _Cost(NamedTuple):
    """Bytes and seconds of one scene, and bytes of a shard without scenes."""

    scene_bytes: float
    scene_seconds: float
    shard_bytes: int

    def store_bytes(self, scenes: int, shards: int) -> int:
        return round(scenes * self.scene_bytes + shards * self.shard_bytes)


def estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> Estimate:
    """Plan a run of `prepare` with the same arguments and make a small shard of each split in a temporary folder.

    Raises:
        TrajformerError: for the same arguments as `prepare`.
    """
    raw, store = Path(raw), Path(store)
    splits = plan(reader, raw, store, options)
    with tempfile.TemporaryDirectory(prefix="trajformer-") as name, WorkerPool(options.workers) as pool:
        folder = Path(name)
        samples = [_sample(tasks, folder) for tasks in splits.values()]
        empty = folder / "empty.arrow"
        write_shard(empty, [], ShardInfo(reader.name, ""))
        costs = {task.split: _cost(result, empty.stat().st_size) for task, result in pool.run(samples)}
        skipped = {sample.split: tuple(dict.fromkeys(read_shard_info(sample.path)[0].skipped)) for sample in samples}
    estimates = []
    for (split, tasks), sample in zip(splits.items(), samples, strict=True):
        pending = [task for task in tasks if not task.is_finished(options.retry_skipped)]
        scenes, scenes_to_read = (sum(len(task.inputs) for task in part) for part in (tasks, pending))
        estimates.append(
            SplitEstimate(
                split=split,
                scenes=scenes,
                raw_bytes=_raw_bytes(raw, split, tasks),
                shards=len(tasks),
                finished_shards=len(tasks) - len(pending),
                scenes_to_read=scenes_to_read,
                store_bytes=costs[split].store_bytes(scenes, len(tasks)),
                bytes_to_write=costs[split].store_bytes(scenes_to_read, len(pending)),
                seconds=scenes_to_read * costs[split].scene_seconds,
                sampled=len(sample.inputs) // 2,
                skipped=skipped[split],
            )
        )
    store = Path(os.path.abspath(store))
    existing = next(folder for folder in (store, *store.parents) if folder.exists())
    return Estimate(tuple(estimates), shutil.disk_usage(existing).free, _published(reader, costs, options))


def _sample(tasks: Sequence[ShardTask], folder: Path) -> ShardTask:
    """A shard of inputs from the whole split, each twice."""
    inputs = [item for task in tasks for item in task.inputs]
    count = min(SAMPLE_SIZE, len(inputs))
    chosen = tuple(inputs[i * len(inputs) // count] for i in range(count))
    return replace(tasks[0], store=folder, strict=False, inputs=chosen * 2)


def _cost(result: ShardResult, empty_bytes: int) -> _Cost:
    inputs = max(len(result.seconds), 1)
    second_time = result.seconds[inputs // 2 :]
    return _Cost((result.bytes - empty_bytes) / inputs, sum(second_time) / max(len(second_time), 1), empty_bytes)


def _raw_bytes(raw: Path, split: str, tasks: Sequence[ShardTask]) -> int:
    """Size of the split's folder, or of the listed files if a split is not a folder."""
    folder = raw / split
    if folder.is_dir():
        files = {os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names}
    else:
        files = {str(item.path) for task in tasks for item in task.inputs}
    return sum(os.path.getsize(path) for path in files if os.path.isfile(path))


def _published(reader: Reader, costs: dict[str, _Cost], options: PrepareOptions) -> tuple[int, int, float] | None:
    """Scenes, bytes and seconds of the complete data set; splits that are missing here get the mean cost."""
    if not reader.published:
        return None
    known = list(costs.values())
    scene_bytes, scene_seconds = (sum(values) / len(known) for values in list(zip(*known, strict=True))[:2])
    mean = _Cost(scene_bytes, scene_seconds, known[0].shard_bytes)
    size, seconds = 0, 0.0
    for split, scenes in reader.published.items():
        cost = costs.get(split, mean)
        size += cost.store_bytes(scenes, -(-scenes // options.shard_size))
        seconds += scenes * cost.scene_seconds
    return sum(reader.published.values()), size, seconds
