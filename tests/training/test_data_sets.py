"""Several data sets in one training: clock, masks, shares, metrics of each, resume, forecasts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cli import error_line, run
from support.scenes import make_scene
from support.training import largest_difference, log_of, recipe, weights

from trajformer.cli.train import parser
from trajformer.data.augment_agents import thin
from trajformer.data.batch import stack
from trajformer.data.sample import BatchConfig, Frame, extended, samples
from trajformer.errors import ConfigError, TrajformerError
from trajformer.evaluation.evaluate import evaluate, track_forecasts
from trajformer.evaluation.forecast_file import read_forecasts
from trajformer.models.agentformer.losses import CVAELossConfig
from trajformer.models.agentformer.model import AgentFormerConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.se2former.model import SE2FormerConfig
from trajformer.recipes.checkpoint import load_predictor
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import DataConfig, SourceConfig, TrainConfig
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.run import train
from trajformer.training.scene_data import SceneData

H, F = 20, 60  # history of the first data set, horizon of the second one, at 10 Hz


def write(root: Path, source: str, clock: tuple[float, int, int], unit: str = "m") -> Path:
    """A store of 8 training and 3 validation scenes: period, history and horizon."""
    period_s, history, future = clock
    for split, seeds in (("train", range(8)), ("val", range(20, 23))):
        scenes = []
        for seed in seeds:
            scene = make_scene(4 + seed % 3, history, future, seed=seed)
            # The same motion, on another clock.
            velocity = scene.velocity * np.float32(0.1 / period_s)
            changes: dict[str, Any] = {"source": source, "split": split, "unit": unit}
            changes["scene_id"] = f"{source}_{seed}"
            scenes.append(replace(scene, period_s=period_s, velocity=velocity, **changes))
        write_shard(shard_path(root, split, 0), scenes, ShardInfo(source, split, unit=unit))
    write_manifest(root)
    return root


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 Hz, 2 s and 3 s, as Argoverse 1."""
    return write(tmp_path_factory.mktemp("fast"), "fast", (0.1, H, 30))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 Hz, 1.5 s and 6 s, as nuScenes."""
    return write(tmp_path_factory.mktemp("slow"), "slow", (0.5, 3, 12))


def data_config(fast: Path, slow: Path, weight: float = 0.5, **changes: Any) -> DataConfig:
    train_sources = (SourceConfig(str(fast)), SourceConfig(str(slow), weight=weight))
    val_sources = (SourceConfig(str(fast)), SourceConfig(str(slow)))
    batch = BatchConfig(polyline_points=4)
    return DataConfig(train_sources, val_sources, batch_size=3, batch=batch, **changes)


def config(fast: Path, slow: Path, **changes: Any) -> TrainConfig:
    model = CrowdConfig(F, max_history=H, block=replace(CrowdConfig().block, width=16, heads=2))
    trainer = {"epochs": 2, "checkpoint_minutes": 1e-9} | changes.pop("trainer", {})
    data = data_config(fast, slow)
    whole = recipe(fast, model=model, trainer=trainer, **changes)
    return replace(whole, data=data)


@pytest.fixture(scope="module")
def finished(fast: Path, slow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train(config(fast, slow), TASK, out, progress=False)
    return out


def test_scenes_have_the_period_of_the_first_and_the_longest_horizon(
    fast: Path, slow: Path
) -> None:
    data = SceneData(data_config(fast, slow))
    spec = data.spec
    assert (spec.period_s, spec.num_history, spec.num_future) == (0.1, H, F)
    assert [source.source for source in spec.sources] == ["fast", "slow"]
    assert (data.horizons, data.val_names) == ([30, F], ["fast", "slow"])

    batch = data.train[[0, 8]]
    assert batch.observation.period_s == 0.1 and batch.observation.num_future == F
    focal = batch.truth.valid[:, 0]
    assert focal[0, :30].all() and not focal[0, 30:].any() and focal[1].all()
    assert not batch.truth.position[0, :, 30:].any()
    # 1.5 s at 2 Hz are 11 steps at 10 Hz, the others were not recorded
    seen = batch.observation.valid[:, 0]
    assert seen[0].all() and not seen[1, : H - 11].any() and seen[1, H - 11 :].all()
    # Recorded steps are kept, steps between them are on a line.
    scene = SceneStore(slow, "train")[0]
    assert torch.equal(batch.truth.position[1, 0, 4::5], torch.from_numpy(scene.position[0, 3:]))
    between = (scene.position[0, 3] + scene.position[0, 4]) / 2
    middle = batch.truth.position[1, 0, 6:8].mean(0)
    torch.testing.assert_close(middle, torch.from_numpy(between), atol=1e-4, rtol=0)


def test_the_horizon_of_the_scene_decides_which_agents_move(fast: Path, slow: Path) -> None:
    data = SceneData(data_config(fast, slow, learn_from="moving"))
    plain = SceneData(DataConfig(str(fast), str(fast), learn_from="moving"))
    mixed = data.train[[0, 1, 2]]
    alone = plain.train[[0, 1, 2]]
    assert torch.equal(mixed.observation.target_mask, alone.observation.target_mask)
    assert mixed.observation.num_targets > 3
    chosen = []
    for batch in (mixed, alone):
        fewer = thin(batch, torch.Generator().manual_seed(1), 4)
        chosen.append(fewer.observation.agent_id)
    assert chosen[0] == chosen[1]


def test_an_epoch_takes_the_weight_of_each_source(fast: Path, slow: Path) -> None:
    data = SceneData(data_config(fast, slow, weight=0.5), seed=3)
    order = data.order()
    epochs = [np.concatenate(list(order.epoch(number))) for number in range(4)]
    for scenes in epochs:
        assert sorted(scenes[scenes < 8].tolist()) == list(range(8))
        assert len(scenes) == 12
    halves = [set(scenes[scenes >= 8].tolist()) for scenes in epochs]
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(range(8, 16))
    assert not np.array_equal(epochs[0], epochs[2])
    twice = SceneData(data_config(fast, slow, weight=2.0)).order()
    counts = np.bincount(np.concatenate(list(twice.epoch(0))))
    assert counts.tolist() == [1] * 8 + [2] * 8


def test_an_epoch_resumes_at_any_step_with_the_same_scenes(fast: Path, slow: Path) -> None:
    steps = list(SceneData(data_config(fast, slow), seed=1).order().epoch(2))
    again = SceneData(data_config(fast, slow, workers=1), seed=1).order()
    for first in range(len(steps)):
        for step, expected in zip(again.epoch(2, first), steps[first:], strict=True):
            assert np.array_equal(step, expected)


def test_each_source_has_its_metrics_which_evaluate_repeats(
    fast: Path, slow: Path, finished: Path
) -> None:
    predictor = load_predictor(finished / "last.ckpt")
    assert len(predictor.trained_on.sources) == 2
    all_agents = 0
    total = 0.0
    for store in (fast, slow):
        scenes = SceneStore(store, "val")
        scoring = evaluate(predictor, scenes)
        name = scenes[0].source
        for metric in ("minADE6", "minFDE6", "minFDE1"):
            logged = log_of(finished, f"val/{name}/{metric}").iloc[-1]
            assert scoring.metrics[metric] == pytest.approx(logged, rel=1e-5)
        total += scoring.metrics["minFDE6"] * scoring.metrics["num_agents"]
        all_agents += scoring.metrics["num_agents"]
    # the metrics without a name are means over the agents of all sources
    assert total / all_agents == pytest.approx(log_of(finished).iloc[-1], rel=1e-5)


def test_forecasts_have_the_steps_of_their_scenes(
    fast: Path, slow: Path, finished: Path, tmp_path: Path
) -> None:
    predictor = load_predictor(finished / "last.ckpt")
    for store, steps in ((fast, 30), (slow, 12)):
        out = tmp_path / f"{steps}.parquet"
        words = ["--checkpoint", finished / "last.ckpt", "--store", store, "--out", out]
        assert run("predict", *words, "--accelerator", "cpu") == 0
        assert run("score", out, "--store", store) == 0
        scenes = SceneStore(store, "val")
        for track in track_forecasts(predictor, scenes):
            assert track.position.shape[1:] == (steps, 2)
        by_scene = read_forecasts(out)
        assert len(by_scene) == len(scenes)


def test_forecasts_between_the_steps_of_the_model_start_at_the_present(
    fast: Path, slow: Path, tmp_path: Path
) -> None:
    """The model has 2 Hz, the scenes 10 Hz: the first steps lie before the first one predicted."""
    model = CrowdConfig(12, max_history=H, block=replace(CrowdConfig().block, width=16, heads=2))
    mixed = data_config(slow, fast)
    whole = replace(recipe(fast, model=model, trainer={"epochs": 1}), data=mixed)
    train(whole, TASK, tmp_path / "run", progress=False)
    predictor = load_predictor(tmp_path / "run" / "last.ckpt")
    assert predictor.trained_on.period_s == 0.5
    scenes = SceneStore(fast, "val")
    for track in track_forecasts(predictor, scenes):
        scene = scenes[track.scene_id]
        agent = scene.agent_id.index(track.track_id)
        present = scene.position[agent, H - 1] + scene.origin
        # Steps up to the first one of the model are on a line from the present.
        fifth = track.position[:, 4]
        for step in range(4):
            expected = present + (fifth - present) * (step + 1) / 5
            np.testing.assert_allclose(track.position[:, step], expected, atol=2e-3)


def test_a_stopped_run_resumes_exactly(
    fast: Path, slow: Path, finished: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    step = ForecastingModule.training_step
    failures = [(0, 2), (1, 1)]

    def training_step(self: Any, batch: Any, index: int) -> torch.Tensor:
        if failures and (self.current_epoch, index) == failures[0]:
            failures.pop(0)
            raise ZeroDivisionError
        return step(self, batch, index)

    monkeypatch.setattr(ForecastingModule, "training_step", training_step)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            train(config(fast, slow), TASK, tmp_path, resume=True, progress=False)
    train(config(fast, slow), TASK, tmp_path, resume=True, progress=False)
    assert largest_difference(weights(tmp_path), weights(finished)) == 0.0

    changed = replace(config(fast, slow), data=data_config(fast, slow, weight=1.0))
    with pytest.raises(TrajformerError, match=r"was trained with data\.train"):
        train(changed, TASK, tmp_path, resume=True, progress=False)


@pytest.mark.parametrize("name", ["se2former", "agentformer"])
def test_losses_of_models_ignore_steps_that_are_never_valid(name: str) -> None:
    """The contract of the other losses is in tests/losses."""
    scenes = [make_scene(4, 6, 5, seed=seed) for seed in range(2)]
    parts = [extended(part, 8, 12) for part in samples(scenes, BatchConfig(polyline_points=4))]
    batch = stack(parts, Frame.SCENE)
    models = {
        "se2former": (SE2FormerConfig.example(12), None),
        "agentformer": (AgentFormerConfig.example(12), CVAELossConfig()),
    }
    model_config, loss = models[name]
    model = model_config.build().eval()
    objective = model.choose_loss(loss).build()
    terms = []
    for garbage in (0.0, 1e3):
        position = torch.where(batch.truth.valid[..., None], batch.truth.position, garbage)
        changed = replace(batch, truth=replace(batch.truth, position=position))
        torch.manual_seed(0)
        terms.append(objective(model, changed))
    torch.testing.assert_close(terms[0], terms[1])
    terms[0]["loss"].backward()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_scenes_of_no_source_are_refused(finished: Path, tmp_path: Path) -> None:
    other = write(tmp_path, "other", (0.2, 10, 15))
    predictor = load_predictor(finished / "last.ckpt")
    with pytest.raises(TrajformerError, match=r"period_s 0\.2 .*the training scenes have 0\.1"):
        evaluate(predictor, SceneStore(other, "val"))


def test_unusable_mixtures_are_refused(fast: Path, slow: Path, tmp_path: Path) -> None:
    pixels = write(tmp_path / "pixels", "sdd", (0.1, H, 30), unit="px")
    with pytest.raises(TrajformerError, match=r"data\.unit: m, but .*pixels is in px"):
        SceneData(data_config(fast, pixels))
    with pytest.raises(TrajformerError, match=r"data\.val: m, but .*pixels is in px"):
        SceneData(replace(data_config(fast, slow), val=str(pixels)))
    coarse = write(tmp_path / "coarse", "coarse", (5.0, 3, 4))
    with pytest.raises(TrajformerError, match="horizon of 3 s is shorter than a step of 5 s"):
        SceneData(data_config(coarse, fast))
    with pytest.raises(ConfigError, match="val: has a weight"):
        DataConfig(str(fast), (SourceConfig(str(fast), weight=2.0),))
    with pytest.raises(ConfigError, match="branches"):
        data_config(fast, slow, branches=True)
    with pytest.raises(ConfigError, match="train: no source"):
        DataConfig((), str(fast))


def test_a_checkpoint_knows_the_splits_of_all_sources(fast: Path, slow: Path) -> None:
    spec = SceneData(data_config(fast, slow)).spec
    assert DataSpec.from_plain(spec.to_plain()) == spec
    for store in (fast, slow):
        assert spec.contains(SceneStore(store, "train")[0])
        assert not spec.contains(SceneStore(store, "val")[0])
    data = data_config(fast, slow)
    assert from_plain(DataConfig, to_plain(data)) == data


@pytest.fixture
def with_colon(fast: Path, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "store:2"
    path.symlink_to(fast)
    yield path


def test_repeated_options_are_several_sources(slow: Path, with_colon: Path) -> None:
    words = ["--config", "crowd_sdd", "--out", "run", "--data.val", str(slow)]
    fields = f"{{store: {slow}, split: val, weight: 2}}"
    words += ["--data.train", str(with_colon), f"--data.train={slow}:0.5", "--data.train", fields]
    args = parser().parse_words(words)
    stores = [(one.store, one.get("split"), one.get("weight", 1.0)) for one in args.data.train]
    assert stores == [(str(with_colon), None, 1.0), (str(slow), None, 0.5), (str(slow), "val", 2.0)]
    assert args.data.val == str(slow)
    alone = parser().parse_words(["--out", "run", "--data.train", str(with_colon)])
    assert alone.data.train == str(with_colon)


def test_wrong_fields_of_a_source_are_one_line(
    fast: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--config", "crowd_sdd", "--out", tmp_path / "run", "--data.val", fast]
    one = ["--data.train", fast, "--data.train"]
    line = error_line(capsys, *words, *one, "{store: B, wight: 2}")
    assert "data.train[1]: unknown field 'wight' (known: store, split, weight)" in line
    line = error_line(capsys, *words, *one, "B:0")
    assert "data.train[1].weight: 0.0, expected 0.001 to 1000" in line
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text("data:\n  train:\n  - store: A\n  - store: B\n    wight: 2\n")
    line = error_line(capsys, *words, "--config", recipe_file)
    assert "wight" in line
