"""Tokens of an observation: motion of agents, and lanes and neighbors around agents.

All features are relative to the pose of an agent at its last observed step, so that they are SE(2)-invariant.
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
# Kinds with a feature. Drivable areas never enter a batch, so road edges have their feature. Road lines have none, so that
# weights of earlier versions fit.
_KINDS = [
    int(kind)
    for kind in PolylineKind
    if kind not in (PolylineKind.DRIVABLE_AREA, PolylineKind.ROAD_LINE)
]
NUM_ATTRIBUTES = len(_KINDS) + len(_FLAGS)


def mlp(*widths: int, norm: bool = True) -> nn.Sequential:
    """Linear layers with optional layer norm and ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), *([nn.LayerNorm(after)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def group_steps(x: Tensor, mask: Tensor, steps: int, *, past: bool = True) -> tuple[Tensor, Tensor]:
    """Concatenate the features [..., T, C] of `steps` consecutive steps to [..., T', steps * C] with T' = ceil(T / steps).

    If T is not a multiple of `steps`, the first group starts with zeros, or for the future (`past` is False) the last one ends
    with zeros. Also returns bool [..., T']: groups with at least one True step of mask [..., T].
    """
    missing = -x.shape[-2] % steps
    padding = (missing, 0) if past else (0, missing)
    x = nn.functional.pad(x, (0, 0, *padding)).unflatten(-2, (-1, steps)).flatten(-2)
    return x, nn.functional.pad(mask, padding).unflatten(-1, (-1, steps)).any(-1)


def motion_vectors(observation: Observation, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Displacements between consecutive observed steps, in the frame of each agent (mmTransformer, section 3.1).

    `steps` consecutive vectors are concatenated; the last group ends in the last observed step. Returns features [B, A, L, 8 *
    steps] with L = ceil((H - 1) / steps), for each vector: displacement, time in seconds (0 for the last step), end point, cosine
    and sine of the heading at the end point, and one; zeros if a step is unseen. And bool [B, A, L]: groups with at least one
    vector.
    """
    pose = observation.pose[:, :, None]
    mask = observation.valid[..., 1:] & observation.valid[..., :-1]
    xy = to_frame(observation.position, pose) / LENGTH_SCALE_M
    step = (xy[..., 1:, :] - xy[..., :-1, :]) * LENGTH_SCALE_M
    angle = observation.heading[..., 1:] - pose[..., 2]
    count = observation.num_history - 1
    time = torch.arange(-count + 1, 1, device=xy.device, dtype=xy.dtype) * observation.period_s
    parts = [
        step,
        time.expand(mask.shape)[..., None],
        xy[..., 1:, :],
        angle.cos()[..., None],
        angle.sin()[..., None],
    ]
    return group_steps(
        torch.cat([*parts, torch.ones_like(parts[1])], -1) * mask[..., None], mask, steps
    )


def last_velocity(observation: Observation) -> Tensor:
    """Velocities [B, A, 2] in the last step of the history; zero for agents that are not seen at this step."""
    return observation.velocity[:, :, -1] * observation.valid[:, :, -1:]


class MotionTokenizer(nn.Module):
    """Motion tokens: the vectors of `steps` consecutive steps (mmTransformer: 1), plus an embedding of the agent's kind."""

    def __init__(self, width: int, steps: int = 1) -> None:
        super().__init__()
        self.steps = steps
        self.vector = mlp(8 * steps, width, width)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Tokens [B, A, L, D] and bool [B, A, L], L = ceil((H - 1) / steps); the last token ends in the last step."""
        features, mask = motion_vectors(observation, self.steps)
        return self.vector(features) + self.kind(observation.agent_kind)[:, :, None], mask


def nearest(distance: Tensor, mask: Tensor, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """The `count` nearest of N candidates within a radius, which may be infinite.

    From distances [..., N] in metres and bool, broadcastable to [..., N], which candidates exist, to indices int64 [..., n] with
    n = min(count, N), nearest first, and bool [..., n]: False for missing candidates.
    """
    distance = torch.where(mask, distance, torch.inf)
    value, index = distance.topk(min(count, distance.shape[-1]), largest=False)
    return index, (value <= radius_m) & value.isfinite()


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, ...] gathered by index [B, S, n] -> [B, S, n, ...]."""
    return x[torch.arange(len(x), device=x.device)[:, None, None], index]


def neighbors(observation: Observation, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """Indices int64 [B, S, n] of the nearest agents of each target, first itself, and bool [B, S, n]: seen in the last step."""
    distance = pairwise_distances(
        observation.pose[:, : observation.num_targets, :2], observation.pose[..., :2]
    )
    seen = observation.agent_mask & observation.valid[..., -1]
    same = torch.eye(*distance.shape[1:], device=distance.device, dtype=torch.bool)
    return nearest(distance.masked_fill(same, -1.0), seen[:, None] | same, radius_m, count)


def state_width(steps: int) -> int:
    """Number of features C of `agent_states`."""
    return 7 * steps + len(AgentKind)


def agent_states(observation: Observation, index: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Histories of the agents `index`, int64 [B, S, n], in the frame of each target (Wayformer's agent interactions).

    `steps` consecutive states are concatenated (Wayformer has 1); the last group ends in the last step. Returns features [B, S,
    T, n, C] with T = ceil(H / steps), for each state: position, velocity, cosine and sine of the heading, and one (zeros for an
    unseen step); then the agent's kind. And bool [B, S, T, n]: groups with at least one seen step.
    """
    pose = observation.pose[:, : observation.num_targets, None, None]
    seen, angle = take(observation.valid, index), -pose[..., 2]
    position = to_frame(take(observation.position, index), pose) / LENGTH_SCALE_M
    velocity = rotate(take(observation.velocity, index), angle) / LENGTH_SCALE_M
    heading = (take(observation.heading, index) + angle)[..., None]
    state = (
        torch.cat([position, velocity, heading.cos(), heading.sin(), torch.ones_like(heading)], -1)
        * seen[..., None]
    )
    state, seen = group_steps(state, seen, steps)  # [B, S, n, T, 7 steps]
    kind = nn.functional.one_hot(take(observation.agent_kind, index), len(AgentKind)).to(
        state.dtype
    )
    kind = kind[:, :, :, None].expand(*state.shape[:-1], -1)
    return torch.cat([state, kind], -1).transpose(2, 3), seen.transpose(2, 3)


class PolylineEncoder(nn.Module):
    """Polyline subgraph of VectorNet with an inner width `hidden`: vectors of a polyline are encoded and pooled to one token."""

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
        """Encode points [..., P, 2], divided by `LENGTH_SCALE_M`, of the polylines, or of those with `index`, to [..., D]."""
        attribute = self.attribute(polyline_attributes(observation))
        attribute = attribute if index is None else take(attribute, index)
        start, end = point[..., :-1, :], point[..., 1:, :]
        # Distance of the nearest point: the subgraph would have to learn this minimum.
        gap = point.norm(dim=-1).amin(-1, keepdim=True)[..., None].expand(*start.shape[:-1], 1)
        x = self.vector(torch.cat([start, end, gap], -1)) + attribute[..., None, :]
        for layer, pooled in zip(self.layers, self.pooled, strict=True):
            x = x + layer(x) + pooled(x.amax(-2, keepdim=True))
        return self.out(x.amax(-2))


class MapTokenizer(PolylineEncoder):
    """A token for each of up to `count` polylines near an agent, in the frame of the agent."""

    def __init__(self, width: int, hidden: int, radius_m: float, count: int) -> None:
        super().__init__(width, hidden)
        self.radius_m, self.count = radius_m, count

    def forward(self, observation: Observation, agents: int) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, n, D] and bool [B, N, n] of the polylines around the first N agents."""
        index, mask, point = nearest_polylines(observation, agents, self.radius_m, self.count)
        return self.encode(observation, point, index), mask


def nearest_polylines(
    observation: Observation, agents: int, radius_m: float, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The polylines with the nearest middle points for each of the first N agents.

    Returns indices int64 [B, N, n] with n = min(count, M), nearest first; bool [B, N, n]: False for missing polylines; and points
    [B, N, n, P, 2] in the frame of the agent, divided by `LENGTH_SCALE_M`.
    """
    pose = observation.pose[:, :agents]
    distance = pairwise_distances(
        pose[..., :2], observation.polyline[:, :, observation.polyline.shape[2] // 2]
    )
    index, mask = nearest(distance, observation.polyline_mask[:, None], radius_m, count)
    return (
        index,
        mask,
        to_frame(take(observation.polyline, index), pose[:, :, None, None]) / LENGTH_SCALE_M,
    )


def polyline_attributes(observation: Observation) -> Tensor:
    """Kinds (one-hot, zero for road lines) and flags of polylines: float [B, M, NUM_ATTRIBUTES]."""
    kind = torch.stack([observation.polyline_kind == kind for kind in _KINDS], -1)
    flags = torch.stack([(observation.polyline_flags & int(flag)) != 0 for flag in _FLAGS], -1)
    return torch.cat([kind, flags], -1).to(observation.polyline.dtype)


def pose_features(relative: Tensor) -> Tensor:
    """Relative poses [..., 3] to [..., 5]: position and distance over `LENGTH_SCALE_M`, cosine and sine of the heading."""
    xy, angle = relative[..., :2] / LENGTH_SCALE_M, relative[..., 2:]
    return torch.cat([xy, xy.norm(dim=-1, keepdim=True), angle.cos(), angle.sin()], -1)


class NeighborTokenizer(nn.Module):
    """Features of up to `count` neighbors of a target, itself first, plus an encoding of their pose and velocity in its frame."""

    def __init__(self, width: int, radius_m: float, count: int) -> None:
        super().__init__()
        self.radius_m, self.count = radius_m, count
        self.relative = mlp(7, width, width)

    def forward(self, observation: Observation, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, A, ..., D] to tokens [B, S, n, ..., D] and bool [B, S, n]."""
        pose = observation.pose[:, : observation.num_targets]
        index, mask = neighbors(observation, self.radius_m, self.count)
        relative = relative_pose(take(observation.pose, index), pose[:, :, None])
        velocity = rotate(take(last_velocity(observation), index), -pose[:, :, None, 2])
        x = self.relative(
            torch.cat([pose_features(relative), velocity / LENGTH_SCALE_M], -1)
        )  # [B, S, n, D]
        return take(feature, index) + x.view(
            *x.shape[:3], *[1] * (feature.ndim - 3), x.shape[3]
        ), mask
