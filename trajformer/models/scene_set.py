"""Scene set: predicts the futures of a scene as a set of trajectories, as DETR predicts boxes.

Tokens of agents (history and pose) and lanes, all in one frame of the scene, pass an encoder. Q
queries decode them in parallel (Carion et al. 2020). Each query gives K trajectories, which start
with the current position, and the probability that it represents an agent. The loss matches queries
and agents one to one.

Costs are as in the set loss. Errors include the current position as an additional step and are
errors of the best mode. Matched queries receive a regression loss (smooth L1) of this mode and a
cross-entropy of the modes. All queries receive a cross-entropy of existence, with a smaller weight
for unmatched queries. Padding is neither matched nor classified.

Design:
- The frame of the scene is the pose of the agent nearest to the mean of the present agents, for
  SE(2)-equivariance.
- Queries are positions and also the input of the decoder: with zeros, as in DETR, its first
  self-attention would have no effect.
- A trajectory is an offset from constant velocity, for the attention-weighted mean of the agents'
  positions and velocities. To find agents within 100 m without this reference takes hundreds of
  epochs.
- With `queries: 0` the tokens of agents are the queries, as in two-stage detectors (Deformable
  DETR, Zhu et al. 2021), and a trajectory is an offset from the constant velocity of the agent, in
  its frame. The loss still matches queries and agents.
- As a `Forecast`, each target gets the modes of the query with the nearest current position (plus a
  penalty for a low probability of existence), shifted to the position of the target. This selection
  does not use the future.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import attend
from trajformer.core.blocks import BlockConfig, Decoder, Encoder, masked_mean
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation, SceneBatch
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.data.indexing import take_along
from trajformer.losses.displacement import huber, pairwise_errors
from trajformer.losses.matching import Match, match_layers
from trajformer.losses.terms import MatchedLossConfig, Terms, combine, total
from trajformer.models.forecaster import Forecaster, SceneModelConfig
from trajformer.models.horizon import check_lengths
from trajformer.models.tokens import (
    LENGTH_SCALE_M,
    MapTokenizer,
    MotionTokenizer,
    last_velocity,
    mlp,
    pose_features,
)
from trajformer.scenes.geometry import from_frame, relative_pose, rotate

_PENALTY_M = 5.0  # added to the distance of a query with existence probability 0
_FORBIDDEN = 1e9  # cost of padding; an infinite cost is reported as an error


@dataclass(frozen=True, eq=False)
class SceneTrajectories:
    """The trajectories of Q queries for each of B scenes.

    `position` is in the frame of the batch and starts with the current position. The sigmoid of
    `logit` is the probability that a query represents an agent; the softmax of `mode_logit` is the
    probability of each mode, given that it does.
    """

    position: Tensor  # [B, Q, K, 1 + F, 2], metres
    logit: Tensor  # [B, Q], -inf for padding, which is never matched
    mode_logit: Tensor  # [B, Q, K]
    auxiliary: tuple[SceneTrajectories, ...] = ()  # of earlier decoder layers, first to last

    def most_probable(self) -> Tensor:
        """The most probable mode of each query [B, Q, 1 + F, 2]."""
        mode = self.mode_logit.argmax(-1)[..., None, None, None]
        return take_along(self.position, mode, 2).squeeze(2)


class _Truth(NamedTuple):
    """The trajectories of S targets, with the current position as the first step."""

    position: Tensor  # [B, S, 1 + F, 2]
    valid: Tensor  # bool [B, S, 1 + F]


@dataclass(frozen=True)
class SceneSetLossConfig(MatchedLossConfig):
    """Further weights; positions include the current one, and the classification is of existence.

    Attributes:
        cost_class: weight of the existence probability in the matching cost.
        no_object: weight of unmatched queries in the cross-entropy.
        mode: cross-entropy of the modes of matched queries.
    """

    cost_ade: float = 1.0
    cost_fde: float = 0.5
    auxiliary: float = 1.0
    cost_class: float = 2.0
    no_object: float = 0.1
    mode: float = 0.5

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """`scene_set_loss` of a model with `trajectories(observation)`."""
        observation = batch.observation
        start = observation.pose[:, : observation.num_targets, :2]
        trajectories = model.trajectories(observation)
        return scene_set_loss(trajectories, start, batch.truth.position, batch.truth.valid, self)


def scene_set_loss(
    trajectories: SceneTrajectories,
    start: Tensor,
    target: Tensor,
    valid: Tensor,
    config: SceneSetLossConfig,
) -> Terms:
    """The loss of all decoder layers.

    `start` [B, S, 2] are current positions of the targets and `target` is [B, S, F, 2], both in the
    batch frame; `valid` is bool [B, S, F], and agents without a valid step are not matched. Returns
    means of the last layer: "regression", "endpoint" and "mode" over matched futures, and
    "classification" over queries (a weighted mean); "auxiliary" of earlier layers; and the weighted
    sum "loss" with its gradient. Raises ValueError with layer, scene, query and agent: a matching
    cost is not finite.
    """
    exists = valid.any(-1)
    position = torch.cat([start[:, :, None], target], 2)
    truth = _Truth(position, torch.cat([exists[..., None], valid], 2))
    layers = (*trajectories.auxiliary, trajectories)
    cost = torch.stack([_matching_cost(layer, truth, config) for layer in layers])
    matches = match_layers(cost, exists, ("layer", "scene", "query", "agent"))
    terms = []
    for layer, pairs in zip(layers, matches, strict=True):
        terms.append(_layer_terms(layer, truth, pairs, config))
    terms.reverse()  # the last layer comes first
    return combine(terms, config)


def _weighted_error(
    position: Tensor, target: Tensor, valid: Tensor, config: SceneSetLossConfig
) -> Tensor:
    """Matching errors [N, K, G] between trajectories [N, K, 1 + F, 2] and [N, G, 1 + F, 2]."""
    ade, fde = pairwise_errors(position, target, valid)
    return config.cost_ade * ade + config.cost_fde * fde


@torch.no_grad()
def _matching_cost(
    trajectories: SceneTrajectories, truth: _Truth, config: SceneSetLossConfig
) -> Tensor:
    """Matching cost [B, Q, S]: the error of the best mode, minus the probability of existence."""
    all_modes = trajectories.position.flatten(1, 2)  # [B, Q * K, 1 + F, 2]
    error = _weighted_error(all_modes, truth.position, truth.valid, config)
    best_error = error.unflatten(1, trajectories.position.shape[1:3]).amin(2)  # [B, Q, S]
    cost = best_error - config.cost_class * trajectories.logit.sigmoid()[..., None]
    is_padding = trajectories.logit.isneginf()
    return cost.masked_fill(is_padding[..., None], _FORBIDDEN)


def _layer_terms(
    trajectories: SceneTrajectories, truth: _Truth, pairs: Match, config: SceneSetLossConfig
) -> Terms:
    """Terms of one decoder layer, for n pairs of query and agent."""
    scene, query, agent = pairs
    target = truth.position[scene, agent]  # [n, 1 + F, 2]
    valid = truth.valid[scene, agent]  # [n, 1 + F]
    # The first position is the current one, which all agents to match have.
    matched = valid[:, 0].float()
    count = total(matched)

    # Regression of the best mode.
    modes = trajectories.position[scene, query]  # [n, K, 1 + F, 2]
    with torch.no_grad():
        error = _weighted_error(modes, target[:, None], valid[:, None], config)
        best = error[..., 0].argmin(-1)
    gap = modes.take_along_dim(best[:, None, None, None], 1).squeeze(1) - target
    mean, last = huber(gap, valid, config.huber_m)
    mode_logit = trajectories.mode_logit[scene, query]  # [n, K]
    mode_entropy = F.cross_entropy(mode_logit, best, reduction="none")

    # Classification of all queries that are not padding.
    logit = trajectories.logit
    exists = torch.zeros_like(logit)  # [B, Q]
    exists[scene, query] = matched
    real = ~logit.isneginf()
    weight = torch.where(exists > 0, 1.0, config.no_object) * real
    entropy = F.binary_cross_entropy_with_logits(
        torch.where(real, logit, 0.0), exists, weight, reduction="sum"
    )
    return {
        "regression": mean.sum() / count,
        "endpoint": last.sum() / count,
        "classification": entropy / total(weight, 1e-6),
        "mode": (mode_entropy * matched).sum() / count,
    }


@dataclass(frozen=True)
class SceneSetConfig(SceneModelConfig, positive=("decoder_layers",)):
    """Sizes and radii of the scene set; `map_radius_m` is from the origin of the scene's frame.

    Attributes:
        modes: K, trajectories of a query.
        queries: Q, more than the number of agents to predict in a scene; or 0 for the tokens of
            agents as queries (Q = A).
        block: shape of all transformer blocks.
        history_layers: encoder layers over the history of each agent.
        encoder_layers, decoder_layers: layers over the tokens of the scene, and decoder layers.
    """

    modes: int = 1
    map_radius_m: float = 100.0
    max_polylines: int = 120
    queries: int = 64
    block: BlockConfig = field(default_factory=BlockConfig)
    history_layers: int = 1
    encoder_layers: int = 2
    decoder_layers: int = 3


class _SceneAgents(NamedTuple):
    """The agents of each scene, in the scene's frame."""

    pose: Tensor  # [B, 3], the scene's frame in the batch frame
    present: Tensor  # bool [B, A], agents that others attend to
    exists: Tensor  # bool [B, A], present agents and targets
    relative: Tensor  # [B, A, 3], poses of agents
    state: Tensor  # [B, A, 4], position and velocity; zero if it does not exist


class SceneSet(Forecaster, config=SceneSetConfig):
    """Observation -> Forecast in the batch frame; `trajectories` returns the set."""

    losses = (SceneSetLossConfig,)
    compiled_methods = ("trajectories",)
    waits_for_device = True  # its loss assigns queries to agents

    def __init__(self, config: SceneSetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.motion = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.history = Encoder(config.block, config.history_layers)
        self.place = mlp(7, width, width)
        self.lanes = MapTokenizer(
            width, config.map_width, config.map_radius_m, config.max_polylines
        )
        self.encoder = Encoder(config.block, config.encoder_layers)
        learned = config.queries > 0
        self.queries = None
        if learned:
            queries = nn.init.orthogonal_(torch.empty(config.queries, width))
            self.queries = nn.Parameter(queries)
        self.decoder = Decoder(config.block, config.decoder_layers)
        # The attention of learned queries to agents. A bias of keys has no effect.
        self.pointer = nn.Linear(width, width) if learned else None
        self.pointed = nn.Linear(width, width, bias=False) if learned else None
        self.trajectory = mlp(width, width, config.modes * (1 + config.num_future) * 2)
        self.existence = mlp(width, width, 1)
        self.mode = mlp(width, width, config.modes) if config.modes > 1 else None

    def forward(self, observation: Observation) -> Forecast:
        """K futures of all targets; raises the errors of `check_lengths`."""
        queries = self.trajectories(observation)
        start = observation.pose[:, : observation.num_targets, :2]
        # The query of each target: near, and probable.
        distance = pairwise_distances(start, queries.most_probable()[:, :, 0])  # [B, S, Q]
        penalty = _PENALTY_M * (1.0 - queries.logit.sigmoid())
        penalty = penalty.masked_fill(queries.logit.isneginf(), torch.inf)
        nearest = (distance + penalty[:, None]).argmin(-1)  # [B, S]
        scene = torch.arange(nearest.shape[0], device=nearest.device)[:, None]
        chosen = queries.position[scene, nearest]  # [B, S, K, 1 + F, 2]
        future = chosen[:, :, :, 1:] - chosen[:, :, :, :1] + start[:, :, None, None]
        return Forecast(future, queries.mode_logit[scene, nearest], observation.frame)

    def trajectories(self, observation: Observation) -> SceneTrajectories:
        """The trajectories of each scene; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        agents = _scene_agents(observation)
        tokens = self._agent_tokens(observation, agents)  # [B, A, D]
        frame = replace(observation, pose=agents.pose[:, None])
        lanes, lane_mask = self.lanes(frame, 1)  # [B, 1, n, D], [B, 1, n]
        keys = torch.cat([agents.present, lane_mask[:, 0]], 1)[:, None]
        memory = self.encoder(torch.cat([tokens, lanes[:, 0]], 1), keys)
        encoded = memory[:, : tokens.shape[1]]

        decoded = []
        if self.queries is None:
            # The tokens of agents are the queries, and each starts from the state of its agent.
            itself = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
            mask = agents.present[:, None] | itself
            layers = self.decoder(encoded, memory, mask=mask, memory_mask=keys, position=tokens)
            angle = agents.relative[..., 2]
            for x in layers:
                part = self._decode(observation, x, agents.state, angle, agents.pose)
                logit = part.logit.masked_fill(~agents.exists, -torch.inf)
                decoded.append(replace(part, logit=logit))
        else:
            queries = self.queries.expand(memory.shape[0], -1, -1)
            layers = self.decoder(queries, memory, memory_mask=keys, position=self.queries)
            angle = torch.zeros_like(self.queries[:, 0])
            for x in layers:
                state = self._mean_state(x, encoded, agents)
                decoded.append(self._decode(observation, x, state, angle, agents.pose))
        return replace(decoded[-1], auxiliary=tuple(decoded[:-1]))

    def _agent_tokens(self, observation: Observation, agents: _SceneAgents) -> Tensor:
        """Tokens [B, A, D] of agents: their history, pose and velocity."""
        tokens, mask = self.motion(observation)  # [B, A, L, D], [B, A, L]
        # Positions count back from the last observed step.
        time = self.time()[-tokens.shape[2] :]
        tokens = self.history(tokens, mask[:, :, None], time)
        velocity = agents.state[..., 2:] / LENGTH_SCALE_M
        place = self.place(torch.cat([pose_features(agents.relative), velocity], -1))
        return masked_mean(tokens, mask[..., None], 2) + place

    def _mean_state(self, x: Tensor, encoded: Tensor, agents: _SceneAgents) -> Tensor:
        """Mean position and velocity [B, Q, 4] of agents.

        Weights are the attention of queries [B, Q, D] to encoded agents [B, A, D].
        """
        assert self.pointer is not None and self.pointed is not None
        key = self.pointed(encoded)
        # Positions in half precision have errors of decimetres.
        with torch.autocast(x.device.type, enabled=False):
            query = self.pointer(x.float())
            return attend(query, key.float(), agents.state.float(), agents.present[:, None])

    def _decode(
        self, observation: Observation, x: Tensor, state: Tensor, angle: Tensor, pose: Tensor
    ) -> SceneTrajectories:
        """Trajectories of queries [B, Q, D].

        They are offsets, rotated by `angle`, from constant velocity of `state` [B, Q, 4]. `pose`
        [B, 3] is the scene's frame.
        """
        offset = self.trajectory(x).unflatten(-1, (self.config.modes, -1, 2)).float()
        time = torch.arange(observation.num_future + 1, device=x.device) * observation.period_s
        straight = state[..., None, :2] + state[..., None, 2:] * time[:, None]  # [B, Q, 1 + F, 2]
        turned = rotate(offset.cumsum(-2), angle[..., None, None])  # [B, Q, K, 1 + F, 2]
        position = from_frame(straight[:, :, None] + turned, pose[:, None, None, None])

        logit = self.existence(x).squeeze(-1).float()
        mode_logit = torch.zeros_like(offset[..., 0, 0])
        if self.mode is not None:
            mode_logit = self.mode(x).float()
        return SceneTrajectories(position, logit, mode_logit)


def _scene_agents(observation: Observation) -> _SceneAgents:
    """The agents in the frame of the scene."""
    target = torch.zeros_like(observation.agent_mask)
    target[:, : observation.num_targets] = observation.target_mask
    present = observation.present
    exists = observation.agent_mask & (present | target)
    pose = _scene_pose(observation)
    relative = relative_pose(observation.pose, pose[:, None])
    velocity = rotate(last_velocity(observation), -pose[:, None, 2])
    state = torch.cat([relative[..., :2], velocity], -1) * exists[..., None]
    return _SceneAgents(pose, present, exists, relative, state)


def _scene_pose(observation: Observation) -> Tensor:
    """The scene's frame [B, 3]: the pose of the agent nearest to the mean of the present ones."""
    position = observation.pose[..., :2]
    present = observation.present
    mean = masked_mean(position, present[..., None], 1)
    distance = (position - mean[:, None]).norm(dim=-1)  # [B, A]
    distance = distance.masked_fill(~present, torch.inf)
    chosen = distance.argmin(-1)
    scene = torch.arange(chosen.shape[0], device=chosen.device)
    return observation.pose[scene, chosen]
