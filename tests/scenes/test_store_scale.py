"""Large stores: very large scenes, index types, thousands of shards, and imported packages."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.processes import run_python
from support.stores import make_store, random_scene, same_bits

from trajformer.scenes.manifest import MANIFEST, checksum, manifest_text
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import (
    SCHEMA_VERSION,
    Shard,
    ShardInfo,
    read_shard_info,
    shard_path,
    write_shard,
)

SHARDS = 2000


def restore(path: Path, scenes: list[Scene]) -> Shard:
    """Write scenes as one shard and check that they are restored bit for bit."""
    write_shard(path, scenes, ShardInfo("random", "train"))
    shard = Shard(path)
    for row, scene in enumerate(scenes):
        assert same_bits(shard.scene(row).validate(), scene), row
    return shard


@pytest.mark.parametrize("limit", [1 << 8, 1 << 16])
def test_index_types(tmp_path: Path, limit: int) -> None:
    """Polyline lengths and edges have an index type that depends on P and M.

    Here P and M are on both sides of each limit.
    """
    around = (limit - 2, limit - 1, limit, limit + 1)
    lengths = [random_scene(n, lanes=lanes, points=n) for n in around for lanes in (1, 2, 100)]
    indices = []
    for n in around:
        last = n - 1
        edge = np.array([[0, last, last], [last, 0, last]], np.int32)
        indices.append(random_scene(n, lanes=n, edge=edge, edges=3, history=2))
    restore(tmp_path / "0.arrow", [*lengths, *indices])


def test_very_large_and_minimal_scenes(tmp_path: Path) -> None:
    crowd = random_scene(0, agents=3000, lanes=0, history=50, horizon=60)
    city = random_scene(1, agents=1, lanes=70_000, points=300_000, edges=200_000)
    street = random_scene(2, agents=2, lanes=70_000)  # uint16 would be too small for edges
    shard = restore(tmp_path / "0.arrow", [crowd, city, random_scene(3), street])
    assert crowd.valid.shape == (3000, 110) and city.edge.max() > 1 << 16
    assert shard.sizes()[:2].tolist() == [[3000, 0, 0], [1, 70_000, 300_000]]
    minimal = [
        random_scene(n, agents=1, lanes=0, future=bool(n), city="", history=2, horizon=1)
        for n in range(2)
    ]
    restore(tmp_path / "1.arrow", minimal)
    restore(tmp_path / "2.arrow", [])


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 2,000 shards, which are hard links to one file, and a manifest."""
    root = tmp_path_factory.mktemp("big")
    first = shard_path(root, "train", 0)
    write_shard(first, [random_scene(seed) for seed in range(3)], ShardInfo("random", "train"))
    for number in range(1, SHARDS):
        os.link(first, shard_path(root, "train", number))
    size, digest = first.stat().st_size, checksum(first)
    shards = [
        {"name": f"{n:05d}.arrow", "scenes": 3, "bytes": size, "sha256": digest}
        for n in range(SHARDS)
    ]
    split = {
        "scenes": 3 * SHARDS,
        "bytes": SHARDS * size,
        "source": ["random"],
        "skipped": [],
        "shards": shards,
    }
    manifest = {"schema_version": SCHEMA_VERSION, "splits": {"train": split}}
    (root / MANIFEST).write_text(manifest_text(manifest))
    return root


def test_thousands_of_shards_need_few_files_and_little_memory(big: Path) -> None:
    program = """
import os, resource, sys
from trajformer.scenes.store import SceneStore

def megabytes(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) / 1024

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
before = megabytes("RssAnon")
store = SceneStore(sys.argv[1], "train")
opened = megabytes("RssAnon")
for number in range(0, len(store), 3):
    assert store[number].scene_id == "scene-0" and store[-1 - number].scene_id == "scene-2"
used = megabytes("RssAnon")
print(len(store), len(os.listdir("/proc/self/fd")), opened - before, used - opened)
"""
    done = run_python("-c", program, big)
    assert done.returncode == 0, done.stderr
    scenes, files, opening, use = (float(word) for word in done.stdout.split())
    assert scenes == 3 * SHARDS
    assert files < 20
    assert opening < 30
    assert use < 200  # a shard takes about 35 kB


COMMANDS = """
import sys
from trajformer.scenes.store import SceneStore
from trajformer.scenes.manifest import verify_store
store, out = sys.argv[1:]
scenes = SceneStore(store, "train")
agents = [scenes[i].num_agents for i in range(len(scenes))]
problems = verify_store(scenes.root, lambda paths, n: paths)
print(agents, scenes.sizes().shape, problems)
heavy = {"torch", "lightning", "torchmetrics", "scipy", "matplotlib", "data_prep"}
assert not (heavy | {"pandas", "yaml", "jsonargparse", "tqdm"}) & {*sys.modules}

from trajformer.cli import main
for words in (
    ["info", store],
    ["head", store],
    ["verify", store],
    ["merge", store, "--out", out + "/new"],
    ["export-scene", store, "--scene", "scene-3", "--out", out + "/scene.json"],
):
    assert main(["store", *words]) == 0, words
assert not heavy & {*sys.modules}
"""


def test_reading_a_store_imports_numpy_and_pyarrow_and_its_commands_no_torch(
    tmp_path: Path,
) -> None:
    make_store(tmp_path / "store")
    done = run_python("-c", COMMANDS, tmp_path / "store", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("[3, 3, 3, 3, 3] (5, 3) []\n") and "train: 5 scenes" in done.stdout
    )
    assert read_shard_info(shard_path(tmp_path / "new", "train", 1))[1] == 2
