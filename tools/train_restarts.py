"""Train a recipe, continue several times at half its rates, and score the mean of the last weights.

    python tools/train_restarts.py --config se2former_argoverse1 --store stores/av1 --out runs/se2former --restarts 3 --average 2

Part 0 is the recipe. Each restart (parts 1, 2, ...) begins with the last weights of the part before and has its own cosine. It
takes --minutes, or a third of the epochs of a recipe without `trainer.minutes`. On Argoverse 1 the mean of such weights of
SE2Former is more accurate than those of one part. Further options are fields of the recipe (--trainer.minutes 5). With
the option `--init runs/pre{seed}/last.ckpt`, part 0 of each seed begins with the weights of a pre-training.

A part is a folder OUT/seed<N>/part<P>. Finished parts are reused, also with more --restarts, and interrupted parts resume. The
mean of parts A to B is OUT/seed<N>/mean_<A>_<B>/mean.ckpt, next to scores.json and agents.csv for `tools/paired.py`.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from compare.models import score
from compare.trainings import COMMAND, NEVER, Row, Training, fields_of, train_all

from trajformer.cli import RERUN, exit_status
from trajformer.errors import TrajformerError
from trajformer.recipes.names import read_recipe
from trajformer.scenes.files import lock_folder

RATES = 0.5  # of a restart, relative to the recipe
MINUTES = 11.67  # of a restart, for recipes with a length in minutes
FIXED = ("seed", "data.train", "data.val", "trainer.validate_every")
FIGURE = re.compile(r"(minADE|minFDE|MR)\d+")


def main() -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, help="a recipe, by file or name")
    parser.add_argument(
        "--store",
        type=Path,
        required=True,
        help="made by `trajformer preprocess`, with train and val",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--restarts", type=int, default=3, help="parts after the first one")
    parser.add_argument(
        "--minutes", type=float, help=f"of the processor, for each restart (default {MINUTES})"
    )
    parser.add_argument(
        "--average", type=int, default=2, help="number of last parts whose weights are averaged"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, one thread each")
    args, options = parser.parse_known_args()
    return exit_status("train_restarts", lambda: run(args, options), f"{RERUN} to resume")


def run(args: argparse.Namespace, options: list[str]) -> None:
    """Train missing parts, average, score, and print the figures of each seed, their mean and standard deviation."""
    if not 2 <= args.average <= args.restarts:
        raise TrajformerError(
            f"--average {args.average}: expected 2 to {args.restarts}, the number of --restarts"
        )
    changes = fields_of(options, FIXED)
    has_minutes = read_recipe(args.config, changes).trainer.minutes
    if has_minutes and "trainer.epochs" in changes:
        raise TrajformerError(
            "--trainer.epochs: the length is trainer.minutes; add --trainer.minutes null for epochs"
        )
    if args.minutes and not has_minutes:
        raise TrajformerError(
            "--minutes: the recipe has epochs, and its restarts take a third of them; leave it out"
        )
    changes |= {
        "data.train": str(args.store),
        "data.val": str(args.store),
        "trainer.validate_every": NEVER,
    }
    minutes = args.minutes or MINUTES
    chains = [
        chain(args.config, changes, args.out / f"seed{seed}", seed, args.restarts, minutes)
        for seed in args.seeds
    ]
    metrics = {}
    with lock_folder(args.out):
        train_chains(chains, args.jobs)
        first = args.restarts - args.average + 1
        for parts in chains:
            folder = parts[0].folder.parent / f"mean_{first}_{args.restarts}"
            average(parts[first:], folder / "mean.ckpt")
            scores = score(
                folder / "mean.ckpt", folder, args.store, parts[0].recipe.data.val_split
            )["scores"]
            metrics[f"seed {parts[0].seed}"] = {
                name: value for name, value in scores.items() if FIGURE.fullmatch(name)
            }
    lengths = [one.recipe.trainer for one in chains[0]]
    length = sum(one.minutes or one.epochs for one in lengths)
    unit = "processor minutes" if lengths[0].minutes else "epochs"
    print(f"\nmean of the weights of parts {first} to {args.restarts}, {length:g} {unit} in all")
    table = pd.DataFrame(metrics).T
    print(
        pd.concat([table, table.agg(["mean", "std"])]).to_string(
            float_format="{:.3f}".format, na_rep="-"
        )
    )


def chain(
    config: Path, changes: dict[str, Any], folder: Path, seed: int, restarts: int, minutes: float
) -> list[Training]:
    """The parts of a training in folder/part<P>. Restarts take `minutes`, or a third of the epochs of a recipe with epochs.

    A restart has half the rates of the recipe, and draws other random numbers than the parts before it.
    """
    if changes.get("init"):
        changes = changes | {"init": str(changes["init"]).replace("{seed}", str(seed))}
    first = read_recipe(config, changes | {"seed": seed})
    recipes, optim, length = [first], first.optim, first.trainer
    of_restart: dict[str, Any] = {"optim.learning_rate": RATES * optim.learning_rate}
    if optim.muon_rate:
        of_restart["optim.muon_rate"] = RATES * optim.muon_rate
    of_restart |= (
        {"trainer.minutes": minutes}
        if length.minutes
        else {"trainer.epochs": max(length.epochs // 3, 1)}
    )
    for number in range(1, restarts + 1):
        start = {
            "seed": int(f"{number}{seed}"),
            "init": str(folder / f"part{number - 1}" / "last.ckpt"),
        }
        recipes.append(read_recipe(config, changes | of_restart | start))
    row = Row(folder.name, str(config))
    return [
        Training(row, seed, folder / f"part{number}", recipe, futures=None)
        for number, recipe in enumerate(recipes)
    ]


def train_chains(chains: list[list[Training]], jobs: int) -> None:
    """Train the missing parts of chains of one length; a part needs the weights of the one before.

    What was made from earlier weights of a part that is trained again is removed.
    """
    for number, part in enumerate(zip(*chains, strict=True)):
        missing = [one for one in part if not one.record()["done"]]
        for one in missing:
            for path in [*one.folder.parent.glob("part*"), *one.folder.parent.glob("mean_*")]:
                if int(re.findall(r"\d+", path.name)[-1]) >= number and path != one.folder:
                    shutil.rmtree(path)
        if failed := train_all(missing, jobs):
            raise TrajformerError(
                "; ".join(f"{one.folder}: {line}" for one, line in failed.items())
            )


def average(parts: list[Training], mean: Path) -> None:
    """Write the mean of the last weights of parts, unless the file is newer than all of them.

    A new mean removes the figures of the one before.
    """
    mean.parent.mkdir(exist_ok=True)
    weights = [one.checkpoint for one in parts]
    if not mean.exists() or mean.stat().st_mtime < max(file.stat().st_mtime for file in weights):
        for name in ("scores.json", "agents.csv"):
            (mean.parent / name).unlink(missing_ok=True)
        subprocess.run(
            [*COMMAND, "average", *map(str, weights), "--out", str(mean), "--overwrite"], check=True
        )


if __name__ == "__main__":
    sys.exit(main())
