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

from trajformer.core.dropout import dropped, kept_share
from trajformer.core.groups import Groups, Own

_ENTRIES = {"cpu": 2**18, "cuda": 2**26}  # weights at a time: what fits the cache of a core, what keeps a GPU busy
Weigh = Callable[[Tensor, Tensor, Own | None, Tensor | None], Tensor]


def recomputed(
    weigh: Weigh, query: Tensor, key: Tensor, own: Own | None, value: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """Sums of values, weighted by `weigh`, with their gradient.

    Args:
        weigh: makes weights [n, L, S] of queries, keys, the second term and bool [n, L or 1, S], which pairs are hidden.
        query: [..., L, d_k], scaled; those of `own`, too.
        key: [..., S, d_k].
        own: a second term of the scores.
        value: [..., S, d_v].
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        dropout: probability of dropping a weight.

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
    plan = _Plan(weigh, own.groups if own else None, hidden, row, dropout, seed)
    parts = [query, key, value, *((own.query, own.key) if own else ())]
    flat = [x.expand(*lead, *x.shape[-2:]).reshape(lead.numel(), *x.shape[-2:]) for x in parts]
    found = _plain(plan, *flat) if torch.compiler.is_compiling() else _Recomputed.apply(plan, *flat)
    out = found.view(*lead, query.shape[-2], value.shape[-1])
    return out if alive is None else out.masked_fill(~alive, 0.0)


def _plain(plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *own: Tensor) -> Tensor:
    """What `_Recomputed` gives, with all weights at once."""
    hidden = plan.hidden if plan.hidden is None or plan.row is None else plan.hidden[plan.row]
    term = None if plan.groups is None else Own(own[0], own[1], plan.groups)
    return F.dropout(plan.weigh(query, key, term, hidden), plan.dropout).to(value.dtype) @ value


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is done beside the products; N is batch and heads together.

    Attributes:
        weigh, dropout: as above.
        groups: of the second term, None without it.
        hidden: bool [M, L or 1, S], None where nothing is.
        row: int64 [N] into `hidden`, None where M is 1.
        seed: of what is dropped.
    """

    weigh: Weigh
    groups: Groups | None
    hidden: Tensor | None
    row: Tensor | None
    dropout: float
    seed: int

    def pieces(self, query: Tensor, key: Tensor, *own: Tensor) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Part of the N, its weights, and which of these are dropped."""
        size = max(1, _ENTRIES.get(query.device.type, 2**22) // (query.shape[1] * key.shape[1]))
        generator = torch.Generator(query.device).manual_seed(self.seed) if self.dropout else None
        for first in range(0, len(query), size):
            part = slice(first, first + size)
            hidden = self.hidden if self.hidden is None or self.row is None else self.hidden[self.row[part]]
            term = None if self.groups is None else Own(own[0][part], own[1][part], self.groups)
            weight = self.weigh(query[part], key[part], term, hidden)
            gone = dropped(tuple(weight.shape), self.dropout, weight.device, generator) if self.dropout else None
            yield part, weight, gone


class _Recomputed(torch.autograd.Function):
    """A plan, queries [N, L, d_k], keys [N, S, d_k], values [N, S, d_v], own queries and keys or nothing, to [N, L, d_v]."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *own: Tensor) -> Tensor:
        """Weighted sums of the values."""
        out = value.new_empty(*query.shape[:2], value.shape[-1])
        for part, weight, gone in plan.pieces(query, key, *own):
            weight = weight if gone is None else weight.masked_fill_(gone, 0.0)
            torch.bmm(weight.to(value.dtype), value[part], out=out[part])
        out /= kept_share(plan.dropout, out.device) or 1.0
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, *own)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        plan: _Plan = ctx.plan
        query, key, value, out, *own = ctx.saved_tensors
        d_query, d_key, d_value = (x.new_empty(x.shape) for x in (query, key, value))
        d_own = [x.new_zeros(x.shape) for x in own]
        mean = (gradient * out).sum(-1, keepdim=True)  # of the weights' gradients, over what a query attends to
        gradient = gradient / (kept_share(plan.dropout, out.device) or 1.0)
        for part, weight, gone in plan.pieces(query, key, *own):
            kept = weight if gone is None else weight.masked_fill(gone, 0.0)
            torch.bmm(kept.to(value.dtype).mT, gradient[part], out=d_value[part])
            score = torch.bmm(gradient[part], value[part].mT).to(weight.dtype).mul_(kept)
            score = score.addcmul_(weight, mean[part].to(weight.dtype), value=-1.0).to(value.dtype)
            if plan.groups is not None:
                _own_gradients(plan.groups, score, [x[part] for x in own], [x[part] for x in d_own])
            torch.bmm(score, key[part], out=d_query[part])
            torch.bmm(score.mT, query[part], out=d_key[part])
        return None, d_query, d_key, d_value, *d_own


def _own_gradients(groups: Groups, score: Tensor, own: list[Tensor], into: list[Tensor]) -> None:
    """Take the gradients of pairs of one group out of those of all scores [n, L, S], and write what follows from them."""
    pairs = groups.pairs(score)
    inside = pairs.clone(memory_format=torch.contiguous_format)
    pairs.zero_()
    groups.split(into[0], keys=False).copy_(inside @ groups.split(own[1], keys=True))
    groups.split(into[1], keys=True).copy_(inside.mT @ groups.split(own[0], keys=False))
