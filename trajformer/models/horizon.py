"""What models of a fixed horizon share: sizes and lengths that they are built for, and offsets from constant velocity."""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.models.tokens import last_velocity
from trajformer.scenes.geometry import rotate


def at_least_one(kind: str, config: object, *names: str) -> None:
    """Refuse sizes with which a model could be built, but not used.

    Args:
        kind: the model's field of `ModelConfig`.
        config: its config.
        names: fields of it that are whole numbers.

    Raises:
        TrajformerError: one of them is below 1.
    """
    for name in names:
        if getattr(config, name) < 1:
            raise TrajformerError(f"{kind}.{name}: {getattr(config, name)}, expected at least 1")


def check_lengths(batch: SceneBatch, num_future: int, max_history: int | None = None) -> None:
    """Refuse scenes that a model was not built for.

    Raises:
        TrajformerError: the batch wants another horizon than `num_future`, or has a longer history than `max_history`.
    """
    if batch.num_future != num_future:
        raise TrajformerError(f"scenes want {batch.num_future} future steps, the model predicts {num_future}")
    if max_history is not None and batch.num_history > max_history:
        raise TrajformerError(f"scenes have {batch.num_history} observed steps, the model max_history {max_history}")


def of_worlds(batch: SceneBatch, x: Tensor) -> Tensor:
    """Features [B, K, ...] of worlds: means of their targets' modes [B, S, K, ...]."""
    real = batch.target_mask[..., None, None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def coast(batch: SceneBatch) -> Tensor:
    """Positions [B, S, 1, F, 2] in each target's own frame, were it to keep its last velocity."""
    targets = slice(0, batch.num_targets)
    velocity = rotate(last_velocity(batch)[:, targets], -batch.pose[:, targets, 2])
    time = torch.arange(1, batch.num_future + 1, device=velocity.device) * batch.period_s
    return velocity[:, :, None, None] * time[:, None]


def from_offsets(batch: SceneBatch, offset: Tensor, score: Tensor) -> Forecast:
    """A forecast in each target's own frame: offsets are summed up and added to where it would be at constant velocity.

    Args:
        offset: [B, S, K, F * 2], from step to step, metres.
        score: [B, S, K, 1] of modes, or [B, K, 1] of worlds.
    """
    offset = offset.unflatten(-1, (batch.num_future, 2)).float()
    pose = batch.pose[:, : batch.num_targets]
    return Forecast(coast(batch) + offset.cumsum(-2), score.squeeze(-1).float(), Frame.AGENT, pose)
