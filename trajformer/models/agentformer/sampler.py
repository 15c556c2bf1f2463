"""The second stage of AgentFormer: a sampler that spreads the modes of a trained CVAE.

In DLow (Yuan and Kitani 2020), the context of each agent is mapped to K affine maps from noise to
latents, z_k = A_k * eps + b_k with diagonal A_k. All agents and modes of a scene share eps. The
weights of the CVAE stay fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.loading import TrainingScenes
from trajformer.errors import TrajformerError
from trajformer.models.agentformer.losses import SamplerLossConfig
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig
from trajformer.models.agentformer.tokens import initialize
from trajformer.models.attended import TargetAttention
from trajformer.models.forecaster import Forecaster, ModelConfig

_MIN_VARIANCE = 1e-8  # keeps the logarithm of a scale of zero finite


@dataclass(frozen=True)
class AgentFormerSamplerConfig(ModelConfig, positive=("hidden",)):
    """Sizes of the sampler.

    Attributes:
        cvae: config of the first stage; `samples` is the number of modes.
        hidden: widths of the network.
        noise: draw eps in training, as in the paper; otherwise, and in evaluation, eps is 0, as in
            the released configurations.
    """

    cvae: AgentFormerConfig = field(default_factory=AgentFormerConfig)
    hidden: tuple[int, int] = (512, 256)
    noise: bool = False


class AgentFormerSampler(Forecaster, config=AgentFormerSamplerConfig):
    """Observation -> Forecast in the batch frame, with the distributions of the latents.

    Evaluation is deterministic.
    """

    losses = (SamplerLossConfig,)
    equivariant = False
    needs_first_stage = True

    def __init__(self, config: AgentFormerSamplerConfig) -> None:
        super().__init__()
        self.config = config
        self.joint = config.cvae.joint
        self.cvae = AgentFormer(config.cvae).requires_grad_(False).eval()
        widths = (config.cvae.block.width, *config.hidden)
        linears = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
        layers = [nn.Sequential(initialize(linear), nn.Tanh()) for linear in linears]
        self.network = nn.Sequential(*layers)
        outputs = config.cvae.samples * config.cvae.latent
        self.scale = nn.Linear(widths[-1], outputs)
        self.shift = nn.Linear(widths[-1], outputs)

    def train(self, mode: bool = True) -> AgentFormerSampler:
        """Set the mode; the CVAE stays in evaluation mode."""
        super().train(mode)
        self.cvae.eval()
        return self

    def prepare(
        self, scenes: TrainingScenes, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Copy the weights of the first stage; only its numbers of samples and scores may differ.

        Raises TrajformerError: the first stage is no AgentFormer or has other sizes.
        """
        expected = self.config.cvae
        if isinstance(first_stage, AgentFormer):
            sizes = replace(
                first_stage.config,
                samples=expected.samples,
                evaluation_samples=expected.evaluation_samples,
                mean_first=expected.mean_first,
            )
            if sizes == expected:
                self.cvae.load_state_dict(first_stage.state_dict())
                return
        raise TrajformerError("is no AgentFormer as model.agentformer_sampler.cvae describes it")

    def forward(self, observation: Observation) -> Forecast:
        """Predict K modes for each target."""
        with torch.no_grad():
            context = self.cvae.encode(observation)
            prior = self.cvae.prior_of(context)
        hidden = self.network(context.agent)  # [B, A, D]
        scale = self._by_mode(self.scale(hidden))  # A_k, [B, K, A, Z]
        shift = self._by_mode(self.shift(hidden))  # b_k, [B, K, A, Z]
        z = shift
        if self.training and self.config.noise:
            noise = torch.randn(len(z), 1, 1, z.shape[-1], device=z.device)
            z = z + scale * noise
        latent = Gaussian(shift, (scale.square() + _MIN_VARIANCE).log())
        return self.cvae.decode_samples(
            observation, context, z, latent, prior, scored=not self.training
        )

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers of the first stage."""
        return self.cvae.attention_layers(observation)

    def _by_mode(self, output: Tensor) -> Tensor:
        """Outputs [B, A, K * Z] of a linear layer to [B, K, A, Z]."""
        return output.float().unflatten(-1, (self.config.cvae.samples, -1)).transpose(1, 2)
