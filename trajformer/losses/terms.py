"""What all losses return, and how their terms are weighted and added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch

Terms = dict[str, Tensor]  # scalars by name; "loss" is the only one with a gradient


class ForecastLoss(nn.Module):
    """A loss of a model's forecast: calls `function(forecast, target, valid, config)`.

    A loss is a module `(model, batch) -> Terms`, and its config's `build()` makes it. Losses with parameters of their own, or of
    more than a forecast, are modules of their own (see `models/mmtransformer/loss.py`).
    """

    def __init__(self, function: Callable[[Any, Tensor, Tensor, Any], Terms], config: Any) -> None:
        super().__init__()
        self.function, self.config = function, config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        return self.function(model(batch.observation), batch.truth.position, batch.truth.valid, self.config)


def weigh(terms: Terms, weights: object) -> Tensor:
    """The sum of terms, each times the attribute of `weights` that has its name."""
    return torch.stack([getattr(weights, name) * value for name, value in terms.items()]).sum()


def combine(last: Terms, earlier: Sequence[Terms], auxiliary: float, weighed: Callable[[Terms], Tensor]) -> Terms:
    """What a loss returns.

    Args:
        last: terms of the last decoder layer.
        earlier: those of the layers before it, first to last.
        auxiliary: weight of the mean of these layers' sums.
        weighed: terms to their weighted sum.

    Returns:
        The last layer's terms and, where there are earlier layers, the mean of their sums as "auxiliary", all detached; and
        "loss", the weighted sum with its gradient.
    """
    total, values = weighed(last), dict(last)
    if earlier:
        values["auxiliary"] = torch.stack([weighed(terms) for terms in earlier]).mean()
        total = total + auxiliary * values["auxiliary"]
    return {name: value.detach() for name, value in values.items()} | {"loss": total}
