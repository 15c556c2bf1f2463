"""Spatial-Channel Transformer (Zhao et al. 2021): histories of agents with squeeze-and-excite.

The histories of a target and the agents around it, in the frame of the target, are one sequence
with a token for each agent and step. The abstract only states that "a channel-wise module is
inserted to measure the social interaction between agents".

Interpretation of the paper:
- Squeeze-and-excite scales the output of self-attention before it is added to the tokens (as in
  SE-ResNet).
- A channel is a feature or an agent (`channel_axis`). Agents are ordered by their distance from the
  target.
- K learned queries decode K modes; the paper predicts one future.
- Lanes are optional additional tokens, without an agent channel.
- Predicted offsets are cumulated and added to constant velocity. The forecasts of all decoder
  layers are trained.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.attention import Groups
from trajformer.core.blocks import Decoder, Encoder, SqueezeConfig
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.models.forecaster import Forecaster, TargetModelConfig
from trajformer.models.horizon import check_lengths, forecast_from_offsets
from trajformer.models.modes import consensus
from trajformer.models.tokens import MapTokenizer, agent_states, mlp, neighbors, state_width


@dataclass(frozen=True)
class SpatialChannelConfig(TargetModelConfig, positive=("reduction", "decoder_layers")):
    """Sizes and radii of the Spatial-Channel Transformer.

    Attributes:
        channel_axis: channels of squeeze-and-excite: features (equal for all agents), or agents
            (equal for all features).
        reduction: ratio of channels to hidden units of squeeze-and-excite.
        encoder_layers, decoder_layers: number of blocks.
        road: add tokens of lanes.
    """

    channel_axis: Literal["feature", "agent"] = "feature"
    reduction: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    road: bool = True


class SpatialChannel(Forecaster, config=SpatialChannelConfig):
    """Observation -> Forecast in the frame of each target.

    Forecasts of earlier decoder layers are auxiliary.
    """

    def __init__(self, config: SpatialChannelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.state = mlp(state_width(config.steps_per_token), width, width)
        num_times = -(-config.max_history // config.steps_per_token)
        self.time = LearnedPosition((num_times,), width)
        self.road = None
        if config.road:
            self.road = MapTokenizer(
                width, config.map_width, config.map_radius_m, config.max_polylines
            )
        axis: Literal["group", "feature"] = "feature"
        if config.channel_axis == "agent":
            axis = "group"
        squeeze = SqueezeConfig(axis, config.max_neighbors, config.reduction)
        self.encoder = Encoder(replace(config.block, squeeze=squeeze), config.encoder_layers)
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        tokens, real, groups = self._tokens(observation)
        keys = real[:, :, None]
        memory = self.encoder(tokens, keys, groups=groups)  # [B, S, L, D]
        queries = self.queries.expand(*real.shape[:2], -1, -1)
        layers = self.decoder(queries, memory, memory_mask=keys, position=self.queries)
        forecasts = []
        for modes in layers:  # [B, S, K, D]
            forecasts.append(
                forecast_from_offsets(observation, self.trajectory(modes), self.score(modes))
            )
        forecast = replace(forecasts[-1], auxiliary=tuple(forecasts[:-1]))
        if self.training:
            return forecast
        return consensus(forecast, self.config.consensus_m)

    def _tokens(self, observation: Observation) -> tuple[Tensor, Tensor, Groups]:
        """Tokens [B, S, L, D] around each target: agents of each step, then lanes.

        Also returns their mask, bool [B, S, L], and the agents as groups of tokens.
        """
        index, near = neighbors(observation, self.config.social_radius_m, self.config.max_neighbors)
        state, seen = agent_states(observation, index, self.config.steps_per_token)
        # Positions count back from the last observed step.
        time = self.time(state.shape[2]).flip(0)
        tokens = (self.state(state) + time[:, None]).flatten(2, 3)  # [B, S, T * n, D]
        real = (seen & near[:, :, None]).flatten(2, 3)
        num_lanes = 0
        if self.road is not None:
            lanes, lane_mask = self.road(observation, observation.num_targets)
            num_lanes = lanes.shape[2]
            tokens = torch.cat([tokens, lanes], 2)
            real = torch.cat([real, lane_mask], 2)
        num_agents = index.shape[2]
        return tokens, real, Groups(num_agents, num_agents, (num_lanes, num_lanes))
