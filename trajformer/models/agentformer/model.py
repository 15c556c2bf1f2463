"""AgentFormer (Yuan et al., ICCV 2021): a CVAE whose networks attend to all agents at all steps at once.

Read as the released code has it, with these choices of ours. Scenes are batched, padded. Whoever was seen is context, whoever
was there at the last observed step is decoded along with the targets, so that a forecast does not depend on who turns out to
have a future. Unseen steps are masked tokens. A fed-back position has no gradient, and neither have samples that are nobody's
best one: so samples are rolled out with cached keys and values, and only the best ones pass the decoder again, all steps at
once, to be learned from. Only that pass has dropout, which the plain formulation has in the samples, too; without it loss and
gradient are the same. On roads, lanes are further context tokens in place of a picture of the map. Recorded ten times a
second, steps can be taken several at a time (`steps_per_token`), for the paper's own steps are of .4 and .5 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import Observation, Truth
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.errors import ConfigError, check_numbers
from trajformer.models.agentformer.loss import CVAELossConfig
from trajformer.models.agentformer.parts import ContextEncoder, FutureDecoder, FutureEncoder, initialise
from trajformer.models.agentformer.scene import Context, Observed, Reconstruction, inputs_per_token, tokens_of, used, velocity
from trajformer.models.constant_velocity import extrapolate
from trajformer.models.forecaster import Forecaster
from trajformer.models.modes import coverage
from trajformer.models.noise import named_noise
from trajformer.models.tokens import MapTokenizer


@dataclass(frozen=True)
class RoadConfig:
    """Lanes as context tokens and headings as inputs, for traffic.

    Attributes:
        radius_m: lanes farther than this from the mean of all observed positions are not seen.
        max_polylines: how many lanes are, the nearest ones.
        map_width: width inside the polyline subgraph.
    """

    radius_m: float = 100.0
    max_polylines: int = 120
    map_width: int = 64

    def __post_init__(self) -> None:
        check_numbers(self, positive=("radius_m", "max_polylines", "map_width"))


@dataclass(frozen=True)
class AgentFormerConfig:
    """Sizes of AgentFormer; the defaults are the paper's.

    Attributes:
        samples: K futures drawn from the prior.
        latent: Z, of each agent.
        block: shape of every transformer block; `agent_aware` is always on.
        layers: of context encoder, future encoder and future decoder.
        hidden: widths inside the output networks; the released models of all scenes but eth have none.
        scale_m: metres that are 1 inside; the paper has 2 for eth, 1 for the other pedestrians, 10 for nuScenes.
        origin: positions are relative to the mean of all observed ones, or of the last ones (the released model of zara1).
        extrapolate: futures are offsets from going on at the mean velocity of the last half second instead of from the last
            observed position, as the paper has it.
        tiny_start: output networks begin with tiny weights, as the released code's do. What they tell apart they then learn one
            direction after the other: on roads speeds, and no turns for a long time.
        reach_m: agents farther apart than this at the last observed step do not attend to each other; 0 for no limit.
        steps_per_token: that a token stands for. With several they are read and decoded that many at a time, and only the last of
            them is fed back. The paper has one, which takes .4 s for pedestrians and .5 s for nuScenes.
        num_history: usual number of observed steps: the last one has time num_history - 1, whatever a scene has.
        road: inputs for traffic, none by default.
        joint: a mode has one probability for all targets together; samples are drawn together in any case.
        seed: of the noise in evaluation, where an agent's samples depend on its and its scene's name alone.
        evaluation_samples: K in evaluation, where it is another: more of them cover more, and scores tell which stand for all.
        mean_first: the most probable sample is that nearest to what the mean of the prior is decoded to, not that nearest to all.
    """

    samples: int = 20
    latent: int = 32
    block: BlockConfig = field(default_factory=lambda: BlockConfig(256, 8, 512, norm_first=False, agent_aware=True))
    layers: tuple[int, int, int] = (2, 2, 2)
    hidden: tuple[int, ...] = (512, 256)
    scale_m: float = 1.0
    origin: Literal["observed", "last"] = "observed"
    extrapolate: bool = False
    tiny_start: bool = True
    reach_m: float = 0.0
    steps_per_token: int = 1
    num_history: int = 8
    road: RoadConfig | None = None
    joint: bool = False
    seed: int = 0
    evaluation_samples: int | None = None
    mean_first: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, positive=("samples", "evaluation_samples", "latent", "scale_m", "steps_per_token", "num_history"))
        if min(self.layers[1:]) < 1:
            raise ConfigError("layers", f"{self.layers}, expected at least one in future encoder and future decoder")

    def build(self) -> AgentFormer:
        """The model, with random weights."""
        return AgentFormer(self)


class AgentFormer(Forecaster):
    """Observation -> Forecast in the batch frame: K joint samples as modes.

    In evaluation samples are the same in whatever batch, and their logits are `coverage`; in training they are equal.

    Raises:
        TrajformerError: a size that cannot be.
    """

    losses = (CVAELossConfig,)
    equivariant = False  # positions and headings enter in the axes of the batch
    partial = True  # agents that are alone use one of the two score terms only

    def __init__(self, config: AgentFormerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.joint
        block, road = replace(config.block, agent_aware=True), config.road
        encoder, future, decoder = config.layers
        per_token, heading = config.steps_per_token, road is not None
        inputs = inputs_per_token(per_token, heading)
        self.context = ContextEncoder(inputs, block, encoder)
        self.future = FutureEncoder(inputs, block, future, config.hidden, config.latent, per_token)
        self.decoder = FutureDecoder(2 + 2 * heading + config.latent, block, decoder, config.hidden, per_token)
        if not config.tiny_start:
            for layer in (*self.future.out.modules(), *self.decoder.out.modules()):
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.prior = initialise(nn.Linear(block.width, 2 * config.latent))
        self.lanes = None if road is None else MapTokenizer(block.width, road.map_width, road.radius_m, road.max_polylines)

    def forward(self, observation: Observation) -> Forecast:
        """Sample K futures of every target."""
        context = self.encode(observation)
        prior = self.prior_of(context)
        return self.modes(
            observation, context, prior.at(self._noise(observation, prior.mean)), prior, prior, scored=not self.training
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile what is called in forecasting and in training."""
        super().compile(*args, **kwargs)
        self.__dict__["reconstruct"] = torch.compile(self.reconstruct, *args, **kwargs)

    def modes(
        self, observation: Observation, context: Context, z: Tensor, latent: Gaussian, prior: Gaussian, *, scored: bool
    ) -> Forecast:
        """The futures of latents [B, K, A, Z], drawn from `latent`; equally likely, or with the logits of evaluation."""
        guessed = scored and self.config.mean_first
        position = self.decode(context, torch.cat([z, prior.mean], 1) if guessed else z, observation.num_future)
        forecast = self.forecast(observation, position[:, : z.shape[1]], latent, prior)
        guess = self._to_batch(observation, position[:, -1:])[:, :, 0] if guessed else None
        return coverage(forecast, observation.target_mask if self.config.joint else None, guess) if scored else forecast

    def encode(self, observation: Observation) -> Context:
        """What has been observed, encoded."""
        valid, origin = observation.valid, self._origin(observation)
        xy = (observation.position - origin[:, None, None]) / self.config.scale_m * valid[..., None]
        steps = torch.arange(observation.num_history, device=valid.device)
        last = torch.where(valid, steps, -1).amax(-1, keepdim=True).clamp(min=0)
        start = xy.gather(2, last[..., None].expand(*last.shape, 2)).squeeze(2)
        angle = (observation.heading * valid).gather(2, last)
        heading = torch.cat([angle.cos(), angle.sin()], -1)[..., : 2 if self.lanes else 0]
        near = None
        if self.config.reach_m:
            near = pairwise_distances(start, start) <= self.config.reach_m / self.config.scale_m
        lanes, lane_mask = self._lanes(observation, origin)
        inputs, real = tokens_of(xy, velocity(xy, valid), valid, heading, self.config.steps_per_token, past=True)
        seen = torch.cat([real.flatten(1), lane_mask], 1)
        drift = torch.zeros_like(start)
        if self.config.extrapolate:
            drift = extrapolate(observation)[1] * (observation.period_s / self.config.scale_m)
        observed = Observed(seen, valid[..., -1], start, drift, heading, near, lanes.shape[1])
        time = steps.flip(0)[:: self.config.steps_per_token].flip(0) - observation.num_history + self.config.num_history
        return self.context(inputs, time, lanes, observed)

    def prior_of(self, context: Context) -> Gaussian:
        """The latents given the past [B, 1, A, Z]."""
        return Gaussian(*self.prior(context.agent).float()[:, None].chunk(2, -1))

    def decode(self, context: Context, z: Tensor, steps: int) -> Tensor:
        """Latents [B, K, A, Z] to normalised positions [B, K, steps, A, 2]; gradients reach the latents where they are wanted."""
        rolled = self.decoder.rollout(z, context, steps)
        return self.decoder.replay(z, context, rolled) if torch.is_grad_enabled() else rolled

    def forecast(self, observation: Observation, position: Tensor, latent: Gaussian, prior: Gaussian | None = None) -> Forecast:
        """The targets' part of normalised positions [B, K, F, A, 2], equally likely, and of distributions [B, K or 1, A, Z]."""
        position = self._to_batch(observation, position)

        def of_targets(all_agents: Gaussian) -> Gaussian:
            parts = (all_agents.mean, all_agents.log_variance)
            return Gaussian(*(part[:, :, : observation.num_targets].transpose(1, 2) for part in parts))

        given = None if prior is None else of_targets(prior)
        logit = torch.zeros_like(position[..., 0, 0])
        return Forecast(position, logit, observation.frame, latent=of_targets(latent), prior=given)

    def reconstruct(self, observation: Observation, truth: Truth) -> Reconstruction:
        """What to train on: it reads the batch's targets, as no forecast may, and draws from torch's own generator."""
        context, count = self.encode(observation), observation.num_targets
        valid = truth.valid.transpose(1, 2)
        target = (truth.position - self._origin(observation)[:, None, None]) / self.config.scale_m * truth.valid[..., None]
        prior, posterior = self.prior_of(context), self._posterior(target, truth.valid, context)
        noise = torch.randn(len(valid), 1 + self.config.samples, *prior.mean.shape[2:], device=valid.device)
        drawn = prior.at(noise)
        real = valid.any(1)  # those who have a future; of all others nothing is known but the prior
        first = torch.where(real[..., None], posterior.at(noise[:, 0, :count]), drawn[:, 0, :count])
        z = torch.cat([torch.cat([first, drawn[:, 0, count:]], 1)[:, None], drawn[:, 1:]], 1)
        rolled = self.decoder.rollout(z, context, observation.num_future)
        error = (rolled[:, 1:, :, :count] - target.transpose(1, 2)[:, None]).square().sum(-1) * valid[:, None]
        best = error.sum(2).argmin(1)  # [B, S], of K
        rows, place = used(best, real, self.config.samples)
        scene = torch.arange(len(valid), device=valid.device)[:, None]
        rows = torch.cat([torch.zeros_like(rows[:, :1]), 1 + rows], 1)
        position = self._to_batch(observation, self.decoder.replay(z[scene, rows], context, rolled[scene, rows]))
        agent = torch.arange(count, device=valid.device)
        prior = Gaussian(prior.mean[:, 0, :count], prior.log_variance[:, 0, :count])
        return Reconstruction(position[:, :, 0], position[scene, agent, 1 + place], posterior, prior)

    def _posterior(self, target: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Latents given normalised futures [B, S, F, 2], too: [B, S, Z]."""
        count = target.shape[1]
        before = torch.cat([context.start[:, :count, None], target[:, :, :-1]], 2)
        known = torch.cat([torch.ones_like(valid[..., :1]), valid[..., :-1]], 2) & valid
        moved, heading = (target - before) * known[..., None], context.heading[:, :count]
        return self.future(*tokens_of(target, moved, valid, heading, self.config.steps_per_token, past=False), context)

    def _lanes(self, observation: Observation, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, M, D] of lanes around the origin, seen from there, and which are real."""
        if self.lanes is None:
            width = self.config.block.width
            return origin.new_zeros(len(origin), 0, width), torch.zeros(len(origin), 0, dtype=torch.bool, device=origin.device)
        pose = torch.cat([origin, torch.zeros_like(origin[:, :1])], -1)[:, None]
        tokens, mask = self.lanes(replace(observation, pose=pose), 1)
        return tokens[:, 0], mask[:, 0]

    def _to_batch(self, observation: Observation, position: Tensor) -> Tensor:
        """Normalised positions [B, K, F, A, 2] as the targets' in metres in the batch frame [B, S, K, F, 2]."""
        chosen = position[:, :, :, : observation.num_targets].permute(0, 3, 1, 2, 4)
        return chosen * self.config.scale_m + self._origin(observation)[:, None, None, None]

    def _noise(self, observation: Observation, like: Tensor) -> Tensor:
        """Standard normal [B, K, A, Z]; in evaluation an agent's is a function of seed, scene and its own name."""
        count = (None if self.training else self.config.evaluation_samples) or self.config.samples
        shape = (len(like), count, *like.shape[2:])
        if self.training:
            return torch.randn(shape, device=like.device)
        noise = named_noise(observation, shape[2], shape[1] * shape[3], self.config.seed)
        return noise.to(like.device).unflatten(-1, (shape[1], -1)).transpose(1, 2)

    def _origin(self, observation: Observation) -> Tensor:
        """What positions of a scene are relative to [B, 2]; all observed ones count where nobody is there at the last step."""
        seen = observation.valid
        if self.config.origin == "last":
            here = F.pad(seen[..., -1:], (seen.shape[-1] - 1, 0))
            seen = torch.where(here.any(-1).any(-1)[:, None, None], here, seen)
        return (observation.position * seen[..., None]).sum((1, 2)) / seen.sum((1, 2)).clamp(min=1)[:, None]
