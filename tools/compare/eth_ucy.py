"""Scores of a comparison with one row for each leave-one-out set of ETH/UCY."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from compare.trainings import COMMAND, Training

from trajformer.errors import TrajformerError

SETS = ("eth", "hotel", "univ", "zara1", "zara2")
COLUMNS = ["ADE_20", "FDE_20", "ADE_1", "FDE_1"]


def protocol_table(trainings: Iterable[Training], recordings: Path, out: Path) -> pd.DataFrame:
    """Mean and standard deviation over seeds of the published protocol's errors, for each set.

    Rows are named after the sets. The checkpoints are copied to OUT/seed<N>/<set>.ckpt,
    which `trajformer benchmark eth_ucy` prints with the published rows; all errors are
    in OUT/results.json. Raises TrajformerError: a set has no finished training.
    """
    by_seed: dict[int, dict[str, Path]] = {}
    for training in trainings:
        checkpoints = by_seed.setdefault(training.seed, {})
        checkpoints[training.row.name] = training.checkpoint
    folders = []
    for seed, checkpoints in by_seed.items():
        folder = out / f"seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        folders.append(str(folder))
        for name in SETS:
            if name not in checkpoints:
                raise TrajformerError(f"seed {seed}: no finished training of the set {name}")
            shutil.copyfile(checkpoints[name], folder / f"{name}.ckpt")

    results = out / "results.json"
    output = ["--json", str(results), "--overwrite"]
    command = ["benchmark", "eth_ucy", "--data", str(recordings)]
    subprocess.run([*COMMAND, *command, *output, "--checkpoint", *folders], check=True)
    errors = json.loads(results.read_text())
    rows = {}
    for name in (*SETS, "mean"):
        for seed in by_seed:
            rows[name, seed] = errors[f"seed{seed}"][name]
    table = pd.DataFrame(rows).T[COLUMNS]
    return table.groupby(level=0, sort=False).agg(["mean", "std"])
