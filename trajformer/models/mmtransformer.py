"""mmTransformer (Liu et al., CVPR 2021), the paper's variant: stacked transformers over motion, map and neighbours.

K proposals per agent are queries that pass through a motion extractor (its own history), a map aggregator (lanes) and
a social constructor (neighbours). Read as the paper has it, with these choices of ours: every agent is normalised in
its own frame instead of one target's, so that all targets of a scene are predicted in one pass; positions of the
history are learned and added at each attention (DETR style); proposals start from orthogonal learned queries; offsets
are cumulated on top of constant velocity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trajformer.batch import SceneBatch
from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.errors import TrajformerError
from trajformer.forecast import Forecast, consensus, endpoint_nms
from trajformer.geometry import rotate
from trajformer.models.tokens import MapTokenizer, MotionTokenizer, NeighbourTokenizer, last_velocity, mlp
from trajformer.sample import Frame


@dataclass(frozen=True)
class MMTransformerConfig:
    """Sizes and reach of mmTransformer.

    Attributes:
        num_future: F, steps to predict.
        proposals: K queries of the network.
        modes: modes of a forecast in evaluation; fewer than `proposals` are chosen by end-point suppression.
        nms_radius_m: end points nearer than this to a more probable one are suppressed.
        consensus_m: in evaluation modes are scored anew by `forecast.consensus` at this temperature, that of the
            confidence loss; 0 keeps the scores of the network.
        max_history: longest history that has learned positions.
        steps_per_token: displacement vectors in a motion token; the paper has 1.
        block: shape of every transformer block.
        motion_layers, map_layers, social_layers: encoder and decoder layers of the three parts.
        map_radius_m, max_polylines: lanes an agent attends to.
        map_width: width inside the polyline subgraph.
        social_radius_m, max_neighbours: neighbours a target attends to, itself included.
        neighbour_map: neighbours, too, pass the map aggregator (the paper); else they are known by their motion.
    """

    num_future: int
    proposals: int = 6
    modes: int = 6
    nms_radius_m: float = 2.0
    consensus_m: float = 1.0
    max_history: int = 50
    steps_per_token: int = 1
    block: BlockConfig = field(default_factory=BlockConfig)
    motion_layers: tuple[int, int] = (2, 2)
    map_layers: tuple[int, int] = (2, 2)
    social_layers: tuple[int, int] = (2, 4)
    map_radius_m: float = 65.0
    max_polylines: int = 80
    map_width: int = 64
    social_radius_m: float = 56.0
    max_neighbours: int = 24
    neighbour_map: bool = False


class MotionExtractor(nn.Module):
    """History of every agent to K proposal features."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.tokens = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.motion_layers[0])
        self.decoder = Decoder(config.block, config.motion_layers[1])
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, width)))

    def forward(self, batch: SceneBatch) -> Tensor:
        """[B, A, K, D]."""
        tokens, mask = self.tokens(batch)
        time = self.time()[-tokens.shape[2] :]  # positions count back from the last observed step
        keys, shape = mask.flatten(0, 1)[:, None], tokens.shape[:2]
        memory = self.encoder(tokens.flatten(0, 1), keys, time)
        queries = self.queries.expand(len(memory), -1, -1)
        proposals = self.decoder(queries, memory, memory_mask=keys, position=self.queries, memory_position=time)[-1]
        return proposals.unflatten(0, shape)


class MapAggregator(nn.Module):
    """Proposals attend to the lanes around their agent."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        self.tokens = MapTokenizer(config.block.width, config.map_width, config.map_radius_m, config.max_polylines)
        self.encoder = Encoder(config.block, config.map_layers[0])
        self.decoder = Decoder(config.block, config.map_layers[1])

    def forward(self, batch: SceneBatch, proposals: Tensor, position: Tensor) -> Tensor:
        """[B, N, K, D] of the first N agents to the same shape."""
        tokens, mask = self.tokens(batch, proposals.shape[1])
        keys = mask.flatten(0, 1)[:, None]
        memory = self.encoder(tokens.flatten(0, 1), keys)
        out = self.decoder(proposals.flatten(0, 1), memory, memory_mask=keys, position=position)[-1]
        return out.unflatten(0, proposals.shape[:2])


class SocialConstructor(nn.Module):
    """Targets' proposals attend to their neighbours."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.vehicle = mlp(config.proposals * width, width, width)
        self.tokens = NeighbourTokenizer(width, config.social_radius_m, config.max_neighbours)
        self.encoder = Encoder(config.block, config.social_layers[0])
        self.decoder = Decoder(config.block, config.social_layers[1])

    def forward(self, batch: SceneBatch, everyone: Tensor, proposals: Tensor, position: Tensor) -> list[Tensor]:
        """All agents' proposals [B, A, K, D] and the targets' [B, S, K, D] to every layer's [B, S, K, D]."""
        tokens, mask = self.tokens(batch, self.vehicle(everyone.flatten(-2)))
        keys = mask.flatten(0, 1)[:, None]
        memory = self.encoder(tokens.flatten(0, 1), keys)
        layers = self.decoder(proposals.flatten(0, 1), memory, memory_mask=keys, position=position)
        return [layer.unflatten(0, proposals.shape[:2]) for layer in layers]


class MMTransformer(nn.Module):
    """SceneBatch -> Forecast in each target's own frame, K = `proposals` in training, `modes` in evaluation.

    Every social decoder layer's forecast is kept as auxiliary, for the same losses.
    """

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        if config.modes > config.proposals:
            raise TrajformerError(f"mmtransformer.modes: {config.modes} of only {config.proposals} proposals")
        self.config = config
        width = config.block.width
        self.motion, self.map, self.social = MotionExtractor(config), MapAggregator(config), SocialConstructor(config)
        self.position = nn.Parameter(torch.randn(config.proposals, width) * 0.02)
        self.trajectory = mlp(width, width, width, config.num_future * 2)
        self.score = mlp(width, width, width, 1)

    def forward(self, batch: SceneBatch) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        if batch.num_future != self.config.num_future:
            raise TrajformerError(f"scenes want {batch.num_future} future steps, the model predicts {self.config.num_future}")
        if batch.num_history > self.config.max_history:
            raise TrajformerError(
                f"scenes have {batch.num_history} observed steps, the model max_history {self.config.max_history}"
            )
        proposals = self.motion(batch)
        if self.config.neighbour_map:
            proposals = self.map(batch, proposals, self.position)
            targets = proposals[:, : batch.num_targets]
        else:
            targets = self.map(batch, proposals[:, : batch.num_targets], self.position)
        layers = [self._decode(batch, layer) for layer in self.social(batch, proposals, targets, self.position)]
        forecast = Forecast(*layers[-1], auxiliary=tuple(Forecast(*layer) for layer in layers[:-1]))
        if self.training:
            return forecast
        if self.config.modes < self.config.proposals:
            forecast = endpoint_nms(forecast, self.config.modes, self.config.nms_radius_m)
        return consensus(forecast, self.config.consensus_m) if self.config.consensus_m else forecast

    def _decode(self, batch: SceneBatch, x: Tensor) -> tuple[Tensor, Tensor, Frame, Tensor]:
        """Cumulated offsets (as in the paper) from where the agent would be if it kept its velocity."""
        targets = slice(0, batch.num_targets)
        pose = batch.pose[:, targets]
        velocity = rotate(last_velocity(batch)[:, targets], -pose[..., 2])
        time = torch.arange(1, self.config.num_future + 1, device=x.device) * batch.period_s
        base = velocity[:, :, None, None] * time[:, None]
        offset = self.trajectory(x).unflatten(-1, (self.config.num_future, 2)).float()
        return base + offset.cumsum(-2), self.score(x).squeeze(-1).float(), Frame.AGENT, pose
