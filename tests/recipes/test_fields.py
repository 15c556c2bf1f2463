"""Every field of every config refuses values outside its range or of another type, and names itself."""

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest

from trajformer.cli.tasks import TASKS
from trajformer.errors import ConfigError, TrajformerError
from trajformer.recipes.choices import MODELS
from trajformer.recipes.names import recipe_file, recipe_names
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig, TrainerConfig
from trajformer.recipes.yaml_text import read_yaml

WRONG: dict[type, list[object]] = {  # by type of a valid value; all are wrong in every field of this type
    bool: [0, "yes", None, 1.0, []],
    int: [-1, 1.5, True, "cpu", 10**20, float("nan"), [], {}],
    float: [-1e-9, 1e30, float("nan"), float("inf"), -float("inf"), True, "1 m", [], {}],
    str: [1, 2.5, True, [], {}, "a\0b", "x" * 9_999],
    type(None): [-1, float("nan"), float("inf"), "a\0b", [[]], {"nothing": 1}, 1e30, 10**20],
    list: ["a", 3, {}, [[]], [-1], [None], [10**20] * 2, [10**20] * 3],
}


def leaves(config: Any, plain: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and the plain value of each field that is not a config."""
    for item in fields(config):
        value, name = getattr(config, item.name), f"{path}{item.name}"
        if not is_dataclass(value):
            yield name, plain[item.name]
            continue
        inner = plain[item.name]
        if "choices" in item.metadata:
            [(choice, inner)] = inner.items()
            name += f".{choice}"
        yield from leaves(value, inner, f"{name}.")


def changed(plain: Any, path: list[str], value: Any) -> Any:
    """A copy with another value at a path."""
    return {**plain, path[0]: value if len(path) == 1 else changed(plain[path[0]], path[1:], value)}


def check_refused(kind: Any, plain: Any, path: str, wrong: Any) -> None:
    """The wrong value at a path is an error of one line with the path."""
    try:
        from_plain(kind, changed(plain, path.split("."), wrong))
    except TrajformerError as error:
        assert path in str(error) and "\n" not in str(error) and len(str(error)) < 500, error
    else:
        raise AssertionError(f"{kind.__name__}: {path} accepts {wrong!r}")


@pytest.mark.parametrize("name", recipe_names())
def test_wrong_values_of_all_fields_of_a_recipe_are_refused(name: str) -> None:
    rng, recipe = random.Random(name), read_yaml(recipe_file(name))
    kind = TASKS[recipe.pop("task", "forecasting")].recipe
    config = from_plain(kind, recipe)
    plain = to_plain(config)
    for path, value in leaves(config, plain):
        check_refused(kind, plain, path, rng.choice(WRONG[type(value)]))


def config_classes(kind: Any) -> Iterator[Any]:
    """A config class and all classes that its fields can hold."""
    yield kind
    for item in fields(kind):
        hint = get_type_hints(kind)[item.name]
        for inner in (hint, *get_args(hint), *item.metadata.get("choices", {}).values()):
            if is_dataclass(inner):
                yield from config_classes(inner)


CLASSES = {kind for task in TASKS.values() for kind in config_classes(task.recipe)}


@pytest.mark.parametrize("kind", sorted(CLASSES - {TrainConfig}, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_every_field_of_every_config_has_a_type_and_a_range(kind: Any) -> None:
    config = kind(**{item.name: 12 for item in fields(kind) if item.default is item.default_factory})
    for path, value in leaves(config, to_plain(config)):
        for wrong in WRONG[type(value)]:
            check_refused(kind, to_plain(config), path, wrong)


def test_the_same_values_are_refused_in_python() -> None:
    with pytest.raises(ConfigError, match=r"minutes: expected float | None, found 'cpu'"):
        TrainerConfig(minutes="cpu")
    with pytest.raises(ConfigError, match=r"epochs: 10000000, expected 1 to 1000000"):
        replace(TrainerConfig(), epochs=10**7)
    with pytest.raises(ConfigError, match=r"seed: 9223372036854775808, expected"):
        TrainConfig(MODELS["constant_velocity"](), seed=2**63)
