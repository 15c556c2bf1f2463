"""Several futures of one past: from simulation and storage to augmentation and training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cli import run
from support.scenes import make_scene
from support.tensors import generator, tensors
from support.training import recipe

from data_prep.synthetic import synthesize
from trajformer.data.augment import AugmentConfig, augment
from trajformer.data.batch import collate, transform
from trajformer.data.forecast import Forecast
from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig, Frame, branched, samples
from trajformer.errors import SceneError
from trajformer.evaluation.metrics.displacement import futures_covered
from trajformer.scenes.geometry import rotate, to_frame
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK, SceneData
from trajformer.training.run import train


def test_synthesized_branches_are_separate_scenes_on_disk(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    options = ("--scenes", 3, "--seed", 2, "--workers", 1, "--branches")
    assert run("synthesize", raw, *options) == 0
    train = sorted(path.name for path in (raw / "train").iterdir())
    assert {name[-2:] for name in train} >= {".0", ".1"}
    assert len({name[:36] for name in train}) == 1
    [test] = (raw / "test").iterdir()
    assert test.name[-2:] == ".0"

    before = modification_times(raw)
    for path in (raw / "train" / train[0]).iterdir():
        path.unlink()  # an interrupted run: the first future is written last
    synthesize(raw, 3, 2, branches=True, progress=False)
    after = modification_times(raw)
    assert after.keys() == before.keys()
    assert sum(after[path] != before[path] for path in before) == 1

    assert run("preprocess", "argoverse2", raw, tmp_path / "store", "--workers", 1) == 0
    store = SceneStore(tmp_path / "store", "train")
    data = BranchDataset(store, BatchConfig(targets="focal"))  # refuses different pasts
    assert len(data) == 1
    truth = data[[0]].truth
    assert truth.position.shape == (1, 1, len(train), 60, 2)
    assert truth.valid.all()


def modification_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}


def future_of(scene: Scene, turn: float, name: str, agents: int = 1) -> Scene:
    """The scene with another future of its first agents: rotated about their current position."""
    position = scene.position.copy()
    here = position[:agents, scene.num_history - 1, None]
    future = position[:agents, scene.num_history :]  # a view
    future[:] = rotate(future - here, np.float32(turn)) + here
    return replace(scene, scene_id=name, position=position).validate()


def groups() -> list[list[Scene]]:
    """Scenes of three pasts with three, one and two futures.

    Two futures of the first past are equal for agent 1.
    """
    first = replace(make_scene(6, seed=0), scene_id="a.0")
    second = replace(make_scene(6, seed=1), scene_id="b")
    third = replace(make_scene(6, seed=2), scene_id="c.0")
    of_first = [first, future_of(first, 0.5, "a.1"), future_of(first, -0.5, "a.2", agents=2)]
    of_third = [third, future_of(third, 1.5, "c.1", agents=3)]
    return [of_first, [second], of_third]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for split in ("train", "val"):
        scenes = [replace(scene, split=split) for group in groups() for scene in group]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def test_scenes_with_a_common_past_are_one_item_with_all_futures(store: Path) -> None:
    data = BranchDataset(SceneStore(store, "train"), BatchConfig())
    assert len(data) == 3
    assert [list(group) for group in data.groups] == [[0, 1, 2], [3], [4, 5]]
    batch = data[[2, 0, 1]]
    truth = batch.truth
    assert truth.position.shape == (3, 3, 3, 12, 2)
    assert batch.observation.num_future == 12
    first = collate(groups()[0])
    torch.testing.assert_close(truth.position[1, 0, 1], first.truth.position[1, 0])
    one, two, three = [True, False, False], [True, True, False], [True, True, True]
    assert truth.valid[0].all(-1).tolist() == [two] * 3
    assert truth.valid[1].all(-1).tolist() == [three, [True, False, True], one]
    assert truth.valid[2].all(-1).tolist() == [one] * 3
    assert not truth.position[~truth.valid].any()
    plain = SceneDataset(SceneStore(store, "train"), BatchConfig())[[4, 0, 3]]
    for name in ("position", "velocity", "pose", "polyline", "agent_mask"):
        assert torch.equal(tensors(batch)[name], tensors(plain)[name])
    assert len(BranchDataset(SceneStore(store, "train"), BatchConfig(), limit=2)) == 2


def test_futures_of_different_pasts_are_refused() -> None:
    first, second = make_scene(6), make_scene(6)
    velocity = second.velocity.copy()
    velocity[3, 2] += 1.0
    other = replace(second, scene_id="other", velocity=velocity * second.valid[..., None])
    with pytest.raises(
        SceneError, match="scene other: velocity: differs from scene scene-0000-crossing"
    ):
        branched(samples([first, other], BatchConfig()), 2)
    first = make_scene(2, num_scored=0)
    position = first.position.copy()
    position[1, first.num_history :] = position[1, first.num_history - 1]  # stops: no target
    stopped = replace(first, scene_id="other", position=position)
    with pytest.raises(SceneError, match="scene other: target_mask: differs"):
        branched(samples([first, stopped], BatchConfig(targets="moving")), 2)


def test_augmentation_and_frames_apply_to_every_future(store: Path) -> None:
    """Each future moves as in a separate batch."""
    index = [0, 2]
    data = BranchDataset(SceneStore(store, "train"), BatchConfig(frame=Frame.FOCAL))
    config = AugmentConfig(
        flip=0.5,
        rotate=1.0,
        heading_noise=0.1,
        scale=0.2,
        noise_m=0.1,
        agent_dropout=0.0,
        history_mask=0.0,
    )
    many = augment(data[index], config, generator(0))
    assert many.truth.position.ndim == 5
    for number in range(2):
        scenes = [group[number] for group in (groups()[0], groups()[2])]
        one = augment(collate(scenes, BatchConfig(frame=Frame.FOCAL)), config, generator(0))
        chosen = many.truth.valid[:, :, number]
        assert chosen.any()
        torch.testing.assert_close(
            many.truth.position[:, :, number][chosen], one.truth.position[chosen]
        )
        assert torch.equal(many.observation.pose, one.observation.pose)
    pose = torch.tensor([[3.0, -2.0, 0.4], [1.0, 5.0, -1.0]])
    turned = transform(many, pose).truth.position
    expected = to_frame(many.truth.position, pose[:, None, None, None])
    torch.testing.assert_close(turned, expected * many.truth.valid[..., None])


def test_coverage_of_futures_in_a_closed_form_case() -> None:
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    position = end[None, None, :, None].expand(1, 1, 3, 4, 2)
    forecast = Forecast(position, torch.tensor([[[0.0, 2.0, 1.0]]]), Frame.SCENE)
    target_end = torch.tensor([[1.0, 1.0], [11.0, 1.0], [0.0, 12.5], [0.0, 12.0]])
    target = target_end[None, None, :, None].expand(1, 1, 4, 4, 2)
    valid = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    valid[0, 0, 1, -1] = False
    hit, known = futures_covered(forecast, target, valid, 3)
    assert hit[0, 0].tolist() == [True, True, False, True]
    assert known[0, 0].tolist() == [True, False, True, True]
    hit, _ = futures_covered(forecast, target, valid, 2)  # of the two most probable modes
    assert hit[0, 0].tolist() == [False, True, False, True]


def test_a_recipe_trains_on_all_futures(store: Path, tmp_path: Path) -> None:
    config = recipe(store, trainer={"epochs": 1})
    config = replace(config, data=replace(config.data, branches=True))
    data = SceneData(config.data)
    assert len(data.train) == 3 and len(data.val) == 6 and data.count_steps() == 2
    batch = next(iter(data.train_dataloader()))
    assert batch.truth.position.ndim == 5
    again = SceneData(replace(config.data, workers=1))
    assert isinstance(again.measured(), BranchDataset) and len(again.measured()) == 3
    model = config.build_model().train()
    assert config.loss_config(model).build()(model, batch)["loss"].isfinite()
    train(config, TASK, tmp_path, progress=False)
    assert (tmp_path / "best.ckpt").is_file()
