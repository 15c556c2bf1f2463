"""The recipes and weights that are part of trajformer, by name.

Names are `mmtransformer_argoverse1` or `agentformer/eth_ucy`, for example. This module imports no
torch, so that `trajformer recipes` starts fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajformer.errors import CheckpointError, TrajformerError
from trajformer.scenes.spec import DataSpec

if TYPE_CHECKING:
    from trajformer.models.forecaster import Forecaster

_HERE = Path(__file__).parent
LIBRARY = _HERE / "library"  # in a wheel
if not LIBRARY.is_dir():
    LIBRARY = _HERE.parents[1] / "configs"  # in a checkout
WEIGHTS = _HERE / "weights"  # crowd_eth_ucy/ has a file for each of the five sets
PRETRAINED = "pretrained:"  # and the name of a file in WEIGHTS
_LISTS = "compare"  # folder of LIBRARY with lists of recipes
_HEADER = ("Title", "Data", "Parameters", "Expected", "Time")


def recipe_names() -> list[str]:
    """Names of all recipes: their paths in configs/ without the suffix."""
    names = []
    for file in LIBRARY.rglob("*.yaml"):
        path = file.relative_to(LIBRARY)
        if path.parts[0] != _LISTS:
            names.append(path.with_suffix("").as_posix())
    return sorted(names)


def recipe_file(name: str | Path) -> Path:
    """The file `name`, or the file of the recipe with this name if there is no such file.

    Raises TrajformerError: there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    if str(name) in recipe_names():
        return LIBRARY / f"{name}.yaml"
    reason = "no such file and no recipe of this name; `trajformer recipes` lists the names"
    raise TrajformerError(f"{name}: {reason}")


def pretrained_names() -> list[str]:
    """Names of the weights that are part of trajformer, `crowd_eth_ucy/eth` for example."""
    paths = [file.relative_to(WEIGHTS) for file in WEIGHTS.rglob("*.safetensors")]
    return sorted(path.with_suffix("").as_posix() for path in paths)


def pretrained_card(name: str) -> dict[str, str]:
    """Data set, licence note, metrics and training command of weights.

    The weights of a folder share one card.
    """
    cards = _cards()
    return cards.get(name) or cards[name.partition("/")[0]]


def card_names() -> list[str]:
    """Names of the cards; of weights for the same scenes, the better ones come first."""
    return list(_cards())


def _cards() -> dict[str, dict[str, str]]:
    import yaml

    text = (WEIGHTS / "cards.yaml").read_text(encoding="utf-8")
    cards: dict[str, dict[str, str]] = yaml.safe_load(text)
    return cards


def pretrained_scenes(name: str) -> DataSpec:
    """Clock, horizon, unit and origin of the training scenes of weights."""
    from safetensors import safe_open

    with safe_open(WEIGHTS / f"{name}.safetensors", "np") as file:
        head = json.loads(file.metadata()["trajformer"])
    return DataSpec.from_plain(head["trained_on"])


def checkpoint_file(name: str | Path) -> Path:
    """The file of a checkpoint: `pretrained:NAME`, or a path.

    Raises CheckpointError: there are no weights of this name.
    """
    text = str(name)
    if not text.startswith(PRETRAINED):
        return Path(name)
    weights = text.removeprefix(PRETRAINED)
    known = pretrained_names()
    if weights not in known:
        reason = f"no weights of this name; `trajformer pretrained` lists {', '.join(known)}"
        raise CheckpointError(f"{text}: {reason}")
    return WEIGHTS / f"{weights}.safetensors"


def recipe_header(path: Path) -> dict[str, str]:
    """Title, data set, parameters, expected result and time of a recipe.

    They are the lines `# Data: Argoverse 2` at its start.
    """
    header = dict.fromkeys(_HEADER, "")
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        name, _, value = text.partition(": ")
        if name in header:
            header[name] = value
        elif not header["Data"]:
            header["Title"] = f"{header['Title']} {text}".strip()
    return header


def read_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> Any:
    """The `TrainConfig` of a YAML file, or of the recipe with this name.

    `changes` are other values by field, such as {"optim.learning_rate": 1e-3}. Raises
    TrajformerError: no such recipe, a recipe of another task, or a field has a value outside its
    range.
    """
    from trajformer.recipes.plain import from_plain
    from trajformer.recipes.recipe import TrainConfig
    from trajformer.recipes.yaml_text import read_yaml

    path = recipe_file(name)
    plain = read_yaml(path)
    if not isinstance(plain, dict):
        raise TrajformerError(f"{path}: not a recipe, expected fields such as `model`")
    task = plain.pop("task", TrainConfig.task)
    if task != TrainConfig.task:
        raise TrajformerError(f"{path}: a recipe for {task}, expected one for {TrainConfig.task}")
    for field, value in (changes or {}).items():
        _set_field(plain, field, value)
    try:
        return from_plain(TrainConfig, plain)
    except TrajformerError as error:
        raise TrajformerError(f"{path}: {error}") from error


def _set_field(plain: dict[str, Any], field: str, value: Any) -> None:
    """Set a field such as `optim.learning_rate` in the plain values of a recipe."""
    *groups, last = field.split(".")
    values = plain
    for group in groups:
        values[group] = values.get(group) or {}
        values = values[group]
    values[last] = value


def build_model(recipe: Any) -> Forecaster:
    """A model with random weights.

    `recipe` is a `TrainConfig`, the config of a model (`MMTransformerConfig(...)`), a YAML file, or
    the name of a recipe. Raises TrajformerError: no such recipe, or the sizes of the model do not
    fit together.
    """
    from trajformer.recipes.recipe import TrainConfig

    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    if not isinstance(recipe, TrainConfig):
        recipe = TrainConfig(model=recipe)
    return recipe.build_model()
