"""A full disk and full memory while files are written.

Previous files stay, and no partial file has a final name.
"""

import hashlib
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from matplotlib.figure import Figure
from support.uses import Case

from data_prep.engine import tasks
from data_prep.engine.options import PrepareOptions
from data_prep.engine.plan import plan
from data_prep.readers.names import READERS


def full_disk() -> None:
    """A limit on the size of files, which fails like a full disk. The picture p.png exists."""
    Path("p.png").write_bytes(b"\x89PNG tEXtSoftware\0trajformer")
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))


def full_memory(owner: Any, name: str) -> Callable[[], object]:
    """No block of memory is left from the first call of a function of a module or class."""

    def prepare() -> None:
        function = getattr(owner, name)
        blocks = list[bytearray]()

        def call(*args: Any, **more: Any) -> Any:
            if not blocks:
                fill_memory(blocks)
            return function(*args, **more)

        setattr(owner, name, call)

    return prepare


def fill_memory(blocks: list[bytearray]) -> None:
    """Allow this process 2 MB more than it uses, and fill them with blocks of falling size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**21
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for length in (2**20, 2**16, 2**12):
        with suppress(MemoryError):
            while True:
                blocks.append(bytearray(length))


def make_shard(store: str) -> Callable[[], object]:
    """Make a shard in this process; preparation uses another process."""

    def run() -> None:
        reader = READERS["argoverse2"]()
        options = PrepareOptions(splits=("val",))
        [task] = plan(reader, Path("raw"), Path(store), options)["val"]
        # many scenes, so that writing needs memory
        tasks.prepare_shard(replace(task, inputs=100 * task.inputs))

    return run


class Writer(NamedTuple):
    """A command that writes files."""

    run: str | Callable[[], object]
    file: str  # in the message of a full disk
    memory: Callable[[], object] | None  # fills the memory while the command writes
    absent: tuple[str, ...] = ()  # files that must not exist afterwards


PREDICT = "predict --model constant_velocity --store store --out"
TRAIN = "train --config recipe.yaml --out"
CONVERT = "weights convert trajformer run/last.ckpt"
SHARD = ("s/*/*.arrow", "s/manifest.json")
MERGED = ("m/*/*.arrow", "m/manifest.json")
IN_FORECASTS = full_memory(pa, "record_batch")
IN_CHECKPOINT = full_memory(torch, "save")
IN_PICTURE = full_memory(Figure, "savefig")
IN_SHARD = full_memory(tasks, "write_shard")
IN_MERGE = full_memory(hashlib, "file_digest")
LOGS = ("run/config.yaml", "metrics.csv", "events.*", "hparams.yaml")  # of a resumed run
ALLOCATION_FAILURES = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "can't start new thread",
)
WRITERS = {
    "forecasts": Writer(f"{PREDICT} f.parquet", "f.parquet", IN_FORECASTS, ("f.parquet",)),
    "replaced forecasts": Writer(
        f"{PREDICT} forecasts.parquet --overwrite", "forecasts.parquet", IN_FORECASTS
    ),
    "pictures": Writer("plot store --out p.png --overwrite", "p.png", IN_PICTURE, ("p.png",)),
    "weights": Writer(f"{CONVERT} c.ckpt", "c.ckpt", IN_CHECKPOINT, ("c.ckpt",)),
    "replaced weights": Writer(
        f"{CONVERT} weights.ckpt --overwrite", "weights.ckpt", IN_CHECKPOINT
    ),
    "checkpoints": Writer(f"{TRAIN} fresh", "ckpt", IN_CHECKPOINT, ("fresh/*.ckpt",)),
    "checkpoints of a resumed run": Writer(
        f"{TRAIN} run --resume --trainer.epochs 2", "ckpt", IN_CHECKPOINT
    ),
    "a store": Writer("preprocess argoverse2 raw s --workers 1", "arrow", None, SHARD),
    "a shard": Writer(make_shard("s"), "arrow", IN_SHARD, SHARD),
    "a replaced shard": Writer(make_shard("store"), "arrow", IN_SHARD),
    "a merged store": Writer("store merge store --out m", "arrow", IN_MERGE, MERGED),
}


def on_full_disk(use: str, writer: Writer) -> Case:
    return Case(
        f"a full disk: {use}",
        writer.run,
        f"{writer.file}: .*File too large",
        full_disk,
        changes=LOGS,
        absent=writer.absent,
    )


def in_full_memory(use: str, writer: Writer) -> Case:
    assert writer.memory is not None
    return Case(
        f"full memory: {use}",
        writer.run,
        "out of memory",
        writer.memory,
        changes=LOGS,
        absent=writer.absent,
    )


def fail(text: str) -> None:
    raise RuntimeError(text)


def failed_allocation(text: str) -> Case:
    """An error of a library that has this text."""
    run = partial(fail, text)
    return Case(f"full memory: {text}", run, f"^python: out of memory: {text}")


CASES = []
for use, writer in WRITERS.items():
    CASES.append(on_full_disk(use, writer))
    if writer.memory is not None:
        CASES.append(in_full_memory(use, writer))
CASES += map(failed_allocation, ALLOCATION_FAILURES)
