"""`trajformer evaluate`: metrics of forecasters on the scenes of a store."""

from __future__ import annotations

from dataclasses import replace

from jsonargparse import Namespace

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.forecasters import add_forecasters, load_forecaster, sources
from trajformer.cli.parsing import Parser, new_parser
from trajformer.cli.results import add_results, groups_by, read_file, report, rules_of
from trajformer.errors import TrajformerError


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
    add_results(made)
    return made


def run(args: Namespace) -> None:
    """Print the metrics of models on a split."""
    from trajformer.evaluation.evaluate import evaluate

    check_outputs(args, json="json", csv="csv", markdown="md")
    groups_by(args)  # an unknown group is an error before the work
    rules = rules_of(args)
    names = [str(source) for source in sources(args)]
    if len(set(names)) < len(names):
        raise TrajformerError(f"--checkpoint {' '.join(names)}: give different ones")
    # all are loaded before the first one is scored, so that an error costs no time
    loaded = [load_forecaster(args, source, "evaluate") for source in sources(args)]
    scorings = []
    for name, (scenes, predictor) in zip(names, loaded, strict=True):
        one = evaluate(predictor, scenes, rules=rules, batch_size=args.batch_size, progress=bars())
        scorings.append(replace(one, label=name, agents=args.agents))
    baseline = None
    if args.against is not None:
        baseline = read_file(args, scenes, args.against, bars())
    report(args, scenes, scorings, baseline)
