"""The models and losses that a recipe can name, and their names and fields in version 0.1.

To add a model, write its file with a config dataclass (its `build()` returns a `Forecaster`) and add one entry to `MODELS`.
To add a loss, do the same for `LOSSES`. Other packages add entry points of the groups `trajformer.models` and
`trajformer.losses`. `docs/adding.md` has complete examples.
"""

from dataclasses import fields
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
_OWN_MODELS = {*MODELS}
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

_RENAMED = {"own": "agent_aware", "max_neighbours": "max_neighbors", "start": "init"}
_REMOVED = {
    "reach_m": 0.0,
    "first": True,
    "coverage": False,
    "trust": 1.0,
}  # removed options and today's values
_LOSSES = {
    "mixture_loss": "mixture",
    "region_loss": "regions",
    "world_loss": "worlds",
    "scene_set_loss": "scene_set",
}
_MODEL_LOSSES = {"agentformer": "cvae", "agentformer_sampler": "sampler", "scene_set": "scene_set"}
_OLD_FIELDS = {*_LOSSES, "cvae_loss", "sampler_loss"}


def upgrade_recipe(plain: dict[str, Any]) -> dict[str, Any]:
    """The plain values of a forecaster's recipe, converted if they are of version 0.1, which had one field for each loss.

    Models of other packages have no earlier version, so their fields stay.
    """
    models = plain.get("model")
    if isinstance(models, dict) and any(
        value is not None and name not in _OWN_MODELS for name, value in models.items()
    ):
        return plain
    renamed: dict[str, Any] = _rename(plain)
    models = renamed.get("model")
    given = (
        [(name, value) for name, value in models.items() if value is not None]
        if isinstance(models, dict)
        else []
    )
    old_weights = set(renamed.get("loss") or {}) & {item.name for item in fields(SetLossConfig)}
    if len(given) != 1 or not (_OLD_FIELDS & renamed.keys() or old_weights):
        return renamed
    [(model, config)] = given
    weights = {name: renamed.pop(name, None) for name in ("loss", *_OLD_FIELDS)}
    fitting = [name for name in _LOSSES if weights[name] is not None]
    if fitting:
        loss, values = _LOSSES[fitting[0]], weights[fitting[0]]
    elif model in _MODEL_LOSSES:
        loss = _MODEL_LOSSES[model]
        values = weights.get(f"{loss}_loss")
    elif config.get("regions") is not None:
        loss, values = "regions", None
    elif config.get("joint"):
        loss, values = "worlds", None
    else:
        loss, values = "set", weights["loss"]
    return renamed | {"loss": {loss: values or {}}}


def _rename(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {
            name: item
            for name, item in value.items()
            if name not in _REMOVED or item != _REMOVED[name]
        }
        return {_RENAMED.get(name, name): _rename(item) for name, item in kept.items()}
    return [_rename(item) for item in value] if isinstance(value, list) else value
