"""Stores, raw folders, checkpoints and forecast files that are missing, damaged or have another format."""

import pickle
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from support import fixtures
from support.cli import Evil
from support.uses import Case, Guard, cut

from trajformer.scenes.manifest import manifest_text

CONSTANT = "evaluate --model constant_velocity --store"
SCORE = "evaluate --store store --checkpoint"
NO_STORE = "nowhere: no such store; make one with `trajformer preprocess`"

CHECKPOINT, PLAIN, SHARD = (
    "trajformer/recipes/checkpoint.py",
    "trajformer/recipes/plain.py",
    "trajformer/scenes/shard.py",
)
STORE, MANIFEST, CLI_STORE = (
    "trajformer/scenes/store.py",
    "trajformer/scenes/manifest.py",
    "trajformer/cli/store.py",
)
MODELS, DATA, FORECASTS = (
    "trajformer/cli/models.py",
    "trajformer/cli/data.py",
    "trajformer/evaluation/forecast_file.py",
)
PREPARE, TRAINING = "data_prep/engine/prepare.py", "trajformer/training/forecasting.py"
NEVER = "except ZeroDivisionError as error:"  # instead of the errors that a guard catches
HAS_STORE = Guard(STORE, "if not self.root.is_dir():")
PRINTS_STORE = Guard(CLI_STORE, "if not store.is_dir():")
GIVEN = Guard(TRAINING, "if not getattr(config, name):")
SPLIT = Guard(STORE, "if not counts:")
SCORED = Guard("trajformer/evaluation/evaluate.py", 'if not columns["scenario_id"]:')
FUTURE = Guard(
    TRAINING, "if not len(data) or data.store[0].num_steps == data.store[0].num_history:"
)
VERSION, SHARD_VERSION = (
    Guard(MANIFEST, "if version != SCHEMA_VERSION:"),
    Guard(SHARD, "if version != SCHEMA_VERSION:"),
)
OPENS = Guard(SHARD, "except (pa.ArrowException, OSError, ValueError) as error:", NEVER)
LISTED_SHARDS = Guard(MANIFEST, "for path in listed if path not in on_disk]", "for path in ()]")
IS_MANIFEST = Guard(
    MANIFEST, " if isinstance(manifest, dict) else None\n    if version", "\n    if version"
)
ENTRIES = Guard(MANIFEST, "if type(found) is not expected or (", "if False and (")
READABLE = Guard(CHECKPOINT, "except _UNREADABLE as error:", NEVER)
WEIGHTS_ONLY = Guard(
    CHECKPOINT, 'map_location="cpu", weights_only=True', 'map_location="cpu", weights_only=False'
)
OURS = Guard(
    CHECKPOINT,
    'if not isinstance(raw, dict) or not isinstance(raw.get(CONFIG_KEY), dict) or "state_dict" not in raw:',
)
IS_CHECKPOINT = Guard(CHECKPOINT, "if not file.is_file():")
FITS = Guard(CHECKPOINT, "except _MISFIT as error:", NEVER)
KNOWN = Guard(PLAIN, "if unknown := set(value) - known.keys():")
NUMBER = Guard(
    PLAIN,
    "(number or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))):",
    "True:",
)
CHECKPOINT_VERSION = Guard(CHECKPOINT, "if schema != SCHEMA_VERSION:")
SOURCE = Guard(MODELS, "if source is None or (checkpoint and args.model):")
WORKERS = Guard(
    DATA,
    '"--workers", type=PositiveInt, default=WORKERS, help="number of local',
    '"--workers", type=int, default=2, help="',
)
SEED = Guard(DATA, '"--seed", type=NonNegativeInt', '"--seed", type=int')
BATCH = Guard(MODELS, '"--batch-size", type=PositiveInt', '"--batch-size", type=int')
READER = Guard(DATA, "choices=tuple(READERS), ", "")
KEEPS, STRICT = (
    Guard("data_prep/engine/tasks.py", "    if task.strict:\n", f"    if {value}:\n")
    for value in (True, False)
)
USABLE = Guard(PREPARE, 'if not entry["scenes"]:')
DRY = Guard(DATA, "if args.dry_run:")
RAW, LAYOUT = Guard(PREPARE, "if not raw.is_dir():"), Guard(PREPARE, "if not splits:")
RAW_SPLIT = Guard(
    PREPARE, "if missing := [split for split in options.splits if split not in splits]:"
)
SCENE, SCENE_OF_SPLIT = (
    Guard(MODELS, "if scene_ids and splits:"),
    Guard(STORE, "if scene_id not in indices:"),
)
NEEDS_FORECASTS = Guard(
    MODELS, "if args.forecasts is None and (args.worst is not None or args.density):"
)
HAS_FORECASTS = Guard(FORECASTS, "if not path.is_file():")
IS_PARQUET = Guard(
    FORECASTS, "except (pa.ArrowException, OSError, UnicodeDecodeError) as error:", NEVER
)
COLUMNS = Guard(FORECASTS, "if missing := [name for name in COLUMNS if name not in schema.names]:")
TRACK = Guard("trajformer/plotting/forecasts.py", "if forecast.track_id not in index:")


# ---- preparation: each function changes the files of a case --------------------------------------------------------


def newer_store() -> None:
    """A store new/ of a later schema version."""
    shard = Path("store/val/00000.arrow").read_bytes()
    Path("new/val").mkdir(parents=True)
    Path("new/val/00000.arrow").write_bytes(
        shard.replace(b'"schema_version": 2', b'"schema_version": 7')
    )
    Path("new/manifest.json").write_text('{"schema_version": 7}')


def archive() -> None:
    with zipfile.ZipFile("file", "w") as file:
        file.writestr("a", "b")


def checkpoint(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    """A changed checkpoint, "file"."""

    def write() -> None:
        raw = torch.load("run/best.ckpt", weights_only=True)
        change(raw)
        torch.save(raw, "file")

    return write


def model(raw: dict[str, Any]) -> dict[str, Any]:
    return raw["trajformer"]["config"]["model"]["mmtransformer"]


def other_tracks() -> None:
    """The forecasts "file" of tracks that no scene has."""
    table = pd.read_parquet("forecasts.parquet")
    table.assign(track_id="x" + table.track_id).to_parquet("file")


def manifest(text: str) -> Callable[[], object]:
    """Another manifest of store/."""
    return lambda: Path("store/manifest.json").write_text(text)


def broken_raw() -> None:
    """Three broken scenarios in raw/val, and a valid one."""
    folder = Path("raw/val")
    (folder / "raw-val-0/scenario_raw-val-0.parquet").write_text("no parquet")
    (folder / "raw-val-1/log_map_archive_raw-val-1.json").write_text("{")
    columns = fixtures.argoverse2_columns()
    columns["heading"][5] = np.nan
    fixtures.write_argoverse2(Path("raw"), columns, uuid="nan")


def no_valid_scene() -> None:
    broken_raw()
    shutil.rmtree("raw/val/raw-val-2")


def score_file(use: str, prepare: Callable[[], object], line: str, guard: Guard) -> Case:
    """A case of scoring the checkpoint "file"."""
    return Case(f"score a checkpoint: {use}", f"{SCORE} file", f"file: {line}", prepare, guard)


NOT_READABLE, NOT_OURS, NOT_FIT = (
    "not a readable checkpoint",
    "not a trajformer checkpoint",
    "recipe and weights do not fit",
)
OTHER_TABLE = partial(pd.DataFrame({"scenario_id": ["a"]}).to_parquet, "file")  # has no forecasts
PLOT, TRAIN = "plot store --out p", "train --config recipe.yaml --out r"
WITHOUT_NUMBERS = manifest_text({"schema_version": 2, "splits": {"val": {}}})
VERSIONS = "schema.version 7, this software reads 2"
PREPARE_VAL = "preprocess argoverse2 raw s --split val --workers 1"
LISTED = (  # of broken_raw()
    r"(?s)val: 1 scenes.*3 skipped.*val/nan/.*heading: NaN or infinity.*"
    r"val/raw-val-0/.*not a readable parquet.*val/raw-val-1/.*log_map_archive_raw-val-1.json"
)

CASES = [
    Case("evaluate a store that does not exist", f"{CONSTANT} nowhere", NO_STORE, guard=HAS_STORE),
    Case("print a store that does not exist", "store info nowhere", NO_STORE, guard=PRINTS_STORE),
    Case("draw a store that does not exist", "plot nowhere --out p", NO_STORE, guard=HAS_STORE),
    Case(
        "train on a store that does not exist",
        f"{TRAIN} --data.val nowhere",
        NO_STORE,
        guard=HAS_STORE,
    ),
    Case(
        "train without a store", f"{TRAIN} --data.train ''", "data.train: give a store", guard=GIVEN
    ),
    Case(
        "an unknown split",
        f"{CONSTANT} store --split moon",
        r"no split 'moon' \(splits here: test, train, val\)",
        guard=SPLIT,
    ),
    Case(
        "a raw folder as a store",
        f"{CONSTANT} raw",
        r"raw: no split 'val' .not a store; .trajformer preprocess",
        guard=SPLIT,
    ),
    Case(
        "a split as a store",
        f"{CONSTANT} store/val",
        "store/val: no split 'val' .* its store is .*/store.$",
        guard=SPLIT,
    ),
    Case(
        "a run as a checkpoint",
        "evaluate --store store --checkpoint run",
        "a folder; .* run/last.ckpt",
        guard=IS_CHECKPOINT,
    ),
    Case(
        "score a split without a future",
        f"{CONSTANT} store --split test",
        "'test' has no known future to score",
        guard=SCORED,
    ),
    Case(
        "train on a split without a future",
        f"{TRAIN} --data.train_split test",
        "split 'test' has no known future",
        guard=FUTURE,
    ),
    Case(
        "print a newer store",
        "store info new",
        f"new/manifest.json: {VERSIONS}",
        newer_store,
        guard=VERSION,
    ),
    Case(
        "score a newer store",
        f"{CONSTANT} new",
        f"new/val/00000.arrow: {VERSIONS}",
        newer_store,
        guard=SHARD_VERSION,
    ),
    Case(
        "score a truncated shard",
        f"{CONSTANT} store",
        r"not a readable shard \(truncated or",
        cut("store/val/00000.arrow"),
        guard=OPENS,
    ),
    Case(
        "verify a missing split",
        "store verify store",
        "in the manifest but missing",
        lambda: shutil.rmtree("store/val"),
        guard=LISTED_SHARDS,
    ),
    Case(
        "a manifest of another form",
        "store info store",
        "store/manifest.json: schema_version None",
        manifest("[]"),
        guard=IS_MANIFEST,
    ),
    Case(
        "a manifest without numbers",
        "store verify store",
        "json: val: scenes: not a valid",
        manifest(WITHOUT_NUMBERS),
        guard=ENTRIES,
    ),
    score_file("a text", lambda: Path("file").write_text("hello\n" * 9), NOT_READABLE, READABLE),
    score_file("an empty file", lambda: Path("file").touch(), NOT_READABLE, READABLE),
    score_file("a zip file", archive, NOT_READABLE, READABLE),
    score_file(
        "code instead of a recipe",
        checkpoint(lambda raw: raw.update(trajformer=Evil())),
        NOT_READABLE,
        WEIGHTS_ONLY,
    ),
    score_file(
        "a pickle with code",
        lambda: Path("file").write_bytes(pickle.dumps(Evil())),
        NOT_READABLE,
        WEIGHTS_ONLY,
    ),
    score_file(
        "weights of another program",
        lambda: torch.save({"weights": torch.ones(2)}, "file"),
        NOT_OURS,
        OURS,
    ),
    score_file("a tensor", lambda: torch.save(torch.ones(2), "file"), NOT_OURS, OURS),
    score_file("a missing file", list, "no such checkpoint", IS_CHECKPOINT),
    score_file(
        "a missing tensor",
        checkpoint(lambda raw: raw["state_dict"].popitem()),
        f"{NOT_FIT}.*Missing key",
        FITS,
    ),
    score_file(
        "a tensor of another shape",
        checkpoint(lambda raw: raw["state_dict"].update({"model.position": torch.ones(1)})),
        ".*size mismatch for position",
        FITS,
    ),
    score_file(
        "an unknown field",
        checkpoint(lambda raw: model(raw).update(speed=3)),
        ".*unknown field 'speed'",
        KNOWN,
    ),
    score_file(
        "a word",
        checkpoint(lambda raw: model(raw).update(proposals="six")),
        ".*mmtransformer.proposals: expected",
        NUMBER,
    ),
    score_file(
        "sizes",
        checkpoint(lambda raw: model(raw)["block"].update(heads=5)),
        ".*heads 5 does not divide width 16",
        FITS,
    ),
    score_file(
        "a newer version",
        checkpoint(lambda raw: raw["trajformer"].update(schema=7, version="9.1")),
        r"schema version 7, this software \(0.*\) reads 1: made by version 9.1, install that version",
        CHECKPOINT_VERSION,
    ),
    score_file(
        "a number for the recipe", checkpoint(lambda raw: raw.update(trajformer=3)), "", OURS
    ),
    Case(
        "score a truncated checkpoint",
        f"{SCORE} run/best.ckpt",
        f"best.ckpt: {NOT_READABLE}",
        cut("run/best.ckpt", 0.5),
        guard=READABLE,
    ),
    Case(
        "score nothing",
        "evaluate --store store",
        "one of the arguments --checkpoint --model is required",
        status=2,
    ),
    Case(
        "no worker",
        "preprocess argoverse2 raw s --workers 0",
        "workers: Not of type PositiveInt",
        status=2,
        guard=WORKERS,
    ),
    Case("a negative seed", "synthesize s --seed -1", "seed: Not of type", status=2, guard=SEED),
    Case("an empty batch", f"{CONSTANT} store --batch-size 0", "batch_size", status=2, guard=BATCH),
    Case(
        "an unknown source",
        "preprocess waymo raw s",
        "invalid choice: 'waymo'",
        status=2,
        guard=READER,
    ),
    Case(
        "broken scenarios are listed, the others are kept",
        PREPARE_VAL,
        LISTED,
        broken_raw,
        status=0,
        guard=KEEPS,
    ),
    Case(
        "the first broken scenario is an error on request",
        f"{PREPARE_VAL} --strict",
        "heading: NaN or infinity",
        broken_raw,
        guard=STRICT,
    ),
    Case(
        "no valid scenario",
        PREPARE_VAL,
        r"split 'val': no usable scene \(the first of 3: ",
        no_valid_scene,
        guard=USABLE,
    ),
    Case(
        "a dry run",
        f"{PREPARE_VAL} --dry-run --retry-skipped",
        "(?s)val: 3 scenes.*nothing was written",
        status=0,
        guard=DRY,
    ),
    Case(
        "a raw folder that does not exist",
        "preprocess argoverse2 nowhere s",
        "nowhere: no such folder",
        guard=RAW,
    ),
    Case(
        "a raw folder of another data set",
        "preprocess argoverse1 raw s",
        "raw: not a argoverse1 folder",
        guard=LAYOUT,
    ),
    Case(
        "a raw split that does not exist",
        "preprocess argoverse2 raw s --split moon",
        "raw: no split 'moon'",
        guard=RAW_SPLIT,
    ),
    Case(
        "draw an unknown scene", f"{PLOT} --scene moon", "no scene moon in any split", guard=SCENE
    ),
    Case(
        "draw a scene of another split",
        f"{PLOT} --scene moon --split val",
        "no scene moon in split 'val'",
        guard=SCENE_OF_SPLIT,
    ),
    Case(
        "draw the worst scenes without forecasts",
        f"{PLOT} --worst 2",
        "--worst needs --forecasts",
        guard=NEEDS_FORECASTS,
    ),
    Case(
        "draw missing forecasts",
        f"{PLOT} --forecasts nothing",
        "nothing: no such file",
        guard=HAS_FORECASTS,
    ),
    Case(
        "draw a text as forecasts",
        f"{PLOT} --forecasts notes.txt",
        "notes.txt: not a readable parquet file",
        guard=IS_PARQUET,
    ),
    Case(
        "draw another table",
        f"{PLOT} --forecasts file",
        "file: not a forecast file: no column track_id",
        OTHER_TABLE,
        guard=COLUMNS,
    ),
    Case(
        "draw forecasts of other tracks",
        f"{PLOT} --forecasts file",
        "has no track",
        other_tracks,
        guard=TRACK,
    ),
]
