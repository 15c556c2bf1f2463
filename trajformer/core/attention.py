"""Scaled dot-product attention, by the fused kernel or with recomputed weights.

This is the only module that applies softmax to attention scores or calls the fused kernel. Masks
are boolean, True = may attend. A query that may attend to no key gets exact zeros and finite
gradients.

The fused kernel cannot compute agent-aware scores, and is slow with dropout on a CPU. In these
cases, weights are computed for a few heads at a time and recomputed in the backward pass, so that
none are kept. In a compiled graph the plain formula is used, since the compiler chooses the values
to recompute; other weights are dropped there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trajformer.core.dropout import keep_mask, keep_probability

# Weights computed at a time: they fit the cache of a CPU core, or fill a GPU.
CHUNK_WEIGHTS = {"cpu": 2**18, "cuda": 2**26}
_OTHER_CHUNK_WEIGHTS = 2**22


class Groups(NamedTuple):
    """Groups in a flattened grid of tokens [T, G]: token i belongs to group i mod G.

    With agents over time a group holds all steps of one agent.

    Attributes:
        queries: G in the grid of queries, at most `keys`.
        keys: G in the grid of keys; equal indices denote the same group.
        ungrouped: numbers of last queries and last keys that belong to no group.
    """

    queries: int
    keys: int
    ungrouped: tuple[int, int] = (0, 0)

    @property
    def single(self) -> bool:
        """True if all tokens belong to one group."""
        return self.keys == 1 and not any(self.ungrouped)

    def split_queries(self, x: Tensor) -> Tensor:
        """Queries [..., L, d] by group, [..., G, T, d]."""
        grouped = x[..., : x.shape[-2] - self.ungrouped[0], :]
        return grouped.unflatten(-2, (-1, self.queries)).transpose(-3, -2)

    def split_keys(self, x: Tensor) -> Tensor:
        """Keys [..., S, d] of the groups that have queries, [..., G, T, d]."""
        grouped = x[..., : x.shape[-2] - self.ungrouped[1], :]
        by_group = grouped.unflatten(-2, (-1, self.keys)).transpose(-3, -2)
        return by_group[..., : self.queries, :, :]

    def pairs(self, x: Tensor) -> Tensor:
        """A view [..., G, Tq, Tk] of the pairs within a group, from all pairs [..., L, S]."""
        num_queries = x.shape[-2] - self.ungrouped[0]
        num_keys = x.shape[-1] - self.ungrouped[1]
        x = x[..., :num_queries, :num_keys]
        x = x.unflatten(-1, (-1, self.keys))  # [..., Tq * G, Tk, G of the keys]
        x = x.unflatten(-3, (-1, self.queries))  # [..., Tq, G, Tk, G of the keys]
        same_group = x[..., : self.queries].diagonal(dim1=-3, dim2=-1)  # [..., Tq, Tk, G]
        return same_group.movedim(-1, -3)


class AgentAware(NamedTuple):
    """Queries and keys that score pairs of tokens within a group (Yuan et al. 2021, section 3.1).

    `query` is [..., L, d_k] and `key` [..., S, d_k].
    """

    query: Tensor
    key: Tensor
    groups: Groups


# ---- attention -----------------------------------------------------------------------------------


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    agent_aware: AgentAware | None = None,
) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1).

    Args:
        query: [..., L, d_k].
        key: [..., S, d_k].
        value: [..., S, d_v]; d_v may differ from d_k.
        mask: bool, broadcastable to [..., L, S]; True = may attend.
        dropout: probability of dropping a weight; pass 0 in evaluation.
        agent_aware: scores that replace the scores between tokens of the same group.

    Returns:
        [..., L, d_v]; zeros for a query with an empty mask row.
    """
    if agent_aware is not None or (dropout and query.device.type == "cpu"):
        return _recomputed_attention(query, key, value, mask, dropout, agent_aware)
    if query.ndim > 4:
        return _attend_in_four_axes(query, key, value, mask, dropout)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    # A query with an empty row attends to all keys and its result is set to zero, so that no
    # backend gets an empty softmax.
    has_keys = mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask | ~has_keys, dropout_p=dropout
    )
    return out.masked_fill(~has_keys, 0.0)


def _attend_in_four_axes(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """`attend` for more than four axes: [B, *middle, L, d] becomes [B, heads, L, d].

    Four axes are the most that all kernels accept.
    """
    middle = query.shape[1:-2]
    if mask is not None:
        mask = _flatten_middle(mask, middle)
    query = _flatten_middle(query, middle)
    key = _flatten_middle(key, middle)
    value = _flatten_middle(value, middle)
    return attend(query, key, value, mask, dropout=dropout).unflatten(1, middle)


def _flatten_middle(x: Tensor, middle: torch.Size) -> Tensor:
    """[B, *middle, L, d] as four axes; `middle` axes of size 1 become one axis of size 1."""
    x = _with_axes(x, len(middle) + 3)
    if any(size > 1 for size in x.shape[1:-2]):
        x = x.expand(-1, *middle, -1, -1)
    return x.flatten(1, -3)


def _with_axes(x: Tensor, ndim: int) -> Tensor:
    """x with leading axes of size 1, so that it has `ndim` axes."""
    return x[(None,) * (ndim - x.ndim)]


def useful_mask(mask: Tensor) -> Tensor | None:
    """The mask, or None if a CPU sees that it allows everything: attention is faster without."""
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return mask
    if mask.all():
        return None
    return mask


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, agent_aware: AgentAware | None = None
) -> Tensor:
    """The weights [..., L, S] that `attend` applies, without dropout; zeros in empty rows.

    Arguments as for `attend`. They are computed separately from the fused kernel and change no
    output.
    """
    if mask is None:
        return _softmax_weights(query, key, agent_aware, None)
    bias = _mask_bias(~mask, query.dtype)
    return _softmax_weights(query, key, agent_aware, bias).masked_fill(~mask, 0.0)


def edge_softmax(score: Tensor, query: Tensor, count: int) -> Tensor:
    """Softmax over the edges of each query, in at least single precision.

    `score` is [E, heads] and `query` int64 [E], the query of each edge, below `count`.
    """
    from torch_geometric.utils import softmax  # slow to import

    dtype = torch.promote_types(score.dtype, torch.float32)
    return softmax(score.to(dtype), query, num_nodes=count)


# ---- weights -------------------------------------------------------------------------------------


def _softmax_weights(
    query: Tensor, key: Tensor, agent_aware: AgentAware | None, bias: Tensor | None
) -> Tensor:
    """Weights [..., L, S] of scores plus bias.

    PyTorch accumulates the softmax in at least single precision.
    """
    score = _scores(query, key)
    if agent_aware is not None:
        agent_aware.groups.pairs(score).copy_(_group_scores(agent_aware))
    if bias is not None:
        score = score.add_(bias)
    return score.softmax(-1)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """Scaled products [..., L, S] of queries [..., L, d] and keys [..., S, d]."""
    left = query.reshape(-1, *query.shape[-2:])
    right = key.reshape(-1, *key.shape[-2:])
    score = _scaled_product(left, right.mT, query.shape[-1] ** -0.5)
    return score.view(*query.shape[:-1], key.shape[-2])


def _group_scores(agent_aware: AgentAware) -> Tensor:
    """Scores [..., G, Tq, Tk] of the pairs within a group."""
    query, key, groups = agent_aware
    if query.shape[-2] == groups.queries:
        # With one query in each group, a large product of all pairs is faster than many small ones.
        return groups.pairs(_scores(query, key))
    return _scores(groups.split_queries(query), groups.split_keys(key))


def _mask_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Score bias that gives hidden pairs (bool) zero weight, and a fully hidden row equal weights.

    It is faster than filling.
    """
    lowest = torch.finfo(dtype).min / 2
    return hidden.view(torch.int8).to(dtype).mul_(lowest)


def _scaled_product(
    left: Tensor, right: Tensor, factor: float, *, out: Tensor | None = None
) -> Tensor:
    """Batched matrix product times a factor."""
    if out is None:
        unused = left.new_empty(1, 1, 1)  # beta is 0
        return torch.baddbmm(unused, left, right, beta=0.0, alpha=factor)
    return torch.baddbmm(out, left, right, beta=0.0, alpha=factor, out=out)


# ---- recomputed weights --------------------------------------------------------------------------


def _recomputed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    agent_aware: AgentAware | None,
) -> Tensor:
    """`attend` without the fused kernel."""
    lead = query.shape[:-2]
    if not (query.numel() and key.numel()):
        return value.new_zeros(*query.shape[:-1], value.shape[-1])

    # All leading axes become one; a mask that they share is not copied.
    groups = hidden = hidden_row = None
    if mask is not None:
        mask = _with_axes(mask, query.ndim)
        hidden = ~mask.reshape(-1, *mask.shape[-2:])
        if len(hidden) > 1:
            index = torch.arange(len(hidden), device=mask.device).view(mask.shape[:-2])
            hidden_row = index.expand(lead).flatten()
    flat = [_flatten_lead(x, lead) for x in (query, key, value)]
    if agent_aware is not None:
        groups = agent_aware.groups
        flat += [_flatten_lead(x, lead) for x in (agent_aware.query, agent_aware.key)]

    if torch.compiler.is_compiling():
        plan = _Plan(groups, hidden, hidden_row, dropout, seed=0)
        flat_query, flat_key, flat_value, *group = flat
        weight = plan.weights(slice(None), flat_query, flat_key, *group)
        out = F.dropout(weight, dropout).to(value.dtype) @ flat_value
    else:
        seed = int(torch.randint(2**62, ())) if dropout else 0
        plan = _Plan(groups, hidden, hidden_row, dropout, seed)
        out = _RecomputedAttention.apply(plan, *flat)
    out = out.view(*lead, query.shape[-2], value.shape[-1])
    if mask is None:
        return out
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def _flatten_lead(x: Tensor, lead: torch.Size) -> Tensor:
    """[..., L, d], broadcastable to [*lead, L, d], as [N, L, d]."""
    x = x.expand(*lead, *x.shape[-2:])
    return x.reshape(lead.numel(), *x.shape[-2:])


@dataclass(frozen=True, eq=False)
class _Plan:
    """The non-differentiable inputs of attention without the fused kernel.

    N is the product of all leading axes, such as batch and heads.
    """

    groups: Groups | None  # of the agent-aware scores
    hidden: Tensor | None  # bool [n, L or 1, S], True = may not attend
    hidden_row: Tensor | None  # int64 [N] into `hidden`, None if n is 1
    dropout: float  # probability of dropping a weight
    seed: int  # of the dropped weights

    def weights(self, rows: slice, query: Tensor, key: Tensor, *group: Tensor) -> Tensor:
        """Weights [n, L, S] of some rows of N.

        Queries are [N, L, d_k] and keys [N, S, d_k]; `group` holds group queries and keys, if any.
        """
        agent_aware = None
        if self.groups is not None:
            group_query, group_key = group
            agent_aware = AgentAware(group_query[rows], group_key[rows], self.groups)
        bias = None
        if self.hidden is not None:
            hidden = self.hidden
            if self.hidden_row is not None:
                hidden = hidden[self.hidden_row[rows]]
            bias = _mask_bias(hidden, query.dtype)
        return _softmax_weights(query[rows], key[rows], agent_aware, bias)

    def chunks(
        self, query: Tensor, key: Tensor, *group: Tensor
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Rows of a chunk, its weights, and its dropout mask (None without dropout).

        The forward and the backward pass drop the same weights, because the seed is the same.
        """
        device = query.device
        weights_per_row = query.shape[1] * key.shape[1]
        most = CHUNK_WEIGHTS.get(device.type, _OTHER_CHUNK_WEIGHTS)
        size = max(1, most // weights_per_row)
        generator = None
        if self.dropout:
            generator = torch.Generator(device).manual_seed(self.seed)
        for first in range(0, len(query), size):
            rows = slice(first, first + size)
            weight = self.weights(rows, query, key, *group)
            keep = None
            if self.dropout:
                shape = tuple(weight.shape)
                keep = keep_mask(shape, self.dropout, device, weight.dtype, generator)
            yield rows, weight, keep


class _RecomputedAttention(torch.autograd.Function):
    """Attention that computes its weights in the forward and again in the backward pass.

    Inputs are the plan, queries [N, L, d_k], keys [N, S, d_k], values [N, S, d_v] and, for
    agent-aware scores, group queries and keys. The output is [N, L, d_v].
    """

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *group: Tensor
    ) -> Tensor:
        """Weighted sums of the values."""
        out = value.new_empty(*query.shape[:2], value.shape[-1])
        probability = keep_probability(plan.dropout, query.device)
        ctx.factor = 1.0 / (probability or 1.0)  # compensates for dropped weights
        for rows, weight, keep in plan.chunks(query, key, *group):
            if keep is not None:
                weight = weight.mul_(keep)
            _scaled_product(weight.to(value.dtype), value[rows], ctx.factor, out=out[rows])
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, *group)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        plan = ctx.plan
        query, key, value, out, *group = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        d_query = torch.empty_like(query)
        d_key = torch.empty_like(key)
        d_value = torch.empty_like(value)
        d_group = [torch.zeros_like(x) for x in group]
        # The softmax subtracts from the gradient of each weight the weighted mean of its row.
        mean = (gradient * out).sum(-1, keepdim=True)  # [N, L, 1]
        for rows, weight, keep in plan.chunks(query, key, *group):
            dropped = weight if keep is None else weight * keep
            dropped = dropped.to(value.dtype)
            _scaled_product(dropped.mT, gradient[rows], ctx.factor, out=d_value[rows])

            d_score = _scaled_product(gradient[rows], value[rows].mT, ctx.factor)
            d_score = d_score.to(weight.dtype)
            if keep is not None:
                d_score = d_score.mul_(keep)
            d_score = d_score.sub_(mean[rows]).mul_(weight)
            d_score = d_score.to(query.dtype)  # half precision rounds only the difference
            if plan.groups is not None:
                chunk = [x[rows] for x in group]
                d_chunk = [x[rows] for x in d_group]
                _move_group_gradient(plan.groups, d_score, scale, chunk, d_chunk)
            _scaled_product(d_score, key[rows], scale, out=d_query[rows])
            _scaled_product(d_score.mT, query[rows], scale, out=d_key[rows])
        return None, d_query, d_key, d_value, *d_group


def _move_group_gradient(
    groups: Groups, d_score: Tensor, scale: float, group: list[Tensor], d_group: list[Tensor]
) -> None:
    """Pass the gradients of pairs within a group to the group queries and keys only.

    In place: the pairs are set to zero in `d_score` [n, L, S], and the gradients of the group
    queries and keys, `group`, are written to `d_group`.
    """
    pairs = groups.pairs(d_score)
    d_pairs = pairs * scale
    pairs.zero_()
    query, key = group
    d_query, d_key = d_group
    groups.split_queries(d_query).copy_(d_pairs @ groups.split_keys(key))
    groups.split_keys(d_key).copy_(d_pairs.mT @ groups.split_queries(query))
