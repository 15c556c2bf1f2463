"""Rows of a comparison: the model of each row, and the length of its training."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml
from measure import origin

from trajformer.cli.models import recipe_from, task_in, train_parser
from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig, Targets
from trajformer.errors import TrajformerError
from trajformer.recipes.checkpoint import UNTRAINED
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig
from trajformer.recipes.upgrade import upgrade_recipe
from trajformer.scenes.files import write_atomically
from trajformer.scenes.store import SceneStore

VALIDATIONS = 8  # approximate number in a training


@dataclass(frozen=True)
class Row:
    """A model to compare: a recipe with further options of `trajformer train`, or a model without training.

    Attributes:
        name: in tables; also gives the name of the folder.
        config: file of the recipe.
        arguments: values by field of the recipe.
        epochs: length of the training, in place of the number of futures.
        after: name of the row that is the first stage; its checkpoint with the same seed is used.
        model: name of a model without training, in place of `config`.
    """

    name: str
    config: str = ""
    arguments: dict = field(default_factory=dict)
    epochs: int = 0
    after: str = ""
    model: str = ""

    @property
    def folder(self) -> str:
        """Name of the folder with its results."""
        return folder_of(self.name)

    @property
    def words(self) -> tuple[str, ...]:
        """Options of `trajformer train`; `plan` replaces the folder of the first stage by a checkpoint."""
        if self.model:
            return ()
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.arguments.items()}
        if self.after:
            values["first_stage"] = folder_of(self.after)
        return "--config", self.config, *(f"--{key}={value}" for key, value in values.items())


def folder_of(name: str) -> str:
    """Name of the folder with the results of a row."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def rows_of_configs(paths: list[Path]) -> list[Row]:
    """One row per recipe of a forecaster; recipes of other tasks are left out."""
    rows = [Row(path.stem.removesuffix("_argoverse1"), str(path)) for path in paths]
    return _checked([row for row in rows if task_in(row.words) in ("", TrainConfig.task)])


def read_table(path: Path) -> list[Row]:
    """The rows of a YAML file, a list with the fields of `Row`; `config` is relative to the file.

    Raises:
        TrajformerError: the file cannot be read, or an entry is malformed; names the row.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TrajformerError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(entries, list) or not entries:
        raise TrajformerError(f"{path}: expected a list of rows with {', '.join(item.name for item in fields(Row))}")
    rows = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}: row {number}"
        row = from_plain(Row, entry, where)
        if bool(row.config) == bool(row.model) or not row.name:
            raise TrajformerError(f"{where}: expected a name, and either a config or a model")
        if row.model and row.model not in UNTRAINED:
            raise TrajformerError(f"{where}: unknown model '{row.model}' (without training: {', '.join(UNTRAINED)})")
        rows.append(replace(row, config=str(path.parent / row.config)))
    return _checked(rows)


def _checked(rows: list[Row]) -> list[Row]:
    """The same rows, if their folders differ and their first stages exist."""
    for row in rows:
        same = [other.name for other in rows if other.folder == row.folder]
        if len(same) > 1 or not row.folder:
            raise TrajformerError(f"rows {same}: their results would be in the same folder, '{row.folder}'; rename them")
        if row.after and row.after not in {other.name for other in rows if not other.after}:
            raise TrajformerError(f"row {row.name}: after: '{row.after}' is not a row without a first stage")
    return rows


def recipe_of(row: Row, *further: str) -> TrainConfig:
    """The recipe that `trajformer train` reads from the options of a row and further options.

    Raises:
        TrajformerError: the options are invalid.
    """
    if row.model:
        return TrainConfig(UNTRAINED[row.model])
    parser, message = train_parser(), io.StringIO()
    parser.prog = "recipe"
    try:
        with contextlib.redirect_stderr(message):
            return recipe_from(parser.parse_words([*row.words, *further, "--out=unused"]), TrainConfig)
    except SystemExit as stop:
        raise TrajformerError(message.getvalue().strip() or "the recipe is invalid") from stop


def futures_in_epoch(data: DataConfig) -> int:
    """Number of targets with a known future in an epoch."""
    return _count((data.train, data.train_split), data.limit_train, data.branches, data.train_batch.targets)


@functools.cache
def _count(split: tuple[str, str], limit: int | None, branches: bool, targets: Targets) -> int:
    kind = BranchDataset if branches else SceneDataset
    scenes = kind(SceneStore(*split), BatchConfig(targets=targets), limit)
    return sum(int(scenes.sample(index).padded["target_valid"].any(-1).sum()) for index in range(len(scenes)))


@dataclass(frozen=True, eq=False)
class Plan:
    """One training: a row with a seed and a length.

    Attributes:
        row: the model.
        seed: of the training.
        folder: of the run.
        words: options of `trajformer train`.
        recipe: the result of the options.
        futures: targets with a known future in the whole training.
    """

    row: Row
    seed: int
    folder: Path
    words: tuple[str, ...]
    recipe: TrainConfig
    futures: int

    def record(self) -> dict[str, Any]:
        """The content of run.json: minutes so far, epochs, futures, done, recipe, commit and command.

        Raises:
            TrajformerError: the folder has a run with another recipe, length or store.
        """
        path = self.folder / "run.json"
        if not path.exists():
            progress = {"minutes": 0.0, "epochs": self.recipe.trainer.epochs, "futures": self.futures, "done": False}
            return progress | origin() | {"recipe": to_plain(self._movable(self.recipe))}
        record: dict[str, Any] = json.loads(path.read_text())
        try:
            same = from_plain(TrainConfig, upgrade_recipe(record["recipe"])) == self._movable(self.recipe)
        except (TrajformerError, AttributeError):
            same = False
        if not same or record["futures"] != self.futures:
            raise TrajformerError(f"{self.folder}: has a run of another recipe, length or store; remove it or use another --out")
        return record

    def _movable(self, recipe: TrainConfig) -> TrainConfig:
        """A recipe without the locations of stores and first stage, which may change."""
        return replace(recipe, data=replace(recipe.data, train="", val=""), first_stage=folder_of(self.row.after))

    def add_minutes(self, minutes: float, done: bool = False) -> None:
        """Update run.json."""
        record = self.record()
        record |= {"minutes": record["minutes"] + minutes, "done": done}
        write_atomically(self.folder / "run.json", json.dumps(record, indent=1) + "\n")


def plan(row: Row, seed: int, store: Path, out: Path, futures: int) -> Plan:
    """The training of a row for about this number of futures, in whole epochs, or for the epochs of the row.

    Raises:
        TrajformerError: the recipe or the store cannot be used.
    """
    words: tuple[str, ...] = (f"--data.train={store}", f"--data.val={store}", "--trainer.threads=1", f"--seed={seed}")
    if row.after:
        words += (f"--first_stage={out / folder_of(row.after) / f'seed{seed}' / 'best.ckpt'}",)
    per_epoch = futures_in_epoch(recipe_of(row, *words).data)
    if not per_epoch:
        raise TrajformerError(f"{store}: no agent has a known future to train on")
    epochs = row.epochs or max(round(futures / per_epoch), 1)
    words += (f"--trainer.epochs={epochs}", f"--trainer.validate_every={max(round(epochs / VALIDATIONS), 1)}")
    folder = out / row.folder / f"seed{seed}"
    return Plan(row, seed, folder, (*row.words, *words), recipe_of(row, *words), epochs * per_epoch)
