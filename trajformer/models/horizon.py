"""What models of a fixed horizon share: the lengths they were built for, and where targets would be at constant velocity."""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.batch import SceneBatch
from trajformer.errors import TrajformerError
from trajformer.geometry import rotate
from trajformer.models.tokens import last_velocity


def check_lengths(batch: SceneBatch, num_future: int, max_history: int | None = None) -> None:
    """Refuse scenes that a model was not built for.

    Raises:
        TrajformerError: the batch wants another horizon than `num_future`, or has a longer history than `max_history`.
    """
    if batch.num_future != num_future:
        raise TrajformerError(f"scenes want {batch.num_future} future steps, the model predicts {num_future}")
    if max_history is not None and batch.num_history > max_history:
        raise TrajformerError(f"scenes have {batch.num_history} observed steps, the model max_history {max_history}")


def coast(batch: SceneBatch) -> Tensor:
    """Positions [B, S, 1, F, 2] in each target's own frame, were it to keep its last velocity."""
    targets = slice(0, batch.num_targets)
    velocity = rotate(last_velocity(batch)[:, targets], -batch.pose[:, targets, 2])
    time = torch.arange(1, batch.num_future + 1, device=velocity.device) * batch.period_s
    return velocity[:, :, None, None] * time[:, None]
