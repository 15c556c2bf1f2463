"""AgentFormer (Yuan et al., ICCV 2021): a CVAE with attention over all agents at all steps.

Differences from the released code:
- Scenes are batched with padding; unseen steps are masked tokens.
- All agents that are present are decoded together with the targets, so that a
  forecast does not depend on which agents have a recorded future.
- Samples are rolled out with a key/value cache and without a gradient. Only each agent's best
  sample is decoded again, all steps in parallel, for the gradient. Loss and gradient are equal to
  the paper's, because fed-back positions have no gradient. Dropout applies to the parallel pass
  only.
- With `road`, lanes are context tokens instead of an image of the map.
- With `steps_per_token`, a token holds several steps: the paper's steps take 0.4 or 0.5 s, steps of
  driving data 0.1 s.

The second stage is `sampler.py`; the losses of both stages are in `losses.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, masked_mean
from trajformer.data.batch import Observation, Truth
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.errors import ConfigError
from trajformer.models.agentformer.attended import attention_layers
from trajformer.models.agentformer.losses import CVAELossConfig, Reconstruction
from trajformer.models.agentformer.networks import (
    Context,
    ContextEncoder,
    FutureDecoder,
    FutureEncoder,
)
from trajformer.models.agentformer.tokens import (
    AgentStates,
    displacements,
    initialize,
    token_inputs,
    token_width,
)
from trajformer.models.attended import TargetAttention
from trajformer.models.constant_velocity import extrapolate, named_noise
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.modes import coverage
from trajformer.models.tokens import MapTokenizer, nearest_polylines


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
        hidden: widths of the hidden layers of the output networks; of the released models, only eth
            has any.
        scale_m: unit of the model in metres; the paper has 2 for eth, 1 for other pedestrians, 10
            for nuScenes.
        origin: positions are relative to the mean of all observed positions, or of the last ones
            (released model of zara1).
        extrapolate: futures are offsets from constant velocity (mean of the last half second)
            instead of the last observed position, which is the paper's choice.
        tiny_start: initialise output networks with tiny weights, as in the released code. On roads,
            training then learns speeds first and turns only after a long time.
        steps_per_token: number of steps read or decoded as one token; only the last one is fed
            back. The paper has 1.
        num_history: the last observed step has time num_history - 1, for any length of the history.
        road: inputs for traffic, none by default.
        joint: mode k of all targets has one probability. Samples of a scene are always drawn
            together.
        seed: seed of the noise in evaluation, which depends on the names of scene and agent only.
        evaluation_samples: K in evaluation, by default `samples`.
        mean_first: the most probable sample is the one nearest to the decoded mean of the prior,
            not the one nearest to all samples.
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

    In evaluation, the samples of an agent do not depend on the batch, and logits are from
    `modes.coverage`. In training, logits are equal.
    """

    losses = (CVAELossConfig,)
    compiled_methods = ("reconstruct",)
    equivariant = False  # positions and headings enter in the axes of the batch
    find_unused_parameters = True  # a scene with a single agent uses one of two score terms only

    def __init__(self, config: AgentFormerConfig) -> None:
        super().__init__()
        self.config = config
        self.joint = config.joint
        road = config.road
        block = replace(config.block, agent_aware=True)
        per_token = config.steps_per_token
        context_layers, future_layers, decoder_layers = config.layers
        inputs = token_width(per_token, heading=road is not None)
        self.context = ContextEncoder(inputs, block, context_layers)
        self.future = FutureEncoder(
            inputs, block, future_layers, config.hidden, config.latent, per_token
        )
        # Inputs of the decoder: the position that is fed back, the heading, and the latent.
        decoder_inputs = 2 + config.latent
        if road is not None:
            decoder_inputs += 2
        self.decoder = FutureDecoder(
            decoder_inputs, block, decoder_layers, config.hidden, per_token
        )
        if not config.tiny_start:
            for layer in (*self.future.out.modules(), *self.decoder.out.modules()):
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.prior = initialize(nn.Linear(block.width, 2 * config.latent))
        self.lanes = None
        if road is not None:
            self.lanes = MapTokenizer(
                block.width, road.map_width, road.radius_m, road.max_polylines
            )

    def forward(self, observation: Observation) -> Forecast:
        """Sample K futures for each target."""
        context = self.encode(observation)
        prior = self.prior_of(context)
        z = prior.at(self._noise(observation, prior.mean))  # [B, K, A, Z]
        return self.decode_samples(observation, context, z, prior, prior, scored=not self.training)

    def encode(self, observation: Observation) -> Context:
        """Encode the observed steps of all agents and the lanes."""
        origin = self._origin(observation)
        position = self._normalize(observation.position, observation.valid, origin)  # [B, A, H, 2]
        start = position[:, :, -1]
        heading = self._last_heading(observation)
        valid = observation.valid
        states = AgentStates(position, displacements(position, valid), valid, observation.recorded)
        inputs, real = token_inputs(states, heading, self.config.steps_per_token, past=True)
        lanes, lane_mask = self._lane_tokens(observation, origin)
        time = self._past_times(observation)
        present = observation.present
        memory, mask, agent = self.context(inputs, real, present, time, lanes, lane_mask)
        return Context(
            memory,
            mask,
            num_lanes=lanes.shape[1],
            agent=agent,
            present=present,
            start=start,
            velocity=self._velocity(observation, start),
            heading=heading,
        )

    def prior_of(self, context: Context) -> Gaussian:
        """The distribution of the latents given the past [B, 1, A, Z]."""
        output = self.prior(context.agent).float()[:, None]
        return Gaussian(*output.chunk(2, -1))

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

        `z` [B, K, A, Z] are samples of `latent` [B, K or 1, A, Z]; `prior` is [B, 1, A, Z]. With
        `scored`, modes have the scores of evaluation; otherwise they are equally likely.
        """
        with_mean = scored and self.config.mean_first
        decoded = torch.cat([z, prior.mean], 1) if with_mean else z
        position = self.decoder.rollout(decoded, context, observation.num_future)
        if torch.is_grad_enabled():
            position = self.decoder.replay(decoded, context, position)

        modes = self._to_batch(observation, position[:, : z.shape[1]])  # [B, S, K, F, 2]
        forecast = Forecast(
            modes,
            torch.zeros_like(modes[..., 0, 0]),
            observation.frame,
            latent=_of_targets(latent, observation),
            prior=_of_targets(prior, observation),
        )
        if not scored:
            return forecast
        single = None
        if with_mean:
            single = self._to_batch(observation, position[:, -1:])[:, :, 0]  # [B, S, F, 2]
        together = observation.target_mask if self.joint else None
        return coverage(forecast, together, single)

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers of context encoder and future decoder.

        Shares are the mean over the past tokens of a target, or over samples and future tokens.
        """
        lanes = self._lane_indices(observation)
        return attention_layers(observation, lanes, self.context, self.decoder)

    def reconstruct(self, observation: Observation, truth: Truth) -> Reconstruction:
        """The input of the training loss.

        Futures are decoded from the posterior, which reads the truth, and from the prior.
        """
        num_targets = observation.num_targets
        samples = self.config.samples
        context = self.encode(observation)
        target = self._normalize(truth.position, truth.valid, self._origin(observation))
        prior = self.prior_of(context)  # [B, 1, A, Z]
        posterior = self._posterior(target, truth.valid, context)  # [B, S, Z]

        # Latents [B, 1 + K, A, Z]: one of the posterior, K of the prior. Agents without a known
        # future have no posterior.
        device = target.device
        shape = (len(target), 1 + samples, *prior.mean.shape[2:])
        noise = torch.randn(*shape, device=device)
        z = prior.at(noise)
        known = truth.valid.any(-1)  # [B, S]
        from_posterior = posterior.at(noise[:, 0, :num_targets])
        first = torch.where(known[..., None], from_posterior, z[:, 0, :num_targets])
        first = torch.cat([first, z[:, 0, num_targets:]], 1)
        z = torch.cat([first[:, None], z[:, 1:]], 1)

        # The best sample of each agent.
        rolled = self.decoder.rollout(z, context, observation.num_future)  # [B, 1 + K, F, A, 2]
        gap = rolled[:, 1:, :, :num_targets] - target.transpose(1, 2)[:, None]
        error = gap.square().sum(-1) * truth.valid.transpose(1, 2)[:, None]  # [B, K, F, S]
        best = error.sum(2).argmin(1)
        rows, index = distinct_samples(best, known, samples)

        # Only the sample of the posterior and the best samples are decoded with a gradient.
        scene = torch.arange(len(target), device=device)[:, None]
        rows = torch.cat([torch.zeros_like(rows[:, :1]), 1 + rows], 1)
        replayed = self.decoder.replay(z[scene, rows], context, rolled[scene, rows])
        position = self._to_batch(observation, replayed)  # [B, S, 1 + k, F, 2]
        agent = torch.arange(num_targets, device=device)
        return Reconstruction(
            position[:, :, 0],
            position[scene, agent, 1 + index],
            posterior,
            prior.map(lambda part: part[:, 0, :num_targets]),
        )

    def _normalize(self, position: Tensor, valid: Tensor, origin: Tensor) -> Tensor:
        """Positions [B, A, T, 2] in metres to normalised units; zero where not valid."""
        return (position - origin[:, None, None]) / self.config.scale_m * valid[..., None]

    def _last_heading(self, observation: Observation) -> Tensor:
        """Cosine and sine [B, A, 2] at the present, or [B, A, 0] without a road."""
        if self.lanes is None:
            return observation.heading.new_zeros(*observation.agent_mask.shape, 0)
        angle = (observation.heading * observation.valid)[..., -1:]
        return torch.cat([angle.cos(), angle.sin()], -1)

    def _past_times(self, observation: Observation) -> Tensor:
        """Int64 [H'], the time of each token: of its last step."""
        num_history = observation.num_history
        steps = torch.arange(num_history, device=observation.valid.device)
        last_steps = steps.flip(0)[:: self.config.steps_per_token].flip(0)
        return last_steps - num_history + self.config.num_history

    def _velocity(self, observation: Observation, start: Tensor) -> Tensor:
        """Displacements per step [B, A, 2] that futures are offsets from, in normalised units."""
        if not self.config.extrapolate:
            return torch.zeros_like(start)
        _, velocity = extrapolate(observation)
        return velocity * (observation.period_s / self.config.scale_m)

    def _posterior(self, target: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Latents [B, S, Z] given the past and the normalised futures [B, S, F, 2]."""
        num_targets = target.shape[1]
        start = context.start[:, :num_targets, None]
        previous = torch.cat([start, target[:, :, :-1]], 2)
        start_valid = torch.ones_like(valid[..., :1])
        known = torch.cat([start_valid, valid[..., :-1]], 2) & valid
        displacement = (target - previous) * known[..., None]
        heading = context.heading[:, :num_targets]
        states = AgentStates(target, displacement, valid, recorded=valid)
        inputs, real = token_inputs(states, heading, self.config.steps_per_token, past=False)
        return self.future(inputs, real, context)

    def _lane_indices(self, observation: Observation) -> Tensor:
        """Int64 [B, M], the piece of a polyline of each lane token."""
        if self.lanes is None:
            return observation.agent_kind[:, :0]
        centered = _at_origin(observation, self._origin(observation))
        index, _, _ = nearest_polylines(centered, 1, self.lanes.radius_m, self.lanes.count)
        return index[:, 0]

    def _lane_tokens(self, observation: Observation, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, M, D] of the lanes around the origin [B, 2], and bool [B, M]."""
        if self.lanes is None:
            mask = torch.zeros(len(origin), 0, dtype=torch.bool, device=origin.device)
            return origin.new_zeros(len(origin), 0, self.config.block.width), mask
        tokens, mask = self.lanes(_at_origin(observation, origin), 1)
        return tokens[:, 0], mask[:, 0]

    def _to_batch(self, observation: Observation, position: Tensor) -> Tensor:
        """Normalised positions [B, K, F, A, 2] to targets [B, S, K, F, 2], metres in the batch."""
        targets = position[:, :, :, : observation.num_targets].permute(0, 3, 1, 2, 4)
        return targets * self.config.scale_m + self._origin(observation)[:, None, None, None]

    def _noise(self, observation: Observation, mean: Tensor) -> Tensor:
        """Standard normal [B, K, A, Z] for means [B, 1, A, Z].

        In evaluation it is a function of seed, scene name and agent name.
        """
        samples = self.config.samples
        agents, latent = mean.shape[2:]
        if self.training:
            return torch.randn(len(mean), samples, agents, latent, device=mean.device)
        if self.config.evaluation_samples is not None:
            samples = self.config.evaluation_samples
        noise = named_noise(observation, agents, samples * latent, self.config.seed)
        noise = noise.to(mean.device, non_blocking=True)
        return noise.unflatten(-1, (samples, latent)).transpose(1, 2)

    def _origin(self, observation: Observation) -> Tensor:
        """Origin [B, 2] of each scene: mean of all observed positions of present agents.

        With `last` it is the mean of their positions in the last step, if there is any.
        """
        mask = observation.valid & observation.present[..., None]
        if self.config.origin == "last":
            last = F.pad(mask[..., -1:], (mask.shape[-1] - 1, 0))
            has_agent = last.any(-1).any(-1)[:, None, None]
            mask = torch.where(has_agent, last, mask)
        return masked_mean(observation.position, mask[..., None], (1, 2))


def _at_origin(observation: Observation, origin: Tensor) -> Observation:
    """The observation with the pose of a single agent, at the origin [B, 2] with heading 0."""
    pose = torch.cat([origin, torch.zeros_like(origin[:, :1])], -1)[:, None]
    return replace(observation, pose=pose)


def _of_targets(latent: Gaussian, observation: Observation) -> Gaussian:
    """Latents [B, K, A, Z] of agents to [B, S, K, Z] of targets."""
    return latent.map(lambda part: part[:, :, : observation.num_targets].transpose(1, 2))


def distinct_samples(best: Tensor, known: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The samples that are the best one of any target, without repetition.

    From the index of each target's best sample, int64 [B, S], and the targets with a known future,
    bool [B, S], to rows int64 [B, k] of distinct samples, and int64 [B, S], the position of each
    target's best sample in them. k is the largest number that a scene needs, or the largest
    possible one where values cannot be read.
    """
    needed = (F.one_hot(best, samples).bool() & known[..., None]).any(1)  # [B, K]
    # Reading values makes a GPU wait, and a compiled graph has none.
    count = min(samples, best.shape[1])
    if best.device.type == "cpu" and not torch.compiler.is_compiling():
        count = int(needed.sum(1).max())
    rows = needed.int().argsort(dim=1, descending=True, stable=True)[:, : max(count, 1)]
    index = (rows[:, None] == best[..., None]).int().argmax(-1)
    return rows, index
