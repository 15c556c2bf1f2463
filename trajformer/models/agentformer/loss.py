"""Losses of AgentFormer's two stages (Yuan et al. 2021, section 3.2 and supplement): means over the scenes of a batch.

The paper trains on one scene per step: terms are means over the agents of a scene, and the lower bound of the KL divergence
applies to the mean of a scene. Distances are in units of the model (`scale_m`), so that weights and bounds do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.errors import check_numbers
from trajformer.losses.terms import Terms


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The output of a CVAE in training; positions in metres in the batch frame.

    Attributes:
        position: [B, S, F, 2], decoded from a sample of the posterior.
        best: [B, S, F, 2], of K samples from the prior, the one nearest to the recorded future of each agent.
        posterior: [B, S, Z], distribution of the latents given past and future.
        prior: [B, S, Z], distribution of the latents given the past.
    """

    position: Tensor
    best: Tensor
    posterior: Gaussian
    prior: Gaussian


@dataclass(frozen=True)
class CVAELossConfig:
    """Weights of the first stage.

    Attributes:
        reconstruction: weight of the squared error of the future decoded from the posterior, summed over steps.
        divergence: weight of the KL divergence of the posterior from the prior.
        free: lower bound of the divergence, nats per agent; below it the divergence has no gradient.
        best: weight of the squared error of the best of K samples from the prior, summed over steps.
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
    """`cvae_loss` of an `AgentFormer`; its posterior receives the recorded future."""

    def __init__(self, config: CVAELossConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        truth, output = batch.truth, model.reconstruct(batch.observation, batch.truth)
        return cvae_loss(output, truth.position, truth.valid, model.config.scale_m, self.config)


@dataclass(frozen=True)
class SamplerLossConfig:
    """Weights of the second stage. The paper's (diversity, spread): 20, 10 for eth; 10, 10 for univ; 5, 5 for other pedestrians.

    Attributes:
        best: weight of the squared error of the best mode, summed over steps.
        divergence: weight of the KL divergence of the latents from the prior, summed over modes.
        free: lower bound of the divergence, nats per agent; below it the divergence has no gradient.
        diversity: weight of the mean over pairs of modes of exp(-|Y_i - Y_j|^2 / spread), zero for a single mode.
        spread: sigma_d, squared distance of whole futures, in squared units of the model.
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

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        truth, scale_m = batch.truth, model.config.cvae.scale_m
        return sampler_loss(model(batch.observation), truth.position, truth.valid, scale_m, self.config)


def cvae_loss(output: Reconstruction, target: Tensor, valid: Tensor, unit_m: float, config: CVAELossConfig) -> Terms:
    """The loss of the first stage.

    Args:
        output: from `AgentFormer.reconstruct`.
        target: [B, S, F, 2], metres, in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are ignored.
        unit_m: unit of the model in metres.

    Returns:
        "reconstruction", "divergence" and "best" (means over scenes, detached), and their weighted sum "loss".
    """
    known = valid.any(-1)
    terms = {
        "reconstruction": _squared_error(output.position, target, valid, unit_m),
        "divergence": output.posterior.divergence(output.prior),
        "best": _squared_error(output.best, target, valid, unit_m),
    }
    return _scene_means(terms, known, config)


def sampler_loss(forecast: Forecast, target: Tensor, valid: Tensor, unit_m: float, config: SamplerLossConfig) -> Terms:
    """The loss of the second stage.

    Args:
        forecast: from `AgentFormerSampler`, with latents and prior.
        target: [B, S, F, 2], metres, in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are ignored.
        unit_m: unit of the model in metres.

    Returns:
        "best", "divergence" and "diversity" (means over scenes, detached), and their weighted sum "loss".
    """
    assert forecast.latent is not None and forecast.prior is not None
    known, position = valid.any(-1), forecast.in_batch_frame()
    error = _squared_error(position, target[:, :, None], valid[:, :, None], unit_m)  # [B, S, K]
    first, second = torch.triu_indices(forecast.num_modes, forecast.num_modes, 1, device=known.device)
    future = (position / unit_m).flatten(-2)  # [B, S, K, F * 2]
    squared_distance = (future[:, :, first] - future[:, :, second]).square().sum(-1)
    terms = {
        "best": error.amin(-1),
        "divergence": forecast.latent.divergence(forecast.prior).sum(-1),
        "diversity": (-squared_distance / config.spread).exp().sum(-1) / max(len(first), 1),
    }
    return _scene_means(terms, known, config)


def _squared_error(position: Tensor, target: Tensor, valid: Tensor, unit_m: float) -> Tensor:
    """Sum over valid steps and both coordinates: [..., F, 2] to [...]."""
    return (((position - target) / unit_m).square().sum(-1) * valid).sum(-1)


def _scene_means(terms: Terms, known: Tensor, config: CVAELossConfig | SamplerLossConfig) -> Terms:
    """Terms [B, S] to means over scenes of means over agents with a known future (bool [B, S]), and the weighted sum."""
    means = {name: torch.where(known, value, 0.0).sum(-1) / known.sum(-1).clamp(min=1) for name, value in terms.items()}
    means["divergence"] = means["divergence"].clamp(min=config.free)
    scenes = known.any(-1)
    means = {name: torch.where(scenes, value, 0.0).sum() / scenes.sum().clamp(min=1) for name, value in means.items()}
    total = torch.stack([getattr(config, name) * value for name, value in means.items()]).sum()
    return {name: value.detach() for name, value in means.items()} | {"loss": total}
