"""Train a recipe for processor minutes, continue several times at half its rates, and score the mean of the last weights.

    python tools/train_restarts.py --config se2former_argoverse1 --store stores/av1 --out runs/se2former --restarts 3 --average 2

Part 0 is the recipe. Each restart (parts 1, 2, ...) begins with the last weights of the part before and has its own cosine. The
mean of such weights is more accurate than those of one part. Further options are fields of the recipe (--trainer.minutes 5).

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
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.files import lock_folder

RATES = 0.5  # of a restart, relative to the recipe
FIGURES = ["minADE6", "minFDE6", "MR6", "minFDE1"]


def main() -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="a recipe with trainer.minutes, by file or name")
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`, with train and val")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--restarts", type=int, default=3, help="parts after the first one")
    parser.add_argument("--minutes", type=float, default=11.67, help="processor minutes of a restart")
    parser.add_argument("--average", type=int, default=2, help="number of last parts whose weights are averaged")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, one thread each")
    args, options = parser.parse_known_args()
    return exit_status("train_restarts", lambda: run(args, options), f"{RERUN} to resume")


def run(args: argparse.Namespace, options: list[str]) -> None:
    """Train missing parts, average, score, and print the figures of each seed, their mean and standard deviation."""
    if not 2 <= args.average <= args.restarts:
        raise TrajformerError(f"--average {args.average}: expected 2 to {args.restarts}, the number of --restarts")
    changes = fields_of(options) | {"data.train": str(args.store), "data.val": str(args.store)}
    recipe = read_recipe(args.config, changes)
    if not recipe.trainer.minutes:
        raise TrajformerError(f"{args.config}: has no trainer.minutes; set --trainer.minutes")
    parts = [[part_of(recipe, changes, args, seed, number) for seed in args.seeds] for number in range(args.restarts + 1)]
    figures = {}
    with lock_folder(args.out):
        for number, part in enumerate(parts):  # a part needs the weights of the one before
            missing = [one for one in part if not one.record()["done"]]
            for one in missing:  # what was made from other weights of this part is made again
                for folder in [*one.folder.parent.glob("part*"), *one.folder.parent.glob("mean_*")]:
                    if int(re.findall(r"\d+", folder.name)[-1]) >= number and folder != one.folder:
                        shutil.rmtree(folder)
            if failed := train_all(missing, args.jobs):
                raise TrajformerError("; ".join(f"{one.folder}: {line}" for one, line in failed.items()))
        first = args.restarts - args.average + 1
        for seed in args.seeds:
            folder = args.out / f"seed{seed}" / f"mean_{first}_{args.restarts}"
            folder.mkdir(exist_ok=True)
            mean = folder / "mean.ckpt"
            if not mean.exists():
                weights = [str(one.checkpoint) for part in parts[first:] for one in part if one.seed == seed]
                subprocess.run([*COMMAND, "average", *weights, "--out", str(mean)], check=True)
            figures[f"seed {seed}"] = score(mean, folder, args.store, recipe.data.val_split)["scores"]
    total = recipe.trainer.minutes + args.restarts * args.minutes
    print(f"\nmean of the weights of parts {first} to {args.restarts}, {total:g} processor minutes in all")
    table = pd.DataFrame(figures).T[FIGURES]
    print(pd.concat([table, table.agg(["mean", "std"])]).to_string(float_format="{:.3f}".format, na_rep="-"))


def part_of(recipe: TrainConfig, changes: dict[str, Any], args: argparse.Namespace, seed: int, number: int) -> Training:
    """Part `number` of a seed; a restart draws other random numbers than the parts before it."""
    folder = args.out / f"seed{seed}"
    changes = changes | {"seed": seed, "trainer.validate_every": NEVER}
    if number:
        changes |= {"seed": int(f"{number}{seed}"), "init": str(folder / f"part{number - 1}" / "last.ckpt")}
        changes |= {"trainer.minutes": args.minutes, "optim.learning_rate": RATES * recipe.optim.learning_rate}
        if recipe.optim.muon_rate:
            changes["optim.muon_rate"] = RATES * recipe.optim.muon_rate
    row = Row(folder.name, str(args.config))
    return Training(row, seed, folder / f"part{number}", read_recipe(args.config, changes), futures=None)


if __name__ == "__main__":
    sys.exit(main())
