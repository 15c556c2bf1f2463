"""Converts a folder of raw files to a store: parallel, resumable, with the same bytes for any number of workers.

The inputs of a split are divided into shards (`plan`). `prepare_shard` is a pure function of its `ShardTask`, so that
shards can be made in any order and on any machine (`runners`, `ray_runner`). A repeated run keeps every finished shard
with the same inputs, reader options and software version, also after the previous run was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.engine.lock import lock_folders
from data_prep.engine.plan import PrepareOptions, plan
from data_prep.engine.progress import Progress
from data_prep.engine.runners import WorkerPool
from data_prep.engine.tasks import ShardTask
from data_prep.reader import Reader
from trajformer.errors import StoreError, TrajformerError
from trajformer.scenes.manifest import MANIFEST, MERGED, manifest_matches_files, read_manifest, write_manifest
from trajformer.scenes.shard import read_shard_info

__all__ = ["PrepareOptions", "PrepareSummary", "SplitSummary", "prepare"]


@dataclass(frozen=True)
class SplitSummary:
    """One prepared split."""

    split: str
    scenes: int
    bytes: int
    shards: int
    kept_shards: int  # were finished before
    skipped: tuple[tuple[str, str], ...]  # (input, reason)


@dataclass(frozen=True)
class PrepareSummary:
    """Result of `prepare`."""

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
    """Convert raw files to a store, keep finished shards, and write the manifest.

    Inputs are read in separate processes, so that none of them can end the run. After an error, Ctrl-C or a full disk,
    finished shards remain and there is no incomplete file.

    Args:
        reader: the data set.
        raw: its folder.
        store: folder of the store, outside of `raw`; created if missing.
        options: see `PrepareOptions`.

    Raises:
        TrajformerError: no such folder or split, an unknown layout, an unwritable store, no Ray, or a split without
            a usable scene (then the manifest has been written and lists the reasons).
        SceneError: with `options.strict`, the first input that cannot be used.
    """
    options, raw, store = options or PrepareOptions(), Path(raw), Path(store)
    start_time = time.monotonic()
    splits = plan(reader, raw, store, options)
    _check_source(reader, store, splits)
    with _writable(store):
        for split in splits:
            (store / split).mkdir(parents=True, exist_ok=True)
    with lock_folders([store / split for split in splits]):
        manifest, made = _make_missing(store, splits, options)
    summaries = []
    for split, shards in splits.items():
        entry = manifest[split]
        kept = sum(task.path not in made for task in shards)
        skipped = tuple((item["input"], item["reason"]) for item in entry["skipped"])
        summaries.append(SplitSummary(split, entry["scenes"], entry["bytes"], len(shards), kept, skipped))
        if not entry["scenes"]:
            reason = f"the first of {len(skipped)}: {skipped[0][1]}" if skipped else "no inputs"
            raise TrajformerError(f"{raw}: split '{split}': no usable scene ({reason})")
    return PrepareSummary(tuple(summaries), time.monotonic() - start_time)


def _check_source(reader: Reader, store: Path, splits: dict[str, list[ShardTask]]) -> None:
    """Refuse to replace a merged store or the scenes of another reader."""
    if (store / MERGED).exists():
        raise TrajformerError(f"{store}: was made by `trajformer store merge`: prepare another store and merge again")
    for split in splits:
        for path in sorted((store / split).glob("*.arrow")):
            try:
                source = read_shard_info(path)[0].source
            except StoreError:
                continue  # a damaged shard is made again
            if source != reader.name:
                raise TrajformerError(f"{path}: has scenes of {source}: prepare {reader.name} into another store")
            break  # all shards of a split come from the same reader


def _make_missing(store: Path, splits: dict[str, list[ShardTask]], options: PrepareOptions) -> tuple[dict[str, Any], set[Path]]:
    """Make the missing shards; returns the splits of the store's manifest and the shards made."""
    has_removed = _remove_surplus(store, splits)
    tasks = [task for split in splits.values() for task in split]
    pending = [task for task in tasks if not task.is_finished(options.retry_skipped)]
    if pending or has_removed:
        (store / MANIFEST).unlink(missing_ok=True)  # an unfinished store has no manifest
    try:
        checksums = _make_shards(pending, tasks, options)
    finally:
        _remove_temporary(store, splits)
    return _update_manifest(store, checksums)["splits"], {task.path for task in pending}


@contextmanager
def _writable(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrajformerError(f"{error.filename or store}: the store cannot be written: {error.strerror or error}") from error


def _remove_surplus(store: Path, splits: dict[str, list[ShardTask]]) -> bool:
    """Remove temporary files of a killed run and shards beyond the last one; returns whether there were such shards."""
    surplus = []
    with _writable(store):
        for split, tasks in splits.items():
            (store / split / ".writable.tmp").touch()
            surplus += sorted(set((store / split).glob("*.arrow")) - {store / split / task.path.name for task in tasks})
        for path in surplus:
            path.unlink()
    _remove_temporary(store, splits)
    return bool(surplus)


def _remove_temporary(store: Path, splits: dict[str, list[ShardTask]]) -> None:
    for folder in (store, *(store / split for split in splits)):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _make_shards(pending: Sequence[ShardTask], tasks: Sequence[ShardTask], options: PrepareOptions) -> dict[Path, str]:
    """Make the pending shards; returns their checksums."""
    pending_paths = {task.path for task in pending}
    kept = [task for task in tasks if task.path not in pending_paths]
    with closing(Progress(tasks, kept, options.progress)) as progress, WorkerPool(options.workers) as pool:
        if pending and options.executor == "ray":
            from data_prep.engine.ray_runner import run_on_ray

            results = run_on_ray(pending, options.workers, options.ray_address, progress.update)
        else:
            results = pool.run(pending, progress.update)
        with closing(results):
            for task, result in results:
                progress.finish_shard(task, result)
        return progress.checksums


def _update_manifest(store: Path, checksums: dict[Path, str]) -> dict[str, Any]:
    """The manifest; an existing one is kept if it lists all shards, because checksums of a large store take long.

    It was removed before the first shard was made, so that only its completeness has to be checked.
    """
    try:
        manifest = read_manifest(store)
        if manifest_matches_files(store, manifest):
            return manifest
    except StoreError:
        pass  # missing or damaged
    try:
        return write_manifest(Path(os.path.abspath(store)), checksums)
    except OSError as error:
        raise TrajformerError(f"{store / MANIFEST}: cannot be written: {error.strerror or error}") from error
