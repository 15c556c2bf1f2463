"""The second stage of AgentFormer: a sampler that spreads the modes of a trained CVAE (DLow, Yuan and Kitani 2020).

The context of each agent is mapped to K affine maps from noise to latents, z_k = A_k * eps + b_k with diagonal A_k. All agents
and modes of a scene share eps. The weights of the CVAE stay fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import nn

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.loading import SceneDataset
from trajformer.errors import TrajformerError, check_numbers
from trajformer.models.agentformer.loss import SamplerLossConfig
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig
from trajformer.models.agentformer.networks import initialize
from trajformer.models.forecaster import Forecaster


@dataclass(frozen=True)
class AgentFormerSamplerConfig:
    """Sizes of the sampler.

    Attributes:
        cvae: config of the first stage; `samples` is the number of modes.
        hidden: widths of the network.
        noise: draw eps in training, as in the paper; otherwise, and in evaluation, eps is 0, as in the released configurations.
    """

    cvae: AgentFormerConfig = field(default_factory=AgentFormerConfig)
    hidden: tuple[int, int] = (512, 256)
    noise: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, positive=("hidden",))

    def build(self) -> AgentFormerSampler:
        """The model, with random weights."""
        return AgentFormerSampler(self)


class AgentFormerSampler(Forecaster):
    """Observation -> Forecast in the batch frame, with the distributions of the latents; evaluation is deterministic."""

    losses = (SamplerLossConfig,)
    equivariant = False
    needs_first_stage = True

    def __init__(self, config: AgentFormerSamplerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.cvae.joint
        self.cvae = AgentFormer(config.cvae).requires_grad_(False).eval()
        widths, outputs = (config.cvae.block.width, *config.hidden), config.cvae.samples * config.cvae.latent
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        self.network = nn.Sequential(*(nn.Sequential(initialize(layer), nn.Tanh()) for layer in layers))
        self.scale, self.shift = nn.Linear(widths[-1], outputs), nn.Linear(widths[-1], outputs)

    def train(self, mode: bool = True) -> AgentFormerSampler:
        """Set the mode; the CVAE stays in evaluation mode."""
        super().train(mode)
        self.cvae.eval()
        return self

    def prepare(self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None) -> None:
        """Copy the weights of the first stage, which needs the sizes of `config.cvae`; the number of samples may differ.

        Raises:
            TrajformerError: the first stage is another model or has other sizes.
        """
        expected, sizes = self.config.cvae, None
        if isinstance(first_stage, AgentFormer):
            free = {name: getattr(expected, name) for name in ("samples", "evaluation_samples", "mean_first")}
            sizes = replace(first_stage.config, **free)
        if first_stage is None or sizes != expected:
            raise TrajformerError("is no AgentFormer as model.agentformer_sampler.cvae describes it")
        self.cvae.load_state_dict(first_stage.state_dict())

    def forward(self, observation: Observation) -> Forecast:
        """Predict K modes for each target."""
        with torch.no_grad():
            context = self.cvae.encode(observation)
            prior = self.cvae.prior_of(context)
        hidden = self.network(context.agent)
        scale, shift = (
            layer(hidden).float().unflatten(-1, (self.config.cvae.samples, -1)).transpose(1, 2)  # [B, K, A, Z]
            for layer in (self.scale, self.shift)
        )
        z = shift
        if self.training and self.config.noise:
            z = z + scale * torch.randn(len(z), 1, 1, z.shape[-1], device=z.device)
        latent = Gaussian(shift, (scale.square() + 1e-8).log())
        return self.cvae.decode_samples(observation, context, z, latent, prior, scored=not self.training)
