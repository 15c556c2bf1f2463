"""Trainings of a comparison: rows of a table, and processes that can be stopped and resumed."""

import contextlib
import functools
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml
from measure import origin

from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.errors import StoreError, TrajformerError
from trajformer.recipes.checkpoint import UNTRAINED
from trajformer.recipes.choices import upgrade_recipe
from trajformer.recipes.names import read_recipe
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig, TrainerConfig
from trajformer.recipes.yaml_text import parse_yaml, read_yaml
from trajformer.scenes.files import write_atomically
from trajformer.scenes.manifest import shard_sizes
from trajformer.scenes.store import SceneStore

COMMAND = [sys.executable, "-m", "trajformer.cli"]
VALIDATIONS = 8  # approximate number in a training
NEVER = 1_000_000  # epochs between validations
STOP_S = 3.0  # for trainings to end after an interruption


@dataclass(frozen=True, eq=False)
class Row:
    """A model to compare: a recipe with changes, or a model without training."""

    name: str  # in tables; also gives the name of the folder
    config: str = ""  # file of the recipe
    arguments: dict = field(
        default_factory=dict
    )  # values by field of the recipe (`optim.learning_rate`)
    epochs: int = 0  # length of the training, in place of the number of futures
    after: str = (
        ""  # name of the row that is the first stage; its checkpoint with the same seed is used
    )
    model: str = ""  # name of a model without training, in place of `config`

    @functools.cached_property
    def recipe(self) -> TrainConfig:
        """Its recipe, or a TrajformerError if it is invalid; `plan` replaces the name of the first stage by a checkpoint."""
        if self.model:
            return TrainConfig(UNTRAINED[self.model])
        return replace(read_recipe(self.config, self.arguments), first_stage=folder_of(self.after))


def folder_of(name: str) -> str:
    """Name of the folder with the results of a row."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def read_table(path: Path, changes: dict[str, Any] | None = None) -> list[Row]:
    """The rows of a YAML file, a list with the fields of `Row`; `config` is relative to the file. Errors name the row.

    `changes` are further arguments of all recipes.
    """
    entries = read_yaml(path)
    if not isinstance(entries, list) or not entries:
        raise TrajformerError(
            f"{path}: expected a list of rows with {', '.join(item.name for item in fields(Row))}"
        )
    rows = [
        from_plain(Row, entry, f"{path}: row {number}") for number, entry in enumerate(entries, 1)
    ]
    folders = Counter(folder_of(row.name) for row in rows)
    first_stages = {row.name for row in rows if not row.after}
    for number, row in enumerate(rows, 1):
        reason = ""
        if bool(row.config) == bool(row.model) or not folder_of(row.name):
            reason = "expected a name, and either a config or a model"
        elif row.model and row.model not in UNTRAINED:
            reason = f"unknown model '{row.model}' (without training: {', '.join(UNTRAINED)})"
        elif folders[folder_of(row.name)] > 1:
            reason = f"another row has the same folder, '{folder_of(row.name)}'; rename it"
        elif row.after and row.after not in first_stages:
            reason = f"after: '{row.after}' is not a row without a first stage"
        if reason:
            raise TrajformerError(f"{path}: row {number}: {reason}")
    return [
        replace(
            row, config=str(path.parent / row.config), arguments=row.arguments | (changes or {})
        )
        for row in rows
    ]


def fields_of(options: list[str], fixed: Collection[str] = ()) -> dict[str, Any]:
    """Values by field of a recipe, from the words of a command line: --optim.clip 1.0 or --optim.clip=1.0.

    Raises TrajformerError: a word is no field of a recipe, or one of the `fixed` fields, which the tool sets.
    """
    words = [part for word in options for part in word.split("=", 1)]
    known = [item.name for item in fields(TrainConfig)]
    for word in words[::2]:
        name = word.removeprefix("--")
        if name == word or name.split(".")[0] not in known:
            raise TrajformerError(
                f"{word}: neither an option of this tool nor a field of a recipe (--trainer.minutes)"
            )
        if name in fixed:
            raise TrajformerError(f"{word}: this tool sets the field; leave it out")
    if len(words) % 2:
        raise TrajformerError(
            f"{words[-1]}: expected a field of the recipe and its value, --optim.clip 1.0"
        )
    return {
        name.removeprefix("--"): parse_yaml(value, name)
        for name, value in zip(words[::2], words[1::2], strict=True)
    }


@functools.cache
def count_futures(data: DataConfig) -> int:
    """Number of targets with a known future in the training split."""
    kind = BranchDataset if data.branches else SceneDataset
    scenes = kind(SceneStore(data.train, data.train_split), data.batch, data.limit_train)
    return sum(
        int(scenes.sample(index).padded["target_valid"].any(-1).sum())
        for index in range(len(scenes))
    )


@functools.cache
def digest_of(store: str, split: str) -> str:
    """A digest of the scene ids of a split and the sizes of its files, to notice another store; empty without this split."""
    try:
        content = [SceneStore(store, split).scene_ids(), shard_sizes(Path(store) / split)]
    except StoreError:
        return ""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(eq=False)
class Training:
    """One training: a row with a seed and a length."""

    row: Row
    seed: int
    folder: Path  # of the run; the output of the process is in log.txt
    recipe: TrainConfig  # the recipe of the row with stores, seed and length
    futures: (
        int | None
    )  # targets with a known future in the whole training; None if the last checkpoint is scored
    process: subprocess.Popen[bytes] | None = None  # `trajformer train`, once it has started
    start_time: float = 0.0  # of the process

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to score: the best one, or the last one of a training in which none is selected."""
        return self.folder / ("best.ckpt" if self.futures else "last.ckpt")

    def record(self) -> dict[str, Any]:
        """The content of run.json: minutes so far, epochs, futures, digests of both splits, done, recipe, commit and command."""
        path, given = self.folder / "run.json", self.recipe.data
        digests = {
            "data": digest_of(given.train, given.train_split),
            "val": digest_of(given.val, given.val_split),
        }
        recipe = replace(
            self.recipe,
            data=replace(given, train="", val=""),
            first_stage=self.row.recipe.first_stage,
        )
        if not path.exists():
            epochs = recipe.trainer.epochs if self.futures else None
            progress = {"minutes": 0.0, "epochs": epochs, "futures": self.futures, "done": False}
            return progress | digests | origin() | {"recipe": to_plain(recipe)}
        record: dict[str, Any] = json.loads(path.read_text())
        try:
            same = _without_epochs(
                from_plain(TrainConfig, upgrade_recipe(record["recipe"]))
            ) == _without_epochs(recipe)
        except (TrajformerError, AttributeError):
            same = False
        for name, digest in digests.items():
            record[name] = record.get(name) or digest  # earlier versions wrote none
            same = same and digest in ("", record[name])  # empty: the store has been removed
        if not same or record["futures"] != self.futures:
            raise TrajformerError(
                f"{self.folder}: has a run of another recipe, length or store; remove it or use another --out"
            )
        return record

    def start(self) -> None:
        """Start the process; it resumes an interrupted run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_record()
        write_atomically(self.folder / "recipe.yaml", yaml.safe_dump(to_plain(self.recipe)))
        command = [
            *COMMAND,
            "train",
            "--config",
            str(self.folder / "recipe.yaml"),
            f"--out={self.folder}",
        ]
        if (self.folder / "last.ckpt").exists():
            command.append("--resume")
        with (self.folder / "log.txt").open("ab") as log:
            self.process, self.start_time = (
                subprocess.Popen(command, stdout=log, stderr=log),
                time.monotonic(),
            )

    def write_record(self, minutes: float = 0.0, done: bool = False) -> None:
        """Update run.json."""
        record = self.record()
        record |= {"minutes": record["minutes"] + minutes, "done": done}
        write_atomically(self.folder / "run.json", json.dumps(record, indent=1) + "\n")

    def finish(self) -> str:
        """Wait for the end of the process and update run.json; returns the last line of the log after a failure."""
        assert self.process
        code = self.process.wait()
        self.write_record((time.monotonic() - self.start_time) / 60, done=code == 0)
        lines = [
            line
            for line in (self.folder / "log.txt").read_text(errors="replace").split("\n")
            if line.strip()
        ]
        return (lines[-1].strip() if lines else "no output") if code else ""


def _without_epochs(recipe: TrainConfig) -> TrainConfig:
    """The recipe with the default number of epochs if it has a length in minutes, which replaces them."""
    trainer = recipe.trainer
    return (
        replace(recipe, trainer=replace(trainer, epochs=TrainerConfig.epochs))
        if trainer.minutes
        else recipe
    )


def plan(row: Row, seed: int, store: Path, out: Path, futures: int) -> Training:
    """The training of a row for about this number of futures, in whole epochs, or for the epochs of the row.

    A recipe with `trainer.minutes` is trained for this time instead, without validation before the end.
    """
    data, trainer = (
        replace(row.recipe.data, train=str(store), val=str(store)),
        replace(row.recipe.trainer, threads=1),
    )
    if trainer.minutes:
        total, trainer = None, replace(trainer, validate_every=NEVER)
    else:
        per_epoch = count_futures(
            replace(data, batch=BatchConfig(targets=data.train_batch.targets), learn_from=None)
        )
        if not per_epoch:
            raise TrajformerError(f"{store}: no agent has a known future to train on")
        epochs = row.epochs or max(round(futures / per_epoch), 1)
        total, trainer = (
            epochs * per_epoch,
            replace(trainer, epochs=epochs, validate_every=max(round(epochs / VALIDATIONS), 1)),
        )
    first_stage = str(out / folder_of(row.after) / f"seed{seed}" / "best.ckpt") if row.after else ""
    recipe = replace(row.recipe, data=data, trainer=trainer, seed=seed, first_stage=first_stage)
    return Training(row, seed, out / folder_of(row.name) / f"seed{seed}", recipe, total)


def train_all(trainings: list[Training], jobs: int) -> dict[Training, str]:
    """Run trainings, `jobs` at a time; returns the failed ones with the last lines of their logs.

    An interrupt ends all processes; the same call resumes them.
    """
    waiting, running, failed = list(trainings), list[Training](), dict[Training, str]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.pop(0))
                running[-1].start()
                trainer = running[-1].recipe.trainer
                length = (
                    f"{trainer.minutes:g} processor minutes"
                    if trainer.minutes
                    else f"{trainer.epochs} epochs"
                )
                print(f"{running[-1].folder}: {length}, progress in log.txt", flush=True)
            time.sleep(0.1)
            for training in [
                one for one in running if one.process and one.process.poll() is not None
            ]:
                running.remove(training)
                if (
                    (failure := training.finish())
                    and training.process
                    and training.process.returncode == 130
                ):
                    raise KeyboardInterrupt  # Ctrl-C reaches all processes, and this one may be the last to notice
                if failure:
                    failed[training] = failure
                print(
                    f"{training.folder}: {failure or 'done'}, {training.record()['minutes']:.1f} minutes",
                    flush=True,
                )
    finally:
        limit = time.monotonic() + STOP_S
        for training in running:
            if training.process:
                training.process.terminate()  # a training writes a checkpoint and exits
        for training in running:
            if training.process:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    training.process.wait(max(limit - time.monotonic(), 0.0))
                training.process.kill()  # does nothing if it has exited
                training.finish()
    return failed
