"""SE2Former: one encoding of the scene, K smooth futures for every agent.

Every lane piece and agent is encoded once, in its own frame; SE(2)-invariant attention
(`core/pose.py`) relates them. So all agents are targets at little additional cost, and the
encoding of the map can be reused while the map stays the same.

1. `encode_map`: pieces of lanes attend to each other. Their features are in `features.py`.
2. `encode_agents`: agents attend to lanes and agents.
3. `decode`: K queries per target, in its frame, attend to agents and lanes and propose a path
   (`paths.py`). Then every query moves to the end of its path, attends again from there, and
   corrects the path. The last path is the median of the target; it has a query, too, or comes
   straight from the token of the target (`median_query`).
4. `forecast`: the best single forecast becomes the most probable mode, and probabilities are
   calibrated (`single_forecast.py`). Joint futures of all targets are chosen among the modes
   (`worlds.py`).

The loss (`loss.py`) takes the paths of step 3 from `propose`.

With `joint`, mode k of all targets is one world instead: the modes of a world attend to each
other before they propose a path and at its end, the world with the smallest mean error is
trained, and the most probable mode stays that of the highest score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from trajformer.core.attention import useful_mask
from trajformer.core.blocks import BlockConfig, FeedForward, Residual
from trajformer.core.memory import Memory
from trajformer.core.multihead import RecordedLayer
from trajformer.core.pose import Frames, PoseAttentionConfig, PoseBlock, PoseKeys
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.loading import TrainingScenes
from trajformer.data.sample import Frame
from trajformer.errors import ConfigError
from trajformer.models.attended import TargetAttention
from trajformer.models.forecaster import Forecaster, ModelConfig
from trajformer.models.horizon import check_lengths, world_features
from trajformer.models.se2former.features import (
    Motion,
    agent_features,
    lane_features,
    lane_poses,
    map_center,
    num_agent_features,
    num_lane_features,
    resample_lanes,
)
from trajformer.models.se2former.loss import SE2FormerLossConfig
from trajformer.models.se2former.paths import (
    PathProposals,
    base_path,
    path_ends,
    residual_basis,
    sum_components,
    turn,
    turn_back,
)
from trajformer.models.se2former.single_forecast import final_modes
from trajformer.models.se2former.worlds import (
    WorldBlock,
    WorldForecast,
    WorldMixture,
    WorldProbabilities,
)
from trajformer.scenes.geometry import from_frame, relative_pose

_PATH_POINTS = 8  # points of a proposal that the refinement sees
_PATH_SCALE_M = 20.0  # they are divided by it
_REFINEMENT_GAIN = 0.1  # initial size of corrections, relative to proposals


@dataclass(frozen=True)
class SE2FormerConfig(
    ModelConfig,
    positive=(
        "num_future",
        "modes",
        "max_history",
        "agent_layers",
        "decoder_layers",
        "components",
        "worlds",
    ),
):
    """Sizes of SE2Former.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        max_history: longest history H; shorter ones are padded.
        block: shape of all blocks.
        attention: sizes of a head of the pose attention.
        map_layers, agent_layers, decoder_layers: number of blocks.
        median_query: the median path has a query of its own; without one it is faster, and less
            accurate for long horizons.
        components: C, smooth components per axis.
        worlds: W, number of joint futures (`WorldForecast.joint_futures`); with `joint` it is K.
        nested: number of first modes that are also trained as a separate forecast and are more
            probable than the others, for tables that score several numbers of modes.
        joint: mode k of all targets is one world with one probability; otherwise worlds choose
            among the modes of single targets.
        lights: the state of traffic lights at the present is a feature of lanes.
        sizes: lengths and widths are features of agents.
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
    median_query: bool = True
    components: int = 8
    worlds: int = 6
    nested: int = 0
    joint: bool = False
    lights: bool = False
    sizes: bool = False

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
            default = getattr(plain, name)
            if getattr(self.block, name) != default:
                raise ConfigError(
                    f"block.{name}", f"pose attention does not have it; leave it at {default}"
                )
        if self.nested and self.joint:
            raise ConfigError("nested", "joint modes have no nested modes; set one of both only")

    @property
    def winner_sets(self) -> tuple[int, ...]:
        """Sizes of the sets of modes, from the first mode on, that have a winner each."""
        if self.nested:
            return (self.nested, self.modes)
        return (self.modes,)


class MapEncoding(NamedTuple):
    """Encoded pieces of lanes, for any number of `encode_agents` and `forecast` calls."""

    frame_pose: Tensor  # float64 [B, 3], the batch frame of the map in the city frame
    center: Tensor  # [B, 2] in this batch frame; frames and memories are relative to it
    agent_memories: tuple[Memory, ...]  # for each agent layer
    decoder_memory: Memory  # for the decoder layers and the refinement
    mask: Tensor  # bool [B, M]


class AgentEncoding(NamedTuple):
    """Encoded agents of a scene."""

    motion: Motion
    token: Tensor  # [B, A, D]
    frames: Frames  # [B, A], in the batch frame of the map
    memory: Memory  # for the decoder layers and the refinement, in `memory_order`
    mask: Tensor  # bool [B, A], agents that others attend to, in the same order


class Surroundings(NamedTuple):
    """Lanes and agents to which queries attend."""

    memory: Memory  # of M + A tokens
    mask: Tensor | None  # bool [B, 1, M + A], or None if all tokens exist


class Embedding(nn.Module):
    """Features to tokens: two linear layers with a norm between them, then a feed-forward block."""

    def __init__(self, features: int, block: BlockConfig) -> None:
        super().__init__()
        self.input = nn.Linear(features, block.width)
        self.norm = nn.LayerNorm(block.width)
        self.hidden = nn.Linear(block.width, block.width)
        self.feedforward = Residual(block, FeedForward(block))

    def forward(self, features: Tensor) -> Tensor:
        """[..., C] -> [..., D]."""
        x = torch.relu(self.norm(self.input(features)))
        return self.feedforward(self.hidden(x))


class PathHead(nn.Module):
    """Results of each query: coefficients of components, or a score.

    Args:
        width: D.
        outputs: number of results.
        gain: factor of the initial weights of the last layer.
    """

    def __init__(self, width: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)
        with torch.no_grad():
            self.output.weight.mul_(gain)
            self.output.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., outputs], float32."""
        return self.output(torch.relu(self.hidden(self.norm(x)))).float()


class SE2Former(Forecaster, config=SE2FormerConfig):
    """Observation -> Forecast in the frame of each target; the loss calls `propose`."""

    losses = (SE2FormerLossConfig,)
    compiled_methods = ("propose",)
    keeps_map = True
    muon_exclude = ("input.weight", "embed_path.weight", "output.weight")

    mean: Tensor  # [F, 2]
    basis: Tensor  # [2, C, F], scaled by the standard deviation of each component

    def __init__(self, config: SE2FormerConfig) -> None:
        super().__init__()
        self.config = config
        self.joint = config.joint
        block = config.block
        width = block.width
        make_block = partial(PoseBlock, block, config.attention)
        make_keys = partial(PoseKeys, width, block.heads, config.attention)

        self.embed_lane = Embedding(num_lane_features(config.lights), block)
        self.embed_agent = Embedding(num_agent_features(config.max_history, config.sizes), block)
        self.map_layers = nn.ModuleList(make_block() for _ in range(config.map_layers))
        self.map_keys = nn.ModuleList(make_keys() for _ in range(config.map_layers))
        self.agent_layers = nn.ModuleList(make_block() for _ in range(config.agent_layers))
        self.agent_keys = nn.ModuleList(make_keys() for _ in range(config.agent_layers))

        # With a query of the median, it is the last one.
        num_queries = config.modes + config.median_query
        self.modes = nn.Parameter(torch.randn(num_queries, width) * 0.5)
        self.decoder_layers = nn.ModuleList(
            make_block(modes=True) for _ in range(config.decoder_layers)
        )
        self.decoder_keys = make_keys()
        self.refine_layer = make_block(modes=True)
        self.median: PathHead | None = None
        if not config.median_query:
            self.median = PathHead(width, 2 * config.components)
        self.proposal = PathHead(width, 2 * config.components)
        self.embed_path = nn.Linear(2 * _PATH_POINTS, width)

        self.worlds: WorldMixture | None = None
        self.world_layers = nn.ModuleList()
        if config.joint:
            before_proposal = WorldBlock(block, config.attention)
            before_correction = WorldBlock(block, config.attention)
            self.world_layers.extend([before_proposal, before_correction])
        else:
            self.worlds = WorldMixture(block, config.attention, config.worlds)

        self.refinement = PathHead(width, 2 * config.components, _REFINEMENT_GAIN)
        self.score = PathHead(width, 1)
        self.temperature = nn.Parameter(torch.zeros(()))  # its logarithm

        # `prepare` replaces mean and components; until then, the components are powers of time.
        self.register_buffer("mean", torch.zeros(config.num_future, 2))
        time = torch.linspace(0, 1, config.num_future)
        power = torch.arange(1, config.components + 1)[:, None]
        self.register_buffer("basis", (time**power).expand(2, -1, -1).clone())

    def prepare(
        self, scenes: TrainingScenes, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Fit the components of paths to the training scenes."""
        mean, basis = residual_basis(scenes, self.config.components)
        self.mean.copy_(mean)
        self.basis.copy_(basis)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        lanes = self.encode_map(observation)
        agents = self.encode_agents(observation, lanes)
        return self.forecast(observation, lanes, agents)

    def propose(self, observation: Observation) -> PathProposals:
        """The paths and scores of the network, for the loss; raises as `forward`."""
        lanes = self.encode_map(observation)
        agents = self.encode_agents(observation, lanes)
        return self.decode(observation, lanes, agents)

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers of agents and decoder; the refinement attends from the ends of paths.

        The shares of a decoder layer are the mean over the queries of a target.
        """
        targets = observation.num_targets
        num_pieces = observation.polyline_mask.shape[1]

        def of_agents(weights: Tensor) -> Tensor:
            rows = weights[:, :, :targets].transpose(1, 2)  # [B, S, heads, M + A]
            pieces, agents = rows.tensor_split([num_pieces], -1)  # as in the memory
            place = memory_order(observation).argsort(-1)[:, None, None]
            return torch.cat([agents.take_along_dim(place, -1), pieces], -1)

        def of_queries(weights: Tensor) -> Tensor:
            by_query = weights.unflatten(2, (targets, len(self.modes)))
            return of_agents(by_query.mean(3))

        blocks = [(f"agents {n}", block) for n, block in enumerate(self.agent_layers, 1)]
        layers = [TargetAttention(name, _attention_of(block), of_agents) for name, block in blocks]
        blocks = [(f"decoder {n}", block) for n, block in enumerate(self.decoder_layers, 1)]
        blocks.append(("refinement", self.refine_layer))
        for name, block in blocks:
            layers.append(TargetAttention(name, _attention_of(block), of_queries))
        return layers

    def encode_map(self, observation: Observation) -> MapEncoding:
        """Encode the pieces of lanes."""
        mask = observation.polyline_mask
        point = resample_lanes(observation.polyline)  # [B, M, 8, 2]
        pose = lane_poses(point)
        token = self.embed_lane(lane_features(observation, point, pose, self.config.lights))

        # Positions relative to a center of the map are small, as single precision needs.
        center = map_center(point, mask)
        frames = _frames_around(center, pose)
        for layer, keys in zip(self.map_layers, self.map_keys, strict=True):
            token = layer(token, frames, keys(token, frames), mask[:, None])
        agent_memories = tuple(keys(token, frames) for keys in self.agent_keys)
        return MapEncoding(
            frame_pose=observation.frame_pose,
            center=center,
            agent_memories=agent_memories,
            decoder_memory=self.decoder_keys(token, frames),
            mask=mask,
        )

    def encode_agents(self, observation: Observation, lanes: MapEncoding) -> AgentEncoding:
        """Encode all agents; they attend to lanes and to the agents that are present.

        The map may have been encoded in another batch frame.
        """
        mask = observation.present
        moved = relative_pose(observation.frame_pose, lanes.frame_pose)[:, None]
        moved = moved.to(observation.pose.dtype)
        point = from_frame(observation.pose[..., :2], moved)
        heading = observation.pose[..., 2:] + moved[..., 2:]
        frames = _frames_around(lanes.center, torch.cat([point, heading], -1))
        motion = Motion.of(observation)
        token = self.embed_agent(
            agent_features(observation, motion, self.config.max_history, self.config.sizes)
        )

        order = memory_order(observation)
        mask = mask.gather(1, order)
        useful = useful_mask(torch.cat([lanes.mask, mask], 1)[:, None])
        layers = zip(self.agent_layers, self.agent_keys, lanes.agent_memories, strict=True)
        memory: Memory | None = None
        for layer, keys, lane_memory in layers:
            agent_memory = keys(token, frames).ordered(order)
            memory = Memory.join(lane_memory, agent_memory, like=memory)
            token = layer(token, frames, memory, useful)
        memory = self.decoder_keys(token, frames).ordered(order)
        return AgentEncoding(motion, token, frames, memory, mask)

    def decode(
        self, observation: Observation, lanes: MapEncoding, agents: AgentEncoding
    ) -> PathProposals:
        """Propose and refine paths of all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        targets = observation.num_targets
        frames = agents.frames.map(lambda part: part[:, :targets])
        memory = Memory.join(lanes.decoder_memory, agents.memory)
        mask = useful_mask(torch.cat([lanes.mask, agents.mask], 1)[:, None])
        surroundings = Surroundings(memory, mask)

        # Queries attend from the pose of their target.
        token = agents.token[:, :targets, None]
        x = token + self.modes  # [B, S, Q, D]
        start = frames.map(lambda part: part.repeat_interleave(len(self.modes), 1))
        for layer in self.decoder_layers:
            x = layer(x, start, memory, mask)
        if self.joint:
            x = self.world_layers[0](x, start, observation.target_mask)

        # Components count for every mode. For the median they count as far as the agent moves, so
        # that the median of an agent at rest is rest.
        base, motion_scale = base_path(observation, agents.motion, self.mean)
        gain = torch.ones_like(motion_scale).expand(-1, -1, self.config.modes, -1, -1)
        if self.median is None:
            gain = torch.cat([gain, motion_scale], 2)  # [B, S, Q, 1, 1]
        proposed = base + gain * sum_components(self.proposal(x), self.basis)

        fixed = proposed.detach()
        x, correction = self._correct(x, fixed, frames, surroundings, observation.target_mask)
        refined = fixed + gain * correction

        if self.median is not None:
            median = base + motion_scale * sum_components(self.median(token), self.basis)
            proposed = torch.cat([proposed, median], 2)
            refined = torch.cat([refined, median], 2)
        feature = x[:, :, : self.config.modes]
        scored = world_features(observation, feature) if self.joint else feature
        logit = self.score(scored)[..., 0]
        return PathProposals(proposed, refined, logit, motion_scale, feature, frames)

    def _correct(
        self,
        x: Tensor,
        path: Tensor,
        frames: Frames,
        surroundings: Surroundings,
        target_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Look around the end of each path and correct the path.

        Args:
            x: queries [B, S, K, D].
            path: [B, S, K, F, 2], in the frames of the targets.
            frames: of the targets, [B, S].
            surroundings: lanes and agents.
            target_mask: bool [B, S].

        Returns:
            Queries of the same shape, and corrections [B, S, K, F, 2].
        """
        end, facing = path_ends(path)

        # The query sees the path from its end.
        last_step = path.shape[-2] - 1
        step = torch.linspace(0, last_step, _PATH_POINTS + 1, device=path.device).long()[:-1]
        point = path.index_select(-2, step) - end[..., None, :]
        point = turn_back(point, facing[..., None, :])
        x = x + self.embed_path(point.flatten(-2) / _PATH_SCALE_M)

        # It attends from the pose of this end.
        direction = frames.direction[:, :, None]
        position = frames.position[:, :, None] + turn(end, direction)
        ends = Frames(position.flatten(1, 2), turn(facing, direction).flatten(1, 2))
        x = self.refine_layer(x, ends, surroundings.memory, surroundings.mask)
        if self.joint:
            x = self.world_layers[1](x, ends, target_mask)

        correction = sum_components(self.refinement(x), self.basis)
        return x, turn(correction, facing[..., None, :])

    def forecast(
        self, observation: Observation, lanes: MapEncoding, agents: AgentEncoding
    ) -> Forecast:
        """Predict all targets from encoded lanes and agents; raises as `decode`."""
        proposals = self.decode(observation, lanes, agents)
        position, logit = final_modes(proposals, self.temperature.exp(), self.config.nested)
        pose = observation.pose[:, : observation.num_targets]
        if self.joint:
            return Forecast(position, logit, Frame.AGENT, pose)
        worlds = partial(self.world_probabilities, proposals, observation.target_mask)
        return WorldForecast(position, logit, Frame.AGENT, pose, worlds=worlds)

    def world_probabilities(
        self, proposals: PathProposals, target_mask: Tensor
    ) -> WorldProbabilities:
        """The mixture of joint futures, without a gradient for the modes (not with `joint`)."""
        assert self.worlds is not None
        feature = proposals.feature.detach()
        logit = proposals.logit.detach()
        return self.worlds(feature, logit, proposals.frames, target_mask)


def memory_order(observation: Observation) -> Tensor:
    """The order of agents in a memory, int64 [B, A]: by x.

    Sums of float32 depend on the order of their terms. Agents of a batch are ordered by their
    roles, which may not change a forecast.
    """
    return observation.pose[..., 0].argsort(-1)


def _attention_of(block: nn.Module) -> RecordedLayer:
    """The attention of a `PoseBlock` to its memory."""
    return cast(RecordedLayer, cast(PoseBlock, block).cross.sublayer)


def _frames_around(center: Tensor, pose: Tensor) -> Frames:
    """Frames of poses [B, N, 3], relative to a center [B, 2]."""
    position = pose[..., :2] - center[:, None]
    return Frames.of(torch.cat([position, pose[..., 2:]], -1))
