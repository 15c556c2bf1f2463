"""Scene stores: lossless storage, indexing, ids, pickling, reading during preparation."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stores import (
    make_store,
    problems,
    random_scene,
    read_elsewhere,
    same_bits,
    write_elsewhere,
)

from trajformer.errors import StoreError
from trajformer.scenes import manifest
from trajformer.scenes import store as store_module
from trajformer.scenes.manifest import MANIFEST, write_manifest
from trajformer.scenes.scene import MAX_ORIGIN_M, Scene, scenes_equal
from trajformer.scenes.shard import (
    Shard,
    ShardInfo,
    read_scene_ids,
    read_shard_info,
    shard_path,
    write_shard,
)
from trajformer.scenes.store import SceneStore

FILE_NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories="CZ", exclude_characters="./\\"),
    min_size=1,
    max_size=40,
)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]),
    min_size=1,
    max_size=200,
)
ORIGINS = st.floats(-MAX_ORIGIN_M, MAX_ORIGIN_M, allow_subnormal=True)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    agents = draw(st.integers(1, 6))
    lanes = draw(st.integers(0, 5))
    names: dict[str, Any] = {name: draw(FILE_NAMES) for name in ("scene_id", "source", "split")}
    names["agent_id"] = tuple(draw(st.lists(NAMES, min_size=agents, max_size=agents, unique=True)))
    names["city"] = draw(NAMES | st.just(""))
    names["origin"] = np.array([draw(ORIGINS), draw(ORIGINS)])
    names["period_s"] = draw(st.floats(0, 60, exclude_min=True, exclude_max=True))
    seed = draw(st.integers(0, 2**32))
    future = draw(st.booleans())
    odd = draw(st.booleans())
    return random_scene(seed, agents, lanes, future, odd=odd, **names)


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(written=st.lists(scenes(), max_size=4))
def test_scenes_are_restored_bit_for_bit(tmp_path: Path, written: list[Scene]) -> None:
    path = shard_path(tmp_path, "train", 0)
    write_shard(path, written, ShardInfo("random", "train"))
    shard, store = Shard(path), SceneStore(tmp_path, "train")
    ids = [scene.scene_id for scene in written]
    assert shard.texts("scene_id") == read_scene_ids(path) == store.scene_ids() == ids
    sizes = [[scene.num_agents, scene.num_polylines, len(scene.point)] for scene in written]
    assert shard.sizes().tolist() == store.sizes().tolist() == sizes
    assert len(shard) == len(store) == len(written)
    for row, scene in enumerate(written):
        assert scenes_equal(shard.scene(row).validate(), scene)
        assert same_bits(shard.scene(row), scene) and same_bits(store[row], scene)


def test_another_process_reads_the_same_scenes_and_writes_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    scenes, store = make_store(first), SceneStore(first, "train")
    assert same_bits(store[4], scenes[4])  # a shard is open
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        written = pool.submit(write_elsewhere, second)
        read = pool.submit(read_elsewhere, store)
        assert read.result() == written.result() == read_elsewhere(store)
    for path in first.rglob("*.*"):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


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
    with pytest.raises(ValueError, match="read-only"):
        store[0].point[0] = 1.0


def test_scenes_are_found_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path, (2, 0, 3, 1))
    opened: list[str] = []
    monkeypatch.setattr(
        store_module,
        "read_scene_ids",
        lambda path: opened.append(path.name) or read_scene_ids(path),
    )
    store = SceneStore(tmp_path, "train")
    assert store.find(["scene-3", "scene-0", "scene-3"]) == [3, 0, 3]
    assert opened == ["00000.arrow", "00001.arrow", "00002.arrow"], "later shards are not read"
    assert store.find([]) == []
    assert store["scene-3"].scene_id == "scene-3"
    with pytest.raises(StoreError, match="no scene scene-9"):
        store["scene-9"]
    assert store.indices(["scene-9", "scene-5"]) == {"scene-5": 5}
    with pytest.raises(StoreError, match="no scene scene-9 in split 'train'"):
        store.find(["scene-0", "scene-9"])
    write_shard(shard_path(tmp_path, "train", 4), [random_scene(1)], ShardInfo("random", "train"))
    write_manifest(tmp_path)
    assert SceneStore(tmp_path, "train").find(["scene-1"]) == [1], "the first of two equal ids"


def test_the_index_has_one_row_per_scene(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 0, 3))
    index = SceneStore(tmp_path, "train").index()
    assert len(index) == 5 and index.index.tolist() == list(range(5))
    for name in (
        "scene_id",
        "source",
        "split",
        "city",
        "period_s",
        "num_history",
        "num_future",
        "num_agents",
        "num_polylines",
    ):
        assert index[name].tolist() == [getattr(scene, name) for scene in scenes], name
    assert index["num_steps"].tolist() == [scene.num_steps for scene in scenes]
    assert index["num_points"].tolist() == [len(scene.point) for scene in scenes]
    assert index[["origin_x", "origin_y"]].to_numpy().tolist() == [
        scene.origin.tolist() for scene in scenes
    ]


def test_opening_reads_the_manifest_and_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, (2, 0, 3))
    opened: list[str] = []
    monkeypatch.setattr(
        manifest, "read_shard_info", lambda path: opened.append(path.name) or read_shard_info(path)
    )
    assert (len(SceneStore(tmp_path, "train")), opened) == (5, [])
    (tmp_path / MANIFEST).unlink()
    assert (len(SceneStore(tmp_path, "train")), opened) == (
        5,
        ["00000.arrow", "00001.arrow", "00002.arrow"],
    )


def test_a_store_can_be_read_while_it_is_prepared(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 2))
    shard = shard_path(tmp_path, "train", 1)
    whole = shard.read_bytes()
    shard.rename(shard.with_name(f".{shard.name}.77.tmp"))  # being written
    with pytest.raises(StoreError, match=r"00001.arrow: listed in the manifest but missing"):
        SceneStore(tmp_path, "train")
    (tmp_path / MANIFEST).unlink()
    early = SceneStore(tmp_path, "train")
    assert (len(early), early.scene_ids()) == (2, ["scene-0", "scene-1"])
    shard.write_bytes(whole)
    assert len(early) == 2
    assert same_bits(SceneStore(tmp_path, "train")[3], scenes[3])


def test_copied_shards_are_refused(tmp_path: Path) -> None:
    """A scene must not count twice."""
    info = ShardInfo("random", "train", inputs="digest")
    first = shard_path(tmp_path, "train", 0)
    write_shard(first, [random_scene(0)], info)
    write_manifest(tmp_path)
    for split, number in (("train", 1), ("val", 0)):
        copy = shard_path(tmp_path, split, number)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(first.read_bytes())
        with pytest.raises(StoreError, match=rf"{copy}: on disk but not in the manifest"):
            SceneStore(tmp_path, split)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"00001.arrow: a copy of 00000.arrow; remove it"):
        SceneStore(tmp_path, "train")
    write_shard(first, [random_scene(7), random_scene(8)], info)
    assert len(SceneStore(tmp_path, "train")) == 3


def test_shards_are_ordered_by_number(tmp_path: Path) -> None:
    for number in (100000, 99999, 2):
        write_shard(
            shard_path(tmp_path, "train", number),
            [random_scene(number)],
            ShardInfo("random", "train"),
        )
    (tmp_path / "train" / "._00003.arrow").write_bytes(b"metadata that some systems add to a file")
    write_manifest(tmp_path)
    assert SceneStore(tmp_path, "train").scene_ids() == ["scene-2", "scene-99999", "scene-100000"]
    assert problems(tmp_path) == []
