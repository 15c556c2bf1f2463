"""`trajformer synthesize` and `trajformer preprocess`: raw data, and stores made from raw data."""

from __future__ import annotations

import os
from dataclasses import fields
from datetime import timedelta
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from tqdm import tqdm

from trajformer.cli.files import bars, keep_arguments, skipped_lines
from trajformer.cli.parsing import Parser, add_fields, new_parser
from trajformer.scenes.files import lock_folder

if TYPE_CHECKING:
    from data_prep.engine.options import PrepareOptions
    from data_prep.reader import Reader

WORKERS = 2


def synthesize_parser() -> Parser:
    """OUT --scenes N --seed S."""
    parser = new_parser(
        "Simulate traffic in the raw layout of Argoverse 2, with the splits train, val and test."
    )
    parser.add_argument("out", type=Path, help="output folder, receives train/, val/ and test/")
    parser.add_argument(
        "--scenes", type=PositiveInt, default=200, help="number of scenes in all splits together"
    )
    parser.add_argument(
        "--seed", type=NonNegativeInt, default=0, help="the same seed gives the same bytes"
    )
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="number of processes")
    futures = "write two or three futures of each past as scenes ID.0, ID.1 ... (for training with data.branches)"
    parser.add_argument("--branches", action="store_true", help=futures)
    return parser


def run_synthesize(args: Namespace) -> None:
    """`trajformer synthesize`: write the scenes and print the number of scenes per split."""
    from data_prep.synthetic import synthesize

    with lock_folder(args.out):
        keep_arguments(args.out, args, "scenes", "seed", "branches")
        counts = synthesize(
            args.out,
            args.scenes,
            args.seed,
            workers=args.workers,
            progress=bars(),
            branches=args.branches,
        )
    unit = "pasts" if args.branches else "scenes"
    print(
        ", ".join(f"{split} {count}" for split, count in counts.items()) + f" {unit} in {args.out}"
    )


def preprocess_parser(source: str = "") -> Parser:
    """SOURCE RAW STORE, the common options, and the options of the source's reader."""
    from data_prep.readers.names import READERS

    parser = new_parser(
        "Prepare a store from raw data. Preparation is deterministic for any number of workers. To resume an interrupted "
        "preparation, run the same command again. Scenes with errors are skipped and listed. "
        f"`trajformer preprocess SOURCE --help` also lists the options of a source ({', '.join(READERS)})."
    )
    parser.add_argument("source", choices=tuple(READERS), help="layout of RAW")
    parser.add_argument("raw", type=Path, help="folder with train/, val/ ... as published")
    parser.add_argument("store", type=Path, help="folder of the store, created or extended")
    parser.add_argument(
        "--split", nargs="+", default=[], help="prepare only these splits (default: all)"
    )
    parser.add_argument(
        "--workers", type=PositiveInt, default=WORKERS, help="number of local processes"
    )
    parser.add_argument(
        "--limit", type=PositiveInt, help="prepare only the first LIMIT scenes of each split"
    )
    parser.add_argument("--shard-size", type=PositiveInt, default=250, help="scenes per file")
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first scene with an error"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=60.0, help="skip a scene after this number of seconds"
    )
    memory = "skip a scene that needs more memory; more than 8 also raises the limits of sizes of raw files"
    parser.add_argument("--memory-gb", type=float, default=8.0, help=memory)
    speed = "skip a scene in which over 1 percent of the steps are faster (a wrong unit?); 0: no check of units"
    parser.add_argument("--max-speed-m-s", type=float, default=150.0, help=speed)
    parser.add_argument(
        "--retry-skipped",
        action="store_true",
        help="prepare finished shards with skipped scenes again",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace scenes of another RAW, or of other options",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the work, the size and the time; write nothing",
    )
    shared = "local processes, or a Ray cluster on which RAW and STORE are shared folders (it uses all its CPUs)"
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help=shared)
    head = "HOST:PORT of the head of the cluster, or auto (default: start Ray on this machine)"
    parser.add_argument("--ray-address", metavar="ADDRESS", help=head)
    if source in READERS:
        add_fields(parser, READERS[source])
    return parser


def run_preprocess(args: Namespace) -> None:
    """`trajformer preprocess`: prepare a store and print the number of scenes, and the skipped scenes with their reasons."""
    from data_prep.engine.options import PrepareOptions
    from data_prep.engine.prepare import prepare
    from data_prep.readers.names import READERS

    kind: Any = READERS[args.source]
    reader = kind(**{field.name: args[field.name] for field in fields(kind)})
    given = {field.name: args[field.name] for field in fields(PrepareOptions) if field.name in args}
    options = PrepareOptions(splits=tuple(args.split), **given)
    if args.dry_run:
        print_estimate(reader, args.raw, args.store, options)
        return
    summary = prepare(reader, args.raw, args.store, options)
    for split in summary.splits:
        kept = (
            f", {split.kept_shards} of {split.shards} shards were already finished"
            if split.kept_shards
            else ""
        )
        print(
            f"{split.split}: {split.scenes} scenes, {split.bytes / 1e6:.1f} MB, {len(split.skipped)} skipped{kept}"
        )
        for line in skipped_lines(split.skipped):
            print(f"  skipped {line}")
    print(f"{args.store}: {summary.scenes} scenes in {summary.seconds:.1f} s")


def print_estimate(reader: Reader, raw: Path, store: Path, options: PrepareOptions) -> None:
    """Print the work of a preparation, the size of its store and its duration; write nothing."""
    from data_prep.engine.estimate import estimate

    size_text = partial(tqdm.format_sizeof, suffix="B")
    estimated = estimate(reader, raw, store, options)
    processes = (
        1 if options.ray_address is not None else max(1, min(options.workers, os.cpu_count() or 1))
    )

    def time(seconds: float) -> timedelta:
        return timedelta(seconds=ceil(seconds / processes))

    by = "one process" if processes == 1 else f"{processes} processes"
    for split in estimated.splits:
        shards = f"{split.finished_shards} of {split.shards} shards finished"
        print(f"{split.split}: {split.scenes:,} scenes, {size_text(split.raw_bytes)} raw; {shards}")
        print(
            f"  store about {size_text(split.store_bytes)}, {len(split.skipped)} of {split.sampled} sampled scenes skipped"
        )
        for line in skipped_lines(split.skipped):
            print(f"    would skip {line}")
    size, free = estimated.bytes_to_write, estimated.free_bytes
    print(f"{store}: about {size_text(size)} to write, about {time(estimated.seconds)} by {by}")
    print(
        f"  {size_text(free)} free"
        + (f": WARNING: {size_text(size)} will not fit" if size > free else "")
    )
    if estimated.published:
        scenes, size, seconds = estimated.published
        amount = f"about {size_text(size)}, about {time(seconds)} by {by}"
        print(f"the complete published {reader.name}: {scenes:,} scenes, {amount}")
    print("dry run: nothing was written")
