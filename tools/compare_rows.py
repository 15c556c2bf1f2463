"""Rows of a comparison (`compare_models.py`): which model each is and how long it is trained."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from trajformer.cli.models import UNTRAINED, task_in, train_parser
from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig, Targets
from trajformer.errors import TrajformerError
from trajformer.models import ConstantVelocityConfig, ModelConfig
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.scenes.files import write_atomically
from trajformer.scenes.store import SceneStore

VALIDATIONS = 8  # of a training, about
_TABLE = "expected a list of rows {name, config, arguments, epochs, after} or {name, model}"


@dataclass(frozen=True)
class Row:
    """A model to compare: a recipe with further options of `trajformer train`, or a model that needs no training.

    `epochs` above 0 are its own, whatever number of futures is wanted. A second stage is trained `after` the row of that name,
    for its checkpoint of the same seed.
    """

    name: str
    words: tuple[str, ...] = ()
    model: str = ""
    epochs: int = 0
    after: str = ""

    @property
    def folder(self) -> str:
        """What its results are stored under."""
        return folder_of(self.name)


def folder_of(name: str) -> str:
    """What results of a row of this name are stored under."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def rows_of_configs(paths: list[Path]) -> list[Row]:
    """A row for each recipe of a forecaster."""
    words = [("--config", str(path)) for path in paths]
    return _distinct([Row(Path(w[1]).stem.removesuffix("_argoverse1"), w) for w in words if task_in(w) in ("", TrainConfig.task)])


def read_table(path: Path) -> list[Row]:
    """The rows of a YAML file: a list of {name, config, arguments, epochs, after} and {name, model}.

    `config` is relative to the file, `arguments` maps fields of the recipe to values, `epochs` stand in place of the wanted
    number of futures, `after` names the row that is the first stage of this one, `model` is one that needs no training.

    Raises:
        TrajformerError: the file cannot be read, or a row is none; names the row.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TrajformerError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list) or not entries:
        raise TrajformerError(f"{path}: {_TABLE}")
    return _distinct([_row(path, number, entry) for number, entry in enumerate(entries, 1)])


def _row(path: Path, number: int, entry: Any) -> Row:
    where = f"{path}: row {number}"
    if not isinstance(entry, dict) or not str(entry.get("name") or ""):
        raise TrajformerError(f"{where}: {entry!r}, {_TABLE}")
    name, arguments, epochs, after = (
        str(entry["name"]),
        entry.get("arguments") or {},
        entry.get("epochs", 0),
        entry.get("after", ""),
    )
    if set(entry) == {"name", "model"}:
        if entry["model"] not in UNTRAINED:
            raise TrajformerError(f"{where}: model: {entry['model']!r}, known without training: {', '.join(UNTRAINED)}")
        return Row(name, model=entry["model"])
    if (
        not isinstance(entry.get("config"), str)
        or set(entry) - {"name", "config", "arguments", "epochs", "after"}
        or not isinstance(arguments, dict)
        or not isinstance(epochs, int)
        or not isinstance(after, str)
    ):
        raise TrajformerError(f"{where}: {entry!r}, {_TABLE}")
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    if after:
        values["first_stage"] = folder_of(after)  # until it is known of which seed
    words = ("--config", str(path.parent / entry["config"]), *(f"--{key}={value}" for key, value in values.items()))
    return Row(name, words, epochs=epochs, after=after)


def _distinct(rows: list[Row]) -> list[Row]:
    for row in rows:
        same = [other.name for other in rows if other.folder == row.folder]
        if len(same) > 1 or not row.folder:
            raise TrajformerError(f"rows {same}: their results would be in one folder, '{row.folder}'; give them other names")
        if row.after and row.after not in {other.name for other in rows if not other.after}:
            raise TrajformerError(f"row {row.name}: after: '{row.after}' is no row that is trained by itself")
    return rows


def recipe_of(row: Row, *further: str) -> TrainConfig:
    """The recipe that `trajformer train` makes of a row's words and further ones.

    Raises:
        TrajformerError: it is refused.
    """
    if row.model:
        return TrainConfig(ModelConfig(constant_velocity=ConstantVelocityConfig(modes=6)))
    parser, said = train_parser(), io.StringIO()
    parser.prog = "recipe"
    try:
        with contextlib.redirect_stderr(said):
            values = parser.instantiate(parser.parse_words([*row.words, *further, "--out=unused"]))
    except SystemExit as stop:
        raise TrajformerError(said.getvalue().strip() or "the recipe is refused") from stop
    return TrainConfig(**{item.name: values[item.name] for item in fields(TrainConfig)})


def futures_in_epoch(data: DataConfig) -> int:
    """Targets with a known future, all that an epoch learns from; of how scenes are cut only who is a target matters."""
    return _count((data.train, data.train_split), data.limit_train, data.branches, data.train_batch.targets)


@functools.cache
def _count(split: tuple[str, str], limit: int | None, branches: bool, targets: Targets) -> int:
    kind = BranchDataset if branches else SceneDataset
    scenes = kind(SceneStore(*split), BatchConfig(targets=targets), limit)
    return sum(int(scenes.sample(index).padded["target_valid"].any(-1).sum()) for index in range(len(scenes)))


@dataclass(frozen=True, eq=False)
class Plan:
    """One training: of a row with a seed, so long that it learns from a wanted number of futures."""

    row: Row
    seed: int
    folder: Path
    words: tuple[str, ...]
    recipe: TrainConfig
    futures: int

    @property
    def digest(self) -> str:
        """Of the recipe, wherever its stores and the first stage lie."""
        first = self.row.after and folder_of(self.row.after)
        plain = to_plain(replace(self.recipe, data=replace(self.recipe.data, train="", val=""), first_stage=first))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """What is known of the run: minutes so far, epochs, futures, whether it is done.

        Raises:
            TrajformerError: the folder holds a run of another recipe, length or store.
        """
        begun = {
            "minutes": 0.0,
            "epochs": self.recipe.trainer.epochs,
            "futures": self.futures,
            "done": False,
            "recipe": self.digest,
        }
        path = self.folder / "run.json"
        found = json.loads(path.read_text()) if path.exists() else begun
        if (found["recipe"], found["futures"]) != (begun["recipe"], begun["futures"]):
            raise TrajformerError(f"{self.folder}: has a run of another recipe, length or store; remove it or give another --out")
        return found

    def note(self, minutes: float, done: bool = False) -> None:
        """Add to the record."""
        record = self.record()
        record |= {"minutes": record["minutes"] + minutes, "done": done}
        write_atomically(self.folder / "run.json", json.dumps(record, indent=1) + "\n")


def plan(row: Row, seed: int, store: Path, out: Path, futures: int) -> Plan:
    """The training of a row that learns from about so many futures, in whole epochs, or for the row's own epochs.

    Raises:
        TrajformerError: its recipe or the store cannot be used.
    """
    words: tuple[str, ...] = (f"--data.train={store}", f"--data.val={store}", "--trainer.threads=1", f"--seed={seed}")
    if row.after:
        words += (f"--first_stage={out / folder_of(row.after) / f'seed{seed}' / 'best.ckpt'}",)
    once = futures_in_epoch(recipe_of(row, *words).data)
    if not once:
        raise TrajformerError(f"{store}: no agent has a known future to learn from")
    epochs = row.epochs or max(round(futures / once), 1)
    words += (f"--trainer.epochs={epochs}", f"--trainer.validate_every={max(round(epochs / VALIDATIONS), 1)}")
    folder = out / row.folder / f"seed{seed}"
    return Plan(row, seed, folder, (*row.words, *words), recipe_of(row, *words), epochs * once)
