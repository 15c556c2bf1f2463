"""Spatial-Channel Transformer (Zhao et al. 2021): a transformer over agents' histories with squeeze-and-excite in each block.

The histories of a target and the agents around it, in the frame of the target, are one sequence with a token for each agent and
step. The abstract only states that "a channel-wise module is inserted to measure the social interaction between agents".

Interpretation of the paper:
- Squeeze-and-excite scales the output of self-attention before it is added to the tokens (as in SE-ResNet).
- A channel is a feature or an agent (`channel_axis`). Agents are ordered by their distance from the target.
- K learned queries decode K modes; the paper predicts one future.
- Lanes are optional additional tokens, without an agent channel.
- Predicted offsets are cumulated and added to constant velocity. The forecasts of all decoder layers are trained.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

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
        channel_axis: channels of squeeze-and-excite: features (equal for all agents), or agents (equal for all features).
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
    """Observation -> Forecast in the frame of each target; auxiliary forecasts of earlier decoder layers."""

    def __init__(self, config: SpatialChannelConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.state = mlp(state_width(config.steps_per_token), width, width)
        self.time = LearnedPosition((-(-config.max_history // config.steps_per_token),), width)
        limits = (config.map_radius_m, config.max_polylines)
        self.road = MapTokenizer(width, config.map_width, *limits) if config.road else None
        axis: Literal["group", "feature"] = "group" if config.channel_axis == "agent" else "feature"
        squeeze = SqueezeConfig(axis, config.max_neighbors, config.reduction)
        self.encoder = Encoder(replace(config.block, squeeze=squeeze), config.encoder_layers)
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        # Tokens [B, S, L, D] around each target, agents of each step and then lanes, and their mask bool [B, S, L].
        index, near = neighbors(observation, self.config.social_radius_m, self.config.max_neighbors)
        state, seen = agent_states(observation, index, self.config.steps_per_token)
        time = self.time(state.shape[2]).flip(0)  # positions count back from the last observed step
        token = (self.state(state) + time[:, None]).flatten(2, 3)
        real = (seen & near[:, :, None]).flatten(2, 3)
        lanes = 0
        if self.road is not None:
            lane, lane_mask = self.road(observation, observation.num_targets)
            token, real, lanes = (
                torch.cat([token, lane], 2),
                torch.cat([real, lane_mask], 2),
                lane.shape[2],
            )
        keys = real[:, :, None]
        agents = Groups(index.shape[2], index.shape[2], (lanes, lanes))
        queries = self.queries.expand(*real.shape[:2], -1, -1)
        memory = self.encoder(token, keys, groups=agents)
        modes = self.decoder(
            queries, memory, memory_mask=keys, position=self.queries
        )  # [B, S, K, D] of each layer
        *earlier, last = [
            forecast_from_offsets(observation, self.trajectory(x), self.score(x)) for x in modes
        ]
        forecast = replace(last, auxiliary=tuple(earlier))
        return forecast if self.training else consensus(forecast, self.config.consensus_m)
