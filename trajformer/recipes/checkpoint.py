"""Models from checkpoints, and checkpoints from models."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

import trajformer
from trajformer.data.sample import BatchConfig
from trajformer.errors import UNREADABLE, CheckpointError, TrajformerError, one_line
from trajformer.models.constant_velocity import (
    ConstantVelocityConfig,
    SampledConstantVelocityConfig,
)
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.recipes.checkpoint_files import (
    CONFIG_KEY,
    SCHEMA_VERSION,
    WEIGHT_PREFIX,
    read_checkpoint,
    write_weights,
)
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.spec import DataSpec

R = TypeVar("R")
UNTRAINED: dict[str, Any] = {
    "constant_velocity": ConstantVelocityConfig(modes=6),
    "constant_velocity_sampled": SampledConstantVelocityConfig(),
}
_MISFIT = (TrajformerError, *UNREADABLE)


def describe(config: Any, trained_on: DataSpec = DataSpec()) -> dict[str, Any]:
    """Version, task, recipe and training scenes of a checkpoint as plain values."""
    return {
        "version": trajformer.__version__,
        "schema": SCHEMA_VERSION,
        "task": config.task,
        "config": to_plain(config),
        "trained_on": trained_on.to_plain(),
    }


def write_checkpoint(
    out: Path, recipe: Any, weights: dict[str, Tensor], trained_on: DataSpec = DataSpec()
) -> None:
    """Write a checkpoint without the state of a run, atomically.

    The suffix .safetensors selects that format.
    """
    write_weights(out, describe(recipe, trained_on), weights)


def load_checkpoint(
    path: Path | str,
    recipe: type[R] = TrainConfig,  # type: ignore[assignment]
) -> tuple[nn.Module, R]:
    """The model of a checkpoint, in evaluation mode on the CPU, and its recipe of class `recipe`.

    `path` is a file, or `pretrained:NAME` for weights that are part of trajformer. Raises
    CheckpointError: no such file, not a checkpoint of this project or of another task, or its
    weights do not fit its recipe.
    """
    content = read_checkpoint(Path(path))
    config = recipe_of(path, content, recipe)
    try:
        with torch.device("meta"):  # a recipe may be much larger than its weights
            check_weights(Path(path), content, config.build_model())  # type: ignore[attr-defined]
        model: nn.Module = config.build_model()  # type: ignore[attr-defined]
        model.load_state_dict(_weights_of(content))
        if isinstance(model, Forecaster):
            assert isinstance(config, TrainConfig)
            model.batch_config = config.data.batch
            model.trained_on = training_scenes(path, content)
    except CheckpointError:
        raise
    except _MISFIT as error:
        raise _misfit(path, error) from error
    return model.eval(), config


def recipe_of(path: Path | str, content: dict[str, Any], recipe: type[R]) -> R:
    """The recipe in the content of a checkpoint.

    Raises CheckpointError: it is for a different task, or this software has other fields.
    """
    expected: Any = recipe
    try:
        head = content[CONFIG_KEY]
        task = head.get("task", TrainConfig.task)
        if task != expected.task:
            reason = f"holds a model for {task}, expected one for {expected.task}"
            raise CheckpointError(f"{path}: {reason}")
        config: R = from_plain(recipe, head["config"])
    except CheckpointError:
        raise
    except _MISFIT as error:
        raise _misfit(path, error) from error
    return config


def training_scenes(path: Path | str, content: dict[str, Any]) -> DataSpec:
    """Properties of the training scenes in the content of a checkpoint.

    They are unknown for converted weights of other programs. Raises CheckpointError: the entry is
    missing or damaged.
    """
    try:
        return DataSpec.from_plain(content[CONFIG_KEY]["trained_on"])
    except _MISFIT as error:
        raise _misfit(path, error) from error


def _weights_of(content: dict[str, Any]) -> dict[str, Tensor]:
    """The state dict of the model in the content of a checkpoint."""
    weights = {}
    for name, tensor in content["state_dict"].items():
        if name.startswith(WEIGHT_PREFIX):
            weights[name.removeprefix(WEIGHT_PREFIX)] = tensor
    return weights


def check_weights(path: Path, content: dict[str, Any], model: nn.Module) -> None:
    """Raise CheckpointError if the weights of a checkpoint do not fit a model."""
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    weights = _weights_of(content)
    for name in sorted(expected.keys() | weights.keys()):
        if name.endswith("_extra_state"):
            continue  # no weights; the model checks it when it is loaded
        present = weights.get(name)
        if present is None or present.shape != expected.get(name) or _is_expanded(present):
            raise _misfit(path, f"weights '{name}'")


def _is_expanded(tensor: Tensor) -> bool:
    """Whether a tensor has fewer stored elements than elements, and grows when it is copied."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _misfit(path: Path | str, reason: object) -> CheckpointError:
    text = one_line(reason, 300)
    return CheckpointError(f"{path}: recipe and weights do not fit this software: {text}")


def recipe_name(path: Path) -> str:
    """The task of a checkpoint's model (CheckpointError: it is damaged or foreign)."""
    return str(read_checkpoint(path)[CONFIG_KEY].get("task", TrainConfig.task))


def pick_device(accelerator: Literal["auto", "cpu", "gpu"]) -> torch.device:
    """The device of an `--accelerator`; "auto" is a GPU if there is one.

    Raises TrajformerError: a GPU is requested and missing.
    """
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("no CUDA device here; use --accelerator cpu")
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


def load_predictor(
    source: Path | str,
    device: torch.device = torch.device("cpu"),
    targets: Literal["scored", "focal", "all"] = "scored",
    joint: bool = False,
) -> Predictor:
    """The model of a checkpoint, or a model without training by its name, ready for `device`.

    `source` is a checkpoint; or "constant_velocity", with five varied modes besides the plain one;
    or "constant_velocity_sampled", 20 directions drawn for each agent. `targets` are the agents
    that it predicts. With `joint`, it predicts joint futures of the whole scene, if it can do so
    from the same weights. Raises the errors of `load_checkpoint`.
    """
    if source in UNTRAINED:
        model: nn.Module = UNTRAINED[str(source)].build()
        batch = BatchConfig()
    else:
        model, recipe = load_checkpoint(source, TrainConfig)
        batch = recipe.data.batch
    return Predictor(model.to(device).eval(), replace(batch, targets=targets), device, joint)
