"""Published systems on the shared core, one short file each, and the one list of them.

To add a model: write its file with a config dataclass and a module `SceneBatch -> Forecast`, add a field and a line
below, and give it a recipe in `configs/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trajformer.errors import TrajformerError
from trajformer.models.agentformer import AgentFormer, AgentFormerConfig
from trajformer.models.agentformer_sampler import AgentFormerSampler, AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocity, ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig, CrowdForecaster
from trajformer.models.gatformer import Gatformer, GatformerConfig
from trajformer.models.lane_set import LaneSetConfig, LaneSetTransformer
from trajformer.models.mmtransformer import MMTransformer, MMTransformerConfig
from trajformer.models.scene_set import SceneSet, SceneSetConfig
from trajformer.models.spatial_channel import SpatialChannel, SpatialChannelConfig
from trajformer.models.wayformer import Wayformer, WayformerConfig


@dataclass(frozen=True)
class ModelConfig:
    """Which model, with its sizes: exactly one field is given."""

    constant_velocity: ConstantVelocityConfig | None = None
    mmtransformer: MMTransformerConfig | None = None
    agentformer: AgentFormerConfig | None = None
    agentformer_sampler: AgentFormerSamplerConfig | None = None
    wayformer: WayformerConfig | None = None
    spatial_channel: SpatialChannelConfig | None = None
    lane_set: LaneSetConfig | None = None
    gatformer: GatformerConfig | None = None
    crowd: CrowdConfig | None = None
    scene_set: SceneSetConfig | None = None


def build_model(config: ModelConfig) -> nn.Module:
    """The model that the config names.

    Raises:
        TrajformerError: none or several models are given.
    """
    given = [name for name, value in vars(config).items() if value is not None]
    if len(given) != 1:
        raise TrajformerError(f"model: give exactly one of {', '.join(vars(config))}; found {given or 'none'}")
    if config.mmtransformer is not None:
        return MMTransformer(config.mmtransformer)
    if config.agentformer is not None:
        return AgentFormer(config.agentformer)
    if config.agentformer_sampler is not None:
        return AgentFormerSampler(config.agentformer_sampler)
    if config.wayformer is not None:
        return Wayformer(config.wayformer)
    if config.spatial_channel is not None:
        return SpatialChannel(config.spatial_channel)
    if config.lane_set is not None:
        return LaneSetTransformer(config.lane_set)
    if config.gatformer is not None:
        return Gatformer(config.gatformer)
    if config.crowd is not None:
        return CrowdForecaster(config.crowd)
    if config.scene_set is not None:
        return SceneSet(config.scene_set)
    assert config.constant_velocity is not None
    return ConstantVelocity(config.constant_velocity)
