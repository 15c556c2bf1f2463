"""Wayformer (Nayakanti et al. 2022): one attention encoder of the surroundings of a target.

Every target is a scene in its own frame: its history, the histories of the nearest agents, and the
nearest polylines. They are projected to a common width by relu(Wx + b), and learned positional
embeddings, initialised to zero, are added. After one of the encoders, K learned queries
cross-attend to the memory and become the components of a Gaussian mixture. All targets of all
scenes are one batch. Fusion, attention and latent queries are independent choices
(`SceneEncoderConfig`).

Readings of the paper:
- Steps are counted back from the last one; agents and polylines are ordered by distance. Half of
  the channels of a positional embedding encode the step, half the slot.
- The features of a polyline are pooled over its segments (VectorNet's subgraph).
- Traffic lights are left out, because Argoverse has none.
- Factorised blocks along an axis of length one would have no effect, so they attend along the other
  axis: a target's history has temporal blocks only, the road spatial blocks only. If the number of
  blocks is odd, there is one more spatial block.
- In a factorised encoder of all modalities, the road (without time) is tiled over the steps at
  which an agent was seen. Its outputs are means over the copies, unless latents replace them.
- The ratio of latents refers to the largest input, because the paper's inputs have fixed sizes. It
  applies to every encoder: hierarchical fusion shortens the tokens twice.
- The decoder has self-attention among its queries.
- In evaluation, components are merged to `modes` (`modes.aggregate`); the paper aggregates
  ensembles in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from trajformer.config import Config
from trajformer.core.blocks import (
    BlockConfig,
    Decoder,
    EncoderBlock,
    LatentBlock,
    masked_mean,
    stack_norm,
)
from trajformer.core.multihead import RecordedLayer, recording
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import ConfigError
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.attended import TargetAttention, to_agents_and_pieces
from trajformer.models.forecaster import Forecaster, SceneModelConfig
from trajformer.models.horizon import check_lengths, constant_velocity_path
from trajformer.models.modes import AggregationConfig, aggregate
from trajformer.models.tokens import (
    MapTokenizer,
    agent_states,
    nearest_polylines,
    neighbors,
    state_width,
)

TIME, SPACE = 1, 2  # axes of a grid
_MAX_LOG_SIGMA = 5.0  # sigma is between 7 mm and 150 m


class Grid(NamedTuple):
    """Tokens of N targets at T steps and S slots (agents, polylines or latents)."""

    token: Tensor  # [N, T, S, D]
    real: Tensor  # bool [N, T, S]


@dataclass(frozen=True)
class LatentConfig(Config, positive=("ratio", "counts"), fractions=("ratio",)):
    """Number of latent queries of an encoder.

    Attributes:
        ratio: R, number of latents per token, or per step and per slot for factorised attention.
        counts: absolute numbers instead: (tokens,) for multi-axis attention, (steps, slots) for
            factorised attention.
    """

    ratio: float = 0.5
    counts: tuple[int, ...] = ()

    def count(self, axis: int, length: int) -> int:
        """Number of latents that replace `length` tokens along an axis."""
        if self.counts:
            return self.counts[0] if axis == TIME else self.counts[-1]
        return max(round(self.ratio * length), 1)


@dataclass(frozen=True)
class SceneEncoderConfig(Config):
    """A variant of the encoder.

    Attributes:
        fusion: early (one encoder for all modalities), late (one per modality), or hierarchical
            (half of the blocks each).
        attention: over all steps and slots at once, or factorised: half of the blocks temporal,
            then half spatial (sequential), or alternating (interleaved).
        latents: latent queries, none by default; the first block along an axis shortens it.
        layers: N, number of blocks between the tokens and the decoder.
        block: shape of the blocks.
    """

    fusion: Literal["early", "late", "hierarchical"] = "early"
    attention: Literal["multi_axis", "sequential", "interleaved"] = "multi_axis"
    latents: LatentConfig | None = None
    layers: int = 4
    block: BlockConfig = field(default_factory=lambda: BlockConfig(128, 4, 512))

    def __post_init__(self) -> None:
        super().__post_init__()
        factorised = self.attention != "multi_axis"
        if factorised and 1 in self.depths():
            raise ConfigError(
                "layers",
                f"{self.layers}, expected at least two in each encoder for factorised attention",
            )
        if self.latents is None or not self.latents.counts:
            return
        count = len(self.latents.counts)
        expected = 2 if factorised else 1
        if count != expected:
            raise ConfigError(
                "latents.counts", f"{count} numbers, expected {expected} for {self.attention}"
            )

    def depths(self) -> tuple[int, int]:
        """Numbers of blocks: of the encoder of each modality, of the joint encoder after them."""
        depths = {"early": 0, "late": self.layers, "hierarchical": self.layers // 2}
        depth = depths[self.fusion]
        return depth, self.layers - depth

    def axes(self, layers: int) -> list[int]:
        """The axis that each of `layers` blocks attends along."""
        if self.attention == "multi_axis":
            return [SPACE] * layers
        half = layers // 2
        if self.attention == "sequential":
            return [TIME] * half + [SPACE] * (layers - half)
        axes = [TIME, SPACE] * half
        if len(axes) < layers:
            axes.append(SPACE)
        return axes


class AxisEncoder(nn.Module):
    """Blocks that attend along the axes of a grid; without blocks, the output is the input.

    `axes` holds the axis of each block, and `size` T and S of the largest output, given T and S of
    the largest grid.
    """

    def __init__(self, config: SceneEncoderConfig, layers: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.axes: list[int] = []
        self.blocks = nn.ModuleList()
        sizes = {TIME: size[0], SPACE: size[1]}
        for axis in config.axes(layers):
            if sizes[axis] == 1:  # attention along this axis would have no effect
                axis = SPACE if axis == TIME else TIME
            if config.latents is not None and axis not in self.axes:
                sizes[axis] = config.latents.count(axis, sizes[axis])
                self.blocks.append(LatentBlock(config.block, sizes[axis]))
            else:
                self.blocks.append(EncoderBlock(config.block))
            self.axes.append(axis)
        self.size = (sizes[TIME], sizes[SPACE])
        self.norm = stack_norm(config.block, layers)

    def forward(self, grid: Grid) -> Grid:
        """A grid of the same size, or shorter along axes with latents.

        A latent is real if any token of its axis is.
        """
        token, real = grid
        for axis, block in zip(self.axes, self.blocks, strict=True):
            # Tokens along the axis are next to each other in memory.
            sequences = token.movedim(axis, -2).contiguous()
            mask = real.movedim(axis, -1)[..., None, :]
            token = block(sequences, mask).movedim(-2, axis)
            if isinstance(block, LatentBlock):
                real = real.any(axis, keepdim=True).expand(token.shape[:-1])
        return Grid(self.norm(token), real)

    def trace(self, grid: Grid, latents: Mapping[nn.Module, Tensor]) -> Grid:
        """The same steps for shares of inputs [N, T, S, E] instead of features.

        A latent has the shares of the tokens that it attends to, with the weights [..., heads,
        count, L] of its block, averaged over heads. Other blocks keep the shares of a token.
        """
        token, real = grid
        for axis, block in zip(self.axes, self.blocks, strict=True):
            if isinstance(block, LatentBlock):
                weights = latents[block].mean(-3)
                token = (weights @ token.movedim(axis, -2)).movedim(-2, axis)
                real = real.any(axis, keepdim=True).expand(token.shape[:-1])
        return Grid(token, real)


class SceneEncoder(nn.Module):
    """Encodes several modalities to one memory for a decoder.

    `sizes` are T and S of the largest grid of each modality; modalities without time (T = 1) come
    last.
    """

    def __init__(self, config: SceneEncoderConfig, sizes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.config = config
        self.join = _flatten if config.attention == "multi_axis" else _tile
        depth, joint_depth = config.depths()
        # One encoder for each modality, then one for all of them.
        encoders = [AxisEncoder(config, depth, self._joined_size([size])) for size in sizes]
        self.own = nn.ModuleList(encoders)
        self.joint = None
        if joint_depth:
            joint_size = self._joined_size([encoder.size for encoder in encoders])
            self.joint = AxisEncoder(config, joint_depth, joint_size)

    def _joined_size(self, sizes: list[tuple[int, int]]) -> tuple[int, int]:
        """T and S of joined grids."""
        if self.config.attention == "multi_axis":
            return 1, sum(steps * slots for steps, slots in sizes)
        return max(steps for steps, _ in sizes), sum(slots for _, slots in sizes)

    def forward(self, grids: list[Grid]) -> tuple[Tensor, Tensor]:
        """Grids of the modalities to tokens [N, L, D] and bool [N, L]."""
        return self._encode(grids, lambda encoder, grid: encoder(grid))

    def trace(self, grids: list[Grid], latents: Mapping[nn.Module, Tensor]) -> Tensor:
        """Shares of inputs in the tokens [N, L, E], see `AxisEncoder.trace`."""
        return self._encode(grids, lambda encoder, grid: encoder.trace(grid, latents))[0]

    def latent_blocks(self) -> list[LatentBlock]:
        """All blocks with latent queries."""
        return [block for block in self.modules() if isinstance(block, LatentBlock)]

    def _encode(
        self, grids: list[Grid], encode: Callable[[AxisEncoder, Grid], Grid]
    ) -> tuple[Tensor, Tensor]:
        encoded = []
        for encoder, grid in zip(self.own, grids, strict=True):
            encoded.append(encode(cast(AxisEncoder, encoder), self.join([grid])))
        if self.joint is not None:
            joined = encode(self.joint, self.join(encoded))
            keeps_tokens = self.config.latents is None
            encoded = _average_copies(joined, encoded) if keeps_tokens else [joined]
        memory = _flatten(encoded)
        return memory.token[:, 0], memory.real[:, 0]


def _flatten(grids: list[Grid]) -> Grid:
    """All tokens of all grids as the slots of a single step."""
    token = torch.cat([grid.token.flatten(1, 2) for grid in grids], 1)
    real = torch.cat([grid.real.flatten(1, 2) for grid in grids], 1)
    return Grid(token[:, None], real[:, None])


def _tile(grids: list[Grid]) -> Grid:
    """Concatenate grids along slots.

    A grid without time is copied to all steps at which another grid has a real token.
    """
    steps = max(grid.token.shape[1] for grid in grids)
    with_time = [grid.real for grid in grids if grid.real.shape[1] == steps]
    seen = torch.cat(with_time, 2).any(2, keepdim=True)  # [N, T, 1]
    token = torch.cat([grid.token.expand(-1, steps, -1, -1) for grid in grids], 2)
    real = torch.cat([grid.real & seen for grid in grids], 2)
    return Grid(token, real)


def _average_copies(joined: Grid, grids: list[Grid]) -> list[Grid]:
    """Split the encoded output of `_tile(grids)`; a tiled token is the mean of its copies."""
    steps = joined.token.shape[1]
    slots = sum(grid.token.shape[2] for grid in grids if grid.token.shape[1] == steps)
    with_time = Grid(joined.token[:, :, :slots], joined.real[:, :, :slots])
    copies = joined.token[:, :, slots:]
    real = joined.real[:, :, slots:]
    mean = masked_mean(copies, real[..., None], 1)[:, None]
    return [with_time, Grid(mean, real.any(1, keepdim=True))]


@dataclass(frozen=True)
class WayformerConfig(SceneModelConfig, positive=("proposals", "decoder_layers", "max_neighbors")):
    """Sizes and reach of Wayformer.

    Attributes:
        proposals: K, number of decoder queries and components of the mixture; if it exceeds
            `modes`, components are merged.
        aggregation: how components are merged.
        encoder: fusion, attention, latents, depth and blocks.
        decoder_layers: number of layers of the decoder.
        decoder: shape of its blocks, by default as in the encoder.
        social_radius_m, max_neighbors: maximum distance and number of the agents that are inputs,
            including the target.
    """

    map_radius_m: float = 80.0
    max_polylines: int = 256
    proposals: int = 6
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    encoder: SceneEncoderConfig = field(default_factory=SceneEncoderConfig)
    decoder_layers: int = 6
    decoder: BlockConfig | None = None
    social_radius_m: float = 80.0
    max_neighbors: int = 65

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modes > self.proposals:
            raise ConfigError(
                "modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals"
            )


class TargetScenes(nn.Module):
    """Tokens of the three modalities around each target."""

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.encoder.block.width
        features = state_width(config.steps_per_token)
        self.history = nn.Linear(features, width)
        self.agents = nn.Linear(features, width)
        self.road = MapTokenizer(width, config.map_width, config.map_radius_m, config.max_polylines)
        steps = -(-config.max_history // config.steps_per_token)
        self.sizes = [(steps, 1), (steps, config.max_neighbors - 1), (1, config.max_polylines)]
        self.positions = nn.ModuleList(LearnedPosition(size, width, std=0.0) for size in self.sizes)

    def forward(self, observation: Observation) -> list[Grid]:
        """Grids of history, agents and road; N = B * S."""
        index, near = neighbors(observation, self.config.social_radius_m, self.config.max_neighbors)
        state, seen = agent_states(observation, index, self.config.steps_per_token)
        seen = seen & near[:, :, None]  # [B, S, T, n]
        # The target is its own nearest neighbor.
        history = self.history(state[..., :1, :])
        agents = self.agents(state[..., 1:, :])
        road, real = self.road(observation, observation.num_targets)  # [B, S, n, D], [B, S, n]
        modalities = [
            Grid(history, seen[..., :1]),
            Grid(agents, seen[..., 1:]),
            Grid(road[:, :, None], real[:, :, None]),
        ]
        grids = []
        for (token, mask), position in zip(modalities, self.positions, strict=True):
            embedding = position(*token.shape[2:4]).flip(0)
            grids.append(Grid(token.flatten(0, 1).relu() + embedding, mask.flatten(0, 1)))
        return grids

    def indices(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Int64 [B, S, n] twice: the agents of the slots of history and agents, and the pieces."""
        config = self.config
        agents, _ = neighbors(observation, config.social_radius_m, config.max_neighbors)
        pieces, _, _ = nearest_polylines(
            observation, observation.num_targets, config.map_radius_m, config.max_polylines
        )
        return agents, pieces


class MixtureHead(nn.Module):
    """Two linear layers: the logit of a mode, and a Gaussian at each step.

    A Gaussian has mean and log sigma of both coordinates (diagonal covariance). Means are offsets
    from step to step plus constant velocity. Log sigma is bounded by 5 tanh(x / 5), which has a
    gradient.
    """

    def __init__(self, width: int, num_future: int) -> None:
        super().__init__()
        self.num_future = num_future
        self.score = nn.Linear(width, 1)
        self.gaussian = nn.Linear(width, num_future * 4)

    def forward(self, observation: Observation, x: Tensor) -> Forecast:
        """Features [B, S, K, D] to a forecast in the frame of each target; `scale` is sigma."""
        gaussian = self.gaussian(x).float().unflatten(-1, (self.num_future, 4))
        step, log_sigma = gaussian.chunk(2, -1)  # [B, S, K, F, 2]
        sigma = (_MAX_LOG_SIGMA * (log_sigma / _MAX_LOG_SIGMA).tanh()).exp()
        position = constant_velocity_path(observation) + step.cumsum(-2)
        logit = self.score(x).squeeze(-1).float()
        pose = observation.pose[:, : observation.num_targets]
        return Forecast(position, logit, Frame.AGENT, pose, sigma)


class Wayformer(Forecaster, config=WayformerConfig):
    """Observation -> Forecast in the frame of each target, with sigma as `scale`.

    K is `proposals` in training and `modes` in evaluation.
    """

    losses = (SetLossConfig, MixtureLossConfig)

    def __init__(self, config: WayformerConfig) -> None:
        super().__init__()
        self.config = config
        self.scenes = TargetScenes(config)
        self.encoder = SceneEncoder(config.encoder, self.scenes.sizes)
        block = config.decoder or config.encoder.block
        width = config.encoder.block.width
        self.bridge: nn.Module = nn.Identity()
        if block.width != width:
            self.bridge = nn.Linear(width, block.width)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, block.width)))
        self.decoder = Decoder(block, config.decoder_layers)
        self.head = MixtureHead(block.width, config.num_future)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        memory, real = self.encoder(self.scenes(observation))  # [N, L, D], [N, L], N = B * S
        queries = self.queries.expand(memory.shape[0], -1, -1)
        layers = self.decoder(queries, self.bridge(memory), memory_mask=real[:, None])
        features = layers[-1].unflatten(0, (observation.num_scenes, observation.num_targets))
        forecast = self.head(observation, features)
        if self.training or self.config.modes == self.config.proposals:
            return forecast
        return aggregate(forecast, self.config.modes, self.config.aggregation)

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers of the decoder; shares are the mean over its queries.

        Latents are between decoder and inputs. Their weights are multiplied: of the decoder to the
        latents, by head, and of the latents to the inputs, the mean over heads.
        """
        targets = observation.num_targets
        agents, pieces = self.scenes.indices(observation)
        grids = self.scenes(observation)
        latents = self._latent_weights(grids)
        with torch.no_grad():
            sources = [
                self.encoder.trace(
                    [_input_shares(grid, grids, target) for grid in grids],
                    {block: weights[target : target + 1] for block, weights in latents.items()},
                )[0]
                for target in range(len(agents.flatten(0, 1)))
            ]  # [L, E] of each target

        def by_target(weights: Tensor) -> Tensor:
            mean = weights.mean(-2)  # [N, heads, L] of [N, heads, K, L]
            pairs = zip(mean, sources, strict=True)
            of_inputs = torch.stack([row @ source for row, source in pairs])
            of_inputs = of_inputs.unflatten(0, (-1, targets))
            num_agents = agents.shape[-1]
            return to_agents_and_pieces(
                observation,
                agents=(of_inputs[..., :num_agents], agents),
                pieces=(of_inputs[..., num_agents:], pieces),
            )

        return [
            TargetAttention(f"decoder {number}", layer, by_target)
            for number, layer in enumerate(self.decoder.cross_attentions(), 1)
        ]

    def _latent_weights(self, grids: list[Grid]) -> dict[nn.Module, Tensor]:
        """The weights [N, ..., heads, count, L] of each block with latents."""
        weights: dict[nn.Module, Tensor] = {}
        receivers = {
            cast(RecordedLayer, block.attention.sublayer): partial(weights.__setitem__, block)
            for block in self.encoder.latent_blocks()
        }
        if receivers:
            with torch.no_grad(), recording(receivers):
                self.encoder(grids)
        return weights


def _input_shares(grid: Grid, grids: list[Grid], target: int) -> Grid:
    """A grid with tokens [1, T, S, E]: one-hot, the slot of a token among the E slots of `grids`.

    The history of a target is slot 0, before the slots of agents and polylines.
    """
    slots = [one.token.shape[2] for one in grids]
    number = [one is grid for one in grids].index(True)
    first = sum(slots[:number])
    real = grid.real[target : target + 1]
    one_hot = torch.eye(sum(slots), device=real.device)[first : first + slots[number]]
    return Grid(one_hot.expand(1, real.shape[1], -1, -1), real)
