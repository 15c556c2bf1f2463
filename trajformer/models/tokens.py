"""From a SceneBatch to tokens: agents' motion in their own frames, lanes and neighbours around chosen agents.

Everything here is expressed relative to an agent's pose at its last observed step, so that what a model learns from
these tokens cannot depend on where the world's origin lies or how it is turned.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.scenes.geometry import relative_pose, rotate, to_frame
from trajformer.scenes.scene import AgentKind, LaneFlag, PolylineKind

LENGTH_SCALE_M = 10.0  # brings metres to the order of one; a matter of conditioning, not of meaning
_FLAGS = tuple(flag for flag in LaneFlag if flag)
NUM_ATTRIBUTES = len(PolylineKind) + len(_FLAGS)


def mlp(*widths: int, norm: bool = True) -> nn.Sequential:
    """Linear layers with (layer norm and) ReLU between them; the last one is bare."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), *([nn.LayerNorm(after)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def motion_vectors(observation: Observation, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Displacements between consecutive observed steps, in each agent's own frame (mmTransformer, section 3.1).

    Args:
        steps: consecutive vectors that are put side by side; the last ones end at the last step.

    Returns:
        features [B, A, L, 8 steps] with L = ceil((H - 1) / steps): displacement, time in seconds before the last step, end
        point, end point's heading as cosine and sine, one, zeros for a missing vector; and bool [B, A, L], where any is there.
    """
    pose = observation.pose[:, :, None]
    mask = observation.valid[..., 1:] & observation.valid[..., :-1]
    own = to_frame(observation.position, pose) / LENGTH_SCALE_M
    step = (own[..., 1:, :] - own[..., :-1, :]) * LENGTH_SCALE_M
    angle = observation.heading[..., 1:] - pose[..., 2]
    count = observation.num_history - 1
    time = torch.arange(-count + 1, 1, device=own.device, dtype=own.dtype) * observation.period_s
    parts = [step, time.expand(mask.shape)[..., None], own[..., 1:, :], angle.cos()[..., None], angle.sin()[..., None]]
    features = torch.cat([*parts, torch.ones_like(parts[1])], -1) * mask[..., None]
    missing = -count % steps
    features = nn.functional.pad(features, (0, 0, missing, 0)).unflatten(2, (-1, steps)).flatten(-2)
    return features, nn.functional.pad(mask, (missing, 0)).unflatten(2, (-1, steps)).any(-1)


def last_velocity(observation: Observation) -> Tensor:
    """Velocities [B, A, 2] at the last observed step; zero for agents that were not seen there."""
    return observation.velocity[:, :, -1] * observation.valid[:, :, -1:]


class MotionTokenizer(nn.Module):
    """Motion tokens: the displacement vectors of `steps` consecutive steps each, plus what kind of agent it is.

    mmTransformer has one token a step (`steps` 1); more steps a token cost proportionally less.
    """

    def __init__(self, width: int, steps: int = 1) -> None:
        super().__init__()
        self.steps = steps
        self.vector = mlp(8 * steps, width, width)
        self.kind = nn.Embedding(len(AgentKind), width)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Tokens [B, A, L, D] and bool [B, A, L], L = ceil((H - 1) / steps); the last token ends at the last step."""
        features, mask = motion_vectors(observation, self.steps)
        return self.vector(features) + self.kind(observation.agent_kind)[:, :, None], mask


def nearest(distance: Tensor, mask: Tensor, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """The `count` nearest of N candidates within a radius.

    Args:
        distance: [..., N], metres.
        mask: bool, broadcastable to [..., N]; which candidates exist.
        radius_m: may be infinite.
        count: n, at most.

    Returns:
        indices int64 [..., n] with n = min(count, N), nearest first, and bool [..., n]: which of them are real.
    """
    distance = torch.where(mask, distance, torch.inf)
    value, index = distance.topk(min(count, distance.shape[-1]), largest=False)
    return index, (value <= radius_m) & value.isfinite()


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, ...] gathered by index [B, S, n] -> [B, S, n, ...]."""
    return x[torch.arange(len(x), device=x.device)[:, None, None], index]


def neighbors(observation: Observation, radius_m: float, count: int) -> tuple[Tensor, Tensor]:
    """Every target's neighbours, itself included (it is the nearest), of the agents seen at the last observed step.

    Returns:
        indices int64 [B, S, n] with n = min(count, A), nearest first, and bool [B, S, n]: which of them are real.
    """
    distance = pairwise_distances(observation.pose[:, : observation.num_targets, :2], observation.pose[..., :2])
    seen = observation.agent_mask & observation.valid[..., -1]
    own = torch.eye(*distance.shape[1:], device=distance.device, dtype=torch.bool)
    return nearest(distance.masked_fill(own, -1.0), seen[:, None] | own, radius_m, count)


def state_width(steps: int) -> int:
    """C of `agent_states`."""
    return 7 * steps + len(AgentKind)


def agent_states(observation: Observation, index: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """Histories of agents as their target sees them, all at the same times (Wayformer's agent interactions).

    Args:
        index: int64 [B, S, n], which agents.
        steps: consecutive states that are put side by side; Wayformer has one.

    Returns:
        features [B, S, T, n, C] with T = ceil(H / steps), the last ones of the last observed step: position, velocity,
        heading as cosine and sine, one (zeros for a step unseen), and the agent's kind; and bool [B, S, T, n].
    """
    pose = observation.pose[:, : observation.num_targets, None, None]
    seen, turn = take(observation.valid, index), -pose[..., 2]
    place = to_frame(take(observation.position, index), pose) / LENGTH_SCALE_M
    velocity = rotate(take(observation.velocity, index), turn) / LENGTH_SCALE_M
    angle = (take(observation.heading, index) + turn)[..., None]
    state = torch.cat([place, velocity, angle.cos(), angle.sin(), torch.ones_like(angle)], -1) * seen[..., None]
    missing = -observation.num_history % steps
    state = nn.functional.pad(state, (0, 0, missing, 0)).unflatten(3, (-1, steps)).flatten(-2)  # [B, S, n, T, 7 steps]
    seen = nn.functional.pad(seen, (missing, 0)).unflatten(3, (-1, steps)).any(-1)
    kind = nn.functional.one_hot(take(observation.agent_kind, index), len(AgentKind)).to(state.dtype)
    kind = kind[:, :, :, None].expand(*state.shape[:-1], -1)
    return torch.cat([state, kind], -1).transpose(2, 3), seen.transpose(2, 3)


class PolylineEncoder(nn.Module):
    """VectorNet's polyline subgraph: the vectors of a polyline, pooled to one token.

    Args:
        width: D of the tokens.
        hidden: width inside the subgraph.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.vector = nn.Linear(5, hidden)
        self.attribute = nn.Linear(NUM_ATTRIBUTES, hidden)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for _ in range(2))
        self.pooled = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.out = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, width))

    def encode(self, point: Tensor, attribute: Tensor) -> Tensor:
        """Points [..., P, 2] as somebody sees them, over `LENGTH_SCALE_M`, and what `attribute` gave [..., C], to [..., D]."""
        start, end = point[..., :-1, :], point[..., 1:, :]
        # The nearest point tells how far the lane is: without it a subgraph must find a minimum by itself.
        gap = point.norm(dim=-1).amin(-1, keepdim=True)[..., None].expand(*start.shape[:-1], 1)
        x = self.vector(torch.cat([start, end, gap], -1)) + attribute[..., None, :]
        for layer, pooled in zip(self.layers, self.pooled, strict=True):
            x = x + layer(x) + pooled(x.amax(-2, keepdim=True))
        return self.out(x.amax(-2))


class MapTokenizer(PolylineEncoder):
    """A token for each polyline near an agent, seen from the agent.

    Args:
        width, hidden: of `PolylineEncoder`.
        radius_m, count: how far and how many polylines an agent sees.
    """

    def __init__(self, width: int, hidden: int, radius_m: float, count: int) -> None:
        super().__init__(width, hidden)
        self.radius_m, self.count = radius_m, count

    def forward(self, observation: Observation, agents: int) -> tuple[Tensor, Tensor]:
        """Tokens [B, N, n, D] and bool [B, N, n] of the first N agents' surroundings."""
        index, mask, point = nearest_polylines(observation, agents, self.radius_m, self.count)
        return self.encode(point, take(self.attribute(polyline_attributes(observation)), index)), mask


def nearest_polylines(observation: Observation, agents: int, radius_m: float, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The polylines whose middles are the nearest to each of the first N agents.

    Returns:
        indices int64 [B, N, n] with n = min(count, M), nearest first; bool [B, N, n], which of them are real; and their
        points [B, N, n, P, 2] as the agent sees them, over `LENGTH_SCALE_M`.
    """
    pose = observation.pose[:, :agents]
    distance = pairwise_distances(pose[..., :2], observation.polyline[:, :, observation.polyline.shape[2] // 2])
    index, mask = nearest(distance, observation.polyline_mask[:, None], radius_m, count)
    return index, mask, to_frame(take(observation.polyline, index), pose[:, :, None, None]) / LENGTH_SCALE_M


def polyline_attributes(observation: Observation) -> Tensor:
    """Kinds and flags of polylines: float [B, M, NUM_ATTRIBUTES], ones and zeros."""
    kind = nn.functional.one_hot(observation.polyline_kind, len(PolylineKind))
    flags = torch.stack([(observation.polyline_flags & int(flag)) != 0 for flag in _FLAGS], -1)
    return torch.cat([kind, flags], -1).to(observation.polyline.dtype)


def pose_features(relative: Tensor) -> Tensor:
    """Poses [..., 3] as somebody sees them to [..., 5]: place and distance over `LENGTH_SCALE_M`, heading as cosine and sine."""
    xy, angle = relative[..., :2] / LENGTH_SCALE_M, relative[..., 2:]
    return torch.cat([xy, xy.norm(dim=-1, keepdim=True), angle.cos(), angle.sin()], -1)


class NeighborTokenizer(nn.Module):
    """Every target's neighbours: the neighbours' features with their pose and velocity seen from the target.

    Args:
        width: D.
        radius_m, count: how far and how many neighbours, the target itself included (it is the nearest).
    """

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
        place = self.relative(torch.cat([pose_features(relative), velocity / LENGTH_SCALE_M], -1))
        return take(feature, index) + place.view(*place.shape[:3], *[1] * (feature.ndim - 3), place.shape[3]), mask
