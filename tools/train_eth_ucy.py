"""Train a recipe on the five leave-one-out sets of ETH/UCY with several seeds, then score all runs by the protocol.

    trajformer preprocess eth_ucy ETH_UCY data/eth_ucy --tempo 2
    python tools/train_eth_ucy.py --config configs/crowd_eth_ucy.yaml --store data/eth_ucy --data ETH_UCY --out runs/crowd

Further options are fields of the recipe, such as --trainer.epochs 5. A run is a folder OUT/seed<N>/<set> with the checkpoint that
is best on the validation part of the set, and run.json with its minutes. Finished runs are reused, interrupted runs resume.
OUT/results.json has the figures of all runs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
from compare.trainings import COMMAND, Row, Training, fields_of, train_all

from trajformer.cli import RERUN, exit_status
from trajformer.errors import TrajformerError
from trajformer.recipes.names import read_recipe
from trajformer.scenes.files import lock_folder

SETS = ("eth", "hotel", "univ", "zara1", "zara2")
FIXED = ("seed", "data.train", "data.val", "data.train_split", "data.val_split")


def main() -> int:
    """Run the command line; returns 1 after a failure, 130 after Ctrl-C."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    parser.add_argument("--data", type=Path, help="the recordings; by default runs are not scored")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, one thread each")
    args, options = parser.parse_known_args()
    return exit_status("train_eth_ucy", lambda: run(args, options), f"{RERUN} to resume")


def run(args: argparse.Namespace, options: list[str]) -> None:
    """Train missing runs, then print the table, and mean and standard deviation over seeds."""
    changes = fields_of(options, FIXED) | {
        "data.train": str(args.store),
        "data.val": str(args.store),
    }
    runs = []
    for seed in args.seeds:
        for name in SETS:
            splits = {"data.train_split": f"{name}_train", "data.val_split": f"{name}_val"}
            recipe = read_recipe(args.config, changes | splits | {"seed": seed})
            runs.append(
                Training(
                    Row(name, str(args.config)),
                    seed,
                    args.out / f"seed{seed}" / name,
                    recipe,
                    futures=0,
                )
            )
    with lock_folder(args.out):
        if failed := train_all([run for run in runs if not run.record()["done"]], args.jobs):
            raise TrajformerError(
                "; ".join(f"{run.folder}: {line}" for run, line in failed.items())
            )
    if args.data is None:
        return
    results = args.out / "results.json"
    score = [
        "benchmark",
        "eth_ucy",
        "--data",
        str(args.data),
        "--json",
        str(results),
        "--overwrite",
    ]
    subprocess.run(
        [*COMMAND, *score, "--checkpoint", *(str(args.out / f"seed{seed}") for seed in args.seeds)],
        check=True,
    )
    rows = json.loads(results.read_text())
    metrics = {
        (name, seed): rows[f"seed{seed}"][name] for name in (*SETS, "mean") for seed in args.seeds
    }
    table = (
        pd.DataFrame(metrics)
        .T[["ADE_20", "FDE_20", "ADE_1", "FDE_1"]]
        .groupby(level=0, sort=False)
        .agg(["mean", "std"])
    )
    print(
        "\nmean and standard deviation over seeds\n"
        + table.to_string(float_format="{:.3f}".format, na_rep="-")
    )


if __name__ == "__main__":
    sys.exit(main())
