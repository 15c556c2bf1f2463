"""Terms of a loss to one number: weighed and summed up, earlier decoder layers beside the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Terms = dict[str, Tensor]  # scalars by name


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
