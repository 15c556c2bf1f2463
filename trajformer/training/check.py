"""Is a recipe possible at all? Numbers that no training can use are refused by name, before anything is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from trajformer.errors import TrajformerError
from trajformer.training.base import Recipe

# fmt: off
# Fields, by the last part of their name, that must be more than 0; no other may be negative. (0 queries: see SceneSetConfig.)
_POSITIVE = {
    "batch_size", "limit_train", "epochs", "devices", "threads", "validate_every", "log_every", "max_agents", "num_future",
    "proposals", "modes", "max_history", "steps_per_token", "width", "heads", "feedforward", "d_k", "d_v", "max_polylines",
    "map_width", "max_neighbours", "steps", "learning_rate", "temperature_m", "huber_m", "norm_eps", "polyline_length_m",
    "polyline_points", "bucket", "source_tokens", "target_tokens", "max_tokens", "decoder_layers", "ratio", "counts", "reduction",
    "least_m", "count", "directions",
}
# fmt: on
_SHARES = ("dropout", "attention_dropout", "warmup", "drop", "average", "flip", "agent_dropout", "history_mask", "ratio")


def check_recipe(config: Recipe) -> None:
    """Refuse a recipe with sizes, shares or a device that cannot be.

    Raises:
        TrajformerError: names the field, its value and what it may be.
    """
    for path, value in _numbers(config, ""):
        name = path.rpartition(".")[2].partition("[")[0]
        if not math.isfinite(value) or value < 0 or (name in _POSITIVE and value == 0):
            raise TrajformerError(f"{path}: {value}, expected {'more than 0' if name in _POSITIVE else 'at least 0'}")
        if (name in _SHARES and value > 1) or (name == "betas" and value >= 1):
            raise TrajformerError(f"{path}: {value}, expected {'less than' if name == 'betas' else 'at most'} 1")
        if name.endswith("_layers") and path.endswith("[1]") and not value:
            raise TrajformerError(f"{path}: 0 decoder layers, expected more than 0")
    config.check()
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("trainer.accelerator: gpu, but there is no CUDA device here")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a config with the path of its field."""
    if is_dataclass(value):
        for item in fields(value):
            yield from _numbers(getattr(value, item.name), f"{path}.{item.name}" if path else item.name)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
