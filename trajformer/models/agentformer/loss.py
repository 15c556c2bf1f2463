"""Losses of AgentFormer's two stages (Yuan et al. 2021, section 3.2 and supplement): means over the scenes of a batch.

The paper trains on one scene per step: terms are means over the agents of a scene, and the lower bound of the KL divergence
applies to the mean of a scene. Distances are in units of the model (`scale_m`), so that weights and bounds do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch, Truth
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.errors import Config
from trajformer.losses.terms import ModelLoss, Terms, weigh


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The output of a CVAE in training; positions in metres in the batch frame."""

    position: Tensor  # [B, S, F, 2], decoded from a sample of the posterior
    best: Tensor  # [B, S, F, 2], of K samples from the prior, the one nearest to the recorded future of each agent
    posterior: Gaussian  # [B, S, Z], of the latents given past and future
    prior: Gaussian  # [B, S, Z], of the latents given the past


@dataclass(frozen=True)
class CVAELossConfig(Config):
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

    def build(self) -> ModelLoss:
        """The loss with these weights."""
        return ModelLoss(self)

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`cvae_loss` of an `AgentFormer`; its posterior receives the recorded future."""
        output = model.reconstruct(batch.observation, batch.truth)
        return cvae_loss(output, batch.truth, model.config.scale_m, self)


@dataclass(frozen=True)
class SamplerLossConfig(Config, positive=("spread",)):
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

    def build(self) -> ModelLoss:
        """The loss with these weights."""
        return ModelLoss(self)

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`sampler_loss` of an `AgentFormerSampler`."""
        return sampler_loss(model(batch.observation), batch.truth, model.config.cvae.scale_m, self)


def cvae_loss(output: Reconstruction, truth: Truth, unit_m: float, config: CVAELossConfig) -> Terms:
    """The loss of the first stage, in a model with a unit of `unit_m` metres; agents without a valid step are ignored.

    Returns:
        "reconstruction", "divergence" and "best" (means over scenes, detached), and their weighted sum "loss".
    """
    terms = {
        "reconstruction": _squared_error(output.position, truth, unit_m),
        "divergence": output.posterior.divergence(output.prior),
        "best": _squared_error(output.best, truth, unit_m),
    }
    return _scene_means(terms, truth.valid.any(-1), config)


def sampler_loss(forecast: Forecast, truth: Truth, unit_m: float, config: SamplerLossConfig) -> Terms:
    """The loss of the second stage; the forecast has latents and prior. Other arguments as for `cvae_loss`.

    Returns:
        "best", "divergence" and "diversity" (means over scenes, detached), and their weighted sum "loss".
    """
    assert forecast.latent is not None and forecast.prior is not None
    position = forecast.in_batch_frame()
    error = _squared_error(position.transpose(1, 2), truth.map(lambda value: value[:, None]), unit_m).transpose(1, 2)  # [B, S, K]
    first, second = torch.triu_indices(forecast.num_modes, forecast.num_modes, 1, device=position.device)
    future = (position / unit_m).flatten(-2)  # [B, S, K, F * 2]
    squared_distance = (future[:, :, first] - future[:, :, second]).square().sum(-1)
    terms = {
        "best": error.amin(-1),
        "divergence": forecast.latent.divergence(forecast.prior).sum(-1),
        "diversity": (-squared_distance / config.spread).exp().sum(-1) / max(len(first), 1),
    }
    return _scene_means(terms, truth.valid.any(-1), config)


def _squared_error(position: Tensor, truth: Truth, unit_m: float) -> Tensor:
    """Sum over valid steps and both coordinates: [..., F, 2] to [...]."""
    return (((position - truth.position) / unit_m).square().sum(-1) * truth.valid).sum(-1)


def _scene_means(terms: Terms, known: Tensor, config: CVAELossConfig | SamplerLossConfig) -> Terms:
    """Terms [B, S] to means over scenes of means over agents with a known future (bool [B, S]), and the weighted sum."""
    means = {name: torch.where(known, value, 0.0).sum(-1) / known.sum(-1).clamp(min=1) for name, value in terms.items()}
    means["divergence"] = means["divergence"].clamp(min=config.free)
    scenes = known.any(-1)
    means = {name: torch.where(scenes, value, 0.0).sum() / scenes.sum().clamp(min=1) for name, value in means.items()}
    return {name: value.detach() for name, value in means.items()} | {"loss": weigh(means, config)}
