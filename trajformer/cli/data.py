"""Options of the commands that make and look at stores."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli.parsing import Parser, add_fields, new_parser

WORKERS = 2
STORE_ACTIONS = {
    "info": "Print counts and sizes. Also tells where the scenes are from and which were skipped, and what a typical scene "
    "holds. Works while the store is being prepared.",
    "head": "Print a table of the first scenes. It has their agents by role, steps observed and to be predicted (in brackets "
    "where the recording ends with the observed ones), polylines, and kB in the store.",
    "verify": "Check every byte and scene. Files are compared with the checksums of the manifest, scenes validated.",
    "merge": "Make one store of several. They may have been prepared on several machines or from several data sets. Shards are "
    "copied as they are and numbered anew, splits of the same name become one. Nothing is written if a scene id occurs twice "
    "in a split. Run the same command again after an interruption. merged.json says which shard is from where.",
    "export-scene": "Write one scene to a file. It gets all its fields. JSON is for reading: an agent, polyline or edge a line, "
    "kinds by name. npz holds numpy arrays by the names of the fields of trajformer.scenes.scene.Scene and is loaded with "
    "numpy.load, without pickle. Positions are metres relative to `origin`, which is in the frame of the city; headings are "
    "radians, counter-clockwise from +x; entries that are not valid are zero. Numbers are exact.",
}


def synthesize_parser() -> Parser:
    """OUT --scenes N --seed S."""
    parser = new_parser("Simulate traffic and write it in the official Argoverse 2 raw layout, split in train, val, test.")
    parser.add_argument("out", type=Path, help="folder that gets train/, val/ and test/")
    parser.add_argument("--scenes", type=PositiveInt, default=200, help="how many, over all splits")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="the same seed gives the same bytes")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes")
    futures = "two or three futures of each past, as scenes ID.0, ID.1 ... (to train on: data.branches)"
    parser.add_argument("--branches", action="store_true", help=futures)
    return parser


def preprocess_parser(source: str = "") -> Parser:
    """SOURCE RAW STORE, the common options, and those of the source's reader."""
    from data_prep.readers.names import READERS

    parser = new_parser(
        "Prepare a raw data set: one compact store, resumable (run the same command again), the same bytes whatever "
        "the number of workers. Scenes that cannot be used are skipped, counted and listed with their reason. "
        f"`trajformer preprocess SOURCE --help` also lists the options of a source ({', '.join(READERS)})."
    )
    parser.add_argument("source", choices=tuple(READERS), help="layout of RAW")
    parser.add_argument("raw", type=Path, help="folder with train/, val/ ... as published")
    parser.add_argument("store", type=Path, help="folder of the store, made or extended")
    parser.add_argument("--split", nargs="+", default=[], help="only these splits (default: all found)")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes (a cluster uses all its CPUs)")
    parser.add_argument("--limit", type=PositiveInt, help="only the first so many scenes of each split")
    parser.add_argument("--shard-size", type=PositiveInt, default=250, help="scenes a file")
    parser.add_argument("--strict", action="store_true", help="stop at the first scene that cannot be used")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="seconds after which a scene is given up and skipped")
    parser.add_argument("--retry-skipped", action="store_true", help="make finished shards with skipped scenes again")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, how large and how long; write nothing")
    shared = "local processes, or a Ray cluster on which RAW and STORE are shared folders"
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help=shared)
    head = "HOST:PORT of the cluster's head, or auto (default: start Ray on this machine)"
    parser.add_argument("--ray-address", metavar="ADDRESS", help=head)
    if source in READERS:
        add_fields(parser, READERS[source])
    return parser


def store_parser(action: str = "") -> Parser:
    """info|head|verify STORE, merge STORE... --out STORE, export-scene STORE --scene ID --out FILE."""
    every = "Look at a store, check it, merge several, or take a scene out. `trajformer store ACTION --help` tells more."
    parser = new_parser(STORE_ACTIONS.get(action, every))
    chosen = [action] if action in STORE_ACTIONS else list(STORE_ACTIONS)
    summaries = "; ".join(f"{name}: {STORE_ACTIONS[name].split('. ')[0].lower()}" for name in chosen)
    parser.add_argument("action", choices=chosen, help=summaries)
    if action == "merge":
        parser.add_argument("stores", nargs="+", type=Path, metavar="store", help="finished stores, in this order")
        parser.add_argument("--out", type=Path, required=True, help="folder of the new store: none yet, or an empty one")
        return parser
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    if action in ("head", "export-scene"):
        parser.add_argument("--split", help="only this split (default: all)")
    if action == "head":
        parser.add_argument("--count", type=PositiveInt, default=10, help="how many scenes of a split")
    if action == "export-scene":
        parser.add_argument("--scene", required=True, help="id of the scene")
        parser.add_argument("--out", type=Path, required=True, help="file to write, its ending .json or .npz decides the format")
    return parser


def run_synthesize(args: Namespace) -> None:
    """`trajformer synthesize`."""
    from trajformer.cli import run_data as data

    data.synthesize(args.out, args.scenes, args.seed, args.workers, branches=args.branches)


def run_preprocess(args: Namespace) -> None:
    """`trajformer preprocess`."""
    from data_prep.readers.names import READERS
    from trajformer.cli import run_data as data

    kind: Any = READERS[args.source]
    reader = kind(**{field.name: args[field.name] for field in fields(kind)})
    options = {"splits": tuple(args.split), "workers": args.workers, "limit": args.limit}
    options |= {name: args[name] for name in ("shard_size", "strict", "timeout_s", "retry_skipped", "executor", "ray_address")}
    (data.preprocess_dry_run if args.dry_run else data.preprocess)(reader, args.raw, args.store, **options)


def run_store(args: Namespace) -> None:
    """`trajformer store`."""
    from trajformer.cli import store

    if args.action == "merge":
        store.merge(args.stores, args.out)
    elif args.action == "head":
        store.head(args.store, args.split, args.count)
    elif args.action == "export-scene":
        store.export(args.store, args.split, args.scene, args.out)
    else:
        {"info": store.info, "verify": store.verify}[args.action](args.store)
