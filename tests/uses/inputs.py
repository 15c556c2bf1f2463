"""Stores, raw folders, checkpoints and forecasts: missing, damaged, or in another format."""

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
from support.uses import Case, cut

from trajformer.scenes.manifest import manifest_text

CONSTANT = "evaluate --model constant_velocity --store"
SCORE = "evaluate --store store --checkpoint"
NO_STORE = "nowhere: no such store; make one with `trajformer preprocess`"


# ---- preparation: each function changes the files of a case --------------------------------------


def newer_store() -> None:
    """A store new/ of a later schema version."""
    shard = Path("store/val/00000.arrow").read_bytes()
    newer = shard.replace(b'"schema_version": 2', b'"schema_version": 7')
    Path("new/val").mkdir(parents=True)
    Path("new/val/00000.arrow").write_bytes(newer)
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
    columns["heading"][:] = np.nan
    fixtures.write_argoverse2(Path("raw"), columns, uuid="nan")


def no_valid_scene() -> None:
    broken_raw()
    shutil.rmtree("raw/val/raw-val-2")


def score_file(use: str, prepare: Callable[[], object], line: str) -> Case:
    """A case of scoring the checkpoint "file"."""
    return Case(f"score a checkpoint: {use}", f"{SCORE} file", f"file: {line}", prepare)


NOT_READABLE = "not a readable checkpoint"
NOT_OURS = "not a trajformer checkpoint"
NOT_FIT = "recipe and weights do not fit"
OTHER_TABLE = partial(pd.DataFrame({"scenario_id": ["a"]}).to_parquet, "file")  # has no forecasts
PLOT = "plot store --out p"
TRAIN = "train --config recipe.yaml --out r"
WITHOUT_NUMBERS = manifest_text({"schema_version": 2, "splits": {"val": {}}})
VERSIONS = "schema.version 7, this software reads 2"
PREPARE_VAL = "preprocess argoverse2 raw s --split val --workers 1"
LISTED = (  # of broken_raw()
    r"(?s)val: 1 scenes.*3 skipped.*val/nan/.*heading: empty, no number, NaN or infinity.*"
    r"val/raw-val-0/.*not a readable parquet.*val/raw-val-1/.*log_map_archive_raw-val-1.json"
)

CASES = [
    Case("evaluate a store that does not exist", f"{CONSTANT} nowhere", NO_STORE),
    Case("print a store that does not exist", "store info nowhere", NO_STORE),
    Case("draw a store that does not exist", "plot nowhere --out p", NO_STORE),
    Case("train on a store that does not exist", f"{TRAIN} --data.val nowhere", NO_STORE),
    Case("train without a store", f"{TRAIN} --data.train ''", "data.train: give a store"),
    Case(
        "an unknown split",
        f"{CONSTANT} store --split moon",
        r"no split 'moon' \(splits here: test, train, val\)",
    ),
    Case(
        "a raw folder as a store",
        f"{CONSTANT} raw",
        r"raw: no split 'val' .not a store; .trajformer preprocess",
    ),
    Case(
        "a split as a store",
        f"{CONSTANT} store/val",
        "store/val: no split 'val' .* its store is .*/store.$",
    ),
    Case(
        "a run as a checkpoint",
        "evaluate --store store --checkpoint run",
        "a folder; .* run/last.ckpt",
    ),
    Case(
        "score a split without a future",
        f"{CONSTANT} store --split test",
        "'test' has no known future to score",
    ),
    Case(
        "train on a split without a future",
        f"{TRAIN} --data.train_split test",
        "split 'test' has no known future",
    ),
    Case("print a newer store", "store info new", f"new/manifest.json: {VERSIONS}", newer_store),
    Case("score a newer store", f"{CONSTANT} new", f"new/val/00000.arrow: {VERSIONS}", newer_store),
    Case(
        "score a truncated shard",
        f"{CONSTANT} store",
        r"not a readable shard \(truncated or",
        cut("store/val/00000.arrow"),
    ),
    Case(
        "verify a missing split",
        "store verify store",
        "in the manifest but missing",
        lambda: shutil.rmtree("store/val"),
    ),
    Case(
        "a manifest of another form",
        "store info store",
        "store/manifest.json: schema_version None",
        manifest("[]"),
    ),
    Case(
        "a manifest without numbers",
        "store verify store",
        "json: val: scenes: not a valid",
        manifest(WITHOUT_NUMBERS),
    ),
    score_file("a text", lambda: Path("file").write_text("hello\n" * 9), NOT_READABLE),
    score_file("an empty file", lambda: Path("file").touch(), NOT_READABLE),
    score_file("a zip file", archive, NOT_READABLE),
    score_file(
        "code instead of a recipe",
        checkpoint(lambda raw: raw.update(trajformer=Evil())),
        NOT_READABLE,
    ),
    score_file(
        "a pickle with code", lambda: Path("file").write_bytes(pickle.dumps(Evil())), NOT_READABLE
    ),
    score_file(
        "weights of another program",
        lambda: torch.save({"weights": torch.ones(2)}, "file"),
        NOT_OURS,
    ),
    score_file("a tensor", lambda: torch.save(torch.ones(2), "file"), NOT_OURS),
    score_file("a missing file", list, "no such checkpoint"),
    score_file(
        "a missing tensor",
        checkpoint(lambda raw: raw["state_dict"].popitem()),
        f"{NOT_FIT}.*weights 'score.6.bias'",
    ),
    score_file(
        "a tensor of another shape",
        checkpoint(lambda raw: raw["state_dict"].update({"model.position": torch.ones(1)})),
        ".*do not fit.*weights 'position'",
    ),
    score_file(
        "an unknown field",
        checkpoint(lambda raw: model(raw).update(speed=3)),
        ".*unknown field 'speed'",
    ),
    score_file(
        "a word",
        checkpoint(lambda raw: model(raw).update(proposals="six")),
        ".*mmtransformer.proposals: expected",
    ),
    score_file(
        "sizes",
        checkpoint(lambda raw: model(raw)["block"].update(heads=5)),
        ".*heads 5 does not divide width 16",
    ),
    score_file(
        "a newer version",
        checkpoint(lambda raw: raw["trajformer"].update(schema=7, version="9.1")),
        r"schema version 7, this software \(0.*\) reads 2: made by another state of the software"
        r" \(9.1\); train again, or install that one",
    ),
    score_file("a number for the recipe", checkpoint(lambda raw: raw.update(trajformer=3)), ""),
    Case(
        "score a truncated checkpoint",
        f"{SCORE} run/best.ckpt",
        f"best.ckpt: {NOT_READABLE}",
        cut("run/best.ckpt", 0.5),
    ),
    Case(
        "score nothing",
        "evaluate --store store",
        "give --checkpoint or --model; included weights fit: trajformer evaluate --checkpoint"
        " pretrained:se2former_simulated --store store --split val",
    ),
    Case(
        "no worker",
        "preprocess argoverse2 raw s --workers 0",
        "--workers: '.*', expected 1 to 256",
        status=2,
    ),
    Case("a negative seed", "synthesize s --seed -1", "--seed: '-1', expected int >= 0", status=2),
    Case("an empty batch", f"{CONSTANT} store --batch-size 0", "--batch-size: '0'", status=2),
    Case("an unknown source", "preprocess kitti raw s", "invalid choice: 'kitti'", status=2),
    Case(
        "broken scenarios are listed, the others are kept",
        PREPARE_VAL,
        LISTED,
        broken_raw,
        status=0,
    ),
    Case(
        "the first broken scenario is an error on request",
        f"{PREPARE_VAL} --strict",
        "heading: empty, no number, NaN or infinity",
        broken_raw,
    ),
    Case(
        "no valid scenario",
        PREPARE_VAL,
        r"split 'val': no usable scene \(the first of 3: ",
        no_valid_scene,
    ),
    Case(
        "a dry run",
        f"{PREPARE_VAL} --dry-run --retry-skipped",
        "(?s)val: 3 scenes.*nothing was written",
        status=0,
    ),
    Case(
        "a raw folder that does not exist",
        "preprocess argoverse2 nowhere s",
        "nowhere: no such folder",
    ),
    Case(
        "a raw folder of another data set",
        "preprocess argoverse1 raw s",
        "raw: not a argoverse1 folder",
    ),
    Case(
        "a raw split that does not exist",
        "preprocess argoverse2 raw s --split moon",
        "raw: no split 'moon'",
    ),
    Case("view at a port and in a file", "view store --out p.html --port 8765", "leave out --port"),
    Case(
        "view at a port that does not exist", "view store --port 70000", "port: .*70000", status=2
    ),
    Case(
        "view with a model of other scenes",
        "view store --checkpoint pretrained:se2former_nuscenes",
        "se2former_nuscenes|period|trained",
    ),
    Case(
        "view forecasts of other tracks",
        "view store --forecasts file --out p.html",
        "has no track",
        other_tracks,
    ),
    Case(
        "view scenes",
        "view store --forecasts forecasts.parquet --out p.html",
        "p.html: 3 scenes",
        status=0,
    ),
    Case("draw an unknown scene", f"{PLOT} --scene moon", "no scene moon in any split"),
    Case(
        "draw a scene of another split",
        f"{PLOT} --scene moon --split val",
        "no scene moon in split 'val'",
    ),
    Case(
        "draw the worst scenes without forecasts", f"{PLOT} --worst 2", "--worst needs --forecasts"
    ),
    Case("draw missing forecasts", f"{PLOT} --forecasts nothing", "nothing: no such file"),
    Case(
        "draw a text as forecasts",
        f"{PLOT} --forecasts notes.txt",
        "notes.txt: not a readable parquet file",
    ),
    Case(
        "draw another table",
        f"{PLOT} --forecasts file",
        "file: not a forecast file: no column track_id",
        OTHER_TABLE,
    ),
    Case(
        "draw forecasts of other tracks", f"{PLOT} --forecasts file", "has no track", other_tracks
    ),
]
