"""Losses of both stages of AgentFormer (Yuan et al., ICCV 2021, section 3.2 and supplement).

Losses are means over the scenes of a batch. The paper trains on one scene per step: terms are means
over the agents of a scene, and the lower bound of the KL divergence applies to the mean of a scene.
Distances are in units of the model (`scale_m`), so that weights and bounds do not depend on it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch, Truth
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.losses.terms import LossConfig, Terms, combine, total


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The output of a CVAE in training; positions in metres in the batch frame.

    `best` is the one of K samples from the prior that is nearest to the recorded future of an
    agent.
    """

    position: Tensor  # [B, S, F, 2], decoded from a sample of the posterior
    best: Tensor  # [B, S, F, 2]
    posterior: Gaussian  # [B, S, Z], of the latents given past and future
    prior: Gaussian  # [B, S, Z], of the latents given the past


@dataclass(frozen=True)
class CVAELossConfig(LossConfig):
    """Weights of the first stage.

    Attributes:
        reconstruction: weight of the squared error of the future decoded from the posterior, summed
            over steps.
        divergence: weight of the KL divergence of the posterior from the prior.
        free: lower bound of the divergence, nats per agent; below it the divergence has no
            gradient.
        best: weight of the squared error of the best of K samples from the prior, summed over
            steps.
    """

    reconstruction: float = 1.0
    divergence: float = 1.0
    free: float = 2.0
    best: float = 1.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`cvae_loss` of an `AgentFormer`; its posterior receives the recorded future."""
        output = model.reconstruct(batch.observation, batch.truth)
        return cvae_loss(output, batch.truth, model.config.scale_m, self)


@dataclass(frozen=True)
class SamplerLossConfig(LossConfig, positive=("spread",)):
    """Weights of the second stage (DLow, Yuan and Kitani 2020).

    The paper's (diversity, spread): 20, 10 for eth; 10, 10 for univ; 5, 5 for other pedestrians.

    Attributes:
        best: weight of the squared error of the best mode, summed over steps.
        divergence: weight of the KL divergence of the latents from the prior, summed over modes.
        free: lower bound of the divergence, nats per agent; below it the divergence has no
            gradient.
        diversity: weight of the mean over pairs of modes of exp(-|Y_i - Y_j|^2 / spread), zero for
            a single mode.
        spread: sigma_d, squared distance of whole futures, in squared units of the model.
    """

    best: float = 5.0
    divergence: float = 0.1
    free: float = 10.0
    diversity: float = 20.0
    spread: float = 10.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`sampler_loss` of an `AgentFormerSampler`."""
        return sampler_loss(model(batch.observation), batch.truth, model.config.cvae.scale_m, self)


def cvae_loss(output: Reconstruction, truth: Truth, unit_m: float, config: CVAELossConfig) -> Terms:
    """The loss of the first stage.

    Returns "reconstruction", "divergence" and "best", means over scenes, and "loss". The unit of
    the model is `unit_m` metres.
    """
    terms = {
        "reconstruction": _squared_error(output.position, truth, unit_m),
        "divergence": output.posterior.divergence(output.prior),
        "best": _squared_error(output.best, truth, unit_m),
    }
    return _scene_means(terms, truth.valid.any(-1), config)


def sampler_loss(
    forecast: Forecast, truth: Truth, unit_m: float, config: SamplerLossConfig
) -> Terms:
    """The loss of the second stage, of a forecast with latents and prior.

    Returns "best", "divergence" and "diversity", means over scenes, and "loss". The unit of the
    model is `unit_m` metres.
    """
    assert forecast.latent is not None and forecast.prior is not None
    position = forecast.in_batch_frame()  # [B, S, K, F, 2]
    by_mode = position.transpose(1, 2)  # [B, K, S, F, 2]
    truth_of_mode = truth.map(lambda value: value[:, None])
    error = _squared_error(by_mode, truth_of_mode, unit_m)  # [B, K, S]
    terms = {
        "best": error.transpose(1, 2).amin(-1),
        "divergence": forecast.latent.divergence(forecast.prior).sum(-1),
        "diversity": _similarity(position / unit_m, config.spread),
    }
    return _scene_means(terms, truth.valid.any(-1), config)


def _similarity(position: Tensor, spread: float) -> Tensor:
    """Mean over pairs of modes of exp(-|Y_i - Y_j|^2 / spread): [B, S, K, F, 2] to [B, S]."""
    num_modes = position.shape[2]
    first, second = torch.triu_indices(num_modes, num_modes, 1, device=position.device)
    future = position.flatten(-2)  # [B, S, K, F * 2]
    squared_distance = (future[:, :, first] - future[:, :, second]).square().sum(-1)
    return (-squared_distance / spread).exp().sum(-1) / max(len(first), 1)


def _squared_error(position: Tensor, truth: Truth, unit_m: float) -> Tensor:
    """Sum over valid steps and both coordinates: [..., F, 2] to [...]."""
    squared_distance = ((position - truth.position) / unit_m).square().sum(-1)
    return (squared_distance * truth.valid).sum(-1)


def _scene_means(terms: Terms, known: Tensor, config: CVAELossConfig | SamplerLossConfig) -> Terms:
    """Means over scenes of means over agents, and their weighted sum.

    Terms are [B, S], and agents with a known future bool [B, S].
    """
    num_agents = known.sum(-1).clamp(min=1)
    has_agent = known.any(-1)
    num_scenes = total(has_agent)
    means = {}
    for name, value in terms.items():
        of_scene = torch.where(known, value, 0.0).sum(-1) / num_agents  # [B]
        if name == "divergence":
            of_scene = of_scene.clamp(min=config.free)
        means[name] = torch.where(has_agent, of_scene, 0.0).sum() / num_scenes
    return combine([means], config)
