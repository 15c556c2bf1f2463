"""What there is to do: the inputs of every split, in the reader's order, cut into shards."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_prep.engine.tasks import TIMEOUT_S, ShardTask
from data_prep.reader import Reader
from trajformer.errors import TrajformerError

LONGEST_S = 86_400


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare. No `splits` means all that are found; `limit` is the number of inputs taken from each."""

    splits: tuple[str, ...] = ()
    workers: int = 1  # processes; with a `ray_address` the cluster decides
    limit: int | None = None
    shard_size: int = 250  # a shard is packed, written and checked while it lies in a cache of tens of megabytes
    strict: bool = False  # the first unusable input is an error instead of an entry in the list of skipped ones
    timeout_s: float = TIMEOUT_S  # an input that takes longer is skipped
    retry_skipped: bool = False  # shards that skipped an input are made again
    executor: Literal["local", "ray"] = "local"
    ray_address: str | None = None  # of a running cluster that shares the file system
    progress: bool = True


def plan(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> dict[str, list[ShardTask]]:
    """The shards of every split, as tasks; nothing is written.

    Raises:
        TrajformerError: an option is wrong, there is no such folder or split, or the layout is another.
    """
    _check(raw, store, options)
    found = reader.splits(raw)
    if not found:
        raise TrajformerError(f"{raw}: not a {reader.name} folder (expected {reader.layout})")
    if missing := [split for split in options.splits if split not in found]:
        raise TrajformerError(f"{raw}: no split '{missing[0]}' (splits here: {', '.join(found)})")
    raw, store = (Path(os.path.abspath(path)) for path in (raw, store))
    return {split: _tasks(reader, raw, store, split, options) for split in list(dict.fromkeys(options.splits)) or found}


def _check(raw: Path, store: Path, options: PrepareOptions) -> None:
    if options.shard_size < 1 or options.workers < 1 or (options.limit is not None and options.limit < 1):
        raise TrajformerError("shard_size, workers and limit must be at least 1")
    if not 0 < options.timeout_s <= LONGEST_S:
        raise TrajformerError(f"timeout_s must be greater than 0 and at most {LONGEST_S} (a day), got {options.timeout_s:g}")
    if options.ray_address is not None and options.executor != "ray":
        raise TrajformerError("a Ray address (--ray-address) is for the executor ray (--executor ray)")
    if not raw.is_dir():
        raise TrajformerError(f"{raw}: not a folder" if raw.exists() else f"{raw}: no such folder")
    if store.exists() and not store.is_dir():
        raise TrajformerError(f"{store}: the store cannot be written: a file of that name exists")
    if raw.resolve() in (store.resolve(), *store.resolve().parents):
        raise TrajformerError(f"{store}: the store must lie outside of the raw folder {raw}")


def _tasks(reader: Reader, raw: Path, store: Path, split: str, options: PrepareOptions) -> list[ShardTask]:
    try:
        inputs, size = reader.inputs(raw, split)[: options.limit], options.shard_size
    except (OSError, ValueError, MemoryError) as error:
        raise TrajformerError(f"{raw}: split '{split}' cannot be listed: {type(error).__name__}: {error}") from error
    pieces = [tuple(inputs[i * size : (i + 1) * size]) for i in range(max(1, math.ceil(len(inputs) / size)))]
    return [
        ShardTask(reader, raw, store, split, i, piece, strict=options.strict, timeout_s=options.timeout_s)
        for i, piece in enumerate(pieces)
    ]
