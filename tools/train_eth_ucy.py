"""Train a recipe on the five leave-one-out sets of ETH/UCY with several seeds, then score all runs by the protocol.

    trajformer preprocess eth_ucy ETH_UCY data/eth_ucy
    python tools/train_eth_ucy.py --config configs/crowd_eth_ucy.yaml --store data/eth_ucy --data ETH_UCY --out runs/crowd

A run is a folder OUT/seed<N>/<set> with the checkpoint that is best on the validation part of the set. Finished runs are
reused, interrupted runs resume. OUT/minutes.json has the minutes of each run, OUT/results.json the figures of all runs.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

SETS = ("eth", "hotel", "univ", "zara1", "zara2")


def main() -> None:
    """Train missing runs, then print the table, and mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True, help="made by `trajformer preprocess`")
    parser.add_argument("--data", type=Path, help="the recordings; by default runs are not scored")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, one thread each")
    args, options = parser.parse_known_args()

    minutes_file = args.out / "minutes.json"
    minutes = json.loads(minutes_file.read_text()) if minutes_file.exists() else {}

    def one(seed: int, name: str) -> None:
        run, start_time = f"seed{seed}/{name}", time.monotonic()
        folder = args.out / run
        if run not in minutes:
            command = ["trajformer.cli", "train", "--config", str(args.config), "--out", str(folder), f"--seed={seed}"]
            command += [f"--data.train={args.store}", f"--data.train_split={name}_train"]
            command += [f"--data.val={args.store}", f"--data.val_split={name}_val", *options]
            if (folder / "last.ckpt").exists():
                command.append("--resume")
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "log.txt").open("a") as log:
                subprocess.run([sys.executable, "-m", *command], stdout=log, stderr=log, check=True)
            minutes[run] = (time.monotonic() - start_time) / 60
            minutes_file.write_text(json.dumps(minutes, indent=1) + "\n")
        print(f"{run}: {minutes[run]:.1f} minutes", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(one, seed, name) for seed in args.seeds for name in SETS]:
            future.result()
    if args.data is None:
        return
    results = args.out / "results.json"
    folders = [str(args.out / f"seed{seed}") for seed in args.seeds]
    score = ["trajformer.cli", "evaluate", "--protocol", "eth_ucy", "--data", str(args.data), "--json", str(results)]
    subprocess.run([sys.executable, "-m", *score, "--checkpoint", *folders], check=True)
    rows = json.loads(results.read_text())
    figures = {(name, seed): rows[f"seed{seed}"][name] for name in (*SETS, "mean") for seed in args.seeds}
    table = pd.DataFrame(figures).T[["ADE_20", "FDE_20", "ADE_1", "FDE_1"]].groupby(level=0, sort=False).agg(["mean", "std"])
    print("\nmean and standard deviation over seeds\n" + table.to_string(float_format="{:.3f}".format, na_rep="-"))


if __name__ == "__main__":
    main()
