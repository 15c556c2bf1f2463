"""Constant velocity: the floor that every learned model must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.batch import SceneBatch
from trajformer.forecast import Forecast
from trajformer.geometry import rotate
from trajformer.sample import Frame


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


class ConstantVelocity(nn.Module):
    """SceneBatch -> Forecast in the batch frame. It has no parameters."""

    def __init__(self, config: ConstantVelocityConfig = ConstantVelocityConfig()) -> None:
        super().__init__()
        self.config = config

    def forward(self, batch: SceneBatch) -> Forecast:
        """Extrapolate the mean velocity of the last observed steps of every target."""
        steps = max(1, round(self.config.window_s / batch.period_s))
        start, velocity = _mean_velocity(batch, steps)
        factor, turn = self._variants(velocity)
        velocity = rotate(velocity[:, :, None], turn) * factor[:, None]
        time = torch.arange(1, batch.num_future + 1, device=velocity.device, dtype=velocity.dtype) * batch.period_s
        position = start[:, :, None, None] + velocity[..., None, :] * time[:, None]
        logit = -0.5 * ((factor - 1.0) / self.config.speed_spread) ** 2 - 0.5 * (turn / self.config.turn_spread) ** 2
        return Forecast(position, logit.expand(position.shape[:3]), Frame(batch.frame))

    def _variants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Factors on the speed and changes of direction [K]; the first is (1, 0)."""
        generator = torch.Generator().manual_seed(self.config.seed)
        noise = torch.randn(2, self.config.modes, generator=generator)
        noise[:, 0] = 0.0
        factor = (1.0 + self.config.speed_spread * noise[0]).clamp(min=0.0)
        return factor.to(like), (self.config.turn_spread * noise[1]).to(like)


def _mean_velocity(batch: SceneBatch, steps: int) -> tuple[Tensor, Tensor]:
    """Positions at the last step of the history and mean velocities [B, S, 2], over the last `steps` observed steps."""
    targets = slice(0, batch.num_targets)
    valid, position = batch.valid[:, targets], batch.position[:, targets]
    index = torch.arange(batch.num_history, device=valid.device)
    last = torch.where(valid, index, -1).amax(-1)
    recent = valid & (index >= last[..., None] - steps)
    first = torch.where(recent, index, batch.num_history).amin(-1).clamp(max=batch.num_history - 1)
    last = last.clamp(min=0)
    end, begin = _at(position, last), _at(position, first)
    span = ((last - first) * batch.period_s)[..., None]
    velocity = torch.where(span > 0, (end - begin) / span.clamp(min=1e-6), torch.zeros_like(end))
    unseen = ((batch.num_history - 1 - last) * batch.period_s)[..., None]  # an agent lost earlier has moved on since
    return end + velocity * unseen, velocity


def _at(position: Tensor, step: Tensor) -> Tensor:
    return position.gather(2, step[..., None, None].expand(*step.shape, 1, 2)).squeeze(2)
