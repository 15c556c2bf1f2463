"""`trajformer score`: metrics of forecast files of any origin."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.forecasters import AGENT_CHOICES, warn_if_interrupted
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.cli.results import add_results, groups_by, read_file, report
from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore


def parser() -> Parser:
    """FORECASTS... --store STORE."""
    made = new_parser(
        "Score files of forecasts with the recorded futures of a store: the metrics and tables of "
        "`trajformer evaluate`. Files are those of `trajformer predict`, or of other programs with "
        "the columns of the Argoverse 2 challenge. Missing, surplus and repeated agents, wrong "
        "horizons and wrong probabilities are counted and listed. Several files are compared with "
        "the first."
    )
    made.add_argument("forecasts", type=Path, nargs="+", help="parquet files")
    made.add_argument(
        "--store", type=Path, required=True, help="folder made by `trajformer preprocess`"
    )
    made.add_argument("--split", default="val", help="split of the store")
    made.add_argument(
        "--agents",
        choices=AGENT_CHOICES,
        default="scored",
        help="agents to score: those that the data set scores, its focal agent, all that move, or "
        "every agent seen in the last observed second",
    )
    made.add_argument(
        "--joint",
        action="store_true",
        help="mode k of all agents of a scene is one joint future: also errors of whole scenes",
    )
    add_results(made)
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Print the metrics of forecast files on a split."""
    check_outputs(args, json="json", csv="csv", markdown="md")
    groups_by(args)  # an unknown group is an error before the work
    names = [str(path) for path in args.forecasts]
    if len(set(names)) < len(names):
        raise TrajformerError(f"{' '.join(names)}: give different files")
    warn_if_interrupted(args.store)
    scenes = SceneStore(args.store, args.split)
    scorings = [read_file(args, scenes, path, bars()) for path in args.forecasts]
    baseline = None
    if args.against is not None:
        baseline = read_file(args, scenes, args.against, bars())
    report(args, scenes, scorings, baseline)
