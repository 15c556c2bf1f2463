"""The plan of a run: divides the inputs of each split into shards and checks the folders."""

import os
from dataclasses import replace
from pathlib import Path

from data_prep.engine.options import PrepareOptions
from data_prep.engine.tasks import ShardTask
from data_prep.engine.unused import unused_inputs
from data_prep.reader import Input, Reader
from trajformer.errors import TrajformerError
from trajformer.scenes.manifest import MERGED, RESAMPLED


def plan(
    reader: Reader, raw: Path, store: Path, options: PrepareOptions
) -> dict[str, list[ShardTask]]:
    """Return the tasks of all splits, in the reader's order; write nothing.

    Each split has at least one task, which may have no inputs. Raises TrajformerError: an option or
    a folder cannot be used.
    """
    if options.ray_address is not None and options.executor != "ray":
        problem = "a Ray address (--ray-address) is for the executor ray (--executor ray)"
        raise TrajformerError(problem)
    _check_folders(raw, store)
    splits = _requested_splits(reader, raw, options)
    raw = Path(os.path.abspath(raw))
    store = Path(os.path.abspath(store))

    listed = {split: _list_inputs(reader, raw, split) for split in splits}
    folders = [raw]
    if options.splits:  # other splits are not the subject of this run
        folders = [raw / split for split in splits if (raw / split).is_dir()]
    unused = unused_inputs(reader, raw, listed, folders)
    tasks: dict[str, list[ShardTask]] = {}
    for split in splits:
        inputs = [*listed[split][: options.limit], *unused.get(split, [])]
        inputs = list(dict.fromkeys(_with_printable_name(item, raw) for item in inputs))
        first_task = ShardTask(
            reader=reader,
            raw=raw,
            store=store,
            split=split,
            index=0,
            inputs=tuple(inputs[: options.shard_size]),
            strict=options.strict,
            timeout_s=options.timeout_s,
            memory_gb=options.memory_gb,
            max_speed_m_s=options.max_speed_m_s,
        )
        tasks[split] = [first_task]
        for start in range(options.shard_size, len(inputs), options.shard_size):
            shard_inputs = tuple(inputs[start : start + options.shard_size])
            tasks[split].append(replace(first_task, index=len(tasks[split]), inputs=shard_inputs))
    return tasks


def _check_folders(raw: Path, store: Path) -> None:
    """Raise TrajformerError: there is no raw folder, or the store must not be written."""
    if not raw.exists():
        raise TrajformerError(f"{raw}: no such folder")
    if not raw.is_dir():
        raise TrajformerError(f"{raw}: not a folder")
    if store.exists() and not store.is_dir():
        raise TrajformerError(f"{store}: the store cannot be written: a file of that name exists")
    for action, record in (("merge", MERGED), ("resample", RESAMPLED)):
        if (store / record).exists():
            origin = f"was made by `trajformer store {action}`"
            raise TrajformerError(f"{store}: {origin}: prepare another store and {action} again")
    if store.resolve().is_relative_to(raw.resolve()):
        raise TrajformerError(f"{store}: the store must lie outside of the raw folder {raw}")


def _requested_splits(reader: Reader, raw: Path, options: PrepareOptions) -> list[str]:
    """Return the splits to prepare (TrajformerError: another layout, or a split is missing)."""
    splits = reader.splits(raw)
    if not splits:
        raise TrajformerError(f"{raw}: not a {reader.name} folder (expected {reader.layout})")
    for split in options.splits:
        if split not in splits:
            available = ", ".join(splits)
            raise TrajformerError(f"{raw}: no split '{split}' (splits here: {available})")
    return list(options.splits) or splits


def _with_printable_name(item: Input, raw: Path) -> Input:
    """The input, or its file with a problem if the name cannot be stored."""
    try:
        item.name(raw).encode()
    except UnicodeEncodeError:
        return Input(item.path, problem="the name of the file is not UTF-8: rename it")
    return item


def _list_inputs(reader: Reader, raw: Path, split: str) -> list[Input]:
    try:
        return reader.inputs(raw, split)
    except (OSError, ValueError, MemoryError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise TrajformerError(f"{raw}: split '{split}' cannot be listed: {problem}") from error
