"""Converts a folder of raw files to a store: parallel, resumable, with the same bytes for any number of workers.

The inputs of a split are divided into shards (`plan`). `prepare_shard` is a pure function of its `ShardTask`, so that
shards can be made in any order and on any machine (`runners`). A repeated run keeps every finished shard
with the same inputs, reader options and software version, also after the previous run was killed.
"""

import hashlib
import io
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from data_prep.engine.plausible import MAX_SPEED_M_S
from data_prep.engine.runners import WorkerPool, run_on_ray
from data_prep.engine.tasks import MEMORY_GB, TIMEOUT_S, ShardResult, ShardTask
from data_prep.reader import Reader
from trajformer.config import Config
from trajformer.errors import StoreError, TrajformerError
from trajformer.scenes.files import lock_folder, read_file, write_atomically
from trajformer.scenes.manifest import (
    MANIFEST,
    MERGED,
    RESAMPLED,
    make_manifest,
    read_finished,
    shard_sizes,
    store_splits,
    write_manifest,
)
from trajformer.scenes.shard import ShardInfo, read_scene_ids, read_shard_info, write_shard
from trajformer.scenes.spec import warn

SOURCE = "source.json"  # in the folder of a split
MAX_RECORD = 1_000_000  # bytes
LINE_S = 30.0  # between two lines of progress in a log
_LIMITS = {"timeout_s": (1e-9, 86_400), "memory_gb": (1e-9, 1e6), "max_speed_m_s": (0, math.inf)}


@dataclass(frozen=True)
class PrepareOptions(
    Config, limits=_LIMITS | dict.fromkeys(("workers", "limit", "shard_size"), (1, 10**9))
):
    """Options of `prepare`."""

    splits: tuple[str, ...] = ()  # empty: all
    workers: int = 1  # processes; with a `ray_address` the cluster decides
    limit: int | None = None  # number of inputs of each split
    shard_size: int = 250  # a shard is packed, written and checked while it fits into a cache of tens of megabytes
    strict: bool = (
        False  # an input that cannot be used is an error; otherwise it is skipped and listed
    )
    timeout_s: float = TIMEOUT_S  # an input that takes longer is skipped
    max_speed_m_s: float = (
        MAX_SPEED_M_S  # a scene with over 1 % faster steps is skipped; 0: no check of units
    )
    overwrite: bool = False  # replace scenes from another raw folder or with other options
    memory_gb: float = MEMORY_GB  # an input that needs more memory is skipped
    retry_skipped: bool = False  # shards with skipped inputs are made again
    executor: Literal["local", "ray"] = "local"
    ray_address: str | None = None  # of a running cluster that shares the file system
    progress: bool = True


class SplitSummary(NamedTuple):
    """One prepared split."""

    split: str
    scenes: int
    bytes: int
    shards: int
    kept_shards: int  # were finished before
    skipped: tuple[tuple[str, str], ...]  # (input, reason)


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
        return [entry for split in self.splits for entry in split.skipped]


def prepare(
    reader: Reader, raw: Path, store: Path, options: PrepareOptions | None = None
) -> PrepareSummary:
    """Convert raw files to a store, keep finished shards, and write the manifest, unless another split is unfinished.

    Inputs are read in separate processes, so that no input can end the run. After an error, Ctrl-C or a full disk, finished
    shards remain and there is no incomplete file. The folder of the store is created if missing. Raises TrajformerError: no
    such folder or split, an unknown layout, an unwritable store, no Ray, two inputs with one scene id, or a split without a
    usable scene (then the manifest has been written and lists the reasons). SceneError: with `options.strict`, the first input
    that cannot be used.
    """
    options, raw, store = options or PrepareOptions(), Path(raw), Path(store)
    start_time = time.monotonic()
    splits = plan(reader, raw, store, options)
    with ExitStack() as stack:
        with _writable(store):
            for split in splits:
                stack.enter_context(lock_folder(store / split))
        sources = {split: _source(tasks) for split, tasks in splits.items()}
        for split, source in sources.items():
            if not options.overwrite:
                _check_source(splits[split], source)
        _write_sources(store, sources, finished=False)
        checksums, made = _make_missing(store, splits, options)
        _write_sources(store, sources, finished=True)
        manifest = _update_manifest(store, splits, checksums)["splits"]
    summaries = []
    for split, shards in splits.items():
        entry = manifest[split]
        kept = sum(task.path not in made for task in shards)
        skipped = tuple((item["input"], item["reason"]) for item in entry["skipped"])
        summaries.append(
            SplitSummary(split, entry["scenes"], entry["bytes"], len(shards), kept, skipped)
        )
        if not entry["scenes"]:
            reason = f"the first of {len(skipped)}: {skipped[0][1]}" if skipped else "no inputs"
            raise TrajformerError(f"{raw}: split '{split}': no usable scene ({reason})")
    return PrepareSummary(tuple(summaries), time.monotonic() - start_time)


def plan(
    reader: Reader, raw: Path, store: Path, options: PrepareOptions
) -> dict[str, list[ShardTask]]:
    """The tasks of all splits, in the reader's order; writes nothing (TrajformerError: an option or a folder cannot be used)."""
    if options.ray_address is not None and options.executor != "ray":
        raise TrajformerError(
            "a Ray address (--ray-address) is for the executor ray (--executor ray)"
        )
    if not raw.is_dir():
        raise TrajformerError(f"{raw}: not a folder" if raw.exists() else f"{raw}: no such folder")
    if store.exists() and not store.is_dir():
        raise TrajformerError(f"{store}: the store cannot be written: a file of that name exists")
    for action, record in (("merge", MERGED), ("resample", RESAMPLED)):
        if (store / record).exists():
            raise TrajformerError(
                f"{store}: was made by `trajformer store {action}`: prepare another store and {action} again"
            )
    if store.resolve().is_relative_to(raw.resolve()):
        raise TrajformerError(f"{store}: the store must lie outside of the raw folder {raw}")
    splits = reader.splits(raw)
    if not splits:
        raise TrajformerError(f"{raw}: not a {reader.name} folder (expected {reader.layout})")
    if missing := [split for split in options.splits if split not in splits]:
        raise TrajformerError(f"{raw}: no split '{missing[0]}' (splits here: {', '.join(splits)})")
    raw, store, size = Path(os.path.abspath(raw)), Path(os.path.abspath(store)), options.shard_size
    tasks, limits = (
        {},
        (options.strict, options.timeout_s, options.memory_gb, options.max_speed_m_s),
    )
    for split in options.splits or splits:
        try:
            inputs = reader.inputs(raw, split)[: options.limit]
        except (OSError, ValueError, MemoryError) as error:
            raise TrajformerError(
                f"{raw}: split '{split}' cannot be listed: {type(error).__name__}: {error}"
            ) from error
        tasks[split] = [
            ShardTask(
                reader, raw, store, split, i, tuple(inputs[i * size : (i + 1) * size]), *limits
            )
            for i in range(max(1, math.ceil(len(inputs) / size)))
        ]
    return tasks


def _source(tasks: list[ShardTask]) -> dict[str, Any]:
    """The source of a split: data set, raw folder, options of the reader, number and digest of the inputs."""
    reader, raw = tasks[0].reader, os.fsencode(tasks[0].raw).decode(errors="backslashreplace")
    names = [item.name(task.raw) for task in tasks for item in task.inputs]
    digest = hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
    return {
        "source": reader.name,
        "raw": raw,
        "options": repr(reader),
        "inputs": len(names),
        "sha256": digest,
    }


def _write_sources(store: Path, sources: dict[str, dict[str, Any]], finished: bool) -> None:
    """Write the record of each split; a run of another split looks whether this one is finished."""
    with _writable(store):
        for split, source in sources.items():
            write_atomically(
                store / split / SOURCE, json.dumps(source | {"finished": finished}, indent=1) + "\n"
            )


def _check_source(tasks: list[ShardTask], source: dict[str, Any]) -> None:
    """Refuse to replace scenes from a different source. The raw folder may have been moved, and inputs may be added."""
    folder = tasks[0].path.parent
    if not any(folder.glob("*.arrow")):
        return
    before = _read_source(folder / SOURCE)
    if before is None:
        if all(task.is_finished() for task in tasks if task.path.exists()):
            return
        before = source | {"source": "an unknown data set in", "raw": "an unknown folder"}
    unchanged = all(before[name] == source[name] for name in ("source", "options", "sha256"))
    raw, now = (f"{record['source']} {record['raw']}" for record in (before, source))
    if unchanged and (raw == now or not any(task.is_foreign() for task in tasks)):
        return
    if (
        raw == now
        and before["options"] == source["options"]
        and before["inputs"] <= source["inputs"]
    ):
        return
    if raw == now:
        raw, now = (
            f"{record['inputs']} inputs with {record['options']}" for record in (before, source)
        )
    hint = "prepare another store (`trajformer store merge` joins stores), or replace the scenes with --overwrite"
    raise TrajformerError(f"{folder}: was prepared from {raw}, not from {now}: {hint}")


def _read_source(path: Path) -> dict[str, Any] | None:
    """The record of a split; None if it is missing or damaged."""
    try:
        record = json.loads(read_file(path, MAX_RECORD))
        return (
            record
            if {"source", "raw", "options", "sha256"} <= record.keys() and record["inputs"] >= 0
            else None
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None


def _make_missing(
    store: Path, splits: dict[str, list[ShardTask]], options: PrepareOptions
) -> tuple[dict[Path, str], set[Path]]:
    """Make the missing shards; returns known checksums and the shards made."""
    tasks = [task for split in splits.values() for task in split]
    expected = {store / task.split / task.path.name for task in tasks}
    surplus = {path for split in splits for path in (store / split).glob("*.arrow")} - expected
    with _writable(store):
        for split in splits:
            (store / split / ".writable.tmp").touch()
        for path in surplus:
            path.unlink()
    _remove_temporary(store, splits)
    pending = {task.path: task for task in tasks if not task.is_finished(options.retry_skipped)}
    if pending or surplus:
        (store / MANIFEST).unlink(missing_ok=True)  # an unfinished store has no manifest
    kept = [task for task in tasks if task.path not in pending]
    try:
        with (
            closing(Progress(tasks, kept, options.progress)) as progress,
            closing(WorkerPool(options.workers)) as pool,
        ):
            if pending and options.executor == "ray":
                results = run_on_ray(
                    [*pending.values()], options.workers, options.ray_address, progress.update
                )
            else:
                results = pool.run([*pending.values()], progress.update)
            with closing(results):
                for task, result in results:
                    progress.finish_shard(task, result)
    finally:
        _remove_temporary(store, splits)
    return progress.checksums, set(pending)


@contextmanager
def _writable(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrajformerError(
            f"{error.filename or store}: the store cannot be written: {error.strerror or error}"
        ) from error


def _remove_temporary(store: Path, splits: dict[str, list[ShardTask]]) -> None:
    for folder in (store, *(store / split for split in splits)):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _update_manifest(
    store: Path, splits: Iterable[str], checksums: dict[Path, str]
) -> dict[str, Any]:
    """The manifest; an existing one is kept if it lists all shards, because checksums of a large store take long.

    It was removed before the first shard was made, so that only its completeness has to be checked. It is not written while a
    run of another split is not finished. Raises TrajformerError: a scene id occurs twice in one of the prepared `splits`.
    """
    with suppress(StoreError):  # missing, damaged or incomplete
        return read_finished(store)
    for split in splits:
        _check_ids(store / split)
    records = {split: _read_source(store / split / SOURCE) for split in store_splits(store)}
    unfinished = [
        split for split, record in records.items() if record and not record.get("finished", True)
    ]
    root = Path(os.path.abspath(store))
    if unfinished:
        names = ", ".join(unfinished)
        warn(
            f"{store}: no {MANIFEST}, because split {names} is not finished; prepare it with the same command as before"
        )
        return make_manifest(root, checksums)
    with _writable(store / MANIFEST):
        return write_manifest(root, checksums)


def _check_ids(folder: Path) -> None:
    """Raise TrajformerError: two inputs of a split have the same scene id."""
    shard_of: dict[str, str] = {}
    for name in shard_sizes(folder):
        for scene_id in read_scene_ids(folder / name):
            if scene_id in shard_of:
                where = (
                    f"{shard_of[scene_id]} and {name}"
                    if shard_of[scene_id] != name
                    else f"{name} twice"
                )
                reason = "two inputs have this id; prepare them as separate splits or stores"
                raise TrajformerError(f"{folder}: scene {scene_id} is in {where}: {reason}")
            shard_of[scene_id] = name


# ---- progress on standard error: a bar on a terminal, a line every 30 seconds in a log -----------------------------


class Progress:
    """Counts inputs and estimates the size of the store from the finished shards."""

    def __init__(self, tasks: Sequence[ShardTask], kept: Sequence[ShardTask], shown: bool) -> None:
        """Begin with all shards and the shards that exist already; print if `shown`."""
        self.checksums: dict[Path, str] = {}  # of the shards made
        self._total, self._finished = (
            sum(len(task.inputs) for task in part) for part in (tasks, kept)
        )
        self._bytes = sum(task.path.stat().st_size for task in kept)
        terminal = sys.stderr.isatty()
        self._prints_lines = shown and not terminal
        self._next_line = time.monotonic() + LINE_S
        looks: dict[str, Any] = (
            {"dynamic_ncols": True}
            if terminal
            else {"file": io.StringIO(), "ncols": 0, "mininterval": math.inf}
        )
        self._bar = tqdm(
            None,
            "prepare",
            self._total,
            initial=self._finished,
            unit="scene",
            smoothing=0,
            disable=not shown,
            **looks,
        )
        self.update(0)

    def update(self, unfinished: int) -> None:
        """Show progress; `unfinished` counts the inputs read for shards that are not finished. The count never decreases."""
        if self._finished:
            size = tqdm.format_sizeof(self._bytes / self._finished * self._total, "B")
            self._bar.set_postfix_str(f"store about {size}", refresh=False)
        self._bar.update(max(self._finished + unfinished - self._bar.n, 0))
        if self._prints_lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_S
            sys.stderr.write(f"{self._bar}\n")
            sys.stderr.flush()

    def finish_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Count a shard that has been written."""
        self.checksums[task.path] = result.sha256
        self._finished += len(result.seconds)
        self._bytes += result.bytes

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


# ---- estimates of size and duration from a sample of each split; nothing is written to the store --------------------
# Most readers parse a file once for all its scenes, so the first scene of a file takes longer than the next ones.

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
    published: (
        tuple[int, int, float] | None
    )  # the complete data set: scenes, bytes, seconds of one process


def estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> Estimate:
    """Plan a run of `prepare` and make a small shard of each split in a temporary folder; raises the errors of `prepare`."""
    raw, store = Path(raw), Path(os.path.abspath(store))
    splits = plan(reader, raw, store, options)
    with (
        tempfile.TemporaryDirectory(prefix="trajformer-") as name,
        closing(WorkerPool(options.workers)) as pool,
    ):
        samples = []
        for tasks in splits.values():  # a shard of inputs from the whole split, each twice
            inputs = [item for task in tasks for item in task.inputs]
            count = min(SAMPLE_SIZE, len(inputs))
            chosen = tuple(inputs[i // 2 * len(inputs) // count] for i in range(2 * count))
            samples.append(replace(tasks[0], store=Path(name), strict=False, inputs=chosen))
        results = {task.split: (task.inputs[::2], result) for task, result in pool.run(samples)}
        skipped = {
            sample.split: tuple(dict.fromkeys(read_shard_info(sample.path)[0].skipped))
            for sample in samples
        }
        write_shard(Path(name) / "empty.arrow", [], ShardInfo(reader.name, ""))
        shard_bytes = (Path(name) / "empty.arrow").stat().st_size
    estimates, costs = [], {}
    for split, tasks in splits.items():
        sample, result = results[split]
        count, again = len(sample), result.seconds[1::2]
        scene_bytes = (result.bytes - shard_bytes) / max(2 * count, 1)
        parsing: dict[
            Path, float
        ] = {}  # seconds of each file; the median is not changed by a first reading that fills caches
        for item, first, second in zip(sample, result.seconds[::2], again, strict=True):
            parsing.setdefault(item.path, first - second)
        pending = [task for task in tasks if not task.is_finished(options.retry_skipped)]
        files = {item.path for task in tasks for item in task.inputs}
        scenes, scenes_to_read = (
            sum(len(task.inputs) for task in part) for part in (tasks, pending)
        )
        file_seconds = max(median(parsing.values()), 0.0) if parsing else 0.0
        scene_seconds = sum(again) / max(count, 1) + file_seconds * len(files) / max(scenes, 1)
        costs[split] = (scene_bytes, scene_seconds)
        if (raw / split).is_dir():
            files = set((raw / split).rglob("*"))
        estimates.append(
            SplitEstimate(
                split=split,
                scenes=scenes,
                raw_bytes=sum(path.stat().st_size for path in files if path.is_file()),
                shards=len(tasks),
                finished_shards=len(tasks) - len(pending),
                store_bytes=round(scenes * scene_bytes + len(tasks) * shard_bytes),
                bytes_to_write=round(scenes_to_read * scene_bytes + len(pending) * shard_bytes),
                seconds=scenes_to_read * scene_seconds,
                sampled=count,
                skipped=skipped[split],
            )
        )
    published = None
    if reader.published:  # splits that are missing here get the mean cost
        mean = tuple(sum(values) / len(costs) for values in zip(*costs.values(), strict=True))
        size, seconds = 0, 0.0
        for split, scenes in reader.published.items():
            scene_bytes, scene_seconds = costs.get(split, mean)
            size += round(
                scenes * scene_bytes + math.ceil(scenes / options.shard_size) * shard_bytes
            )
            seconds += scenes * scene_seconds
        published = (sum(reader.published.values()), size, seconds)
    existing = next(folder for folder in (store, *store.parents) if folder.exists())
    size, seconds = (
        sum(split.bytes_to_write for split in estimates),
        sum(split.seconds for split in estimates),
    )
    return Estimate(tuple(estimates), size, seconds, shutil.disk_usage(existing).free, published)
