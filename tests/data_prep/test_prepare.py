"""Raw folders to stores: workers, resume, limits, skipped inputs, errors for the user."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import fixtures
from support.odd_readers import Odd, odd_folder

from data_prep.engine import runners
from data_prep.engine.prepare import PrepareOptions, PrepareSummary, prepare
from data_prep.reader import Input
from data_prep.readers.argoverse1 import Argoverse1
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.manifest import read_manifest, verify_store
from trajformer.scenes.merge import merge_stores
from trajformer.scenes.scene import scenes_equal
from trajformer.scenes.shard import read_shard_info, shard_path
from trajformer.scenes.store import SceneStore

SMALL = PrepareOptions(shard_size=2, progress=False)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Five train and five test sequences of Argoverse 1."""
    return fixtures.argoverse1_folder(tmp_path / "raw", sequences=5)


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store."""
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def split_of(summary: PrepareSummary, name: str) -> tuple[int, int, int]:
    """Scenes, shards and kept shards of a split."""
    found = next(split for split in summary.splits if split.split == name)
    return found.scenes, found.shards, found.kept_shards


def test_a_folder_becomes_a_store(raw: Path, tmp_path: Path) -> None:
    reader = Argoverse1()
    summary = prepare(reader, raw, tmp_path / "store", SMALL)
    assert (summary.scenes, summary.skipped) == (10, [])
    assert split_of(summary, "train") == (5, 3, 0)
    assert summary.splits[1].bytes == read_manifest(tmp_path / "store")["splits"]["train"]["bytes"]
    for split in ("train", "test_obs"):
        store = SceneStore(tmp_path / "store", split)
        expected = [reader.read(item, split, raw) for item in reader.inputs(raw, split)]
        assert all(scenes_equal(a, b) for a, b in zip(store, expected, strict=True))
    assert verify_store(tmp_path / "store", lambda paths, total: paths) == []


def test_workers_make_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    (raw / "train" / "data" / "3.csv").write_text("broken\n")
    for workers in (1, 2):
        options = replace(SMALL, workers=workers, shard_size=2, splits=("train",))
        summary = prepare(Argoverse1(), raw, tmp_path / str(workers), options)
        assert summary.scenes == 4
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_the_place_of_the_raw_folder_does_not_matter(raw: Path, tmp_path: Path) -> None:
    (raw / "train" / "data" / "3.csv").write_text("broken\n")
    prepare(Argoverse1(), raw, tmp_path / "a", SMALL)
    prepare(Argoverse1(), raw.rename(tmp_path / "elsewhere"), tmp_path / "b", SMALL)
    assert content(tmp_path / "a") == content(tmp_path / "b")


# ---- resume --------------------------------------------------------------------------------------------------------


def test_only_a_missing_shard_is_made_again(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prepare(Argoverse1(), raw, store, SMALL)
    before = content(store)
    for path in store.glob("*/*.arrow"):
        os.utime(path, (1, 1))
    shard_path(store, "train", 1).unlink()
    summary = prepare(Argoverse1(), raw, store, SMALL)
    assert content(store) == before
    assert (split_of(summary, "train"), split_of(summary, "test_obs")) == ((5, 3, 2), (5, 3, 3))
    times = {path.name: path.stat().st_mtime for path in store.glob("train/*.arrow")}
    assert [times[f"0000{i}.arrow"] == 1 for i in range(3)] == [True, False, True]


def test_a_damaged_shard_and_leftovers_are_cleared(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prepare(Argoverse1(), raw, store, SMALL)
    before = content(store)
    path = shard_path(store, "train", 1)
    path.write_bytes(path.read_bytes()[:-3])
    shutil.copy(shard_path(store, "train", 0), shard_path(store, "train", 9))
    path.with_name(".00001.arrow.123.tmp").write_text("half a shard")
    (store / ".manifest.json.123.tmp").write_text("half a manifest")
    prepare(Argoverse1(), raw, store, SMALL)
    assert content(store) == before


def test_other_options_make_a_shard_again(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prepare(Argoverse1(), raw, store, SMALL)
    summary = prepare(Argoverse1(map_radius_m=15.0), raw, store, SMALL)
    assert split_of(summary, "train") == (5, 3, 0)
    assert SceneStore(store, "train")[0].num_polylines == 2
    assert split_of(prepare(Argoverse1(map_radius_m=15.0), raw, store, SMALL), "train") == (5, 3, 3)


def test_more_inputs_add_shards_and_fewer_remove_them(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    summary = prepare(Argoverse1(), raw, store, replace(SMALL, limit=4))
    assert split_of(summary, "train") == (4, 2, 0)
    assert split_of(prepare(Argoverse1(), raw, store, SMALL), "train") == (5, 3, 2)
    assert split_of(prepare(Argoverse1(), raw, store, replace(SMALL, limit=1)), "train") == (1, 1, 0)
    assert sorted(path.name for path in (store / "train").iterdir()) == ["00000.arrow"]


def test_splits_can_be_made_one_by_one(raw: Path, tmp_path: Path) -> None:
    for split in ("train", "test_obs"):
        summary = prepare(Argoverse1(), raw, tmp_path / "one", replace(SMALL, splits=(split,)))
        assert [found.split for found in summary.splits] == [split]
    prepare(Argoverse1(), raw, tmp_path / "all", SMALL)
    assert content(tmp_path / "one") == content(tmp_path / "all")


def test_an_unfinished_store_has_no_manifest(raw: Path, tmp_path: Path) -> None:
    prepare(Argoverse1(), raw, tmp_path / "store", replace(SMALL, limit=2))
    (raw / "train" / "data" / "5.csv").write_text("broken\n")
    with pytest.raises(SceneError):
        prepare(Argoverse1(), raw, tmp_path / "store", replace(SMALL, strict=True))
    assert not (tmp_path / "store" / "manifest.json").exists()
    assert read_shard_info(shard_path(tmp_path / "store", "train", 1))[1] == 2


# ---- inputs that cannot be used ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unusable_input_is_listed_or_an_error(raw: Path, tmp_path: Path, workers: int) -> None:
    rows = fixtures.argoverse1_rows(fixtures.argoverse1_tracks(), city="OSL")
    fixtures.write_argoverse1(raw / "train" / "data" / "4.csv", rows)
    options = replace(SMALL, splits=("train",), workers=workers)
    summary = prepare(Argoverse1(), raw, tmp_path / "store", options)
    assert summary.scenes == 4
    [(name, reason)] = summary.skipped
    assert name == "train/data/4.csv"
    assert reason.startswith("train/data/4.csv: CITY_NAME: no map_files/pruned_argoverse_OSL_")
    again = prepare(Argoverse1(), raw, tmp_path / "store", options)
    assert again.skipped == summary.skipped
    assert again.splits[0].kept_shards == 3
    with pytest.raises(SceneError, match=r"4\.csv: CITY_NAME"):
        prepare(Argoverse1(), raw, tmp_path / "strict", replace(options, strict=True))


def test_a_split_without_a_usable_scene_is_an_error(tmp_path: Path) -> None:
    raw = odd_folder(tmp_path / "raw", "bug", "bug")
    with pytest.raises(TrajformerError, match=r"split 's': no usable scene \(the first of 2: s/000\.txt: ZeroDivisionError\)"):
        prepare(Odd(), raw, tmp_path / "store", SMALL)
    assert len(read_manifest(tmp_path / "store")["splits"]["s"]["skipped"]) == 2


# ---- errors for the user -------------------------------------------------------------------------------------------


def test_errors_of_the_user(raw: Path, tmp_path: Path) -> None:
    store, reader = tmp_path / "store", Argoverse1()
    with pytest.raises(TrajformerError, match="nowhere: no such folder"):
        prepare(reader, tmp_path / "nowhere", store, SMALL)
    with pytest.raises(TrajformerError, match=r"raw: no split 'val' \(splits here: test_obs, train\)"):
        prepare(reader, raw, store, replace(SMALL, splits=("train", "val")))
    with pytest.raises(TrajformerError, match=r"raw: not a argoverse2 folder \(expected RAW/<split>/<uuid>/scenario_"):
        prepare(Argoverse2(), raw, store, SMALL)
    with pytest.raises(TrajformerError, match="must be at least 1"):
        prepare(reader, raw, store, replace(SMALL, workers=0))
    assert not store.exists()


def test_an_unwritable_store(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrajformerError, match="file/store/test_obs: the store cannot be written"):
        prepare(Argoverse1(), raw, tmp_path / "file" / "store", SMALL)


def test_a_shard_that_cannot_be_written(raw: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    prepare(Argoverse1(), raw, store, SMALL)
    shard_path(store, "train", 2).unlink()
    (store / "train" / "00002.arrow").mkdir()
    with pytest.raises(TrajformerError, match=r"00002\.arrow: cannot be written"):
        prepare(Argoverse1(), raw, store, SMALL)


# ---- real data -----------------------------------------------------------------------------------------------------


def test_real_argoverse2(real_data: Path, tmp_path: Path) -> None:
    summary = prepare(Argoverse2(), real_data / "argoverse2", tmp_path, replace(SMALL, workers=2))
    assert {split.split: split.scenes for split in summary.splits} == {"test": 5, "train": 2, "val": 1}
    assert summary.skipped == []
    assert verify_store(tmp_path, lambda paths, total: paths) == []
    assert sum(split.bytes for split in summary.splits) / summary.scenes < 60_000


def test_what_others_have_made_is_not_replaced(raw: Path, tmp_path: Path) -> None:
    two = fixtures.write_argoverse2(tmp_path / "raw2", split="train").parents[2]
    prepare(Argoverse2(), two, tmp_path / "a", SMALL)
    before = content(tmp_path / "a")
    with pytest.raises(TrajformerError, match=r"00000\.arrow: has scenes of argoverse2: prepare argoverse1 into a store"):
        prepare(Argoverse1(), raw, tmp_path / "a", SMALL)
    prepare(Argoverse1(), raw, tmp_path / "b", SMALL)
    merge_stores([tmp_path / "a", tmp_path / "b"], tmp_path / "both", lambda copies, total: copies)
    with pytest.raises(TrajformerError, match="both: was made by `trajformer store merge`"):
        prepare(Argoverse1(), raw, tmp_path / "both", SMALL)
    assert content(tmp_path / "a") == before
    assert len(SceneStore(tmp_path / "both", "train")) == 6


def test_a_split_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Argoverse1, raw: Path, split: str) -> list[Input]:
        raise PermissionError(13, "Permission denied", str(raw / split))

    raw = fixtures.argoverse1_folder(tmp_path / "raw")
    monkeypatch.setattr(Argoverse1, "inputs", forbidden)
    with pytest.raises(TrajformerError, match=r"raw: split 'test_obs' cannot be listed: PermissionError: .*denied"):
        prepare(Argoverse1(), raw, tmp_path / "store", SMALL)
    assert not (tmp_path / "store").exists()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="what a process was started with is read from /proc")
@pytest.mark.parametrize("before", [None, "3"])
def test_reading_processes_start_without_threads_for_matrix_products(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "OPENBLAS_NUM_THREADS"
    if before is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, before)
    worker = runners._Worker()
    try:
        assert worker.answer() == runners.READY
        environment = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
        assert f"{name}=1".encode() in environment and os.environ.get(name) == before
    finally:
        worker.end()
