"""Train models for as many futures each and compare them: accuracy, by manoeuvre too, latency, memory and training time.

    python tools/compare_models.py --store stores/av1 --out runs/compare --table configs/compare/models.yaml \
        [--futures 300000] [--seeds 0 1] [--jobs 2] [--json FILE] [--markdown docs/results.md] [--plot FILE]

Rows are recipes (--configs, by default all for Argoverse 1) or those of a table (a YAML list of {name, config, arguments, epochs,
after} and {name, model}). Each is trained for its epochs or for those that come nearest to the wanted number of futures (agents
with a known future that are learned from), its schedule reaching its end with them, on one thread; second stages (`after`) when
their first ones are done. The best checkpoint is scored as `trajformer evaluate` does. When all trainings are done, cost is
measured: forecasts of recorded scenes on one thread, beside nothing else of ours.

What is finished is not done again, what was stopped (Ctrl-C) goes on, what failed is tried again. A run is a folder
OUT/<row>/seed<N> with run.json (minutes, epochs, futures), log.txt, scores.json and agents.csv; cost is in OUT/<row>/cost.json,
which is to be removed to measure it again (say, when the machine was busy: `load_before`). --untrained only measures cost,
--finished trains nothing: rows have the figures of the seeds that are done.
--markdown replaces what is between `<!-- table: NAME -->` and `<!-- end -->`, NAME being the table's file name without .yaml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import compare_runs
import compare_scores
import compare_table
from bench_model import environment
from compare_rows import Plan, Row, plan, read_table, recipe_of, rows_of_configs

from trajformer.cli.files import make_room
from trajformer.cli.stopping import stops_cleanly
from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore

CONFIGS = Path(__file__).parents[1] / "configs"
SEEDLESS = "-"  # in place of a seed, for a model that needs no training


class Comparison:
    """All rows with what is known of each."""

    def __init__(self, rows: list[Row], args: argparse.Namespace) -> None:
        self.rows, self.args = rows, args
        self.seeds: dict[str, dict[str, Any]] = {row.name: {} for row in rows}
        self.costs: dict[str, dict[str, Any]] = {row.name: {} for row in rows}
        self.failed: dict[str, list[str]] = {row.name: [] for row in rows}

    def train(self) -> list[Plan]:
        """Train all rows that are trained; the runs that are done."""
        plans: list[Plan] = []
        for row in self.rows:
            try:
                seeds = () if row.model else self.args.seeds
                own = [plan(row, seed, self.args.store, self.args.out, self.args.futures) for seed in seeds]
                done = sum(one.record()["done"] for one in own)
                plans += own
                print(f"{row.name}: {done} of {len(own)} trainings are done", flush=True)
            except TrajformerError as error:
                self.failed[row.name].append(str(error))
        if self.args.finished:
            return [one for one in plans if one.record()["done"]]
        failed: dict[Plan, str] = {}
        for second in (False, True):
            stage = [one for one in plans if bool(one.row.after) == second and not one.record()["done"]]
            failed |= compare_runs.train_all(stage, self.args.jobs)
        for one, line in failed.items():
            self.failed[one.row.name].append(f"seed {one.seed}: {line}")
        return [one for one in plans if one not in failed]

    def score(self, done: list[Plan]) -> None:
        """Score what is trained, and what needs no training."""
        scorer = compare_scores.Scorer(self.args.store)
        for row in self.rows:
            if row.model:
                self._score_one(scorer, row, None)
            for one in done:
                if one.row is row:
                    self._score_one(scorer, row, one)

    def _score_one(self, scorer: compare_scores.Scorer, row: Row, one: Plan | None) -> None:
        seed = str(one.seed) if one else SEEDLESS
        try:
            if one is None:
                found = scorer.scores(row.model, self.args.out / row.folder, "val") | {"run": {}}
            else:
                figures = {name: one.record()[name] for name in ("minutes", "epochs", "futures")}
                found = scorer.scores(one.folder / "best.ckpt", one.folder, one.recipe.data.val_split) | {"run": figures}
            self.seeds[row.name][seed] = found
        except TrajformerError as error:
            self.failed[row.name].append(f"seed {seed}: {error}")

    def measure(self) -> None:
        """Find the cost of all rows that have figures, or of all."""
        for row in self.rows:
            if self.failed[row.name] and not self.seeds[row.name]:
                continue
            try:
                recipe = recipe_of(row)
                self.costs[row.name] = compare_scores.cost(recipe, self.args.out / row.folder, self.args.store, self.args.repeats)
            except TrajformerError as error:
                self.failed[row.name].append(f"cost: {error}")

    def result(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [
            {"name": row.name, "words": list(row.words) or [row.model], "seeds": self.seeds[row.name]}
            | compare_table.sum_up(self.seeds[row.name])
            | {"cost": self.costs[row.name], "failed": self.failed[row.name]}
            for row in self.rows
        ]


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the tables and write the files that were asked for."""
    made, lines = compare_table.tables(rows), compare_table.failures(rows)
    failed = ["\n".join(["Failed:", *(f"- {line}" for line in lines)])] if lines else []
    print("\n" + "\n\n".join([*(table.plain() for table in made), *failed]))
    if args.json:
        compare_scores.write_json(
            args.json, {"machine": environment("cpu") | {"threads": 1}, "futures": args.futures, "rows": rows}
        )
    if args.markdown:
        text = "\n\n".join([*(table.markdown() for table in made), *(part.replace("\n", "\n\n", 1) for part in failed)])
        compare_table.replace_between(args.markdown, name_of(args), text)
    if args.plot:
        compare_table.plot(rows, args.plot)


def name_of(args: argparse.Namespace) -> str:
    """The name of the table."""
    return args.table.stem if args.table else "configs"


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--configs", type=Path, nargs="+", default=sorted(CONFIGS.glob("*_argoverse1.yaml")))
    which.add_argument("--table", type=Path, help="rows of configs/compare, or your own")
    parser.add_argument("--futures", type=int, default=300_000, help="that every model learns from, about")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, a thread each")
    parser.add_argument("--untrained", action="store_true", help="measure cost alone")
    parser.add_argument("--finished", action="store_true", help="train nothing: the figures of what is trained")
    parser.add_argument("--repeats", type=int, default=30, help="forecasts that latency is the median of")
    for name in ("json", "markdown", "plot"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    return parser


def compare(args: argparse.Namespace) -> bool:
    """Do it all; whether nothing failed.

    Raises:
        TrajformerError: the store, the table or a file to write cannot be used.
    """
    comparison = Comparison(read_table(args.table) if args.table else rows_of_configs(args.configs), args)
    SceneStore(args.store, "val")
    make_room(args.json, args.plot)
    if args.markdown:
        compare_table.check_place(args.markdown, name_of(args))
    if not args.untrained:
        comparison.score(comparison.train())
    comparison.measure()
    rows = comparison.result()
    report(rows, args)
    return not compare_table.failures(rows)


def main(words: list[str] | None = None) -> int:
    """Run the command line; 1 if something failed, 130 after Ctrl-C."""
    args = options().parse_args(words)
    try:
        with stops_cleanly("compare", "the same command goes on"):
            return 0 if compare(args) else 1
    except (TrajformerError, OSError) as error:
        print(f"compare_models: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"compare_models: interrupted{stop}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
