"""Options and output of commands that score forecasts: terminal, JSON, CSV and Markdown.

All are renderings of the same records (`trajformer.evaluation.scoring`).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trajformer.cli.files import skipped_note
from trajformer.cli.parsing import Parser, PositiveFloat, PositiveInt
from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.files import write_atomically
from trajformer.scenes.scene import METRES
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    import pandas as pd

    from trajformer.evaluation.breakdown import GroupKey
    from trajformer.evaluation.evaluate import Scenes
    from trajformer.evaluation.forecast_file import AllModes
    from trajformer.evaluation.score import PartRunner
    from trajformer.evaluation.scoring import Detail, Rules, Scoring
    from trajformer.evaluation.tables import Table

    class RecordedScenes(Scenes, Protocol):
        """Scenes of a store, or of a raw folder."""

        @property
        def unit(self) -> str:
            """Unit of the lengths in all scenes."""

        @property
        def num_skipped(self) -> int:
            """Number of inputs without a scene."""


# repeated from evaluation, which loads slow libraries
DETAILS: tuple[Detail, ...] = ("map", "dynamics", "overlap", "calibration", "crowd")
COLLISION_M = 0.2
GROUP_KEYS = ("type", "manoeuvre", "speed", "city", "role")
STANDING_M = 0.5
NEAR_M = 0.5
BRIEF_S = 1.0  # in less time, one cannot see whether an agent is at rest
GROUP_METRICS = {  # columns of the tables by group, and how pandas aggregates them
    "agents": "sum",
    "minADE6": "mean",
    "minFDE6": "mean",
    "MR6": "mean",
    "minFDE1": "mean",
    "near": "mean",
}
INTERVALS = "95 % intervals, bootstrap over scenes"
MARKDOWN_TITLE = "# Scores of forecasts"  # `files.KINDS` recognizes it


def add_results(parser: Parser) -> None:
    """Add the options that select the scored agents and the output."""
    add_rules(parser)
    parser.add_argument(
        "--against",
        type=Path,
        help="forecast file to compare with: differences on common agents, with intervals, and "
        "the shares of scenes with smaller and larger errors",
    )
    parser.add_argument("--json", type=Path, help="also write the metrics and tables to this file")
    parser.add_argument("--csv", type=Path, help="also write a table with one row per agent")
    parser.add_argument("--markdown", type=Path, help="also write the tables as Markdown")


def add_rules(parser: Parser) -> None:
    """Add the options that select the scored agents."""
    parser.add_argument(
        "--horizons",
        type=str,
        help="also errors at these horizons in seconds, such as 1,3,5, with the best mode of each",
    )
    groups = ", ".join(GROUP_KEYS)
    parser.add_argument("--by", type=str, help=f"also means by group, with commas: {groups}")
    parser.add_argument(
        "--best-of",
        type=PositiveInt,
        help="also errors of the best of this number of modes; ADE and FDE are separate minima, as "
        "in ETH/UCY (default: best of 1 and 6, and of 20 if there are 20 modes)",
    )
    names = ", ".join(DETAILS)
    parser.add_argument(
        "--details",
        type=str,
        help=f"further metrics, with commas, or all: {names} (map compliance; accelerations, yaw "
        "rates and jerks; overlaps of boxes; calibration; metrics of papers on pedestrians)",
    )
    parser.add_argument(
        "--collisions",
        type=PositiveFloat,
        help="with the details crowd: agents closer than this many metres collide (default: 0.2)",
    )
    parser.add_argument(
        "--complete-only",
        action="store_true",
        help="only agents whose future is recorded at every step of the horizon",
    )


def rules_of(args: Namespace) -> Rules:
    """The rules of a scoring by the options (TrajformerError: a value is malformed)."""
    from trajformer.evaluation.scoring import Rules

    return Rules(
        moving=args.agents == "moving",
        complete=args.complete_only,
        horizons_s=_seconds(args.horizons),
        best_of=args.best_of,
        details=_details(args),
        collision_m=args.collisions or COLLISION_M,
    )


def _details(args: Namespace) -> tuple[Detail, ...]:
    names: list[Any] = []
    if args.details is not None:
        names = _choices("--details", args.details, (*DETAILS, "all"))
    if "all" in names:
        return DETAILS
    if args.collisions is not None and "crowd" not in names:
        names.append("crowd")
    return tuple(names)


def _choices(option: str, text: str, choices: Sequence[str]) -> list[str]:
    """The different names of a list with commas (TrajformerError: one is not a choice)."""
    names = []
    for word in text.split(","):
        name = word.strip()
        if name not in choices:
            raise TrajformerError(f"{option} {text}: expected some of {', '.join(choices)}")
        if name not in names:
            names.append(name)
    return names


def _seconds(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    values = []
    for word in str(text).strip("[]").split(","):
        try:
            values.append(float(word))
        except ValueError as error:
            reason = "expected seconds with commas, such as 1,3,5"
            raise TrajformerError(f"--horizons {text}: {reason}") from error
    return tuple(sorted(set(values)))


def groups_by(args: Namespace) -> list[GroupKey]:
    """The keys of --by (TrajformerError: an unknown one)."""
    if args.by is None:
        return []
    keys: list[Any] = _choices("--by", args.by, GROUP_KEYS)
    return keys


def tables_of(
    scorings: Sequence[Scoring], keys: Sequence[GroupKey], baseline: Scoring | None
) -> list[Table]:
    """The tables that the options ask for. Differences are from `baseline`, or from the first."""
    from trajformer.evaluation import breakdown
    from trajformer.evaluation.reliability import has_diagram, reliability_diagram

    tables = []
    has_details = bool(breakdown.detail_names(scorings[0]))
    if has_details:
        tables.append(breakdown.details(scorings))
    if has_diagram(scorings[0]):
        tables.append(reliability_diagram(scorings))
    if scorings[0].rules.horizons_s:
        tables.append(breakdown.by_horizon(scorings))
    for key in keys:
        tables.append(breakdown.by_group(scorings, key))
        if has_details:
            tables.append(breakdown.details_by_group(scorings, key))
    compared = list(scorings)
    if baseline is None:
        baseline = compared.pop(0)
    for one in compared:
        for of_key in (None, *keys):
            tables.append(breakdown.paired(one, baseline, of_key))
            if breakdown.common_details(one, baseline):
                tables.append(breakdown.paired_details(one, baseline, of_key))
    return tables


def report(
    args: Namespace, scenes: RecordedScenes, scorings: Sequence[Scoring], baseline: Scoring | None
) -> None:
    """Write the files of the options, and print the results of one or more scorings."""
    from trajformer.evaluation import breakdown

    keys = groups_by(args)
    overall = breakdown.overall(scorings)
    worlds = breakdown.worlds(scorings)
    tables = tables_of(scorings, keys, baseline)
    # their limits are in metres
    with_groups = args.agents != "scored" and scenes.unit == METRES and len(scorings) == 1
    groups = groups_of(scorings[0].per_agent) if with_groups else {}
    all_tables = [overall, *tables]
    if worlds is not None:
        all_tables.insert(1, worlds)
    note = ""  # unreadable scenes of a raw folder are findings
    if isinstance(scenes, SceneStore):
        note = skipped_note(scenes)
    # Files first: a reader of this output that ends early (head) does not lose them. The metrics
    # are printed in any case, so that a full disk does not lose them.
    try:
        if args.json is not None:
            content = json_content(scorings, all_tables, groups, scenes.num_skipped)
            write_atomically(args.json, json.dumps(content, indent=1) + "\n")
        if args.csv is not None:
            write_atomically(args.csv, _csv(scorings))
        if args.markdown is not None:
            at_the_end = without_horizons(overall)
            write_atomically(args.markdown, markdown_text(scorings, [at_the_end, *all_tables[1:]]))
    finally:
        if scenes.unit != METRES:
            print(f"lengths in {scenes.unit}")
        print_protocols(scorings)
        if note:
            print(note)
        for one in scorings:
            print_findings(one)
        print_table({name_of(one): one.metrics for one in scorings})
        print_tables([intervals(overall)], len(scorings))
        if worlds is not None:
            print_tables([intervals(worlds)], len(scorings))
        if groups:
            print_groups(groups)
        print_tables(tables, len(scorings))


def name_of(scoring: Scoring) -> str:
    """The label of a scoring, with a note about its training split."""
    if scoring.on_training_split:
        return f"{scoring.label} (on its training split)"
    return scoring.label


def _csv(scorings: Sequence[Scoring]) -> str:
    """The rows of all agents; the last column of several scorings is their label."""
    import pandas as pd

    parts = [one.per_agent for one in scorings]
    if len(parts) > 1:
        parts = [one.per_agent.assign(forecast=one.label) for one in scorings]
    return str(pd.concat(parts).round(6).to_csv(index=False))


def json_content(
    scorings: Sequence[Scoring],
    tables: Sequence[Table],
    groups: dict[str, pd.DataFrame],
    num_skipped: int,
) -> dict[str, Any]:
    """The metrics of a scoring, or a list of several metrics, and all tables by name."""
    from trajformer.evaluation.tables import as_plain

    results = []
    for one in scorings:
        content: dict[str, Any] = dict(one.metrics)
        content["protocol"] = protocol(one)
        content["num_skipped"] = num_skipped
        if one.findings:
            content["findings"] = [finding.to_plain() for finding in one.findings]
        results.append(content)
    plain_tables = {table.name: as_plain(table) for table in tables}
    if len(results) > 1:
        for content, one in zip(results, scorings, strict=True):
            content["forecast"] = one.label
        return {"forecasts": results, "tables": plain_tables}
    content = results[0]
    if groups:
        content["groups"] = {
            name: json.loads(table.reset_index().to_json(orient="records"))
            for name, table in groups.items()
        }
    content["tables"] = plain_tables
    return content


def markdown_text(scorings: Sequence[Scoring], tables: Sequence[Table]) -> str:
    """A page with the protocol and all tables."""
    from trajformer.evaluation.tables import as_markdown

    parts = [MARKDOWN_TITLE]
    for one in scorings:
        lines = [f"- {line}" for line in (f"forecast: {name_of(one)}", *protocol_lines(one))]
        lines += [f"- {finding.line()}" for finding in one.findings]
        parts.append("\n".join(lines))
    parts.append(f"Means with {INTERVALS}.")
    for table in tables:
        parts.append(as_markdown(table))
    return "\n\n".join(parts) + "\n"


def intervals(table: Table) -> Table:
    """The intervals without the means, which are printed elsewhere."""
    from trajformer.evaluation.tables import only_intervals

    return only_intervals(without_horizons(table), INTERVALS)


def without_horizons(table: Table) -> Table:
    """The table without columns of shorter horizons, which have a table of their own."""
    return table.only([name for name in table.columns if "@" not in name])


def print_tables(tables: Sequence[Table], num_scorings: int) -> None:
    """Print tables with their titles; the name of the forecast is left out if there is only one."""
    from trajformer.evaluation.tables import as_text

    for table in tables:
        shown = table
        if num_scorings == 1 and table.columns[0] != "forecast":
            shown = table.without("forecast")
        print(one_line(table.title))
        print(as_text(shown))


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
    if name in ("agents", "minFDE") or name.startswith("num_") or "@" in name:
        return None
    if name.startswith(("avg", "actor")):
        return "worlds"
    if name.endswith("20"):
        return "best of 20"
    return "best" if name[-1].isdigit() else "others"


def protocol(scoring: Scoring) -> dict[str, Any]:
    """How the metrics were computed: horizon, agents, complete futures, and minADE."""
    from trajformer.evaluation.scoring import MIN_ADE

    scenes = scoring.scenes
    num_future = scenes.num_future or 0
    return {
        "horizon_s": round(num_future * (scenes.period_s or 0.0), 6),
        "horizon_steps": num_future,
        "forecast_agents": scoring.num_targets,
        "complete_futures": scoring.complete_futures,
        "minADE": MIN_ADE,
        "unit": scenes.unit,
        "agents": scoring.agents,
        "complete_only": scoring.rules.complete,
        "joint": scoring.joint,
    }


def protocol_lines(scoring: Scoring) -> list[str]:
    """How the metrics were computed."""
    from trajformer.evaluation.scoring import MOVING_M

    values = protocol(scoring)
    horizon = f"horizon {values['horizon_s']:g} s ({values['horizon_steps']} steps)"
    scored = f"{len(scoring.per_agent)} of {values['forecast_agents']} forecast agents"
    conditions = ["recorded at its end"]
    if scoring.rules.complete:
        conditions.append("recorded at every step")
    if scoring.rules.moving:
        conditions.append(f"at least {MOVING_M:g} m from their start")
    complete = f"{values['complete_futures']} of them at every step"
    brier = "brier: minFDE + (1 - p)^2 with its probability p"
    return [
        f"{horizon}; {scored} are {', '.join(conditions)} and scored, {complete}",
        f"minADE: {values['minADE']}; {brier}",
    ]


def print_protocols(scorings: Sequence[Scoring]) -> None:
    """Print how the metrics were computed, once if it is the same for all."""
    lines: dict[str, None] = {}
    for one in scorings:
        for line in protocol_lines(one):
            lines.setdefault(line)
    for line in lines:
        print(line)


def print_findings(scoring: Scoring) -> None:
    """Print the agents that were not scored, with the first examples."""
    for finding in scoring.findings:
        print(one_line(f"{scoring.label}: {finding.line()}"))


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


def read_file(
    args: Namespace,
    scenes: RecordedScenes,
    path: Path,
    progress: bool,
    run: PartRunner | None = None,
) -> Scoring:
    """The record of a forecast file, with the agents and rules of the options."""
    modes = checked_modes(path, scenes)
    return score_modes(args, scenes, path, modes, rules_of(args), progress, run)


def checked_modes(path: Path, scenes: RecordedScenes) -> AllModes:
    """The content of a forecast file (TrajformerError: it is not for such scenes)."""
    from trajformer.evaluation.forecast_file import read_modes, read_spec
    from trajformer.evaluation.score import check_origin

    modes = read_modes(path)
    check_origin(read_spec(path), scenes)
    return modes


def score_modes(
    args: Namespace,
    scenes: RecordedScenes,
    path: Path,
    modes: AllModes,
    rules: Rules,
    progress: bool,
    run: PartRunner | None = None,
) -> Scoring:
    """The record of the content of a forecast file, with the agents of the options."""
    from trajformer.evaluation.score import score

    return score(
        modes,
        scenes,
        agents=args.agents,
        rules=rules,
        joint=args.joint,
        label=str(path),
        progress=progress,
        run=run,
    )
