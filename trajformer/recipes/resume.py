"""The rule for resuming: which parts of a recipe may change between two starts of a run."""

import json
from pathlib import Path
from typing import Any

from torch import nn

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
    _check_length(path, content, config)

    changes = list_changes(_fixed_fields(before), _fixed_fields(config))
    if config.optim.restarts and before.trainer.steps != config.trainer.steps:
        # The ends of the parts depend on it.
        changes.append(f"trainer.steps {before.trainer.steps}, not {config.trainer.steps}")
    if changes:
        advice = "resume with the config.yaml in its folder"
        raise CheckpointError(f"{path}: was trained with {'; '.join(changes)}; {advice}")
    check_weights(path, content, model)
    return int(content["global_step"])


def _check_length(path: Path, content: dict[str, Any], config: Recipe) -> None:
    """Raise CheckpointError if a checkpoint is further than the end of the recipe's training."""
    num_epochs = config.trainer.num_epochs
    if num_epochs is not None:
        epochs = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        if epochs > num_epochs:
            limit = f"trainer.epochs {num_epochs}"
            raise CheckpointError(f"{path}: has {epochs} epochs, more than {limit}")
        return
    steps = content["global_step"]
    num_steps = config.num_steps
    if num_steps is not None and steps > num_steps:
        limit = f"trainer.steps {config.trainer.steps}"
        raise CheckpointError(f"{path}: has {steps} steps, more than {limit}")


def _fixed_fields(recipe: Any) -> dict[str, Any]:
    """The part of a recipe that may not change when a run resumes."""
    plain = to_plain(recipe)
    data = plain.get("data", {})
    fixed = {name: value for name, value in plain.items() if name not in _MAY_CHANGE}
    fixed["data"] = {name: value for name, value in data.items() if name in _FIXED_DATA}
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
