"""Train models on the same number of futures and compare accuracy, also by manoeuvre, latency, memory and training time.

    python tools/compare/models.py --store stores/av1 --out runs/compare --table configs/compare/models.yaml \
        [--futures 300000] [--seeds 0 1] [--jobs 2] [--paired] [--json FILE] [--markdown docs/results/argoverse1.md] [--plot FILE]

A table file is a YAML list of {name, config, arguments, epochs, after} and {name, model}. Each row is trained on one thread, for
its epochs or for the number of epochs that is closest to --futures (agents with a known future); the learning rate schedule ends
with the training. Second stages (`after`) are trained after their first stages. The best checkpoint is scored as by `trajformer
evaluate`. A row whose recipe has `trainer.minutes` is trained for this time, and its last checkpoint is scored. --paired adds the
differences of all rows from the first one, with the intervals of `tools/paired.py`. Cost is measured after all trainings:
forecasts of recorded scenes on one thread.

Finished runs are reused, interrupted runs (Ctrl-C) resume, failed runs are repeated. A run is a folder OUT/<row>/seed<N> with
run.json (minutes, epochs, futures, recipe, digest of the data), log.txt, scores.json and agents.csv. The cost is in
OUT/<row>/cost.json; remove the file to measure it again (for example if the machine was busy: `load_before`). All JSON files
contain the commit and the command that made them. --untrained only measures the cost, --finished does not train: rows have the
figures of the finished seeds. Further options are fields of all recipes of the table, such as --trainer.minutes 5.
--markdown replaces the text between `<!-- table: NAME -->` and `<!-- end -->`; NAME is the file name of the table without .yaml.
"""

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is a script in a subfolder of tools

import paired
from compare import table
from compare.cost import cost
from compare.trainings import Row, Training, fields_of, folder_of, plan, read_table, train_all
from measure import environment, origin, write_json

from trajformer.cli import RERUN, exit_status
from trajformer.cli.files import bars, check_outputs
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.files import lock_folder, write_atomically
from trajformer.scenes.store import SceneStore

FIXED = (
    "seed",
    "first_stage",
    "data.train",
    "data.val",
    "trainer.epochs",
    "trainer.threads",
    "trainer.validate_every",
)


@dataclass
class Result:
    """Figures of a row by seed ("-" for a model without training), its cost, and its failures, one line each."""

    row: Row
    seeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def list_failure(self, part: str = "") -> Iterator[None]:
        """Add an error of the body to the failures."""
        try:
            yield
        except TrajformerError as error:
            self.failed.append(f"{part}{error}")


@functools.cache
def focal_manoeuvres(store: Path, split: str) -> dict[tuple[str, str], str]:
    """Recorded manoeuvre of each focal agent by scene and track id."""
    agents = {}
    for scene in SceneStore(store, split):
        batch = collate([scene], BatchConfig(targets="focal", max_agents=1))
        observation, truth = batch.observation, batch.truth
        pose = observation.pose[:, : observation.num_targets]
        kind, known = manoeuvres(truth.position, truth.valid, pose, observation.period_s)
        if known.any():
            agents[scene.scene_id, observation.agent_id[0][0]] = Manoeuvre(int(kind[known])).label
    return agents


def score(source: Path | str, folder: Path, store: Path, split: str) -> dict[str, Any]:
    """Figures of a checkpoint or a named model without training; stored in scores.json and agents.csv."""
    file = folder / "scores.json"
    if isinstance(source, str) or not file.exists():
        evaluation = evaluate(load_predictor(source), SceneStore(store, split), progress=bars())
        agents, kinds = evaluation.per_agent, focal_manoeuvres(store, split)
        known = [kinds.get(key) for key in zip(agents.scenario_id, agents.track_id, strict=True)]
        groups = agents.groupby(
            pd.Series(known, agents.index, dtype=object)
        )  # a list is no key if all are None, as in pixels
        by_manoeuvre: dict[str, dict[str, float]] = {kind.label: {"count": 0} for kind in Manoeuvre}
        by_manoeuvre |= {
            str(kind): {"count": len(of), **of[["minFDE6", "MR6"]].mean()} for kind, of in groups
        }
        write_atomically(folder / "agents.csv", agents.round(6).to_csv(index=False))
        record = origin() | {"scores": evaluation.metrics, "manoeuvres": by_manoeuvre}
        write_atomically(file, json.dumps(record, indent=1) + "\n")
    record = json.loads(file.read_text())
    return {name: record[name] for name in ("scores", "manoeuvres")}


def train_and_score(results: list[Result], args: argparse.Namespace) -> None:
    """Train missing runs, and score finished runs and models without training."""
    plans: dict[Training, Result] = {}
    for result in results:
        row = result.row
        with result.list_failure():
            if row.model:
                result.seeds["-"] = score(
                    row.model, args.out / folder_of(row.name), args.store, "val"
                ) | {"run": {}}
                continue
            of_row = [plan(row, seed, args.store, args.out, args.futures) for seed in args.seeds]
            done = sum(one.record()["done"] for one in of_row)
            plans |= dict.fromkeys(of_row, result)
            print(f"{row.name}: {done} of {len(of_row)} trainings are done", flush=True)
    for second_stage in () if args.finished else (False, True):
        missing = [
            one for one in plans if bool(one.row.after) == second_stage and not one.record()["done"]
        ]
        for one, line in train_all(missing, args.jobs).items():
            plans[one].failed.append(f"seed {one.seed}: {line}")
    for one, result in plans.items():
        record = one.record()
        with result.list_failure(f"seed {one.seed}: "):
            if record["done"]:
                metrics = score(one.checkpoint, one.folder, args.store, one.recipe.data.val_split)
                run = {name: record[name] for name in ("minutes", "epochs", "futures")}
                result.seeds[str(one.seed)] = metrics | {"run": run}


def differences(results: list[Result], out: Path) -> dict[str, pd.DataFrame]:
    """Table of the differences from the first row, over the agents and the means of all seeds, with paired intervals."""
    files = {}
    for one in (result for result in results if result.seeds):
        folder = out / folder_of(one.row.name)
        files[one.row.name] = [
            (folder if seed == "-" else folder / f"seed{seed}") / "agents.csv" for seed in one.seeds
        ]
    first, lines = next(iter(files), ""), {}
    for name in list(files)[1:]:
        found = paired.compare(files[name], files[first], paired.COLUMNS)
        lines[name] = [
            f"{gap:+.3f} ({low:+.3f} to {high:+.3f})"
            for gap, low, high in found.iloc[:, 2:].to_numpy()
        ]
    title = f"Differences from '{first}' with paired 95 % intervals over scenes"
    return (
        {title: pd.DataFrame.from_dict(lines, orient="index", columns=paired.COLUMNS)}
        if lines
        else {}
    )


def compare(args: argparse.Namespace, options: list[str]) -> None:
    """Run the comparison, print the tables and write the requested files; a failed row is an error after the output."""
    results = [Result(row) for row in read_table(args.table, fields_of(options, FIXED))]
    if options:
        for result in results:
            _ = result.row.recipe  # a wrong option is an error before anything is run or written
    SceneStore(args.store, "val")  # errors before the trainings
    check_outputs(args, json="json", plot="png")
    if args.markdown:
        table.replace_between(args.markdown, args.table.stem, None)
    with lock_folder(args.out):
        if not args.untrained:
            train_and_score(results, args)
        for result in results:
            if result.seeds or not result.failed:
                with result.list_failure("cost: "):
                    result.cost = cost(
                        result.row.recipe,
                        args.out / folder_of(result.row.name),
                        args.store,
                        args.repeats,
                    )
    rows = [
        {"name": result.row.name, **asdict(result), **table.summarize(result.seeds)}
        for result in results
    ]
    tables = table.tables(rows)
    if args.paired:
        tables |= differences(results, args.out)
    failures = [f"- {result.row.name}: {reason}" for result in results for reason in result.failed]
    failed = ["\n".join(["Failed:", "", *failures])] if failures else []
    print(
        "\n"
        + "\n\n".join(
            [*(f"{title}:\n{cells.to_string()}" for title, cells in tables.items()), *failed]
        )
    )
    if args.json:
        write_json(args.json, rows, environment() | {"threads": 1}, futures=args.futures)
    if args.markdown:
        commit = f"Tables made by commit {origin()['commit']}."
        text = "\n\n".join([*(table.markdown(*item) for item in tables.items()), *failed, commit])
        table.replace_between(args.markdown, args.table.stem, text)
    if args.plot:
        table.plot(rows, args.plot)
    if failures:
        raise TrajformerError(f"failed, see above: {len(failures)}")


def main(words: list[str] | None = None) -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument(
        "--table", type=Path, required=True, help="a file of configs/compare, or another one"
    )
    parser.add_argument(
        "--futures",
        type=int,
        default=300_000,
        help="approximate number of training futures per model",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2, help="parallel trainings, one thread each")
    parser.add_argument(
        "--paired", action="store_true", help="add the differences from the first row"
    )
    parser.add_argument("--untrained", action="store_true", help="measure the cost only")
    parser.add_argument(
        "--finished", action="store_true", help="do not train, use the finished runs"
    )
    parser.add_argument("--repeats", type=int, default=30, help="forecasts for the median latency")
    for name in ("json", "markdown", "plot"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing files of --json and --plot"
    )
    args, options = parser.parse_known_args(words)
    return exit_status("compare", lambda: compare(args, options), f"{RERUN} to resume")


if __name__ == "__main__":
    sys.exit(main())
