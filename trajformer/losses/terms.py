"""The result of all losses: named terms and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch

Terms = dict[str, Tensor]  # scalars by name; only "loss" has a gradient


class ForecastLoss(nn.Module):
    """A loss of a model's forecast: calls `function(forecast, target, valid, config)`.

    A loss is a module `(model, batch) -> Terms` that the `build()` of its config returns. Losses with parameters, or with
    other inputs than a forecast, are separate modules (see `models/mmtransformer/loss.py`).
    """

    def __init__(self, function: Callable[[Any, Tensor, Tensor, Any], Terms], config: Any) -> None:
        super().__init__()
        self.function, self.config = function, config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        return self.function(model(batch.observation), batch.truth.position, batch.truth.valid, self.config)


def weigh(terms: Terms, weights: object) -> Tensor:
    """The weighted sum of terms; the weight of a term is the attribute of `weights` with its name."""
    return torch.stack([getattr(weights, name) * value for name, value in terms.items()]).sum()


def combine(last: Terms, earlier: Sequence[Terms], auxiliary: float, weighted_sum: Callable[[Terms], Tensor]) -> Terms:
    """Combine the terms of all decoder layers.

    Args:
        last: terms of the last layer.
        earlier: terms of the layers before it, first to last.
        auxiliary: weight of the mean of the earlier layers' weighted sums.
        weighted_sum: maps terms to their weighted sum.

    Returns:
        The terms of the last layer, detached; if there are earlier layers, the mean of their weighted sums as "auxiliary",
        detached; and the total "loss" with its gradient.
    """
    total, values = weighted_sum(last), dict(last)
    if earlier:
        values["auxiliary"] = torch.stack([weighted_sum(terms) for terms in earlier]).mean()
        total = total + auxiliary * values["auxiliary"]
    return {name: value.detach() for name, value in values.items()} | {"loss": total}
