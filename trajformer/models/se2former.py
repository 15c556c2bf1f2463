"""SE2Former: one encoding of the scene, K smooth futures for every agent.

Every lane piece and agent is encoded once, in its own frame; SE(2)-invariant attention (`core/pose.py`) relates them. So all
agents are targets at little additional cost, and the encoding of the map can be reused while the map stays the same.

- `encode_map`: pieces of lanes attend to each other.
- `encode_agents`: agents attend to lanes and agents.
- `forecast`: K + 1 queries per target, in its frame, attend to agents and lanes and propose a path. Then every query moves to the
  end of its path, attends again from there, and corrects the path. The last path is the median of the target. In evaluation, the
  middle between the median and the mean of the modes is the single forecast. Only modes of the most probable manoeuvre count for
  it: an average of two manoeuvres would lie where nobody drives. The mode that ends nearest to it moves two thirds of the way to
  it, or all the way for an agent at rest, and counts as the most probable mode.

A path is the sum of constant velocity, a mean, and C smooth components per axis: the principal components of the residuals from
constant velocity in the training data (`prepare`). So forecasts are smooth by construction. For agents at rest, velocity and
mean count as zero, and the single forecast is rest unless most modes start. The temperature of the probabilities is learned such
that they are calibrated.

Joint futures of all targets select among the modes of single agents. The modes of all targets of a scene are drawn from a mixture
of W worlds: a world has a probability, and in world w target s takes its mode k with the probability p_ws(k), independently of
the other targets. The mixture is trained by its likelihood and does not change the modes. In
`WorldForecast.joint_futures`, every target takes its modes in the worlds such that their expected likelihood is largest, each
mode in one world.

With `joint`, mode k of all targets is one world instead: the modes of a world attend to each other before they propose a path and
at its end, the world with the smallest mean error is trained, and no mode moves to the median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.attention import useful_mask
from trajformer.core.blocks import BlockConfig, FeedForward, Residual
from trajformer.core.pose import Frames, Memory, PoseAttentionConfig, PoseBlock, PoseKeys
from trajformer.data.batch import Observation, SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import Frame
from trajformer.errors import ConfigError
from trajformer.losses.matching import match
from trajformer.losses.set_loss import huber, last_valid
from trajformer.losses.terms import LossConfig, Terms, total
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.horizon import check_lengths
from trajformer.models.motion import Motion, agent_features, base_path, residual_basis
from trajformer.models.tokens import NUM_ATTRIBUTES, polyline_attributes
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentKind, AgentRole

_LANE_POINTS = 8  # a lane piece is resampled to this number of points
_PATH_POINTS = 8  # points of a proposal that the refinement sees
_START_M, _START_SHARE = (
    7.0,
    0.8,
)  # an agent at rest starts if this share of its modes ends this far away
_APART_M = 2.0  # paths are of one manoeuvre if the end of one is this near to the other path; about half a lane
_KEPT = 1 / 3  # of the mode that moves to the single forecast
_STRAIGHT_PARTS = 12  # of a path, when its distance from an end is measured
_EPSILON_M2 = 1e-6  # keeps the gradient of a distance of zero finite
_SIZES = (
    "num_future",
    "modes",
    "max_history",
    "agent_layers",
    "decoder_layers",
    "components",
    "worlds",
)


@dataclass(frozen=True)
class SE2FormerLossConfig(LossConfig, positive=("temperature_m", "huber_m")):
    """Winner takes all: the proposal with the smallest ADE + FDE, and its correction, are trained towards the recorded path.

    The median path is trained on all targets. Futures may be incomplete: errors are means over their valid steps, and the end is
    the last valid step.

    Attributes:
        moving: weight of a target that moves at least `moved_m` in its future, relative to scored targets.
        standing: weight of all other targets.
        moved_m: distance between moving and standing, in metres.
        endpoint: weight of the last position, relative to the mean over all positions.
        median: weight of the median path's error, relative to the winner's.
        score: weight of the cross-entropy.
        worlds: weight of the likelihood of the worlds, which trains the choice of joint futures only.
        temperature_m: the scores are trained towards softmax(-FDE / temperature).
        huber_m: error in metres at which the Huber loss becomes linear.
    """

    moving: float = 0.5
    standing: float = 0.1
    moved_m: float = 3.0
    endpoint: float = 1.0
    median: float = 0.3
    score: float = 1.0
    worlds: float = 1.0
    temperature_m: float = 1.0
    huber_m: float = 1.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """Weighted means over targets: "proposal", "path", "score", "worlds", "calibration", and "loss" with its gradient."""
        forecast, truth = model(batch.observation), batch.truth
        logit = forecast.logit[:, None] if forecast.is_joint else forecast.logit  # [B, S or 1, K]
        stages = (*forecast.auxiliary, forecast)  # proposals, then the corrected paths
        path = to_frame(truth.position, forecast.pose[:, :, None])[:, :, None]  # [B, S, 1, F, 2]
        valid, last = truth.valid[:, :, None], last_valid(truth.valid)[:, :, None, None]
        paths = (
            torch.cat([stage.position, stage.median], 2) for stage in stages
        )  # [B, S, K + 1, F, 2]
        distances = [((x - path).square().sum(-1) + _EPSILON_M2).sqrt() * valid for x in paths]
        ends = [
            distance.take_along_dim(last, -1)[..., 0] for distance in distances
        ]  # [B, S, K + 1]
        steps = truth.valid.sum(-1, keepdim=True).clamp(min=1)
        weight = self._weights(batch, path[:, :, 0])
        together = partial(_scene_mean, counted=weight > 0) if forecast.is_joint else nn.Identity()
        error = together((distances[0].sum(-1) / steps + ends[0])[..., :-1])
        winners = [error[..., :size].argmin(-1)[..., None, None] for size in model.config.sets]
        terms = {}
        for name, distance in zip(("proposal", "path"), distances, strict=True):
            terms[name] = torch.zeros_like(steps[..., 0], dtype=distance.dtype)
            gaps = [(distance.take_along_dim(winner, 2)[:, :, 0], 1.0) for winner in winners]
            for gap, share in (*gaps, (distance[:, :, -1], self.median)):
                mean, end = huber(gap[..., None], truth.valid, self.huber_m)
                terms[name] = terms[name] + share * (mean + self.endpoint * end)
        aim = (-together(ends[1][..., :-1].detach()) / self.temperature_m).softmax(-1)
        terms["score"] = -(aim * logit.log_softmax(-1)).sum(-1)
        terms["calibration"] = _calibration(model, forecast, path, last, together)
        divisor = total(weight, 1e-6)
        means = {name: (value * weight).sum() / divisor for name, value in terms.items()}
        if forecast.worlds is not None:
            pick, world = forecast.worlds()
            means["worlds"] = world_loss(pick, world, aim, weight)
        loss = (
            means["proposal"]
            + means["path"]
            + self.score * means["score"]
            + self.worlds * means.get("worlds", 0.0)
        )
        loss = loss + means["calibration"]
        return {name: value.detach() for name, value in means.items()} | {"loss": loss}

    def _weights(self, batch: SceneBatch, path: Tensor) -> Tensor:
        """[B, S], zero for targets without a known future; `path` [B, S, F, 2] is in the frame of the target."""
        valid, targets = batch.truth.valid, batch.observation.num_targets
        end = path.take_along_dim(last_valid(valid)[..., None, None], 2)[:, :, 0]
        weight = torch.where(end.norm(dim=-1) >= self.moved_m, self.moving, self.standing)
        scored = batch.observation.agent_role[:, :targets] >= int(AgentRole.SCORED)
        return torch.where(scored, 1.0, weight) * (valid.any(-1) & batch.observation.target_mask)


def _scene_mean(error: Tensor, counted: Tensor) -> Tensor:
    """The mean [B, 1, K] of errors [B, S, K] over the targets that count, bool [B, S]."""
    share = counted / counted.sum(1, keepdim=True).clamp(min=1)
    return (error * share[..., None]).sum(1, keepdim=True)


def _calibration(
    model: Any,
    forecast: WorldForecast,
    path: Tensor,
    last: Tensor,
    together: Callable[[Tensor], Tensor],
) -> Tensor:
    """Cross-entropy [B, S] of the probabilities with the mode that ends nearest to the path; only the temperature learns."""
    final = model.finish(
        replace(forecast, position=forecast.position.detach(), logit=forecast.logit.detach())
    )
    end = together((final.position - path).norm(dim=-1).take_along_dim(last, -1)[..., 0])
    logit = final.logit[:, None] if final.is_joint else final.logit
    return -logit.log_softmax(-1).take_along_dim(end.argmin(-1, keepdim=True), -1)[..., 0]


def world_loss(pick: Tensor, world: Tensor, aim: Tensor, weight: Tensor) -> Tensor:
    """Negative log likelihood of the mixture, per target.

    Args:
        pick: [B, W, S, K].
        world: [B, W].
        aim: [B, S, K], the probability that the recorded future is mode k.
        weight: [B, S], zero for targets that do not count.

    Returns:
        Mean over all targets that count.
    """
    counts = (weight > 0).float()
    agreement = ((pick * aim[:, None]).sum(-1) * counts[:, None]).sum(-1)  # [B, W]
    return -(world.log_softmax(-1) + agreement).logsumexp(-1).sum() / total(counts)


@dataclass(frozen=True)
class SE2FormerConfig(ModelConfig, positive=_SIZES):
    """Sizes of SE2Former.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        max_history: longest history H; shorter ones are padded.
        block: shape of all blocks.
        attention: sizes of a head of the pose attention.
        map_layers, agent_layers, decoder_layers: number of blocks.
        components: C, smooth components per axis.
        worlds: W, number of joint futures (`WorldForecast.joint_futures`); with `joint` it is K.
        nested: number of first modes that are also trained as a separate forecast and are more probable than the others, for
            tables that score several numbers of modes.
        joint: mode k of all targets is one world with one probability; otherwise worlds choose among the modes of single targets.
    """

    num_future: int
    modes: int = 6
    max_history: int = 20
    block: BlockConfig = field(
        default_factory=lambda: BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    )
    attention: PoseAttentionConfig = PoseAttentionConfig()
    map_layers: int = 1
    agent_layers: int = 2
    decoder_layers: int = 2
    components: int = 8
    worlds: int = 6
    nested: int = 0
    joint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.nested < self.modes:
            raise ConfigError(
                "nested",
                f"{self.nested}, expected 0 to {self.modes - 1}, less than the number of modes",
            )
        if self.components > self.num_future:
            raise ConfigError(
                "components", f"{self.components}, expected at most num_future, {self.num_future}"
            )
        plain = BlockConfig()
        for name in ("attention_dropout", "bias", "d_k", "d_v", "agent_aware", "squeeze"):
            if getattr(self.block, name) != getattr(plain, name):
                raise ConfigError(
                    f"block.{name}",
                    f"pose attention does not have it; leave it at {getattr(plain, name)}",
                )
        if self.nested and self.joint:
            raise ConfigError("nested", "joint modes have no nested modes; set one of both only")

    @property
    def sets(self) -> tuple[int, ...]:
        """Sizes of the sets of modes, from the first one on, that have a winner each."""
        return (self.nested, self.modes) if self.nested else (self.modes,)


@dataclass(frozen=True, eq=False)
class WorldForecast(Forecast):
    """A marginal forecast with a mixture of worlds, which is computed when it is needed."""

    worlds: Callable[[], tuple[Tensor, Tensor]] | None = None  # results of `Worlds`
    median: Tensor | None = None  # [B, S, 1, F, 2], in training
    single: Tensor | None = (
        None  # [B, S, 1, F, 2], the single forecast, before `SE2Former.finish`; none if joint
    )
    share: Tensor | None = (
        None  # [B, S, 1, 1, 1], of motion (`base_path`), before `SE2Former.finish`
    )

    def select(self, index: Tensor) -> Forecast:
        """As of any forecast; each world chooses among the selected modes."""
        chosen = super().select(index)
        assert isinstance(chosen, WorldForecast)
        return replace(chosen, worlds=self.worlds and partial(_of_modes, self.worlds, index))

    @torch.no_grad()
    def joint_futures(self) -> Forecast:
        """W joint futures: mode k of all targets is world k. A target takes each of its modes in at most one of K worlds."""
        if self.worlds is None:
            return super().joint_futures()
        pick, world = self.worlds()
        gain = pick * world.softmax(-1)[..., None, None]
        mode = (
            pick.argmax(-1).transpose(1, 2).contiguous()
        )  # [B, S, W]; more than K worlds keep their most probable mode
        pairs = match(-gain.permute(0, 2, 3, 1), torch.ones_like(world[0], dtype=torch.bool))
        mode.flatten(0, 1)[pairs.problem, pairs.target] = pairs.prediction
        chosen = self.select(mode)
        return Forecast(chosen.position, world, self.frame, self.pose)


def _of_modes(worlds: Callable[[], tuple[Tensor, Tensor]], index: Tensor) -> tuple[Tensor, Tensor]:
    """Results of `Worlds` for the modes `index` [B, S, k]."""
    pick, world = worlds()
    return pick.take_along_dim(index[:, None], -1).log_softmax(-1), world


class Worlds(nn.Module):
    """Probabilities of worlds, and of modes in each world.

    Args:
        block: shape of the block in which the targets of a world attend to each other.
        attention: sizes of a head.
        count: W.
    """

    def __init__(self, block: BlockConfig, attention: PoseAttentionConfig, count: int) -> None:
        super().__init__()
        width = block.width
        self.start = nn.Parameter(torch.randn(count, 1, width) * 0.5)
        self.keys = PoseKeys(width, block.heads, attention)
        self.layer = PoseBlock(block, attention)
        self.norm, self.mode_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, 1)

    def forward(
        self, modes: Tensor, logit: Tensor, frames: Frames, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logarithms of the probability of each mode in each world [B, W, S, K], and logits of the worlds [B, W].

        Args:
            modes: [B, S, K, D], features of the modes.
            logit: [B, S, K], their marginal logits.
            frames: of the targets, [B, S].
            mask: bool [B, S], which targets exist.
        """
        probability = logit.softmax(-1)[..., None]
        x = (modes * probability).sum(2)[:, None] + self.start  # [B, W, S, D]
        frames = frames.map(lambda part: part[:, None])
        x = self.layer(x, frames, self.keys(x, frames), mask[:, None, None])
        x = self.norm(x)
        score = (
            torch.einsum("bwsd,bskd->bwsk", self.query(x), self.key(self.mode_norm(modes)))
            * x.shape[-1] ** -0.5
        )
        real = mask[:, None, :, None].float()
        pooled = (x * real).sum(2) / real.sum(2).clamp(min=1)
        return (score.float() + logit[:, None]).log_softmax(-1), self.output(pooled)[..., 0].float()


class WorldBlock(nn.Module):
    """Mode k of a target attends to mode k of all targets, so that they are one world."""

    def __init__(self, block: BlockConfig, attention: PoseAttentionConfig) -> None:
        super().__init__()
        self.keys, self.layer = (
            PoseKeys(block.width, block.heads, attention),
            PoseBlock(block, attention),
        )

    def forward(self, modes: Tensor, frames: Frames, mask: Tensor) -> Tensor:
        """Features [B, S, K, D] of modes to the same shape; `frames` [B, S * K] are theirs, bool `mask` [B, S] of the targets."""
        x, frames = (
            modes.transpose(1, 2),
            frames.map(lambda part: part.unflatten(1, modes.shape[1:3]).transpose(1, 2)),
        )
        return self.layer(x, frames, self.keys(x, frames), mask[:, None, None]).transpose(1, 2)


class MapEncoding(NamedTuple):
    """Encoded pieces of lanes, to be used by any number of `encode_agents` and `forecast` calls."""

    centre: Tensor  # [B, 2] in the batch frame; positions in frames and memories are relative to it
    memories: tuple[
        Memory, ...
    ]  # of each agent layer; the last one for the decoder layers and the refinement
    mask: Tensor  # bool [B, M]


class AgentEncoding(NamedTuple):
    """Encoded agents of a scene."""

    motion: Motion
    token: Tensor  # [B, A, D]
    frames: Frames  # [B, A]
    memory: Memory  # of the decoder layers and the refinement
    mask: Tensor  # bool [B, A]


class Embedding(nn.Module):
    """Features to tokens: two linear layers with a norm between them, then a feed-forward block."""

    def __init__(self, features: int, block: BlockConfig) -> None:
        super().__init__()
        self.input = nn.Linear(features, block.width)
        self.norm, self.hidden = nn.LayerNorm(block.width), nn.Linear(block.width, block.width)
        self.feedforward = Residual(block, FeedForward(block))

    def forward(self, features: Tensor) -> Tensor:
        """[..., C] -> [..., D]."""
        return self.feedforward(self.hidden(torch.relu(self.norm(self.input(features)))))


class PathHead(nn.Module):
    """Results of each query: coefficients of components, or a score."""

    def __init__(self, width: int, outputs: int, gain: float) -> None:
        super().__init__()
        self.norm, self.hidden, self.output = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, outputs),
        )
        with torch.no_grad():
            self.output.weight.mul_(gain)
            self.output.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., outputs], float32."""
        return self.output(torch.relu(self.hidden(self.norm(x)))).float()


class SE2Former(Forecaster, config=SE2FormerConfig):
    """Observation -> Forecast in the frame of each target; in training, the proposals are its auxiliary forecast."""

    losses = (SE2FormerLossConfig,)
    muon_exclude = ("input.weight", "embed_path.weight", "output.weight")

    def __init__(self, config: SE2FormerConfig) -> None:
        super().__init__()
        self.config, block, width = config, config.block, config.block.width
        self.embed_lane = Embedding(2 * _LANE_POINTS + NUM_ATTRIBUTES, block)
        self.embed_agent = Embedding(5 * config.max_history + 3 + len(AgentKind), block)
        make_block = partial(PoseBlock, block, config.attention)
        make_keys = partial(PoseKeys, width, block.heads, config.attention)
        self.map_layers = nn.ModuleList(make_block() for _ in range(config.map_layers))
        self.map_keys = nn.ModuleList(make_keys() for _ in range(config.map_layers))
        self.agent_layers = nn.ModuleList(make_block() for _ in range(config.agent_layers))
        self.agent_keys = nn.ModuleList(make_keys() for _ in range(config.agent_layers))
        self.decoder_layers = nn.ModuleList(
            make_block(modes=True) for _ in range(config.decoder_layers)
        )
        self.refine_layer, self.decoder_keys = make_block(modes=True), make_keys()
        self.modes = nn.Parameter(
            torch.randn(config.modes + 1, width) * 0.5
        )  # the last one is the median
        self.proposal = PathHead(width, 2 * config.components, 1.0)
        self.embed_path = nn.Linear(2 * _PATH_POINTS, width)
        self.joint = config.joint
        self.worlds = None if config.joint else Worlds(block, config.attention, config.worlds)
        self.world_layers = nn.ModuleList(
            WorldBlock(block, config.attention) for _ in range(2 * config.joint)
        )
        self.refinement, self.score = (
            PathHead(width, 2 * config.components, 0.1),
            PathHead(width, 1, 1.0),
        )
        self.temperature = nn.Parameter(torch.zeros(()))  # its logarithm
        self.register_buffer("mean", torch.zeros(config.num_future, 2))
        basis = (
            torch.linspace(0, 1, config.num_future)
            ** torch.arange(1, config.components + 1)[:, None]
        )
        self.register_buffer("basis", basis.expand(2, -1, -1).clone())

    mean: Tensor  # [F, 2]
    basis: Tensor  # [2, C, F], scaled by the standard deviation of each component

    def prepare(
        self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Fit the components of paths to the training scenes."""
        mean, basis = residual_basis(scenes, self.config.components)
        self.mean.copy_(mean)
        self.basis.copy_(basis)

    def forward(self, observation: Observation) -> WorldForecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        lanes = self.encode_map(observation)
        return self.forecast(observation, lanes, self.encode_agents(observation, lanes))

    def encode_map(self, observation: Observation) -> MapEncoding:
        """Encode the pieces of lanes."""
        mask = observation.polyline_mask
        point = _eight_points(observation.polyline)
        weight = mask[..., None].float()
        centre = (point[:, :, 4] * weight).sum(1) / weight.sum(1).clamp(min=1)
        middle, along = (point[:, :, 3] + point[:, :, 4]) / 2, point[:, :, 4] - point[:, :, 3]
        pose = torch.cat([middle, torch.atan2(along[..., 1], along[..., 0])[..., None]], -1)
        own = to_frame(point, pose[:, :, None])
        features = torch.cat(
            [own[..., 0] / 10, own[..., 1] / 2, polyline_attributes(observation)], -1
        )
        frames = Frames.of(torch.cat([middle - centre[:, None], pose[..., 2:]], -1))
        token = self.embed_lane(features)
        for layer, keys in zip(self.map_layers, self.map_keys, strict=True):
            token = layer(token, frames, keys(token, frames), mask[:, None])
        return MapEncoding(
            centre,
            tuple(keys(token, frames) for keys in (*self.agent_keys, self.decoder_keys)),
            mask,
        )

    def encode_agents(self, observation: Observation, lanes: MapEncoding) -> AgentEncoding:
        """Encode the agents that are seen in the last step, and the targets."""
        context = observation.agent_mask.shape[1] - observation.num_targets
        targets = nn.functional.pad(observation.target_mask, (0, context))
        mask = observation.agent_mask & (observation.valid[..., -1] | targets)
        position = observation.pose[..., :2] - lanes.centre[:, None]
        frames = Frames.of(torch.cat([position, observation.pose[..., 2:]], -1))
        motion = Motion.of(observation)
        token = self.embed_agent(agent_features(observation, motion, self.config.max_history))
        seen = useful_mask(torch.cat([lanes.mask, mask], 1)[:, None])
        for layer, keys, road in zip(
            self.agent_layers, self.agent_keys, lanes.memories[:-1], strict=True
        ):
            token = layer(token, frames, Memory.join(road, keys(token, frames)), seen)
        return AgentEncoding(motion, token, frames, self.decoder_keys(token, frames), mask)

    def forecast(
        self, observation: Observation, lanes: MapEncoding, agents: AgentEncoding
    ) -> WorldForecast:
        """Predict all targets from encoded lanes and agents; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        targets, modes = observation.num_targets, self.config.modes + 1
        seen = useful_mask(torch.cat([lanes.mask, agents.mask], 1)[:, None])
        memory = Memory.join(lanes.memories[-1], agents.memory)
        frames = agents.frames.map(lambda part: part[:, :targets])
        x = agents.token[:, :targets, None] + self.modes  # [B, S, K, D]
        start = frames.map(lambda part: part.repeat_interleave(modes, 1))
        for layer in self.decoder_layers:
            x = layer(x, start, memory, seen)
        if self.joint:
            x = self.world_layers[0](x, start, observation.target_mask)
        base, share = base_path(observation, agents.motion, self.mean)
        gain = torch.cat(
            [torch.ones_like(share).expand(-1, -1, modes - 1, -1, -1), share], 2
        )  # no gain: the median is rest
        proposed = base + gain * self._curve(self.proposal(x))
        x, change = self._refine(
            x, proposed.detach(), frames, memory, seen, observation.target_mask
        )
        refined, pose = proposed.detach() + gain * change, observation.pose[:, :targets]
        x = x[:, :, :-1]
        if self.worlds is None:
            real = observation.target_mask[..., None, None].float()
            score, worlds = self.score((x * real).sum(1) / real.sum(1).clamp(min=1))[..., 0], None
        else:
            score = self.score(x)[..., 0]
            worlds = partial(
                self.worlds, x.detach(), score.detach(), frames, observation.target_mask
            )
        proposal, forecast = (
            WorldForecast(
                path[:, :, :-1], score, Frame.AGENT, pose, median=path[:, :, -1:], worlds=worlds
            )
            for path in (proposed, refined)
        )
        auxiliary = (proposal,) if self.training else ()
        single = None if self.joint else self._single(forecast, share)
        forecast = replace(forecast, single=single, share=share, auxiliary=auxiliary)
        return forecast if self.training else self.finish(forecast)

    @torch.no_grad()
    def _single(self, forecast: WorldForecast, share: Tensor) -> Tensor:
        """The middle between the median and the mean of the modes, because their errors differ.

        Only one manoeuvre counts. For each mode, the probabilities of all modes that agree with it are added; the mode with the
        largest sum and the modes that agree with it count. The median is left out if it agrees with none of these. For agents at
        rest the single forecast is the median, which is rest, or the mean of the modes if most of them start.
        """
        path, median = forecast.position, forecast.median
        assert median is not None
        probability = (forecast.logit / self.temperature.exp()).softmax(-1)  # [B, S, K]
        agree = _agree(torch.cat([path, median], 2))
        modes = agree[..., :-1, :-1]
        best = (modes * probability[..., None, :]).sum(-1).argmax(-1)[..., None, None]
        member = modes.take_along_dim(best, 2)[:, :, 0]  # [B, S, K]
        near = (member & agree[..., -1, :-1]).any(-1)[..., None, None, None]
        weight = (member * probability)[..., None, None]
        mean = (weight * path).sum(2, keepdim=True) / weight.sum(2, keepdim=True)
        away = (path[..., -1:, :] - median[..., -1:, :]).norm(dim=-1, keepdim=True) > _START_M
        starts = (probability[..., None, None] * away).sum(2, keepdim=True) > _START_SHARE
        return median.lerp(
            mean, torch.where(near, torch.where(starts, 1 - share / 2, share / 2), 1.0)
        )

    def finish(self, forecast: WorldForecast) -> WorldForecast:
        """The forecast of evaluation: the mode with the nearest end moves to the single forecast, and is the most probable one.

        For a target that moves, the mode moves two thirds of the way only: a mode that moves all the way no longer covers its
        own future. Nested modes come before the others in the order of probabilities, and one of them moves.
        """
        path, single, logit = (
            forecast.position,
            forecast.single,
            forecast.logit / self.temperature.exp(),
        )
        done = replace(forecast, logit=logit, median=None, single=None, share=None)
        if self.joint:
            return done
        assert single is not None and forecast.share is not None
        nested = self.config.sets[0]
        nearest = (
            (path[..., :nested, -1, :] - single[..., -1, :]).norm(dim=-1).argmin(-1, keepdim=True)
        )
        chosen = torch.arange(path.shape[2], device=path.device) == nearest
        highest, top = logit.max(-1, keepdim=True)
        highest = highest + 1e-6 * highest.abs().clamp(
            min=1
        )  # modes may tie in bfloat16; a smaller step is lost in a softmax
        logit = logit.scatter(-1, top, logit.take_along_dim(nearest, -1)).scatter(
            -1, nearest, highest
        )
        if self.config.nested:
            values, order = logit.sort(-1, descending=True)
            first = order.take_along_dim((order >= nested).byte().argsort(stable=True, dim=-1), -1)
            logit = torch.empty_like(logit).scatter(-1, first, values)
        part = chosen[..., None, None] * (1 - _KEPT * forecast.share)
        return replace(done, position=path.lerp(single, part), logit=logit)

    def _refine(
        self,
        x: Tensor,
        path: Tensor,
        frames: Frames,
        memory: Memory,
        seen: Tensor | None,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Queries [B, S, K, D] after a look around the end of each path [B, S, K, F, 2], and corrections of the paths."""
        end, tail = path[..., -1, :], path[..., -1, :] - path[..., -min(6, path.shape[-2]), :]
        length = tail.norm(dim=-1, keepdim=True)
        ahead = torch.zeros_like(tail)
        ahead[..., 0] = 1.0
        facing = torch.where(
            length > 0.5, tail / length.clamp(min=0.1), ahead
        )  # a path that ends at rest has no direction
        step = torch.linspace(0, path.shape[-2] - 1, _PATH_POINTS + 1, device=path.device).long()[
            :-1
        ]
        shape = _turn(path.index_select(-2, step) - end[..., None, :], facing[..., None, :], -1)
        x = x + self.embed_path(shape.flatten(-2) / 20)
        outer = frames.direction[:, :, None]
        position = frames.position[:, :, None] + _turn(end, outer, 1)
        ends = Frames(position.flatten(1, 2), _turn(facing, outer, 1).flatten(1, 2))
        x = self.refine_layer(x, ends, memory, seen)
        if self.joint:
            x = self.world_layers[1](x, ends, mask)
        return x, _turn(self._curve(self.refinement(x)), facing[..., None, :], 1)

    def _curve(self, coefficient: Tensor) -> Tensor:
        """[..., 2 C] to [..., F, 2], metres, also under autocast in single precision."""
        with torch.autocast(coefficient.device.type, enabled=False):
            return torch.einsum("...ac,acf->...fa", coefficient.unflatten(-1, (2, -1)), self.basis)


def _agree(path: Tensor) -> Tensor:
    """Which paths [B, S, K, F, 2], in the frame of the target, are of one manoeuvre: bool [B, S, K, K], symmetric.

    The end of one of both is at most `_APART_M` from the other path, which begins at the target.
    """
    count = path.shape[-2]
    chosen = (
        torch.linspace(0, count - 1, min(count, _STRAIGHT_PARTS), device=path.device).round().long()
    )
    x, y = path.index_select(-2, chosen).unbind(-1)  # [B, S, K, P], ends of straight parts
    left, low = (nn.functional.pad(value[..., :-1], (1, 0)) for value in (x, y))  # their starts
    dx, dy = ((value - start)[:, :, None] for value, start in ((x, left), (y, low)))
    to_x, to_y = (
        value[..., None, -1:] - start[:, :, None] for value, start in ((x, left), (y, low))
    )  # [B, S, K, K, P]
    part = (
        torch.addcmul(to_x * dx, to_y, dy)
        .div_(torch.addcmul(dx * dx, dy, dy).clamp_(min=_EPSILON_M2))
        .clamp_(0, 1)
    )
    to_x, to_y = torch.addcmul(to_x, part, dx, value=-1), torch.addcmul(to_y, part, dy, value=-1)
    near = torch.addcmul(to_x * to_x, to_y, to_y).amin(-1) <= _APART_M**2
    return near | near.transpose(-1, -2)


def _eight_points(point: Tensor) -> Tensor:
    """Polylines [B, M, P, 2] resampled to eight points by linear interpolation between their points."""
    count = point.shape[2]
    if count == _LANE_POINTS:
        return point
    at = torch.linspace(0, count - 1, _LANE_POINTS, device=point.device)
    before = at.long().clamp(max=count - 2)
    share = (at - before)[:, None]
    return point[:, :, before] * (1 - share) + point[:, :, before + 1] * share


def _turn(vector: Tensor, direction: Tensor, sign: int) -> Tensor:
    """Vectors [..., 2] turned by the angle of directions (cos, sin) [..., 2], or back for the sign -1."""
    (x, y), (cos, sin) = vector.unbind(-1), direction.unbind(-1)
    return torch.stack(
        [torch.addcmul(x * cos, y, sin, value=-sign), torch.addcmul(y * cos, x, sin, value=sign)],
        -1,
    )
