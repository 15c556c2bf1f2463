"""Gatformer (Zhang, Feng, Wu, He, T-ITS 2022): graph attention over a sparse graph of a scene.

Nodes are lanes, and agents at each step. In each step, an agent has edges to the nearest agents and
lanes within a radius, and graph attention along these edges is the only exchange between nodes, so
that the cost is linear in the number of edges. Then a transformer encodes the features of each
agent over time, and K learned queries decode K futures.

Interpretation of the paper:
- Node features are displacement vectors and polylines, each in its own frame, instead of a CNN on
  images.
- The position encoding is learned in time (steps count back from the last one; added to the nodes).
  In space it encodes relative pose and velocity of an edge and is added to h_j in alpha_ij =
  softmax LeakyReLU(a^T [W h_i || W h_j]).
- The edges lead to the nearest nodes up to a maximum number, and from each visible agent to itself.
- Lane features are constant over layers. In the last layer, targets are the only receivers.
- Predicted offsets are cumulated and added to constant velocity.

With `joint` (an extension), mode k of all targets is one world: a final layer of graph attention
connects the same mode of targets near each other, and the score of a world is computed from the
mean feature of its targets.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder, FeedForward, Residual
from trajformer.core.graph import Edges, GraphAttention
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.world_loss import WorldLossConfig
from trajformer.models.forecaster import Forecaster, TargetModelConfig
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.modes import consensus
from trajformer.models.tokens import (
    LENGTH_SCALE_M,
    MotionTokenizer,
    PolylineEncoder,
    mlp,
    nearest,
    pose_features,
    take,
)
from trajformer.scenes.geometry import relative_pose, rotate, to_frame


@dataclass(frozen=True)
class GatformerConfig(TargetModelConfig, positive=("graph_layers", "decoder_layers")):
    """Sizes and radii of Gatformer; radii and maximum numbers limit the edges of a node.

    Attributes:
        graph_layers: layers of graph attention.
        encoder_layers, decoder_layers: layers of the transformer.
        joint: mode k of all targets is one world with one probability, trained with the loss
            `worlds`.
    """

    max_polylines: int = 32
    max_neighbors: int = 16
    graph_layers: int = 2
    encoder_layers: int = 2
    decoder_layers: int = 2
    joint: bool = False


class Graph(NamedTuple):
    """Edges from the first R agents in all steps to agents of the same step and to lanes.

    Queries of the edges are indices of flattened receivers [B, T, R]; keys are indices of flattened
    agents [B, T, A], followed by lanes [B, M].
    """

    receivers: int  # R
    edges: Edges
    position: Tensor  # [E, D], encoded relative poses


class _Nodes(NamedTuple):
    """Nodes of N graphs, with the poses that distances are measured between."""

    pose: Tensor  # [N, n, 3] in the batch frame
    exists: Tensor  # bool [N, n]


class _Neighbors(NamedTuple):
    """The nearest nodes of each of R receivers in N graphs."""

    node: Tensor  # int64 [N, R, n]
    real: Tensor  # bool [N, R, n], False for missing nodes
    relative: Tensor  # [N, R, n, 3], poses in the frame of the receiver


class Lanes(PolylineEncoder):
    """A node for each polyline, in the frame of its middle point and direction."""

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Nodes [B, M, D] and their poses [B, M, 3]."""
        index = observation.polyline.shape[2] // 2
        middle = observation.polyline[:, :, index]
        ahead = middle - observation.polyline[:, :, index - 1]
        heading = torch.atan2(ahead[..., 1:], ahead[..., :1])
        pose = torch.cat([middle, heading], -1)
        point = to_frame(observation.polyline, pose[:, :, None]) / LENGTH_SCALE_M
        return self.encode(observation, point), pose


class SceneGraph(nn.Module):
    """Edges of each step with their encoded relative poses."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.agent = nn.Sequential(nn.Linear(7, width), nn.ReLU())
        self.lane = nn.Sequential(nn.Linear(5, width), nn.ReLU())

    def forward(self, observation: Observation, lane_pose: Tensor, num_receivers: int) -> Graph:
        """Edges of the first R agents to other agents and to lanes with poses [B, M, 3]."""
        # Every token has the state of its last step.
        steps = torch.arange(
            observation.num_history - 1,
            0,
            -self.config.steps_per_token,
            device=lane_pose.device,
        ).flip(0)
        pose = torch.cat([observation.position, observation.heading[..., None]], -1)
        pose = pose[:, :, steps].transpose(1, 2)  # [B, T, A, 3]
        velocity = observation.velocity[:, :, steps].transpose(1, 2)  # [B, T, A, 2]
        valid = observation.valid & observation.agent_mask[..., None]
        # Agents that were lost long ago have no incoming edges.
        visible = (valid[:, :, steps] & observation.present[..., None]).transpose(1, 2)  # [B, T, A]

        # The frame of a receiver: its position in this step and, as for its displacement vectors,
        # its last heading.
        exists = valid[:, :num_receivers, steps].transpose(1, 2)  # [B, T, R]
        heading = observation.pose[:, None, :num_receivers, 2:].expand(*exists.shape, 1)
        frame = torch.cat([pose[:, :, :num_receivers, :2], heading], -1)  # [B, T, R, 3]

        agents = _nearest_nodes(
            _Nodes(frame.flatten(0, 1), exists.flatten(0, 1)),
            _Nodes(pose.flatten(0, 1), visible.flatten(0, 1)),
            self.config.social_radius_m,
            self.config.max_neighbors,
        )  # graphs are the B * T steps
        lanes = _nearest_nodes(
            _Nodes(frame.flatten(1, 2), exists.flatten(1, 2)),
            _Nodes(lane_pose, observation.polyline_mask),
            self.config.map_radius_m,
            self.config.max_polylines,
        )  # graphs are the B scenes

        neighbor_velocity = take(velocity.flatten(0, 1), agents.node)
        neighbor_velocity = rotate(neighbor_velocity, -frame.flatten(0, 1)[:, :, None, 2])
        state = [pose_features(agents.relative), neighbor_velocity / LENGTH_SCALE_M]
        agent_position = self.agent(torch.cat(state, -1)).flatten(0, 2)
        lane_position = self.lane(pose_features(lanes.relative)).flatten(0, 2)

        num_agents = pose.shape[:3].numel()  # of all steps
        agent_edges = Edges.from_neighbors(agents.node, agents.real, pose.shape[2])
        lane_edges = Edges.from_neighbors(lanes.node, lanes.real, lane_pose.shape[1])
        edges = agent_edges.concat(lane_edges, num_agents)
        return Graph(num_receivers, edges, torch.cat([agent_position, lane_position]))


def _nearest_nodes(receivers: _Nodes, senders: _Nodes, radius_m: float, count: int) -> _Neighbors:
    """The nearest `count` senders within `radius_m` of each receiver."""
    distance = pairwise_distances(receivers.pose[..., :2], senders.pose[..., :2])
    index, real = nearest(distance, senders.exists[:, None], radius_m, count)
    relative = relative_pose(take(senders.pose, index), receivers.pose[:, :, None])
    return _Neighbors(index, real & receivers.exists[..., None], relative)


class GraphBlock(nn.Module):
    """Graph attention, then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Residual(config, GraphAttention(config.width, config.heads))
        self.feedforward = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, lanes: Tensor, graph: Graph) -> Tensor:
        """Update the receivers [B, T, R, D] among agents [B, T, A, D].

        They attend to agents and lanes [B, M, D].
        """
        receivers = x[:, :, : graph.receivers]
        query = self.attention.pre(receivers.flatten(0, 2))
        nodes = self.attention.pre(torch.cat([x.flatten(0, 2), lanes.flatten(0, 1)]))
        out = self.attention.sublayer(query, nodes, graph.edges, graph.position)
        return self.feedforward(self.attention.post(receivers, out.view_as(receivers)))


class ModeInteraction(nn.Module):
    """Graph attention between the same mode of targets near each other, which makes worlds."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.radius_m = config.social_radius_m
        self.max_neighbors = config.max_neighbors
        self.place = nn.Sequential(nn.Linear(5, config.block.width), nn.ReLU())
        self.block = GraphBlock(config.block)

    def forward(self, observation: Observation, modes: Tensor) -> Tensor:
        """Modes [B, S, K, D] to the same shape."""
        num_targets = observation.num_targets
        targets = _Nodes(observation.pose[:, :num_targets], observation.target_mask)
        near = _nearest_nodes(targets, targets, self.radius_m, self.max_neighbors)
        position = self.place(pose_features(near.relative))  # [B, S, n, D]

        # Modes take the axis of steps, and all modes have the same edges.
        x = modes.transpose(1, 2)  # [B, K, S, D]
        num_modes = x.shape[1]
        edges = Edges.from_neighbors(
            _repeat(near.node, num_modes), _repeat(near.real, num_modes), num_targets
        )
        graph = Graph(num_targets, edges, _repeat(position, num_modes).flatten(0, 2))
        no_lanes = x.new_zeros(len(x), 0, x.shape[-1])
        return self.block(x, no_lanes, graph).transpose(1, 2)


def _repeat(value: Tensor, num_modes: int) -> Tensor:
    """[B, ...] to [B * K, ...], the same for all modes of a scene."""
    return value[:, None].expand(-1, num_modes, *value.shape[1:]).flatten(0, 1)


class Gatformer(Forecaster, config=GatformerConfig):
    """Observation -> Forecast in the frame of each target."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.config = config
        self.joint = config.joint
        self.losses = (WorldLossConfig if config.joint else SetLossConfig,)
        width = config.block.width
        self.motion = MotionTokenizer(width, config.steps_per_token)
        self.lanes = Lanes(width, config.map_width)
        num_times = -(-(config.max_history - 1) // config.steps_per_token)
        self.time = LearnedPosition((num_times,), width)
        self.graph = SceneGraph(config)
        self.layers = nn.ModuleList(GraphBlock(config.block) for _ in range(config.graph_layers))
        self.encoder = Encoder(config.block, config.encoder_layers)
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.worlds = ModeInteraction(config) if config.joint else None
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        x, known = self._agent_features(observation)  # [B, S, T, D], [B, S, T]
        keys = known[:, :, None]
        memory = self.encoder(x, keys)
        queries = self.queries.expand(*known.shape[:2], -1, -1)
        layers = self.decoder(queries, memory, memory_mask=keys, position=self.queries)
        modes = layers[-1]  # [B, S, K, D]
        scored = modes
        if self.worlds is not None:
            modes = self.worlds(observation, modes)
            scored = world_features(observation, modes)  # [B, K, D]
        forecast = forecast_from_offsets(observation, self.trajectory(modes), self.score(scored))
        if self.training or self.joint:
            return forecast
        return consensus(forecast, self.config.consensus_m)

    def _agent_features(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features of the targets in each step after the graph layers [B, S, T, D].

        Also returns their mask, bool [B, S, T].
        """
        num_targets = observation.num_targets
        tokens, real = self.motion(observation)  # [B, A, T, D], [B, A, T]
        # Positions count back from the last observed step.
        time = self.time(tokens.shape[2]).flip(0)
        x = (tokens + time).transpose(1, 2)  # [B, T, A, D]
        lanes, lane_pose = self.lanes(observation)
        *earlier, last = self.layers
        if earlier:
            graph = self.graph(observation, lane_pose, x.shape[2])
            for layer in earlier:
                x = layer(x, lanes, graph)
        x = last(x, lanes, self.graph(observation, lane_pose, num_targets))  # [B, T, S, D]

        # An agent that is seen in the last step only has no displacement, but it has edges.
        last_known = real[..., -1:] | observation.valid[..., -1:]
        known = torch.cat([real[..., :-1], last_known], -1)
        return x.transpose(1, 2), known[:, :num_targets]
