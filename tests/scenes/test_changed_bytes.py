"""Every change of a byte of a store is found, and a store can be read while it is written."""

import multiprocessing
import random
import re
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from support.stores import fingerprint, make_store, problems, random_scene

from trajformer.errors import StoreError
from trajformer.scenes.manifest import MANIFEST, RESAMPLED, write_manifest
from trajformer.scenes.resample import resample_store
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

CHANGES = 1000
SHARDS = 12
FIRST = 2  # scenes of a shard when it is first written
FULL = 5  # scenes of a shard when it is complete
DONE = "val"  # the split that is written last


def test_verify_finds_each_changed_byte(tmp_path: Path) -> None:
    """Half of the changes are in the manifest and in the record of the origin.

    Spaces and digits there are rarely looked at.
    """
    make_store(tmp_path / "source", (2, 1))
    store = tmp_path / "store"
    resample_store(tmp_path / "source", store, lambda paths, total: paths, num_future=1)
    assert problems(store) == []
    rng = random.Random(0)
    names = [MANIFEST, RESAMPLED, "train/00000.arrow", "train/00001.arrow"]
    whole = {name: (store / name).read_bytes() for name in names}
    missed = []
    for number in range(CHANGES):
        name = names[number % len(names)]
        content = bytearray(whole[name])
        position = rng.randrange(len(content))
        content[position] ^= rng.randrange(1, 256)
        (store / name).write_bytes(content)
        try:
            if not problems(store):
                missed.append((name, position))
        except StoreError as error:
            assert MANIFEST in str(error)
        (store / name).write_bytes(whole[name])
    assert missed == []


@pytest.mark.parametrize(
    ("seeds", "change"), [((3, 4), r"\d+ bytes, expected \d+"), ((1, 2, 3), "3 scenes, expected 2")]
)
def test_a_shard_that_changes_after_opening_is_refused(
    tmp_path: Path, seeds: tuple[int, ...], change: str
) -> None:
    make_store(tmp_path)
    store, path = SceneStore(tmp_path, "train"), shard_path(tmp_path, "train", 1)
    write_shard(
        path, [random_scene(seed, agents=9) for seed in seeds], ShardInfo("random", "train")
    )
    for read in (lambda: store[4], store.scene_ids, store.sizes, lambda: store.find(["scene-4"])):
        with pytest.raises(StoreError, match=rf"00001\.arrow: {change}: the file has changed"):
            read()
    assert store[2].scene_id == "scene-2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"00001\.arrow: "):
        store[4]


def write_twice(root: Path) -> None:
    """Write a store shard by shard, then every shard again with more scenes.

    Meanwhile there is no manifest.
    """
    for count in (FIRST, FULL):
        (root / MANIFEST).unlink(missing_ok=True)  # as a preparation does
        for index in range(SHARDS):
            scenes = [random_scene(index * FULL + number) for number in range(count)]
            write_shard(shard_path(root, "train", index), scenes, ShardInfo("random", "train"))
            time.sleep(0.01)
        write_manifest(root)
    write_shard(shard_path(root, DONE, 0), [], ShardInfo("random", DONE))


def read_until_done(root: Path) -> tuple[int, list[str]]:
    """Open and read the store again and again.

    Returns the number of scenes read, and the ids after the writer has finished.
    """
    expected = {f"scene-{seed}": fingerprint(random_scene(seed)) for seed in range(SHARDS * FULL)}
    count = 0
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        done = (root / DONE / "00000.arrow").exists()
        ids = []
        try:
            for scene in SceneStore(root, "train"):
                assert fingerprint(scene) == expected[scene.scene_id], scene.scene_id
                ids.append(scene.scene_id)
        except StoreError as error:
            assert re.search("no such store|no split|has changed", str(error)), error
            assert not done, error
        count += len(ids)
        if done:
            return count, ids
    raise TimeoutError("the writer does not finish")


def test_two_readers_and_one_writer(tmp_path: Path) -> None:
    """Readers see whole scenes with the right content, or one of three errors.

    In the end they see all scenes.
    """
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        readers = [pool.submit(read_until_done, tmp_path / "store") for _ in range(2)]
        pool.submit(write_twice, tmp_path / "store").result()
        results = [reader.result() for reader in readers]
    expected = [f"scene-{seed}" for seed in range(SHARDS * FULL)]
    assert [sorted(ids) for _, ids in results] == [sorted(expected)] * 2
    assert problems(tmp_path / "store")  # the last split is not in the manifest
    shutil.rmtree(tmp_path / "store" / DONE)
    assert problems(tmp_path / "store") == []
