"""Which loss a forecaster is trained with: the one place that knows them all.

To add a loss: write its file with a config, add that to `LossConfig`, a field of its kind to `TrainConfig`, its name to
`losses_of` for the models that it is made for, and a case to `Objective`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.errors import TrajformerError
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.losses.worlds import WorldLossConfig, world_loss
from trajformer.models import AgentFormer, AgentFormerSampler, MMTransformer, ModelConfig, SceneSet
from trajformer.models.agentformer.loss import CVAELossConfig, SamplerLossConfig, cvae_loss, sampler_loss
from trajformer.models.mmtransformer.loss import TERMS, RegionLossConfig, region_loss
from trajformer.models.scene_set.loss import SceneSetLossConfig, scene_set_loss

LossConfig = (
    SetLossConfig
    | MixtureLossConfig
    | RegionLossConfig
    | WorldLossConfig
    | SceneSetLossConfig
    | CVAELossConfig
    | SamplerLossConfig
)
# Losses that are given on purpose; the weights of all others are in every recipe.
CHOSEN = {
    "mixture_loss": MixtureLossConfig,
    "region_loss": RegionLossConfig,
    "world_loss": WorldLossConfig,
    "scene_set_loss": SceneSetLossConfig,
}


def losses_of(model: ModelConfig) -> tuple[str, ...]:
    """Names of the fields of the losses that a model can be trained with, first the one that it is trained with by default."""
    if model.mmtransformer is not None and model.mmtransformer.regions is not None:
        return ("region_loss",)
    if any(one is not None and one.joint for one in (model.mmtransformer, model.gatformer)):
        return ("world_loss",)
    if model.wayformer is not None:
        return ("loss", "mixture_loss")
    own = {"agentformer": "cvae_loss", "agentformer_sampler": "sampler_loss", "scene_set": "scene_set_loss"}
    return next(((loss,) for name, loss in own.items() if getattr(model, name) is not None), ("loss",))


def choose(model: ModelConfig, weights: Mapping[str, LossConfig | None]) -> LossConfig:
    """The one loss that a recipe is about.

    Args:
        model: what is trained.
        weights: of all losses, by the names of their fields.

    Raises:
        TrajformerError: a loss is given that is not for this model, or several are.
    """
    fitting, given = losses_of(model), [name for name in CHOSEN if weights[name] is not None]
    if len(given) > 1:
        raise TrajformerError(f"{given[0]}: a recipe has one loss, and this one {given[1]}, too")
    if given and given[0] not in fitting:
        raise TrajformerError(f"{given[0]}: is not for this model, which is trained with {' or '.join(fitting)}")
    name = (given or fitting)[0]
    return weights[name] or CHOSEN[name]()


class Objective(nn.Module):
    """The loss of a model and a batch, with what it learns itself, if anything."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.config = config
        learns = isinstance(config, RegionLossConfig)
        self.log_variance = nn.Parameter(torch.zeros(len(TERMS))) if learns else None

    def forward(self, model: nn.Module, batch: SceneBatch) -> dict[str, Tensor]:
        """The loss ("loss") and its terms by name."""
        config, truth = self.config, (batch.target, batch.target_valid)
        match config:
            case SetLossConfig():
                return set_loss(model(batch), *truth, config)
            case MixtureLossConfig():
                return mixture_loss(model(batch), *truth, config)
            case WorldLossConfig():
                return world_loss(model(batch), *truth, config)
            case RegionLossConfig():
                assert isinstance(model, MMTransformer) and model.regions is not None and self.log_variance is not None
                return region_loss(model(batch), *truth, model.regions, self.log_variance, config)
            case SceneSetLossConfig():
                assert isinstance(model, SceneSet)
                start = batch.pose[:, : batch.num_targets, :2]
                return scene_set_loss(model.trajectories(batch), start, *truth, config)
            case CVAELossConfig():
                assert isinstance(model, AgentFormer)
                return cvae_loss(model.reconstruct(batch), *truth, model.config.scale_m, config)
            case SamplerLossConfig():
                assert isinstance(model, AgentFormerSampler)
                return sampler_loss(model(batch), *truth, model.config.cvae.scale_m, config)
