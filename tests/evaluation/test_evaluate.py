"""`evaluate` agrees with the validation of a training, and accepts predictors and plain modules."""

from pathlib import Path

import pytest
from support.training import log_of, recipe, training_store

import trajformer
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate
from trajformer.recipes.checkpoint import load_checkpoint, load_predictor
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with store/ and a run of two epochs."""
    folder = tmp_path_factory.mktemp("run")
    config = recipe(training_store(folder / "store", 6, 5), trainer={"epochs": 2})
    train(config, TASK, folder, progress=False)
    return folder


def test_the_last_validation_equals_evaluate(run: Path) -> None:
    figures = evaluate(load_predictor(run / "last.ckpt"), SceneStore(run / "store", "val"), batch_size=3).figures
    for name in ("minADE6", "minFDE6", "MR6", "brier_minFDE6", "minFDE1"):
        assert log_of(run, f"val/{name}").iloc[-1] == pytest.approx(figures[name], rel=1e-6, abs=1e-6), name


def test_a_module_with_batch_settings_equals_its_predictor(run: Path) -> None:
    scenes = SceneStore(run / "store", "val")
    model, config = load_checkpoint(run / "last.ckpt")
    expected = evaluate(load_predictor(run / "last.ckpt"), scenes)
    assert trajformer.evaluate(model.train(), scenes, config.data.batch).figures == expected.figures
    assert len(expected.per_agent) == expected.figures["num_agents"] == expected.table.num_agents[0]
    with pytest.raises(TypeError, match="a Predictor has its own"):
        evaluate(load_predictor(run / "last.ckpt"), scenes, config.data.batch)


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
    for text, message in (
        ("[]", "not a recipe"),
        ("{model: [", "not a readable recipe"),
        ("model: {moon: {}}", "unknown name 'moon'"),
    ):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(TrajformerError, match=message):
            trajformer.build_model(tmp_path / "mine.yaml")
    with pytest.raises(TrajformerError, match="a recipe for detection"):
        trajformer.build_model("heads/detr_shapes")
