"""Spatial-Channel Transformer (Zhao et al. 2021): agents' histories through a transformer whose encoder weighs channels.

A target's history and those of the agents around it, seen from it, are one sequence of tokens, every agent at every step.
In each encoder block squeeze-and-excite weighs what attention gives before the feed-forward: "a channel-wise module is
inserted to measure the social interaction between agents" is all that the abstract says of it.

Readings taken. A channel is a feature or an agent, by choice; agents are in the order of their distance from the target,
so that "the third nearest" is a channel and the order of a file is not. What is weighed is attention's output, before it is
added to the tokens (as in SE-ResNet). K learned queries read the encoder's output, one for each mode; the paper predicts one
future. Lanes, where they are wanted, are further tokens of the sequence and in no agent's channel. Steps are summed up and
added to the place where the target would be at constant velocity; every decoder layer's forecast is kept for the set loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.groups import Groups
from trajformer.core.positions import LearnedPosition
from trajformer.core.squeeze import SqueezeConfig
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.errors import check_numbers
from trajformer.models.forecaster import Forecaster
from trajformer.models.horizon import check_lengths, forecast_from_offsets
from trajformer.models.modes import consensus
from trajformer.models.tokens import MapTokenizer, agent_states, mlp, neighbors, state_width


@dataclass(frozen=True)
class SpatialChannelConfig:
    """Sizes and reach of the Spatial-Channel Transformer.

    Attributes:
        num_future: F, steps to predict.
        modes: K queries of the decoder.
        consensus_m: in evaluation modes are scored anew by `forecast.consensus` at this temperature, that of the confidence
            loss; 0 keeps the scores of the network.
        channel_axis: what squeeze-and-excite weighs: features, the same for all agents, or agents, whatever their features.
        reduction: channels to one of its hidden units.
        max_history: longest history that has learned positions.
        steps_per_token: states of an agent in a token.
        block: shape of every transformer block.
        encoder_layers, decoder_layers: depth.
        social_radius_m, max_neighbors: agents that are seen, the target itself included.
        road: lanes are seen, too.
        map_radius_m, max_polylines: how far and how many.
        map_width: width inside the polyline subgraph.
    """

    num_future: int
    modes: int = 6
    consensus_m: float = 1.0
    channel_axis: Literal["feature", "agent"] = "feature"
    reduction: int = 4
    max_history: int = 50
    steps_per_token: int = 1
    block: BlockConfig = field(default_factory=BlockConfig)
    encoder_layers: int = 2
    decoder_layers: int = 2
    social_radius_m: float = 56.0
    max_neighbors: int = 24
    road: bool = True
    map_radius_m: float = 65.0
    max_polylines: int = 80
    map_width: int = 64

    def __post_init__(self) -> None:
        check_numbers(
            self,
            positive=(
                "num_future",
                "modes",
                "max_history",
                "steps_per_token",
                "max_neighbors",
                "max_polylines",
                "map_width",
                "reduction",
                "decoder_layers",
            ),
        )

    def build(self) -> SpatialChannel:
        """The model, with random weights."""
        return SpatialChannel(self)


class SpatialChannel(Forecaster):
    """Observation -> Forecast in each target's own frame, with those of earlier decoder layers as auxiliary ones.

    Raises:
        TrajformerError: a size that must be at least 1 is not.
    """

    def __init__(self, config: SpatialChannelConfig) -> None:
        super().__init__()
        self.config, width = config, config.block.width
        self.state = mlp(state_width(config.steps_per_token), width, width)
        self.time = LearnedPosition((-(-config.max_history // config.steps_per_token),), width)
        reach = (config.map_radius_m, config.max_polylines)
        self.road = MapTokenizer(width, config.map_width, *reach) if config.road else None
        axis: Literal["group", "feature"] = "group" if config.channel_axis == "agent" else "feature"
        squeeze = SqueezeConfig(axis, config.max_neighbors, config.reduction)
        self.encoder = Encoder(replace(config.block, squeeze=squeeze), config.encoder_layers)
        self.decoder = Decoder(config.block, config.decoder_layers)
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.modes, width)))
        self.trajectory = mlp(width, width, config.num_future * 2)
        self.score = mlp(width, width, 1)

    def forward(self, observation: Observation) -> Forecast:
        """Predict every target of every scene.

        Raises:
            TrajformerError: the batch wants another horizon than the model was built for, or a longer history.
        """
        check_lengths(observation, self.config.num_future, self.config.max_history)
        memory, keys = self._memory(observation)
        queries = self.queries.expand(len(memory), -1, -1)
        layers = self.decoder(queries, memory, memory_mask=keys, position=self.queries)
        *earlier, last = [
            self._decode(observation, x.unflatten(0, (observation.num_scenes, observation.num_targets))) for x in layers
        ]
        forecast = replace(last, auxiliary=tuple(earlier))
        return forecast if self.training else consensus(forecast, self.config.consensus_m)

    def _memory(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Tokens [B * S, L, D] around every target and bool [B * S, 1, L]: agents, step after step, then lanes."""
        index, near = neighbors(observation, self.config.social_radius_m, self.config.max_neighbors)
        state, seen = agent_states(observation, index, self.config.steps_per_token)
        time = self.time(state.shape[2]).flip(0)  # positions count back from the last observed step
        token = (self.state(state) + time[:, None]).flatten(2, 3)
        real = (seen & near[:, :, None]).flatten(2, 3)
        lanes = 0
        if self.road is not None:
            lane, there = self.road(observation, observation.num_targets)
            token, real, lanes = torch.cat([token, lane], 2), torch.cat([real, there], 2), lane.shape[2]
        keys = real.flatten(0, 1)[:, None]
        agents = Groups(index.shape[2], index.shape[2], (lanes, lanes))
        return self.encoder(token.flatten(0, 1), keys, groups=agents), keys

    def _decode(self, observation: Observation, x: Tensor) -> Forecast:
        """Features [B, S, K, D] to a forecast."""
        return forecast_from_offsets(observation, self.trajectory(x), self.score(x))
