"""Options of the commands that make and look at stores."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.parsing import Parser, add_fields, new_parser

WORKERS = 2


def synthesize_parser() -> Parser:
    """OUT --scenes N --seed S."""
    parser = new_parser("Simulate traffic and write it in the official Argoverse 2 raw layout, split in train, val, test.")
    parser.add_argument("out", type=Path, help="folder that gets train/, val/ and test/")
    parser.add_argument("--scenes", type=PositiveInt, default=200, help="how many, over all splits")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="the same seed gives the same bytes")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes")
    return parser


def preprocess_parser(source: str = "") -> Parser:
    """SOURCE RAW STORE, the common options, and those of the source's reader."""
    from data_prep.readers import READERS

    parser = new_parser(
        "Prepare a raw data set: one compact store, resumable (run the same command again), the same bytes whatever "
        "the number of workers. Scenes that cannot be used are skipped, counted and listed with their reason. "
        f"`trajformer preprocess SOURCE --help` also lists the options of a source ({', '.join(READERS)})."
    )
    parser.add_argument("source", choices=tuple(READERS), help="layout of RAW")
    parser.add_argument("raw", type=Path, help="folder with train/, val/ ... as published")
    parser.add_argument("store", type=Path, help="folder of the store, made or extended")
    parser.add_argument("--split", nargs="+", default=[], help="only these splits (default: all found)")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes")
    parser.add_argument("--limit", type=PositiveInt, help="only the first so many scenes of each split")
    parser.add_argument("--shard-size", type=PositiveInt, default=500, help="scenes a file")
    parser.add_argument("--strict", action="store_true", help="stop at the first scene that cannot be used")
    if source in READERS:
        add_fields(parser, READERS[source])
    return parser


def store_parser() -> Parser:
    """info|verify STORE."""
    parser = new_parser("Look at a store: what it holds (info), or whether every byte and scene is sound (verify).")
    parser.add_argument("action", choices=("info", "verify"), help="counts and sizes, or a full check")
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    return parser


def run_synthesize(args: Namespace) -> None:
    """`trajformer synthesize`."""
    from trajformer.commands import data

    data.synthesize(args.out, args.scenes, args.seed, args.workers)


def run_preprocess(args: Namespace) -> None:
    """`trajformer preprocess`."""
    from data_prep.readers import READERS
    from trajformer.commands import data

    kind: Any = READERS[args.source]
    reader = kind(**{field.name: args[field.name] for field in fields(kind)})
    options = {"splits": tuple(args.split), "workers": args.workers, "limit": args.limit}
    options |= {"shard_size": args.shard_size, "strict": args.strict}
    data.preprocess(reader, args.raw, args.store, **options)


def run_store(args: Namespace) -> None:
    """`trajformer store`."""
    from trajformer.commands import data

    {"info": data.store_info, "verify": data.store_verify}[args.action](args.store)
