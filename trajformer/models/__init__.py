"""Published systems on the shared core, one short file each, and the one list of them.

To add a model: write its file with a config dataclass and a module `SceneBatch -> Forecast`, add a field to `ModelConfig` and a
line to `MODELS` below, give it a recipe in `configs/` and a picture in `tools/model_drawings.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trajformer.errors import TrajformerError
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig
from trajformer.models.agentformer.sampler import AgentFormerSampler, AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocity, ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig, CrowdForecaster
from trajformer.models.gatformer import Gatformer, GatformerConfig
from trajformer.models.lane_set import LaneSetConfig, LaneSetTransformer
from trajformer.models.mmtransformer.model import MMTransformer, MMTransformerConfig
from trajformer.models.scene_set.model import SceneSet, SceneSetConfig
from trajformer.models.spatial_channel import SpatialChannel, SpatialChannelConfig
from trajformer.models.wayformer.model import Wayformer, WayformerConfig


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


MODELS: dict[str, type[nn.Module]] = {  # by the field of `ModelConfig`, whose value they are made of
    "constant_velocity": ConstantVelocity,
    "mmtransformer": MMTransformer,
    "agentformer": AgentFormer,
    "agentformer_sampler": AgentFormerSampler,
    "wayformer": Wayformer,
    "spatial_channel": SpatialChannel,
    "lane_set": LaneSetTransformer,
    "gatformer": Gatformer,
    "crowd": CrowdForecaster,
    "scene_set": SceneSet,
}


def build_model(config: ModelConfig) -> nn.Module:
    """The model that the config names.

    Raises:
        TrajformerError: none or several models are given.
    """
    given = [name for name, value in vars(config).items() if value is not None]
    if len(given) != 1:
        raise TrajformerError(f"model: give exactly one of {', '.join(vars(config))}; found {given or 'none'}")
    return MODELS[given[0]](getattr(config, given[0]))
