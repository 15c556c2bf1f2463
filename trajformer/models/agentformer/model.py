"""AgentFormer (Yuan et al., ICCV 2021): a CVAE with attention over all agents at all steps.

Differences from the released code:
- Scenes are batched with padding; unseen steps are masked tokens.
- All agents present in the last observed step are decoded together with the targets, so that a forecast does not depend on
  which agents have a recorded future. All agents observed at any step are context.
- Samples are rolled out with a key/value cache and without a gradient. Only each agent's best sample is decoded again, all steps
  in parallel, for the gradient. Loss and gradient are equal to the paper's, because fed-back positions have no gradient. Dropout
  applies to the parallel pass only.
- With `road`, lanes are context tokens instead of an image of the map.
- With `steps_per_token`, a token holds several steps: the paper's steps take 0.4 or 0.5 s, steps of driving data 0.1 s.

The second stage is a sampler that spreads the modes of a trained CVAE (DLow, Yuan and Kitani 2020). The context of each agent is
mapped to K affine maps from noise to latents, z_k = A_k * eps + b_k with diagonal A_k. All agents and modes of a scene share eps.
The weights of the CVAE stay fixed.

Losses (section 3.2 and supplement) are means over the scenes of a batch. The paper trains on one scene per step: terms are means
over the agents of a scene, and the lower bound of the KL divergence applies to the mean of a scene. Distances are in units of the
model (`scale_m`), so that weights and bounds do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, masked_mean
from trajformer.data.batch import Observation, SceneBatch, Truth
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.loading import SceneDataset
from trajformer.errors import ConfigError, TrajformerError
from trajformer.losses.displacement import last_valid
from trajformer.losses.terms import LossConfig, Terms, combine, total
from trajformer.models.agentformer.networks import (
    Context,
    ContextEncoder,
    FutureDecoder,
    FutureEncoder,
    displacements,
    initialize,
    token_inputs,
)
from trajformer.models.constant_velocity import extrapolate, named_noise
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.modes import coverage
from trajformer.models.tokens import MapTokenizer


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The output of a CVAE in training; positions in metres in the batch frame."""

    position: Tensor  # [B, S, F, 2], decoded from a sample of the posterior
    best: Tensor  # [B, S, F, 2], of K samples from the prior, the one nearest to the recorded future of each agent
    posterior: Gaussian  # [B, S, Z], of the latents given past and future
    prior: Gaussian  # [B, S, Z], of the latents given the past


@dataclass(frozen=True)
class CVAELossConfig(LossConfig):
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

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`cvae_loss` of an `AgentFormer`; its posterior receives the recorded future."""
        output = model.reconstruct(batch.observation, batch.truth)
        return cvae_loss(output, batch.truth, model.config.scale_m, self)


@dataclass(frozen=True)
class SamplerLossConfig(LossConfig, positive=("spread",)):
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

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`sampler_loss` of an `AgentFormerSampler`."""
        return sampler_loss(model(batch.observation), batch.truth, model.config.cvae.scale_m, self)


def cvae_loss(output: Reconstruction, truth: Truth, unit_m: float, config: CVAELossConfig) -> Terms:
    """ "reconstruction", "divergence" and "best", means over scenes, and "loss"; the unit of the model is `unit_m` metres."""
    terms = {
        "reconstruction": _squared_error(output.position, truth, unit_m),
        "divergence": output.posterior.divergence(output.prior),
        "best": _squared_error(output.best, truth, unit_m),
    }
    return _scene_means(terms, truth.valid.any(-1), config)


def sampler_loss(
    forecast: Forecast, truth: Truth, unit_m: float, config: SamplerLossConfig
) -> Terms:
    """ "best", "divergence", "diversity" and "loss" of the second stage, as `cvae_loss`; the forecast has latents and prior."""
    assert forecast.latent is not None and forecast.prior is not None
    position = forecast.in_batch_frame()
    error = _squared_error(
        position.transpose(1, 2), truth.map(lambda value: value[:, None]), unit_m
    ).transpose(1, 2)  # [B, S, K]
    first, second = torch.triu_indices(
        forecast.num_modes, forecast.num_modes, 1, device=position.device
    )
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
    means = {
        name: torch.where(known, value, 0.0).sum(-1) / known.sum(-1).clamp(min=1)
        for name, value in terms.items()
    }
    means["divergence"] = means["divergence"].clamp(min=config.free)
    scenes = known.any(-1)
    count = total(scenes)
    means = {name: torch.where(scenes, value, 0.0).sum() / count for name, value in means.items()}
    return combine([means], config)


@dataclass(frozen=True)
class RoadConfig(Config, positive=("radius_m", "max_polylines", "map_width")):
    """Lanes as context tokens and headings as inputs, for traffic.

    Attributes:
        radius_m: largest distance of a lane from the origin of the scene.
        max_polylines: number of lanes, the nearest ones.
        map_width: width inside the polyline subgraph.
    """

    radius_m: float = 100.0
    max_polylines: int = 120
    map_width: int = 64


@dataclass(frozen=True)
class AgentFormerConfig(
    ModelConfig,
    positive=(
        "samples",
        "evaluation_samples",
        "latent",
        "scale_m",
        "steps_per_token",
        "num_history",
    ),
):
    """Sizes of AgentFormer; the defaults are the paper's.

    Attributes:
        samples: K, number of futures drawn from the prior.
        latent: Z, size of the latent of an agent.
        block: shape of all transformer blocks; `agent_aware` is always True.
        layers: number of layers of context encoder, future encoder and future decoder.
        hidden: widths of the hidden layers of the output networks; of the released models, only eth has any.
        scale_m: unit of the model in metres; the paper has 2 for eth, 1 for other pedestrians, 10 for nuScenes.
        origin: positions are relative to the mean of all observed positions, or of the last ones (released model of zara1).
        extrapolate: futures are offsets from constant velocity (mean of the last half second) instead of the last observed
            position, which is the paper's choice.
        tiny_start: initialise output networks with tiny weights, as in the released code. On roads, training then learns speeds
            first and turns only after a long time.
        steps_per_token: number of steps read or decoded as one token; only the last one is fed back. The paper has 1.
        num_history: the last observed step has time num_history - 1, for any length of the history.
        road: inputs for traffic, none by default.
        joint: mode k of all targets has one probability. Samples of a scene are always drawn together.
        seed: seed of the noise in evaluation, which depends on the names of scene and agent only.
        evaluation_samples: K in evaluation, by default `samples`.
        mean_first: the most probable sample is the one nearest to the decoded mean of the prior, not the one nearest to all
            samples.
    """

    samples: int = 20
    latent: int = 32
    block: BlockConfig = field(
        default_factory=lambda: BlockConfig(256, 8, 512, norm_first=False, agent_aware=True)
    )
    layers: tuple[int, int, int] = (2, 2, 2)
    hidden: tuple[int, ...] = (512, 256)
    scale_m: float = 1.0
    origin: Literal["observed", "last"] = "observed"
    extrapolate: bool = False
    tiny_start: bool = True
    steps_per_token: int = 1
    num_history: int = 8
    road: RoadConfig | None = None
    joint: bool = False
    seed: int = 0
    evaluation_samples: int | None = None
    mean_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 in self.hidden:
            raise ConfigError("hidden", f"{self.hidden}, expected positive sizes")
        if min(self.layers[1:]) < 1:
            raise ConfigError(
                "layers",
                f"{self.layers}, expected at least one in future encoder and future decoder",
            )


class AgentFormer(Forecaster, config=AgentFormerConfig):
    """Observation -> Forecast in the batch frame: K joint samples as modes.

    In evaluation, the samples of an agent do not depend on the batch, and logits are from `modes.coverage`. In training, logits
    are equal.
    """

    losses = (CVAELossConfig,)
    compiled_methods = ("reconstruct",)
    equivariant = False  # positions and headings enter in the axes of the batch
    find_unused_parameters = (
        True  # a scene with a single agent uses one of the two score terms only
    )

    def __init__(self, config: AgentFormerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.joint
        block, road = replace(config.block, agent_aware=True), config.road
        encoder, future, decoder = config.layers
        per_token, heading = config.steps_per_token, road is not None
        inputs = (4 if per_token == 1 else 5 * per_token) + 2 * heading  # as in `token_inputs`
        self.context = ContextEncoder(inputs, block, encoder)
        self.future = FutureEncoder(inputs, block, future, config.hidden, config.latent, per_token)
        self.decoder = FutureDecoder(
            2 + 2 * heading + config.latent, block, decoder, config.hidden, per_token
        )
        if not config.tiny_start:
            for layer in (*self.future.out.modules(), *self.decoder.out.modules()):
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.prior = initialize(nn.Linear(block.width, 2 * config.latent))
        self.lanes = (
            None
            if road is None
            else MapTokenizer(block.width, road.map_width, road.radius_m, road.max_polylines)
        )

    def forward(self, observation: Observation) -> Forecast:
        """Sample K futures for each target."""
        context = self.encode(observation)
        prior = self.prior_of(context)
        z = prior.at(self._noise(observation, prior.mean))
        return self.decode_samples(observation, context, z, prior, prior, scored=not self.training)

    def encode(self, observation: Observation) -> Context:
        """Encode the observed steps of all agents and the lanes."""
        valid, origin = observation.valid, self._origin(observation)
        position = (
            (observation.position - origin[:, None, None]) / self.config.scale_m * valid[..., None]
        )
        last = last_valid(valid)[..., None]
        start = position.take_along_dim(last[..., None], 2).squeeze(2)
        angle = (observation.heading * valid).gather(2, last)
        heading = torch.cat([angle.cos(), angle.sin()], -1)[..., : 2 if self.lanes else 0]
        per_token = self.config.steps_per_token
        inputs, real = token_inputs(
            position, displacements(position, valid), valid, heading, per_token, past=True
        )
        velocity = torch.zeros_like(start)
        if self.config.extrapolate:
            velocity = extrapolate(observation)[1] * (observation.period_s / self.config.scale_m)
        steps = torch.arange(observation.num_history, device=valid.device)
        time = (
            steps.flip(0)[::per_token].flip(0) - observation.num_history + self.config.num_history
        )
        state = {
            "present": valid[..., -1],
            "start": start,
            "velocity": velocity,
            "heading": heading,
        }
        return self.context(inputs, real, time, self._lane_tokens(observation, origin), **state)

    def prior_of(self, context: Context) -> Gaussian:
        """The distribution of the latents given the past [B, 1, A, Z]."""
        return Gaussian(*self.prior(context.agent).float()[:, None].chunk(2, -1))

    def decode_samples(
        self,
        observation: Observation,
        context: Context,
        z: Tensor,
        latent: Gaussian,
        prior: Gaussian,
        *,
        scored: bool,
    ) -> Forecast:
        """The forecast of latents, with a gradient if gradients are enabled.

        `z` [B, K, A, Z] are samples of `latent` [B, K or 1, A, Z]; `prior` is [B, 1, A, Z]. With `scored`, modes have the scores
        of evaluation; otherwise they are equally likely.
        """
        with_mean = scored and self.config.mean_first
        drawn = torch.cat([z, prior.mean], 1) if with_mean else z
        position = self.decoder.rollout(drawn, context, observation.num_future)
        if torch.is_grad_enabled():
            position = self.decoder.replay(drawn, context, position)
        modes = self._to_batch(observation, position[:, : z.shape[1]])
        latent, prior = (
            x.map(lambda part: part[:, :, : observation.num_targets].transpose(1, 2))
            for x in (latent, prior)
        )
        forecast = Forecast(
            modes, torch.zeros_like(modes[..., 0, 0]), observation.frame, latent=latent, prior=prior
        )
        if not scored:
            return forecast
        guess = self._to_batch(observation, position[:, -1:])[:, :, 0] if with_mean else None
        return coverage(forecast, observation.target_mask if self.config.joint else None, guess)

    def reconstruct(self, observation: Observation, truth: Truth) -> Reconstruction:
        """The input of the training loss: futures decoded from the posterior, which reads the truth, and from the prior."""
        context, count, samples = (
            self.encode(observation),
            observation.num_targets,
            self.config.samples,
        )
        valid = truth.valid.transpose(1, 2)
        target = (
            (truth.position - self._origin(observation)[:, None, None])
            / self.config.scale_m
            * truth.valid[..., None]
        )
        prior, posterior = self.prior_of(context), self._posterior(target, truth.valid, context)
        noise = torch.randn(len(valid), 1 + samples, *prior.mean.shape[2:], device=valid.device)
        drawn = prior.at(noise)
        known = valid.any(1)  # agents without a known future have no posterior
        first = torch.where(
            known[..., None], posterior.at(noise[:, 0, :count]), drawn[:, 0, :count]
        )
        z = torch.cat(
            [torch.cat([first, drawn[:, 0, count:]], 1)[:, None], drawn[:, 1:]], 1
        )  # [B, 1 + K, A, Z]
        rolled = self.decoder.rollout(z, context, observation.num_future)
        error = (rolled[:, 1:, :, :count] - target.transpose(1, 2)[:, None]).square().sum(
            -1
        ) * valid[:, None]
        rows, index = distinct_samples(error.sum(2).argmin(1), known, samples)
        scene = torch.arange(len(valid), device=valid.device)[:, None]
        rows = torch.cat([torch.zeros_like(rows[:, :1]), 1 + rows], 1)
        position = self._to_batch(
            observation, self.decoder.replay(z[scene, rows], context, rolled[scene, rows])
        )
        agent = torch.arange(count, device=valid.device)
        prior = prior.map(lambda part: part[:, 0, :count])
        return Reconstruction(
            position[:, :, 0], position[scene, agent, 1 + index], posterior, prior
        )

    def _posterior(self, target: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Latents [B, S, Z] given the past and the normalised futures [B, S, F, 2]."""
        count = target.shape[1]
        before = torch.cat([context.start[:, :count, None], target[:, :, :-1]], 2)
        known = torch.cat([torch.ones_like(valid[..., :1]), valid[..., :-1]], 2) & valid
        displacement, heading = (target - before) * known[..., None], context.heading[:, :count]
        inputs, real = token_inputs(
            target, displacement, valid, heading, self.config.steps_per_token, past=False
        )
        return self.future(inputs, real, context)

    def _lane_tokens(self, observation: Observation, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, M, D] of the lanes around the origin [B, 2], and bool [B, M]."""
        if self.lanes is None:
            mask = torch.zeros(len(origin), 0, dtype=torch.bool, device=origin.device)
            return origin.new_zeros(len(origin), 0, self.config.block.width), mask
        pose = torch.cat([origin, torch.zeros_like(origin[:, :1])], -1)[:, None]
        tokens, mask = self.lanes(replace(observation, pose=pose), 1)
        return tokens[:, 0], mask[:, 0]

    def _to_batch(self, observation: Observation, position: Tensor) -> Tensor:
        """Normalised positions [B, K, F, A, 2] to positions of the targets [B, S, K, F, 2], metres in the batch frame."""
        targets = position[:, :, :, : observation.num_targets].permute(0, 3, 1, 2, 4)
        return targets * self.config.scale_m + self._origin(observation)[:, None, None, None]

    def _noise(self, observation: Observation, like: Tensor) -> Tensor:
        """Standard normal [B, K, A, Z]; in evaluation a function of seed, scene name and agent name."""
        if self.training:
            return torch.randn(len(like), self.config.samples, *like.shape[2:], device=like.device)
        count, agents, latent = (
            self.config.evaluation_samples or self.config.samples,
            *like.shape[2:],
        )
        noise = named_noise(observation, agents, count * latent, self.config.seed)
        return noise.to(like.device).unflatten(-1, (count, latent)).transpose(1, 2)

    def _origin(self, observation: Observation) -> Tensor:
        """Origin [B, 2] of each scene: mean of all observed positions, or (`last`) of the last step, if an agent is present."""
        mask = observation.valid
        if self.config.origin == "last":
            last = F.pad(mask[..., -1:], (mask.shape[-1] - 1, 0))
            mask = torch.where(last.any(-1).any(-1)[:, None, None], last, mask)
        return masked_mean(observation.position, mask[..., None], (1, 2))


def distinct_samples(best: Tensor, known: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The samples that are the best one of any target, without repetition.

    From the index of each target's best sample, int64 [B, S], and the targets with a known future, bool [B, S], to rows int64 [B,
    k] of distinct samples, and int64 [B, S], the position of each target's best sample in them. k is the largest number that a
    scene needs, or the largest possible one where values cannot be read.
    """
    needed = (F.one_hot(best, samples).bool() & known[..., None]).any(1)
    readable = (
        best.device.type == "cpu" and not torch.compiler.is_compiling()
    )  # a GPU would wait, a graph has no values
    count = int(needed.sum(1).max()) if readable else min(samples, best.shape[1])
    rows = needed.int().argsort(dim=1, descending=True, stable=True)[:, : max(count, 1)]
    return rows, (rows[:, None] == best[..., None]).int().argmax(-1)


@dataclass(frozen=True)
class AgentFormerSamplerConfig(ModelConfig, positive=("hidden",)):
    """Sizes of the sampler.

    Attributes:
        cvae: config of the first stage; `samples` is the number of modes.
        hidden: widths of the network.
        noise: draw eps in training, as in the paper; otherwise, and in evaluation, eps is 0, as in the released configurations.
    """

    cvae: AgentFormerConfig = field(default_factory=AgentFormerConfig)
    hidden: tuple[int, int] = (512, 256)
    noise: bool = False


class AgentFormerSampler(Forecaster, config=AgentFormerSamplerConfig):
    """Observation -> Forecast in the batch frame, with the distributions of the latents; evaluation is deterministic."""

    losses = (SamplerLossConfig,)
    equivariant = False
    needs_first_stage = True

    def __init__(self, config: AgentFormerSamplerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.cvae.joint
        self.cvae = AgentFormer(config.cvae).requires_grad_(False).eval()
        widths, outputs = (
            (config.cvae.block.width, *config.hidden),
            config.cvae.samples * config.cvae.latent,
        )
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        self.network = nn.Sequential(
            *(nn.Sequential(initialize(layer), nn.Tanh()) for layer in layers)
        )
        self.scale, self.shift = nn.Linear(widths[-1], outputs), nn.Linear(widths[-1], outputs)

    def train(self, mode: bool = True) -> AgentFormerSampler:
        """Set the mode; the CVAE stays in evaluation mode."""
        super().train(mode)
        self.cvae.eval()
        return self

    def prepare(
        self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Copy the weights of the first stage (TrajformerError: other sizes); only the number of samples may differ."""
        expected, sizes = self.config.cvae, None
        if isinstance(first_stage, AgentFormer):
            free = {
                name: getattr(expected, name)
                for name in ("samples", "evaluation_samples", "mean_first")
            }
            sizes = replace(first_stage.config, **free)
        if first_stage is None or sizes != expected:
            raise TrajformerError(
                "is no AgentFormer as model.agentformer_sampler.cvae describes it"
            )
        self.cvae.load_state_dict(first_stage.state_dict())

    def forward(self, observation: Observation) -> Forecast:
        """Predict K modes for each target."""
        with torch.no_grad():
            context = self.cvae.encode(observation)
            prior = self.cvae.prior_of(context)
        hidden = self.network(context.agent)
        scale, shift = (
            layer(hidden)
            .float()
            .unflatten(-1, (self.config.cvae.samples, -1))
            .transpose(1, 2)  # [B, K, A, Z]
            for layer in (self.scale, self.shift)
        )
        z = shift
        if self.training and self.config.noise:
            z = z + scale * torch.randn(len(z), 1, 1, z.shape[-1], device=z.device)
        latent = Gaussian(shift, (scale.square() + 1e-8).log())
        return self.cvae.decode_samples(
            observation, context, z, latent, prior, scored=not self.training
        )
