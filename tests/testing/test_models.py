"""Each contract check of models finds a model that violates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from trajformer.data.batch import Observation, SceneBatch, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.terms import Terms
from trajformer.models.forecaster import Forecaster
from trajformer.testing import models as contract


@dataclass(frozen=True)
class LinearConfig:
    """A linear model of the current velocity, optionally with an error."""

    num_future: int = 12
    error: str = ""

    def build(self) -> Linear:
        return Linear(self)


class Linear(Forecaster):
    """Offsets in the frame of each target: a linear function of its velocity."""

    def __init__(self, config: LinearConfig) -> None:
        super().__init__()
        self.config, self.calls = config, 0
        self.out, self.unused = (
            nn.Linear(2, 2 * config.num_future * 2),
            nn.Linear(1, 1) if config.error == "gradient" else None,
        )
        self.score = nn.Linear(2, 2)
        if config.error == "truth":
            self.losses = (LeakyLossConfig,)

    def forward(self, observation: Observation, leak: float = 0.0) -> Forecast:
        config, targets = self.config, slice(observation.num_targets)
        if observation.num_future != config.num_future and config.error != "horizon":
            raise TrajformerError(
                f"{observation.num_future} future steps, the model predicts {config.num_future}"
            )
        pose, velocity = (
            observation.pose[:, targets],
            observation.velocity * observation.valid[..., None],
        )
        if config.error == "unseen steps":
            velocity = observation.velocity
        local = self.speed(velocity[:, targets].mean(2), pose)
        if config.error == "padding":
            local = local + observation.polyline.mean((1, 2, 3))[:, None, None]
        if config.error == "batching":
            local = local + observation.target_mask.float().mean()
        if config.error == "order":
            local = local + torch.arange(observation.num_targets)[:, None]
        if config.error == "random":
            local = local + torch.rand(())
        if config.error == "small scene":
            local = local / observation.polyline_mask.any()
        offset = self.out(local).float().unflatten(-1, (2, config.num_future, 2))
        return Forecast(offset + leak, self.score(local).float(), Frame.AGENT, pose)

    def speed(self, velocity: torch.Tensor, pose: torch.Tensor) -> torch.Tensor:
        """A rotation-invariant feature, or the velocity in the frame of the batch."""
        if self.config.error == "pose":
            return velocity
        return velocity.square().sum(-1, keepdim=True).expand(*velocity.shape)


@dataclass(frozen=True)
class LeakyLossConfig:
    """A loss that passes the recorded future to the model."""

    def build(self) -> LeakyLoss:
        return LeakyLoss()


class LeakyLoss(nn.Module):
    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        forecast = model(batch.observation, float(batch.truth.position.sum()))
        return SetLossConfig().build()(lambda _: forecast, batch)


VIOLATIONS = {
    "batching": contract.check_batching,
    "padding": contract.check_padding,
    "order": contract.check_order,
    "unseen steps": contract.check_unseen_steps,
    "pose": contract.check_pose,
    "truth": contract.check_truth,
    "gradient": contract.check_gradients,
    "random": contract.check_determinism,
    "small scene": contract.check_small_scenes,
    "horizon": contract.check_horizon,
}


def test_a_correct_model_passes() -> None:
    contract.check_model(LinearConfig())


@pytest.mark.parametrize("error", VIOLATIONS)
def test_the_check_finds_the_violation(error: str) -> None:
    model = contract.build_random(LinearConfig(error=error))
    with pytest.raises(AssertionError):
        VIOLATIONS[error](model, collate(contract.example_scenes()))


def test_a_model_that_declares_no_equivariance_is_checked_for_translations_only() -> None:
    model = contract.build_random(LinearConfig(error="pose"))
    batch = collate(contract.example_scenes())
    model.equivariant = False
    contract.check_pose(model, batch)
    assert contract.pose_error(model, batch, 1.0) > 0.1
