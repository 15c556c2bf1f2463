"""Batches: every scene once, little padding, and an order that does not depend on the machine.

The order is the same for any number of workers and processes.
"""

import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensors import differing, tensors
from support.training import recipe, training_store
from torch.utils.data._utils.pin_memory import pin_memory

from data_prep.readers.argoverse1 import Argoverse1
from trajformer.data import loading
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.loading import AXES, EpochShuffle, RankSampler, SceneDataset, SequentialOrder
from trajformer.data.sample import BatchConfig
from trajformer.recipes.recipe import DataConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import SceneData

RANDOM = np.random.default_rng(0).integers(1, 100, (500, 2))


def shuffle(scenes: int, steps: int, *, seed: int = 0, pool: int = 4) -> EpochShuffle:
    """Scenes of random sizes."""
    return EpochShuffle(scenes, steps, seed, pool, lambda chosen: RANDOM[chosen])


def steps_of(
    order: SequentialOrder | EpochShuffle, epoch: int = 0, first: int = 0
) -> list[list[int]]:
    return [step.tolist() for step in order.epoch(epoch, first)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_scene_is_in_one_batch_of_one_process(world: int) -> None:
    for batch_size in (1, 2, 3, 8):
        for scenes in range(world, 60):
            steps = loading.count_steps(scenes, batch_size, world)
            for order in (SequentialOrder(scenes, steps), shuffle(scenes, steps)):
                batches = []
                for rank in range(world):
                    sampler = RankSampler(order, rank, world)
                    of_rank = list(sampler)
                    assert len(of_rank) == len(sampler) == steps
                    batches += of_rank
                assert sorted(chain.from_iterable(batches)) == list(range(scenes))
                sizes = [len(batch) for batch in batches]
                assert min(sizes) >= 1
                assert max(sizes) - min(sizes) <= 1
                # With batches of one scene, the remaining scenes are distributed, not dropped.
                assert max(sizes) <= batch_size or (batch_size == 1 and scenes % world)


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    order, again = shuffle(100, 13), shuffle(100, 13)
    first, second = steps_of(order), steps_of(order, 1)
    assert steps_of(again, 1) == second != first == steps_of(again)
    assert steps_of(shuffle(100, 13, seed=1)) not in (first, second)
    sequential = SequentialOrder(10, 3)
    for epoch in (0, 5):
        assert steps_of(sequential, epoch) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_an_epoch_can_start_at_any_step() -> None:
    for order in (shuffle(100, 13), shuffle(100, 13, pool=1), SequentialOrder(100, 13)):
        for first in range(14):
            assert steps_of(order, 2, first) == steps_of(order, 2)[first:]


def test_scenes_of_similar_size_share_a_step() -> None:
    def fraction_of_padding(order: EpochShuffle) -> np.ndarray:
        filled, entries = loading.padding(order.epoch(0), order.sizes)
        return 1 - filled / entries

    plain = fraction_of_padding(shuffle(500, 50, pool=1))
    bucketed = fraction_of_padding(shuffle(500, 50, pool=25))
    assert (bucketed < 0.6 * plain).all(), (plain, bucketed)
    sizes = np.array([[20, 1], [1, 1], [99, 1], [1, 8]] * 2)
    groups = loading.group_by_size(np.arange(8), [2] * 4, sizes)
    pairs = sorted(sorted(group.tolist()) for group in groups)
    assert pairs == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 13, 5)


def config(store: Path, **changes: Any) -> DataConfig:
    return recipe(store, data={"batch_size": 3, "bucket": 2} | changes).data


def assert_same(a: SceneBatch, b: SceneBatch) -> None:
    assert differing(a, b) == set()
    assert (a.observation.scene_id, a.observation.agent_id) == (
        b.observation.scene_id,
        b.observation.agent_id,
    )


@pytest.mark.parametrize(("device", "pinned"), [("cpu", False), ("cuda", True)])
def test_batches_for_a_gpu_are_pinned(
    store: Path, monkeypatch: pytest.MonkeyPatch, device: str, pinned: bool
) -> None:
    data = SceneData(config(store))
    data.trainer = fake_trainer(0, 1, epoch=0, device=device)  # type: ignore[assignment]
    assert data.train_dataloader().pin_memory is data.val_dataloader().pin_memory is pinned
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda value: copied.append(value) or value)
    batch = data.train[[0, 1]]
    assert_same(pin_memory(batch), batch)
    assert len(copied) == len(tensors(batch))


@pytest.mark.parametrize("cache", [False, True])
def test_an_item_is_a_batch(store: Path, cache: bool) -> None:
    scenes, batch_config = SceneStore(store, "train"), BatchConfig(polyline_points=4)
    data = SceneDataset(scenes, batch_config, 5, cache=cache)
    assert len(data) == 5
    expected = collate([scenes[3], scenes[0], scenes[4]], batch_config)
    for _ in range(2):
        assert_same(data[[3, 0, 4]], expected)
    assert sorted(data.cached) == ([0, 3, 4] if cache else [])
    batch, sizes = data[[2, 1]], data.sizes(np.array([2, 1]))
    for column, name in enumerate(AXES.values()):
        assert sizes[:, column].tolist() == tensors(batch)[name].sum(1).tolist()


def test_workers_are_sent_the_path_of_the_store_and_no_samples(store: Path) -> None:
    data = SceneDataset(SceneStore(store, "train"), BatchConfig(), cache=True)
    before = len(pickle.dumps(data))
    batch, sizes = data[[0, 1, 2]], data.sizes(np.arange(13))
    assert len(pickle.dumps(data)) == before < 2000
    copy = pickle.loads(pickle.dumps(data))
    assert_same(copy[[0, 1, 2]], batch)
    assert (copy.sizes(np.arange(13)) == sizes).all()


def test_the_loader_works_without_a_trainer_and_with_workers(store: Path) -> None:
    alone, shared = (
        SceneData(config(store, workers=workers), seed=3).train_dataloader() for workers in (0, 1)
    )
    assert len(alone) == len(shared) == 5
    for epoch in range(2):
        for loader in (alone, shared):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        plain, parallel = list(alone), list(shared)
        assert len(plain) == 5
        for a, b in zip(plain, parallel, strict=True):
            assert_same(a, b)
        assert (
            sorted(name for batch in plain for name in batch.observation.scene_id)
            == SceneStore(store, "train").scene_ids()
        )


def test_moving_agents_are_targets_in_training_only(store: Path) -> None:
    moving, scored = SceneData(config(store, learn_from="moving")), SceneData(config(store))
    for left, right in zip(moving.val_dataloader(), scored.val_dataloader(), strict=True):
        assert_same(left, right)
    num_targets = {}
    for name, data in (("moving", moving), ("scored", scored)):
        assert data.measured() is data.train
        sizes = data.train.sizes(np.arange(13))
        num_targets[name] = sizes[:, list(AXES).index("targets")].sum()
        in_batches = [batch.observation.target_mask.sum() for batch in data.train_dataloader()]
        assert sum(in_batches) == num_targets[name]
    assert num_targets["moving"] > num_targets["scored"]
    workers = SceneData(config(store, learn_from="moving", workers=1)).measured()
    assert workers.config.targets == "moving"  # type: ignore[attr-defined]
    assert moving.state_dict()["batch"] != scored.state_dict()["batch"]


def fake_trainer(
    rank: int, world: int, epoch: int, completed: int = 0, device: str = "cpu"
) -> SimpleNamespace:
    """The part of a trainer that the data module reads."""
    progress = SimpleNamespace(current=SimpleNamespace(processed=epoch))
    batches = SimpleNamespace(
        batch_progress=SimpleNamespace(current=SimpleNamespace(completed=completed))
    )
    loop = SimpleNamespace(epoch_progress=progress, epoch_loop=batches, restarting=completed > 0)
    strategy = SimpleNamespace(root_device=torch.device(device))
    return SimpleNamespace(world_size=world, global_rank=rank, fit_loop=loop, strategy=strategy)


def scene_ids(batches: Iterable[SceneBatch]) -> list[str]:
    return list(chain.from_iterable(batch.observation.scene_id for batch in batches))


def test_processes_share_the_scenes_and_resume_within_an_epoch(store: Path) -> None:
    seen: dict[str, list[str]] = {"train": [], "rest": [], "val": []}
    for rank in range(3):
        data = SceneData(config(store), seed=3)
        data.trainer = fake_trainer(rank, 3, epoch=1)  # type: ignore[assignment]
        train = scene_ids(data.train_dataloader())
        seen["train"] += train
        seen["val"] += scene_ids(data.val_dataloader())
        data.trainer = fake_trainer(rank, 3, epoch=1, completed=1)  # type: ignore[assignment]
        rest = scene_ids(data.train_dataloader())
        assert train[-len(rest) :] == rest
        seen["rest"] += rest
    for name in ("train", "val"):
        assert sorted(seen[name]) == SceneStore(store, name).scene_ids()
    assert 0 < len(seen["rest"]) < 13


def test_padding_of_the_real_argoverse1_sample(unpack: Callable[..., Path], tmp_path: Path) -> None:
    raw, reader = unpack("argoverse1", "--split", "val"), Argoverse1()
    scenes = [reader.read(item, "val", raw) for item in reader.inputs(raw, "val")]
    write_shard(shard_path(tmp_path, "val", 0), scenes, ShardInfo("argoverse1", "val"))
    small = BatchConfig(map_radius_m=65.0, map_slack_m=20.0)
    for batch, before in ((BatchConfig(), 0.4), (small, 0.35)):
        data = DataConfig(str(tmp_path), str(tmp_path), "val", "val", batch=batch)
        plain = SceneData(replace(data, bucket=1)).padding()
        bucketed = SceneData(replace(data, bucket=32)).padding()
        assert plain["agents and polylines"] > before
        assert max(bucketed.values()) < 0.25, bucketed


def test_there_is_at_most_one_worker_per_core() -> None:
    loader = loading.make_loader([], RankSampler(SequentialOrder(0, 1)), workers=1000)
    assert loader.num_workers == os.cpu_count()
