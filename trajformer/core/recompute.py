"""Memory-efficient attention: weights are computed for a few heads at a time and recomputed in the backward pass.

Memory is linear in the number of tokens. `attend` uses it where the fused kernel cannot: for agent-aware scores, and for
dropout on a CPU. In a compiled graph the plain formula is used, since the compiler chooses the values to recompute;
other weights are dropped there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trajformer.core.dropout import keep_mask, keep_probability
from trajformer.core.groups import AgentAware, Groups

CHUNK_WEIGHTS = {"cpu": 2**18, "cuda": 2**26}  # weights computed at a time: they fit a CPU core's cache, or fill a GPU
MIN_SPAN, MAX_SPANS = 32, 4  # smallest number of queries in a span, largest number of spans
WeightFunction = Callable[[Tensor, Tensor, AgentAware | None, Tensor | None, float], Tensor]
_Index = tuple[slice, slice]


def recomputed_attention(
    weights: WeightFunction,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    agent_aware: AgentAware | None,
    dropout: float,
    scale: float,
) -> Tensor:
    """Weighted sums of values, differentiable.

    Args:
        weights: computes weights [n, L, S] from queries, keys, agent-aware scores, score bias [n, L or 1, S], and scale.
        query: [..., L, d_k].
        key: [..., S, d_k].
        value: [..., S, d_v].
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        agent_aware: scores between tokens of the same group.
        dropout: probability of dropping a weight.
        scale: factor on all products of queries and keys.

    Returns:
        [..., L, d_v]; zeros for a query with an empty mask row.
    """
    lead = query.shape[:-2]
    if not (query.numel() and key.numel()):
        return value.new_zeros(*query.shape[:-1], value.shape[-1])
    hidden = hidden_row = alive = None
    if mask is not None:
        mask = mask[(None,) * (query.ndim - mask.ndim)]
        alive, hidden = mask.any(-1, keepdim=True), ~mask.flatten(0, -3) if lead else ~mask[None]
        if len(hidden) > 1:
            hidden_row = torch.arange(len(hidden), device=mask.device).view(mask.shape[:-2]).expand(lead).flatten()
    seed = int(torch.randint(2**62, ())) if dropout and not torch.compiler.is_compiling() else 0
    groups = agent_aware.groups if agent_aware else None
    factor = 1.0 / (keep_probability(dropout, query.device) or 1.0)
    spans = query_spans(hidden, query.shape[-2], key.shape[-2], groups)
    plan = _Plan(weights, groups, hidden, hidden_row, dropout, seed, scale, factor, spans)
    parts = [query, key, value, *((agent_aware.query, agent_aware.key) if agent_aware else ())]
    flat = [x.expand(*lead, *x.shape[-2:]).reshape(lead.numel(), *x.shape[-2:]) for x in parts]  # [N, L or S, d]
    out = _plain_attention(plan, *flat) if torch.compiler.is_compiling() else _RecomputedAttention.apply(plan, *flat)
    out = out.view(*lead, query.shape[-2], value.shape[-1])
    return out if alive is None else out.masked_fill(~alive, 0.0)


def _plain_attention(plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *group_tokens: Tensor) -> Tensor:
    """The same result as `_RecomputedAttention`, from all weights at once."""
    bias = plan.bias(slice(0, query.shape[-2]), key.shape[-2], query.dtype)
    bias = bias if bias is None or plan.hidden_row is None else bias[plan.hidden_row]
    weight = plan.weights(query, key, plan.agent_aware(*group_tokens), bias, plan.scale)
    return F.dropout(weight, plan.dropout).to(value.dtype) @ value


def mask_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Score bias that gives hidden pairs (bool) zero weight, and a fully hidden row equal weights; faster than filling."""
    return hidden.view(torch.int8).to(dtype).mul_(torch.finfo(dtype).min / 2)


def query_spans(hidden: Tensor | None, queries: int, keys: int, groups: Groups | None) -> tuple[tuple[slice, int], ...]:
    """Spans of queries, each with the number of leading keys that it needs: half of a causal mask is skipped.

    On a GPU, where reading the mask would synchronize, and in a compiled graph there is one span with all keys.

    Args:
        hidden: bool [n, L or 1, S], True = may not attend.
        queries: L.
        keys: S.
        groups: spans and numbers of keys are multiples of the number of groups.
    """
    if hidden is None or hidden.device.type != "cpu" or torch.compiler.is_compiling() or (groups and any(groups.ungrouped)):
        return ((slice(0, queries), keys),)
    row, column = (groups.queries, groups.keys) if groups else (1, 1)
    size = queries if hidden.shape[-2] == 1 else -(-max(queries // MAX_SPANS, MIN_SPAN) // row) * row
    last = torch.where(hidden.all(0), 0, torch.arange(1, keys + 1)).amax(-1).tolist()
    spans = [slice(first, min(first + size, queries)) for first in range(0, queries, size)]
    ends = [max(last if len(last) == 1 else last[span]) for span in spans]
    return tuple((span, max(-(-end // column), 1) * column) for span, end in zip(spans, ends, strict=True))


@dataclass(frozen=True, eq=False)
class _Plan:
    """The non-differentiable inputs; N is the product of batch and heads.

    Attributes:
        weights, dropout, scale: as in `recomputed_attention`.
        groups: of the agent-aware scores, None without them.
        hidden: bool [n, L or 1, S], None without a mask.
        hidden_row: int64 [N] into `hidden`, None if n is 1.
        seed: of the dropped weights.
        factor: compensates for dropped weights.
        spans: from `query_spans`.
    """

    weights: WeightFunction
    groups: Groups | None
    hidden: Tensor | None
    hidden_row: Tensor | None
    dropout: float
    seed: int
    scale: float
    factor: float
    spans: tuple[tuple[slice, int], ...]

    def agent_aware(self, *group_tokens: Tensor) -> AgentAware | None:
        """The agent-aware scores of these queries and keys."""
        return None if self.groups is None else AgentAware(group_tokens[0], group_tokens[1], self.groups)

    def chunks(self, query: Tensor, key: Tensor, *group: Tensor) -> Iterator[tuple[_Index, _Index, Tensor, Tensor | None]]:
        """Indices of a chunk's queries and keys, its weights, and its dropout mask (None without dropout)."""
        generator = torch.Generator(query.device).manual_seed(self.seed) if self.dropout else None
        for span, end in self.spans:
            size = max(1, CHUNK_WEIGHTS.get(query.device.type, 2**22) // ((span.stop - span.start) * end))
            bias = self.bias(span, end, query.dtype)
            for first in range(0, len(query), size):
                part = slice(first, first + size)
                rows, columns = (part, span), (part, slice(0, end))
                agent_aware = None if self.groups is None else self.agent_aware(group[0][rows], group[1][columns])
                chunk_bias = bias if bias is None or self.hidden_row is None else bias[self.hidden_row[part]]
                weight = self.weights(query[rows], key[columns], agent_aware, chunk_bias, self.scale)
                keep = None
                if self.dropout:
                    keep = keep_mask(tuple(weight.shape), self.dropout, weight.device, weight.dtype, generator)
                yield rows, columns, weight, keep

    def bias(self, span: slice, end: int, dtype: torch.dtype) -> Tensor | None:
        """The score bias that hides pairs of these queries and the first `end` keys."""
        if self.hidden is None:
            return None
        return mask_bias(self.hidden[:, :, :end] if self.hidden.shape[1] == 1 else self.hidden[:, span, :end], dtype)


class _RecomputedAttention(torch.autograd.Function):
    """Plan, queries [N, L, d_k], keys [N, S, d_k], values [N, S, d_v] and optional group queries and keys -> [N, L, d_v]."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *group: Tensor) -> Tensor:
        """Weighted sums of the values."""
        out = value.new_empty(*query.shape[:2], value.shape[-1])
        for rows, columns, weight, keep in plan.chunks(query, key, *group):
            weight = weight if keep is None else weight.mul_(keep)
            _scaled_product(weight.to(value.dtype), value[columns], plan.factor, out=out[rows])
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, *group)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        plan: _Plan = ctx.plan
        query, key, value, out, *group = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        d_group = [x.new_zeros(x.shape) for x in group]
        mean = (gradient * out).sum(-1, keepdim=True)  # weighted mean of the weights' gradients, [N, L, 1]
        for rows, columns, weight, keep in plan.chunks(query, key, *group):
            dropped = weight if keep is None else weight * keep
            d_value[columns].baddbmm_(dropped.to(value.dtype).mT, gradient[rows], alpha=plan.factor)
            d_score = _scaled_product(gradient[rows], value[columns].mT, plan.factor).to(weight.dtype)
            d_score = d_score if keep is None else d_score.mul_(keep)
            d_score = d_score.sub_(mean[rows]).mul_(weight).to(query.dtype)  # half precision rounds only the difference
            if plan.groups is not None:
                tokens, gradients = (group[0][rows], group[1][columns]), (d_group[0][rows], d_group[1][columns])
                _move_group_gradients(plan.groups, plan.scale, d_score, tokens, gradients)
            _scaled_product(d_score, key[columns], plan.scale, out=d_query[rows])
            d_key[columns].baddbmm_(d_score.mT, query[rows], alpha=plan.scale)
        return None, d_query, d_key, d_value, *d_group


def _scaled_product(left: Tensor, right: Tensor, factor: float, *, out: Tensor | None = None) -> Tensor:
    """Batched matrix product times a factor."""
    ignored = left.new_empty(1, 1, 1) if out is None else out  # beta is 0
    return torch.baddbmm(ignored, left, right, beta=0.0, alpha=factor, out=out)


def _move_group_gradients(
    groups: Groups, scale: float, d_score: Tensor, group: tuple[Tensor, Tensor], d_group: tuple[Tensor, Tensor]
) -> None:
    """Add gradients of same-group scores in d_score [n, L, S] to the group queries and keys, and set them to zero."""
    pairs = groups.pairs(d_score)
    inside = pairs * scale
    pairs.zero_()
    groups.split(d_group[0], keys=False).copy_(inside @ groups.split(group[1], keys=True))
    groups.split(d_group[1], keys=True).add_(inside.mT @ groups.split(group[0], keys=False))
