"""Files with the names of Python modules, copied shards, and variables of a launcher."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

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
    return Case(f"{words}, next to files with names of modules", words, "", plant, status=0)


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
    refuses_variable("LOCAL_RANK", "0", "--trainer.devices", "2"),
]
