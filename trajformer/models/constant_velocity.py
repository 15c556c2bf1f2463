"""Constant velocity, plain and sampled: the baseline for all models. Random numbers for evaluation.

- `ConstantVelocity` extrapolates; further modes vary speed and direction.
- `SampledConstantVelocity` samples directions.
- `extrapolate` estimates position and velocity at the last observed step.
- `named_noise` gives random numbers that do not depend on the batch.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.indexing import take_along
from trajformer.losses.displacement import last_valid
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.horizon import future_time
from trajformer.scenes.geometry import rotate

WINDOW_S = 0.5  # of the mean velocity
SPEED_SPREAD = 0.3  # standard deviation of the factor of the speed
TURN_SPREAD = 0.15  # standard deviation of the direction, in radians
SAMPLED_TURN_SPREAD = math.radians(25.0)
_MIN_SPAN_S = 1e-6  # avoids a division by zero


@dataclass(frozen=True)
class ConstantVelocityConfig(ModelConfig, positive=("modes",)):
    """Number of the modes, and the velocity that is extrapolated.

    Attributes:
        modes: K; the first mode is the extrapolation, the others vary its speed and direction,
            equally for all agents and calls.
        recorded: extrapolate the recorded velocity of the last observed step, which is more
            accurate for smooth tracks.
        along_heading: move in the direction of the heading ("constant velocity and yaw" of
            nuScenes).
    """

    modes: int = 1
    recorded: bool = False
    along_heading: bool = False


class ConstantVelocity(Forecaster, config=ConstantVelocityConfig):
    """Observation -> Forecast in the batch frame, without parameters."""

    noise: Tensor  # [2, K], standard normal numbers for speed and direction, zero for mode 0

    def __init__(self, config: ConstantVelocityConfig = ConstantVelocityConfig()) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(2, config.modes, generator=generator)
        noise[:, 0] = 0.0
        self.register_buffer("noise", noise, persistent=False)

    def forward(self, observation: Observation) -> Forecast:
        """Extrapolate the velocity of each target from the step in which it was last seen."""
        targets = observation.num_targets
        start, mean_velocity = extrapolate(observation, targets)
        last = last_valid(observation.recorded[:, :targets])[..., None]
        velocity = mean_velocity
        if self.config.recorded:
            recorded = observation.velocity[:, :targets]
            velocity = take_along(recorded, last[..., None], 2).squeeze(2)
        if self.config.along_heading:
            speed = velocity.norm(dim=-1, keepdim=True)
            ahead = torch.cat([speed, torch.zeros_like(speed)], -1)
            velocity = rotate(ahead, observation.pose[:, :targets, 2])

        # `start` was extrapolated at the mean velocity since the agent was last seen.
        unseen_steps = observation.num_history - 1 - last
        start = start + (velocity - mean_velocity) * unseen_steps * observation.period_s

        speed_noise, turn_noise = self.noise.to(velocity).unbind()
        factor = (1.0 + SPEED_SPREAD * speed_noise).clamp(min=0.0)  # [K]
        turn = TURN_SPREAD * turn_noise
        velocity = rotate(velocity[:, :, None], turn) * factor[:, None]
        position = _positions(observation, start, velocity)

        # Logarithm of the density of factor and direction.
        speed_part = -0.5 * ((factor - 1.0) / SPEED_SPREAD) ** 2
        turn_part = 0.5 * (turn / TURN_SPREAD) ** 2
        logit = (speed_part - turn_part).expand(position.shape[:3])
        return Forecast(position, logit, observation.frame)


@dataclass(frozen=True)
class SampledConstantVelocityConfig(ModelConfig, positive=("modes",)):
    """Sampled directions.

    They are OUR-S in Schoeller et al. 2020, "What the Constant Velocity Model Can Teach Us". The
    standard deviation of the direction is the paper's; the paper's velocity is from the last step
    only.

    Attributes:
        modes: K samples.
        seed: seed of the samples.
    """

    modes: int = 20
    seed: int = 0


class SampledConstantVelocity(Forecaster, config=SampledConstantVelocityConfig):
    """Observation -> Forecast in the batch frame: the same speed in K sampled directions.

    The samples depend on the seed and the ids of scene and target only, not on the batch. The logit
    of a sample is its log density, so that the smallest change of direction is the most probable.
    """

    def __init__(
        self, config: SampledConstantVelocityConfig = SampledConstantVelocityConfig()
    ) -> None:
        super().__init__()
        self.config = config

    def forward(self, observation: Observation) -> Forecast:
        """Extrapolate the mean velocity of the last observed steps of each target."""
        targets = observation.num_targets
        start, velocity = extrapolate(observation, targets)
        noise = named_noise(observation, targets, self.config.modes, self.config.seed)
        noise = noise.to(velocity, non_blocking=True)
        velocity = rotate(velocity[:, :, None], SAMPLED_TURN_SPREAD * noise)
        position = _positions(observation, start, velocity)
        return Forecast(position, -0.5 * noise**2, observation.frame)


def _positions(observation: Observation, start: Tensor, velocity: Tensor) -> Tensor:
    """Future positions [B, S, K, F, 2] for `start` [B, S, 2] and velocities [B, S, K, 2]."""
    return start[:, :, None, None] + velocity[..., None, :] * future_time(observation)[:, None]


def extrapolate(observation: Observation, agents: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions in the last step and velocities of the first A agents, by default all.

    The velocity is the mean over the last `WINDOW_S` seconds (at least one step) in which the agent
    is seen, or since it was seen before the last time, if that is longer ago. The position of an
    agent that was lost earlier is extrapolated to the last step.

    Returns:
        Positions in metres and velocities in m/s, each [B, A, 2].
    """
    valid = observation.recorded[:, :agents]
    position = observation.position[:, :agents]
    steps = max(1, round(WINDOW_S / observation.period_s))
    index = torch.arange(observation.num_history, device=valid.device)

    # The first seen step of the window that ends in the last seen step.
    last = last_valid(valid)
    first = (valid & (index >= last[..., None] - steps)).int().argmax(-1)
    # No other step of the window was seen: the one before it.
    earlier = valid & (index < last[..., None])
    alone = (first == last) & earlier.any(-1)
    first = torch.where(alone, last_valid(earlier), first)

    start = _at_step(position, first)
    end = _at_step(position, last)
    span = ((last - first) * observation.period_s)[..., None]
    velocity = (end - start) / span.clamp(min=_MIN_SPAN_S)
    velocity = torch.where(span > 0, velocity, torch.zeros_like(end))
    unseen = ((observation.num_history - 1 - last) * observation.period_s)[..., None]
    return end + velocity * unseen, velocity


def _at_step(position: Tensor, step: Tensor) -> Tensor:
    """Positions [B, A, 2] of tracks [B, A, H, 2] at steps int64 [B, A]."""
    return take_along(position, step[..., None, None], 2).squeeze(2)


def named_noise(observation: Observation, agents: int, count: int, seed: int) -> Tensor:
    """Standard normal numbers, float32 [B, N, count] on the CPU, for the first N agents.

    They depend on the seed, the id of the scene and the id of the agent only, not on the batch;
    zero for padding. They are a function of names, which `torch.compile` cannot trace: the graph
    of a compiled model breaks here.
    """
    noise = np.zeros((observation.num_scenes, agents, count), np.float32)
    for b, names in enumerate(observation.agent_id):
        for a, name in enumerate(names[:agents]):
            text = repr((seed, observation.scene_id[b], name)).encode()
            digest = hashlib.blake2b(text, digest_size=16).digest()
            key = np.frombuffer(digest, np.uint64)
            generator = np.random.Generator(np.random.Philox(key=key))
            noise[b, a] = generator.standard_normal(count)
    return torch.from_numpy(noise)
