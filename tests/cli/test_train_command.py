"""The recipe that `trajformer train` reads from --config, --resume and its other options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cli import error_line, run

from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.names import read_recipe, recipe_file
from trajformer.training import run as run_file

NAME = "mmtransformer_argoverse1"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Receives the task and the recipe of each training instead of starting it."""
    trainings: list[tuple[str, Any]] = []

    def train(recipe: Any, task: Any, out: Path, *, resume: bool) -> None:
        trainings.append((task.recipe.task, recipe))

    monkeypatch.setattr(run_file, "train", train)
    return trainings


def test_a_recipe_is_given_by_name_or_file(started: list[tuple[str, Any]]) -> None:
    file = recipe_file(NAME)
    for config in (["--config", NAME], [f"--config={NAME}"], ["--config", file]):
        assert run("train", *config, "--out", "run") == 0
    recipe = read_recipe(NAME)
    assert started == [("forecasting", recipe)] * 3


def test_options_before_and_after_a_recipe_override_it(started: list[tuple[str, Any]]) -> None:
    rate = ("--optim.learning_rate", 0.25)
    assert run("train", *rate, "--config", NAME, "--out", "run", "--seed", 7) == 0
    [(_, recipe)] = started
    assert recipe == read_recipe(NAME, {"optim.learning_rate": 0.25, "seed": 7})


def test_a_later_recipe_overrides_an_earlier_one(
    tmp_path: Path, started: list[tuple[str, Any]]
) -> None:
    (tmp_path / "seed.yaml").write_text("seed: 5\n")
    (tmp_path / "seeds.yaml").write_text("seed: 6\n")
    recipes = [NAME, tmp_path / "seed.yaml", tmp_path / "seeds.yaml"]
    options = [word for name in recipes for word in ("--config", name)]
    assert run("train", *options, "--out", "run") == 0
    [(_, recipe)] = started
    assert recipe == read_recipe(NAME, {"seed": 6})


def test_the_task_is_that_of_the_recipe(started: list[tuple[str, Any]]) -> None:
    assert run("train", "--config", "heads/vit_digits", "--out", "run") == 0
    assert run("train", "classification", "--config", "heads/vit_digits", "--out", "run") == 0
    assert started[0] == started[1]
    assert started[0][0] == "classification"


def test_a_recipe_of_another_task_than_the_first_word_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = error_line(capsys, "train", "detection", "--config", "heads/vit_digits", "--out", "r")
    assert "heads/vit_digits: a recipe for classification, expected one for detection" in line
    two = ("--config", "heads/vit_digits", "--config", "heads/detr_shapes")
    line = error_line(capsys, "train", *two, "--out", "r")
    assert "heads/detr_shapes: a recipe for detection, expected one for classification" in line


def test_a_run_resumes_with_its_own_recipe(tmp_path: Path, started: list[tuple[str, Any]]) -> None:
    text = recipe_file("heads/vit_digits").read_text()
    (tmp_path / "config.yaml").write_text(text)
    assert run("train", "--resume", "--out", tmp_path, "--seed", 3) == 0
    [(task, recipe)] = started
    assert (task, recipe.seed) == ("classification", 3)


def test_a_missing_recipe_or_run_is_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "train", "--config", "moon", "--out", "r")
    assert "moon: no such file and no recipe of this name" in line
    line = error_line(capsys, "train", "--resume", "--out", tmp_path / "nowhere")
    assert "nowhere: no run to resume there; correct --out" in line


INIT = ("--init", "pretrained:se2former_argoverse1")


def test_sizes_that_are_not_given_come_from_the_checkpoint_init(
    tmp_path: Path, started: list[tuple[str, Any]]
) -> None:
    _, of_init = load_checkpoint(INIT[1])
    (tmp_path / "part.yaml").write_text("model: {se2former: {num_future: 30}}\nseed: 4\n")
    (tmp_path / "all.yaml").write_text(f"init: {INIT[1]}\n")
    assert run("train", *INIT, "--out", "run") == 0
    assert run("train", "--config", tmp_path / "part.yaml", *INIT, "--out", "run") == 0
    assert run("train", "--config", tmp_path / "all.yaml", "--out", "run") == 0
    for _, recipe in started:
        assert recipe.model == of_init.model
        assert recipe.data.batch == of_init.data.batch
        assert recipe.init == INIT[1]
    assert [recipe.seed for _, recipe in started] == [0, 4, 0]


def test_given_fields_override_those_of_the_checkpoint_init(
    started: list[tuple[str, Any]],
) -> None:
    assert run("train", *INIT, "--model.se2former.modes", 3, "--out", "run") == 0
    [(_, recipe)] = started
    _, of_init = load_checkpoint(INIT[1])
    assert recipe.model == replace(of_init.model, modes=3)


def test_a_recipe_for_another_model_than_the_checkpoint_init_is_one_error_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = error_line(capsys, "train", *INIT, "--config", "crowd_sdd", "--out", "r")
    assert "the checkpoint and the recipe have crowd and se2former" in line
    line = error_line(capsys, "train", "--init", "nowhere.ckpt", "--out", "r")
    assert "init: nowhere.ckpt: no such checkpoint" in line
