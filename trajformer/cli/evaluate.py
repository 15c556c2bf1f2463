"""`trajformer evaluate`: metrics of forecasters on the scenes of a store."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.forecasters import add_forecasters, load_forecaster, sources
from trajformer.cli.kept_parts import open_json_folder, remove_parts, run_kept_parts
from trajformer.cli.parsing import Parser, new_parser
from trajformer.cli.parts import add_parts, has_parts
from trajformer.cli.results import add_results, groups_by, read_file, report, rules_of
from trajformer.errors import TrajformerError
from trajformer.evaluation.parts import Slice, plan

if TYPE_CHECKING:
    from trajformer.evaluation.scoring import Rules, Scoring
    from trajformer.evaluation.tally import TallyContents
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.store import SceneStore


def parser() -> Parser:
    """(--checkpoint CKPT... | --model NAME) --store STORE."""
    made = new_parser(
        "Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1, 6 and (if the model "
        "has 20 modes) 20 modes, means over agents with a recorded last step, and their 95 % "
        "intervals. The best mode has the smallest end-point error, and minADE is its ADE, as in "
        "Argoverse 2. Lengths are in the unit of the store. MR is the share of agents with a "
        "minFDE above 2. Then, for the most probable mode and for the recording: 99th percentiles "
        "of acceleration (length/s2), yaw rate (rad/s) and jerk (length/s3), and the share of ends "
        "more than 3 m from every lane. Several checkpoints are compared with the first. "
        "`trajformer benchmark` scores by the rules of a published benchmark, `trajformer score` "
        "scores files."
    )
    add_forecasters(made)
    add_parts(made)
    add_results(made)
    return made


def run(args: Namespace) -> None:
    """Print the metrics of models on a split."""
    from trajformer.evaluation.evaluate import evaluate

    check_outputs(args, json="json", csv="csv", markdown="md")
    groups_by(args)  # an unknown group is an error before the work
    rules = rules_of(args)
    by_parts = has_parts(args)
    names = [str(source) for source in sources(args)]
    if len(set(names)) < len(names):
        raise TrajformerError(f"--checkpoint {' '.join(names)}: give different ones")
    # all are loaded before the first one is scored, so that an error costs no time
    loaded = [load_forecaster(args, source, "evaluate") for source in sources(args)]
    scorings: list[Scoring] = []
    for source, (scenes, predictor) in zip(sources(args), loaded, strict=True):
        if by_parts:
            assert source is not None  # an error of `load_forecaster`
            size = args.batch_size
            folder = open_json_folder(args, len(scorings), source, batch_size=size, rules=rules)
            one = _evaluate_parts(args, source, scenes, predictor, rules, folder)
        else:
            size = args.batch_size
            one = evaluate(predictor, scenes, rules=rules, batch_size=size, progress=bars())
        scorings.append(replace(one, label=str(source), agents=args.agents))
    baseline = None
    if args.against is not None:
        baseline = read_file(args, scenes, args.against, bars())
    report(args, scenes, scorings, baseline)
    if by_parts:
        remove_parts(args.json)


def _evaluate_parts(
    args: Namespace,
    source: Path | str,
    scenes: SceneStore,
    predictor: Predictor,
    rules: Rules,
    folder: Path | None,
) -> Scoring:
    """The record of a model, from the tallies of the parts of the split, joined in their order.

    The tallies are kept in `folder` until the output is written.
    """
    from trajformer.evaluation.evaluate import scoring_of
    from trajformer.evaluation.tally import Tally, TallyContents

    parts = plan(len(scenes), args.batch_size)
    job = partial(tally_part, rules=rules, batch_size=args.batch_size)
    jobs = dict.fromkeys(parts, job)
    contents = dict(run_kept_parts(args, source, jobs, folder, TallyContents))
    tally = Tally(rules)
    for part in parts:
        tally.join(contents.pop(part))
    return scoring_of(tally, predictor, scenes)


def tally_part(predictor: Predictor, scenes: Slice, rules: Rules, batch_size: int) -> TallyContents:
    """The tally of a part."""
    from trajformer.evaluation.evaluate import score_scenes

    return score_scenes(predictor, scenes, rules, batch_size=batch_size).contents()
