"""A scene as a set of trajectories, as DETR has an image as a set of boxes (Carion et al. 2020); a model of our own.

Tokens are agents (their histories, and where they are) and lanes, all seen from one frame of the scene, and pass an encoder.
Q learned queries read them in a decoder, all at once; each becomes a whole trajectory, the current position first, and how
surely it is somebody's. Who is whose is settled by a one-to-one matching in the loss, and by nothing else.

Choices. The scene's frame is the focal agent's, or without one that of the agent nearest to the middle of all, so that the set
moves with the world. Queries are the decoder's input as well as positions: zeros, as in DETR, leave its first self-attention
nothing to learn. A trajectory is a learned correction of the attention-weighted mean of the agents' places and velocities,
continued: boxes lie in a picture, agents anywhere in 100 m, and finding them from nothing takes hundreds of epochs. Without
learned queries (`queries: 0`) the agents' own tokens are the queries, as an encoder's proposals are in two-stage detectors
(Deformable DETR, Zhu et al. 2021), and a trajectory corrects, in the agent's own frame, its going on as it is; who stands for
whom is still for the matching to say. With several `modes` each query has as many trajectories and says how likely each is. As a
`Forecast` every target gets the modes of one query: the one whose current position is nearest, one that hardly exists counting
as farther away, moved to where the target is. Its future is not asked: nobody knows it when a forecast is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.core.attention import attend
from trajformer.core.axes import apply_along_axis
from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths
from trajformer.models.scene_set.loss import SceneSetLossConfig
from trajformer.models.scene_set.trajectories import SceneTrajectories
from trajformer.models.tokens import LENGTH_SCALE_M, MapTokenizer, MotionTokenizer, last_velocity, mlp, pose_features
from trajformer.scenes.geometry import from_frame, relative_pose, rotate
from trajformer.scenes.scene import AgentRole

_DOUBT_M = 5.0  # a query that does not exist counts as so much farther away


@dataclass(frozen=True)
class SceneSetConfig:
    """Sizes and reach of the scene set.

    Attributes:
        num_future: F, steps to predict.
        queries: Q, more than there are agents to predict in any scene; or 0, where agents' tokens are the queries and Q is A.
        modes: K, trajectories of a query.
        max_history: longest history that has learned positions.
        steps_per_token: displacement vectors in a motion token.
        block: shape of every transformer block.
        history_layers: encoder layers over each agent's history.
        encoder_layers, decoder_layers: of the scene's tokens, and of the queries.
        map_radius_m, max_polylines: lanes around the scene's frame.
        map_width: width inside the polyline subgraph.
    """

    num_future: int
    queries: int = 64
    modes: int = 1
    max_history: int = 50
    steps_per_token: int = 1
    block: BlockConfig = field(default_factory=BlockConfig)
    history_layers: int = 1
    encoder_layers: int = 2
    decoder_layers: int = 3
    map_radius_m: float = 100.0
    max_polylines: int = 120
    map_width: int = 64

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=("num_future", "modes", "max_history", "steps_per_token", "decoder_layers", "max_polylines", "map_width"),
        )

    def build(self) -> SceneSet:
        """The model, with random weights."""
        return SceneSet(self)


class SceneSet(Forecaster):
    """Observation -> Forecast in the batch frame; `trajectories` is the set itself.

    Raises:
        TrajformerError: a size that must be at least 1 is not.
    """

    losses = (SceneSetLossConfig,)

    def __init__(self, config: SceneSetConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.motion = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.history = Encoder(config.block, config.history_layers)
        self.place = mlp(7, width, width)
        self.lanes = MapTokenizer(width, config.map_width, config.map_radius_m, config.max_polylines)
        self.encoder = Encoder(config.block, config.encoder_layers)
        learned = config.queries > 0
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.queries, width))) if learned else None
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.pointer = nn.Linear(width, width) if learned else None
        self.pointed = nn.Linear(width, width, bias=False) if learned else None  # the same for all keys would change no softmax
        self.trajectory = mlp(width, width, config.modes * (1 + config.num_future) * 2)
        self.existence = mlp(width, width, 1)
        self.mode = mlp(width, width, config.modes) if config.modes > 1 else None

    def forward(self, observation: Observation) -> Forecast:
        """K futures of every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        found, place = self.trajectories(observation), observation.pose[:, : observation.num_targets, :2]
        gap = pairwise_distances(place, found.likeliest()[:, :, 0])
        doubt = (_DOUBT_M * (1.0 - found.logit.sigmoid())).masked_fill(found.logit.isneginf(), torch.inf)
        nearest = (gap + doubt[:, None]).argmin(-1)  # [B, S]
        scene = torch.arange(len(nearest), device=nearest.device)[:, None]
        chosen = found.position[scene, nearest]  # [B, S, K, 1 + F, 2]
        future = chosen[:, :, :, 1:] - chosen[:, :, :, :1] + place[:, :, None, None]
        return Forecast(future, found.mode_logit[scene, nearest], observation.frame)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile what is called in forecasting and in training."""
        super().compile(*args, **kwargs)
        self.__dict__["trajectories"] = torch.compile(self.trajectories, *args, **kwargs)

    def trajectories(self, observation: Observation) -> SceneTrajectories:
        """The set of each scene; raises what a forecast raises."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        there = _present(observation)
        pose = _scene_pose(observation, there)
        own = relative_pose(observation.pose, pose[:, None])
        state = torch.cat([own[..., :2], rotate(last_velocity(observation), -pose[:, None, 2])], -1) * there[..., None]
        agents = self._agents(observation, own, state)
        lanes, lane_mask = self.lanes(replace(observation, pose=pose[:, None]), 1)
        keys = torch.cat([there, lane_mask[:, 0]], 1)[:, None]
        memory = self.encoder(torch.cat([agents, lanes[:, 0]], 1), keys)
        encoded = memory[:, : agents.shape[1]]
        if self.queries is None:
            layers = self.decoder(encoded, memory, mask=there[:, None], memory_mask=keys, position=agents)
            *earlier, last = [self._decode(observation, x, state, own[..., 2], there, pose) for x in layers]
        else:
            ahead = torch.zeros_like(self.queries[:, 0])
            layers = self.decoder(self.queries.expand(len(memory), -1, -1), memory, memory_mask=keys, position=self.queries)
            *earlier, last = [
                self._decode(observation, x, self._pointed(x, encoded, state, there), ahead, None, pose) for x in layers
            ]
        return replace(last, auxiliary=tuple(earlier))

    def _agents(self, observation: Observation, own: Tensor, state: Tensor) -> Tensor:
        """A token [B, A, D] for every agent at pose `own` [B, A, 3] with place and velocity `state` [B, A, 4]."""
        tokens, mask = self.motion(observation)
        time = self.time()[-tokens.shape[2] :]  # positions count back from the last observed step
        tokens = apply_along_axis(2, lambda x, keys: self.history(x, keys, time), tokens, mask)
        mean = (tokens * mask[..., None]).sum(2) / mask.sum(2, keepdim=True).clamp(min=1)
        return mean + self.place(torch.cat([pose_features(own), state[..., 2:] / LENGTH_SCALE_M], -1))

    def _pointed(self, x: Tensor, agents: Tensor, state: Tensor, there: Tensor) -> Tensor:
        """The mean place and velocity [B, Q, 4] of the agents that queries [B, Q, D] attend to."""
        assert self.pointer is not None and self.pointed is not None
        key = self.pointed(agents)
        with torch.autocast(x.device.type, enabled=False):  # places in half precision would be decimetres off
            return attend(self.pointer(x.float()), key.float(), state.float(), there[:, None])

    def _decode(
        self, observation: Observation, x: Tensor, state: Tensor, angle: Tensor, there: Tensor | None, pose: Tensor
    ) -> SceneTrajectories:
        """Queries' features [B, Q, D] to trajectories: corrections, turned by `angle`, of `state` [B, Q, 4] continued."""
        offset = self.trajectory(x).unflatten(-1, (self.config.modes, -1, 2)).float()
        logit = self.existence(x).squeeze(-1).float()
        mode_logit = torch.zeros_like(offset[..., 0, 0]) if self.mode is None else self.mode(x).float()
        time = torch.arange(observation.num_future + 1, device=x.device) * observation.period_s
        straight = state[..., None, :2] + state[..., None, 2:] * time[:, None]  # [B, Q, 1 + F, 2]
        position = straight[:, :, None] + rotate(offset.cumsum(-2), angle[..., None, None])
        if there is not None:
            logit = logit.masked_fill(~there, -torch.inf)
        return SceneTrajectories(from_frame(position, pose[:, None, None, None]), logit, mode_logit)


def _present(observation: Observation) -> Tensor:
    """Bool [B, A]: targets, and others seen at the last observed step."""
    target = torch.zeros_like(observation.agent_mask)
    target[:, : observation.num_targets] = observation.target_mask
    return observation.agent_mask & (observation.valid[..., -1] | target)


def _scene_pose(observation: Observation, there: Tensor) -> Tensor:
    """The scene's frame [B, 3]: the pose of the focal agent, or of the one nearest to the mean place of all who are there."""
    xy = observation.pose[..., :2]
    middle = (xy * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
    gap = (xy - middle[:, None]).norm(dim=-1).masked_fill(observation.agent_role == int(AgentRole.FOCAL), -1.0)
    chosen = gap.masked_fill(~there, torch.inf).argmin(-1)
    return observation.pose[torch.arange(len(chosen), device=chosen.device), chosen]
