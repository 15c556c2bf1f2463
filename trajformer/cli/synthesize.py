"""`trajformer synthesize`: simulated traffic as raw data."""

from argparse import Namespace
from pathlib import Path

from trajformer.cli.files import bars, keep_arguments
from trajformer.cli.parsing import NonNegativeInt, Parser, PositiveInt, add_workers, new_parser
from trajformer.scenes.files import lock_folder


def parser() -> Parser:
    """OUT --scenes N --seed S."""
    made = new_parser(
        "Simulate traffic in the raw layout of Argoverse 2, with the splits train, val and test."
    )
    made.add_argument("out", type=Path, help="output folder, receives train/, val/ and test/")
    made.add_argument(
        "--scenes", type=PositiveInt, default=200, help="number of scenes in all splits together"
    )
    made.add_argument(
        "--seed", type=NonNegativeInt, default=0, help="the same seed gives the same bytes"
    )
    add_workers(made)
    made.add_argument(
        "--branches",
        action="store_true",
        help="write two or three futures of each past as scenes ID.0, ID.1 ... "
        "(for training with data.branches)",
    )
    return made


def run(args: Namespace) -> None:
    """Write the scenes and print the number of scenes per split."""
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
    numbers = ", ".join(f"{split} {count}" for split, count in counts.items())
    unit = "pasts" if args.branches else "scenes"
    print(f"{numbers} {unit} in {args.out}")
