"""Train models on the same number of futures and compare accuracy, also by manoeuvre, latency, memory and training time.

    python tools/compare/models.py --store stores/av1 --out runs/compare --table configs/compare/models.yaml \
        [--futures 300000] [--seeds 0 1] [--jobs 2] [--json FILE] [--markdown docs/results/argoverse1.md] [--plot FILE]

Rows are recipes (--configs, by default all for Argoverse 1) or the rows of a table file (a YAML list of {name, config,
arguments, epochs, after} and {name, model}). Each is trained on one thread, for its epochs or for the number of epochs that is
closest to --futures (agents with a known future); the learning rate schedule ends with the training. Second stages (`after`)
are trained after their first stages. The best checkpoint is scored as by `trajformer evaluate`. Cost is measured after all
trainings: forecasts of recorded scenes on one thread.

Finished runs are reused, interrupted runs (Ctrl-C) resume, failed runs are repeated. A run is a folder OUT/<row>/seed<N> with
run.json (minutes, epochs, futures, recipe), log.txt, scores.json and agents.csv. The cost is in OUT/<row>/cost.json; remove the
file to measure it again (for example if the machine was busy: `load_before`). All JSON files contain the commit and the command
that made them. --untrained only measures the cost, --finished does not train: rows have the figures of the finished seeds.
--markdown replaces the text between `<!-- table: NAME -->` and `<!-- end -->`; NAME is the file name of the table without .yaml.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is a script in a subfolder of tools

from compare import runs, table
from compare.cost import cost
from compare.rows import Plan, Row, plan, read_table, recipe_of, rows_of_configs
from compare.scores import scores
from measure import environment, origin, write_json

from trajformer.cli.files import make_room
from trajformer.cli.stopping import stops_cleanly
from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore

CONFIGS = Path(__file__).parents[2] / "configs"
NO_SEED = "-"  # key of a model without training


@dataclass
class Result:
    """Figures of a row by seed, its cost, and its failures, one line each."""

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

    def plain(self) -> dict[str, Any]:
        """Plain values of the row in JSON files."""
        figures = {"name": self.row.name, "words": list(self.row.words) or [self.row.model], "seeds": self.seeds}
        return figures | table.summarize(self.seeds) | {"cost": self.cost, "failed": self.failed}


def train(results: list[Result], args: argparse.Namespace) -> dict[Plan, Result]:
    """Train all rows that need training; returns the finished runs."""
    plans: dict[Plan, Result] = {}
    for result in (result for result in results if not result.row.model):
        with result.list_failure():
            of_row = [plan(result.row, seed, args.store, args.out, args.futures) for seed in args.seeds]
            done = sum(one.record()["done"] for one in of_row)
            plans |= dict.fromkeys(of_row, result)
            print(f"{result.row.name}: {done} of {len(of_row)} trainings are done", flush=True)
    for second_stage in () if args.finished else (False, True):
        missing = [one for one in plans if bool(one.row.after) == second_stage and not one.record()["done"]]
        for one, line in runs.train_all(missing, args.jobs).items():
            plans[one].failed.append(f"seed {one.seed}: {line}")
    return {one: result for one, result in plans.items() if one.record()["done"]}


def score(results: list[Result], done: dict[Plan, Result], args: argparse.Namespace) -> None:
    """Score models without training and finished runs."""
    for result in (result for result in results if result.row.model):
        with result.list_failure():
            figures = scores(result.row.model, args.out / result.row.folder, args.store, "val")
            result.seeds[NO_SEED] = figures | {"run": {}}
    for one, result in done.items():
        with result.list_failure(f"seed {one.seed}: "):
            figures = scores(one.folder / "best.ckpt", one.folder, args.store, one.recipe.data.val_split)
            result.seeds[str(one.seed)] = figures | {
                "run": {name: one.record()[name] for name in ("minutes", "epochs", "futures")}
            }


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the tables and write the requested files."""
    made, lines = table.tables(rows), table.failures(rows)
    failed = "\n".join(["Failed:", *(f"- {line}" for line in lines)]) if lines else ""
    print("\n" + "\n\n".join([*(one.plain() for one in made), *filter(None, [failed])]))
    if args.json:
        write_json(args.json, rows, environment() | {"threads": 1}, futures=args.futures)
    if args.markdown:
        commit = f"Tables made by commit {origin()['commit']}."
        parts = [*(one.markdown() for one in made), failed.replace("\n", "\n\n", 1), commit]
        table.replace_between(args.markdown, name_of(args), "\n\n".join(filter(None, parts)))
    if args.plot:
        table.plot(rows, args.plot)


def name_of(args: argparse.Namespace) -> str:
    """Name of the table."""
    return args.table.stem if args.table else "configs"


def options() -> argparse.ArgumentParser:
    """The command-line parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--configs", type=Path, nargs="+", default=sorted(CONFIGS.glob("*_argoverse1.yaml")))
    source.add_argument("--table", type=Path, help="a file of configs/compare, or another one")
    parser.add_argument("--futures", type=int, default=300_000, help="approximate number of training futures per model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2, help="parallel trainings, one thread each")
    parser.add_argument("--untrained", action="store_true", help="measure the cost only")
    parser.add_argument("--finished", action="store_true", help="do not train, use the finished runs")
    parser.add_argument("--repeats", type=int, default=30, help="forecasts for the median latency")
    for name in ("json", "markdown", "plot"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    return parser


def compare(args: argparse.Namespace) -> bool:
    """Run the comparison; returns whether there was no failure.

    Raises:
        TrajformerError: the store, the table or an output file cannot be used.
    """
    results = [Result(row) for row in (read_table(args.table) if args.table else rows_of_configs(args.configs))]
    SceneStore(args.store, "val")  # errors before the trainings
    make_room(args.json, args.plot)
    if args.markdown:
        table.replace_between(args.markdown, name_of(args), None)
    if not args.untrained:
        score(results, train(results, args), args)
    for result in results:
        if result.seeds or not result.failed:
            with result.list_failure("cost: "):
                result.cost = cost(recipe_of(result.row), args.out / result.row.folder, args.store, args.repeats)
    rows = [result.plain() for result in results]
    report(rows, args)
    return not table.failures(rows)


def main(words: list[str] | None = None) -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    args = options().parse_args(words)
    try:
        with stops_cleanly("compare", "the same command resumes it"):
            return 0 if compare(args) else 1
    except (TrajformerError, OSError) as error:
        print(f"compare: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"compare: interrupted{stop}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
