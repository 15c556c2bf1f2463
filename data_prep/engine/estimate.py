"""Estimates size and duration of a preparation from a sample of each split.

Nothing is written to the store. Most readers parse a file once for all its scenes, so the first
scene of a file takes longer than the next ones. Therefore each input of the sample is read twice:
the second reading gives the time of a scene, the difference the time to parse its file.
"""

import math
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from data_prep.engine.local_runner import WorkerPool
from data_prep.engine.options import PrepareOptions
from data_prep.engine.plan import plan
from data_prep.engine.tasks import ShardResult, ShardTask
from data_prep.reader import Reader
from trajformer.scenes.shard import ShardInfo, read_shard_info, write_shard

SAMPLE_SIZE = 20  # inputs of each split, all read twice


class SplitEstimate(NamedTuple):
    """One split."""

    split: str
    scenes: int
    raw_bytes: int  # of the folder of the split, or of the listed files if a split is not a folder
    shards: int
    finished_shards: int
    store_bytes: int  # of the whole split
    bytes_to_write: int
    seconds: float  # of one process, for the scenes to read
    sampled: int  # inputs in the sample
    skipped: tuple[tuple[str, str], ...]  # (input, reason) in the sample


class Estimate(NamedTuple):
    """All splits."""

    splits: tuple[SplitEstimate, ...]
    bytes_to_write: int
    seconds: float  # of one process
    free_bytes: int
    # The complete data set: scenes, bytes, seconds of one process.
    published: tuple[int, int, float] | None


class _Sample(NamedTuple):
    """The small shard made from a sample of a split."""

    task: ShardTask  # each input twice
    result: ShardResult
    skipped: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Number of different inputs."""
        return len(self.task.inputs) // 2


class _SceneCost(NamedTuple):
    """Mean cost of a scene of a split."""

    bytes: float
    seconds: float


def estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> Estimate:
    """Plan a run of `prepare` and make a small shard of each split in a temporary folder.

    Raises the errors of `prepare`.
    """
    raw = Path(raw)
    store = Path(os.path.abspath(store))
    splits = plan(reader, raw, store, options)
    with tempfile.TemporaryDirectory(prefix="trajformer-") as name:
        folder = Path(name)
        samples = _make_samples(splits, folder, options.workers)
        shard_bytes = _empty_shard_bytes(reader, folder)

    estimates = []
    costs = {}
    for split, tasks in splits.items():
        sample = samples[split]
        costs[split] = _scene_cost(tasks, sample, shard_bytes)
        pending = [task for task in tasks if not task.is_finished(options.retry_skipped)]
        scenes = _count_inputs(tasks)
        pending_scenes = _count_inputs(pending)
        split_estimate = SplitEstimate(
            split=split,
            scenes=scenes,
            raw_bytes=_raw_bytes(raw / split, tasks),
            shards=len(tasks),
            finished_shards=len(tasks) - len(pending),
            store_bytes=round(scenes * costs[split].bytes + len(tasks) * shard_bytes),
            bytes_to_write=round(pending_scenes * costs[split].bytes + len(pending) * shard_bytes),
            seconds=pending_scenes * costs[split].seconds,
            sampled=sample.size,
            skipped=sample.skipped,
        )
        estimates.append(split_estimate)

    published = None
    if reader.published:
        published = _published_cost(reader.published, costs, options.shard_size, shard_bytes)
    existing_folder = next(folder for folder in (store, *store.parents) if folder.exists())
    return Estimate(
        splits=tuple(estimates),
        bytes_to_write=sum(split.bytes_to_write for split in estimates),
        seconds=sum(split.seconds for split in estimates),
        free_bytes=shutil.disk_usage(existing_folder).free,
        published=published,
    )


def _make_samples(
    splits: dict[str, list[ShardTask]], folder: Path, workers: int
) -> dict[str, _Sample]:
    """Make a shard of each split from inputs of the whole split, each twice in a row."""
    sample_tasks = []
    for tasks in splits.values():
        inputs = [item for task in tasks for item in task.inputs]
        count = min(SAMPLE_SIZE, len(inputs))
        chosen = []
        for i in range(count):
            item = inputs[i * len(inputs) // count]
            chosen += [item, item]
        sample_task = replace(tasks[0], store=folder, strict=False, inputs=tuple(chosen))
        sample_tasks.append(sample_task)

    samples = {}
    with closing(WorkerPool(workers)) as pool:
        for task, result in pool.run(sample_tasks):
            info, _ = read_shard_info(task.path)
            skipped = tuple(dict.fromkeys(info.skipped))  # each input once
            samples[task.split] = _Sample(task, result, skipped)
    return samples


def _empty_shard_bytes(reader: Reader, folder: Path) -> int:
    path = folder / "empty.arrow"
    write_shard(path, [], ShardInfo(reader.name, ""))
    return path.stat().st_size


def _scene_cost(tasks: list[ShardTask], sample: _Sample, shard_bytes: int) -> _SceneCost:
    """The mean cost of a scene; the time to parse a file is divided by the scenes of a file."""
    first_readings = sample.result.seconds[::2]
    second_readings = sample.result.seconds[1::2]
    # The first scene in the sample counts for each file. A first reading that fills caches does not
    # change the median.
    parsing: dict[Path, float] = {}
    inputs = sample.task.inputs[::2]
    for item, first, second in zip(inputs, first_readings, second_readings, strict=True):
        parsing.setdefault(item.path, first - second)
    file_seconds = 0.0
    if parsing:
        file_seconds = max(median(parsing.values()), 0.0)

    files = {item.path for task in tasks for item in task.inputs}
    files_per_scene = len(files) / max(_count_inputs(tasks), 1)
    second_seconds = sum(second_readings) / max(sample.size, 1)
    return _SceneCost(
        bytes=(sample.result.bytes - shard_bytes) / max(2 * sample.size, 1),
        seconds=second_seconds + file_seconds * files_per_scene,
    )


def _count_inputs(tasks: list[ShardTask]) -> int:
    return sum(len(task.inputs) for task in tasks)


def _raw_bytes(folder: Path, tasks: list[ShardTask]) -> int:
    """Size of the folder of a split, or of the listed files if a split is not a folder."""
    if folder.is_dir():
        paths = set(folder.rglob("*"))
    else:
        paths = {item.path for task in tasks for item in task.inputs}
    return sum(path.stat().st_size for path in paths if path.is_file())


def _published_cost(
    published: dict[str, int], costs: dict[str, _SceneCost], shard_size: int, shard_bytes: int
) -> tuple[int, int, float]:
    """Scenes, bytes and seconds of the complete data set, for `Estimate.published`."""
    mean_cost = _SceneCost(
        bytes=sum(cost.bytes for cost in costs.values()) / len(costs),
        seconds=sum(cost.seconds for cost in costs.values()) / len(costs),
    )
    size = 0
    seconds = 0.0
    for split, scenes in published.items():
        cost = costs.get(split, mean_cost)  # splits that are missing here get the mean cost
        shards = math.ceil(scenes / shard_size)
        size += round(scenes * cost.bytes + shards * shard_bytes)
        seconds += scenes * cost.seconds
    return sum(published.values()), size, seconds
