"""Scaled dot-product attention and multi-head attention.

This is the only module that applies softmax to attention scores or calls the fused kernel. Masks are boolean, True = may
attend. A query that may attend to no key gets exact zeros and finite gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.cache import KVCache
from trajformer.core.groups import AgentAware, Groups
from trajformer.core.recompute import mask_bias, recomputed_attention


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
        value: [..., S, d_v]; d_v may differ from d_k.
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        scale: factor on the scores, d_k ** -0.5 by default.
        dropout: probability of dropping a weight; pass 0 in evaluation.
        agent_aware: scores that replace the scores between tokens of the same group.

    Returns:
        [..., L, d_v]; zeros for a query with an empty mask row.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if agent_aware is not None or (dropout and query.device.type == "cpu"):
        return recomputed_attention(
            _softmax_weights, query, key, value, mask, agent_aware=agent_aware, dropout=dropout, scale=scale
        )
    if query.ndim > 4:
        lead = query.shape[1:-2]
        mask = None if mask is None else _to_four_axes(mask, lead)
        query, key, value = (_to_four_axes(x, lead) for x in (query, key, value))
        return attend(query, key, value, mask, scale=scale, dropout=dropout).unflatten(1, lead)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale)
    alive = mask.any(-1, keepdim=True)
    # A query with an empty row attends to all keys and its result is set to zero: no backend gets an empty softmax.
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~alive, dropout_p=dropout, scale=scale)
    return out.masked_fill(~alive, 0.0)


def _softmax_weights(query: Tensor, key: Tensor, agent_aware: AgentAware | None, bias: Tensor | None, scale: float) -> Tensor:
    """Weights [..., L, S] of scores plus bias; PyTorch accumulates the softmax in at least single precision."""
    score = _scores(query, key, scale)
    if agent_aware is not None:
        group_query, group_key, groups = agent_aware
        if query.shape[-2] == groups.queries:  # one large product is faster than many products with a single row
            group_score = groups.pairs(_scores(group_query, group_key, scale))
        else:
            group_score = _scores(groups.split(group_query, keys=False), groups.split(group_key, keys=True), scale)
        groups.pairs(score).copy_(group_score)
    return (score if bias is None else score.add_(bias)).softmax(-1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products [..., L, S] of queries [..., L, d] and keys [..., S, d]."""
    left, right = (x.reshape(-1, *x.shape[-2:]) for x in (query, key))
    ignored = query.new_empty(1, 1, 1)  # beta is 0
    return torch.baddbmm(ignored, left, right.mT, beta=0.0, alpha=scale).view(*query.shape[:-1], key.shape[-2])


def _to_four_axes(x: Tensor, lead: torch.Size) -> Tensor:
    """[B, *lead, L, d] as [B, heads, L, d], the most axes that all kernels accept; `lead` axes of size 1 become one axis."""
    x = x[(None,) * (len(lead) + 3 - x.ndim)]
    x = x.expand(-1, *lead, -1, -1) if any(size > 1 for size in x.shape[1:-2]) else x
    return x.flatten(1, -3)


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, scale: float | None = None, agent_aware: AgentAware | None = None
) -> Tensor:
    """The weights [..., L, S] that `attend` applies, without dropout, for plotting; zeros in empty rows.

    Arguments as for `attend`. They are computed separately from the fused kernel and change no output.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = _softmax_weights(query, key, agent_aware, None if mask is None else mask_bias(~mask, query.dtype), scale)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def edge_softmax(score: Tensor, query: Tensor, count: int) -> Tensor:
    """Softmax of scores [E, heads] over the edges of each query, int64 [E] below `count`; at least single precision."""
    from torch_geometric.utils import softmax  # slow to import

    return softmax(score.to(torch.promote_types(score.dtype, torch.float32)), query, num_nodes=count)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with free key and value widths (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: D, the width of queries and output.
        heads: number of heads.
        d_k: width of a head's queries and keys, D / heads by default.
        d_v: width of a head's values, d_k by default.
        bias: use biases in the projections.
        dropout: on the weights, in training.
        agent_aware: add a second pair of query and key projections that scores tokens of the same group (AgentFormer).

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

    def _projections(self, groups: Groups | None) -> list[tuple[nn.Linear, nn.Linear]]:
        """The pairs of projections (query, key) in use. If all tokens are in one group, only the second pair is used."""
        if self.own_query is None or self.own_key is None or groups is None:
            return [(self.query, self.key)]
        second = (self.own_query, self.own_key)
        return [second] if groups.single else [(self.query, self.key), second]

    def _keys(self, key: Tensor, groups: Groups | None) -> Tensor:
        """[..., S, D] to the concatenated keys of all pairs of projections, [..., heads, S, pairs * d_k]."""
        keys = [self._split(layer(key)) for _, layer in self._projections(groups)]
        return keys[0] if len(keys) == 1 else torch.cat(keys, -1)

    def _queries(self, query: Tensor, keys: Tensor, groups: Groups | None) -> tuple[Tensor, Tensor, AgentAware | None]:
        """Queries, keys and agent-aware scores for `attend`, from queries [..., L, D] and the keys of `_keys`."""
        queries = [self._split(layer(query)) for layer, _ in self._projections(groups)]
        (first_query, first_key), *second = zip(queries, keys.chunk(len(queries), -1), strict=True)
        return first_query, first_key, AgentAware(*second[0], groups) if groups and second else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """Attend from `query` [..., L, D] to `key` [..., S, D] and `value` [..., S, D] (the key by default).

        Position encodings that apply to queries and keys only (DETR) are added by the caller. Queries may have one more axis,
        [..., K, L, D]: K sets of queries share keys that are projected once.

        Args:
            mask: bool, broadcastable to [..., L, S]; for padding [B, S] pass mask[:, None].
            cache: keys and values of earlier steps; S of the mask includes them.
            groups: groups of tokens; ignored by a layer that is not agent-aware.

        Returns:
            [..., L, D]; a row with no key to attend to gives the output projection's bias.
        """

        def project() -> tuple[Tensor, Tensor]:
            return self._keys(key, groups), self._split(self.value(key if value is None else value))

        keys, values = project() if cache is None else cache.update(project)
        sets = query.ndim > key.ndim
        tokens, mask = _fold_sets(query, mask, sets)
        q, k, agent_aware = self._queries(tokens, keys, groups)
        dropout = self.dropout if self.training else 0.0
        out = self._join(attend(q, k, values, mask, dropout=dropout, agent_aware=agent_aware))
        return out.unflatten(-2, query.shape[-3:-1]) if sets else out

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """The weights [..., heads, L, S] of `forward` with the same arguments, without dropout; a cache is not changed."""
        sets = query.ndim > key.ndim
        tokens, mask = _fold_sets(query, mask, sets)
        keys = self._keys(key, groups) if cache is None or cache.key is None else cache.key
        q, k, agent_aware = self._queries(tokens, keys, groups)
        weights = attention_weights(q, k, mask, agent_aware=agent_aware)
        return weights.unflatten(-2, query.shape[-3:-1]).transpose(-4, -3) if sets else weights


def _fold_sets(query: Tensor, mask: Tensor | None, sets: bool) -> tuple[Tensor, Tensor | None]:
    """Sets of queries [..., K, L, D] as [..., K * L, D], and the mask with an axis for the heads."""
    if sets and mask is not None and mask.shape[-2] > 1:
        mask = mask.unsqueeze(-3).expand(*mask.shape[:-2], query.shape[-3], *mask.shape[-2:]).flatten(-3, -2)
    return query.flatten(-3, -2) if sets else query, None if mask is None else mask.unsqueeze(-3)
