"""Scaled dot-product attention and multi-head attention.

This is the only module that applies softmax to attention scores or calls the fused kernel. Masks are boolean, True = may
attend. A query that may attend to no key gets exact zeros and finite gradients.

The fused kernel cannot compute agent-aware scores, and is slow with dropout on a CPU. There, weights are computed for a few
heads at a time and recomputed in the backward pass, so that none are kept. In a compiled graph the plain formula is used,
since the compiler chooses the values to recompute; other weights are dropped there.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trajformer.core.dropout import keep_mask, keep_probability

CHUNK_WEIGHTS = {
    "cpu": 2**18,
    "cuda": 2**26,
}  # weights computed at a time: they fit a CPU core's cache, or fill a GPU


class Groups(NamedTuple):
    """Groups in a flattened grid of tokens [T, G]: token i belongs to group i mod G.

    With agents over time a group holds all steps of one agent.
    """

    queries: int  # G in the grid of queries, at most `keys`
    keys: int  # G in the grid of keys; equal indices denote the same group
    ungrouped: tuple[int, int] = (
        0,
        0,
    )  # numbers of last queries and last keys that belong to no group

    @property
    def single(self) -> bool:
        """True if all tokens belong to one group."""
        return self.keys == 1 and not any(self.ungrouped)

    def split(self, x: Tensor, *, keys: bool) -> Tensor:
        """Queries [..., L, d] or keys [..., S, d] by group, [..., G, T, d]; G is the number of query groups."""
        count = self.keys if keys else self.queries
        x = x[..., : x.shape[-2] - self.ungrouped[keys], :].unflatten(
            -2, (-1, count)
        )  # [..., T, G, d]
        return x.transpose(-3, -2)[..., : self.queries, :, :]

    def pairs(self, x: Tensor) -> Tensor:
        """A view [..., G, Tq, Tk] of the pairs within a group, from all pairs [..., L, S]."""
        x = x[..., : x.shape[-2] - self.ungrouped[0], : x.shape[-1] - self.ungrouped[1]]
        grid = x.unflatten(-1, (-1, self.keys)).unflatten(
            -3, (-1, self.queries)
        )  # [..., Tq, G, Tk, G of the keys]
        return grid[..., : self.queries].diagonal(dim1=-3, dim2=-1).movedim(-1, -3)


class AgentAware(NamedTuple):
    """Queries [..., L, d_k] and keys [..., S, d_k] that score pairs of tokens within a group (Yuan et al. 2021, section 3.1)."""

    query: Tensor
    key: Tensor
    groups: Groups


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
        lead = query.shape[1:-2]
        mask = None if mask is None else _to_four_axes(mask, lead)
        query, key, value = (_to_four_axes(x, lead) for x in (query, key, value))
        return attend(query, key, value, mask, dropout=dropout).unflatten(1, lead)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    alive = mask.any(-1, keepdim=True)
    # A query with an empty row attends to all keys and its result is set to zero: no backend gets an empty softmax.
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask | ~alive, dropout_p=dropout
    )
    return out.masked_fill(~alive, 0.0)


def useful_mask(mask: Tensor) -> Tensor | None:
    """The mask, or None if a CPU sees that it allows everything: attention is faster without one."""
    if mask.device.type != "cpu" or torch.compiler.is_compiling() or not mask.all():
        return mask
    return None


def _to_four_axes(x: Tensor, lead: torch.Size) -> Tensor:
    """[B, *lead, L, d] as [B, heads, L, d], the most axes that all kernels accept; `lead` axes of size 1 become one axis."""
    x = x[(None,) * (len(lead) + 3 - x.ndim)]
    x = x.expand(-1, *lead, -1, -1) if any(size > 1 for size in x.shape[1:-2]) else x
    return x.flatten(1, -3)


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, agent_aware: AgentAware | None = None
) -> Tensor:
    """The weights [..., L, S] that `attend` applies, without dropout, for plotting; zeros in empty rows.

    Arguments as for `attend`. They are computed separately from the fused kernel and change no output.
    """
    if mask is None:
        return _softmax_weights(query, key, agent_aware, None)
    return _softmax_weights(query, key, agent_aware, _mask_bias(~mask, query.dtype)).masked_fill(
        ~mask, 0.0
    )


def edge_softmax(score: Tensor, query: Tensor, count: int) -> Tensor:
    """Softmax of scores [E, heads] over the edges of each query, int64 [E] below `count`; at least single precision."""
    from torch_geometric.utils import softmax  # slow to import

    return softmax(
        score.to(torch.promote_types(score.dtype, torch.float32)), query, num_nodes=count
    )


def _mask_bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Score bias that gives hidden pairs (bool) zero weight, and a fully hidden row equal weights; faster than filling."""
    return hidden.view(torch.int8).to(dtype).mul_(torch.finfo(dtype).min / 2)


def _softmax_weights(
    query: Tensor, key: Tensor, agent_aware: AgentAware | None, bias: Tensor | None
) -> Tensor:
    """Weights [..., L, S] of scores plus bias; PyTorch accumulates the softmax in at least single precision."""
    score = _scores(query, key)
    if agent_aware is not None:
        group_query, group_key, groups = agent_aware
        if (
            query.shape[-2] == groups.queries
        ):  # one large product is faster than many products with a single row
            group_score = groups.pairs(_scores(group_query, group_key))
        else:
            group_score = _scores(
                groups.split(group_query, keys=False), groups.split(group_key, keys=True)
            )
        groups.pairs(score).copy_(group_score)
    return (score if bias is None else score.add_(bias)).softmax(-1)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """Scaled products [..., L, S] of queries [..., L, d] and keys [..., S, d]."""
    left, right = (x.reshape(-1, *x.shape[-2:]) for x in (query, key))
    return _scaled_product(left, right.mT, query.shape[-1] ** -0.5).view(
        *query.shape[:-1], key.shape[-2]
    )


def _scaled_product(
    left: Tensor, right: Tensor, factor: float, *, out: Tensor | None = None
) -> Tensor:
    """Batched matrix product times a factor."""
    ignored = left.new_empty(1, 1, 1) if out is None else out  # beta is 0
    return torch.baddbmm(ignored, left, right, beta=0.0, alpha=factor, out=out)


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
    hidden = row = None
    if mask is not None:
        mask = mask[(None,) * (query.ndim - mask.ndim)]
        hidden = ~mask.flatten(0, -3) if lead else ~mask[None]
        if len(hidden) > 1:
            row = (
                torch.arange(len(hidden), device=mask.device)
                .view(mask.shape[:-2])
                .expand(lead)
                .flatten()
            )
    compiling = torch.compiler.is_compiling()
    seed = int(torch.randint(2**62, ())) if dropout and not compiling else 0
    plan = _Plan(agent_aware.groups if agent_aware else None, hidden, row, dropout, seed)
    parts = [query, key, value, *((agent_aware.query, agent_aware.key) if agent_aware else ())]
    flat = [
        x.expand(*lead, *x.shape[-2:]).reshape(lead.numel(), *x.shape[-2:]) for x in parts
    ]  # [N, L or S, d]
    if compiling:
        weight = plan.weights(slice(None), flat[0], flat[1], *flat[3:])
        out = F.dropout(weight, dropout).to(value.dtype) @ flat[2]
    else:
        out = _RecomputedAttention.apply(plan, *flat)
    out = out.view(*lead, query.shape[-2], value.shape[-1])
    return out if mask is None else out.masked_fill(~mask.any(-1, keepdim=True), 0.0)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The non-differentiable inputs of attention without the fused kernel; N is the product of batch and heads."""

    groups: Groups | None  # of the agent-aware scores
    hidden: Tensor | None  # bool [n, L or 1, S], True = may not attend
    row: Tensor | None  # int64 [N] into `hidden`, None if n is 1
    dropout: float  # probability of dropping a weight
    seed: int  # of the dropped weights

    def weights(self, rows: slice, query: Tensor, key: Tensor, *group: Tensor) -> Tensor:
        """Weights [n, L, S] of these rows of queries [N, L, d_k], keys [N, S, d_k], and group queries and keys."""
        agent_aware = (
            None if self.groups is None else AgentAware(group[0][rows], group[1][rows], self.groups)
        )
        hidden = (
            self.hidden if self.hidden is None or self.row is None else self.hidden[self.row[rows]]
        )
        bias = None if hidden is None else _mask_bias(hidden, query.dtype)
        return _softmax_weights(query[rows], key[rows], agent_aware, bias)

    def chunks(
        self, query: Tensor, key: Tensor, *group: Tensor
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Rows of a chunk, its weights, and its dropout mask (None without dropout)."""
        generator = torch.Generator(query.device).manual_seed(self.seed) if self.dropout else None
        size = max(
            1, CHUNK_WEIGHTS.get(query.device.type, 2**22) // (query.shape[1] * key.shape[1])
        )
        for first in range(0, len(query), size):
            rows, keep = slice(first, first + size), None
            weight = self.weights(rows, query, key, *group)
            if self.dropout:
                keep = keep_mask(
                    tuple(weight.shape), self.dropout, weight.device, weight.dtype, generator
                )
            yield rows, weight, keep


class _RecomputedAttention(torch.autograd.Function):
    """Plan, queries [N, L, d_k], keys [N, S, d_k], values [N, S, d_v] and optional group queries and keys -> [N, L, d_v]."""

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, query: Tensor, key: Tensor, value: Tensor, *group: Tensor
    ) -> Tensor:
        """Weighted sums of the values."""
        out = value.new_empty(*query.shape[:2], value.shape[-1])
        ctx.factor = 1.0 / (
            keep_probability(plan.dropout, query.device) or 1.0
        )  # compensates for dropped weights
        for rows, weight, keep in plan.chunks(query, key, *group):
            weight = weight if keep is None else weight.mul_(keep)
            _scaled_product(weight.to(value.dtype), value[rows], ctx.factor, out=out[rows])
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, *group)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all tensors."""
        plan, groups, scale = ctx.plan, ctx.plan.groups, ctx.saved_tensors[0].shape[-1] ** -0.5
        query, key, value, out, *group = ctx.saved_tensors
        d_query, d_key, d_value = (torch.empty_like(x) for x in (query, key, value))
        d_group = [torch.zeros_like(x) for x in group]
        mean = (gradient * out).sum(
            -1, keepdim=True
        )  # weighted mean of the weights' gradients, [N, L, 1]
        for rows, weight, keep in plan.chunks(query, key, *group):
            dropped = weight if keep is None else weight * keep
            _scaled_product(
                dropped.to(value.dtype).mT, gradient[rows], ctx.factor, out=d_value[rows]
            )
            d_score = _scaled_product(gradient[rows], value[rows].mT, ctx.factor).to(weight.dtype)
            d_score = d_score if keep is None else d_score.mul_(keep)
            d_score = (
                d_score.sub_(mean[rows]).mul_(weight).to(query.dtype)
            )  # half precision rounds only the difference
            if (
                groups is not None
            ):  # pairs within a group pass their gradients to the group queries and keys only
                pairs = groups.pairs(d_score)
                inside = pairs * scale
                pairs.zero_()
                groups.split(d_group[0][rows], keys=False).copy_(
                    inside @ groups.split(group[1][rows], keys=True)
                )
                groups.split(d_group[1][rows], keys=True).copy_(
                    inside.mT @ groups.split(group[0][rows], keys=False)
                )
            _scaled_product(d_score, key[rows], scale, out=d_query[rows])
            _scaled_product(d_score.mT, query[rows], scale, out=d_key[rows])
        return None, d_query, d_key, d_value, *d_group


class KVCache:
    """Keys and values of one attention layer: appended at each step (self-attention), or `fixed` (cross-attention)."""

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
        self.recorded: Callable[[Tensor], None] | None = (
            None  # receives the weights of each call, see `recorded_weights`
        )
        self.query, self.key = (nn.Linear(width, heads * d_k, bias=bias) for _ in range(2))
        self.value = nn.Linear(width, heads * (d_v or d_k), bias=bias)
        self.out: nn.Module = nn.Linear(heads * (d_v or d_k), width, bias=bias)
        self.own_query, self.own_key = (
            nn.Linear(width, heads * d_k, bias=bias) if agent_aware else None for _ in range(2)
        )
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def _split(self, x: Tensor) -> Tensor:
        """[..., L, D] to [N, heads, L, d]; N is the product of the leading axes, because kernels accept four axes."""
        *lead, length, width = x.shape
        return x.reshape(math.prod(lead), length, self.heads, width // self.heads).transpose(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(-3, -2).flatten(-2))  # [N, heads, L, d] -> [N, L, D]

    def _projections(self, groups: Groups | None) -> list[tuple[nn.Linear, nn.Linear]]:
        """The pairs of projections (query, key) in use. If all tokens are in one group, only the second pair is used."""
        if self.own_query is None or self.own_key is None or groups is None:
            return [(self.query, self.key)]
        second = (self.own_query, self.own_key)
        return [second] if groups.single else [(self.query, self.key), second]

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
        pairs = self._projections(groups)

        def project() -> tuple[Tensor, Tensor]:
            keys = [self._split(layer(key)) for _, layer in pairs]
            keys_of_pairs = (
                keys[0] if len(keys) == 1 else torch.cat(keys, -1)
            )  # [N, heads, S, pairs * d_k]
            return keys_of_pairs, self._split(self.value(key if value is None else value))

        keys, values = project() if cache is None else cache.update(project)
        lead, sets = key.shape[:-2], query.shape[-3:-1] if query.ndim > key.ndim else None
        if sets is not None:  # K sets of L queries are K * L queries
            if mask is not None and mask.shape[-2] > 1:
                mask = (
                    mask.unsqueeze(-3)
                    .expand(*mask.shape[:-2], sets[0], *mask.shape[-2:])
                    .flatten(-3, -2)
                )
            query = query.flatten(-3, -2)
        if mask is not None:
            mask = mask.unsqueeze(-3)
            mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4) if len(lead) > 1 else mask
        queries = [self._split(layer(query)) for layer, _ in pairs]
        (first_query, first_key), *second = zip(queries, keys.chunk(len(pairs), -1), strict=True)
        agent_aware = AgentAware(*second[0], groups) if groups and second else None
        if self.recorded is not None:
            with torch.no_grad():
                weights = attention_weights(first_query, first_key, mask, agent_aware)
                weights = weights.view(*lead, *weights.shape[1:])
                self.recorded(
                    weights if sets is None else weights.unflatten(-2, sets).transpose(-4, -3)
                )
        dropout = self.dropout if self.training else 0.0
        out = self._join(
            attend(first_query, first_key, values, mask, dropout=dropout, agent_aware=agent_aware)
        )
        out = out.view(*lead, *out.shape[1:])
        return out if sets is None else out.unflatten(-2, sets)


class SeparateLinear(nn.Module):
    """A separate linear layer for each set: [..., sets, L, inputs] -> [..., sets, L, outputs].

    Biases start with small random values, so that sets with equal inputs have different outputs from the first step.
    """

    def __init__(self, sets: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(sets, inputs, outputs))
        self.bias = nn.Parameter(0.02 * torch.randn(sets, 1, outputs))
        for weight in self.weight.detach():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., sets, L, inputs] -> [..., sets, L, outputs]."""
        return torch.einsum("...sli,sio->...slo", x, self.weight) + self.bias


class SeparateAttention(MultiHeadAttention):
    """`sets` multi-head attentions (Huang et al. 2022: one for each mode): queries [..., L, D] -> [..., sets, L, D].

    Up to the output projection it is one attention with sets * heads heads, ordered by set; each has width D / heads. Raises
    ValueError: heads does not divide width.
    """

    def __init__(self, width: int, heads: int, sets: int, *, dropout: float = 0.0) -> None:
        if width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}")
        super().__init__(width, sets * heads, d_k=width // heads, dropout=dropout)
        self.sets = sets
        self.out = SeparateLinear(sets, width, width)
        for layer in (self.query, self.key, self.value):
            for weight in layer.weight.detach().chunk(sets):
                nn.init.xavier_uniform_(weight)  # the initialisation of a separate layer

    def _join(self, x: Tensor) -> Tensor:
        return self.out(
            x.unflatten(-3, (self.sets, -1)).transpose(-3, -2).flatten(-2)
        )  # [..., sets * heads, L, d]


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of all `MultiHeadAttention` layers in `model` inside the context, for plotting. Outputs do not change.

    Yields the weights [..., heads, L, S] of each call without dropout, detached, by the name of the `MultiHeadAttention` in
    `model`; [..., K, heads, L, S] for K sets of queries.
    """
    record: dict[str, list[Tensor]] = {}
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    }
    for name, layer in layers.items():
        layer.recorded = lambda weights, name=name: record.setdefault(name, []).append(weights)
    try:
        yield record
    finally:
        for layer in layers.values():
            layer.recorded = None
