"""The recipes and weights that are part of trajformer, by name: `mmtransformer_argoverse1`, `agentformer/eth_ucy`.

This module imports no torch, so that `trajformer recipes` starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajformer.errors import CheckpointError, TrajformerError

if TYPE_CHECKING:
    from trajformer.models.forecaster import Forecaster

_HERE = Path(__file__).parent
LIBRARY = (
    _HERE / "library" if (_HERE / "library").is_dir() else _HERE.parents[1] / "configs"
)  # a wheel, or a checkout
WEIGHTS = (
    _HERE / "weights"
)  # weights/crowd_eth_ucy has a checkpoint for each of the five scenes of ETH/UCY
PRETRAINED = "pretrained:"  # and the name of a file in WEIGHTS


def recipe_names() -> list[str]:
    """Names of all recipes: their paths in configs/ without the suffix."""
    paths = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.yaml"))
    return sorted(
        path.with_suffix("").as_posix() for path in paths if path.parts[0] != "compare"
    )  # lists of recipes


def recipe_file(name: str | Path) -> Path:
    """The file `name`, or the file of the recipe with this name if there is no such file (TrajformerError: there is neither)."""
    if Path(name).is_file():
        return Path(name)
    path = LIBRARY / f"{name}.yaml"
    if str(name) in recipe_names():
        return path
    raise TrajformerError(
        f"{name}: no such file and no recipe of this name; `trajformer recipes` lists the names"
    )


def pretrained_names() -> list[str]:
    """Names of the weights that are part of trajformer, `crowd_eth_ucy/eth` for example."""
    return sorted(
        path.relative_to(WEIGHTS).with_suffix("").as_posix()
        for path in WEIGHTS.rglob("*.safetensors")
    )


def pretrained_card(name: str) -> dict[str, str]:
    """Data set, licence note, figures and training command of weights; the weights of a folder share one card."""
    import yaml

    cards: dict[str, dict[str, str]] = yaml.safe_load(
        (WEIGHTS / "cards.yaml").read_text(encoding="utf-8")
    )
    return cards.get(name) or cards[name.partition("/")[0]]


def checkpoint_file(name: str | Path) -> Path:
    """The file of a checkpoint: `pretrained:NAME`, or a path (CheckpointError: there are no weights of this name)."""
    text = str(name)
    if not text.startswith(PRETRAINED):
        return Path(name)
    known, weights = pretrained_names(), text.removeprefix(PRETRAINED)
    if weights not in known:
        raise CheckpointError(
            f"{text}: no weights of this name; `trajformer pretrained` lists {', '.join(known)}"
        )
    return WEIGHTS / f"{weights}.safetensors"


def recipe_header(path: Path) -> dict[str, str]:
    """Title, data set, parameters, expected result and time of a recipe: the lines `# Data: Argoverse 2` at its start."""
    header = dict.fromkeys(("Title", "Data", "Parameters", "Expected", "Time"), "")
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

    `changes` are other values by field, such as {"optim.learning_rate": 1e-3}. Raises TrajformerError: no such recipe, a recipe
    of another task, or a field has a value outside its range.
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
        *groups, last = field.split(".")
        values = plain
        for group in groups:
            values[group] = values.get(group) or {}
            values = values[group]
        values[last] = value
    try:
        return from_plain(TrainConfig, plain)
    except TrajformerError as error:
        raise TrajformerError(f"{path}: {error}") from error


def build_model(recipe: Any) -> Forecaster:
    """A model with random weights (TrajformerError: no such recipe, or the sizes of the model do not fit together).

    `recipe` is a `TrainConfig`, the config of a model (`MMTransformerConfig(...)`), a YAML file, or the name of a recipe.
    """
    from trajformer.recipes.recipe import TrainConfig

    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    config = recipe if isinstance(recipe, TrainConfig) else TrainConfig(model=recipe)
    return config.build_model()
