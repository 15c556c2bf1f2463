"""The model of a checkpoint of any task."""

from importlib import import_module
from pathlib import Path

from torch import nn

from trajformer.errors import CheckpointError
from trajformer.recipes.checkpoint import load_checkpoint, recipe_name
from trajformer.recipes.recipe import TrainConfig

# Their modules import Lightning, which forecasters do not need.
_TASKS = {"translation": "translation", "classification": "vit", "detection": "detr"}


def load_model(path: Path | str) -> nn.Module:
    """The model of a checkpoint of any task, in evaluation mode on the CPU.

    `path` is a file, or `pretrained:NAME` for weights that are part of trajformer. Raises
    CheckpointError: it cannot be used.
    """
    task = recipe_name(Path(path))
    if task == TrainConfig.task:
        model, _ = load_checkpoint(path)
        return model
    if task not in _TASKS:
        raise CheckpointError(
            f"{path}: holds a model for {task}, which this software does not have"
        )
    module = import_module(f"trajformer.heads.{_TASKS[task]}.task")
    model, _ = load_checkpoint(path, module.TASK.recipe)
    return model
