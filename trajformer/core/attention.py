"""Attention, written once: the only module that calls softmax over scores or the fused kernel.

Masks are boolean, True = may attend. A query with nothing to attend gives exact zeros and finite gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.cache import KVCache
from trajformer.core.groups import AgentAware, Groups
from trajformer.core.recompute import recomputed, shift_of


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    agent_aware: AgentAware | None = None,
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1) on the fused kernel.

    Args:
        query: [..., L, d_k].
        key: [..., S, d_k].
        value: [..., S, d_v]; d_v need not be d_k.
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        scale: factor on the scores, d_k ** -0.5 by default.
        dropout: probability of dropping a weight; pass 0 in evaluation.
        agent_aware: what scores pairs of one group instead.

    Returns:
        [..., L, d_v]; zeros for a query whose mask row is all False.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if agent_aware is not None or (dropout and query.device.type == "cpu"):
        return recomputed(_weigh, query, key, agent_aware, value, mask, dropout, scale)
    if query.ndim > 4:
        lead = query.shape[1:-2]
        mask = None if mask is None else _four_axes(mask, lead)
        query, key, value = (_four_axes(x, lead) for x in (query, key, value))
        return attend(query, key, value, mask, scale=scale, dropout=dropout).unflatten(1, lead)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale)
    alive = mask.any(-1, keepdim=True)
    # An empty row attends to everything and is then cut away: no backend sees a softmax over nothing.
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~alive, dropout_p=dropout, scale=scale)
    return out.masked_fill(~alive, 0.0)


def _weigh(query: Tensor, key: Tensor, agent_aware: AgentAware | None, shift: Tensor | None, scale: float) -> Tensor:
    """Softmax over scores and what is added to them; PyTorch computes it in single precision at least."""
    score = _scores(query, key, scale)
    if agent_aware is not None:
        asks, gives, groups = agent_aware
        if query.shape[-2] == groups.queries:  # many products of one row are slower than a large one
            inside = groups.pairs(_scores(asks, gives, scale))
        else:
            inside = _scores(groups.split(asks, keys=False), groups.split(gives, keys=True), scale)
        groups.pairs(score).copy_(inside)
    return (score if shift is None else score.add_(shift)).softmax(-1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products [..., L, S] of queries [..., L, d] and keys [..., S, d]."""
    left, right = (x.reshape(-1, *x.shape[-2:]) for x in (query, key))
    unread = query.new_empty(1, 1, 1)
    return torch.baddbmm(unread, left, right.mT, beta=0.0, alpha=scale).view(*query.shape[:-1], key.shape[-2])


def _four_axes(x: Tensor, lead: torch.Size) -> Tensor:
    """[B, *lead, L, d] as [B, heads, L, d], for kernels that know no more axes; what has size 1 in all of them keeps it."""
    x = x[(None,) * (len(lead) + 3 - x.ndim)]
    x = x.expand(-1, *lead, -1, -1) if any(size > 1 for size in x.shape[1:-2]) else x
    return x.flatten(1, -3)


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, scale: float | None = None, agent_aware: AgentAware | None = None
) -> Tensor:
    """The weights [..., L, S] that `attend` uses (without dropout), for pictures; rows with an empty mask are zero.

    Arguments as for `attend`. Computed beside the fused kernel, so that asking for weights changes no output.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = _weigh(query, key, agent_aware, None if mask is None else shift_of(~mask, query.dtype), scale)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def edge_softmax(score: Tensor, query: Tensor, count: int) -> Tensor:
    """Softmax of scores [E, heads] over the edges of each query, int64 [E] below `count`, in single precision at least."""
    from torch_geometric.utils import softmax  # here alone: importing it takes seconds

    return softmax(score.to(torch.promote_types(score.dtype, torch.float32)), query, num_nodes=count)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with free key and value widths (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: D, of queries and of the output.
        heads: number of heads.
        d_k: width of a head's queries and keys, D / heads by default.
        d_v: width of a head's values, d_k by default.
        bias: biases in the projections.
        dropout: on the weights, in training.
        agent_aware: further projections of queries and keys score pairs of one group (agent-aware attention, AgentFormer).

    Raises:
        ValueError: heads does not divide width and no d_k is given.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        agent_aware: bool = False,
    ) -> None:
        super().__init__()
        if d_k is None and width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}; give d_k")
        d_k = d_k or width // heads
        self.heads, self.dropout = heads, dropout
        self.query, self.key = (nn.Linear(width, heads * d_k, bias=bias) for _ in range(2))
        self.value = nn.Linear(width, heads * (d_v or d_k), bias=bias)
        self.out: nn.Module = nn.Linear(heads * (d_v or d_k), width, bias=bias)
        self.own_query, self.own_key = (nn.Linear(width, heads * d_k, bias=bias) if agent_aware else None for _ in range(2))
        for layer in self.children():
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # [..., L, D] -> [..., heads, L, d]

    def _join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(-3, -2).flatten(-2))  # [..., heads, L, d] -> [..., L, D]

    def _terms(self, groups: Groups | None) -> list[tuple[nn.Linear, nn.Linear]]:
        """The projections (query, key) in use; where all tokens are of one group those of the first term are not."""
        first, own_query, own_key = [(self.query, self.key)], self.own_query, self.own_key
        if own_query is None or own_key is None or groups is None:
            return first
        return [(own_query, own_key)] if groups.single else [*first, (own_query, own_key)]

    def _keys(self, key: Tensor, groups: Groups | None) -> Tensor:
        """[..., S, D] to the keys of all terms side by side [..., heads, S, terms * d_k]."""
        keys = [self._split(layer(key)) for _, layer in self._terms(groups)]
        return keys[0] if len(keys) == 1 else torch.cat(keys, -1)

    def _scored(self, query: Tensor, keys: Tensor, groups: Groups | None) -> tuple[Tensor, Tensor, AgentAware | None]:
        """What `attend` takes for queries [..., L, D] and the keys of `_keys`."""
        queries = [self._split(layer(query)) for layer, _ in self._terms(groups)]
        terms = list(zip(queries, keys.chunk(len(queries), -1), strict=True))
        return *terms[0], AgentAware(*terms[1], groups) if groups and len(terms) > 1 else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """Attend from `query` [..., L, D] to `key` [..., S, D], reading `value` [..., S, D] (the key by default).

        Positions that belong to queries and keys alone (DETR) are added by the caller to those two. Queries may have one axis
        more, [..., K, L, D]: K sets of them share keys that are projected once.

        Args:
            mask: bool, broadcastable to [..., L, S]; for padding [B, S] pass mask[:, None].
            cache: what earlier steps have attended to; then S of the mask counts those keys, too.
            groups: which pairs have their own score term, where the layer has one.

        Returns:
            [..., L, D]; a row with nothing to attend gives the output projection's bias.
        """

        def project() -> tuple[Tensor, Tensor]:
            return self._keys(key, groups), self._split(self.value(key if value is None else value))

        k, v = project() if cache is None else cache.update(project)
        tokens, mask = _fold(query, mask, query.ndim > key.ndim)
        q, k, agent_aware = self._scored(tokens, k, groups)
        found = self._join(attend(q, k, v, mask, dropout=self.dropout if self.training else 0.0, agent_aware=agent_aware))
        return found.unflatten(-2, query.shape[-3:-1]) if query.ndim > key.ndim else found

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """The weights [..., heads, L, S] of `forward` with the same arguments, without dropout; a cache is read, not filled."""
        tokens, mask = _fold(query, mask, query.ndim > key.ndim)
        q, k, agent_aware = self._scored(
            tokens, self._keys(key, groups) if cache is None or cache.key is None else cache.key, groups
        )
        weights = attention_weights(q, k, mask, agent_aware=agent_aware)
        return weights.unflatten(-2, query.shape[-3:-1]).transpose(-4, -3) if query.ndim > key.ndim else weights


def _fold(query: Tensor, mask: Tensor | None, sets: bool) -> tuple[Tensor, Tensor | None]:
    """Queries [..., K, L, D] as [..., K * L, D] where there are sets of them, and the mask with an axis for heads."""
    if sets and mask is not None and mask.shape[-2] > 1:
        mask = mask.unsqueeze(-3).expand(*mask.shape[:-2], query.shape[-3], *mask.shape[-2:]).flatten(-3, -2)
    return query.flatten(-3, -2) if sets else query, None if mask is None else mask.unsqueeze(-3)
