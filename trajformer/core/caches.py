"""Caches of keys and values, for autoregressive decoding."""

from collections.abc import Callable

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one attention layer.

    New tokens are appended at each step (self-attention), unless the cache is `fixed`
    (cross-attention).

    Attributes:
        key: [N, heads, S, d_k], None before the first step.
        value: [N, heads, S, d_v], None before the first step.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self.fixed = fixed
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return all keys and values.

        `project` computes the new ones and is called only if needed.
        """
        if self.fixed and self.key is not None and self.value is not None:
            return self.key, self.value
        key, value = project()
        if self.key is not None and self.value is not None:
            key = torch.cat([self.key, key], -2)
            value = torch.cat([self.value, value], -2)
        self.key = key
        self.value = value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep rows int64 [N'] of the batch axis, in this order.

        These are the remaining hypotheses of a beam search.
        """
        if self.key is not None and self.value is not None:
            self.key = self.key[rows]
            self.value = self.value[rows]


class StaticKVCache(KVCache):
    """A cache with preallocated memory for `length` keys; earlier keys are not copied.

    Keys are stored transposed, which makes their product with a few queries twice as fast.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """As `KVCache.update`, without gradients."""
        key, value = project()
        start = 0
        if self.key is None:
            lead = key.shape[:-2]
            self._keys = key.new_empty(*lead, key.shape[-1], self.length).mT
            self._values = value.new_empty(*lead, self.length, value.shape[-1])
        else:
            start = self.key.shape[-2]
        end = start + key.shape[-2]
        self._keys[..., start:end, :] = key
        self._values[..., start:end, :] = value
        self.key = self._keys[..., :end, :]
        self.value = self._values[..., :end, :]
        return self.key, self.value
