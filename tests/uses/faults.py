"""A full disk and full memory while files are written: previous files stay, and no partial file has a final name."""

import hashlib
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from matplotlib.figure import Figure
from support.uses import Case, Guard

from data_prep.engine import tasks
from data_prep.engine.options import PrepareOptions
from data_prep.engine.plan import plan
from data_prep.readers.names import READERS

FILES = "trajformer/scenes/files.py"
ATOMIC = (  # without these, a file is written under its final name and stays after an error
    Guard(FILES, 'temporary = folder / f".{target.name}.{os.getpid()}.tmp"', "temporary = target"),
    Guard(FILES, "            temporary.unlink(missing_ok=True)", "            pass"),
)


def full_disk() -> None:
    """A limit on the size of files, which fails like a full disk. The picture p.png exists."""
    Path("p.png").write_bytes(b"\x89PNG")
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))


def full_memory(owner: Any, name: str) -> Callable[[], object]:
    """No block of memory is left from the first call of a function of a module or class."""

    def prepare() -> None:
        function, blocks = getattr(owner, name), list[bytearray]()

        def call(*args: Any, **more: Any) -> Any:
            if not blocks:
                size = (
                    int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                    + 2**21
                )
                resource.setrlimit(resource.RLIMIT_AS, (size, size))
                for length in (2**20, 2**16, 2**12):
                    with suppress(MemoryError):
                        while True:
                            blocks.append(bytearray(length))
            return function(*args, **more)

        setattr(owner, name, call)

    return prepare


def make_shard(store: str) -> Callable[[], object]:
    """Make a shard in this process; preparation uses another process."""

    def run() -> None:
        [task] = plan(
            READERS["argoverse2"](), Path("raw"), Path(store), PrepareOptions(splits=("val",))
        )["val"]
        tasks.prepare_shard(replace(task, inputs=100 * task.inputs))  # needs memory to be written

    return run


PREDICT, TRAIN = (
    "predict --model constant_velocity --store store --out",
    "train --config recipe.yaml --out",
)
CONVERT = "weights convert trajformer run/last.ckpt"
NO_MEMORY, WITHOUT = full_memory(pa, "record_batch"), "except ZeroDivisionError as error:"
SHARD, MERGED = ("s/*/*.arrow", "s/manifest.json"), ("m/*/*.arrow", "m/manifest.json")
OUT_OF_MEMORY = Guard("trajformer/cli/__init__.py", "if _is_out_of_memory(error):")
IN_SHARD = (
    OUT_OF_MEMORY,
    Guard("data_prep/engine/tasks.py", "    except MemoryError as error:\n", f"    {WITHOUT}\n"),
)
RESERVE = Guard(
    "trajformer/evaluation/forecast_file.py",
    "np.empty(FREE_BYTES + 3 * batch.nbytes, np.uint8)",
    "pass",
)
SAVE, PICTURE, WRITE = (
    full_memory(torch, "save"),
    full_memory(Figure, "savefig"),
    full_memory(tasks, "write_shard"),
)
Row = tuple[Any, str, Callable[[], object] | None, Any, tuple[str, ...]]
WRITERS: dict[
    str, Row
] = {  # command, its file in the message, full memory and its guards, and files that must not appear
    "forecasts": (f"{PREDICT} f.parquet", "f.parquet", NO_MEMORY, RESERVE, ("f.parquet",)),
    "replaced forecasts": (
        f"{PREDICT} forecasts.parquet --overwrite",
        "forecasts.parquet",
        NO_MEMORY,
        RESERVE,
        (),
    ),
    "pictures": ("plot store --out p.png --overwrite", "p.png", PICTURE, OUT_OF_MEMORY, ("p.png",)),
    "weights": (f"{CONVERT} c.ckpt", "c.ckpt", SAVE, OUT_OF_MEMORY, ("c.ckpt",)),
    "replaced weights": (
        f"{CONVERT} run/best.ckpt --overwrite",
        "run/best.ckpt",
        SAVE,
        OUT_OF_MEMORY,
        (),
    ),
    "checkpoints": (f"{TRAIN} fresh", "ckpt", SAVE, OUT_OF_MEMORY, ("fresh/*.ckpt",)),
    "checkpoints of a resumed run": (
        f"{TRAIN} run --resume --trainer.epochs 2",
        "ckpt",
        SAVE,
        OUT_OF_MEMORY,
        (),
    ),
    "a store": ("preprocess argoverse2 raw s --workers 1", "arrow", None, (), SHARD),
    "a shard": (make_shard("s"), "arrow", WRITE, IN_SHARD, SHARD),
    "a replaced shard": (make_shard("store"), "arrow", WRITE, IN_SHARD, ()),
    "a merged store": (
        "store merge store --out m",
        "arrow",
        full_memory(hashlib, "file_digest"),
        OUT_OF_MEMORY,
        MERGED,
    ),
}
LOGS = ("run/config.yaml", "metrics.csv", "events.*", "hparams.yaml")  # of a resumed run
CASES = [
    Case(
        f"a full disk: {use}",
        run,
        f"{file}: .*File too large",
        full_disk,
        ATOMIC,
        changes=LOGS,
        absent=absent,
    )
    for use, (run, file, _, _, absent) in WRITERS.items()
]
CASES += [
    Case(f"full memory: {use}", run, "out of memory", memory, guards, changes=LOGS, absent=absent)
    for use, (run, _, memory, guards, absent) in WRITERS.items()
    if memory is not None
]


def fail(text: str) -> None:
    raise RuntimeError(text)


CASES += [
    Case(
        f"full memory: {text}",
        partial(fail, text),
        f"^python: out of memory: {text}",
        guard=OUT_OF_MEMORY,
    )
    for text in (
        "DefaultCPUAllocator: can't allocate memory",
        "std::bad_alloc",
        "can't start new thread",
    )
]
