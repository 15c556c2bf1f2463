"""Keys and values kept between the steps of an autoregressive decoder, so that a step costs one token and not the prefix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one attention layer.

    Args:
        fixed: what is attended to does not change (cross-attention to a memory): computed at the first step, then read.
            Otherwise (self-attention) each step's keys and values are appended to those of the steps before.

    Attributes:
        key: [N, heads, S, d_k] so far, None before the first step; `value` [N, heads, S, d_v] alike.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self.fixed = fixed
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """All keys and values to attend to now; `project` computes those of this step, where they are needed."""
        if self.fixed and self.key is not None and self.value is not None:
            return self.key, self.value
        key, value = project()
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], -2), torch.cat([self.value, value], -2)
        self.key, self.value = key, value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep rows int64 [N'] of the batch axis, in this order: hypotheses that a beam search goes on with."""
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key[rows], self.value[rows]


class StaticKVCache(KVCache):
    """A cache for a known number of keys: those of a step are written to their place, earlier ones are not copied.

    Keys lie feature by feature: their product with a few queries reads them in order, twice as fast.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """As `KVCache.update`, without gradients."""
        new = project()
        if self.key is None:
            lead, (width, value_width) = new[0].shape[:-2], (x.shape[-1] for x in new)
            self.room = [new[0].new_empty(*lead, width, self.length).mT, new[1].new_empty(*lead, self.length, value_width)]
        done = 0 if self.key is None else self.key.shape[-2]
        end = done + new[0].shape[-2]
        for room, x in zip(self.room, new, strict=True):
            room[..., done:end, :] = x
        self.key, self.value = (room[..., :end, :] for room in self.room)
        return self.key, self.value


class DecoderCache:
    """The caches of a decoder's layers: `layers[i]` holds those of self-attention and of cross-attention."""

    def __init__(self, layers: int) -> None:
        self.layers = [(KVCache(), KVCache(fixed=True)) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Tokens decoded so far."""
        key = self.layers[0][0].key if self.layers else None
        return 0 if key is None else key.shape[-2]

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """As `KVCache.select`; `memory` False leaves the cross-attentions alone: rows change places within one memory."""
        for own, cross in self.layers:
            own.select(rows)
            if memory:
                cross.select(rows)
