"""Gatformer (Zhang, Feng, Wu, He, T-ITS 2022): graph attention over a sparse scene graph, then a transformer for all agents.

Nodes are lanes, and agents at each step. In each step, an agent has edges to the nearest agents and lanes within a radius, and
graph attention along these edges is the only exchange between nodes, so that the cost is linear in the number of edges. Then a
transformer encodes the features of each agent over time, and K learned queries decode K futures.

Interpretation of the paper:
- Node features are displacement vectors and polylines, each in its own frame, instead of a CNN on images.
- The position encoding is learned in time (steps count back from the last one; added to the nodes). In space it encodes relative
  pose and velocity of an edge and is added to h_j in alpha_ij = softmax LeakyReLU(a^T [W h_i || W h_j]).
- The edges lead to the nearest nodes up to a maximum number, and from each visible agent to itself.
- Lane features are constant over layers. In the last layer, targets are the only receivers.
- Predicted offsets are cumulated and added to constant velocity.

With `joint` (an extension), mode k of all targets is one world: a final layer of graph attention connects the same mode of
targets near each other, and the score of a world is computed from the mean feature of its targets.
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
        joint: mode k of all targets is one world with one probability, trained with the loss `worlds`.
    """

    max_polylines: int = 32
    max_neighbors: int = 16
    graph_layers: int = 2
    encoder_layers: int = 2
    decoder_layers: int = 2
    joint: bool = False


class Graph(NamedTuple):
    """Edges from the first R agents in all steps to agents of the same step and to lanes."""

    receivers: int  # R
    edges: Edges  # queries are indices of flattened [B, T, R]; keys of flattened agents [B, T, A], followed by lanes [B, M]
    position: Tensor  # [E, D], encoded relative poses


class Lanes(PolylineEncoder):
    """A node for each polyline, in the frame of its middle point and direction."""

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Nodes [B, M, D] and their poses [B, M, 3]."""
        middle = observation.polyline.shape[2] // 2
        ahead = observation.polyline[:, :, middle] - observation.polyline[:, :, middle - 1]
        pose = torch.cat(
            [observation.polyline[:, :, middle], torch.atan2(ahead[..., 1:], ahead[..., :1])], -1
        )
        point = to_frame(observation.polyline, pose[:, :, None]) / LENGTH_SCALE_M
        return self.encode(observation, point), pose


class SceneGraph(nn.Module):
    """Edges of each step with their encoded relative poses."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.agent, self.lane = (
            nn.Sequential(nn.Linear(size, width), nn.ReLU()) for size in (7, 5)
        )

    def forward(self, observation: Observation, lane: Tensor, receivers: int) -> Graph:
        """Edges of the first `receivers` agents to other agents and to lanes with poses `lane` [B, M, 3]."""
        config, valid = self.config, observation.valid & observation.agent_mask[..., None]
        step = torch.arange(
            observation.num_history - 1, 0, -config.steps_per_token, device=lane.device
        ).flip(0)
        pose = torch.cat([observation.position, observation.heading[..., None]], -1)[
            :, :, step
        ].transpose(1, 2)  # [B, T, A, 3]
        velocity = observation.velocity[:, :, step].transpose(1, 2).flatten(0, 1)  # [B * T, A, 2]
        exists = valid[:, :receivers, step].transpose(1, 2)
        visible = (valid[:, :, step] & valid[..., -1:]).transpose(
            1, 2
        )  # agents that are lost later have no incoming edges
        # The frame of a receiver: its position in this step and, as for its displacement vectors, its last heading.
        heading = observation.pose[:, None, :receivers, 2:].expand(*exists.shape, 1)
        frame = torch.cat([pose[:, :, :receivers, :2], heading], -1)  # [B, T, R, 3]
        nodes = (
            frame.flatten(0, 1),
            exists.flatten(0, 1),
            pose.flatten(0, 1),
            visible.flatten(0, 1),
        )
        index, real, relative = _nearest_nodes(*nodes, config.social_radius_m, config.max_neighbors)
        velocity = (
            rotate(take(velocity, index), -frame.flatten(0, 1)[:, :, None, 2]) / LENGTH_SCALE_M
        )
        agent_edges = Edges.from_neighbors(index, real, pose.shape[2])
        agents = self.agent(torch.cat([pose_features(relative), velocity], -1)).flatten(0, 2)
        nodes = (frame.flatten(1, 2), exists.flatten(1, 2), lane, observation.polyline_mask)
        index, real, relative = _nearest_nodes(*nodes, config.map_radius_m, config.max_polylines)
        edges = agent_edges.concat(
            Edges.from_neighbors(index, real, lane.shape[1]), pose.shape[:3].numel()
        )
        return Graph(
            receivers, edges, torch.cat([agents, self.lane(pose_features(relative)).flatten(0, 2)])
        )


def _nearest_nodes(
    frame: Tensor, exists: Tensor, pose: Tensor, visible: Tensor, radius_m: float, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest nodes within `radius_m`, with poses [N, S, 3], of receivers with poses `frame` [N, R, 3].

    Returns indices [N, R, n], bool [N, R, n]: False for missing nodes, and relative poses [N, R, n, 3].
    """
    index, real = nearest(
        pairwise_distances(frame[..., :2], pose[..., :2]), visible[:, None], radius_m, count
    )
    return index, real & exists[..., None], relative_pose(take(pose, index), frame[:, :, None])


class GraphBlock(nn.Module):
    """Graph attention, then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Residual(config, GraphAttention(config.width, config.heads))
        self.feedforward = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, lane: Tensor, graph: Graph) -> Tensor:
        """Update the receivers [B, T, R, D] among agents [B, T, A, D] from agents and lanes [B, M, D]."""
        receiver = x[:, :, : graph.receivers]
        query = self.attention.pre(receiver.flatten(0, 2))
        nodes = self.attention.pre(torch.cat([x.flatten(0, 2), lane.flatten(0, 1)]))
        out = self.attention.sublayer(query, nodes, graph.edges, graph.position)
        return self.feedforward(self.attention.post(receiver, out.view_as(receiver)))


class Worlds(nn.Module):
    """Graph attention between the same mode of targets near each other."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.limits = (config.social_radius_m, config.max_neighbors)
        self.place = nn.Sequential(nn.Linear(5, config.block.width), nn.ReLU())
        self.block = GraphBlock(config.block)

    def forward(self, observation: Observation, mode: Tensor) -> Tensor:
        """Modes [B, S, K, D] to the same shape."""
        targets = (observation.pose[:, : observation.num_targets], observation.target_mask)
        index, real, relative = _nearest_nodes(*targets, *targets, *self.limits)
        x = mode.transpose(1, 2)  # [B, K, S, D]: worlds take the axis of steps

        def repeat(value: Tensor) -> Tensor:
            return value[:, None].expand(-1, x.shape[1], *value.shape[1:])

        edges = Edges.from_neighbors(
            repeat(index).flatten(0, 1), repeat(real).flatten(0, 1), observation.num_targets
        )
        graph = Graph(
            observation.num_targets,
            edges,
            repeat(self.place(pose_features(relative))).flatten(0, 3),
        )
        return self.block(x, x.new_zeros(len(x), 0, x.shape[-1]), graph).transpose(1, 2)


class Gatformer(Forecaster, config=GatformerConfig):
    """Observation -> Forecast in the frame of each target."""

    def __init__(self, config: GatformerConfig) -> None:
        super().__init__()
        self.joint = config.joint
        self.losses = (WorldLossConfig if config.joint else SetLossConfig,)
        self.config, width = config, config.block.width
        self.motion, self.lanes = (
            MotionTokenizer(width, config.steps_per_token),
            Lanes(width, config.map_width),
        )
        self.time = LearnedPosition(
            (-(-(config.max_history - 1) // config.steps_per_token),), width
        )
        self.graph = SceneGraph(config)
        self.layers = nn.ModuleList(GraphBlock(config.block) for _ in range(config.graph_layers))
        self.encoder, self.decoder = (
            Encoder(config.block, config.encoder_layers),
            Decoder(config.block, config.decoder_layers),
        )
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.worlds = Worlds(config) if config.joint else None
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        x, known = self._agent_features(observation)
        keys = known[:, :, None]
        queries = self.queries.expand(*known.shape[:2], -1, -1)
        mode = self.decoder(
            queries, self.encoder(x, keys), memory_mask=keys, position=self.queries
        )[-1]
        if self.worlds is not None:
            mode = self.worlds(observation, mode)
        scored = mode if self.worlds is None else world_features(observation, mode)
        forecast = forecast_from_offsets(observation, self.trajectory(mode), self.score(scored))
        return (
            forecast
            if self.training or forecast.is_joint
            else consensus(forecast, self.config.consensus_m)
        )

    def _agent_features(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Features of the targets in each step after the graph layers [B, S, T, D], and their mask bool [B, S, T]."""
        token, real = self.motion(observation)
        x = (token + self.time(token.shape[2]).flip(0)).transpose(
            1, 2
        )  # positions count back from the last observed step
        lane, pose = self.lanes(observation)
        *earlier, last = self.layers
        if earlier:
            graph = self.graph(observation, pose, x.shape[2])
            for layer in earlier:
                x = layer(x, lane, graph)
        x = last(x, lane, self.graph(observation, pose, observation.num_targets))
        # An agent that is seen in the last step only has no displacement, but it has edges.
        known = torch.cat([real[..., :-1], real[..., -1:] | observation.valid[..., -1:]], -1)
        return x.transpose(1, 2), known[:, : observation.num_targets]
