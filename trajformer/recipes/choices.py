"""The models and losses that a recipe can name.

To add a model, write its file with a config dataclass, whose `build()` returns a `Forecaster`, and add one entry to `MODELS`.
To add a loss, do the same for `LOSSES`. Other packages add entry points of the groups `trajformer.models` and
`trajformer.losses`. `docs/adding.md` has complete examples.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig, WorldLossConfig
from trajformer.models.agentformer.model import AgentFormerConfig, AgentFormerSamplerConfig, CVAELossConfig, SamplerLossConfig
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.gatformer import GatformerConfig
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.mmtransformer.regions import RegionLossConfig
from trajformer.models.scene_set import SceneSetConfig, SceneSetLossConfig
from trajformer.models.spatial_channel import SpatialChannelConfig
from trajformer.models.wayformer import WayformerConfig

MODELS: dict[str, type[Any]] = {  # config classes by the name used in recipes
    "constant_velocity": ConstantVelocityConfig,
    "mmtransformer": MMTransformerConfig,
    "agentformer": AgentFormerConfig,
    "agentformer_sampler": AgentFormerSamplerConfig,
    "wayformer": WayformerConfig,
    "spatial_channel": SpatialChannelConfig,
    "lane_set": LaneSetConfig,
    "gatformer": GatformerConfig,
    "crowd": CrowdConfig,
    "scene_set": SceneSetConfig,
}
MODELS |= {plugin.name: plugin.load() for plugin in entry_points(group="trajformer.models")}
LOSSES: dict[str, type[Any]] = {  # config classes by the name used in recipes
    "set": SetLossConfig,
    "mixture": MixtureLossConfig,
    "worlds": WorldLossConfig,
    "regions": RegionLossConfig,
    "scene_set": SceneSetLossConfig,
    "cvae": CVAELossConfig,
    "sampler": SamplerLossConfig,
}
LOSSES |= {plugin.name: plugin.load() for plugin in entry_points(group="trajformer.losses")}
