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

from trajformer.errors import StoreError, TrajformerError
from trajformer.recipes.checkpoint import UNTRAINED
from trajformer.recipes.names import read_recipe
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.recipes.yaml_text import parse_yaml, read_yaml
from trajformer.scenes.files import write_atomically
from trajformer.scenes.manifest import shard_sizes
from trajformer.scenes.store import SceneStore

COMMAND = [sys.executable, "-m", "trajformer.cli"]
NEVER = 1_000_000  # epochs between validations
# For trainings to end after an interruption: the present step, and a checkpoint. A busy machine may
# need seconds for them.
STOP_S = 30.0
INTERRUPTED = 130  # exit status of a training after Ctrl-C


@dataclass(frozen=True, eq=False)
class Row:
    """A model to compare: a recipe with changes, or a model without training."""

    name: str  # in tables; also gives the name of the folder
    config: str = ""  # file of the recipe
    arguments: dict = field(default_factory=dict)  # by field: `optim.learning_rate`
    after: str = ""  # row that is the first stage; its checkpoint with the same seed is used
    model: str = ""  # name of a model without training, in place of `config`

    @functools.cached_property
    def recipe(self) -> TrainConfig:
        """Its recipe, or a TrajformerError if it is invalid.

        `first_stage` is the folder of a row; `plan` replaces it by a checkpoint.
        """
        if self.model:
            return TrainConfig(UNTRAINED[self.model])
        recipe: TrainConfig = read_recipe(self.config, self.arguments)
        return replace(recipe, first_stage=folder_of(self.after))

    @property
    def val_split(self) -> str:
        """The split on which it is scored."""
        return self.recipe.data.val_split


def folder_of(name: str) -> str:
    """Name of the folder with the results of a row."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def read_table(path: Path, changes: dict[str, Any] | None = None) -> list[Row]:
    """The rows of a YAML file, a list with the fields of `Row`. Errors name the row.

    `config` is relative to the file. `changes` are further arguments of all recipes.
    """
    entries = read_yaml(path)
    if not isinstance(entries, list) or not entries:
        names = ", ".join(item.name for item in fields(Row))
        raise TrajformerError(f"{path}: expected a list of rows with {names}")
    rows: list[Row] = []
    for number, entry in enumerate(entries, 1):
        rows.append(from_plain(Row, entry, f"{path}: row {number}"))

    folders = Counter(folder_of(row.name) for row in rows)
    first_stages = {row.name for row in rows if not row.after}
    resolved = []
    for number, row in enumerate(rows, 1):
        problem = _problem_of(row, folders, first_stages)
        if problem:
            raise TrajformerError(f"{path}: row {number}: {problem}")
        config = str(path.parent / row.config)
        resolved.append(replace(row, config=config, arguments=row.arguments | (changes or {})))
    return resolved


def _problem_of(row: Row, folders: Counter[str], first_stages: set[str]) -> str:
    """The reason why a row is invalid, or an empty string."""
    folder = folder_of(row.name)
    if bool(row.config) == bool(row.model) or not folder:
        return "expected a name, and either a config or a model"
    if row.model and row.model not in UNTRAINED:
        return f"unknown model '{row.model}' (without training: {', '.join(UNTRAINED)})"
    if folders[folder] > 1:
        return f"another row has the same folder, '{folder}'; rename it"
    if row.after and row.after not in first_stages:
        return f"after: '{row.after}' is not a row without a first stage"
    return ""


def fields_of(options: list[str], fixed: Collection[str] = ()) -> dict[str, Any]:
    """Values by field of a recipe, from a command line: --optim.clip 1.0 or --optim.clip=1.0.

    Raises TrajformerError: a word is no field of a recipe, or one of the `fixed` fields, which the
    tool sets.
    """
    words: list[str] = []
    for option in options:
        words += option.split("=", 1)
    names = words[::2]
    values = words[1::2]
    known = [item.name for item in fields(TrainConfig)]
    for word in names:
        name = word.removeprefix("--")
        if name == word or name.split(".")[0] not in known:
            expected = "an option of this tool nor a field of a recipe (--optim.clip)"
            raise TrajformerError(f"{word}: neither {expected}")
        if name in fixed:
            raise TrajformerError(f"{word}: this tool sets the field; leave it out")
    if len(names) > len(values):
        expected = "expected a field of the recipe and its value, --optim.clip 1.0"
        raise TrajformerError(f"{names[-1]}: {expected}")

    parsed = {}
    for word, value in zip(names, values, strict=True):
        name = word.removeprefix("--")
        parsed[name] = parse_yaml(value, name)
    return parsed


@functools.cache
def digest_of(store: str, split: str) -> str:
    """A digest of a split's scene ids and file sizes, to notice another store.

    Empty if there is no such split.
    """
    try:
        content = [SceneStore(store, split).scene_ids(), shard_sizes(Path(store) / split)]
    except StoreError:
        return ""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(eq=False)
class Training:
    """One training: a row with a seed."""

    row: Row
    seed: int
    folder: Path  # of the run; the output of the process is in log.txt
    recipe: TrainConfig  # the recipe of the row with stores and seed
    process: subprocess.Popen[bytes] | None = None  # `trajformer train`, once it has started
    start_time: float = 0.0  # of the process

    @property
    def checkpoint(self) -> Path:
        """The checkpoint to score: the last one, or the best one of a recipe with epochs."""
        name = "best.ckpt" if self.recipe.num_steps is None else "last.ckpt"
        return self.folder / name

    @property
    def length_text(self) -> str:
        """The length in words."""
        if self.recipe.num_steps is None:
            return f"{self.recipe.trainer.num_epochs} epochs"
        return f"{self.recipe.num_steps:,} steps"

    def record(self) -> dict[str, Any]:
        """The content of run.json: minutes so far, done, digests of both splits, recipe, origin.

        Raises TrajformerError: the folder has a run of another recipe or store.
        """
        data = self.recipe.data
        if data.has_several:
            raise TrajformerError(
                "data: comparisons have one store for training and one for validation"
            )
        digests = {
            "data": digest_of(str(data.train), data.train_split),
            "val": digest_of(str(data.val), data.val_split),
        }
        # Paths are left out: a moved folder is the same run.
        recipe = replace(
            self.recipe,
            data=replace(data, train="", val=""),
            first_stage=self.row.recipe.first_stage,
        )
        path = self.folder / "run.json"
        if not path.exists():
            state = {"minutes": 0.0, "done": False, "recipe": to_plain(recipe)}
            return state | digests | origin()

        record: dict[str, Any] = json.loads(path.read_text())
        same = record.get("recipe") == to_plain(recipe)
        for name, digest in digests.items():
            # An empty digest: the store has been removed.
            same = same and digest in ("", record.get(name))
        if not same:
            advice = "remove it or use another --out"
            raise TrajformerError(f"{self.folder}: has a run of another recipe or store; {advice}")
        return record

    def start(self) -> None:
        """Start the process; it resumes an interrupted run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_record()
        recipe_path = self.folder / "recipe.yaml"
        write_atomically(recipe_path, yaml.safe_dump(to_plain(self.recipe)))
        command = [*COMMAND, "train", "--config", str(recipe_path), f"--out={self.folder}"]
        if (self.folder / "last.ckpt").exists():
            command.append("--resume")
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.start_time = time.monotonic()

    def write_record(self, minutes: float = 0.0, done: bool = False) -> None:
        """Update run.json."""
        record = self.record()
        record["minutes"] += minutes
        record["done"] = done
        write_atomically(self.folder / "run.json", json.dumps(record, indent=1) + "\n")

    def finish(self) -> str:
        """Wait for the end of the process and update run.json.

        Returns the last line of the log after a failure.
        """
        assert self.process
        code = self.process.wait()
        minutes = (time.monotonic() - self.start_time) / 60
        self.write_record(minutes, done=code == 0)
        if code == 0:
            return ""
        log = (self.folder / "log.txt").read_text(errors="replace")
        lines = [line.strip() for line in log.split("\n") if line.strip()]
        return lines[-1] if lines else "no output"


def plan(row: Row, seed: int, store: Path, out: Path) -> Training:
    """The training of a row, on one thread.

    A recipe with a length in steps is validated at its end only.
    """
    trainer = replace(row.recipe.trainer, threads=1)
    if trainer.steps is not None:
        trainer = replace(trainer, validate_every=NEVER)
    first_stage = ""
    if row.after:
        first_stage = str(out / folder_of(row.after) / f"seed{seed}" / "best.ckpt")
    recipe = replace(
        row.recipe,
        data=replace(row.recipe.data, train=str(store), val=str(store)),
        trainer=trainer,
        seed=seed,
        first_stage=first_stage,
    )
    return Training(row, seed, out / folder_of(row.name) / f"seed{seed}", recipe)


def train_all(trainings: list[Training], jobs: int) -> dict[Training, str]:
    """Run trainings, `jobs` at a time; returns the failed ones with the last lines of their logs.

    An interrupt ends all processes; the same call resumes them.
    """
    waiting = list(trainings)
    running: list[Training] = []
    failed: dict[Training, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                training = waiting.pop(0)
                running.append(training)
                training.start()
                line = f"{training.folder}: {training.length_text}, progress in log.txt"
                print(line, flush=True)
            time.sleep(0.1)
            for training in _ended(running):
                running.remove(training)
                failure = training.finish()
                if failure:
                    _raise_if_interrupted(training)
                    failed[training] = failure
                minutes = training.record()["minutes"]
                line = f"{training.folder}: {failure or 'done'}, {minutes:.1f} minutes"
                print(line, flush=True)
    finally:
        _stop(running)
    return failed


def _ended(running: list[Training]) -> list[Training]:
    """The trainings with a process that has ended."""
    return [one for one in running if one.process and one.process.poll() is not None]


def _raise_if_interrupted(training: Training) -> None:
    """Ctrl-C reaches all processes, and this one may be the last to notice."""
    if training.process and training.process.returncode == INTERRUPTED:
        raise KeyboardInterrupt


def _stop(running: list[Training]) -> None:
    """End processes; each has a short time to write a checkpoint."""
    deadline = time.monotonic() + STOP_S
    for training in running:
        if training.process:
            training.process.terminate()
    for training in running:
        if training.process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.process.wait(max(deadline - time.monotonic(), 0.0))
            training.process.kill()  # does nothing if it has exited
            training.finish()
