"""Converts raw files to a store: parallel, resumable, the same bytes for any number of workers.

`plan` divides the inputs of each split into shards. A runner makes the missing shards:
`prepare_shard` is a pure function of its task, so that shards can be made in any order and on any
machine. At the end the manifest is written. A repeated run keeps every finished shard with the same
inputs, reader options and software version, also after the previous run was killed.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from data_prep.engine.local_runner import WorkerPool
from data_prep.engine.options import PrepareOptions
from data_prep.engine.plan import plan
from data_prep.engine.progress import Progress
from data_prep.engine.ray_runner import run_on_ray
from data_prep.engine.source_record import check_source, read_record, source_record, write_record
from data_prep.engine.tasks import ShardTask
from data_prep.reader import Reader
from trajformer.errors import StoreError, TrajformerError
from trajformer.scenes.files import lock_folder
from trajformer.scenes.manifest import (
    MANIFEST,
    make_manifest,
    read_finished,
    shard_sizes,
    store_splits,
    write_manifest,
)
from trajformer.scenes.shard import read_scene_ids
from trajformer.scenes.spec import warn

Plan: TypeAlias = dict[str, list[ShardTask]]  # tasks of each split


class SplitSummary(NamedTuple):
    """One prepared split."""

    split: str
    scenes: int
    bytes: int
    shards: int
    kept_shards: int  # were finished before
    skipped: tuple[tuple[str, str], ...]  # (input, reason)
    # (input, message), of inputs with a scene
    warnings: tuple[tuple[str, str], ...] = ()
    dropped: tuple[dict[str, Any], ...] = ()  # details, as in the manifest


class PrepareSummary(NamedTuple):
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
        skipped = [split.skipped for split in self.splits]
        return list(chain.from_iterable(skipped))


def prepare(
    reader: Reader, raw: Path, store: Path, options: PrepareOptions | None = None
) -> PrepareSummary:
    """Convert raw files to a store, keep finished shards, and write the manifest.

    The manifest is not written if another split is unfinished. Inputs are read in separate
    processes, so that no input can end the run. After an error, Ctrl-C or a full disk, finished
    shards remain and there is no incomplete file. The folder of the store is created if missing.
    Raises TrajformerError: no such folder or split, an unknown layout, an unwritable store, no Ray,
    two inputs with one scene id, or a split without a usable scene (then the manifest has been
    written and lists the reasons). SceneError: with `options.strict`, the first input that cannot
    be used.
    """
    options = options or PrepareOptions()
    raw = Path(raw)
    store = Path(store)
    start_time = time.monotonic()
    splits = plan(reader, raw, store, options)
    with ExitStack() as locks:
        with _writable(store):
            for split in splits:
                locks.enter_context(lock_folder(store / split))
        records = {split: source_record(tasks) for split, tasks in splits.items()}
        if not options.overwrite:
            for split, tasks in splits.items():
                check_source(tasks, records[split])
        with _writable(store):
            for split, record in records.items():
                write_record(store / split, record, finished=False)

        pending = _remove_outdated(store, splits, options)
        checksums = _make_shards(store, splits, pending, options)

        with _writable(store):
            for split, record in records.items():
                write_record(store / split, record, finished=True)
        manifest = _update_manifest(store, checksums)
    return _summarize(raw, splits, pending, manifest, start_time)


def _summarize(
    raw: Path, splits: Plan, pending: list[ShardTask], manifest: dict[str, Any], start_time: float
) -> PrepareSummary:
    """Summary of a run that made the `pending` shards (TrajformerError: no scene in a split)."""
    made = {task.path for task in pending}
    summaries = []
    for split, tasks in splits.items():
        entry = manifest["splits"][split]
        skipped = tuple((item["input"], item["reason"]) for item in entry["skipped"])
        if not entry["scenes"]:
            reason = "no inputs"
            if skipped:
                reason = f"the first of {len(skipped)}: {skipped[0][1]}"
            raise TrajformerError(f"{raw}: split '{split}': no usable scene ({reason})")
        summary = SplitSummary(
            split=split,
            scenes=entry["scenes"],
            bytes=entry["bytes"],
            shards=len(tasks),
            kept_shards=sum(task.path not in made for task in tasks),
            skipped=skipped,
            warnings=tuple((item["input"], item["message"]) for item in entry.get("warnings", [])),
            dropped=tuple(entry.get("dropped", ())),
        )
        summaries.append(summary)
    return PrepareSummary(tuple(summaries), time.monotonic() - start_time)


# ---- making the missing shards -----------------------------------------------------------------


def _remove_outdated(store: Path, splits: Plan, options: PrepareOptions) -> list[ShardTask]:
    """Remove temporary files and shards that are not in the plan; return the shards to make.

    An unfinished store has no manifest: it is removed if any shard is removed or has to be made.
    """
    surplus = set()
    for split, tasks in splits.items():
        planned = {task.path.name for task in tasks}
        for path in (store / split).glob("*.arrow"):
            if path.name not in planned:
                surplus.add(path)
    with _writable(store):
        for split in splits:
            (store / split / ".writable.tmp").touch()
        for path in surplus:
            path.unlink()
    _remove_temporary(store, splits)
    pending = []
    for task in chain.from_iterable(splits.values()):
        if not task.is_finished(options.retry_skipped):
            pending.append(task)
    if pending or surplus:
        (store / MANIFEST).unlink(missing_ok=True)
    return pending


def _make_shards(
    store: Path, splits: Plan, pending: list[ShardTask], options: PrepareOptions
) -> dict[Path, str]:
    """Make the pending shards and return their checksums."""
    tasks = list(chain.from_iterable(splits.values()))
    pending_paths = {task.path for task in pending}
    kept = [task for task in tasks if task.path not in pending_paths]
    try:
        with (
            closing(Progress(tasks, kept, options.progress)) as progress,
            closing(WorkerPool(options.workers)) as pool,
        ):
            if pending and options.executor == "ray":
                address = options.ray_address
                results = run_on_ray(pending, options.workers, address, progress.update)
            else:
                results = pool.run(pending, progress.update)
            with closing(results):
                for task, result in results:
                    progress.finish_shard(task, result)
    finally:
        _remove_temporary(store, splits)
    return progress.checksums


def _remove_temporary(store: Path, splits: Iterable[str]) -> None:
    for folder in (store, *(store / split for split in splits)):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


@contextmanager
def _writable(store: Path) -> Iterator[None]:
    """Convert an OSError to a TrajformerError: the store cannot be written."""
    try:
        yield
    except OSError as error:
        path = error.filename or store
        reason = error.strerror or error
        raise TrajformerError(f"{path}: the store cannot be written: {reason}") from error


# ---- manifest ----------------------------------------------------------------------------------


def _update_manifest(store: Path, checksums: dict[Path, str]) -> dict[str, Any]:
    """The manifest; an existing one is kept, because checksums of a large store take long.

    It was removed before the first shard was made, so that only its completeness has to be checked.
    It is not written while a run of another split is not finished. Raises TrajformerError: a scene
    id occurs twice in a split.
    """
    with suppress(StoreError):  # missing, damaged or incomplete
        return read_finished(store)
    for split in store_splits(store):  # a copied shard has the ids of another one
        _check_ids(store / split)
    unfinished = []
    for split in store_splits(store):
        record = read_record(store / split)
        if record and not record.get("finished", True):
            unfinished.append(split)
    root = Path(os.path.abspath(store))
    if unfinished:
        reason = f"split {', '.join(unfinished)} is not finished"
        hint = "prepare it with the same command as before"
        warn(f"{store}: no {MANIFEST}, because {reason}; {hint}")
        return make_manifest(root, checksums)
    with _writable(store / MANIFEST):
        return write_manifest(root, checksums)


def _check_ids(folder: Path) -> None:
    """Raise TrajformerError: two inputs of a split have the same scene id."""
    shard_of: dict[str, str] = {}
    for name in shard_sizes(folder):
        for scene_id in read_scene_ids(folder / name):
            if scene_id in shard_of:
                first_name = shard_of[scene_id]
                shards = f"{name} twice" if first_name == name else f"{first_name} and {name}"
                hint = "two inputs have this id; prepare them as separate splits or stores"
                raise TrajformerError(f"{folder}: scene {scene_id} is in {shards}: {hint}")
            shard_of[scene_id] = name
