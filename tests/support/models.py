"""Small configs of all models.

A model of `MODELS` without a config here is tested with `ModelConfig.example`.
"""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.models.agentformer.model import AgentFormerConfig, RoadConfig
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.constant_velocity import (
    ConstantVelocityConfig,
    SampledConstantVelocityConfig,
)
from trajformer.models.crowd import CrowdConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.gatformer import GatformerConfig
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.scene_set import SceneSetConfig
from trajformer.models.se2former.model import SE2FormerConfig
from trajformer.models.spatial_channel import SpatialChannelConfig
from trajformer.models.wayformer import LatentConfig, SceneEncoderConfig, WayformerConfig
from trajformer.recipes.choices import MODELS
from trajformer.testing.models import build_random

FUTURE = 12  # steps that all models with a fixed horizon predict
BLOCK = BlockConfig(width=32, heads=4, feedforward=64, dropout=0.0)

MMTRANSFORMER = MMTransformerConfig(
    FUTURE, block=BLOCK, map_width=16, max_polylines=120
)  # more polylines than a scene has
WAYFORMER = WayformerConfig(
    FUTURE, decoder_layers=1, max_history=10, max_neighbors=7, max_polylines=12, map_width=16
)
SPATIAL_CHANNEL = SpatialChannelConfig(
    FUTURE, max_history=10, block=BLOCK, max_polylines=40, map_width=16
)
LANE_SET = LaneSetConfig(FUTURE, block=BLOCK, max_neighbors=7, max_polylines=40)
GATFORMER = GatformerConfig(
    FUTURE,
    max_history=10,
    block=BLOCK,
    encoder_layers=1,
    decoder_layers=1,
    max_neighbors=7,
    max_polylines=20,
    map_width=16,
)
CROWD = CrowdConfig(FUTURE, 6, BLOCK, social_layers=2, radius_m=30.0, max_neighbors=7)
SCENE_SET = SceneSetConfig(
    FUTURE, queries=12, block=BLOCK, decoder_layers=2, max_polylines=120, map_width=16
)
SE2FORMER = SE2FormerConfig(
    FUTURE,
    max_history=10,
    block=BLOCK,
    map_layers=1,
    agent_layers=1,
    decoder_layers=1,
    components=4,
)
AGENTFORMER = AgentFormerConfig(
    6, 8, replace(BLOCK, norm_first=False, agent_aware=True), (1, 1, 1), (16,), num_history=10
)


def _wayformers() -> dict[str, WayformerConfig]:
    """All pairs of fusion and attention with a minimal number of layers.

    Four pairs have latent queries.
    """
    layers = {"early": 2, "late": 2, "hierarchical": 4}
    attentions = ("multi_axis", "sequential", "interleaved")
    with_latents = {
        ("early", "sequential"),
        ("late", "multi_axis"),
        ("late", "interleaved"),
        ("hierarchical", "interleaved"),
    }
    configs = {}
    for fusion, attention in product(layers, attentions):
        name = f"wayformer-{fusion}-{attention}"
        latents = None
        if (fusion, attention) in with_latents:
            name += "-latents"
            latents = LatentConfig()
        encoder = SceneEncoderConfig(fusion, attention, latents, layers[fusion], BLOCK)
        configs[name] = replace(WAYFORMER, encoder=encoder)

    first = configs["wayformer-early-multi_axis"]
    narrow = replace(BLOCK, width=16)
    configs["wayformer-9-components"] = replace(first, proposals=9, decoder=narrow)
    configs["wayformer-3-steps"] = replace(first, steps_per_token=3)
    return configs


MODEL_CONFIGS: dict[str, Any] = {
    "constant-velocity": ConstantVelocityConfig(modes=6),
    "constant-velocity-sampled": SampledConstantVelocityConfig(modes=6),
    "mmtransformer": MMTRANSFORMER,
    "se2former": SE2FORMER,
    "se2former-joint": replace(SE2FORMER, joint=True),
    "se2former-median-without-query": replace(SE2FORMER, median_query=False),
    "mmtransformer-neighbor-map": replace(MMTRANSFORMER, neighbor_map=True, max_polylines=40),
    "mmtransformer-3-steps": replace(MMTRANSFORMER, steps_per_token=3),
    "mmtransformer-9-proposals": replace(MMTRANSFORMER, proposals=9, neighbor_map=True),
    "mmtransformer-motion": replace(MMTRANSFORMER, map_layers=None, social_layers=None),
    "mmtransformer-map": replace(MMTRANSFORMER, social_layers=None),
    "mmtransformer-social": replace(MMTRANSFORMER, map_layers=None),
    "mmtransformer-appended": replace(MMTRANSFORMER, social_output="appended", max_polylines=40),
    "mmtransformer-regions": replace(MMTRANSFORMER, proposals=9, regions=3, max_polylines=40),
    "mmtransformer-joint": replace(MMTRANSFORMER, joint=True, max_polylines=40),
    **_wayformers(),
    "spatial-channel-feature": SPATIAL_CHANNEL,
    "spatial-channel-agent": replace(SPATIAL_CHANNEL, channel_axis="agent", steps_per_token=3),
    "spatial-channel-no-road": replace(SPATIAL_CHANNEL, channel_axis="agent", road=False),
    "crowd": CROWD,
    "lane-set": LANE_SET,
    "lane-set-3-steps": replace(LANE_SET, steps_per_token=3),
    "gatformer": GATFORMER,
    "gatformer-joint": replace(GATFORMER, joint=True),
    "gatformer-3-steps": replace(GATFORMER, steps_per_token=3),
    "agentformer": AGENTFORMER,
    "agentformer-road": replace(AGENTFORMER, road=RoadConfig(100.0, 120, 16)),
    "agentformer-tokens": replace(
        AGENTFORMER, road=RoadConfig(100.0, 120, 16), steps_per_token=4, extrapolate=True
    ),
    "agentformer-joint": replace(AGENTFORMER, joint=True),
    "agentformer-sampler": AgentFormerSamplerConfig(AGENTFORMER, hidden=(16, 16)),
    "scene-set": SCENE_SET,
    "scene-set-agents": replace(SCENE_SET, queries=0, modes=2),
}
for _name, _kind in MODELS.items():
    if not any(type(config) is _kind for config in MODEL_CONFIGS.values()):
        MODEL_CONFIGS[_name] = _kind.example(FUTURE)

_DEPTHS = {
    "motion_layers": (1, 1),
    "map_layers": (1, 1),
    "social_layers": (1, 2),
    "agent_layers": 1,
    "time_layers": 1,
}
_DEPTHS |= {"encoder_layers": 1, "decoder_layers": 1, "lstm_layers": 1}
build = build_random


def seeded(config: Any, **changes: Any) -> Any:
    """The model of a changed config with its initial weights, in evaluation mode."""
    torch.manual_seed(0)
    return replace(config, **changes).build().eval()


def shallow_config(name: str, **changes: Any) -> Any:
    """A config with the smallest depths that contain all parts of its model."""
    config = MODEL_CONFIGS[name]
    layers = {
        key: value
        for key, value in _DEPTHS.items()
        if type(getattr(config, key, None)) is type(value)
    }
    return replace(config, **layers, **changes)


def shallow(name: str, **changes: Any) -> Forecaster:
    return build(shallow_config(name, **changes))


@cache
def training_cases() -> list[tuple[str, type[Any]]]:
    """Each model with each of its losses: the name of a config and the class of the loss.

    Of several configs, it is the one with the most parameters, for marginal and for joint modes.
    Models without parameters are left out.
    """
    largest: dict[tuple[type[Any], type[Any], bool], tuple[int, str]] = {}
    for name, config in MODEL_CONFIGS.items():
        model = shallow(name)
        size = sum(parameter.numel() for parameter in model.parameters())
        if size == 0:
            continue
        for loss in model.losses:
            case = (type(config), loss, model.joint)
            largest[case] = max(largest.get(case, (0, "")), (size, name))
    return [(name, loss) for (_, loss, _), (_, name) in largest.items()]
