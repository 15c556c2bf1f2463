"""`evaluate` agrees with the validation of a training, and accepts predictors and plain modules."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import SE2FORMER
from support.training import recipe, training_store
from torch import nn

import trajformer
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import TrajformerError, TrajformerWarning
from trajformer.evaluation.evaluate import evaluate, track_forecasts
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_checkpoint, load_predictor
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import build_random
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with store/ and a run of two epochs."""
    folder = tmp_path_factory.mktemp("run")
    config = recipe(training_store(folder / "store", 6, 5), trainer={"epochs": 2})
    train(config, TASK, folder, progress=False)
    return folder


def test_a_module_with_batch_settings_equals_its_predictor(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    model, config = load_checkpoint(run / "last.ckpt")
    predictor = load_predictor(run / "last.ckpt")
    expected = evaluate(predictor, scenes)
    num_agents = expected.metrics["num_agents"]
    assert len(expected.per_agent) == num_agents
    assert expected.table.num_agents[0] == num_agents

    given = trajformer.evaluate(model.train(), scenes, config.data.batch)
    of_checkpoint = trajformer.evaluate(model, scenes)
    with pytest.warns(TrajformerWarning, match=r"batch: .*, the model has .*; use dataclasses"):
        others = trajformer.evaluate(model, scenes, BatchConfig())
    assert given.metrics == expected.metrics
    assert of_checkpoint.metrics == expected.metrics
    assert others.metrics != expected.metrics
    with pytest.raises(TypeError, match="a Predictor has its own"):
        evaluate(predictor, scenes, config.data.batch)


def test_a_model_in_training_mode_has_the_metrics_of_evaluation_mode(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    predictor = load_predictor(run / "last.ckpt")
    expected = evaluate(predictor, scenes)
    predictor.model.train()
    assert evaluate(predictor, scenes).metrics == expected.metrics
    assert not predictor.model.training

    predictor.model.train()
    forecasts = list(track_forecasts(predictor, scenes))
    again = list(track_forecasts(predictor, scenes))
    for one, other in zip(forecasts, again, strict=True):
        np.testing.assert_array_equal(one.position, other.position)


def test_a_built_model_has_the_batch_settings_of_its_recipe(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    loaded, config = load_checkpoint(run / "last.ckpt")
    built = trajformer.build_model(config)
    built.load_state_dict(loaded.state_dict())
    expected = evaluate(loaded, scenes).metrics
    assert evaluate(built, scenes).metrics == expected
    assert evaluate(Predictor(built), scenes).metrics == expected


def test_an_evaluation_states_its_horizon_and_the_complete_futures(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    evaluation = evaluate(load_predictor("constant_velocity", targets="all"), scenes)
    expected = 0
    targets = 0
    for scene in scenes:
        targets += int(scene.valid[:, scene.num_history - 1].sum())
        present = scene.valid[:, scene.num_history - 1]
        expected += int(scene.valid[present, scene.num_history :].all(1).sum())
    assert evaluation.scenes.num_future == scenes[0].num_future
    assert evaluation.complete_futures == expected
    assert evaluation.num_targets == targets >= len(evaluation.per_agent) >= expected


class Fixed(nn.Module):
    """Six modes that stay where they are, with changed fields."""

    def __init__(self, change: Callable[[Forecast], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, observation: Observation) -> Any:
        shape = (*observation.target_mask.shape, 6)
        modes = torch.zeros(*shape, observation.num_future, 2)
        pose = observation.pose[:, : observation.num_targets]
        return self.change(Forecast(modes, torch.zeros(shape), Frame.AGENT, pose))


WRONG: dict[str, tuple[Callable[[Forecast], Any], str]] = {
    "one step for all": (
        lambda f: replace(f, position=f.position[..., :1, :]),
        r"position has shape .*, expected \[B, S, K, F, 2\]",
    ),
    "fewer probabilities": (
        lambda f: replace(f, logit=f.logit[..., 1:]),
        r"logit has shape .*, expected \[B, S, K\] or \[B, K\]",
    ),
    "no pose": (lambda f: replace(f, pose=None), "pose has shape None"),
    "a word as the frame": (
        lambda f: replace(f, frame="agent"),  # type: ignore[arg-type]
        "frame is 'agent', expected Frame.SCENE",
    ),
    "another frame": (lambda f: replace(f, frame=Frame.FOCAL), "expected Frame.SCENE of the batch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_forecast_of_wrong_shapes_or_frame_has_no_metrics(run: Path, case: str) -> None:
    change, message = WRONG[case]
    scenes = SceneStore(run / "store", "val")
    assert evaluate(Fixed(lambda forecast: forecast), scenes).metrics["num_agents"] > 0
    with pytest.raises(TrajformerError, match=message):
        evaluate(Fixed(change), scenes)


def test_arguments_of_other_types(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    with pytest.raises(TypeError, match="model: expected a Predictor or a module, found tuple"):
        evaluate(load_checkpoint(run / "last.ckpt"), scenes)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the model returns Tensor, expected Forecast"):
        evaluate(Fixed(lambda forecast: forecast.position), scenes)
    for others in (str(run / "store"), [scenes[0]]):
        with pytest.raises(TrajformerError, match=r"scenes: of type .*, expected the split"):
            evaluate(load_predictor("constant_velocity"), others)  # type: ignore[arg-type]
    with pytest.raises(TrajformerError, match="batch_size: -1, expected at least 1"):
        list(track_forecasts(load_predictor("constant_velocity"), scenes, batch_size=-1))


def distances(scene: Scene, agent: int) -> list[float]:
    """Seconds since an agent was first seen, and metres that it moves until now and from now."""
    position = scene.position[agent]
    valid = scene.valid[agent]
    is_past = np.arange(scene.num_steps) < scene.num_history
    past = position[is_past & valid]
    future = position[~is_past & valid]
    first = past[:5].mean(0)
    present = past[-5:].mean(0)
    last = future[-5:].mean(0)
    seen_s = (scene.num_history - 1 - valid.argmax()) * scene.period_s
    return [seen_s, math.dist(first, present), math.dist(present, last)]


def test_all_agents_have_the_distances_that_they_moved(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    all_agents = evaluate(load_predictor("constant_velocity", targets="all"), scenes)
    scored_agents = evaluate(load_predictor("constant_velocity"), scenes)
    assert len(all_agents.per_agent) > len(scored_agents.per_agent)
    rows = all_agents.per_agent.set_index(["scenario_id", "track_id"])
    moved = rows[["history_s", "history_m", "future_m"]]
    for scene in scenes:
        for agent, track in enumerate(scene.agent_id):
            key = (scene.scene_id, track)
            if key in moved.index:
                expected = distances(scene, agent)
                assert moved.loc[key].tolist() == pytest.approx(expected, abs=1e-3)


def test_joint_futures_of_a_model_with_worlds(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    batch = BatchConfig(targets="all")
    model = build_random(SE2FORMER).eval()
    joint = evaluate(Predictor(model, batch, joint=True), scenes).metrics
    marginal = evaluate(Predictor(model, batch, joint=False), scenes).metrics
    assert joint["avgMinFDE6"] >= joint["minFDE6"]
    assert "avgMinFDE6" not in marginal


def test_joint_futures_of_a_model_without_worlds_are_refused(run: Path) -> None:
    with pytest.raises(TrajformerError, match="gives no joint futures"):
        evaluate(load_predictor("constant_velocity", joint=True), SceneStore(run / "store", "val"))


def test_joint_futures_that_are_not_finite_are_refused(run: Path) -> None:
    model = build_random(SE2FORMER).eval()
    for parameter in model.score.parameters():
        nn.init.constant_(parameter, math.nan)
    predictor = Predictor(model, BatchConfig(targets="all"), joint=True)
    with pytest.raises(TrajformerError, match="the forecast has NaN or infinity"):
        evaluate(predictor, SceneStore(run / "store", "val"))


def test_public_names_are_available_and_listed() -> None:
    for name in trajformer.__all__:
        assert getattr(trajformer, name).__name__ == name
        assert name in dir(trajformer)
    with pytest.raises(AttributeError, match="no attribute 'moon'"):
        _ = trajformer.moon  # type: ignore[attr-defined]


def test_build_model_takes_names_files_and_configs(tmp_path: Path) -> None:
    by_name = trajformer.build_model("crowd_eth_ucy")
    recipe_file = tmp_path / "mine.yaml"
    recipe_file.write_text("model: {crowd: {modes: 5}}")
    assert type(trajformer.build_model(recipe_file)) is type(by_name)

    config = recipe(tmp_path)
    by_recipe = trajformer.build_model(config)
    by_config = trajformer.build_model(config.model)
    assert type(by_recipe) is type(by_config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a recipe"),
        ("{model: [", "not readable as YAML"),
        ("model: {moon: {}}", "unknown name 'moon'"),
    ],
)
def test_build_model_refuses_other_files(tmp_path: Path, text: str, message: str) -> None:
    recipe_file = tmp_path / "mine.yaml"
    recipe_file.write_text(text)
    with pytest.raises(TrajformerError, match=message):
        trajformer.build_model(recipe_file)


def test_build_model_refuses_recipes_of_other_tasks() -> None:
    with pytest.raises(TrajformerError, match="a recipe for detection"):
        trajformer.build_model("heads/detr_shapes")
