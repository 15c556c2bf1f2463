"""Gatformer (Zhang, Feng, Wu, He, T-ITS 2022): graph attention over a sparse scene graph, then a transformer for all agents.

Nodes are agents at each step and lanes. At each step an agent has edges to the agents and lanes nearest to it within a radius;
graph attention along them is all that agents learn of one another and of the road, so that cost grows with the edges. What an
agent has gathered at its steps is then a sequence of its own: a transformer reads it, and K learned queries become K futures.

Readings taken. Spatial features are those of displacement vectors and of polylines, each in its own frame, where the paper has
a CNN on pictures. The position encoder is learned in time (steps count back from the last one, added to the nodes) and an
embedding of relative pose and velocity in space: it belongs to an edge and is added to h_j of alpha_ij = softmax LeakyReLU(a^T
[W h_i || W h_j]), so h_j is node j as agent i sees it and nothing depends on the world's frame. Edges are those of our choice,
nearest first up to a number; an agent that is still there has one to itself. Lanes do not change, and in the last layer
targets alone receive. Steps are summed up and added to the place where the target would be at constant velocity.

With `joint` (ours, not the paper's) mode k of all targets is one world: a last layer of graph attention lets targets that are
near each other meet in it, each mode those of its own world, whose score is that of their mean feature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder, FeedForward, Residual
from trajformer.core.graph import Edges, GraphAttention
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.modes import consensus
from trajformer.models.tokens import (
    LENGTH_SCALE_M,
    MotionTokenizer,
    PolylineEncoder,
    mlp,
    nearest,
    polyline_attributes,
    pose_features,
    take,
)
from trajformer.scenes.geometry import relative_pose, rotate, to_frame


@dataclass(frozen=True)
class GatformerConfig:
    """Sizes and reach of Gatformer.

    Attributes:
        num_future: F, steps to predict.
        modes: K.
        consensus_m: in evaluation modes are scored anew by `forecast.consensus` at this temperature, that of the confidence
            loss; 0 keeps the scores of the network.
        max_history: longest history that has learned positions.
        steps_per_token: displacement vectors in a node of an agent.
        block: shape of graph and transformer blocks.
        graph_layers: layers of graph attention.
        encoder_layers, decoder_layers: of the transformer.
        social_radius_m, max_neighbors: agents that an agent has edges to, itself included.
        map_radius_m, max_polylines: lanes that it has edges to.
        map_width: width inside the polyline subgraph.
        joint: mode k of all targets is one world, with one probability; recipes then train with `world_loss`.
    """

    num_future: int
    modes: int = 6
    consensus_m: float = 1.0
    max_history: int = 50
    steps_per_token: int = 1
    block: BlockConfig = field(default_factory=BlockConfig)
    graph_layers: int = 2
    encoder_layers: int = 2
    decoder_layers: int = 2
    social_radius_m: float = 56.0
    max_neighbors: int = 16
    map_radius_m: float = 65.0
    max_polylines: int = 32
    map_width: int = 64
    joint: bool = False

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=(
                "num_future",
                "modes",
                "max_history",
                "steps_per_token",
                "max_neighbors",
                "max_polylines",
                "map_width",
                "graph_layers",
                "decoder_layers",
            ),
        )

    def build(self) -> Gatformer:
        """The model, with random weights."""
        return Gatformer(self)


class Graph(NamedTuple):
    """Edges from the first R agents, at all T steps of all scenes, to agents and then to lanes.

    Attributes:
        receivers: R.
        edges: queries are [B, T, R] in a row; keys are agents [B, T, A] in a row and, behind them, lanes [B, M].
        position: [E, D].
    """

    receivers: int
    edges: Edges
    position: Tensor


class Lanes(PolylineEncoder):
    """A node for each polyline, in its own frame: the middle of it, heading along it."""

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Nodes [B, M, D] and their poses [B, M, 3]."""
        middle = observation.polyline.shape[2] // 2
        ahead = observation.polyline[:, :, middle] - observation.polyline[:, :, middle - 1]
        pose = torch.cat([observation.polyline[:, :, middle], torch.atan2(ahead[..., 1:], ahead[..., :1])], -1)
        point = to_frame(observation.polyline, pose[:, :, None]) / LENGTH_SCALE_M
        return self.encode(point, self.attribute(polyline_attributes(observation))), pose


class SceneGraph(nn.Module):
    """Who is near whom at each step, and how they are seen (the position encoder in space)."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.agent, self.lane = (nn.Sequential(nn.Linear(size, width), nn.ReLU()) for size in (7, 5))

    def forward(self, observation: Observation, lane: Tensor, receivers: int) -> Graph:
        """The graph in which the first agents, so many, receive; `lane` [B, M, 3] are the poses of lanes."""
        config, valid = self.config, observation.valid & observation.agent_mask[..., None]
        step = torch.arange(observation.num_history - 1, 0, -config.steps_per_token, device=lane.device).flip(0)
        pose = torch.cat([observation.position, observation.heading[..., None]], -1)[:, :, step].transpose(1, 2)  # [B, T, A, 3]
        velocity = observation.velocity[:, :, step].transpose(1, 2).flatten(0, 1)
        looks = valid[:, :receivers, step].transpose(1, 2)
        seen = (valid[:, :, step] & valid[..., -1:]).transpose(1, 2)  # who is lost by now is nobody's neighbour
        # An agent looks from where it was then, in the direction that its displacement vectors have, which is its last one.
        turn = observation.pose[:, None, :receivers, 2:].expand(*looks.shape, 1)
        eye = torch.cat([pose[:, :, :receivers, :2], turn], -1)
        who, others = (eye.flatten(0, 1), looks.flatten(0, 1)), (pose.flatten(0, 1), seen.flatten(0, 1))  # a graph a step
        index, real, place = _around(*who, *others, config.social_radius_m, config.max_neighbors)
        speed = rotate(take(velocity, index), -eye.flatten(0, 1)[:, :, None, 2]) / LENGTH_SCALE_M
        agents = Edges.from_neighbors(index, real, pose.shape[2])
        near = self.agent(torch.cat([pose_features(place), speed], -1)).flatten(0, 2)
        scene = (eye.flatten(1, 2), looks.flatten(1, 2), lane, observation.polyline_mask)
        index, real, place = _around(*scene, config.map_radius_m, config.max_polylines)
        edges = agents.concat(Edges.from_neighbors(index, real, lane.shape[1]), pose.shape[:3].numel())
        return Graph(receivers, edges, torch.cat([near, self.lane(pose_features(place)).flatten(0, 2)]))


def _around(
    eye: Tensor, looks: Tensor, pose: Tensor, exists: Tensor, radius_m: float, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of poses [N, S, 3] the nearest that each [N, R, 3] sees: indices and bool [N, R, n], and relative poses [N, R, n, 3]."""
    index, real = nearest(pairwise_distances(eye[..., :2], pose[..., :2]), exists[:, None], radius_m, count)
    return index, real & looks[..., None], relative_pose(take(pose, index), eye[:, :, None])


class GraphBlock(nn.Module):
    """Graph attention, then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Residual(config, GraphAttention(config.width, config.heads))
        self.feedforward = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, lane: Tensor, graph: Graph) -> Tensor:
        """Agents [B, T, A, D] and lanes [B, M, D] to the agents that receive [B, T, R, D]."""
        own = x[:, :, : graph.receivers]
        query = self.attention.pre(own.flatten(0, 2))
        nodes = self.attention.pre(torch.cat([x.flatten(0, 2), lane.flatten(0, 1)]))
        found = self.attention.sublayer(query, nodes, graph.edges, graph.position)
        return self.feedforward(self.attention.post(own, found.view_as(own)))


class Worlds(nn.Module):
    """Targets meet in every world, along edges to those near them."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.reach = (config.social_radius_m, config.max_neighbors)
        self.place = nn.Sequential(nn.Linear(5, config.block.width), nn.ReLU())
        self.block = GraphBlock(config.block)

    def forward(self, observation: Observation, mode: Tensor) -> Tensor:
        """Modes [B, S, K, D] to the same shape."""
        who = (observation.pose[:, : observation.num_targets], observation.target_mask)
        index, real, place = _around(*who, *who, *self.reach)
        x = mode.transpose(1, 2)  # worlds stand where steps do

        def each(value: Tensor) -> Tensor:
            return value[:, None].expand(-1, x.shape[1], *value.shape[1:])

        edges = Edges.from_neighbors(each(index).flatten(0, 1), each(real).flatten(0, 1), observation.num_targets)
        graph = Graph(observation.num_targets, edges, each(self.place(pose_features(place))).flatten(0, 3))
        return self.block(x, x.new_zeros(len(x), 0, x.shape[-1]), graph).transpose(1, 2)


class Gatformer(Forecaster):
    """Observation -> Forecast in each target's own frame.

    Raises:
        TrajformerError: a size that must be at least 1 is not.
    """

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.joint = config.joint
        self.losses = (WorldLossConfig if config.joint else SetLossConfig,)
        self.config, width = config, config.block.width
        self.motion, self.lanes = MotionTokenizer(width, config.steps_per_token), Lanes(width, config.map_width)
        self.time = LearnedPosition((-(-(config.max_history - 1) // config.steps_per_token),), width)
        self.graph = SceneGraph(config)
        self.layers = nn.ModuleList(GraphBlock(config.block) for _ in range(config.graph_layers))
        self.encoder, self.decoder = Encoder(config.block, config.encoder_layers), Decoder(config.block, config.decoder_layers)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.worlds = Worlds(config) if config.joint else None
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        check_lengths(observation, self.config.num_future, self.config.max_history)
        x, keys = (part.flatten(0, 1) for part in self._gathered(observation))
        memory = self.encoder(x, keys[:, None])
        queries = self.queries.expand(len(memory), -1, -1)
        mode = self.decoder(queries, memory, memory_mask=keys[:, None], position=self.queries)[-1]
        mode = mode.unflatten(0, (observation.num_scenes, observation.num_targets))
        if self.worlds is not None:
            mode = self.worlds(observation, mode)
            return forecast_from_offsets(observation, self.trajectory(mode), self.score(world_features(observation, mode)))
        forecast = forecast_from_offsets(observation, self.trajectory(mode), self.score(mode))
        return forecast if self.training else consensus(forecast, self.config.consensus_m)

    def _gathered(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """What targets know at each step after the graph [B, S, T, D], and bool [B, S, T], at which steps."""
        token, real = self.motion(observation)
        x = (token + self.time(token.shape[2]).flip(0)).transpose(1, 2)  # positions count back from the last observed step
        lane, pose = self.lanes(observation)
        *earlier, last = self.layers
        if earlier:
            everybody = self.graph(observation, pose, x.shape[2])
            for layer in earlier:
                x = layer(x, lane, everybody)
        x = last(x, lane, self.graph(observation, pose, observation.num_targets))
        # Who was seen at the last step alone has no displacement, but a place in the graph.
        known = torch.cat([real[..., :-1], real[..., -1:] | observation.valid[..., -1:]], -1)
        return x.transpose(1, 2), known[:, : observation.num_targets]
