"""Recipes: YAML round trip, all files of configs/, fields with types and ranges."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
import yaml
from support.cli import run
from support.training import recipe, training_store

from trajformer import config
from trajformer.cli.tasks import TASKS
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.recipes.names import read_recipe, recipe_header
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.training import run as run_file
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

CONFIGS = sorted(
    p for p in (Path(__file__).parents[2] / "configs").rglob("*.yaml") if p.parent.name != "compare"
)  # tables
# recipes that name a folder on the command line
ROOTS = {"translation_multi30k": ("--data.root", "text"), "detr_bccd": ("--data.voc.root", "cells")}
Fails = Callable[..., str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 3, 2)


def parsed(monkeypatch: pytest.MonkeyPatch, *words: object) -> TrainConfig:
    """The recipe that the command line passes to `train`."""
    recipes: list[TrainConfig] = []
    monkeypatch.setattr(run_file, "train", lambda config, task, out, resume: recipes.append(config))
    assert run("train", "--out", "run", *words) == 0
    return recipes[0]


def test_the_written_recipe_is_read_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe(
        store,
        data={"batch": BatchConfig(frame=Frame.FOCAL, polyline_points=4)},
        trainer={"epochs": 1},
    )
    train(config, TASK, tmp_path, progress=False)
    plain = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert plain.pop("task") == "forecasting" and from_plain(TrainConfig, plain) == replace(
        config, loss=SetLossConfig()
    )
    again = parsed(monkeypatch, "--config", tmp_path / "config.yaml")
    assert again == replace(config, loss=SetLossConfig())
    assert parsed(monkeypatch, "--config", tmp_path / "config.yaml", "--seed", 7) == replace(
        again, seed=7
    )


def test_a_part_of_a_block_keeps_the_other_values_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe("se2former_argoverse1")
    change = {"model.se2former.block.dropout": 0.3}
    block = replace(recipe.model.block, dropout=0.3)
    assert read_recipe("se2former_argoverse1", change).model.block == block and block.width == 64
    assert (
        parsed(
            monkeypatch, "--config", "se2former_argoverse1", "--model.se2former.block.dropout", 0.3
        ).model.block
        == block
    )
    (tmp_path / "part.yaml").write_text(
        "model: {se2former: {num_future: 30, block: {dropout: 0.3}}}"
    )
    assert read_recipe(tmp_path / "part.yaml").model.block == block


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_parses_and_builds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(monkeypatch, "--config", path, *ROOTS.get(path.stem, ()))
    config.check()
    assert from_plain(type(config), to_plain(config)) == config
    if isinstance(config, TrainConfig):
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in config.build_model().parameters())
        assert f"{count / 1e6:.2f} M" == recipe_header(path)["Parameters"]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("optim.speed", 1, "optim: unknown field 'speed'"),
        ("optim.learning_rate", "fast", "optim.learning_rate: expected .*float.*, found 'fast'"),
        ("optim.betas", [0.9, "b"], r"optim.betas\[1\]: expected"),
        ("data.batch.frame", "MOON", "data.batch.frame: expected"),
        ("model.mmtransformer", {}, "model.mmtransformer: no field 'num_future'"),
        ("data", 3, "data: expected fields of DataConfig"),
    ],
)
def test_a_wrong_field_is_named(store: Path, field: str, value: object, expected: str) -> None:
    plain = to_plain(recipe(store))
    *groups, name = field.split(".")
    values = plain
    for group in groups:
        values = values[group]
    values[name] = value
    with pytest.raises(TrajformerError, match=expected):
        from_plain(TrainConfig, plain)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speed: 3", "Option 'speed' is not accepted (recipe r.yaml;"),
        ("optim: {speed: 3}", "Group 'optim' does not accept option 'speed' (recipe r.yaml;"),
        (
            "model: {mmtransformer: {num_future: 9, speed: 3}}",
            "Option 'speed' is not accepted (recipe r.yaml;",
        ),
        (
            "model: {mmtransformer: {modes: 6}}",
            "model.mmtransformer: the following arguments are required: num_future",
        ),
        (
            "model: {mmtransformer: {num_future: many}}",
            "num_future: Expected a int. Got value: many",
        ),
        (
            "data: {learn_from: nobody}",
            "learn_from: nobody, expected one of 'scored', 'focal', 'moving', 'all' (recipe r.yaml",
        ),
        ("seed: 0100", "line 1: 0100 is not a decimal number"),
        ("optim: {clip: 1:30}", "line 1: 1:30 is not a decimal number"),
        ("optim: {clip: 1:30.5}", "line 1: 1:30.5 is not a decimal number"),
        ("just a sentence", "Unexpected config: just a sentence (recipe r.yaml;"),
        ("", "Unexpected config: (recipe r.yaml;"),
    ],
)
def test_an_unreadable_recipe_is_one_error_line(fails: Fails, text: str, expected: str) -> None:
    Path("r.yaml").write_bytes(text.encode(errors="surrogateescape"))
    line = fails("train", "--config", "r.yaml", "--out", "r")
    assert expected in line and len(line) < 300, line


INVALID = {  # tests/uses/values.py has values outside their ranges
    "model.mmtransformer.block.heads": (3, "model: heads 3 does not divide width 16"),
    "model.mmtransformer.social_layers": (
        "[1,0]",
        "social_layers: (1, 0), expected at least one decoder layer",
    ),
    "model.mmtransformer.num_future": (13, "model.mmtransformer.num_future: 13, but "),
    "model.mmtransformer.max_history": (4, "model.mmtransformer.max_history: 4, but "),
    "model.constant_velocity": (
        "{}",
        "model: give exactly one of constant_velocity, mmtransformer",
    ),
    "data.batch.frame": (Frame.AGENT.name, "data.batch.frame: AGENT"),
    "trainer.steps": (5, "trainer.epochs: 3, but steps is 5; set one of them to null"),
}


@pytest.mark.parametrize("field", INVALID)
def test_an_invalid_value_is_refused(store: Path, fails: Fails, field: str) -> None:
    value, expected = INVALID[field]
    Path("recipe.yaml").write_text(yaml.safe_dump(to_plain(recipe(store))))
    assert expected in fails("train", "--config", "recipe.yaml", f"--{field}", value, "--out", "r")


WRONG: dict[
    type, list[object]
] = {  # by type of a valid value; all are wrong in every field of this type
    bool: [0, "yes", None, 1.0, []],
    int: [-1, 1.5, True, "cpu", 10**20, float("nan"), [], {}],
    float: [-1e-9, 1e30, float("nan"), float("inf"), -float("inf"), True, "1 m", [], {}],
    str: [1, 2.5, True, [], {}, "a\0b", "x" * 9_999],
    type(None): [-1, float("nan"), float("inf"), "a\0b", [[]], {"nothing": 1}, 1e30, 10**20],
    list: ["a", 3, {}, [[]], [-1], [None], [10**20] * 2, [10**20] * 3],
}


def config_classes(kind: Any) -> Iterator[Any]:
    """A config class and all classes that its fields can hold."""
    yield kind
    for item in fields(kind):
        hint = get_type_hints(kind)[item.name]
        for inner in (hint, *get_args(hint), *item.metadata.get("choices", {}).values()):
            if is_dataclass(inner):
                yield from config_classes(inner)


CLASSES = {kind for task in TASKS.values() for kind in config_classes(task.recipe)}


@pytest.mark.parametrize(
    "kind",
    sorted(CLASSES - {TrainConfig}, key=lambda kind: kind.__name__),
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_every_config_has_a_type_and_a_range(kind: Any) -> None:
    plain = to_plain(
        kind(**{item.name: 12 for item in fields(kind) if item.default is item.default_factory})
    )
    for name, value in plain.items():
        for wrong in WRONG.get(type(value), []):  # classes of inner configs have their own cases
            with pytest.raises(TrajformerError) as error:
                pytest.fail(f"{name} accepts {wrong!r}: {from_plain(kind, plain | {name: wrong})}")
            assert (
                name in str(error.value)
                and "\n" not in str(error.value)
                and len(str(error.value)) < 500
            )


def test_a_plug_in_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = EntryPoint("mine", "no_such_package.model:Config", "trajformer.models")
    monkeypatch.setattr(config, "entry_points", lambda group: [missing])
    with pytest.raises(
        TrajformerError,
        match=r"entry point mine of trajformer\.models: no_such_package.* cannot be imported: Mod",
    ):
        config.load_plugins("trajformer.models")
