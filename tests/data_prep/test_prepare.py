"""Preparing a store: content, resuming, options, and errors for the user."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import fixtures
from support.odd_readers import Odd, odd_folder, small_scene
from support.prepared import content
from support.raw_folders import FOLDERS

from data_prep.engine.estimate import estimate
from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import PrepareSummary, prepare
from data_prep.readers.argoverse1 import Argoverse1
from trajformer.errors import SceneError, StoreError, TrajformerError, TrajformerWarning
from trajformer.scenes.manifest import read_manifest, verify_store
from trajformer.scenes.merge import merge_stores
from trajformer.scenes.resample import resample_store
from trajformer.scenes.scene import scenes_equal
from trajformer.scenes.shard import ShardInfo, read_shard_info, shard_path, write_shard
from trajformer.scenes.store import SceneStore

SMALL = PrepareOptions(shard_size=2, progress=False)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw folder and the store made from it.

    It has five train and five test sequences of Argoverse 1, one is broken.
    """
    folder = tmp_path_factory.mktemp("prepared")
    raw = fixtures.argoverse1_folder(folder / "raw", sequences=5)
    (raw / "test_obs" / "data" / "3.csv").write_text("broken\n")
    summary = prepare(Argoverse1(), raw, folder / "store", SMALL)
    assert summary.scenes == 9
    assert [name for name, _ in summary.skipped] == ["test_obs/data/3.csv"]
    assert shards_of(summary) == {"train": (5, 3, 0), "test_obs": (4, 3, 0)}
    entries = read_manifest(folder / "store")["splits"]
    assert len(entries) == len(summary.splits)
    for split in summary.splits:
        assert split.bytes == entries[split.split]["bytes"]
    return folder


@pytest.fixture
def raw(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared / "raw", tmp_path / "raw")


@pytest.fixture
def store(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared / "store", tmp_path / "store")


def shards_of(summary: PrepareSummary) -> dict[str, tuple[int, int, int]]:
    """Scenes, shards and kept shards of each split."""
    counts = {}
    for split in summary.splits:
        counts[split.split] = (split.scenes, split.shards, split.kept_shards)
    return counts


def test_a_store_holds_the_scenes_of_the_reader(prepared: Path) -> None:
    reader = Argoverse1()
    raw = prepared / "raw"
    inputs = {split: reader.inputs(raw, split) for split in ("train", "test_obs")}
    del inputs["test_obs"][2]  # the broken one
    for split, usable in inputs.items():
        scenes = SceneStore(prepared / "store", split)
        for scene, item in zip(scenes, usable, strict=True):
            assert scenes_equal(scene, reader.read(item, split, raw))
    assert verify_store(prepared / "store", lambda paths, total: paths) == []


def test_bytes_do_not_depend_on_workers_order_of_splits_or_location(
    prepared: Path, raw: Path, tmp_path: Path
) -> None:
    elsewhere = raw.rename(tmp_path / "elsewhere")
    for split in ("train", "test_obs"):
        options = replace(SMALL, workers=2, splits=(split,))
        summary = prepare(Argoverse1(), elsewhere, tmp_path / "store", options)
        assert shards_of(summary).keys() == {split}
    assert content(tmp_path / "store") == content(prepared / "store")


def test_only_missing_and_damaged_shards_are_made_again(
    prepared: Path, raw: Path, store: Path
) -> None:
    for path in store.glob("*/*.arrow"):
        os.utime(path, (1, 1))
    shard_path(store, "train", 0).unlink()
    damaged = shard_path(store, "train", 1)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    shutil.copy(shard_path(store, "train", 2), shard_path(store, "train", 9))
    damaged.with_name(".00001.arrow.123.tmp").write_text("half a shard")
    (store / ".manifest.json.123.tmp").write_text("half a manifest")
    summary = prepare(Argoverse1(), raw, store, SMALL)
    assert shards_of(summary) == {"train": (5, 3, 1), "test_obs": (4, 3, 3)}
    assert content(store) == content(prepared / "store")
    changed = []
    for path in store.glob("*/*.arrow"):
        if path.stat().st_mtime != 1:
            changed.append(path)
    assert sorted(changed) == [shard_path(store, "train", 0), damaged]


def test_other_reader_options_make_all_shards_again(raw: Path, store: Path) -> None:
    reader = Argoverse1(map_radius_m=15.0)
    options = replace(SMALL, splits=("train",), overwrite=True)
    assert shards_of(prepare(reader, raw, store, options)) == {"train": (5, 3, 0)}
    assert SceneStore(store, "train")[0].num_polylines == 2
    assert shards_of(prepare(reader, raw, store, options)) == {"train": (5, 3, 3)}


def test_more_fewer_and_repaired_inputs(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "fine", "value", "fine", "fine")
    store = tmp_path / "store"
    assert shards_of(prepare(Odd(), raw, store, replace(SMALL, limit=4))) == {"s": (3, 2, 0)}
    assert shards_of(prepare(Odd(), raw, store, SMALL)) == {"s": (4, 3, 2)}
    (raw / "s" / "002.txt").write_text("fine")
    assert len(prepare(Odd(), raw, store, SMALL).skipped) == 1
    summary = prepare(Odd(), raw, store, replace(SMALL, retry_skipped=True))
    assert summary.skipped == []
    assert shards_of(summary) == {"s": (5, 3, 2)}
    summary = prepare(Odd(), raw, store, replace(SMALL, limit=1, overwrite=True))
    assert shards_of(summary) == {"s": (1, 1, 0)}
    assert [path.name for path in (store / "s").glob("*.arrow")] == ["00000.arrow"]


def test_a_store_has_a_manifest_if_it_is_finished(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "fine", "fine", "fine", "value")
    store = tmp_path / "store"
    prepare(Odd(), raw, store, replace(SMALL, limit=2))
    with pytest.raises(SceneError):
        prepare(Odd(), raw, store, replace(SMALL, strict=True))
    assert not (store / "manifest.json").exists()
    assert read_shard_info(shard_path(store, "s", 1))[1] == 2
    first = prepare(Odd(), raw, store, SMALL)
    path = store / "manifest.json"
    inode = path.stat().st_ino
    manifest = read_manifest(store)
    assert prepare(Odd(), raw, store, SMALL).skipped == first.skipped
    assert path.stat().st_ino == inode, "an unchanged store keeps its manifest"
    write_shard(store / "other" / "00000.arrow", [small_scene("x")], ShardInfo("odd", "other"))
    prepare(Odd(), raw, store, SMALL)
    assert read_manifest(store)["splits"].keys() == {"other", "s"}
    path.write_text('{"splits": []}')
    prepare(Odd(), raw, store, replace(SMALL, splits=("s",)))
    assert read_manifest(store)["splits"]["s"] == manifest["splits"]["s"]


def test_warnings_of_readers_are_listed_with_their_scenes(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "fine", "warning", "value")
    store = tmp_path / "store"
    listed = (("s/001.txt", "s/001.txt: looks odd"),)
    for run in range(2):
        summary = prepare(Odd(), raw, store, SMALL)
        assert summary.splits[0].warnings == listed, run
    assert summary.scenes == 2
    assert verify_store(store, lambda paths, total: paths) == []


def test_a_run_of_one_split_does_not_finish_another_one(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "new"
    path = raw / "train" / "data" / "5.csv"
    rows = path.read_text()
    path.write_text("broken\n")
    with pytest.raises(SceneError):
        prepare(Argoverse1(), raw, store, replace(SMALL, splits=("train",), strict=True))
    assert [*store.glob("train/*.arrow")]
    message = r"no manifest.json, because split train is not finished"
    with pytest.warns(TrajformerWarning, match=message):
        summary = prepare(Argoverse1(), raw, store, replace(SMALL, splits=("test_obs",)))
    assert shards_of(summary) == {"test_obs": (4, 3, 0)}
    assert not (store / "manifest.json").exists()
    with pytest.raises(StoreError, match="no readable manifest"):
        resample_store(store, tmp_path / "resampled", lambda paths, total: paths)
    path.write_text(rows)
    prepare(Argoverse1(), raw, store, replace(SMALL, splits=("train",)))
    assert read_manifest(store)["splits"].keys() == {"train", "test_obs"}
    assert verify_store(store, lambda paths, total: paths) == []


def test_two_inputs_with_one_scene_id_are_an_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    store = tmp_path / "store"
    message = r"train: scene train-7 is in 00000.arrow twice: two inputs have this id"
    reader = FOLDERS["sdd"](raw)
    shutil.copy(next(raw.glob("*.parquet")), raw / "again.parquet")
    for _ in range(2):
        with pytest.raises(TrajformerError, match=message):
            prepare(reader, raw, store, replace(SMALL, splits=("train",)))
        assert not (store / "manifest.json").exists()


@pytest.mark.parametrize(
    ("raw_name", "store_name", "options", "message"),
    [
        ("raw", "store", {"splits": ("s", "val")}, r"raw: no split 'val' \(splits here: s\)"),
        ("raw", "store", {"workers": 0}, "workers: 0, expected 1 to"),
        ("raw", "store", {"limit": 0}, "limit: 0, expected 1 to"),
        ("raw", "store", {"timeout_s": 0.0}, "timeout_s: 0.0, expected"),
        ("raw", "store", {"ray_address": "a:1"}, "for the executor ray"),
        ("file", "store", {}, "file: not a folder"),
        ("raw", "raw", {}, "must lie outside of the raw folder"),
        ("raw", "raw/s/../store", {}, "must lie outside of the raw folder"),
        ("raw", "file", {}, "file: the store cannot be written: a file of that name exists"),
        ("raw", "file/store", {}, "file/store/s: the store cannot be written"),
    ],
)
def test_invalid_arguments_are_errors(
    tmp_path: Path, raw_name: str, store_name: str, options: dict, message: str
) -> None:
    odd_folder(tmp_path / "raw", "fine")
    (tmp_path / "file").write_text("")
    runs: list[Callable] = [prepare]
    if store_name != "file/store":  # an estimate writes no store
        runs.append(estimate)
    for run in runs:
        with pytest.raises(TrajformerError, match=message):
            run(Odd(), tmp_path / raw_name, tmp_path / store_name, replace(SMALL, **options))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["000.txt", "file", "raw", "s"]


def test_merged_stores_are_not_replaced(raw: Path, store: Path, tmp_path: Path) -> None:
    merge_stores([store], tmp_path / "merged", lambda copies, total: copies)
    before = content(tmp_path / "merged")
    with pytest.raises(TrajformerError, match="merged: was made by `trajformer store merge`"):
        prepare(Argoverse1(), raw, tmp_path / "merged", SMALL)
    assert content(tmp_path / "merged") == before


def test_a_split_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = odd_folder(tmp_path / "raw", "fine")
    monkeypatch.setattr(Odd, "inputs", lambda *_: (raw / "s" / "000.txt" / "below").read_text())
    message = r"raw: split 's' cannot be listed: NotADirectoryError: "
    with pytest.raises(TrajformerError, match=message):
        prepare(Odd(), raw, tmp_path / "store", SMALL)
    assert not (tmp_path / "store").exists()
