"""The result of all losses: named terms and their weighted sum."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch

Terms = dict[str, Tensor]  # scalars by name; only "loss" has a gradient


class ForecastLoss(nn.Module):
    """A loss of a model's forecast: calls `function(forecast, target, valid, config)`.

    A loss is a module `(model, batch) -> Terms` that the `build()` of its config returns. Losses with parameters are separate
    modules (see `models/mmtransformer.py`).
    """

    def __init__(self, function: Callable[[Any, Tensor, Tensor, Any], Terms], config: Any) -> None:
        super().__init__()
        self.function, self.config = function, config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        return self.function(model(batch.observation), batch.truth.position, batch.truth.valid, self.config)


class ModelLoss(nn.Module):
    """A loss without parameters that needs more than a forecast: `config.terms(model, batch)`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        return self.config.terms(model, batch)


def weigh(terms: Terms, config: object) -> Tensor:
    """The weighted sum of terms; the weight of a term is the attribute of `config` with its name."""
    return torch.stack([getattr(config, name) * value for name, value in terms.items()]).sum()


def combine(layers: Sequence[Terms], config: Any, weigh: Callable[[Terms, Any], Tensor] = weigh) -> Terms:
    """Combine the terms of all decoder layers.

    Args:
        layers: terms of the last layer, then of the layers before it.
        config: `config.auxiliary` is the weight of the mean of the earlier layers' weighted sums.
        weigh: maps terms and config to a weighted sum.

    Returns:
        The terms of the last layer, detached; if there are earlier layers, the mean of their weighted sums as "auxiliary",
        detached; and the total "loss" with its gradient.
    """
    total, values = weigh(layers[0], config), dict(layers[0])
    if len(layers) > 1:
        values["auxiliary"] = torch.stack([weigh(terms, config) for terms in layers[1:]]).mean()
        total = total + config.auxiliary * values["auxiliary"]
    return {name: value.detach() for name, value in values.items()} | {"loss": total}
