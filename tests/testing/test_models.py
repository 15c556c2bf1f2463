"""Each contract check of models detects a model that violates it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trajformer.config import Config
from trajformer.data.batch import Observation, SceneBatch, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.terms import Terms
from trajformer.models.forecaster import Forecaster
from trajformer.testing import forecast_checks, training_checks
from trajformer.testing.models import build_random, check_model
from trajformer.testing.scenes import example_scenes

_library = torch.library.Library("trajformer_tests", "DEF")
_library.define("only_on_cpu(Tensor x) -> Tensor")


def only_on_cpu(x: Tensor) -> Tensor:
    """Zeros; on the simulated accelerator an operator without any kernel."""
    if x.device.type == "cpu":
        return torch.zeros_like(x)
    zeros: Tensor = torch.ops.trajformer_tests.only_on_cpu(x.detach())
    return zeros


@dataclass(frozen=True)
class LinearConfig(Config):
    """A linear model of the mean velocity, optionally with an error."""

    num_future: int = 12
    error: str = ""

    def build(self) -> Linear:
        return Linear(self)


class Linear(Forecaster):
    """Offsets in the frame of each target: a linear function of its speed."""

    def __init__(self, config: LinearConfig) -> None:
        super().__init__()
        self.config = config
        self.not_a_buffer = torch.rand(())  # which a state dict lacks
        self.out = nn.Linear(2, 2 * config.num_future * 2)
        self.score = nn.Linear(2, 2)
        if config.error == "gradient":
            self.unused = nn.Linear(1, 1)
        if config.error in ("truth", "truth in a method", "no call"):
            self.losses = (LeakyLossConfig,)
        if config.error == "truth in a further loss":
            self.losses = (SetLossConfig, LeakyLossConfig)
        if config.error == "truth in a method":
            self.compiled_methods = ("propose",)

    def forward(self, observation: Observation, leak: float = 0.0) -> Forecast:
        config = self.config
        targets = slice(observation.num_targets)
        if observation.num_future != config.num_future and config.error != "horizon":
            raise TrajformerError(
                f"{observation.num_future} future steps, the model predicts {config.num_future}"
            )
        pose = observation.pose[:, targets]
        feature = self.feature(observation)
        if config.error == "horizon":
            offset = self.out(feature).float().unflatten(-1, (2, -1, 2))
        else:
            offset = self.out(feature).float().unflatten(-1, (2, config.num_future, 2))
        return Forecast(offset + leak, self.score(feature).float(), Frame.AGENT, pose)

    def propose(self, observation: Observation) -> dict[str, Tensor]:
        """The output for a loss, which keeps the future of the last batch."""
        forecast = self(observation)
        return {"position": forecast.position + self.leak, "logit": forecast.logit}

    def feature(self, observation: Observation) -> Tensor:
        """The squared speed, in two channels [B, S, 2], with the error of the config."""
        error = self.config.error
        velocity = observation.velocity * observation.valid[..., None]
        if error == "unseen steps":
            velocity = observation.velocity
        seen = observation.valid.sum(2).clamp(min=1)
        mean = velocity.sum(2) / seen[..., None]
        if error == "history":
            mean = velocity.mean(2)
        mean = mean[:, : observation.num_targets]
        if error == "pose":
            return mean
        feature = mean.square().sum(-1, keepdim=True).expand(*mean.shape)

        if error == "padding":
            return feature + observation.polyline.mean((1, 2, 3))[:, None, None]
        if error == "batching":
            return feature + observation.target_mask.float().mean()
        if error == "order":
            return feature + torch.arange(observation.num_targets)[:, None]
        if error == "lost agents":
            return feature + observation.pose[..., 2].cos().sum(1)[:, None, None]
        if error == "lost targets":
            unseen = observation.is_continued.sum((1, 2))
            return feature + 100.0 * unseen[:, None, None]
        if error == "question":
            return feature + observation.num_targets
        if error == "roles":
            return feature + observation.agent_role[:, : observation.num_targets, None]
        if error == "targets":
            return feature[:, :3]
        if error == "random":
            return feature + torch.rand(())
        if error == "weights":
            return feature + self.not_a_buffer
        if error == "small scene":
            return feature / observation.polyline_mask.any()
        if error == "half precision" and torch.is_autocast_enabled("cpu"):
            return feature + 1.0
        if error == "device":
            return feature + torch.zeros(2)
        if error == "missing operator":
            return feature + only_on_cpu(feature)
        if error == "wait" and bool((feature > 0).any()):
            return feature + 1.0
        return feature


@dataclass(frozen=True)
class LeakyLossConfig(Config):
    """A loss that passes the recorded future to the model."""

    def build(self) -> LeakyLoss:
        return LeakyLoss()


class LeakyLoss(nn.Module):
    """The loss of a forecast that contains the recorded future."""

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        leak = float(batch.truth.position.sum())
        if model.config.error.startswith("truth") and not model.compiled_methods:
            forecast = model(batch.observation, leak)
            return SetLossConfig().build()(lambda _: forecast, batch)
        if model.config.error == "truth in a method":
            model.leak = leak
            position = model.propose(batch.observation)["position"]
        else:
            position = model.out.weight
        return {"loss": position.square().mean()}


VIOLATIONS = {
    "batching": forecast_checks.check_batching,
    "padding": forecast_checks.check_padding,
    "order": forecast_checks.check_order,
    "unseen steps": forecast_checks.check_unseen_steps,
    "lost agents": forecast_checks.check_lost_agents,
    "lost targets": forecast_checks.check_lost_targets,
    "question": forecast_checks.check_question,
    "roles": forecast_checks.check_roles,
    "history": forecast_checks.check_history,
    "pose": forecast_checks.check_pose,
    "random": forecast_checks.check_determinism,
    "weights": forecast_checks.check_weights,
    "horizon": forecast_checks.check_horizon,
    "targets": forecast_checks.check_targets,
    "truth": training_checks.check_truth,
    "truth in a method": training_checks.check_truth,
    "no call": training_checks.check_truth,
    "gradient": training_checks.check_gradients,
    "small scene": training_checks.check_small_scenes,
    "half precision": training_checks.check_bfloat16,
    "device": training_checks.check_device,
    "wait": training_checks.check_device,
}


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(example_scenes())


@pytest.mark.filterwarnings("error")
def test_a_correct_model_passes() -> None:
    check_model(LinearConfig())


@pytest.mark.parametrize("error", VIOLATIONS)
def test_the_check_detects_the_violation(error: str, batch: SceneBatch) -> None:
    model = build_random(LinearConfig(error=error))
    expected: type[Exception] = AssertionError
    if error == "device":
        expected = RuntimeError  # of the operator, as on a GPU
    with pytest.raises(expected):
        VIOLATIONS[error](model, batch)


def test_all_losses_of_a_model_are_checked() -> None:
    with pytest.raises(AssertionError, match="more than the observation"):
        check_model(LinearConfig(error="truth in a further loss"))


def test_declared_exceptions_are_allowed(batch: SceneBatch) -> None:
    """Dependence on the frame and on the length of the history, and waits."""
    model = build_random(LinearConfig(error="pose"))
    model.equivariant = False
    forecast_checks.check_pose(model, batch)
    assert forecast_checks.pose_error(model, batch, 1.0) > 0.1

    model = build_random(LinearConfig(error="history"))
    model.fixed_history = True
    forecast_checks.check_history(model, batch)

    model = build_random(LinearConfig(error="wait"))
    model.waits_for_device = True
    training_checks.check_device(model, batch)


def test_an_equivariant_model_must_not_declare_that_it_is_not(batch: SceneBatch) -> None:
    model = build_random(LinearConfig())
    model.equivariant = False
    with pytest.raises(AssertionError, match="declares"):
        forecast_checks.check_pose(model, batch)


def test_a_check_with_a_missing_operator_is_skipped_with_its_name() -> None:
    """The contract reports it as a warning."""
    with pytest.warns(UserWarning, match="check_device is skipped: .*no operator .*only_on_cpu"):
        check_model(LinearConfig(error="missing operator"))
