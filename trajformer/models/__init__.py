"""The list of models.

To add a model, write its file with a config dataclass, whose `build()` returns a `Forecaster`, and add one entry to `MODELS`.
Other packages add models with an entry point of the group `trajformer.models`. `docs/adding.md` has a complete example.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from trajformer.models.agentformer.model import AgentFormerConfig
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.gatformer import GatformerConfig
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.scene_set.model import SceneSetConfig
from trajformer.models.spatial_channel import SpatialChannelConfig
from trajformer.models.wayformer.model import WayformerConfig

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
