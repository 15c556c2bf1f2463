"""Constant velocity, plain and sampled: the baseline for all models. Random numbers for evaluation."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.losses.displacement import last_valid
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.scenes.geometry import rotate

WINDOW_S = 0.5  # of the mean velocity
SPEED_SPREAD, TURN_SPREAD = (
    0.3,
    0.15,
)  # standard deviations of the factor of the speed, and of the direction in radians
SAMPLED_TURN_SPREAD = math.radians(25.0)


@dataclass(frozen=True)
class ConstantVelocityConfig(ModelConfig, positive=("modes",)):
    """Number of the modes.

    Attributes:
        modes: K; the first mode is the extrapolation, the others vary its speed and direction, equally for all agents and calls.
        recorded: extrapolate the recorded velocity of the last observed step, which is more accurate for smooth tracks.
        along_heading: move in the direction of the heading ("constant velocity and yaw" of nuScenes).
    """

    modes: int = 1
    recorded: bool = False
    along_heading: bool = False


class ConstantVelocity(Forecaster, config=ConstantVelocityConfig):
    """Observation -> Forecast in the batch frame, without parameters; `noise` [2, K] varies speed and direction."""

    noise: Tensor

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
        start, mean = extrapolate(observation, targets)
        velocity, last = mean, last_valid(observation.valid[:, :targets])[..., None]
        if self.config.recorded:
            velocity = (
                observation.velocity[:, :targets].take_along_dim(last[..., None], 2).squeeze(2)
            )
        if self.config.along_heading:
            speed = velocity.norm(dim=-1, keepdim=True)
            velocity = rotate(
                torch.cat([speed, torch.zeros_like(speed)], -1), observation.pose[:, :targets, 2]
            )
        start = (
            start + (velocity - mean) * (observation.num_history - 1 - last) * observation.period_s
        )
        factor = (1.0 + SPEED_SPREAD * self.noise[0].to(velocity)).clamp(min=0.0)  # [K]
        turn = TURN_SPREAD * self.noise[1].to(velocity)
        velocity = rotate(velocity[:, :, None], turn) * factor[:, None]
        position = _positions(observation, start, velocity)
        logit = -0.5 * ((factor - 1.0) / SPEED_SPREAD) ** 2 - 0.5 * (turn / TURN_SPREAD) ** 2
        return Forecast(position, logit.expand(position.shape[:3]), observation.frame)


@dataclass(frozen=True)
class SampledConstantVelocityConfig(ModelConfig, positive=("modes",)):
    """Sampled directions (OUR-S in Schoeller et al. 2020, "What the Constant Velocity Model Can Teach Us").

    The standard deviation of the direction is the paper's; the paper's velocity is from the last step only.

    Attributes:
        modes: K samples.
        seed: seed of the samples.
    """

    modes: int = 20
    seed: int = 0


class SampledConstantVelocity(Forecaster, config=SampledConstantVelocityConfig):
    """Observation -> Forecast in the batch frame: each target keeps its speed and moves in K sampled directions.

    The samples depend on the seed and the ids of scene and target only, not on the batch. The logit of a sample is its log
    density, so that the smallest change of direction is the most probable.
    """

    def __init__(
        self, config: SampledConstantVelocityConfig = SampledConstantVelocityConfig()
    ) -> None:
        super().__init__()
        self.config = config

    def forward(self, observation: Observation) -> Forecast:
        """Extrapolate the mean velocity of the last observed steps of each target in K directions."""
        start, velocity = extrapolate(observation, observation.num_targets)
        noise = named_noise(
            observation, observation.num_targets, self.config.modes, self.config.seed
        ).to(velocity)
        position = _positions(
            observation, start, rotate(velocity[:, :, None], SAMPLED_TURN_SPREAD * noise)
        )
        return Forecast(position, -0.5 * noise**2, observation.frame)


def _positions(observation: Observation, start: Tensor, velocity: Tensor) -> Tensor:
    """Future positions [B, S, K, F, 2] for `start` [B, S, 2] and velocities [B, S, K, 2]."""
    time = (
        torch.arange(1, observation.num_future + 1, device=velocity.device, dtype=velocity.dtype)
        * observation.period_s
    )
    return start[:, :, None, None] + velocity[..., None, :] * time[:, None]


def extrapolate(observation: Observation, agents: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions in the last step and velocities, each [B, A, 2], of the first A agents, by default all.

    The velocity is the mean over the last `WINDOW_S` seconds (at least one step) in which the agent is seen, or since it was seen
    before the last time, if that is longer ago. The position of an agent that was lost earlier is extrapolated to the last step.
    """
    steps = max(1, round(WINDOW_S / observation.period_s))
    valid, position = observation.valid[:, :agents], observation.position[:, :agents]
    last = last_valid(valid)
    index = torch.arange(observation.num_history, device=valid.device)
    first = (valid & (index >= last[..., None] - steps)).int().argmax(-1)
    earlier = valid & (index < last[..., None])
    first = torch.where((first == last) & earlier.any(-1), last_valid(earlier), first)
    start, end = (
        position.take_along_dim(step[..., None, None], 2).squeeze(2) for step in (first, last)
    )
    span = ((last - first) * observation.period_s)[..., None]
    velocity = torch.where(span > 0, (end - start) / span.clamp(min=1e-6), torch.zeros_like(end))
    unseen = ((observation.num_history - 1 - last) * observation.period_s)[..., None]
    return end + velocity * unseen, velocity


def named_noise(observation: Observation, agents: int, count: int, seed: int) -> Tensor:
    """Standard normal numbers, float32 [B, N, count] on the CPU, for the first N agents of each scene; zero for padding.

    They depend on the seed, the id of the scene and the id of the agent only, not on the batch. They are a function of names,
    which `torch.compile` cannot trace: the graph of a compiled model breaks here.
    """
    noise = np.zeros((observation.num_scenes, agents, count), np.float32)
    for b, names in enumerate(observation.agent_id):
        for a, name in enumerate(names[:agents]):
            text = repr((seed, observation.scene_id[b], name)).encode()
            key = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint64)
            noise[b, a] = np.random.Generator(np.random.Philox(key=key)).standard_normal(count)
    return torch.from_numpy(noise)
