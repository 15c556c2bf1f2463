"""Scenes on disk: round trip, indexing, foreign and damaged files, the manifest."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajformer.errors import StoreError
from trajformer.manifest import read_manifest, verify_store, write_manifest
from trajformer.scene import Scene, scenes_equal
from trajformer.shard import Shard, ShardInfo, read_shard_info, shard_path, write_shard
from trajformer.store import SceneStore, store_splits


def random_scene(seed: int, agents: int = 3, lanes: int = 2, future: bool = True) -> Scene:
    """A valid scene of random numbers."""
    rng = np.random.default_rng(seed)
    history, horizon = int(rng.integers(2, 6)), int(rng.integers(1, 7))
    steps = history + horizon * future
    valid = rng.random((agents, steps)) < 0.6
    valid[0, 0] = True
    state = rng.normal(0, 30, (agents, steps, 5)).astype(np.float32) * valid[..., None]
    length = rng.integers(2, 5, lanes)
    edges = int(rng.integers(0, 5)) if lanes else 0
    return Scene(
        scene_id=f"scene-{seed}",
        source="random",
        split="train",
        city="Zürich",
        period_s=float(rng.choice([0.1, 0.4])),
        num_history=history,
        num_future=horizon,
        origin=rng.normal(0, 1e4, 2),
        agent_id=tuple(f"{'AV ' * (i == 1)}{i}" for i in range(agents)),
        agent_kind=rng.integers(0, 10, agents).astype(np.uint8),
        agent_role=rng.integers(0, 3, agents).astype(np.uint8),
        position=state[..., :2].copy(),
        heading=state[..., 2].copy(),
        velocity=state[..., 3:].copy(),
        valid=valid,
        polyline_id=rng.integers(0, 2**60, lanes),
        polyline_kind=rng.integers(0, 5, lanes).astype(np.uint8),
        polyline_flags=rng.integers(0, 16, lanes).astype(np.uint8),
        polyline_offset=np.concatenate([[0], np.cumsum(length)]).astype(np.int32),
        point=rng.normal(0, 50, (int(length.sum()), 2)).astype(np.float32),
        edge=rng.integers(0, max(lanes, 1), (2, edges)).astype(np.int32),
        edge_kind=rng.integers(0, 4, edges).astype(np.uint8),
    ).validate()


def make_store(root: Path, counts: tuple[int, ...] = (3, 2), split: str = "train") -> list[Scene]:
    """A store of one split with so many scenes a shard, and its manifest."""
    scenes = [random_scene(seed) for seed in range(sum(counts))]
    ends = np.cumsum(counts).tolist()
    for index, (end, count) in enumerate(zip(ends, counts, strict=True)):
        info = ShardInfo("random", split, f"digest {index}", ((f"bad-{index}", "a reason"),))
        write_shard(shard_path(root, split, index), scenes[end - count : end], info)
    write_manifest(root)
    return scenes


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scenes=st.lists(
        st.builds(random_scene, st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 4), st.booleans()), max_size=4
    )
)
def test_scenes_come_back_bit_for_bit(tmp_path: Path, scenes: list[Scene]) -> None:
    path = tmp_path / "0.arrow"
    write_shard(path, scenes, ShardInfo("random", "train"))
    shard = Shard(path)
    assert len(shard) == len(scenes)
    assert shard.scene_ids() == [scene.scene_id for scene in scenes]
    for row, scene in enumerate(scenes):
        assert scenes_equal(shard.scene(row).validate(), scene)


def test_the_same_scenes_give_the_same_bytes(tmp_path: Path) -> None:
    make_store(tmp_path / "a")
    make_store(tmp_path / "b")
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_store_is_a_sequence(tmp_path: Path) -> None:
    scenes = make_store(tmp_path, (2, 0, 3))
    store = SceneStore(tmp_path, "train")
    assert len(store) == 5
    assert all(scenes_equal(a, b) for a, b in zip(store, scenes, strict=True))
    assert scenes_equal(store[-1], scenes[-1])
    assert store.scene_ids() == [scene.scene_id for scene in scenes]
    assert store.find(["scene-3", "scene-0"]) == [3, 0]
    for index in (5, -6):
        with pytest.raises(IndexError):
            store[index]
    with pytest.raises(StoreError, match="no scene scene-9 in split 'train'"):
        store.find(["scene-9"])


def test_a_store_travels_to_workers(tmp_path: Path) -> None:
    scenes = make_store(tmp_path)
    store = SceneStore(tmp_path, "train")
    assert scenes_equal(store[0], scenes[0])
    text = pickle.dumps(store)
    assert len(text) < 2000
    assert scenes_equal(pickle.loads(text)[4], scenes[4])


def test_scenes_are_views_that_cannot_be_written(tmp_path: Path) -> None:
    make_store(tmp_path)
    with pytest.raises(ValueError, match="read-only"):
        SceneStore(tmp_path, "train")[0].point[0] = 1.0


def test_a_shard_says_what_it_is(tmp_path: Path) -> None:
    make_store(tmp_path)
    info, count = read_shard_info(shard_path(tmp_path, "train", 1))
    assert (count, info) == (2, ShardInfo("random", "train", "digest 1", (("bad-1", "a reason"),)))
    assert store_splits(tmp_path) == ["train"]


def test_a_missing_store_or_split(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with pytest.raises(StoreError, match="nowhere: no such store"):
        SceneStore(tmp_path / "nowhere", "train")
    with pytest.raises(StoreError, match=r"store: no split 'val' \(splits here: train\)"):
        SceneStore(tmp_path / "store", "val")


@pytest.mark.parametrize("size", [0, 5, 700, -1, -4000])
def test_a_shard_cut_short(tmp_path: Path, size: int) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match=r"00000\.arrow: not a readable shard"):
        SceneStore(tmp_path, "train")
    assert any("00000.arrow" in fault for fault in verify_store(tmp_path, lambda paths, total: paths))


def _rewrite(path: Path, metadata: dict[bytes, bytes] | None, drop: str | None = None) -> None:
    table = pa.ipc.open_file(path).read_all()
    table = table.drop_columns([drop] if drop else []).replace_schema_metadata(metadata)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def test_another_schema_version(tmp_path: Path) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    metadata = json.loads(pa.ipc.open_file(path).schema.metadata[b"trajformer"]) | {"schema_version": 99}
    _rewrite(path, {b"trajformer": json.dumps(metadata).encode()})
    with pytest.raises(StoreError, match=r"00000\.arrow: schema version 99, this software reads 2: preprocess again"):
        SceneStore(tmp_path, "train")


def test_a_foreign_file(tmp_path: Path) -> None:
    make_store(tmp_path)
    path = shard_path(tmp_path, "train", 0)
    metadata = pa.ipc.open_file(path).schema.metadata
    _rewrite(path, metadata, drop="heading")
    with pytest.raises(StoreError, match=r"00000\.arrow: columns are not those"):
        SceneStore(tmp_path, "train")
    _rewrite(path, None)
    with pytest.raises(StoreError, match=r"00000\.arrow: not a trajformer shard: no metadata"):
        SceneStore(tmp_path, "train")


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
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest\.json: no readable manifest"):
        faults(tmp_path)
    with pytest.raises(StoreError, match="empty: no store here"):
        write_manifest(tmp_path / "empty")


def _flip(path: Path) -> None:
    """Change one byte of a position, which leaves the file readable."""
    value = Shard(path).scene(0).position[0, 0].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(value)] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda root: _flip(shard_path(root, "train", 0)), "00000.arrow: checksum differs from the manifest"),
    "missing": (lambda root: shard_path(root, "train", 1).unlink(), "00001.arrow: listed in the manifest but missing"),
    "extra": (
        lambda root: shard_path(root, "train", 7).write_bytes(shard_path(root, "train", 0).read_bytes()),
        "train/00007.arrow: on disk but not in the manifest",
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
