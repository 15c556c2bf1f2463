"""`trajformer score`: metrics of forecast files of any origin."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.raw_scenes import RawScenes, scenes_of_raw
from data_prep.readers.names import READERS
from trajformer.cli.files import bars, check_outputs
from trajformer.cli.forecasters import AGENT_CHOICES, warn_if_interrupted
from trajformer.cli.kept_parts import open_json_folder, remove_parts, run_kept_parts
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.cli.parts import add_parts, has_parts
from trajformer.cli.results import add_results, groups_by, read_file, report, rules_of
from trajformer.cli.splits import DEFAULT_SPLIT, SPLIT_HELP, default_split
from trajformer.errors import TrajformerError
from trajformer.evaluation.parts import Part, Slice
from trajformer.scenes.spec import warn
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    from trajformer.evaluation.score import PartRunner, PartScorer, ScoredPart, Tracks

# repeated from evaluation.forecast_csv
CSV_COLUMNS = ("scene_id", "track_id", "mode", "probability", "step", "x", "y")


def parser() -> Parser:
    """FORECASTS... (--store STORE | --raw SOURCE RAW)."""
    made = new_parser(
        "Score files of forecasts with the recorded futures of a store or a raw data set: the "
        "metrics and tables of `trajformer evaluate`. Files are those of `trajformer predict`, or "
        "of other programs: parquet with the columns of the Argoverse 2 challenge, or CSV with the "
        f"columns {', '.join(CSV_COLUMNS)} (steps from 1, metres, frame of the city). Missing, "
        "surplus and repeated agents, wrong horizons and wrong probabilities are counted and "
        "listed. Several files are compared with the first."
    )
    add_forecasts(made)
    add_parts(made)
    made.set_defaults(threads=1, accelerator="cpu")  # parts have no model
    add_results(made)
    add_overwrite(made)
    return made


def add_forecasts(made: Parser) -> None:
    """Add the options for forecast files, the recorded scenes and the agents."""
    made.add_argument("forecasts", type=Path, nargs="+", help="parquet or CSV files")
    recorded = made.add_mutually_exclusive_group(required=True)
    recorded.add_argument("--store", type=Path, help="folder made by `trajformer preprocess`")
    recorded.add_argument(
        "--raw",
        nargs=2,
        metavar=("SOURCE", "RAW"),
        help="raw data without a store: a data set of `trajformer preprocess`, and its folder",
    )
    made.add_argument("--split", help=SPLIT_HELP)
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


def run(args: Namespace) -> None:
    """Print the metrics of forecast files on a split."""
    if args.raw is not None:
        args.raw = [args.raw[0], Path(args.raw[1])]
    check_outputs(args, json="json", csv="csv", markdown="md")
    groups_by(args)  # an unknown group is an error before the work
    names = [str(path) for path in args.forecasts]
    if len(set(names)) < len(names):
        raise TrajformerError(f"{' '.join(names)}: give different files")
    by_parts = has_parts(args)
    scenes = recorded_scenes(args)
    if by_parts and isinstance(scenes, RawScenes):
        raise TrajformerError("--workers, --cluster: are for --store")
    files = [*args.forecasts]
    if args.against is not None:
        files.append(args.against)
    scorings = []
    for number, path in enumerate(files):
        run_each: PartRunner | None = None
        if by_parts:
            assert isinstance(scenes, SceneStore)
            folder = open_json_folder(args, number, path, rules=rules_of(args))
            run_each = partial(_score_parts, args, scenes, folder)
        scorings.append(read_file(args, scenes, path, bars(), run_each))
    baseline = None if args.against is None else scorings.pop()
    report(args, scenes, scorings, baseline)
    if by_parts:
        remove_parts(args.json)
    if isinstance(scenes, RawScenes) and scenes.warnings:
        count = f"{len(scenes.warnings)} warnings about its scenes"
        warn(f"{scenes.root}: {count}, the first: {next(iter(scenes.warnings))}")


def _score_parts(
    args: Namespace,
    scenes: SceneStore,
    folder: Path | None,
    scorer: PartScorer,
    parts: list[Part],
    tracks: Tracks,
) -> Iterator[tuple[Part, ScoredPart]]:
    """Score parts by several processes; each receives the forecasts of its scenes."""
    from trajformer.evaluation.score import ScoredPart

    scene_ids = scenes.scene_ids()
    jobs = {}
    for part in parts:
        names = set(scene_ids[part.start : part.stop])
        of_part = {name: tracks[name] for name in names & tracks.keys()}
        jobs[part] = partial(_score_slice, scorer=scorer, tracks=of_part)
    yield from run_kept_parts(args, None, jobs, folder, ScoredPart)


def _score_slice(_: object, scenes: Slice, scorer: PartScorer, tracks: Tracks) -> ScoredPart:
    """The job of a part, which needs no forecaster."""
    return scorer(tracks, scenes)


def recorded_scenes(args: Namespace) -> SceneStore | RawScenes:
    """The scenes of --store or --raw.

    Raises TrajformerError: they do not exist, or the reader has options without a default.
    """
    if args.store is not None:
        warn_if_interrupted(args.store)
        args.split = args.split or default_split(args.store)
        return SceneStore(args.store, args.split)
    source, raw = args.raw
    args.split = args.split or DEFAULT_SPLIT
    if source not in READERS:
        raise TrajformerError(f"--raw {source}: expected one of {', '.join(READERS)}")
    try:
        reader = READERS[source]()
    except TypeError as error:
        remedy = f"prepare a store with `trajformer preprocess {source}`"
        raise TrajformerError(f"--raw {source}: has options without a default; {remedy}") from error
    return scenes_of_raw(reader, raw, args.split)
