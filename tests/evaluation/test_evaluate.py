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
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate, track_forecasts
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_checkpoint, load_predictor
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
    expected = evaluate(load_predictor(run / "last.ckpt"), scenes)
    assert trajformer.evaluate(model.train(), scenes, config.data.batch).metrics == expected.metrics
    assert (
        trajformer.evaluate(model, scenes).metrics == expected.metrics
    )  # the settings of the checkpoint
    assert trajformer.evaluate(model, scenes, BatchConfig()).metrics != expected.metrics
    assert len(expected.per_agent) == expected.metrics["num_agents"] == expected.table.num_agents[0]
    with pytest.raises(TypeError, match="a Predictor has its own"):
        evaluate(load_predictor(run / "last.ckpt"), scenes, config.data.batch)


class Fixed(nn.Module):
    """Six modes that stay where they are, with changed fields."""

    def __init__(self, change: Callable[[Forecast], Any]) -> None:
        super().__init__()
        self.change = change

    def forward(self, observation: Observation) -> Any:
        shape = (*observation.target_mask.shape, 6)
        modes = torch.zeros(*shape, observation.num_future, 2)
        return self.change(
            Forecast(
                modes,
                torch.zeros(shape),
                Frame.AGENT,
                observation.pose[:, : observation.num_targets],
            )
        )


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
        lambda f: replace(f, frame="agent"),
        "frame is 'agent', expected Frame.SCENE",
    ),  # type: ignore[arg-type]
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
    with pytest.raises(TrajformerError, match="batch_size: -1, expected at least 1"):
        list(track_forecasts(load_predictor("constant_velocity"), scenes, batch_size=-1))


def test_all_agents_have_the_distances_that_they_moved(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    per_agent = evaluate(load_predictor("constant_velocity", targets="all"), scenes).per_agent
    moved = per_agent.set_index(["scenario_id", "track_id"])[["history_s", "history_m", "future_m"]]
    assert len(moved) > evaluate(load_predictor("constant_velocity"), scenes).metrics["num_agents"]
    for scene in (scenes[index] for index in range(len(scenes))):
        for a, track in enumerate(scene.agent_id):
            if (scene.scene_id, track) in moved.index:
                parts = (
                    np.arange(scene.num_steps) < scene.num_history,
                    np.arange(scene.num_steps) >= scene.num_history,
                )
                past, future = (scene.position[a][part & scene.valid[a]] for part in parts)
                points = past[:5].mean(0), past[-5:].mean(0), future[-5:].mean(0)
                seen_s = (scene.num_history - 1 - scene.valid[a].argmax()) * scene.period_s
                expected = [seen_s, math.dist(*points[:2]), math.dist(*points[1:])]
                assert moved.loc[(scene.scene_id, track)].tolist() == pytest.approx(
                    expected, abs=1e-3
                )


def test_joint_futures_of_a_model_with_worlds(run: Path) -> None:
    scenes, batch = SceneStore(run / "store", "val"), BatchConfig(targets="all")
    model = build_random(SE2FORMER).eval()
    joint, marginal = (
        evaluate(Predictor(model, batch, joint=joint), scenes).metrics for joint in (True, False)
    )
    assert joint["avgMinFDE6"] >= joint["minFDE6"] and "avgMinFDE6" not in marginal
    with pytest.raises(TrajformerError, match="gives no joint futures"):
        evaluate(load_predictor("constant_velocity", joint=True), scenes)
    for parameter in model.score.parameters():
        nn.init.constant_(parameter, math.nan)
    with pytest.raises(TrajformerError, match="the forecast has NaN or infinity"):
        evaluate(Predictor(model, batch, joint=True), scenes)


def test_public_names_are_available_and_listed() -> None:
    for name in trajformer.__all__:
        assert getattr(trajformer, name).__name__ == name and name in dir(trajformer)
    with pytest.raises(AttributeError, match="no attribute 'moon'"):
        _ = trajformer.moon  # type: ignore[attr-defined]


def test_build_model_takes_names_files_and_configs(tmp_path: Path) -> None:
    by_name = trajformer.build_model("crowd_eth_ucy")
    (tmp_path / "mine.yaml").write_text("model: {crowd: {modes: 5}}")
    assert type(trajformer.build_model(tmp_path / "mine.yaml")) is type(by_name)
    config = recipe(tmp_path)
    assert type(trajformer.build_model(config)) is type(trajformer.build_model(config.model))
    wrong = {
        "[]": "not a recipe",
        "{model: [": "not readable as YAML",
        "model: {moon: {}}": "unknown name 'moon'",
    }
    for text, message in wrong.items():
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(TrajformerError, match=message):
            trajformer.build_model(tmp_path / "mine.yaml")
    with pytest.raises(TrajformerError, match="a recipe for detection"):
        trajformer.build_model("heads/detr_shapes")
