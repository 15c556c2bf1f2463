"""The base class of all models, and a model together with its batch settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.losses.set_loss import SetLossConfig


class Forecaster(nn.Module):
    """A module `Observation -> Forecast`, in training and in evaluation.

    Attributes:
        losses: classes of the loss configs that the model can be trained with, the default first.
        joint: mode k of all targets is one joint future of the scene, with one probability.
        equivariant: predictions are SE(2)-equivariant: a rotated and shifted scene has rotated and shifted predictions. If
            False, predictions are translation-equivariant only.
        partial: a training step may leave some parameters without a gradient (several devices then need to be told).
        needs_first_stage: `prepare` needs a trained model of another kind (`first_stage` of a recipe).
    """

    losses: tuple[type[Any], ...] = (SetLossConfig,)
    joint: bool = False
    equivariant: bool = True
    partial: bool = False
    needs_first_stage: bool = False

    def prepare(self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None) -> None:
        """Compute what the model needs from the training data, once, before training starts. The default does nothing.

        Results belong into parameters or buffers, so that checkpoints contain them. The same arguments must give the same
        results: a resumed run calls this again, and so does every process of a distributed run.

        Args:
            scenes: the training scenes.
            seed: of the recipe.
            first_stage: the model of the recipe's `first_stage`, if it has one.

        Raises:
            TrajformerError: the data or the first stage cannot be used.
        """


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model that is ready to run.

    Attributes:
        model: in evaluation mode, on `device`.
        batch: how scenes become its input.
        device: of the model.
        trained_on: the training split of its recipe, empty for a model without training.
    """

    model: nn.Module
    batch: BatchConfig = field(default_factory=BatchConfig)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    trained_on: str = ""
