"""Key/value caches for autoregressive decoding: a step computes keys and values for its new tokens only."""

from collections.abc import Callable

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one attention layer.

    Args:
        fixed: keys and values do not change (cross-attention to a memory): they are computed in the first step and reused.
            Otherwise (self-attention) the keys and values of each step are appended.
    """

    def __init__(self, *, fixed: bool = False) -> None:
        self.fixed = fixed
        self.key: Tensor | None = None  # [N, heads, S, d_k], None before the first step
        self.value: Tensor | None = None  # [N, heads, S, d_v], None before the first step

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return all keys and values; `project` computes the new ones and is called only if needed."""
        if self.fixed and self.key is not None and self.value is not None:
            return self.key, self.value
        key, value = project()
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], -2), torch.cat([self.value, value], -2)
        self.key, self.value = key, value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep rows int64 [N'] of the batch axis, in this order (the remaining hypotheses of a beam search)."""
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key[rows], self.value[rows]


class StaticKVCache(KVCache):
    """A cache with preallocated memory for a known number of keys; earlier keys are not copied.

    Keys are stored transposed, which makes their product with a few queries twice as fast.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """As `KVCache.update`, without gradients."""
        new = project()
        start = 0 if self.key is None else self.key.shape[-2]
        if self.key is None:
            lead, (width, value_width) = new[0].shape[:-2], (x.shape[-1] for x in new)
            keys = new[0].new_empty(*lead, width, self.length).mT
            self._buffers = [keys, new[1].new_empty(*lead, self.length, value_width)]
        end = start + new[0].shape[-2]
        for buffer, x in zip(self._buffers, new, strict=True):
            buffer[..., start:end, :] = x
        self.key, self.value = (buffer[..., :end, :] for buffer in self._buffers)
        return self.key, self.value


class DecoderCache:
    """Caches of all layers of a decoder: `layers[i]` has the caches of self-attention and cross-attention."""

    def __init__(self, layers: int) -> None:
        self.layers = [(KVCache(), KVCache(fixed=True)) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Number of decoded tokens."""
        key = self.layers[0][0].key if self.layers else None
        return 0 if key is None else key.shape[-2]

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """As `KVCache.select`; with `memory` False only for self-attention, for rows that share one memory."""
        for self_cache, cross_cache in self.layers:
            self_cache.select(rows)
            if memory:
                cross_cache.select(rows)
