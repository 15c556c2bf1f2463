"""Stores, raw folders, checkpoints and forecast files that are missing, damaged or of another kind."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from support import fixtures
from support.cli import Evil
from support.uses import Case

from trajformer.scenes import manifest, shard
from trajformer.scenes.store import SceneStore

CONSTANT = "evaluate --model constant_velocity --store"
SCORE = "evaluate --store store --checkpoint"
NO_STORE = "nowhere: no such store; make one with `trajformer preprocess`"


# ---- preparation: each function changes the files of a case --------------------------------------------------------


def newer_store() -> None:
    """A store new/ of a later schema version."""
    shutil.copytree("store", "new")
    scenes, path = list(SceneStore("store", "val")), shard.shard_path(Path("new"), "val", 0)
    before = shard.SCHEMA_VERSION
    try:
        shard.SCHEMA_VERSION = manifest.SCHEMA_VERSION = 7
        shard.write_shard(path, scenes, shard.ShardInfo("synthetic", "val", schema_version=7))
        shutil.rmtree("new/train")
        shutil.rmtree("new/test")
        manifest.write_manifest(Path("new"))
    finally:
        shard.SCHEMA_VERSION = manifest.SCHEMA_VERSION = before


def cut(path: str, share: float = 0.9) -> Callable[[], object]:
    """Remove the end of a file."""
    return lambda: Path(path).write_bytes((data := Path(path).read_bytes())[: int(len(data) * share)])


def archive() -> None:
    """A zip file that is not a checkpoint."""
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
    """The config of the model of a checkpoint."""
    return raw["trajformer"]["config"]["model"]["mmtransformer"]


def forecasts(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[], object]:
    """A changed forecast file, "file"."""
    return lambda: change(pd.read_parquet("forecasts.parquet")).to_parquet("file")


def broken_raw() -> None:
    """Three broken scenarios in raw/val, and a valid one."""
    folder = Path("raw/val")
    (folder / "raw-val-0/scenario_raw-val-0.parquet").write_text("no parquet")
    (folder / "raw-val-1/log_map_archive_raw-val-1.json").write_text("{")
    columns = fixtures.argoverse2_columns()
    columns["heading"][5] = np.nan
    fixtures.write_argoverse2(Path("raw"), columns, uuid="nan")


def no_valid_scene() -> None:
    """A folder raw/ whose only scenarios are broken."""
    broken_raw()
    shutil.rmtree("raw/val/raw-val-2")


def split_without_shard() -> None:
    """A store that has lost a split."""
    shutil.rmtree("store/val")


def is_checkpoint_error(use: str, prepare: Callable[[], object], line: str) -> Case:
    """A case of scoring the checkpoint "file"."""
    return Case(use=f"score a checkpoint: {use}", run=f"{SCORE} file", prepare=prepare, line=f"file: {line}")


NOT_READABLE, NOT_OURS = "not a readable checkpoint", "not a trajformer checkpoint"
PLOT = "plot store --out p"
VERSIONS = "schema.version 7, this software reads 2"

CASES = [
    Case(use="evaluate a store that does not exist", run=f"{CONSTANT} nowhere", line=NO_STORE),
    Case(use="print a store that does not exist", run="store info nowhere", line=NO_STORE),
    Case(use="draw a store that does not exist", run="plot nowhere --out p", line=NO_STORE),
    Case(use="train on a store that does not exist", run="train --config recipe.yaml --data.val nowhere --out r", line=NO_STORE),
    Case(use="train without a store", run="train --config recipe.yaml --data.train '' --out r", line="data.train: give a store"),
    Case(use="an unknown split", run=f"{CONSTANT} store --split moon", line=r"no split 'moon' \(splits here: test, train, val\)"),
    Case(use="score a split without a future", run=f"{CONSTANT} store --split test", line="'test' has no known future to score"),
    Case(
        use="train on a split without a future",
        run="train --config recipe.yaml --data.train_split test --out r",
        line="split 'test' has no known future",
    ),
    Case(use="print a newer store", prepare=newer_store, run="store info new", line=f"new/manifest.json: {VERSIONS}"),
    Case(use="verify a newer store", prepare=newer_store, run="store verify new", line=f"new/manifest.json: {VERSIONS}"),
    Case(use="score a newer store", prepare=newer_store, run=f"{CONSTANT} new", line=f"new/val/00000.arrow: {VERSIONS}"),
    Case(use="draw a newer store", prepare=newer_store, run="plot new --out p", line=f"new/val/00000.arrow: {VERSIONS}"),
    Case(
        use="score a truncated shard",
        prepare=cut("store/val/00000.arrow"),
        run=f"{CONSTANT} store",
        line=r"store/val/00000.arrow: not a readable shard \(truncated or damaged\)",
    ),
    Case(
        use="verify a missing split",
        prepare=split_without_shard,
        run="store verify store",
        status=1,
        line="listed in the manifest but missing",
    ),
    Case(
        use="a manifest of another form",
        prepare=lambda: Path("store/manifest.json").write_text("[]"),
        run="store info store",
        line="store/manifest.json: schema_version None",
    ),
    Case(
        use="draw forecasts of other tracks",
        prepare=forecasts(lambda table: table.assign(track_id="x" + table.track_id)),
        run=f"{PLOT} --forecasts file",
        line="has no track",
    ),
    is_checkpoint_error("a text", lambda: Path("file").write_text("hello\n" * 9), NOT_READABLE),
    is_checkpoint_error("an empty file", lambda: Path("file").touch(), NOT_READABLE),
    is_checkpoint_error("a zip file", archive, NOT_READABLE),
    is_checkpoint_error("code instead of a recipe", checkpoint(lambda raw: raw.update(trajformer=Evil())), NOT_READABLE),
    is_checkpoint_error("a pickle with code", lambda: Path("file").write_bytes(pickle.dumps(Evil())), NOT_READABLE),
    is_checkpoint_error("weights of another program", lambda: torch.save({"weights": torch.ones(2)}, "file"), NOT_OURS),
    is_checkpoint_error("a tensor", lambda: torch.save(torch.ones(2), "file"), NOT_OURS),
    is_checkpoint_error("a missing file", list, "no such checkpoint"),
    is_checkpoint_error(
        "a missing tensor", checkpoint(lambda raw: raw["state_dict"].popitem()), "recipe and weights do not fit.*Missing key"
    ),
    is_checkpoint_error(
        "a tensor of another shape",
        checkpoint(lambda raw: raw["state_dict"].update({"model.position": torch.ones(1)})),
        ".*size mismatch for position",
    ),
    is_checkpoint_error("an unknown field", checkpoint(lambda raw: model(raw).update(speed=3)), ".*unknown field 'speed'"),
    is_checkpoint_error(
        "a word for a number", checkpoint(lambda raw: model(raw).update(proposals="six")), ".*mmtransformer.proposals: expected"
    ),
    is_checkpoint_error(
        "sizes that do not fit", checkpoint(lambda raw: model(raw)["block"].update(heads=5)), ".*heads 5 does not divide width 16"
    ),
    is_checkpoint_error("a number for the recipe", checkpoint(lambda raw: raw.update(trajformer=3)), ""),
    Case(
        use="score a truncated checkpoint",
        prepare=cut("run/best.ckpt", 0.5),
        run=f"{SCORE} run/best.ckpt",
        line=f"best.ckpt: {NOT_READABLE}",
    ),
    Case(use="score nothing", run="evaluate --store store", line="either --checkpoint CKPT or --model"),
    Case(use="no worker", run="preprocess argoverse2 raw s --workers 0", status=2, line="workers: Not of type PositiveInt"),
    Case(use="a negative seed", run="synthesize s --seed -1", status=2, line="seed: Not of type"),
    Case(use="an empty batch", run=f"{CONSTANT} store --batch-size 0", status=2, line="batch_size"),
    Case(use="an unknown source", run="preprocess waymo raw s", status=2, line="invalid choice: 'waymo'"),
    Case(
        use="broken scenarios are listed, the others are kept",
        prepare=broken_raw,
        run="preprocess argoverse2 raw s --split val --workers 1",
        status=0,
        line=r"(?s)val: 1 scenes.*3 skipped.*val/nan/.*heading: NaN or infinity.*"
        r"val/raw-val-0/.*not a readable parquet.*val/raw-val-1/.*log_map_archive_raw-val-1.json",
    ),
    Case(
        use="the first broken scenario is an error on request",
        prepare=broken_raw,
        run="preprocess argoverse2 raw s --split val --workers 1 --strict",
        line="heading: NaN or infinity",
    ),
    Case(
        use="no valid scenario",
        prepare=no_valid_scene,
        run="preprocess argoverse2 raw s --split val --workers 1",
        line=r"split 'val': no usable scene \(the first of 3: ",
    ),
    Case(use="a raw folder that does not exist", run="preprocess argoverse2 nowhere s", line="nowhere: no such folder"),
    Case(use="a raw folder of another data set", run="preprocess argoverse1 raw s", line="raw: not a argoverse1 folder"),
    Case(use="a raw split that does not exist", run="preprocess argoverse2 raw s --split moon", line="raw: no split 'moon'"),
    Case(use="draw an unknown scene", run=f"{PLOT} --scene moon", line="no scene moon in any split"),
    Case(use="draw a scene of another split", run=f"{PLOT} --scene moon --split val", line="no scene moon in split 'val'"),
    Case(use="draw the worst scenes without forecasts", run=f"{PLOT} --worst 2", line="--worst needs --forecasts"),
    Case(use="draw missing forecasts", run=f"{PLOT} --forecasts nothing", line="nothing: no such file"),
    Case(use="draw a text as forecasts", run=f"{PLOT} --forecasts notes.txt", line="notes.txt: not a readable parquet file"),
    Case(
        use="draw another table as forecasts",
        prepare=lambda: pd.DataFrame({"scenario_id": ["a"]}).to_parquet("file"),
        run=f"{PLOT} --forecasts file",
        line="file: not a forecast file: no column track_id",
    ),
    Case(
        use="a manifest without its shards' numbers",
        prepare=lambda: Path("store/manifest.json").write_text(json.dumps({"schema_version": 2, "splits": {"val": {}}})),
        run="store verify store",
        line="store/manifest.json: val: scenes: not a valid manifest entry",
    ),
]
