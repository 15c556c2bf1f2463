"""Train the rows of a table and compare accuracy, also by manoeuvre, latency, memory and time.

    python tools/compare/models.py --store stores/av1 --out runs/compare \
        --table configs/compare/models.yaml [--seeds 0 1] [--jobs 2] [--paired] [--json FILE] \
        [--markdown docs/results/argoverse1.md] [--plot FILE]

A table file is a YAML list of {name, config, arguments, after} and {name, model}. Each row is
trained on one thread for the length of its recipe. Second stages (`after`) are trained after their
first stages. The last checkpoint of a recipe with `trainer.steps` is scored as by `trajformer
evaluate`, and the best checkpoint of a recipe with epochs. --paired adds the differences of all
rows from the first one, with paired 95 % intervals over scenes. Cost is measured after all
trainings: forecasts of recorded scenes on one thread. --eth-ucy RECORDINGS also scores the rows,
one for each leave-one-out set of ETH/UCY, by the published protocol.

Finished runs are reused, interrupted runs (Ctrl-C) resume, failed runs are repeated. A run is a
folder OUT/<row>/seed<N> with run.json (minutes, recipe, digest of the data), log.txt, scores.json
and agents.csv. The cost is in OUT/<row>/cost.json; remove the file to measure it again (for example
if the machine was busy: `load_before`). All JSON files contain the commit and the command that made
them. --untrained only measures the cost, --finished does not train: rows have the metrics of the
finished seeds. Further options are fields of all recipes of the table, such as --trainer.steps 500.
--markdown replaces the text between `<!-- table: NAME -->` and `<!-- end -->`; NAME is the file
name of the table without .yaml.
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

from compare import table
from compare.cost import cost
from compare.eth_ucy import protocol_table
from compare.trainings import Row, Training, fields_of, folder_of, plan, read_table, train_all
from measure import environment, origin, write_json

from trajformer.cli.files import bars, check_outputs
from trajformer.cli.status import RERUN, exit_status
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.breakdown import paired_rows
from trajformer.evaluation.columns import SCENE, TRACK
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.files import lock_folder, write_atomically
from trajformer.scenes.store import SceneStore

AGENT = [SCENE, TRACK]
PAIRED = ["minADE6", "minFDE6", "MR6", "minFDE1"]
FIXED = (
    "seed",
    "first_stage",
    "data.train",
    "data.val",
    "trainer.threads",
    "trainer.validate_every",
)
NO_SEED = "-"  # in place of a seed, for a model without training


@dataclass
class Result:
    """Metrics of a row by seed, its cost, and its failures, one line each."""

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
    labels = {}
    for scene in SceneStore(store, split):
        batch = collate([scene], BatchConfig(targets="focal"))
        observation, truth = batch.observation, batch.truth
        pose = observation.pose[:, : observation.num_targets]
        kind, known = manoeuvres(truth.position, truth.valid, pose, observation.period_s)
        if known.any():
            track_id = observation.agent_id[0][0]
            labels[scene.scene_id, track_id] = Manoeuvre(int(kind[known])).label
    return labels


def score(source: Path | str, folder: Path, store: Path, split: str) -> dict[str, Any]:
    """Metrics of a checkpoint or a named model without training.

    They are stored in scores.json and agents.csv, and reused for a checkpoint.
    """
    file = folder / "scores.json"
    if isinstance(source, str) or not file.exists():
        evaluation = evaluate(load_predictor(source), SceneStore(store, split), progress=bars())
        agents = evaluation.per_agent
        write_atomically(folder / "agents.csv", agents.round(6).to_csv(index=False))
        by_manoeuvre = scores_by_manoeuvre(agents, focal_manoeuvres(store, split))
        record = origin() | {"scores": evaluation.metrics, "manoeuvres": by_manoeuvre}
        write_atomically(file, json.dumps(record, indent=1) + "\n")
    record = json.loads(file.read_text())
    return {"scores": record["scores"], "manoeuvres": record["manoeuvres"]}


def scores_by_manoeuvre(
    agents: pd.DataFrame, labels: dict[tuple[str, str], str]
) -> dict[str, dict[str, float]]:
    """Number of agents, and means of minFDE6 and MR6, for each manoeuvre."""
    ids = zip(agents.scenario_id, agents.track_id, strict=True)
    # An object column: in a list, only missing labels, as in pixels, would be no key.
    label = pd.Series([labels.get(key) for key in ids], agents.index, dtype=object)
    scores: dict[str, dict[str, float]] = {kind.label: {"count": 0} for kind in Manoeuvre}
    for name, group in agents.groupby(label):
        means = group[["minFDE6", "MR6"]].mean()
        scores[str(name)] = {"count": len(group), **means}
    return scores


def plan_all(results: list[Result], args: argparse.Namespace) -> dict[Training, Result]:
    """The trainings of all rows with a valid recipe."""
    plans: dict[Training, Result] = {}
    for result in results:
        row = result.row
        if row.model:
            continue
        with result.list_failure():
            trainings = [plan(row, seed, args.store, args.out) for seed in args.seeds]
            finished = sum(training.record()["done"] for training in trainings)
            plans |= dict.fromkeys(trainings, result)
            print(f"{row.name}: {finished} of {len(trainings)} trainings are done", flush=True)
    return plans


def train_and_score(results: list[Result], args: argparse.Namespace) -> list[Training]:
    """Train missing runs, and score finished runs and models without training.

    Returns the finished trainings.
    """
    for result in results:
        if result.row.model:
            with result.list_failure():
                folder = args.out / folder_of(result.row.name)
                metrics = score(result.row.model, folder, args.store, result.row.val_split)
                result.seeds[NO_SEED] = metrics | {"run": {}}

    plans = plan_all(results, args)
    if not args.finished:
        first_stages = [one for one in plans if not one.row.after]
        second_stages = [one for one in plans if one.row.after]
        for trainings in (first_stages, second_stages):
            missing = [one for one in trainings if not one.record()["done"]]
            for training, line in train_all(missing, args.jobs).items():
                plans[training].failed.append(f"seed {training.seed}: {line}")

    finished = []
    for training, result in plans.items():
        record = training.record()
        if not record["done"]:
            continue
        finished.append(training)
        with result.list_failure(f"seed {training.seed}: "):
            split = training.row.val_split
            metrics = score(training.checkpoint, training.folder, args.store, split)
            recipe = training.recipe
            length = {"steps": recipe.num_steps, "epochs": recipe.trainer.num_epochs}
            run = {"minutes": record["minutes"], **length}
            result.seeds[str(training.seed)] = metrics | {"run": run}
    return finished


def differences(results: list[Result], out: Path) -> dict[str, pd.DataFrame]:
    """Table of the differences from the first row, with paired intervals.

    They are over the agents and the means of all seeds.
    """
    files = {}
    for result in results:
        if result.seeds:
            folder = out / folder_of(result.row.name)
            folders = [
                folder if seed == NO_SEED else folder / f"seed{seed}" for seed in result.seeds
            ]
            files[result.row.name] = [one / "agents.csv" for one in folders]
    if len(files) < 2:
        return {}
    first, *others = files
    lines = {}
    for name in others:
        errors = mean_errors(files[name])
        reference = mean_errors(files[first])
        common = errors.index.intersection(reference.index)
        rows = paired_rows(
            errors.loc[common].reset_index(), reference.loc[common].reset_index(), PAIRED
        )
        cells = []
        for row in rows:
            gap = row.difference
            cells.append(f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})")
        lines[name] = cells
    title = f"Differences from '{first}' with paired 95 % intervals over scenes"
    return {title: pd.DataFrame.from_dict(lines, orient="index", columns=PAIRED)}


def mean_errors(files: list[Path]) -> pd.DataFrame:
    """Errors of each scene and track, averaged over the tables of agents of several seeds.

    Ids may look like missing values ("NA"). Raises TrajformerError: a file has other agents than
    the first one.
    """
    tables = []
    for path in files:
        columns = pd.read_csv(path, nrows=0).columns
        missing_values = {name: [""] for name in columns.difference(AGENT)}
        types = dict.fromkeys(AGENT, str)
        rows = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing_values)
        table_of_seed = rows.set_index(AGENT).select_dtypes("number")
        if tables and not table_of_seed.index.sort_values().equals(tables[0].index.sort_values()):
            raise TrajformerError(f"{path}: other agents than {files[0]}; use the same split")
        tables.append(table_of_seed)
    return pd.concat(tables).groupby(level=AGENT).mean()


def check_arguments(results: list[Result], args: argparse.Namespace, options: list[str]) -> None:
    """Raise TrajformerError for options and outputs that cannot be used, before the trainings."""
    splits = set()
    for result in results:
        try:
            splits.add(result.row.val_split)
        except TrajformerError:
            if options:  # an option is wrong for all rows; another invalid row is listed later
                raise
    for split in sorted(splits):
        SceneStore(args.store, split)
    check_outputs(args, json="measurements.json", plot="png")
    if args.markdown:
        table.replace_between(args.markdown, args.table.stem, None)


def compare(args: argparse.Namespace, options: list[str]) -> None:
    """Run the comparison, print the tables and write the requested files.

    A failed row is an error after the output.
    """
    results = [Result(row) for row in read_table(args.table, fields_of(options, FIXED))]
    check_arguments(results, args, options)
    protocol = {}
    with lock_folder(args.out):
        if not args.untrained:
            finished = train_and_score(results, args)
            if args.eth_ucy is not None:
                scored = protocol_table(finished, args.eth_ucy, args.out / "eth_ucy")
                protocol = {"Protocol of ETH/UCY, mean and standard deviation over seeds": scored}
        for result in results:
            if result.seeds or not result.failed:
                with result.list_failure("cost: "):
                    folder = args.out / folder_of(result.row.name)
                    result.cost = cost(result.row.recipe, folder, args.store, args.repeats)

    rows = []
    for result in results:
        rows.append({"name": result.row.name, **asdict(result), **table.summarize(result.seeds)})
    tables = table.tables(rows)
    if args.paired:
        tables |= differences(results, args.out)
    tables |= protocol
    report(rows, tables, args)


def report(
    rows: list[dict[str, Any]], tables: dict[str, pd.DataFrame], args: argparse.Namespace
) -> None:
    """Print the tables and write the requested files (TrajformerError: a row has failed)."""
    failures = []
    for row in rows:
        failures += [f"- {row['name']}: {reason}" for reason in row["failed"]]
    failed = ["\n".join(["Failed:", "", *failures])] if failures else []

    texts = [f"{title}:\n{table.plain(cells)}" for title, cells in tables.items()]
    print("\n" + "\n\n".join([*texts, *failed]))
    if args.json:
        write_json(args.json, rows, environment() | {"threads": 1})
    if args.markdown:
        blocks = [table.markdown(title, cells) for title, cells in tables.items()]
        commit = f"Tables made by commit {origin()['commit']}."
        text = "\n\n".join([*blocks, *failed, commit])
        table.replace_between(args.markdown, args.table.stem, text)
    if args.plot:
        table.plot(rows, args.plot)
    if failures:
        raise TrajformerError(f"failed, see above: {len(failures)}")


def main(words: list[str] | None = None) -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    add("--out", type=Path, required=True, help="folder of all runs")
    add("--table", type=Path, required=True, help="a file of configs/compare, or another one")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--jobs", type=int, default=2, help="parallel trainings, one thread each")
    add("--paired", action="store_true", help="add the differences from the first row")
    add("--eth-ucy", type=Path, metavar="RECORDINGS", help="score by the protocol of ETH/UCY")
    add("--untrained", action="store_true", help="measure the cost only")
    add("--finished", action="store_true", help="do not train, use the finished runs")
    add("--repeats", type=int, default=30, help="forecasts for the median latency")
    for name in ("json", "markdown", "plot"):
        add(f"--{name}", type=Path, metavar="FILE")
    add("--overwrite", action="store_true", help="replace existing files of --json and --plot")
    args, options = parser.parse_known_args(words)
    return exit_status("compare", lambda: compare(args, options), f"{RERUN} to resume")


if __name__ == "__main__":
    sys.exit(main())
