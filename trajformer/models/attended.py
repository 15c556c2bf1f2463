"""Attention of targets to agents and lanes: an interface of models that have such layers.

A model overrides `Forecaster.attention_layers` and states for each layer which rows of its weights
belong to which target, and which agent or piece of a polyline each token is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trajformer.core.multihead import RecordedLayer, recording
from trajformer.data.batch import Observation


@dataclass(frozen=True, eq=False)
class TargetAttention:
    """A layer in which targets attend to agents and pieces of polylines.

    Attributes:
        name: shown to users, such as "decoder 2"; unique in a model.
        layer: the attention.
        by_target: from the weights of one call, as recorded, to the shares [B, S, heads, A + M] of
            the A agents and M pieces of the observation in the attention of each target. Shares of
            a head sum to 1, or to 0 if the target had nothing to attend to.
    """

    name: str
    layer: RecordedLayer
    by_target: Callable[[Tensor], Tensor]


@contextmanager
def recorded_attention(layers: Sequence[TargetAttention]) -> Iterator[list[Tensor]]:
    """Record the shares [B, S, heads, A + M] of each layer during one forward pass.

    A layer that is called several times, such as in a rollout, has the mean over its calls. The
    list is filled at the end of the context. Outputs of the model do not change.
    """
    sums = [torch.zeros(())] * len(layers)
    calls = [0] * len(layers)
    shares: list[Tensor] = []

    def add(index: int, weights: Tensor) -> None:
        sums[index] = sums[index] + layers[index].by_target(weights)
        calls[index] += 1

    with recording({one.layer: partial(add, index) for index, one in enumerate(layers)}):
        yield shares
    for total, count in zip(sums, calls, strict=True):
        shares.append(total / max(count, 1))


def to_agents_and_pieces(
    observation: Observation,
    agents: tuple[Tensor, Tensor] | None = None,
    pieces: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Add up the weights of tokens of the same agent or piece: [B, S, heads, A + M].

    Both arguments are weights [B, S, heads, n] and int64 [B, S, n], the agent or piece of each
    token, broadcastable to [B, S, n]; None means zeros.
    """
    parts = []
    counts = (observation.agent_mask.shape[1], observation.polyline_mask.shape[1])
    for given, count in zip((agents, pieces), counts, strict=True):
        if given is None:
            present = agents or pieces
            assert present is not None
            parts.append(present[0].new_zeros(*present[0].shape[:-1], count))
            continue
        weights, index = given
        total = weights.new_zeros(*weights.shape[:-1], count)
        parts.append(total.scatter_add(-1, index[:, :, None].expand_as(weights), weights))
    return torch.cat(parts, -1)
