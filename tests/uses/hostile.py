"""Modules next to data, copied shards, variables of a launcher, files that unpack to gigabytes."""

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from support.uses import Case

CONSTANT = "--model constant_velocity --store store"
SCORE = f"evaluate {CONSTANT} --overwrite"
KEPT = "that this command wrote, so it is not replaced"
MODULES = ("pyarrow", "numpy", "torch", "signal", "selectors", "struct", "random", "logging")


def plant() -> None:
    """Modules that child processes import, next to the data; a test fails if one is executed."""
    executed = Path("executed").absolute()
    for name in MODULES:
        Path(f"{name}.py").write_text(f"open({str(executed)!r}, 'w')\n")


def copied(source: str, target: str) -> Callable[[], object]:
    def copy() -> None:
        Path(target).parent.mkdir(exist_ok=True)
        shutil.copy(source, target)

    return copy


def with_variables(**values: str) -> Callable[[], object]:
    return lambda: os.environ.update(values)


def starts_processes(words: str) -> Case:
    use = f"{words}, next to files with names of modules"
    return Case(use, words, "", plant, status=0, spawns=True)


def keeps(words: str, path: str, prepare: Callable[[], object] = list) -> Case:
    """A command with --overwrite on a file that it did not write."""
    return Case(f"{words}: keep".replace("/", ":"), words, f"{path}: exists .*{KEPT}", prepare)


def refuses_variable(name: str, value: str, *more: str) -> Case:
    words = ("train", "--config", "recipe.yaml", "--out", "fresh", *more)
    use = " ".join((f"train with {name}={value}", *more))
    line = f"trainer.devices: {name}={value} in the environment, but no launcher"
    return Case(use, words, line, with_variables(**{name: value}))


CASES = [
    starts_processes("preprocess sdd sdd s --workers 1"),
    starts_processes("preprocess argoverse2 raw s --workers 1 --split val"),
    starts_processes("synthesize r --scenes 3 --workers 2"),
    starts_processes("train --config recipe.yaml --out fresh --data.workers 1"),
    keeps(
        f"{SCORE} --json source.json", "source.json", copied("store/val/source.json", "source.json")
    ),
    keeps(f"{SCORE} --json m.json", "m.json", copied("store/manifest.json", "m.json")),
    keeps(
        f"{SCORE} --csv t.csv", "t.csv", lambda: Path("t.csv").write_text("track_id,x,y\na,1,2\n")
    ),
    keeps(
        f"predict {CONSTANT} --overwrite --out t.parquet",
        "t.parquet",
        lambda: shutil.copy(next(Path("raw").rglob("*.parquet")), "t.parquet"),
    ),
    keeps("weights convert trajformer run/last.ckpt run/best.ckpt --overwrite", "run/best.ckpt"),
    keeps(
        "store export-scene store --scene raw-val-0 --out figures.json --overwrite", "figures.json"
    ),
    Case(
        "evaluate a store with a copied shard",
        f"evaluate {CONSTANT}",
        "store/val/00001.arrow: on disk but not in the manifest; remove it",
        copied("store/val/00000.arrow", "store/val/00001.arrow"),
    ),
    Case(
        "train on a copied split",
        "train --config recipe.yaml --out fresh --data.train store --data.train_split more",
        "store/more/00000.arrow: on disk but not in the manifest",
        copied("store/train/00000.arrow", "store/more/00000.arrow"),
    ),
    Case(
        "plot a copied shard of an unfinished store",
        "plot store --out p",
        "store/val/00001.arrow: a copy of 00000.arrow; remove it",
        lambda: [
            copied("store/val/00000.arrow", "store/val/00001.arrow")(),
            os.remove("store/manifest.json"),
        ],
    ),
    refuses_variable("LOCAL_RANK", "1"),
    refuses_variable("SLURM_PROCID", "3"),
    Case(
        "train with a rank that is no number",
        "train --config recipe.yaml --out fresh",
        "RANK='abc' in the environment: no number",
        with_variables(RANK="abc"),
    ),
    refuses_variable("LOCAL_RANK", "0", "--trainer.devices", "2"),
]


# ---- files that unpack to much more than their size --------------------------------------------


def packed_forecasts() -> None:
    """A row with two lists of 18 million zeros, 288 MB."""
    values = pa.ListArray.from_arrays(
        pa.array([0, 18_000_000], pa.int32()), pa.array(np.zeros(18_000_000))
    )
    columns = {"scenario_id": ["s"], "track_id": ["t"], "probability": [1.0]}
    columns |= {f"predicted_trajectory_{axis}": values for axis in "xy"}
    pq.write_table(pa.table(columns), "packed.parquet", compression="zstd")


def many_modes() -> None:
    rows = pq.read_table("forecasts.parquet").take([0] * 2000)
    probability = pa.array(np.full(2000, 1 / 2000))
    pq.write_table(rows.set_column(2, "probability", probability), "modes.parquet")


def packed_checkpoint() -> None:
    """A compressed entry that no tensor needs."""
    shutil.copy("run/best.ckpt", "packed.ckpt")
    with zipfile.ZipFile("packed.ckpt", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/9999", bytes(1 << 26))


def expanded_weights() -> None:
    """A tensor of 12 GB with one stored number."""
    content = torch.load("run/best.ckpt", weights_only=True)
    content["state_dict"]["model.more"] = torch.zeros(1).expand(3_000_000_000)
    torch.save(content, "expanded.ckpt")


def packed_table() -> None:
    """The same row again and again."""
    Path("tables/val").mkdir(parents=True)
    count = 10_000_000
    zeros = pa.array(np.zeros(count))
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), ["a"])
    columns = {"track_id": ids, "step": zeros, "x": zeros, "y": zeros}
    pq.write_table(pa.table(columns), "tables/val/a.parquet", compression="zstd")


CASES += [
    Case(
        "plot packed forecasts",
        "plot store --forecasts packed.parquet --out p",
        "packed.parquet: .*unpacks to more than 268 MB",
        packed_forecasts,
    ),
    Case(
        "plot 2,000 modes",
        "plot store --forecasts modes.parquet --out p",
        "modes.parquet: track .* 2000 modes, expected at most 1000",
        many_modes,
    ),
    Case(
        "score a packed checkpoint",
        "evaluate --checkpoint packed.ckpt --store store",
        "packed.ckpt: compressed",
        packed_checkpoint,
    ),
    Case(
        "score expanded weights",
        "evaluate --checkpoint expanded.ckpt --store store",
        "expanded.ckpt: recipe and weights do not fit .*'more'",
        expanded_weights,
    ),
    Case(
        "prepare a packed table",
        "preprocess table tables s --workers 1",
        "tables: .*a.parquet: .*unpacks to more than 268 MB",
        packed_table,
    ),
    Case(
        "train with 10,000 threads",
        "train --config recipe.yaml --out fresh --trainer.threads 10000",
        "trainer.threads: 10000, expected 1 to 1024",
    ),
    Case(
        "simulate with 10,000 processes",
        "synthesize r --scenes 2 --workers 10000",
        "workers: .*10000",
        status=2,
    ),
    Case(
        "translate with a million hypotheses",
        "translate --checkpoint run/best.ckpt notes.txt --beam 1000000",
        "beam: .*1000000",
        status=2,
    ),
]
