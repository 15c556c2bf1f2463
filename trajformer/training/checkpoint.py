"""Checkpoints: plain tensors and plain values only, loaded without executing anything from the file."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import trajformer
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.training.config import TrainConfig, from_plain, to_plain

R = TypeVar("R")
CONFIG_KEY = "trajformer"
_PREFIX = "model."
_MISFIT = (TrajformerError, RuntimeError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
_UNREADABLE = (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, OSError, AssertionError, *_MISFIT)


def describe(config: Any) -> dict[str, Any]:
    """What a checkpoint says of itself, as plain values."""
    return {"version": trajformer.__version__, "task": config.task, "config": to_plain(config)}


def load_checkpoint(path: Path | str, recipe: type[R]) -> tuple[nn.Module, R]:
    """The model of a checkpoint, in evaluation mode on the CPU, and the recipe it was trained with.

    Args:
        path: the file.
        recipe: the kind of recipe that is wanted.

    Raises:
        CheckpointError: no such file, not a checkpoint of this project or of another task, or its weights do not fit
            its recipe.
    """
    return _build(path, _read(Path(path)), recipe)


def _build(path: Path | str, raw: dict[str, Any], recipe: type[R]) -> tuple[nn.Module, R]:
    if CONFIG_KEY not in raw or "state_dict" not in raw:
        raise CheckpointError(f"{path}: not a trajformer checkpoint (no '{CONFIG_KEY}' entry)")
    wanted: Any = recipe
    try:
        task = raw[CONFIG_KEY].get("task", TrainConfig.task)
        if task != wanted.task:
            raise CheckpointError(f"{path}: is of a model for {task}, wanted is one for {wanted.task}")
        config = from_plain(recipe, raw[CONFIG_KEY]["config"])
        model = config.build_model()
        weights = {name[len(_PREFIX) :]: v for name, v in raw["state_dict"].items() if name.startswith(_PREFIX)}
        model.load_state_dict(weights)
    except CheckpointError:
        raise
    except _MISFIT as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{path}: recipe and weights do not fit this software: {reason}") from error
    return model.eval(), config


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles that are refused anyway
            raw = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise CheckpointError(f"{path}: not a readable checkpoint (damaged, or not plain tensors)") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a trajformer checkpoint")
    return raw


def check_resume(path: Path, config: Any) -> int:
    """How many steps a checkpoint has behind it, if a run with this recipe may go on from it.

    Raises:
        CheckpointError: it is damaged or foreign, or was trained with another model.
    """
    raw = _read(path)
    _, before = _build(path, raw, type(config))
    if before.model != config.model:
        raise CheckpointError(f"{path}: was trained with another model config; resume with the config.yaml beside it")
    return int(raw["global_step"])
