"""Attention whose weights are made for a few heads at a time, and once more for the gradient: none are kept.

So memory is linear in the tokens where no fused kernel helps: with a second term of the scores, and with dropped weights.
A compiled graph has the plain formula instead, and drops other weights: what to make again is its compiler's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trajformer.core.dropout import kept, kept_share
from trajformer.core.groups import AgentAware, Groups

_ENTRIES = {"cpu": 2**18, "cuda": 2**26}  # weights at a time: what fits the cache of a core, what keeps a GPU busy
_ROWS, _SPANS = 32, 4  # queries of a span at least, spans at most
Weigh = Callable[[Tensor, Tensor, AgentAware | None, Tensor | None, float], Tensor]
_Place = tuple[slice, slice]


def recomputed(
    weigh: Weigh,
    query: Tensor,
    key: Tensor,
    agent_aware: AgentAware | None,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float,
) -> Tensor:
    """Sums of values, weighted by `weigh`, with their gradient.

    Args:
        weigh: makes weights [n, L, S] of queries, keys, second term, what is added to scores [n, L or 1, S], and scale.
        query: [..., L, d_k].
        key: [..., S, d_k].
        agent_aware: a second term of the scores.
        value: [..., S, d_v].
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        dropout: probability of dropping a weight.
        scale: factor on all products of queries and keys.

    Returns:
        [..., L, d_v]; zeros for a query whose mask row is all False.
    """
    lead = query.shape[:-2]
    if not (query.numel() and key.numel()):
        return value.new_zeros(*query.shape[:-1], value.shape[-1])
    hidden = row = alive = None
    if mask is not None:
        mask = mask[(None,) * (query.ndim - mask.ndim)]
        alive, hidden = mask.any(-1, keepdim=True), ~mask.flatten(0, -3) if lead else ~mask[None]
        if len(hidden) > 1:
            row = torch.arange(len(hidden), device=mask.device).view(mask.shape[:-2]).expand(lead).flatten()
    seed = int(torch.randint(2**62, ())) if dropout and not torch.compiler.is_compiling() else 0
    groups = agent_aware.groups if agent_aware else None
    factor, spans = 1.0 / (kept_share(dropout, query.device) or 1.0), _spans(hidden, query.shape[-2], key.shape[-2], groups)
    plan = _Plan(weigh, groups, hidden, row, dropout, seed, scale, factor, spans)
    parts = [query, key, value, *((agent_aware.query, agent_aware.key) if agent_aware else ())]
    flat = [x.expand(*lead, *x.shape[-2:]).reshape(lead.numel(), *x.shape[-2:]) for x in parts]
    found = _plain(plan, *flat) if torch.compiler.is_compiling() else _Recomputed.apply(plan, *flat)
    out = found.view(*lead, query.shape[-2], value.shape[-1])
    return out if alive is None else out.masked_fill(~alive, 0.0)


def _plain(plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *agent_aware: Tensor) -> Tensor:
    """What `_Recomputed` gives, with all weights at once."""
    shift = plan.shift(slice(0, query.shape[-2]), key.shape[-2], query.dtype)
    shift = shift if shift is None or plan.row is None else shift[plan.row]
    term = None if plan.groups is None else AgentAware(agent_aware[0], agent_aware[1], plan.groups)
    return F.dropout(plan.weigh(query, key, term, shift, plan.scale), plan.dropout).to(value.dtype) @ value


def shift_of(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores so that hidden pairs (bool) have no weight, and a row of them equal ones; quicker than filling."""
    return hidden.view(torch.int8).to(dtype).mul_(torch.finfo(dtype).min / 2)


def _spans(hidden: Tensor | None, queries: int, keys: int, groups: Groups | None) -> tuple[tuple[slice, int], ...]:
    """Parts of the queries, each with the number of keys beyond which it may attend to none: half of a causal mask is nothing.

    On a GPU, where looking would keep it waiting, and in a compiled graph all queries and all keys.
    """
    whole = ((slice(0, queries), keys),)
    if hidden is None or hidden.device.type != "cpu" or torch.compiler.is_compiling() or (groups and any(groups.ungrouped)):
        return whole
    row, column = (groups.queries, groups.keys) if groups else (1, 1)
    size = queries if hidden.shape[-2] == 1 else -(-max(queries // _SPANS, _ROWS) // row) * row
    last = torch.where(hidden.all(0), 0, torch.arange(1, keys + 1)).amax(-1).tolist()
    parts = [slice(first, min(first + size, queries)) for first in range(0, queries, size)]
    ends = [max(last if len(last) == 1 else last[part]) for part in parts]
    return tuple((part, max(-(-end // column), 1) * column) for part, end in zip(parts, ends, strict=True))


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is done beside the products; N is batch and heads together.

    Attributes:
        weigh, dropout, scale: as above.
        factor: makes up for dropped weights.
        groups: of the second term, None without it.
        hidden: bool [M, L or 1, S], None where nothing is.
        row: int64 [N] into `hidden`, None where M is 1.
        seed: of what is dropped.
        spans: parts of the queries and how many keys concern each.
    """

    weigh: Weigh
    groups: Groups | None
    hidden: Tensor | None
    row: Tensor | None
    dropout: float
    seed: int
    scale: float
    factor: float
    spans: tuple[tuple[slice, int], ...]

    def pieces(self, query: Tensor, key: Tensor, *agent_aware: Tensor) -> Iterator[tuple[_Place, _Place, Tensor, Tensor | None]]:
        """Places of some queries and of their keys, the weights, and what these are multiplied by where some are dropped."""
        generator = torch.Generator(query.device).manual_seed(self.seed) if self.dropout else None
        for rows, end in self.spans:
            size = max(1, _ENTRIES.get(query.device.type, 2**22) // ((rows.stop - rows.start) * end))
            shift = self.shift(rows, end, query.dtype)
            for first in range(0, len(query), size):
                part = slice(first, first + size)
                asks, gives = (part, rows), (part, slice(0, end))
                term = None if self.groups is None else AgentAware(agent_aware[0][asks], agent_aware[1][gives], self.groups)
                its = shift if shift is None or self.row is None else shift[self.row[part]]
                weight = self.weigh(query[asks], key[gives], term, its, self.scale)
                drop = self.dropout, weight.device, weight.dtype, generator
                yield asks, gives, weight, kept(tuple(weight.shape), *drop) if self.dropout else None

    def shift(self, rows: slice, end: int, dtype: torch.dtype) -> Tensor | None:
        """What hides pairs of these queries and the first `end` keys."""
        if self.hidden is None:
            return None
        return shift_of(self.hidden[:, :, :end] if self.hidden.shape[1] == 1 else self.hidden[:, rows, :end], dtype)


class _Recomputed(torch.autograd.Function):
    """A plan, queries [N, L, d_k], keys [N, S, d_k], values [N, S, d_v], agent-aware queries and keys, to [N, L, d_v]."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *agent_aware: Tensor) -> Tensor:
        """Weighted sums of the values."""
        out = value.new_empty(*query.shape[:2], value.shape[-1])
        for asks, gives, weight, keep in plan.pieces(query, key, *agent_aware):
            weight = weight if keep is None else weight.mul_(keep)
            _product(out[asks], weight.to(value.dtype), value[gives], plan.factor)
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, *agent_aware)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        plan: _Plan = ctx.plan
        query, key, value, out, *agent_aware = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        d_own = [x.new_zeros(x.shape) for x in agent_aware]
        mean = (gradient * out).sum(-1, keepdim=True)  # of the weights' gradients, over what a query attends to
        for asks, gives, weight, keep in plan.pieces(query, key, *agent_aware):
            left = weight if keep is None else weight * keep
            d_value[gives].baddbmm_(left.to(value.dtype).mT, gradient[asks], alpha=plan.factor)
            score = _product(None, gradient[asks], value[gives].mT, plan.factor).to(weight.dtype)
            score = score if keep is None else score.mul_(keep)
            score = score.sub_(mean[asks]).mul_(weight).to(query.dtype)  # half precision rounds the difference alone
            if plan.groups is not None:
                term = [agent_aware[0][asks], agent_aware[1][gives]], [d_own[0][asks], d_own[1][gives]]
                _own_gradients(plan, score, *term)
            _product(d_query[asks], score, key[gives], plan.scale)
            d_key[gives].baddbmm_(score.mT, query[asks], alpha=plan.scale)
        return None, d_query, d_key, d_value, *d_own


def _product(out: Tensor | None, left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Products of matrices times a factor, written to `out`."""
    unread = left.new_empty(1, 1, 1) if out is None else out
    return torch.baddbmm(unread, left, right, beta=0.0, alpha=factor, out=out)


def _own_gradients(plan: _Plan, score: Tensor, agent_aware: list[Tensor], into: list[Tensor]) -> None:
    """Take the gradients of pairs of one group out of those of all scores [n, L, S], and add what follows from them."""
    groups = plan.groups
    assert groups is not None
    pairs = groups.pairs(score)
    inside = pairs * plan.scale
    pairs.zero_()
    groups.split(into[0], keys=False).copy_(inside @ groups.split(agent_aware[1], keys=True))
    groups.split(into[1], keys=True).add_(inside.mT @ groups.split(agent_aware[0], keys=False))
