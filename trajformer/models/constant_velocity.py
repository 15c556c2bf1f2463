"""Constant velocity, plain and sampled: the floor that every learned model must beat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import check_numbers
from trajformer.models.forecaster import Forecaster
from trajformer.models.noise import named_noise
from trajformer.scenes.geometry import rotate


@dataclass(frozen=True)
class ConstantVelocityConfig:
    """How many modes, and how they vary.

    Attributes:
        modes: K; the first mode is the plain extrapolation, the others vary its speed and direction.
        window_s: the velocity is the mean over this many last seconds (displacement divided by time), at least one step.
        speed_spread: standard deviation of the factor on the speed.
        turn_spread: standard deviation of the change of direction, radians.
        seed: of the variants; they are the same for every agent and every call.
    """

    modes: int = 1
    window_s: float = 0.5
    speed_spread: float = 0.3
    turn_spread: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("modes",))

    def build(self) -> ConstantVelocity:
        """The model, with random weights."""
        return ConstantVelocity(self)


class ConstantVelocity(Forecaster):
    """Observation -> Forecast in the batch frame. It has no parameters; `noise` [2, K] varies speed and direction.

    Raises:
        TrajformerError: there is no mode.
    """

    noise: Tensor

    def __init__(self, config: ConstantVelocityConfig = ConstantVelocityConfig()) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)
        noise = torch.randn(2, config.modes, generator=generator)
        noise[:, 0] = 0.0
        self.register_buffer("noise", noise, persistent=False)

    def forward(self, observation: Observation) -> Forecast:
        """Extrapolate the mean velocity of the last observed steps of every target."""
        start, velocity = extrapolate(observation, self.config.window_s, observation.num_targets)
        # Changes of speed and direction [K]; the first is none.
        factor = (1.0 + self.config.speed_spread * self.noise[0].to(velocity)).clamp(min=0.0)
        turn = self.config.turn_spread * self.noise[1].to(velocity)
        velocity = rotate(velocity[:, :, None], turn) * factor[:, None]
        position = _straight_on(observation, start, velocity)
        logit = -0.5 * ((factor - 1.0) / self.config.speed_spread) ** 2 - 0.5 * (turn / self.config.turn_spread) ** 2
        return Forecast(position, logit.expand(position.shape[:3]), Frame(observation.frame))


@dataclass(frozen=True)
class SampledConstantVelocityConfig:
    """Sampled directions (Schoeller et al. 2020, "What the Constant Velocity Model Can Teach Us", there OUR-S).

    Attributes:
        modes: K samples; all of them are drawn, none is the plain extrapolation.
        window_s: as for `ConstantVelocityConfig`; the paper takes the last step.
        turn_spread: standard deviation of the change of direction, radians; the paper has 25 degrees.
        seed: of the samples.
    """

    modes: int = 20
    window_s: float = 0.5
    turn_spread: float = math.radians(25.0)
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("modes",))

    def build(self) -> SampledConstantVelocity:
        """The model, with random weights."""
        return SampledConstantVelocity(self)


class SampledConstantVelocity(Forecaster):
    """Observation -> Forecast in the batch frame: every target goes on at its speed, in K directions drawn for it alone.

    A target's draws depend on the seed, the scene's id and its own, so that neither order nor batch mates matter. Logits
    are the density that a direction was drawn from: the most probable sample is the one that turns the least.
    """

    def __init__(self, config: SampledConstantVelocityConfig = SampledConstantVelocityConfig()) -> None:
        super().__init__()
        self.config = config

    def forward(self, observation: Observation) -> Forecast:
        """Extrapolate the mean velocity of the last observed steps, turned, of every target."""
        start, velocity = extrapolate(observation, self.config.window_s, observation.num_targets)
        noise = named_noise(observation, observation.num_targets, self.config.modes, self.config.seed).to(velocity)
        position = _straight_on(observation, start, rotate(velocity[:, :, None], self.config.turn_spread * noise))
        return Forecast(position, -0.5 * noise**2, Frame(observation.frame))


def _straight_on(observation: Observation, start: Tensor, velocity: Tensor) -> Tensor:
    """Positions [B, S, K, F, 2] from `start` [B, S, 2] on at velocities [B, S, K, 2]."""
    time = torch.arange(1, observation.num_future + 1, device=velocity.device, dtype=velocity.dtype) * observation.period_s
    return start[:, :, None, None] + velocity[..., None, :] * time[:, None]


def extrapolate(observation: Observation, window_s: float = 0.5, agents: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions at the last step of the history and mean velocities [B, A, 2], over the last `window_s` seconds observed.

    Whoever was lost earlier has moved on since. `agents` asks for the first ones alone.
    """
    steps = max(1, round(window_s / observation.period_s))
    valid, position = observation.valid[:, :agents], observation.position[:, :agents]
    index = torch.arange(observation.num_history, device=valid.device)
    last = torch.where(valid, index, -1).amax(-1)
    recent = valid & (index >= last[..., None] - steps)
    first = torch.where(recent, index, observation.num_history).amin(-1).clamp(max=observation.num_history - 1)
    last = last.clamp(min=0)
    end, begin = _at(position, last), _at(position, first)
    span = ((last - first) * observation.period_s)[..., None]
    velocity = torch.where(span > 0, (end - begin) / span.clamp(min=1e-6), torch.zeros_like(end))
    unseen = ((observation.num_history - 1 - last) * observation.period_s)[..., None]
    return end + velocity * unseen, velocity


def _at(position: Tensor, step: Tensor) -> Tensor:
    return position.gather(2, step[..., None, None].expand(*step.shape, 1, 2)).squeeze(2)
