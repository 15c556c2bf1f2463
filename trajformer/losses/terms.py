"""The result of all losses: named terms and their weighted sum."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from trajformer.config import Config
from trajformer.data.batch import SceneBatch

Terms = dict[str, Tensor]  # scalars by name; only "loss" has a gradient


@dataclass(frozen=True)
class LossConfig(Config):
    """Base class of the configs of losses.

    A loss is a module `(model, batch) -> Terms` that `build()` returns. A loss without parameters
    only defines `terms`; a loss with parameters is a separate module (see
    `models/mmtransformer/region_loss.py`).
    """

    def build(self) -> nn.Module:
        """The loss with these weights."""
        return ModelLoss(self)

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        raise NotImplementedError


@dataclass(frozen=True)
class MatchedLossConfig(LossConfig, positive=("huber_m",)):
    """Weights of losses that train matched modes or worlds.

    Attributes:
        cost_ade, cost_fde: the matching cost.
        regression: smooth L1 of the matched positions.
        endpoint: additional smooth L1 of the last position.
        classification: cross-entropy towards the match.
        huber_m: error in metres at which smooth L1 changes from quadratic to linear.
        auxiliary: weight of the mean loss of earlier decoder layers.
    """

    cost_ade: float = 0.5
    cost_fde: float = 1.0
    regression: float = 1.0
    endpoint: float = 0.2
    classification: float = 1.0
    huber_m: float = 1.0
    auxiliary: float = 0.5


class ModelLoss(nn.Module):
    """The loss `config.terms(model, batch)`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        return self.config.terms(model, batch)


def total(weight: Tensor, minimum: float = 1.0) -> Tensor:
    """The sum of weights (bool or float), at least `minimum`: the divisor of a mean over a batch.

    With several processes it is the mean of their sums. The mean of their losses, and of their
    gradients, then is the one of all scenes together, also if the processes have different numbers
    of agents.
    """
    value = weight.sum()
    if not (distributed.is_available() and distributed.is_initialized()):
        return value.clamp(min=minimum)
    value = value.float()
    distributed.all_reduce(value)
    return value.clamp(min=minimum) / distributed.get_world_size()


def weigh(terms: Terms, config: object) -> Tensor:
    """The weighted sum of terms; the weight of a term is the attribute of `config` of its name."""
    weighted = [getattr(config, name) * value for name, value in terms.items()]
    return torch.stack(weighted).sum()


def combine(
    layers: Sequence[Terms], config: Any, weigh: Callable[[Terms, Any], Tensor] = weigh
) -> Terms:
    """Combine the terms of all decoder layers: the last layer, then the layers before it.

    Returns the terms of the last layer, detached; if there are earlier layers, the mean of their
    weighted sums as "auxiliary", detached; and the total "loss" with its gradient, in which
    `config.auxiliary` is the weight of that mean.
    """
    last, *earlier = layers
    loss = weigh(last, config)
    values = dict(last)
    if earlier:
        auxiliary = torch.stack([weigh(terms, config) for terms in earlier]).mean()
        values["auxiliary"] = auxiliary
        loss = loss + config.auxiliary * auxiliary
    detached = {name: value.detach() for name, value in values.items()}
    return detached | {"loss": loss}
