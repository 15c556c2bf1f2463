"""Scenes on disk: round trip, indexing, foreign and damaged files, the manifest."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stores import make_store, random_scene, read_elsewhere, same_bits, write_elsewhere

from trajformer.errors import StoreError
from trajformer.scenes import store as store_module
from trajformer.scenes.manifest import MANIFEST, count_scenes, read_manifest, verify_store, write_manifest
from trajformer.scenes.scene import MAX_ORIGIN_M, Scene, scenes_equal
from trajformer.scenes.shard import Shard, ShardInfo, read_scene_ids, read_shard_info, shard_path, write_shard
from trajformer.scenes.store import SceneStore, store_splits

# ---- round trip ------------------------------------------------------------------------------------------------------

FILE_NAMES = st.text(st.characters(codec="utf-8", exclude_categories="CZ", exclude_characters="./\\"), min_size=1, max_size=40)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=200)
ORIGINS = st.floats(-MAX_ORIGIN_M, MAX_ORIGIN_M, allow_subnormal=True)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    agents, lanes = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    names: dict[str, Any] = {name: draw(FILE_NAMES) for name in ("scene_id", "source", "split")}
    names["agent_id"] = tuple(draw(st.lists(NAMES, min_size=agents, max_size=agents, unique=True)))
    names |= {"city": draw(NAMES | st.just("")), "origin": np.array([draw(ORIGINS), draw(ORIGINS)])}
    names["period_s"] = draw(st.floats(0, 60, exclude_min=True, exclude_max=True))
    return random_scene(draw(st.integers(0, 2**32)), agents, lanes, draw(st.booleans()), odd=draw(st.booleans()), **names)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(written=st.lists(scenes(), max_size=4))
def test_scenes_come_back_bit_for_bit(tmp_path: Path, written: list[Scene]) -> None:
    path = shard_path(tmp_path, "train", 0)
    write_shard(path, written, ShardInfo("random", "train"))
    shard, store = Shard(path), SceneStore(tmp_path, "train")
    ids = [scene.scene_id for scene in written]
    assert shard.scene_ids() == read_scene_ids(path) == store.scene_ids() == ids
    sizes = [[scene.num_agents, scene.num_polylines, len(scene.point)] for scene in written]
    assert shard.sizes().tolist() == store.sizes().tolist() == sizes
    assert len(shard) == len(store) == len(written)
    for row, scene in enumerate(written):
        assert scenes_equal(shard.scene(row).validate(), scene)
        assert same_bits(shard.scene(row), scene) and same_bits(store[row], scene)


def test_a_store_is_the_same_in_another_process(tmp_path: Path) -> None:
    here = make_store(tmp_path / "here")
    store = SceneStore(tmp_path / "here", "train")
    assert same_bits(store[4], here[4])  # a shard is open
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(write_elsewhere, tmp_path / "there")
        assert pool.submit(read_elsewhere, store).result() == there.result() == read_elsewhere(store)
    for path in (tmp_path / "here").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "there" / path.relative_to(tmp_path / "here")).read_bytes()


def test_the_same_scenes_give_the_same_bytes(tmp_path: Path) -> None:
    make_store(tmp_path / "a")
    make_store(tmp_path / "b")
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_bytes_of_a_row_are_those_in_the_file(tmp_path: Path) -> None:
    sizes = []
    for count in (1, 2):
        path = tmp_path / f"{count}.arrow"
        write_shard(path, [random_scene(0, 200, 300), random_scene(1, 900, 2000)][:count], ShardInfo("random", "train"))
        sizes.append(path.stat().st_size)
    first, second = Shard(path).row_bytes().tolist()
    assert sizes[0] == pytest.approx(first, abs=8000)  # metadata and padding of the columns
    assert sizes[1] - sizes[0] == pytest.approx(second, abs=2000)


# ---- a store -------------------------------------------------------------------------------------------------------


def test_a_store_is_a_sequence(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 0, 3))
    store = SceneStore(tmp_path, "train")
    assert len(store) == 5
    assert all(scenes_equal(a, b) for a, b in zip(store, scenes, strict=True))
    assert scenes_equal(store[-1], scenes[-1])
    assert store.scene_ids() == [scene.scene_id for scene in scenes]
    for index in (5, -6):
        with pytest.raises(IndexError):
            store[index]


def test_scenes_are_found_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path, (2, 0, 3, 1))
    read: list[str] = []
    monkeypatch.setattr(store_module, "read_scene_ids", lambda path: read.append(path.name) or read_scene_ids(path))
    store = SceneStore(tmp_path, "train")
    assert store.find(["scene-3", "scene-0", "scene-3"]) == [3, 0, 3]
    assert read == ["00000.arrow", "00001.arrow", "00002.arrow"], "looks no further than it needs to"
    assert store.find([]) == []
    assert store.indices(["scene-9", "scene-5"]) == {"scene-5": 5}
    with pytest.raises(StoreError, match="no scene scene-9 in split 'train'"):
        store.find(["scene-0", "scene-9"])


def test_the_index_has_one_row_per_scene(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 0, 3))
    index = SceneStore(tmp_path, "train").index()
    assert len(index) == 5 and index.index.tolist() == list(range(5))
    for name in ("scene_id", "source", "split", "city", "period_s", "num_history", "num_future", "num_agents", "num_polylines"):
        assert index[name].tolist() == [getattr(scene, name) for scene in scenes], name
    assert index["num_steps"].tolist() == [scene.num_steps for scene in scenes]
    assert index["num_points"].tolist() == [len(scene.point) for scene in scenes]
    assert index[["origin_x", "origin_y"]].to_numpy().tolist() == [scene.origin.tolist() for scene in scenes]


def test_an_id_that_occurs_twice_is_found_first(tmp_path: Path) -> None:
    for index in range(2):
        write_shard(shard_path(tmp_path, "train", index), [random_scene(7), random_scene(8)], ShardInfo("random", "train"))
    assert SceneStore(tmp_path, "train").find(["scene-8"]) == [1]


def test_a_store_travels_to_workers(tmp_path: Path) -> None:
    scenes = make_store(tmp_path)
    store = SceneStore(tmp_path, "train")
    assert scenes_equal(store[0], scenes[0])
    text = pickle.dumps(store)
    assert len(text) < 1000
    assert scenes_equal(pickle.loads(text)[4], scenes[4])


def test_scenes_are_views_that_cannot_be_written(tmp_path: Path) -> None:
    make_store(tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        SceneStore(tmp_path, "train")[0].point[0] = 1.0


def test_a_shard_says_what_it_is(tmp_path: Path) -> None:
    make_store(tmp_path)
    info, count = read_shard_info(shard_path(tmp_path, "train", 1))
    assert (count, info) == (2, ShardInfo("random", "train", "digest 1", (("bad-1", "a reason"),)))
    assert Shard(shard_path(tmp_path, "train", 1)).info == info
    assert store_splits(tmp_path) == ["train"]


def test_a_missing_store_or_split(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with pytest.raises(StoreError, match="nowhere: no such store"):
        SceneStore(tmp_path / "nowhere", "train")
    with pytest.raises(StoreError, match=r"store: no split 'val' \(splits here: train\)"):
        SceneStore(tmp_path / "store", "val")


def test_opening_reads_the_manifest_instead_of_every_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path, (2, 0, 3))
    read: list[str] = []
    monkeypatch.setattr(
        "trajformer.scenes.manifest.read_shard_info", lambda path: read.append(path.name) or read_shard_info(path)
    )
    assert (len(SceneStore(tmp_path, "train")), read) == (5, [])
    (tmp_path / MANIFEST).unlink()
    assert (len(SceneStore(tmp_path, "train")), read) == (5, ["00000.arrow", "00001.arrow", "00002.arrow"])


def test_a_store_can_be_read_while_it_is_made(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 2))
    shard = shard_path(tmp_path, "train", 1)
    whole = shard.read_bytes()
    shard.rename(shard.with_name(f".{shard.name}.77.tmp"))  # being written
    for manifest in (True, False):  # an old one, or none
        if not manifest:
            (tmp_path / MANIFEST).unlink()
        early = SceneStore(tmp_path, "train")
        assert (len(early), early.scene_ids()) == (2, ["scene-0", "scene-1"])
    shard.write_bytes(whole)
    assert len(early) == 2
    assert same_bits(SceneStore(tmp_path, "train")[3], scenes[3])


def test_a_shard_that_changed_after_opening_is_an_error(tmp_path: Path) -> None:
    make_store(tmp_path, (3, 2))
    store = SceneStore(tmp_path, "train")
    shutil.copyfile(shard_path(tmp_path, "train", 0), shard_path(tmp_path, "train", 1))
    for use in (lambda: store[4], store.scene_ids, store.sizes, lambda: store.find(["scene-4"])):
        with pytest.raises(StoreError, match=r"00001\.arrow: 3 scenes, expected 2: the file has changed"):
            use()
    assert store[2].scene_id == "scene-2"


def test_shards_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (100000, 99999, 2):
        write_shard(shard_path(tmp_path, "train", number), [random_scene(number)], ShardInfo("random", "train"))
    (tmp_path / "train" / "._00003.arrow").write_bytes(b"what some systems leave beside a file")
    write_manifest(tmp_path)
    assert SceneStore(tmp_path, "train").scene_ids() == ["scene-2", "scene-99999", "scene-100000"]
    assert faults(tmp_path) == []


def test_few_shards_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_OPEN_SHARDS", 3)
    scenes = make_store(tmp_path, (1,) * 8)
    store = SceneStore(tmp_path, "train")
    kept = [store[index] for index in range(8)]
    for index in (0, 7, 3, 3, 1, 6, 0):
        assert same_bits(store[index], scenes[index])
        assert len(store._shards) == 3
    assert all(same_bits(a, b) for a, b in zip(kept, scenes, strict=True)), "a scene outlives its shard"
    store = SceneStore(tmp_path, "train")
    assert (len(store.scene_ids()), store.sizes().shape, len(store._shards)) == (8, (8, 3), 0)


# ---- damaged and foreign files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 700, -1, -4000])
def test_a_shard_cut_short(tmp_path: Path, size: int) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match=r"00000\.arrow: not a readable shard"):
        SceneStore(tmp_path, "train")
    assert any("00000.arrow" in fault for fault in faults(tmp_path))


def _rewrite(path: Path, change: Callable[[pa.RecordBatch], pa.RecordBatch], **metadata: object) -> None:
    batch = change(pa.ipc.open_file(path).get_batch(0))
    key = b"trajformer"
    told = json.dumps(json.loads(batch.schema.metadata[key]) | metadata).encode()
    batch = batch.replace_schema_metadata({key: told} if metadata != {"scenes": "none"} else None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _with_column(name: str, change: Callable[[pa.Array], pa.Array]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: batch.set_column(
        batch.schema.get_field_index(name), batch.schema.field(name), change(batch.column(name))
    )


def _moved(column: pa.Array) -> pa.Array:
    """The same lists, with one value of the second row given to the first."""
    offsets = column.offsets.to_numpy().copy()
    offsets[1] += 1
    return pa.ListArray.from_arrays(pa.array(offsets), column.values)


def _backwards(column: pa.Array) -> pa.Array:
    offsets = column.offsets.to_numpy().copy()
    offsets[1] = offsets[-1] + 8
    return pa.ListArray.from_arrays(pa.array(offsets), column.values)


LISTS = ("agent_kind", "agent_role", "valid", "position", "velocity", "heading", "polyline_id", "polyline_kind")
LISTS = (*LISTS, "polyline_flags", "polyline_length", "point", "edge", "edge_kind")
BROKEN: dict[str, tuple[Callable[[pa.RecordBatch], pa.RecordBatch], str]] = {
    **{f"{name} moved": (_with_column(name, _moved), "row 0: .* values, expected") for name in LISTS},
    **{f"{name} backwards": (_with_column(name, _backwards), f"{name} has impossible offsets") for name in LISTS},
    "more steps": (_with_column("num_steps", lambda c: pa.array([10**9] * len(c), c.type)), "row 0: valid has"),
    "fewer steps": (_with_column("num_steps", lambda c: pa.array([-1] * len(c), c.type)), "row 0: valid has"),
    "null": (_with_column("num_steps", lambda c: pa.array([None] * len(c), c.type)), "no nulls"),
    "a column less": (lambda batch: batch.drop_columns(["heading"]), "columns differ"),
    "a row less": (lambda batch: batch.slice(1), "2 scenes, expected 3 from the metadata"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_columns_that_do_not_fit_together_are_refused(tmp_path: Path, case: str) -> None:
    change, message = BROKEN[case]
    write_shard(tmp_path / "0.arrow", [random_scene(seed, edges=2) for seed in range(3)], ShardInfo("random", "train"))
    _rewrite(tmp_path / "0.arrow", change)
    with pytest.raises(StoreError, match=rf"0\.arrow: .*{message}"):
        Shard(tmp_path / "0.arrow")


OFFSETS = {"first": [1, 3, 8, 15], "negative": [-4, 3, 8, 15], "backwards": [0, 9, 8, 15], "last": [0, 3, 8, 999]}


@pytest.mark.parametrize("case", OFFSETS)
def test_texts_with_impossible_offsets_are_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "0.arrow"
    write_shard(path, [random_scene(0, scene_id=name) for name in ("one", "three", "seventh")], ShardInfo("random", "train"))
    offsets = np.array([0, 3, 8, 15], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array(OFFSETS[case], np.int32).tobytes()))
    for read in (Shard, *([] if case == "first" else [read_scene_ids])):
        with pytest.raises(StoreError, match=r"0\.arrow: "):
            read(path)


def test_a_column_longer_than_its_bytes_is_refused(tmp_path: Path) -> None:
    """Its length stands beside its number of nulls; believing a false one means reading beyond the file."""
    path = tmp_path / "0.arrow"
    write_shard(path, [random_scene(0, 50, 30)], ShardInfo("random", "train"))
    count = int(Shard(path).scene(0).valid.sum())
    length = np.array([count, 0], np.int64).tobytes()
    content = path.read_bytes()
    assert content.count(length) == 1
    path.write_bytes(content.replace(length, np.array([1000 * count, 0], np.int64).tobytes()))
    with pytest.raises(StoreError, match=r"0\.arrow: not a readable shard"):
        Shard(path)


def test_a_row_that_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "0.arrow"
    write_shard(path, [random_scene(0, agent_id=("one", "two", "six")), random_scene(1)], ShardInfo("random", "train"))
    whole = path.read_bytes()
    for before, after in ((b"one\ntwo", b"one two"), (b"one\ntwo", b"one\n\xff\xfe\xfd"), (b"two\nsix", b"t\n\n\n\n\nx")):
        assert whole.count(before) == 1
        path.write_bytes(whole.replace(before, after))
        with pytest.raises(StoreError, match=r"0\.arrow: row 0: damaged"):
            Shard(path).scene(0)
        assert Shard(path).scene(1).agent_id == ("0", "AV 1", "2")


def test_ids_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.arrow"
    write_shard(path, [random_scene(0), random_scene(1)], ShardInfo("random", "train"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"scene-0", b"sc\xffne-0"))
    for _ in range(2):
        for read in (read_scene_ids, lambda path: Shard(path).scene_ids()):
            with pytest.raises(StoreError, match=r"0\.arrow: "):
                read(path)
        path.write_bytes(whole)
        _rewrite(path, _with_column("scene_id", lambda ids: pa.array(["a", None], ids.type)))


def test_bits_flipped_anywhere_are_found_and_never_crash(tmp_path: Path) -> None:
    """In the values as in Arrow's own tables at both ends; verify finds every one, reading never fails otherwise."""
    make_store(tmp_path, (4, 1))
    path, rng = shard_path(tmp_path, "train", 0), random.Random(0)
    whole = path.read_bytes()
    tables = [*range(2600), *range(len(whole) - 8000, len(whole))]
    for number in range(250):
        place = rng.choice(tables) if number % 2 else rng.randrange(len(whole))
        content = bytearray(whole)
        content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content if number < 200 else whole[:place])
        assert any(f"{path}" in fault for fault in faults(tmp_path)), place
        _read_all(tmp_path)
    path.write_bytes(whole)
    assert faults(tmp_path) == []


def _read_all(root: Path) -> None:
    """Read everything; what goes wrong is a StoreError, or the test fails."""
    for use in (SceneStore.scene_ids, SceneStore.sizes, lambda store: store.find(["scene-3"])):
        with suppress(StoreError):
            use(SceneStore(root, "train"))
    with suppress(StoreError):
        store = SceneStore(root, "train")
        for index in range(len(store)):
            with suppress(StoreError):
                store[index]


def test_another_schema_version(tmp_path: Path) -> None:
    make_store(tmp_path)
    _rewrite(shard_path(tmp_path, "train", 0), lambda batch: batch, schema_version=99)
    message = r"00000\.arrow: schema version 99, this software reads 2: preprocess again"
    with pytest.raises(StoreError, match=message):
        SceneStore(tmp_path, "train")[0]  # opening may believe the manifest
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=message):
        SceneStore(tmp_path, "train")


@pytest.mark.parametrize("metadata", [{"scenes": "none"}, {"colour": "red"}, {"skipped": 3}, {"skipped": [["a"]]}])
def test_a_foreign_file(tmp_path: Path, metadata: dict[str, object]) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    _rewrite(path, lambda batch: batch, **metadata)
    for read in (read_shard_info, read_scene_ids, Shard):
        with pytest.raises(StoreError, match=r"00000\.arrow: not a trajformer shard: no metadata"):
            read(path)


def test_an_unwritable_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_shard(shard_path(tmp_path / "file", "train", 0), [random_scene(0)], ShardInfo("random", "train"))
    (tmp_path / "taken" / "00000.arrow").mkdir(parents=True)
    with pytest.raises(OSError, match=r"00000\.arrow"):
        write_shard(tmp_path / "taken" / "00000.arrow", [random_scene(0)], ShardInfo("random", "train"))
    assert not list(tmp_path.rglob("*.tmp"))


# ---- the manifest --------------------------------------------------------------------------------------------------


def faults(root: Path) -> list[str]:
    return verify_store(root, lambda paths, total: paths)


def test_the_manifest_sums_the_shards_up(tmp_path: Path) -> None:
    make_store(tmp_path)
    split = read_manifest(tmp_path)["splits"]["train"]
    assert (split["scenes"], split["source"]) == (5, ["random"])
    assert [shard["scenes"] for shard in split["shards"]] == [3, 2]
    assert split["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("train/*.arrow"))
    assert split["skipped"] == [{"input": f"bad-{i}", "reason": "a reason"} for i in (0, 1)]
    assert faults(tmp_path) == []


def test_a_store_without_manifest(tmp_path: Path) -> None:
    make_store(tmp_path)
    for text in ("{", "\x00", '{"schema_version"'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
            faults(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
        faults(tmp_path)
    with pytest.raises(StoreError, match="empty: no store here"):
        write_manifest(tmp_path / "empty")


def test_a_manifest_of_another_kind(tmp_path: Path) -> None:
    """Every value in turn is replaced by one of another kind: an error that names it, and opening does without."""
    make_store(tmp_path)
    text = (tmp_path / MANIFEST).read_text()

    def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [way, *(found for key, part in inner for found in places(part, (*way, key)))]

    for way in places(json.loads(text)):
        if way[-2:-1] == ("source",):
            continue  # verify compares them
        for other in (None, [], {}, 1.5, True, "text"):
            told = json.loads(text)
            at: Any = told
            for key in way[:-1]:
                at = at[key]
            if way and isinstance(at[way[-1]], type(other)):
                continue
            if way:
                at[way[-1]] = other
            (tmp_path / MANIFEST).write_text(json.dumps(told if way else other))
            with pytest.raises(StoreError, match=r"manifest\.json: .*(schema_version|not a valid manifest entry)"):
                faults(tmp_path)
            assert count_scenes(tmp_path, "train") == {"00000.arrow": 3, "00001.arrow": 2}


def test_a_manifest_of_other_numbers(tmp_path: Path) -> None:
    make_store(tmp_path)
    text = (tmp_path / MANIFEST).read_text()
    for way in (("scenes",), ("bytes",), ("shards", 0, "scenes"), ("shards", 0, "bytes"), ("shards", 0, "sha256")):
        told = json.loads(text)
        at = told["splits"]["train"]
        for key in way[:-1]:
            at = at[key]
        at[way[-1]] = at[way[-1]] + (1 if isinstance(at[way[-1]], int) else "0")
        (tmp_path / MANIFEST).write_text(json.dumps(told))
        assert len(faults(tmp_path)) == 1, way
    for name, other in (("source", ["elsewhere"]), ("skipped", []), ("source", [1])):
        told = json.loads(text)
        told["splits"]["train"][name] = other
        (tmp_path / MANIFEST).write_text(json.dumps(told))
        assert faults(tmp_path) == [f"{tmp_path / MANIFEST}: train: does not agree with its shards"]


def _flip(path: Path) -> None:
    """Change one byte of a position, which leaves the file readable."""
    value = Shard(path).scene(0).position[0, 0].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(value)] ^= 1
    path.write_bytes(content)


def _list_elsewhere(root: Path) -> None:
    """Let the manifest name a file that lies outside of the split."""
    (root / "elsewhere").mkdir()
    told = json.loads((root / MANIFEST).read_text())
    os.replace(shard_path(root, "train", 1), root / "elsewhere" / "00001.shard")
    told["splits"]["train"]["shards"][1]["name"] = "../elsewhere/00001.shard"
    (root / MANIFEST).write_text(json.dumps(told))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda root: _flip(shard_path(root, "train", 0)), "00000.arrow: checksum differs from the manifest"),
    "missing": (lambda root: shard_path(root, "train", 1).unlink(), "00001.arrow: listed in the manifest but missing"),
    "extra": (
        lambda root: shard_path(root, "train", 7).write_bytes(shard_path(root, "train", 0).read_bytes()),
        "train/00007.arrow: on disk but not in the manifest",
    ),
    "elsewhere": (_list_elsewhere, "listed in the manifest but missing"),
    "another split": (
        lambda root: shutil.copytree(root / "train", root / "val", ignore=lambda *_: ["00001.arrow"]),
        "val/00000.arrow: on disk but not in the manifest",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_verify_names_the_shard(tmp_path: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    make_store(tmp_path)
    damage(tmp_path)
    assert [fault for fault in faults(tmp_path) if message in fault]
    assert len(faults(tmp_path)) == 1


def test_verify_validates_scenes(tmp_path: Path) -> None:
    broken = copy.copy(random_scene(0))
    broken = replace(broken, agent_kind=broken.agent_kind + np.uint8(100))
    write_shard(shard_path(tmp_path, "train", 0), [random_scene(1), broken], ShardInfo("random", "train"))
    write_manifest(tmp_path)
    assert len(faults(tmp_path)) == 1
    assert "row 1: scene scene-0: agent_kind: unknown kind" in faults(tmp_path)[0]


def test_verify_finds_ids_that_occur_twice(tmp_path: Path) -> None:
    make_store(tmp_path, (2, 2))
    write_shard(shard_path(tmp_path, "train", 2), [random_scene(9), random_scene(1)], ShardInfo("random", "train"))
    write_shard(shard_path(tmp_path, "val", 0), [random_scene(1)], ShardInfo("random", "val"))
    write_manifest(tmp_path)
    path = shard_path(tmp_path, "train", 2)
    assert faults(tmp_path) == [f"{path}: row 1: scene scene-1: occurs twice in its split"]


def test_verify_survives_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path)

    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("trajformer.scenes.manifest.checksum", fail)
    assert [fault.count("Input/output error") for fault in faults(tmp_path)] == [1, 1]
