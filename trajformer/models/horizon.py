"""Checks of the horizon and the history, and forecasts as offsets from constant velocity."""

import torch
from torch import Tensor

from trajformer.core.blocks import masked_mean
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.models.tokens import last_velocity
from trajformer.scenes.geometry import rotate


def check_lengths(
    observation: Observation, num_future: int, max_history: int | None = None
) -> None:
    """Check the horizon, and that the history is not longer than `max_history` (TrajformerError: other lengths)."""
    if observation.num_future != num_future:
        raise TrajformerError(
            f"scenes have {observation.num_future} future steps, the model predicts {num_future}"
        )
    if max_history is not None and observation.num_history > max_history:
        raise TrajformerError(
            f"scenes have {observation.num_history} observed steps, the model has max_history {max_history}"
        )


def world_features(observation: Observation, x: Tensor) -> Tensor:
    """Features [B, K, ...] of worlds: means of modes [B, S, K, ...] over the targets of a scene."""
    return masked_mean(x, observation.target_mask[..., None, None], 1)


def constant_velocity_path(observation: Observation) -> Tensor:
    """Positions [B, S, 1, F, 2] for a constant velocity, the last observed one, in the frame of each target."""
    targets = slice(0, observation.num_targets)
    velocity = rotate(last_velocity(observation)[:, targets], -observation.pose[:, targets, 2])
    time = (
        torch.arange(1, observation.num_future + 1, device=velocity.device) * observation.period_s
    )
    return velocity[:, :, None, None] * time[:, None]


def forecast_from_offsets(observation: Observation, offset: Tensor, score: Tensor) -> Forecast:
    """A forecast in the frame of each target: cumulated offsets are added to the positions at constant velocity.

    `offset` [B, S, K, F * 2] is from step to step, in metres; `score` is [B, S, K, 1] of modes, or [B, K, 1] of worlds.
    """
    offset = offset.unflatten(-1, (observation.num_future, 2)).float()
    pose = observation.pose[:, : observation.num_targets]
    return Forecast(
        constant_velocity_path(observation) + offset.cumsum(-2),
        score.squeeze(-1).float(),
        Frame.AGENT,
        pose,
    )
