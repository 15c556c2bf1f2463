"""Divides the inputs of each split into shards, in the reader's order."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_prep.engine.tasks import TIMEOUT_S, ShardTask
from data_prep.reader import Reader
from trajformer.errors import TrajformerError

MAX_TIMEOUT_S = 86_400


@dataclass(frozen=True)
class PrepareOptions:
    """Options of `prepare`."""

    splits: tuple[str, ...] = ()  # empty: all
    workers: int = 1  # processes; with a `ray_address` the cluster decides
    limit: int | None = None  # number of inputs of each split
    shard_size: int = 250  # a shard is packed, written and checked while it fits into a cache of tens of megabytes
    strict: bool = False  # an input that cannot be used is an error; otherwise it is skipped and listed
    timeout_s: float = TIMEOUT_S  # an input that takes longer is skipped
    retry_skipped: bool = False  # shards with skipped inputs are made again
    executor: Literal["local", "ray"] = "local"
    ray_address: str | None = None  # of a running cluster that shares the file system
    progress: bool = True


def plan(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> dict[str, list[ShardTask]]:
    """The tasks of all splits; writes nothing.

    Raises:
        TrajformerError: an option is invalid, the folder or a split does not exist, or the folder has another layout.
    """
    _check(raw, store, options)
    splits = reader.splits(raw)
    if not splits:
        raise TrajformerError(f"{raw}: not a {reader.name} folder (expected {reader.layout})")
    if missing := [split for split in options.splits if split not in splits]:
        raise TrajformerError(f"{raw}: no split '{missing[0]}' (splits here: {', '.join(splits)})")
    raw, store = (Path(os.path.abspath(path)) for path in (raw, store))
    return {split: _tasks(reader, raw, store, split, options) for split in list(dict.fromkeys(options.splits)) or splits}


def _check(raw: Path, store: Path, options: PrepareOptions) -> None:
    if options.shard_size < 1 or options.workers < 1 or (options.limit is not None and options.limit < 1):
        raise TrajformerError("shard_size, workers and limit must be at least 1")
    if not 0 < options.timeout_s <= MAX_TIMEOUT_S:
        limit = f"at most {MAX_TIMEOUT_S} (a day)"
        raise TrajformerError(f"timeout_s must be greater than 0 and {limit}, got {options.timeout_s:g}")
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
