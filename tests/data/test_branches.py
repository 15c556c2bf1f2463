"""Several futures of one past: simulation, storage, samples, augmentation, coverage and training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.cli import run
from support.scenes import make_scene
from support.tensors import tensors
from support.training import recipe

from data_prep.synthetic import synthesize
from trajformer.data.augment import AugmentConfig, augment
from trajformer.data.batch import collate, transform
from trajformer.data.forecast import Forecast
from trajformer.data.loading import BranchDataset, SceneDataset
from trajformer.data.sample import BatchConfig, Frame, branched, samples
from trajformer.errors import SceneError
from trajformer.evaluation.metrics.displacement import futures_covered
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK, SceneData
from trajformer.training.run import train


def test_synthesized_branches_are_separate_scenes_on_disk(tmp_path: Path) -> None:
    assert (
        run(
            "synthesize", tmp_path / "raw", "--scenes", 3, "--seed", 2, "--workers", 1, "--branches"
        )
        == 0
    )
    names = {
        split: sorted(path.name for path in (tmp_path / "raw" / split).iterdir())
        for split in ("train", "val", "test")
    }
    assert {name[-2:] for name in names["train"]} >= {".0", ".1"} and len(
        {name[:36] for name in names["train"]}
    ) == 1
    assert [name[-2:] for name in names["test"]] == [".0"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*.parquet")}
    missing = tmp_path / "raw" / "train" / names["train"][0]
    for path in missing.iterdir():  # an interrupted run: the first future is written last
        path.unlink()
    synthesize(tmp_path / "raw", 3, 2, branches=True, progress=False)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*.parquet")}
    assert (
        after.keys() == before.keys() and sum(after[path] != before[path] for path in before) == 1
    )
    assert (
        run("preprocess", "argoverse2", tmp_path / "raw", tmp_path / "store", "--workers", 1) == 0
    )
    data = BranchDataset(
        SceneStore(tmp_path / "store", "train"), BatchConfig(targets="focal")
    )  # refuses different pasts
    assert len(data) == 1 and data[[0]].truth.position.shape == (1, 1, len(names["train"]), 60, 2)
    assert data[[0]].truth.valid.all()


def future_of(scene: Scene, turn: float, name: str, agents: int = 1) -> Scene:
    """The scene with another future of its first agents: rotated about their current position."""
    position = scene.position.copy()
    here, cos, sin = position[:agents, scene.num_history - 1, None], np.cos(turn), np.sin(turn)
    away = position[:agents, scene.num_history :] - here
    position[:agents, scene.num_history :] = (
        away @ np.array([[cos, sin], [-sin, cos]], np.float32) + here
    )
    return replace(scene, scene_id=name, position=position).validate()


def groups() -> list[list[Scene]]:
    """Scenes of three pasts with three, one and two futures; two futures of the first past are equal for agent 1."""
    first, second, third = (make_scene(6, seed=seed) for seed in range(3))
    return [
        [
            replace(first, scene_id="a.0"),
            future_of(first, 0.5, "a.1"),
            future_of(first, -0.5, "a.2", agents=2),
        ],
        [replace(second, scene_id="b")],
        [replace(third, scene_id="c.0"), future_of(third, 1.5, "c.1", agents=3)],
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for split in ("train", "val"):
        scenes = [replace(scene, split=split) for group in groups() for scene in group]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def test_scenes_with_a_common_past_are_one_item_with_all_futures(store: Path) -> None:
    data = BranchDataset(SceneStore(store, "train"), BatchConfig())
    assert len(data) == 3 and [list(group) for group in data.groups] == [[0, 1, 2], [3], [4, 5]]
    batch = data[[2, 0, 1]]
    assert batch.truth.position.shape == (3, 3, 3, 12, 2) and batch.observation.num_future == 12
    alone = [collate(group) for group in groups()]
    torch.testing.assert_close(batch.truth.position[1, 0, 1], alone[0].truth.position[1, 0])
    assert batch.truth.valid[1].all(-1).tolist() == [
        [True, True, True],
        [True, False, True],
        [True, False, False],
    ]
    assert batch.truth.valid[0].all(-1).tolist() == [[True, True, False]] * 3
    assert batch.truth.valid[2].all(-1).tolist() == [[True, False, False]] * 3
    assert not batch.truth.position[~batch.truth.valid].any()
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
    position[1, first.num_history :] = position[
        1, first.num_history - 1
    ]  # stops, so it is no moving target
    with pytest.raises(SceneError, match="scene other: target_mask: differs"):
        branched(
            samples(
                [first, replace(first, scene_id="other", position=position)],
                BatchConfig(targets="moving"),
            ),
            2,
        )


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
    many = augment(data[index], config, torch.Generator().manual_seed(0))
    assert many.truth.position.ndim == 5
    for number in range(2):
        scenes = [group[number] for group in (groups()[0], groups()[2])]
        one = augment(
            collate(scenes, BatchConfig(frame=Frame.FOCAL)),
            config,
            torch.Generator().manual_seed(0),
        )
        chosen = many.truth.valid[:, :, number]
        assert chosen.any()
        torch.testing.assert_close(
            many.truth.position[:, :, number][chosen], one.truth.position[chosen]
        )
        assert torch.equal(many.observation.pose, one.observation.pose)
    pose = torch.tensor([[3.0, -2.0, 0.4], [1.0, 5.0, -1.0]])
    turned = transform(many, pose)
    expected = (
        to_frame(many.truth.position, pose[:, None, None, None]) * many.truth.valid[..., None]
    )
    torch.testing.assert_close(turned.truth.position, expected)


def test_coverage_of_futures_in_a_closed_form_case() -> None:
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    forecast = Forecast(
        end[None, None, :, None].expand(1, 1, 3, 4, 2),
        torch.tensor([[[0.0, 2.0, 1.0]]]),
        Frame.SCENE,
    )
    target = torch.tensor([[1.0, 1.0], [11.0, 1.0], [0.0, 12.5], [0.0, 12.0]])[
        None, None, :, None
    ].expand(1, 1, 4, 4, 2)
    valid = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    valid[0, 0, 1, -1] = False
    hit, known = futures_covered(forecast, target, valid, 3)
    assert hit[0, 0].tolist() == [True, True, False, True] and known[0, 0].tolist() == [
        True,
        False,
        True,
        True,
    ]
    assert futures_covered(forecast, target, valid, 2)[0][0, 0].tolist() == [
        False,
        True,
        False,
        True,
    ]  # the two most probable


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
