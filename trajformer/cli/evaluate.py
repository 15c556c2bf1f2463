"""`trajformer evaluate`: metrics of a forecaster on the scenes of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.forecasters import add_forecaster, load_forecaster
from trajformer.cli.parsing import Parser, new_parser
from trajformer.scenes.files import write_atomically
from trajformer.scenes.scene import METRES

if TYPE_CHECKING:
    import pandas as pd

    from trajformer.evaluation.evaluate import Evaluation

STANDING_M = 0.5
NEAR_M = 0.5
BRIEF_S = 1.0  # in less time, one cannot see whether an agent stands
MIN_ADE = "ADE of the mode with the smallest end-point error, as in Argoverse 2"
GROUP_METRICS = {  # columns of the tables by group, and how pandas aggregates them
    "agents": "sum",
    "minADE6": "mean",
    "minFDE6": "mean",
    "MR6": "mean",
    "minFDE1": "mean",
    "near": "mean",
}


def parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE."""
    made = new_parser(
        "Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1, 6 and (if the model "
        "has 20 modes) 20 modes, means over agents with a recorded last step. The best mode has "
        "the smallest end-point error, and minADE is its ADE, as in Argoverse 2. Lengths are in "
        "the unit of the store. MR is the share of agents with a minFDE above 2. Then, for the "
        "most probable mode and for the recording: 99th percentiles of acceleration (length/s2), "
        "yaw rate (rad/s) and jerk (length/s3), and the share of ends more than 3 m from every "
        "lane. "
        "`trajformer benchmark` scores by the rules of a published benchmark."
    )
    add_forecaster(made)
    made.add_argument("--json", type=Path, help="also write the metrics to this file")
    made.add_argument("--csv", type=Path, help="also write a table with one row per agent")
    return made


def run(args: Namespace) -> None:
    """Print the metrics of a model on a split."""
    from trajformer.evaluation.evaluate import evaluate

    check_outputs(args, json="json", csv="csv")
    scenes, predictor, source = load_forecaster(args, "evaluate")
    evaluation = evaluate(predictor, scenes, batch_size=args.batch_size, progress=bars())
    label = source
    if evaluation.on_training_split:
        label = f"{source} (on its training split)"
    with_groups = args.agents != "scored" and scenes.unit == METRES  # their limits are in metres
    groups = groups_of(evaluation.per_agent) if with_groups else {}
    # Files first: a reader of this output that ends early (head) does not lose them. The metrics
    # are printed in any case, so that a full disk does not lose them.
    try:
        _write(args, evaluation, groups, scenes.num_skipped)
    finally:
        if scenes.unit != METRES:
            print(f"lengths in {scenes.unit}")
        print_protocol(evaluation)
        note = skipped_note(scenes)
        if note:
            print(note)
        print_table({label: evaluation.metrics})
        if groups:
            print_groups(groups)


def _write(
    args: Namespace, evaluation: Evaluation, groups: dict[str, pd.DataFrame], num_skipped: int
) -> None:
    if args.json is not None:
        content: dict[str, Any] = dict(evaluation.metrics)
        content["protocol"] = protocol(evaluation)
        content["num_skipped"] = num_skipped
        if groups:
            content["groups"] = {
                name: json.loads(table.reset_index().to_json(orient="records"))
                for name, table in groups.items()
            }
        write_atomically(args.json, json.dumps(content, indent=1) + "\n")
    if args.csv is not None:
        write_atomically(args.csv, evaluation.per_agent.round(6).to_csv(index=False))


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per model: best of 1 and 6; further tables for 20 modes, worlds and others."""
    import pandas as pd

    table = pd.DataFrame.from_dict(rows, orient="index").rename(columns={"num_agents": "agents"})
    blocks: dict[str, list[str]] = {"best": [], "best of 20": [], "worlds": [], "others": []}
    for name in table:
        block = _block(str(name))
        if block is not None:
            blocks[block].append(str(name))
    for names in blocks.values():
        if names:
            print(table[["agents", *names]].to_string(float_format="{:.3f}".format))


def _block(name: str) -> str | None:
    """The table in which a metric is printed, None for none."""
    if name in ("agents", "minFDE") or name.startswith("num_"):
        return None
    if name.startswith(("avg", "actor")):
        return "worlds"
    if name.endswith("20"):
        return "best of 20"
    return "best" if name[-1].isdigit() else "others"


def protocol(evaluation: Evaluation) -> dict[str, Any]:
    """How the metrics were computed: the horizon, the number of complete futures, and minADE."""
    scenes = evaluation.scenes
    num_future = scenes.num_future or 0
    return {
        "horizon_s": round(num_future * (scenes.period_s or 0.0), 6),
        "horizon_steps": num_future,
        "forecast_agents": evaluation.num_targets,
        "complete_futures": evaluation.complete_futures,
        "minADE": MIN_ADE,
        "unit": scenes.unit,
    }


def print_protocol(evaluation: Evaluation) -> None:
    """Print how the metrics were computed."""
    values = protocol(evaluation)
    horizon = f"horizon {values['horizon_s']:g} s ({values['horizon_steps']} steps)"
    scored = f"{len(evaluation.per_agent)} of {evaluation.num_targets} forecast agents"
    complete = f"{values['complete_futures']} of them at every step"
    print(f"{horizon}; {scored} are recorded at its end and scored, {complete}")
    print(f"minADE: {MIN_ADE}; brier: minFDE + (1 - p)^2 with its probability p")


def groups_of(per_agent: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Errors by type and motion, and by manoeuvre: tables by name.

    "standing" agents move less than `STANDING_M` in their history and in their future. Agents that
    were first seen less than `BRIEF_S` ago are "brief": it is unknown whether they stand. "near" is
    the fraction of agents with a minFDE1 of at most `NEAR_M`.
    """
    largest_motion = per_agent[["history_m", "future_m"]].max(axis=1)
    is_standing = largest_motion < STANDING_M
    motion = is_standing.map({True: "standing", False: "moving"})
    motion = motion.where(per_agent.history_s > BRIEF_S - 1e-3, "brief")
    named = per_agent.assign(motion=motion, agents=1, near=per_agent.minFDE1 <= NEAR_M)
    return {
        "type and motion": named.groupby(["type", "motion"]).agg(GROUP_METRICS),
        "manoeuvre": named.groupby("manoeuvre").agg(GROUP_METRICS),
    }


def print_groups(groups: dict[str, pd.DataFrame]) -> None:
    """Print the tables of `groups_of`, and the meaning of their words."""
    print(
        f"standing: moves less than {STANDING_M:g} m before and after the last observed step; "
        f"brief: first seen less than {BRIEF_S:g} s before it; "
        f"near: fraction of agents with a minFDE1 of at most {NEAR_M:g} m"
    )
    for table in groups.values():
        print(table.round(3).to_string())
