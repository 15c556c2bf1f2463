"""The rule for resuming: which parts of a recipe may change between two starts of a run."""

import json
import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trajformer.errors import CheckpointError
from trajformer.recipes.checkpoint import check_weights, recipe_of, training_scenes
from trajformer.recipes.checkpoint_files import read_checkpoint
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import Recipe, TrainConfig
from trajformer.scenes.spec import DataSpec, check_scenes

# Files and machines change, and a run may be extended, so these fields may change,
_MAY_CHANGE = ("trainer", "first_stage", "init")
# and all fields of `data` but these.
_FIXED_DATA = ("train_split", "val_split", "limit_train", "branches", "learn_from", "batch")


def damaged_state(path: Path | str, reason: object) -> CheckpointError:
    """The error about a checkpoint from which no run can resume."""
    problem = "its state of the training is damaged, or of another version of PyTorch or Lightning"
    return CheckpointError(f"{path}: {problem} (see {reason}); train from its weights with --init")


def check_resume(path: Path, config: Any, model: nn.Module, scenes: DataSpec, root: str) -> int:
    """The number of completed steps in a checkpoint from which a run with this recipe may resume.

    `model` is the model of the recipe, `scenes` describes the training scenes in `root`. The
    recipe may differ in `trainer`, `first_stage`, `init` and most of `data`.

    Raises:
        CheckpointError: it is damaged or foreign, its recipe differs in another field, or it has
            more epochs or steps than the recipe.
        TrajformerError: the scenes differ from its training scenes (see `check_scenes`).
    """
    content = read_checkpoint(path)
    before = recipe_of(path, content, type(config))
    if isinstance(before, TrainConfig):
        check_scenes(scenes, training_scenes(path, content), root)
    if not {"loops", "global_step"} <= content.keys():
        advice = "train from its weights with --init"
        raise CheckpointError(f"{path}: has no state of a training; {advice}")
    steps = _check_length(path, content, config)

    changes = list_changes(_fixed_fields(before), _fixed_fields(config))
    if config.optim.restarts and before.trainer.steps != config.trainer.steps:
        # The ends of the parts depend on it.
        changes.append(f"trainer.steps {before.trainer.steps}, not {config.trainer.steps}")
    if changes:
        advice = "resume with the config.yaml in its folder"
        raise CheckpointError(f"{path}: was trained with {'; '.join(changes)}; {advice}")
    check_weights(path, content, model)
    return steps


def _check_length(path: Path, content: dict[str, Any], config: Recipe) -> int:
    """The number of completed steps.

    Raises CheckpointError: it is damaged, or further than the end of the recipe's training.
    """
    steps = content["global_step"]
    try:
        loop = content["loops"]["fit_loop"]
        epochs = loop["epoch_progress"]["current"]["processed"]
        progress = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        counted_steps = progress["step"]["total"]["completed"]
    except (LookupError, TypeError) as error:
        raise damaged_state(path, f"loops: no {error}") from error
    if {type(epochs), type(steps)} != {int} or counted_steps != steps:
        raise damaged_state(path, f"global_step {steps!r}, epochs {epochs!r}")
    num_epochs = config.trainer.num_epochs
    if num_epochs is not None:
        if epochs > num_epochs:
            limit = f"trainer.epochs {num_epochs}"
            raise CheckpointError(f"{path}: has {epochs} epochs, more than {limit}")
        return steps
    num_steps = config.num_steps
    if num_steps is not None and steps > num_steps:
        limit = f"trainer.steps {config.trainer.steps}"
        raise CheckpointError(f"{path}: has {steps} steps, more than {limit}")
    return steps


def first_difference(expected: Any, actual: Any, name: str = "state") -> str:
    """The name of the first entry of a state with another type, shape or length; "" for none.

    Numbers may differ, but must be finite and not negative. An expected None means any value.
    Entries with numbers as keys belong to parameters; one without a gradient has no entry.
    """
    if expected is None:
        return ""
    entries: list[tuple[Any, Any, Any]] = []
    fits = type(actual) is type(expected)
    if fits and isinstance(expected, Tensor):
        fits = (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    elif fits and isinstance(expected, dict):
        keys = [key for key in expected if isinstance(key, str) or key in actual]
        entries = [(key, expected[key], actual.get(key)) for key in keys]
    elif fits and isinstance(expected, list | tuple):
        fits = len(actual) == len(expected)
        entries = list(zip(range(len(expected)), expected, actual, strict=False))
    elif fits and isinstance(expected, int | float):
        fits = 0 <= actual < math.inf
    if not fits:
        return name
    names = (first_difference(old, new, f"{name}.{key}") for key, old, new in entries)
    return next(filter(None, names), "")


def _fixed_fields(recipe: Any) -> dict[str, Any]:
    """The part of a recipe that may not change when a run resumes."""
    plain = to_plain(recipe)
    data = plain.get("data", {})
    fixed = {name: value for name, value in plain.items() if name not in _MAY_CHANGE}
    fixed["data"] = {name: value for name, value in data.items() if name in _FIXED_DATA}
    if isinstance(data.get("train"), list):  # several sources, which may have moved
        fixed["data"]["train"] = [source | {"store": ""} for source in data["train"]]
    return fixed


def list_changes(old: Any, new: Any, name: str = "") -> list[str]:
    """One line for every value that differs between two configs as plain values."""
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [f"{name} {_value_text(old)}, not {_value_text(new)}"]
    lines = []
    for field in dict.fromkeys([*old, *new]):
        path = f"{name}.{field}" if name else field
        lines += list_changes(old.get(field), new.get(field), path)
    return lines


def _value_text(value: Any) -> str:
    return "given" if isinstance(value, dict) else json.dumps(value)
