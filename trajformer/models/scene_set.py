"""Scene set: predicts the futures of a scene as a set of trajectories, as DETR predicts boxes (Carion et al. 2020).

Tokens of agents (history and pose) and lanes, all in one frame of the scene, pass an encoder. Q queries decode them in parallel.
Each query gives K trajectories, which start with the current position, and the probability that it represents an agent. The
loss matches queries and agents one to one.

Costs are as in the set loss. Errors include the current position as an additional step and are errors of the best mode. Matched
queries receive a regression loss (smooth L1) of this mode and a cross-entropy of the modes. All queries receive a cross-entropy
of existence, with a smaller weight for unmatched queries. Padding is neither matched nor classified.

Design:
- The frame of the scene is the pose of the focal agent, else of the agent nearest to the mean, for SE(2)-equivariance.
- Queries are positions and also the input of the decoder: with zeros, as in DETR, its first self-attention would have no effect.
- A trajectory is an offset from constant velocity, for the attention-weighted mean of the agents' positions and velocities. To
  find agents within 100 m without this reference takes hundreds of epochs.
- With `queries: 0` the tokens of agents are the queries, as in two-stage detectors (Deformable DETR, Zhu et al. 2021), and a
  trajectory is an offset from the constant velocity of the agent, in its frame. The loss still matches queries and agents.
- As a `Forecast`, each target gets the modes of the query with the nearest current position (plus a penalty for a low
  probability of existence), shifted to the position of the target. This selection does not use the future.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import attend
from trajformer.core.blocks import BlockConfig, Decoder, Encoder, masked_mean
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation, SceneBatch
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
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
from trajformer.scenes.scene import AgentRole

_PENALTY_M = 5.0  # added to the distance of a query with existence probability 0
_FORBIDDEN = 1e9  # cost of padding; an infinite cost is reported as an error


@dataclass(frozen=True, eq=False)
class SceneTrajectories:
    """The trajectories of Q queries for each of B scenes.

    `position` is in the frame of the batch and starts with the current position. The sigmoid of `logit` is the probability that a
    query represents an agent; the softmax of `mode_logit` is the probability of each mode, given that it does.
    """

    position: Tensor  # [B, Q, K, 1 + F, 2], metres
    logit: Tensor  # [B, Q], -inf for padding, which is never matched
    mode_logit: Tensor  # [B, Q, K]
    auxiliary: tuple[SceneTrajectories, ...] = ()  # of earlier decoder layers, first to last

    def most_probable(self) -> Tensor:
        """The most probable mode of each query [B, Q, 1 + F, 2]."""
        return self.position.take_along_dim(
            self.mode_logit.argmax(-1)[..., None, None, None], 2
        ).squeeze(2)


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
        observation, truth = batch.observation, batch.truth
        start = observation.pose[:, : observation.num_targets, :2]
        return scene_set_loss(
            model.trajectories(observation), start, truth.position, truth.valid, self
        )


def scene_set_loss(
    trajectories: SceneTrajectories,
    start: Tensor,
    target: Tensor,
    valid: Tensor,
    config: SceneSetLossConfig,
) -> Terms:
    """The loss of all decoder layers.

    `start` [B, S, 2] are current positions of the targets and `target` is [B, S, F, 2], both in the batch frame; `valid` is bool
    [B, S, F], and agents without a valid step are not matched. Returns means of the last layer: "regression", "endpoint" and
    "mode" over matched futures, and "classification" over queries (a weighted mean); "auxiliary" of earlier layers; and the
    weighted sum "loss" with its gradient. Raises ValueError with layer, scene, query and agent: a matching cost is not finite.
    """
    layers = (*trajectories.auxiliary, trajectories)
    exists = valid.any(-1)
    truth = torch.cat([start[:, :, None], target], 2), torch.cat([exists[..., None], valid], 2)
    cost = torch.stack([_cost(layer, truth, config) for layer in layers])
    matches = match_layers(cost, exists, ("layer", "scene", "query", "agent"))
    of_layer = [
        _terms(layer, truth, pairs, config) for layer, pairs in zip(layers, matches, strict=True)
    ]
    return combine(of_layer[::-1], config)


@torch.no_grad()
def _cost(
    trajectories: SceneTrajectories, truth: tuple[Tensor, Tensor], config: SceneSetLossConfig
) -> Tensor:
    """Matching cost [B, Q, S]."""
    ade, fde = pairwise_errors(trajectories.position.flatten(1, 2), *truth)
    error = (
        (config.cost_ade * ade + config.cost_fde * fde)
        .unflatten(1, trajectories.position.shape[1:3])
        .amin(2)
    )
    cost = error - config.cost_class * trajectories.logit.sigmoid()[..., None]
    return cost.masked_fill(trajectories.logit.isneginf()[..., None], _FORBIDDEN)


def _terms(
    trajectories: SceneTrajectories,
    truth: tuple[Tensor, Tensor],
    pairs: Match,
    config: SceneSetLossConfig,
) -> Terms:
    scene, query, agent = pairs
    target, valid = (value[scene, agent] for value in truth)
    modes, logit = (
        trajectories.position[scene, query],
        trajectories.logit,
    )  # [n, K, 1 + F, 2], [B, Q]
    with torch.no_grad():
        ade, fde = pairwise_errors(modes, target[:, None], valid[:, None])
        mode = (config.cost_ade * ade + config.cost_fde * fde)[..., 0].argmin(-1)
    gap = modes.take_along_dim(mode[:, None, None, None], 1).squeeze(1) - target
    mean, last = huber(gap, valid, config.huber_m)
    known = valid[
        :, 0
    ].float()  # the first position is the current one, which all targets to match have
    count = total(known)
    exists = torch.zeros_like(logit)
    exists[scene, query] = known
    real = ~logit.isneginf()
    weight = torch.where(exists > 0, 1.0, config.no_object) * real
    entropy = F.binary_cross_entropy_with_logits(
        torch.where(real, logit, 0.0), exists, weight, reduction="sum"
    )
    return {
        "regression": mean.sum() / count,
        "endpoint": last.sum() / count,
        "classification": entropy / total(weight, 1e-6),
        "mode": (
            F.cross_entropy(trajectories.mode_logit[scene, query], mode, reduction="none") * known
        ).sum()
        / count,
    }


@dataclass(frozen=True)
class SceneSetConfig(SceneModelConfig, positive=("decoder_layers",)):
    """Sizes and radii of the scene set; `map_radius_m` is measured from the origin of the scene's frame.

    Attributes:
        modes: K, trajectories of a query.
        queries: Q, more than the number of agents to predict in a scene; or 0 for the tokens of agents as queries (Q = A).
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


class SceneSet(Forecaster, config=SceneSetConfig):
    """Observation -> Forecast in the batch frame; `trajectories` returns the set."""

    losses = (SceneSetLossConfig,)
    compiled_methods = ("trajectories",)

    def __init__(self, config: SceneSetConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.motion = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.history = Encoder(config.block, config.history_layers)
        self.place = mlp(7, width, width)
        self.lanes = MapTokenizer(
            width, config.map_width, config.map_radius_m, config.max_polylines
        )
        self.encoder = Encoder(config.block, config.encoder_layers)
        learned = config.queries > 0
        self.queries = (
            nn.Parameter(nn.init.orthogonal_(torch.empty(config.queries, width)))
            if learned
            else None
        )
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.pointer = nn.Linear(width, width) if learned else None
        self.pointed = (
            nn.Linear(width, width, bias=False) if learned else None
        )  # a bias of keys has no effect
        self.trajectory = mlp(width, width, config.modes * (1 + config.num_future) * 2)
        self.existence = mlp(width, width, 1)
        self.mode = mlp(width, width, config.modes) if config.modes > 1 else None

    def forward(self, observation: Observation) -> Forecast:
        """K futures of all targets; raises the errors of `check_lengths`."""
        queries, start = (
            self.trajectories(observation),
            observation.pose[:, : observation.num_targets, :2],
        )
        distance = pairwise_distances(start, queries.most_probable()[:, :, 0])
        penalty = (_PENALTY_M * (1.0 - queries.logit.sigmoid())).masked_fill(
            queries.logit.isneginf(), torch.inf
        )
        nearest = (distance + penalty[:, None]).argmin(-1)  # [B, S]
        scene = torch.arange(len(nearest), device=nearest.device)[:, None]
        chosen = queries.position[scene, nearest]  # [B, S, K, 1 + F, 2]
        future = chosen[:, :, :, 1:] - chosen[:, :, :, :1] + start[:, :, None, None]
        return Forecast(future, queries.mode_logit[scene, nearest], observation.frame)

    def trajectories(self, observation: Observation) -> SceneTrajectories:
        """The trajectories of each scene; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        target = torch.zeros_like(observation.agent_mask)
        target[:, : observation.num_targets] = observation.target_mask
        present = observation.agent_mask & (
            observation.valid[..., -1] | target
        )  # targets, and agents seen in the last step
        pose = _scene_pose(observation, present)
        relative = relative_pose(observation.pose, pose[:, None])
        velocity = rotate(last_velocity(observation), -pose[:, None, 2])
        state = torch.cat([relative[..., :2], velocity], -1) * present[..., None]
        agents = self._agents(observation, relative, state)
        lanes, lane_mask = self.lanes(replace(observation, pose=pose[:, None]), 1)
        keys = torch.cat([present, lane_mask[:, 0]], 1)[:, None]
        memory = self.encoder(torch.cat([agents, lanes[:, 0]], 1), keys)
        encoded = memory[:, : agents.shape[1]]
        if self.queries is None:
            layers = self.decoder(
                encoded, memory, mask=present[:, None], memory_mask=keys, position=agents
            )
            *earlier, last = [
                self._decode(observation, x, state, relative[..., 2], present, pose) for x in layers
            ]
        else:
            angle = torch.zeros_like(self.queries[:, 0])
            layers = self.decoder(
                self.queries.expand(len(memory), -1, -1),
                memory,
                memory_mask=keys,
                position=self.queries,
            )
            states = [self._mean_state(x, encoded, state, present) for x in layers]
            *earlier, last = [
                self._decode(observation, *pair, angle, None, pose)
                for pair in zip(layers, states, strict=True)
            ]
        return replace(last, auxiliary=tuple(earlier))

    def _agents(self, observation: Observation, pose: Tensor, state: Tensor) -> Tensor:
        """Tokens [B, A, D] of agents with poses [B, A, 3], positions and velocities `state` [B, A, 4] in the scene's frame."""
        tokens, mask = self.motion(observation)
        time = self.time()[-tokens.shape[2] :]  # positions count back from the last observed step
        tokens = self.history(tokens, mask[:, :, None], time)
        place = self.place(torch.cat([pose_features(pose), state[..., 2:] / LENGTH_SCALE_M], -1))
        return masked_mean(tokens, mask[..., None], 2) + place

    def _mean_state(self, x: Tensor, agents: Tensor, state: Tensor, present: Tensor) -> Tensor:
        """Mean position and velocity [B, Q, 4] of agents, weighted by the attention of queries [B, Q, D]."""
        assert self.pointer is not None and self.pointed is not None
        key = self.pointed(agents)
        with torch.autocast(
            x.device.type, enabled=False
        ):  # positions in half precision have errors of decimetres
            return attend(self.pointer(x.float()), key.float(), state.float(), present[:, None])

    def _decode(
        self,
        observation: Observation,
        x: Tensor,
        state: Tensor,
        angle: Tensor,
        present: Tensor | None,
        pose: Tensor,
    ) -> SceneTrajectories:
        """Trajectories of queries [B, Q, D]: offsets, rotated by `angle`, from constant velocity of `state` [B, Q, 4].

        Queries that are not `present` [B, Q] are padding. `pose` [B, 3] is the scene's frame.
        """
        offset = self.trajectory(x).unflatten(-1, (self.config.modes, -1, 2)).float()
        logit = self.existence(x).squeeze(-1).float()
        mode_logit = (
            torch.zeros_like(offset[..., 0, 0]) if self.mode is None else self.mode(x).float()
        )
        time = torch.arange(observation.num_future + 1, device=x.device) * observation.period_s
        straight = state[..., None, :2] + state[..., None, 2:] * time[:, None]  # [B, Q, 1 + F, 2]
        position = straight[:, :, None] + rotate(offset.cumsum(-2), angle[..., None, None])
        if present is not None:
            logit = logit.masked_fill(~present, -torch.inf)
        return SceneTrajectories(from_frame(position, pose[:, None, None, None]), logit, mode_logit)


def _scene_pose(observation: Observation, present: Tensor) -> Tensor:
    """The scene's frame [B, 3]: the pose of the focal agent, else of the agent nearest to the mean position."""
    xy = observation.pose[..., :2]
    gap = xy - masked_mean(xy, present[..., None], 1)[:, None]
    distance = gap.norm(dim=-1).masked_fill(observation.agent_role == int(AgentRole.FOCAL), -1.0)
    chosen = distance.masked_fill(~present, torch.inf).argmin(-1)
    return observation.pose[torch.arange(len(chosen), device=chosen.device), chosen]
