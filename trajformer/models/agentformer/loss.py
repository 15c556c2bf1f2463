"""Losses of AgentFormer's two stages (Yuan et al. 2021, section 3.2 and supplement), each a mean over scenes.

The paper trains on one scene a step: sums over a scene's N agents are divided by N, bounds apply to a scene's mean. Lengths
are in the model's unit, so that weights and bounds mean the same at any scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.terms import Terms
from trajformer.models.agentformer.scene import Reconstruction


@dataclass(frozen=True)
class CVAELossConfig:
    """Weights of the first stage.

    Attributes:
        reconstruction: summed squared error of the future decoded from the posterior.
        divergence: KL divergence of posterior and prior.
        free: nats of an agent that the divergence is not pushed below.
        best: summed squared error of the best of K samples from the prior.
    """

    reconstruction: float = 1.0
    divergence: float = 1.0
    free: float = 2.0
    best: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self)

    def build(self) -> CVAELoss:
        """The loss with these weights."""
        return CVAELoss(self)


class CVAELoss(nn.Module):
    """`cvae_loss` of an `AgentFormer`, whose posterior reads the recorded future."""

    def __init__(self, config: CVAELossConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        truth, output = batch.truth, model.reconstruct(batch.observation, batch.truth)
        return cvae_loss(output, truth.position, truth.valid, model.config.scale_m, self.config)


@dataclass(frozen=True)
class SamplerLossConfig:
    """Weights of the second stage; (diversity, spread) were 20, 10 for eth, 10, 10 for univ, 5, 5 for the other pedestrians.

    Attributes:
        best: summed squared error of the best mode.
        divergence: KL divergence of the modes' latents, summed over modes, from the prior.
        free: nats of an agent that it is not pushed below.
        diversity: mean over pairs of modes of exp(-|Y_i - Y_j|^2 / spread); zero where there is one mode.
        spread: sigma_d, squared lengths of whole futures, in the model's unit.
    """

    best: float = 5.0
    divergence: float = 0.1
    free: float = 10.0
    diversity: float = 20.0
    spread: float = 10.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("spread",))

    def build(self) -> SamplerLoss:
        """The loss with these weights."""
        return SamplerLoss(self)


class SamplerLoss(nn.Module):
    """`sampler_loss` of an `AgentFormerSampler`."""

    def __init__(self, config: SamplerLossConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        truth, scale_m = batch.truth, model.config.cvae.scale_m
        return sampler_loss(model(batch.observation), truth.position, truth.valid, scale_m, self.config)


def cvae_loss(output: Reconstruction, target: Tensor, valid: Tensor, unit_m: float, config: CVAELossConfig) -> dict[str, Tensor]:
    """The first stage's loss.

    Args:
        output: of `AgentFormer.reconstruct`.
        target: [B, S, F, 2], metres, in the batch frame.
        valid: bool [B, S, F]; agents without a valid step do not count.
        unit_m: metres that are 1 in the model.

    Returns:
        "reconstruction", "divergence", "best" (means over scenes), and their weighted sum "loss" with its gradient.
    """
    real = valid.any(-1)
    terms = {
        "reconstruction": _squared_error(output.position, target, valid, unit_m),
        "divergence": output.posterior.divergence(output.prior),
        "best": _squared_error(output.best, target, valid, unit_m),
    }
    means = {name: _scene_means(value, real) for name, value in terms.items()}
    means["divergence"] = means["divergence"].clamp(min=config.free)
    return _weigh(means, real, config)


def sampler_loss(
    forecast: Forecast, target: Tensor, valid: Tensor, unit_m: float, config: SamplerLossConfig
) -> dict[str, Tensor]:
    """The second stage's loss.

    Args:
        forecast: of `AgentFormerSampler`, with latents and prior.
        target, valid, unit_m: as for `cvae_loss`.

    Returns:
        "best", "divergence", "diversity" (means over scenes), and their weighted sum "loss" with its gradient.
    """
    assert forecast.latent is not None and forecast.prior is not None
    real, position = valid.any(-1), forecast.in_batch_frame()
    error = _squared_error(position, target[:, :, None], valid[:, :, None], unit_m)
    first, second = torch.triu_indices(forecast.num_modes, forecast.num_modes, 1, device=real.device)
    future = (position / unit_m).flatten(-2)
    gap = (future[:, :, first] - future[:, :, second]).square().sum(-1)
    terms = {
        "best": error.amin(-1),
        "divergence": forecast.latent.divergence(forecast.prior).sum(-1),
        "diversity": (-gap / config.spread).exp().sum(-1) / max(len(first), 1),
    }
    means = {name: _scene_means(value, real) for name, value in terms.items()}
    means["divergence"] = means["divergence"].clamp(min=config.free)
    return _weigh(means, real, config)


def _squared_error(position: Tensor, target: Tensor, valid: Tensor, unit_m: float) -> Tensor:
    """Sum over valid steps and both coordinates: [..., F, 2] to [...]."""
    return (((position - target) / unit_m).square().sum(-1) * valid).sum(-1)


def _scene_means(value: Tensor, real: Tensor) -> Tensor:
    """Mean over a scene's real agents, [B, S] to [B]."""
    return torch.where(real, value, 0.0).sum(-1) / real.sum(-1).clamp(min=1)


def _weigh(means: dict[str, Tensor], real: Tensor, config: CVAELossConfig | SamplerLossConfig) -> dict[str, Tensor]:
    scenes = real.any(-1)
    terms = {name: torch.where(scenes, value, 0.0).sum() / scenes.sum().clamp(min=1) for name, value in means.items()}
    total = torch.stack([getattr(config, name) * value for name, value in terms.items()]).sum()
    return {name: value.detach() for name, value in terms.items()} | {"loss": total}
