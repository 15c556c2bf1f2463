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
    """Check the numbers of future and observed steps.

    Raises TrajformerError: the horizon is not `num_future`, or the history is longer than
    `max_history`.
    """
    if observation.num_future != num_future:
        raise TrajformerError(
            f"scenes have {observation.num_future} future steps, the model predicts {num_future}"
        )
    if max_history is not None and observation.num_history > max_history:
        raise TrajformerError(
            f"scenes have {observation.num_history} observed steps, "
            f"the model has max_history {max_history}"
        )


def world_features(observation: Observation, x: Tensor) -> Tensor:
    """Features [B, K, ...] of worlds: means of modes [B, S, K, ...] over the targets of a scene."""
    return masked_mean(x, observation.target_mask[..., None, None], 1)


def future_time(observation: Observation) -> Tensor:
    """Times [F] of the future steps, in seconds after the last observed step."""
    position = observation.position
    steps = observation.num_future
    step = torch.arange(1, steps + 1, device=position.device, dtype=position.dtype)
    return step * observation.period_s


def constant_velocity_path(observation: Observation) -> Tensor:
    """Positions [B, S, 1, F, 2] at the last observed velocity, in the frame of each target."""
    targets = observation.num_targets
    heading = observation.pose[:, :targets, 2]
    velocity = rotate(last_velocity(observation)[:, :targets], -heading)
    return velocity[:, :, None, None] * future_time(observation)[:, None]


def forecast_from_offsets(observation: Observation, offset: Tensor, score: Tensor) -> Forecast:
    """A forecast in the frame of each target, as offsets from the path at constant velocity.

    Args:
        observation: the input of the model.
        offset: [B, S, K, F * 2], metres, from step to step; they are cumulated.
        score: [B, S, K, 1] of modes, or [B, K, 1] of worlds.
    """
    offset = offset.unflatten(-1, (observation.num_future, 2)).float()
    position = constant_velocity_path(observation) + offset.cumsum(-2)
    pose = observation.pose[:, : observation.num_targets]
    return Forecast(position, score.squeeze(-1).float(), Frame.AGENT, pose)
