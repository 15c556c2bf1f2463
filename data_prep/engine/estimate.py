"""Estimates size and duration of a run of `prepare` from a sample of each split; writes nothing to the store."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.engine.prepare import PrepareOptions, plan
from data_prep.engine.runners import WorkerPool
from data_prep.engine.tasks import ShardTask
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
    store_bytes: int  # of the whole split
    bytes_to_write: int
    seconds: float  # of one process, for the scenes to read
    sampled: int  # inputs in the sample
    skipped: tuple[tuple[str, str], ...]  # (input, reason) in the sample


@dataclass(frozen=True)
class Estimate:
    """All splits."""

    splits: tuple[SplitEstimate, ...]
    bytes_to_write: int
    seconds: float  # of one process
    free_bytes: int
    published: tuple[int, int, float] | None  # the complete data set: scenes, bytes, seconds of one process


def estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> Estimate:
    """Plan a run of `prepare` with the same arguments and make a small shard of each split in a temporary folder.

    Raises:
        TrajformerError: for the same arguments as `prepare`.
    """
    raw, store = Path(raw), Path(os.path.abspath(store))
    splits = plan(reader, raw, store, options)
    with tempfile.TemporaryDirectory(prefix="trajformer-") as name, closing(WorkerPool(options.workers)) as pool:
        samples = [_sample(tasks, Path(name)) for tasks in splits.values()]
        results = {task.split: result for task, result in pool.run(samples)}
        skipped = {sample.split: tuple(dict.fromkeys(read_shard_info(sample.path)[0].skipped)) for sample in samples}
        write_shard(Path(name) / "empty.arrow", [], ShardInfo(reader.name, ""))
        shard_bytes = (Path(name) / "empty.arrow").stat().st_size
    estimates, costs = [], {}
    for split, tasks in splits.items():
        result = results[split]
        inputs = max(len(result.seconds), 1)
        second_time = result.seconds[inputs // 2 :]
        scene_bytes, scene_seconds = (result.bytes - shard_bytes) / inputs, sum(second_time) / max(len(second_time), 1)
        costs[split] = (scene_bytes, scene_seconds)
        pending = [task for task in tasks if not task.is_finished(options.retry_skipped)]
        scenes, scenes_to_read = (sum(len(task.inputs) for task in part) for part in (tasks, pending))
        estimates.append(
            SplitEstimate(
                split=split,
                scenes=scenes,
                raw_bytes=_raw_bytes(raw, split, tasks),
                shards=len(tasks),
                finished_shards=len(tasks) - len(pending),
                store_bytes=round(scenes * scene_bytes + len(tasks) * shard_bytes),
                bytes_to_write=round(scenes_to_read * scene_bytes + len(pending) * shard_bytes),
                seconds=scenes_to_read * scene_seconds,
                sampled=len(result.seconds) // 2,
                skipped=skipped[split],
            )
        )
    published = None
    if reader.published:  # splits that are missing here get the mean cost
        mean = tuple(sum(values) / len(costs) for values in zip(*costs.values(), strict=True))
        size, seconds = 0, 0.0
        for split, scenes in reader.published.items():
            scene_bytes, scene_seconds = costs.get(split, mean)
            size += round(scenes * scene_bytes + math.ceil(scenes / options.shard_size) * shard_bytes)
            seconds += scenes * scene_seconds
        published = (sum(reader.published.values()), size, seconds)
    existing = next(folder for folder in (store, *store.parents) if folder.exists())
    size, seconds = sum(split.bytes_to_write for split in estimates), sum(split.seconds for split in estimates)
    return Estimate(tuple(estimates), size, seconds, shutil.disk_usage(existing).free, published)


def _sample(tasks: Sequence[ShardTask], folder: Path) -> ShardTask:
    """A shard of inputs from the whole split, each twice."""
    inputs = [item for task in tasks for item in task.inputs]
    count = min(SAMPLE_SIZE, len(inputs))
    chosen = tuple(inputs[i * len(inputs) // count] for i in range(count))
    return replace(tasks[0], store=folder, strict=False, inputs=chosen * 2)


def _raw_bytes(raw: Path, split: str, tasks: Sequence[ShardTask]) -> int:
    """Size of the split's folder, or of the listed files if a split is not a folder."""
    files = {item.path for task in tasks for item in task.inputs}
    if (raw / split).is_dir():
        files = set((raw / split).rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file())
