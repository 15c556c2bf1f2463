"""`trajformer preprocess`: a store from raw data."""

import inspect
import os
import re
from argparse import Namespace
from dataclasses import fields
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_prep.engine.estimate import Estimate, SplitEstimate, estimate
from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import SplitSummary, prepare
from data_prep.reader import Reader
from data_prep.readers.names import READERS
from trajformer.cli.files import dropped_lines, skipped_lines
from trajformer.cli.parsing import (
    Parser,
    PositiveInt,
    add_fields,
    add_variant,
    add_workers,
    new_overview,
    new_parser,
)

VARIANTS = tuple(READERS)
TEXT = (
    "Prepare a store from raw data. Preparation is deterministic for any number of workers. To "
    "resume an interrupted preparation, run the same command again. Scenes with errors are skipped "
    "and listed."
)


def parser(source: str = "") -> Parser:
    """SOURCE RAW STORE, options for all sources, and the options of the reader of this source."""
    if not source:
        summaries = {name: _short_name(reader) for name, reader in READERS.items()}
        usage = "Usage: `trajformer preprocess SOURCE RAW STORE`; RAW is a folder in the layout of"
        hint = "`trajformer preprocess SOURCE --help` lists all options."
        return new_overview(f"{TEXT} {usage} SOURCE. {hint}", "source", summaries)
    made = new_parser(TEXT)
    add_variant(made, "source", source)
    made.add_argument("raw", type=Path, help="folder with train/, val/ ... as published")
    made.add_argument("store", type=Path, help="folder of the store, created or extended")
    _add_selection(made)
    _add_limits(made)
    _add_execution(made)
    add_fields(made, READERS[source])
    return made


def _short_name(reader: type[Reader]) -> str:
    """The start of the documentation of a reader."""
    text = inspect.getdoc(reader) or reader.__name__
    first_clause = re.split(r"[,;.]\s", text + "\n")[0]
    return first_clause.removeprefix("Reader of ").removeprefix("the ")


def _add_selection(made: Parser) -> None:
    """Options that select the scenes of this run."""
    made.add_argument(
        "--split", nargs="+", default=[], help="prepare only these splits (default: all)"
    )
    made.add_argument(
        "--limit", type=PositiveInt, help="prepare only the first LIMIT scenes of each split"
    )
    made.add_argument("--shard-size", type=PositiveInt, default=250, help="scenes per file")
    made.add_argument(
        "--retry-skipped",
        action="store_true",
        help="prepare finished shards with skipped scenes again",
    )
    made.add_argument(
        "--overwrite",
        action="store_true",
        help="replace scenes of another RAW, or of other options",
    )


def _add_limits(made: Parser) -> None:
    """Options for scenes that cannot be used."""
    made.add_argument("--strict", action="store_true", help="stop at the first scene with an error")
    made.add_argument(
        "--timeout-s", type=float, default=60.0, help="skip a scene after this number of seconds"
    )
    made.add_argument(
        "--memory-gb",
        type=float,
        default=8.0,
        help="skip a scene that needs more memory; "
        "more than 8 also raises the limits of sizes of raw files",
    )
    made.add_argument(
        "--max-speed-m-s",
        type=float,
        default=150.0,
        help="skip a scene in which over 1 percent of the steps are faster (a wrong unit?); "
        "0: no check of units",
    )


def _add_execution(made: Parser) -> None:
    """Options for processes and machines."""
    add_workers(made)
    made.add_argument(
        "--executor",
        "--cluster",
        choices=("local", "ray"),
        default="local",
        help="local processes, or a Ray cluster on which RAW and STORE are shared folders "
        "(it uses all its CPUs)",
    )
    made.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="HOST:PORT of the head of the cluster, or auto (default: start Ray on this machine)",
    )
    made.add_argument(
        "--dry-run",
        action="store_true",
        help="print the work, the size and the time; write nothing",
    )


def run(args: Namespace) -> None:
    """Prepare a store; print the number of scenes, and the skipped scenes with their reasons."""
    reader_class: Any = READERS[args.source]
    reader = reader_class(**{item.name: getattr(args, item.name) for item in fields(reader_class)})
    names = {item.name for item in fields(PrepareOptions)}
    given = {name: value for name, value in vars(args).items() if name in names}
    options = PrepareOptions(splits=tuple(args.split), **given)
    if args.dry_run:
        print_estimate(reader, args.raw, args.store, options)
        return
    summary = prepare(reader, args.raw, args.store, options)
    for split in summary.splits:
        _print_split(split)
    print(f"{args.store}: {summary.scenes} scenes in {summary.seconds:.1f} s")


def _print_split(split: SplitSummary) -> None:
    kept = ""
    if split.kept_shards:
        kept = f", {split.kept_shards} of {split.shards} shards were already finished"
    size = f"{split.bytes / 1e6:.1f} MB"
    skipped = f"{len(split.skipped)} skipped"
    print(f"{split.split}: {split.scenes} scenes, {size}, {skipped}{kept}")
    for line in skipped_lines(split.skipped):
        print(f"  skipped {line}")
    for line in skipped_lines(split.warnings):
        print(f"  warning {line}")
    for line in dropped_lines(split.dropped):
        print(f"  dropped {line}")


def print_estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> None:
    """Print the work of a preparation, the size of its store and its duration; write nothing."""
    estimated = estimate(reader, raw, store, options)
    for split in estimated.splits:
        _print_split_estimate(split)
    processes = min(options.workers, os.cpu_count() or 1)
    if options.ray_address is not None:  # the number of processes of the cluster is unknown
        processes = 1
    _print_total_estimate(estimated, reader.name, store, processes)
    print("dry run: nothing was written")


def _print_split_estimate(split: SplitEstimate) -> None:
    shards = f"{split.finished_shards} of {split.shards} shards finished"
    print(f"{split.split}: {split.scenes:,} scenes, {_size(split.raw_bytes)} raw; {shards}")
    skipped = f"{len(split.skipped)} of {split.sampled} sampled scenes skipped"
    print(f"  store about {_size(split.store_bytes)}, {skipped}")
    for line in skipped_lines(split.skipped):
        print(f"    would skip {line}")


def _print_total_estimate(estimated: Estimate, source: str, store: Path, processes: int) -> None:
    by = "one process" if processes == 1 else f"{processes} processes"
    size = _size(estimated.bytes_to_write)
    duration = _duration(estimated.seconds, processes)
    print(f"{store}: about {size} to write, about {duration} by {by}")
    free = f"  {_size(estimated.free_bytes)} free"
    if estimated.bytes_to_write > estimated.free_bytes:
        free += f": WARNING: {size} will not fit"
    print(free)
    if estimated.published:
        scenes, published_bytes, seconds = estimated.published
        amount = f"about {_size(published_bytes)}, about {_duration(seconds, processes)} by {by}"
        print(f"the complete published {source}: {scenes:,} scenes, {amount}")


def _size(number: float) -> str:
    return tqdm.format_sizeof(number, suffix="B")


def _duration(seconds: float, processes: int) -> timedelta:
    """Of the work of several processes, when one process needs this number of seconds."""
    return timedelta(seconds=ceil(seconds / processes))
