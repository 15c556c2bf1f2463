"""The models and losses that a recipe can name.

To add a model, write its file with a config dataclass (its `build()` returns a `Forecaster`) and
add one entry to `MODELS`. To add a loss, do the same for `LOSSES`. Other packages add entry points
of the groups `trajformer.models` and `trajformer.losses`. `docs/adding.md` has complete examples.
"""

from typing import Any

from trajformer.config import load_plugins
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.world_loss import WorldLossConfig
from trajformer.models.agentformer.losses import CVAELossConfig, SamplerLossConfig
from trajformer.models.agentformer.model import AgentFormerConfig
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.gatformer import GatformerConfig
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.mmtransformer.region_loss import RegionLossConfig
from trajformer.models.scene_set import SceneSetConfig, SceneSetLossConfig
from trajformer.models.se2former.loss import SE2FormerLossConfig
from trajformer.models.se2former.model import SE2FormerConfig
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
    "se2former": SE2FormerConfig,
}
MODELS |= load_plugins("trajformer.models")
LOSSES: dict[str, type[Any]] = {  # config classes by the name used in recipes
    "set": SetLossConfig,
    "mixture": MixtureLossConfig,
    "worlds": WorldLossConfig,
    "regions": RegionLossConfig,
    "scene_set": SceneSetLossConfig,
    "se2former": SE2FormerLossConfig,
    "cvae": CVAELossConfig,
    "sampler": SamplerLossConfig,
}
LOSSES |= load_plugins("trajformer.losses")
