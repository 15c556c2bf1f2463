"""The second stage of AgentFormer: a sampler that spreads the modes of a trained CVAE (DLow, Yuan and Kitani 2020).

Each agent's context is mapped to K affine maps of one noise vector to a latent, z_k = A_k * eps + b_k with diagonal A_k; eps is
the same for all agents and modes of a scene. The CVAE stays as it is.
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
from trajformer.models.forecaster import Forecaster


@dataclass(frozen=True)
class AgentFormerSamplerConfig:
    """The sampler's sizes.

    Attributes:
        cvae: of the first stage; `samples` is the number of modes.
        hidden: widths of the network.
        noise: draw eps in training (the paper); else it is 0 there, too, as in evaluation (the released configurations).
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
    """Observation -> Forecast in the batch frame, with the latents' distributions; the same modes whenever it is evaluated.

    Logits are those of `AgentFormer`.
    """

    losses = (SamplerLossConfig,)
    equivariant = False
    needs_first_stage = True

    def __init__(self, config: AgentFormerSamplerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.cvae.joint
        self.cvae = AgentFormer(config.cvae).requires_grad_(False).eval()
        widths, outputs = (config.cvae.block.width, *config.hidden), config.cvae.samples * config.cvae.latent
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        self.network = nn.Sequential(*(nn.Sequential(layer, nn.Tanh()) for layer in layers))
        self.scale, self.shift = nn.Linear(widths[-1], outputs), nn.Linear(widths[-1], outputs)

    def train(self, mode: bool = True) -> AgentFormerSampler:
        """The CVAE is always in evaluation mode."""
        super().train(mode)
        self.cvae.eval()
        return self

    def prepare(self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None) -> None:
        """Take the weights of the first stage."""
        assert first_stage is not None
        self.adopt(first_stage)

    def adopt(self, cvae: nn.Module) -> None:
        """Take the weights of a trained first stage; how many samples it drew and how it scored them is no matter.

        Raises:
            TrajformerError: it is another model, or one of other sizes.
        """
        wanted, sizes = self.config.cvae, None
        if isinstance(cvae, AgentFormer):
            free = {name: getattr(wanted, name) for name in ("samples", "evaluation_samples", "mean_first")}
            sizes = replace(cvae.config, **free)
        if sizes != wanted:
            raise TrajformerError("is no AgentFormer as model.agentformer_sampler.cvae describes it")
        self.cvae.load_state_dict(cvae.state_dict())

    def forward(self, observation: Observation) -> Forecast:
        """K modes of every target."""
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
        return self.cvae.modes(observation, context, z, latent, prior, scored=not self.training)
