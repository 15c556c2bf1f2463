"""A folder of raw files to a store: parallel, resumable, and the same bytes whatever the number of workers.

A data set is a `Reader`. The inputs of a split, in the reader's order, are cut into shards (`plan`); `prepare_shard`
is a pure function of its `ShardTask`, so shards can be made in any order and on any machine (`runners`,
`ray_runner`). Running again keeps every finished shard whose inputs, reader options and software version are the
same, however the run before it ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.engine.lock import alone_in
from data_prep.engine.plan import PrepareOptions, plan
from data_prep.engine.progress import Progress
from data_prep.engine.runners import Crew
from data_prep.engine.tasks import ShardTask
from data_prep.reader import Reader
from trajformer.errors import StoreError, TrajformerError
from trajformer.scenes.manifest import MANIFEST, MERGED, manifest_matches_files, read_manifest, write_manifest
from trajformer.scenes.shard import read_shard_info

__all__ = ["PrepareOptions", "PrepareSummary", "SplitSummary", "prepare"]


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

    Inputs are read in processes of their own, so that none of them can end the run. Whatever ends it (an error,
    Ctrl-C, a full disk), finished shards stay and nothing half-written does.

    Args:
        reader: the data set.
        raw: its folder.
        store: where to write, outside of `raw`; made if missing.
        options: see `PrepareOptions`.

    Raises:
        TrajformerError: no such folder or split, an unknown layout, an unwritable store, no Ray, or a split without
            a single usable scene (then the manifest has been written and lists the reasons).
        SceneError: with `options.strict`, the first input that cannot be used.
    """
    options, raw, store = options or PrepareOptions(), Path(raw), Path(store)
    began = time.monotonic()
    splits = plan(reader, raw, store, options)
    _check_owner(reader, store, splits)
    with _writable(store):
        for split in splits:
            (store / split).mkdir(parents=True, exist_ok=True)
    with alone_in([store / split for split in splits]):
        manifest, made = _fill(store, splits, options)
    summaries = []
    for split, shards in splits.items():
        kept = sum(task.path not in made for task in shards)
        skipped = tuple((entry["input"], entry["reason"]) for entry in manifest[split]["skipped"])
        counts = manifest[split]["scenes"], manifest[split]["bytes"], len(shards), kept
        summaries.append(SplitSummary(split, *counts, skipped))
    for summary in summaries:
        if not summary.scenes:
            first = f"the first of {len(summary.skipped)}: {summary.skipped[0][1]}" if summary.skipped else "no inputs"
            raise TrajformerError(f"{raw}: split '{summary.split}': no usable scene ({first})")
    return PrepareSummary(tuple(summaries), time.monotonic() - began)


def _fill(store: Path, splits: dict[str, list[ShardTask]], options: PrepareOptions) -> tuple[dict[str, Any], set[Path]]:
    """Make what is missing: the splits of the store's manifest, and the shards made."""
    changed = _make_room(store, splits)
    tasks = [task for split in splits.values() for task in split]
    pending = [task for task in tasks if not task.finished(options.retry_skipped)]
    if pending or changed:
        (store / MANIFEST).unlink(missing_ok=True)  # a store that is half old and half new has none
    try:
        checksums = _run(pending, tasks, options)
    finally:
        _sweep(store, splits)
    return _manifest(store, checksums)["splits"], {task.path for task in pending}


def _check_owner(reader: Reader, store: Path, splits: dict[str, list[ShardTask]]) -> None:
    """Refuse to replace what other commands or readers have made."""
    if (store / MERGED).exists():
        raise TrajformerError(f"{store}: was made by `trajformer store merge`: prepare another store and merge again")
    for split in splits:
        for path in sorted((store / split).glob("*.arrow")):
            try:
                source = read_shard_info(path)[0].source
            except StoreError:
                continue  # damaged: made anew
            if source != reader.name:
                raise TrajformerError(f"{path}: has scenes of {source}: prepare {reader.name} into a store of its own")
            break  # the shards of a split are of one reader


@contextmanager
def _writable(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrajformerError(f"{error.filename or store}: the store cannot be written: {error.strerror or error}") from error


def _make_room(store: Path, splits: dict[str, list[ShardTask]]) -> bool:
    """Remove what a killed run left, and the shards of a longer earlier one: whether there were any of these."""
    removed = False
    with _writable(store):
        for split, tasks in splits.items():
            folder, expected = store / split, {task.path.name for task in tasks}
            (folder / ".writable.tmp").touch()
            for path in [path for path in folder.glob("*.arrow") if path.name not in expected]:
                path.unlink()
                removed = True
    _sweep(store, splits)
    return removed


def _sweep(store: Path, splits: dict[str, list[ShardTask]]) -> None:
    """Remove temporary files."""
    for folder in (store, *(store / split for split in splits)):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _run(pending: Sequence[ShardTask], tasks: Sequence[ShardTask], options: PrepareOptions) -> dict[Path, str]:
    waiting = {task.path for task in pending}
    progress = Progress(tasks, [task for task in tasks if task.path not in waiting], options.progress)
    try:
        if pending and options.executor == "ray":
            from data_prep.engine.ray_runner import on_ray

            on_ray(pending, options.workers, options.ray_address, progress)
        else:
            with Crew(options.workers) as crew:
                crew.make(pending, progress)
        return progress.checksums
    finally:
        progress.close()


def _manifest(store: Path, checksums: dict[Path, str]) -> dict[str, Any]:
    """The manifest; one that describes the store is kept, for the checksums of a large store take their time.

    It was removed before the first shard was made, so that only its completeness is to be seen to.
    """
    try:
        manifest = read_manifest(store)
        if manifest_matches_files(store, manifest):
            return manifest
    except StoreError:
        pass  # none, or not one of ours
    try:
        return write_manifest(Path(os.path.abspath(store)), checksums)
    except OSError as error:
        raise TrajformerError(f"{store / MANIFEST}: cannot be written: {error.strerror or error}") from error
