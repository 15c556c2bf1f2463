"""Tokens of an observation: motion of agents, and lanes and neighbors around agents.

All features are relative to the present pose of an agent, so that they are SE(2)-invariant.

- Building blocks: `mlp`, `group_steps`, `take`, `nearest`.
- Agents in their own frames: `motion_vectors`, `MotionTokenizer`.
- Neighbors in the frame of a target: `neighbors`, `agent_states`, `NeighborTokenizer`.
- Polylines: `PolylineEncoder`, `MapTokenizer`, `nearest_polylines`, `polyline_attributes`.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.scenes.geometry import relative_pose, rotate, to_frame
from trajformer.scenes.scene import AgentKind, LaneFlag, PolylineKind

LENGTH_SCALE_M = 10.0  # lengths are divided by it, for features of the order of one
_FLAGS = tuple(flag for flag in LaneFlag if flag)
# Drivable areas never enter a batch, so road edges have their feature. Road lines have none,
# because the first weights were trained without them.
_WITHOUT_FEATURE = (PolylineKind.DRIVABLE_AREA, PolylineKind.ROAD_LINE)
_KINDS = [int(kind) for kind in PolylineKind if kind not in _WITHOUT_FEATURE]
NUM_ATTRIBUTES = len(_KINDS) + len(_FLAGS)
_VECTOR_FEATURES = 8  # of `motion_vectors`
_STATE_FEATURES = 7  # of `agent_states`, without the kind
_POSE_FEATURES = 5  # of `pose_features`


def mlp(*widths: int, norm: bool = True) -> nn.Sequential:
    """Linear layers with optional layer norm and ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers.append(nn.Linear(before, after))
        if norm:
            layers.append(nn.LayerNorm(after))
        layers.append(nn.ReLU())
    layers.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*layers)


def group_steps(x: Tensor, mask: Tensor, steps: int, *, past: bool = True) -> tuple[Tensor, Tensor]:
    """Concatenate the features of consecutive steps.

    If T is not a multiple of `steps`, the first group starts with zeros. For the future (`past` is
    False), the last group ends with zeros.

    Args:
        x: features [..., T, C].
        mask: bool [..., T].
        steps: number of steps in a group.
        past: the last step ends a group; otherwise the first one starts a group.

    Returns:
        Features [..., T', steps * C] with T' = ceil(T / steps), and bool [..., T']: groups with at
        least one True step.
    """
    missing = -x.shape[-2] % steps
    padding = (missing, 0) if past else (0, missing)
    x = nn.functional.pad(x, (0, 0, *padding))
    mask = nn.functional.pad(mask, padding)
    return x.unflatten(-2, (-1, steps)).flatten(-2), mask.unflatten(-1, (-1, steps)).any(-1)


def motion_vectors(observation: Observation, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Displacements between consecutive observed steps (mmTransformer, section 3.1).

    The features of each vector, in the frame of the agent, are: displacement, time in seconds (0
    for the last step), end point, cosine and sine of the heading at the end point, and whether the
    end point was recorded; zeros if one of its steps is not valid. `steps` consecutive vectors are
    concatenated; the last group ends in the last observed step.

    Returns:
        Features [B, A, L, 8 * steps] with L = ceil((H - 1) / steps), and bool [B, A, L]: groups
        with at least one vector.
    """
    pose = observation.pose[:, :, None]
    mask = observation.valid[..., 1:] & observation.valid[..., :-1]
    xy = to_frame(observation.position, pose) / LENGTH_SCALE_M
    end = xy[..., 1:, :]
    displacement = (end - xy[..., :-1, :]) * LENGTH_SCALE_M
    heading = (observation.heading[..., 1:] - pose[..., 2])[..., None]

    count = observation.num_history - 1
    step = torch.arange(-count + 1, 1, device=xy.device, dtype=xy.dtype)
    time = (step * observation.period_s).expand(mask.shape)[..., None]
    recorded = observation.recorded[..., 1:, None].to(xy.dtype)
    parts = [displacement, time, end, heading.cos(), heading.sin(), recorded]
    return group_steps(torch.cat(parts, -1) * mask[..., None], mask, steps)


def last_velocity(observation: Observation) -> Tensor:
    """Velocities [B, A, 2] at the present; a lost agent has its last recorded velocity."""
    return observation.velocity[:, :, -1] * observation.valid[:, :, -1:]


class MotionTokenizer(nn.Module):
    """Motion tokens: vectors of consecutive steps, plus an embedding of the agent's kind.

    Args:
        width: D.
        steps: number of vectors in a token (mmTransformer: 1).
    """

    def __init__(self, width: int, steps: int = 1) -> None:
        super().__init__()
        self.steps = steps
        self.vector = mlp(_VECTOR_FEATURES * steps, width, width)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Tokens [B, A, L, D] and bool [B, A, L], L = ceil((H - 1) / steps).

        The last token ends in the last step.
        """
        features, mask = motion_vectors(observation, self.steps)
        kind = self.kind(observation.agent_kind)
        return self.vector(features) + kind[:, :, None], mask


def nearest(distance: Tensor, mask: Tensor, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """The `count` nearest of N candidates within a radius.

    Args:
        distance: [..., N], metres.
        mask: bool, broadcastable to [..., N], which candidates exist.
        radius_m: largest distance, which may be infinite.
        count: number of candidates to take.

    Returns:
        Indices int64 [..., n] with n = min(count, N), nearest first, and bool [..., n]: False for
        missing candidates. In an exported graph n = count.
    """
    distance = torch.where(mask, distance, torch.inf)
    if torch.compiler.is_exporting():
        # The number of results must not depend on N: missing candidates have the index 0.
        distance = nn.functional.pad(distance, (0, count), value=torch.inf)
        value, index = distance.topk(count, largest=False)
        is_near = (value <= radius_m) & value.isfinite()
        return torch.where(is_near, index, 0), is_near
    value, index = distance.topk(min(count, distance.shape[-1]), largest=False)
    return index, (value <= radius_m) & value.isfinite()


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, ...] gathered by index [B, S, n] -> [B, S, n, ...]."""
    scene = torch.arange(x.shape[0], device=x.device)[:, None, None]
    return x[scene, index]


def neighbors(observation: Observation, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """The nearest present agents of each target, the target itself first.

    Returns:
        Indices int64 [B, S, n], and bool [B, S, n]: False for missing neighbors.
    """
    position = observation.pose[..., :2]
    distance = pairwise_distances(position[:, : observation.num_targets], position)  # [B, S, A]
    itself = torch.eye(*distance.shape[1:], device=distance.device, dtype=torch.bool)
    distance = distance.masked_fill(itself, -1.0)
    return nearest(distance, observation.present[:, None] | itself, radius_m, count)


def state_width(steps: int) -> int:
    """Number of features C of `agent_states`."""
    return _STATE_FEATURES * steps + len(AgentKind)


def agent_states(observation: Observation, index: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Histories of agents in the frame of each target (Wayformer's agent interactions).

    The features of each state are: position, velocity, cosine and sine of the heading, and whether
    it was recorded; zeros for a step that is not valid. `steps` consecutive states are concatenated
    (Wayformer has 1); the last group ends in the last step. The agent's kind follows.

    Args:
        observation: the input of the model.
        index: int64 [B, S, n], agents of each target.
        steps: number of states in a group.

    Returns:
        Features [B, S, T, n, C] with T = ceil(H / steps), and bool [B, S, T, n]: groups with at
        least one valid step.
    """
    pose = observation.pose[:, : observation.num_targets, None, None]
    angle = -pose[..., 2]
    position = to_frame(take(observation.position, index), pose) / LENGTH_SCALE_M
    velocity = rotate(take(observation.velocity, index), angle) / LENGTH_SCALE_M
    heading = (take(observation.heading, index) + angle)[..., None]
    recorded = take(observation.recorded, index)[..., None].to(position.dtype)
    parts = [position, velocity, heading.cos(), heading.sin(), recorded]
    valid = take(observation.valid, index)
    state = torch.cat(parts, -1) * valid[..., None]
    state, valid = group_steps(state, valid, steps)  # [B, S, n, T, 7 steps], [B, S, n, T]

    agent_kind = take(observation.agent_kind, index)
    kind = nn.functional.one_hot(agent_kind, len(AgentKind)).to(state.dtype)
    kind = kind[:, :, :, None].expand(*state.shape[:-1], -1)
    return torch.cat([state, kind], -1).transpose(2, 3), valid.transpose(2, 3)


class PolylineEncoder(nn.Module):
    """Polyline subgraph of VectorNet: vectors of a polyline are encoded and pooled to one token.

    Args:
        width: D of the token.
        hidden: inner width.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.vector = nn.Linear(5, hidden)
        self.attribute = nn.Linear(NUM_ATTRIBUTES, hidden)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            for _ in range(2)
        )
        self.pooled = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.out = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, width))

    def encode(
        self, observation: Observation, point: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Encode polylines to [..., D].

        Args:
            observation: the input of the model.
            point: [..., P, 2], divided by `LENGTH_SCALE_M`.
            index: int64 [B, S, n] of the polylines in `point`, by default all in their order.
        """
        attribute = self.attribute(polyline_attributes(observation))
        if index is not None:
            attribute = take(attribute, index)
        start = point[..., :-1, :]
        end = point[..., 1:, :]
        # Distance of the nearest point: the subgraph would have to learn this minimum.
        distance = point.norm(dim=-1).amin(-1, keepdim=True)[..., None]
        distance = distance.expand(*start.shape[:-1], 1)
        x = self.vector(torch.cat([start, end, distance], -1)) + attribute[..., None, :]
        for layer, pooled in zip(self.layers, self.pooled, strict=True):
            x = x + layer(x) + pooled(x.amax(-2, keepdim=True))
        return self.out(x.amax(-2))


class MapTokenizer(PolylineEncoder):
    """A token for each of up to `count` polylines near an agent, in the frame of the agent."""

    def __init__(self, width: int, hidden: int, radius_m: float, count: int) -> None:
        super().__init__(width, hidden)
        self.radius_m = radius_m
        self.count = count

    def forward(self, observation: Observation, agents: int) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, n, D] and bool [B, N, n] of the polylines around the first N agents."""
        index, mask, point = nearest_polylines(observation, agents, self.radius_m, self.count)
        return self.encode(observation, point, index), mask


def nearest_polylines(
    observation: Observation, agents: int, radius_m: float, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The polylines with the nearest middle points for each of the first N agents.

    Returns:
        Indices int64 [B, N, n] with n = min(count, M), nearest first; bool [B, N, n]: False for
        missing polylines; and points [B, N, n, P, 2] in the frame of the agent, divided by
        `LENGTH_SCALE_M`.
    """
    pose = observation.pose[:, :agents]
    num_points = observation.polyline.shape[2]
    middle = observation.polyline[:, :, num_points // 2]
    distance = pairwise_distances(pose[..., :2], middle)
    index, mask = nearest(distance, observation.polyline_mask[:, None], radius_m, count)
    point = to_frame(take(observation.polyline, index), pose[:, :, None, None])
    return index, mask, point / LENGTH_SCALE_M


def polyline_attributes(observation: Observation) -> Tensor:
    """Kinds (one-hot, zero for road lines) and flags of polylines: float [B, M, NUM_ATTRIBUTES]."""
    kind = [observation.polyline_kind == kind for kind in _KINDS]
    flags = [(observation.polyline_flags & int(flag)) != 0 for flag in _FLAGS]
    return torch.stack(kind + flags, -1).to(observation.polyline.dtype)


def pose_features(relative: Tensor) -> Tensor:
    """Features [..., 5] of relative poses [..., 3].

    Position and distance over `LENGTH_SCALE_M`, cosine and sine of the heading.
    """
    xy = relative[..., :2] / LENGTH_SCALE_M
    heading = relative[..., 2:]
    return torch.cat([xy, xy.norm(dim=-1, keepdim=True), heading.cos(), heading.sin()], -1)


class NeighborTokenizer(nn.Module):
    """Features of up to `count` neighbors of a target, itself first, with their relative motion.

    An encoding of the pose and velocity of a neighbor in the frame of the target is added to the
    features of the neighbor.
    """

    def __init__(self, width: int, radius_m: float, count: int) -> None:
        super().__init__()
        self.radius_m = radius_m
        self.count = count
        self.relative = mlp(_POSE_FEATURES + 2, width, width)

    def forward(self, observation: Observation, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, A, ..., D] to tokens [B, S, n, ..., D] and bool [B, S, n]."""
        index, mask = neighbors(observation, self.radius_m, self.count)
        pose = observation.pose[:, : observation.num_targets, None]
        relative = relative_pose(take(observation.pose, index), pose)
        velocity = rotate(take(last_velocity(observation), index), -pose[..., 2])
        motion = torch.cat([pose_features(relative), velocity / LENGTH_SCALE_M], -1)
        x = self.relative(motion)  # [B, S, n, D]

        tokens = take(feature, index)
        inner_axes = [1] * (feature.ndim - 3)
        return tokens + x.view(*x.shape[:3], *inner_axes, x.shape[3]), mask
