"""The benchmark of SE2Former: its rows, and the larger scenes that it makes."""

import bench_forecast
import pytest
import torch
from bench_forecast import enlarged, larger_scenes, one_scene

from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import example_scenes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    root = tmp_path_factory.mktemp("store")
    write_shard(shard_path(root, "train", 0), example_scenes((9,), 50, 60), ShardInfo("synthetic", "train"))
    return SceneStore(root, "train")


def test_rows_of_both_tables(store: SceneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_forecast, "SIZES", ((8, 16), (16, 32)))
    rows = list(one_scene(store, 0, 1))
    assert [row["targets"] > 1 for row in rows] == [True, True, False, False, True, False]
    assert all(row["ms"] > 0 for row in rows) and "mmTransformer" in rows[-1]["model"]
    larger = list(larger_scenes(store, 0, 1))
    assert [row["agents"] for row in larger] == [8, 16] and larger[0]["linear"] == 1.0


def test_larger_scenes_keep_the_motion_of_their_agents(store: SceneStore) -> None:
    o = SceneDataset(store, BatchConfig(targets="all"))[[0]].observation
    large = enlarged(o, 30, 50)
    assert large.num_targets == large.agent_mask.shape[1] == 30 and large.polyline_mask.shape[1] == 50
    assert torch.equal(large.pose, enlarged(o, 30, 50).pose)
    torch.testing.assert_close(large.position.diff(dim=2)[0, 0], o.position.diff(dim=2)[0, 0], atol=1e-4, rtol=0)
