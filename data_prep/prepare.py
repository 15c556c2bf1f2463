"""A folder of raw files to a store: parallel, resumable, and the same bytes whatever the number of workers.

A data set is a `Reader`. The inputs of a split, in the reader's order, are cut into shards; `prepare_shard` is a
pure function of its `ShardTask`, so shards can be made in any order and on any machine. Running again keeps every
finished shard whose inputs, reader options and software version are the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from data_prep.reader import Reader
from data_prep.runners import in_process, in_processes
from data_prep.tasks import ShardTask, prepare_shard
from trajformer.errors import TrajformerError
from trajformer.manifest import MANIFEST, write_manifest


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare. No `splits` means all that are found; `limit` is the number of inputs taken from each."""

    splits: tuple[str, ...] = ()
    workers: int = 1
    limit: int | None = None
    shard_size: int = 500
    strict: bool = False  # the first unusable input is an error instead of an entry in the list of skipped ones
    progress: bool = True


@dataclass(frozen=True)
class SplitSummary:
    """One prepared split; `skipped` holds (input, reason), `kept_shards` were already there."""

    split: str
    scenes: int
    bytes: int
    shards: int
    kept_shards: int
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PrepareSummary:
    """What `prepare` did."""

    splits: tuple[SplitSummary, ...]
    seconds: float

    @property
    def scenes(self) -> int:
        """Scenes in all prepared splits."""
        return sum(split.scenes for split in self.splits)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(input, reason) of all prepared splits."""
        return [entry for split in self.splits for entry in split.skipped]


def prepare(reader: Reader, raw: Path, store: Path, options: PrepareOptions | None = None) -> PrepareSummary:
    """Convert raw files to a store, keeping the shards that are already finished, and write its manifest.

    Args:
        reader: the data set.
        raw: its folder.
        store: where to write; made if missing.
        options: see `PrepareOptions`.

    Raises:
        TrajformerError: no such folder or split, an unknown layout, an unwritable store, or a split without a
            single usable scene (then the manifest has been written and lists the reasons).
        SceneError: with `options.strict`, the first input that cannot be used.
    """
    options, raw, store = options or PrepareOptions(), Path(raw), Path(store)
    began = time.monotonic()
    plan = {split: _tasks(reader, raw, store, split, options) for split in _chosen_splits(reader, raw, options)}
    _make_room(store, plan)
    tasks = [task for split in plan.values() for task in split]
    pending = [task for task in tasks if not task.finished()]
    if pending:
        (store / MANIFEST).unlink(missing_ok=True)  # a store that is half old and half new has none
    _run(pending, tasks, options)
    manifest = write_manifest(store)["splits"]
    made = {task.path for task in pending}
    summaries = []
    for split, shards in plan.items():
        kept = sum(task.path not in made for task in shards)
        skipped = tuple((entry["input"], entry["reason"]) for entry in manifest[split]["skipped"])
        counts = manifest[split]["scenes"], manifest[split]["bytes"], len(shards), kept
        summaries.append(SplitSummary(split, *counts, skipped))
    for summary in summaries:
        if not summary.scenes:
            first = f"the first of {len(summary.skipped)}: {summary.skipped[0][1]}" if summary.skipped else "no inputs"
            raise TrajformerError(f"{raw}: split '{summary.split}': no usable scene ({first})")
    return PrepareSummary(tuple(summaries), time.monotonic() - began)


def _chosen_splits(reader: Reader, raw: Path, options: PrepareOptions) -> list[str]:
    if not raw.is_dir():
        raise TrajformerError(f"{raw}: no such folder")
    if options.shard_size < 1 or options.workers < 1 or (options.limit is not None and options.limit < 1):
        raise TrajformerError("shard_size, workers and limit must be at least 1")
    found = reader.splits(raw)
    if not found:
        raise TrajformerError(f"{raw}: not a {reader.name} folder (expected {reader.layout})")
    if missing := [split for split in options.splits if split not in found]:
        raise TrajformerError(f"{raw}: no split '{missing[0]}' (splits here: {', '.join(found)})")
    return list(dict.fromkeys(options.splits)) or found


def _tasks(reader: Reader, raw: Path, store: Path, split: str, options: PrepareOptions) -> list[ShardTask]:
    inputs, size = reader.inputs(raw, split)[: options.limit], options.shard_size
    pieces = [tuple(inputs[i * size : (i + 1) * size]) for i in range(max(1, math.ceil(len(inputs) / size)))]
    return [ShardTask(reader, raw, store, split, i, piece, options.strict) for i, piece in enumerate(pieces)]


def _make_room(store: Path, plan: dict[str, list[ShardTask]]) -> None:
    """Make the folders; remove what an interrupted run left and the shards of a longer earlier one."""
    for split, tasks in plan.items():
        folder, expected = store / split, {task.path for task in tasks}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable.tmp").touch()
            for path in [*folder.glob(".*.tmp"), *(set(folder.glob("*.arrow")) - expected)]:
                path.unlink()
        except OSError as error:
            raise TrajformerError(f"{folder}: the store cannot be written: {error}") from error


def _run(pending: Sequence[ShardTask], tasks: Sequence[ShardTask], options: PrepareOptions) -> None:
    total, todo = (sum(len(task.inputs) for task in part) for part in (tasks, pending))
    bar = tqdm(total=total, initial=total - todo, unit="scene", desc="prepare", disable=not options.progress)
    workers = min(options.workers, len(pending))
    with bar:
        if workers > 1:
            in_processes(prepare_shard, pending, bar.update, workers)
        else:
            in_process(prepare_shard, pending, bar.update)
