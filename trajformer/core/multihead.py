"""Multi-head attention, and the recording of its weights."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trajformer.core.attention import AgentAware, Groups, attend, attention_weights
from trajformer.core.caches import KVCache
from trajformer.errors import TrajformerWarning


class RecordedLayer(nn.Module):
    """An attention layer with weights that `recorded_weights` can record.

    Attributes:
        recorded: receives the weights of each call inside the context, otherwise None.
    """

    recorded: Callable[[Tensor], None] | None = None


class MultiHeadAttention(RecordedLayer):
    """Multi-head attention with free key and value widths (Vaswani et al. 2017, section 3.2.2).

    Args:
        width: D, the width of queries and output.
        heads: number of heads.
        d_k: width of a head's queries and keys, D / heads by default.
        d_v: width of a head's values, d_k by default.
        bias: use biases in the projections.
        dropout: on the weights, in training.
        agent_aware: add a second pair of query and key projections that scores tokens of the same
            group (AgentFormer).

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
        d_v = d_v or d_k
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, heads * d_k, bias=bias)
        self.key = nn.Linear(width, heads * d_k, bias=bias)
        self.value = nn.Linear(width, heads * d_v, bias=bias)
        self.out: nn.Module = nn.Linear(heads * d_v, width, bias=bias)
        # Between tokens of the same group, these replace `query` and `key`.
        self.own_query: nn.Linear | None = None
        self.own_key: nn.Linear | None = None
        if agent_aware:
            self.own_query = nn.Linear(width, heads * d_k, bias=bias)
            self.own_key = nn.Linear(width, heads * d_k, bias=bias)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """Attend from `query` [..., L, D] to `key` and `value` [..., S, D] (the key by default).

        Position encodings that apply to queries and keys only (DETR) are added by the caller.
        Queries may have one more axis, [..., K, L, D]: K sets of queries share keys that are
        projected once.

        Args:
            mask: bool, broadcastable to [..., L, S]; for padding [B, S] pass mask[:, None].
            cache: keys and values of earlier steps; S of the mask includes them.
            groups: groups of tokens; ignored by a layer that is not agent-aware.

        Returns:
            [..., L, D]; a row with no key to attend to gives the output projection's bias.
        """
        if value is None:
            value = key
        lead = key.shape[:-2]
        sets = None
        if query.ndim > key.ndim:
            sets = query.shape[-3:-1]
            query = query.flatten(-3, -2)  # [..., K, L, D] -> [..., K * L, D]
            if mask is not None:
                mask = _repeat_rows(mask, sets[0])
        if mask is not None:
            mask = mask.unsqueeze(-3)  # heads
            if len(lead) > 1:
                mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)

        # Agent-aware layers have a second pair of projections. It is added to the first one, or
        # replaces it if all tokens are in one group.
        query_layer = self.query
        key_layer = self.key
        group_query_layer = None
        group_key_layer = None
        if groups is not None and self.own_query is not None and self.own_key is not None:
            if groups.single:
                query_layer = self.own_query
                key_layer = self.own_key
            else:
                group_query_layer = self.own_query
                group_key_layer = self.own_key

        def project() -> tuple[Tensor, Tensor]:
            k = self._split(key_layer(key))
            if group_key_layer is not None:
                group_k = self._split(group_key_layer(key))
                k = torch.cat([k, group_k], -1)  # [N, heads, S, 2 * d_k]
            return k, self._split(self.value(value))

        k, v = project() if cache is None else cache.update(project)
        q = self._split(query_layer(query))
        agent_aware = None
        if groups is not None and group_query_layer is not None:
            k, group_k = k.chunk(2, -1)
            agent_aware = AgentAware(self._split(group_query_layer(query)), group_k, groups)

        if self.recorded is not None:
            with torch.no_grad():
                weights = attention_weights(q, k, mask, agent_aware)
            weights = weights.view(*lead, *weights.shape[1:])  # [..., heads, L, S]
            if sets is not None:
                weights = weights.unflatten(-2, sets).transpose(-4, -3)  # [..., K, heads, L, S]
            self.recorded(weights)

        dropout = self.dropout if self.training else 0.0
        out = self._join(attend(q, k, v, mask, dropout=dropout, agent_aware=agent_aware))
        out = out.view(*lead, *out.shape[1:])
        if sets is not None:
            out = out.unflatten(-2, sets)
        return out

    def _split(self, x: Tensor) -> Tensor:
        """[..., L, heads * d] to [N, heads, L, d].

        N is the product of the leading axes, because kernels accept four axes.
        """
        *lead, length, width = x.shape
        heads = x.reshape(math.prod(lead), length, self.heads, width // self.heads)
        return heads.transpose(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        """[N, heads, L, d] to the output [N, L, D]."""
        return self.out(x.transpose(-3, -2).flatten(-2))


def _repeat_rows(mask: Tensor, count: int) -> Tensor:
    """Repeat the rows of a mask [..., L, S] for each set of queries; a single row fits all."""
    if mask.shape[-2] == 1:
        return mask
    mask = mask.unsqueeze(-3)
    repeated = mask.expand(*mask.shape[:-3], count, *mask.shape[-2:])
    return repeated.flatten(-3, -2)


class SeparateLinear(nn.Module):
    """A separate linear layer for each set: [..., sets, L, inputs] -> [..., sets, L, outputs].

    Biases start with small random values, so that sets with equal inputs have different outputs
    from the first step.
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
    """`sets` multi-head attentions: queries [..., L, D] -> [..., sets, L, D].

    Huang et al. (2022) have one for each mode. Up to the output projection it is one attention with
    sets * heads heads, ordered by set; each has width D / heads. Raises ValueError: heads does not
    divide width.
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
        """[..., sets * heads, L, d] to the output [..., sets, L, D]."""
        heads = x.unflatten(-3, (self.sets, -1))
        return self.out(heads.transpose(-3, -2).flatten(-2))


@contextmanager
def recording(receivers: Mapping[RecordedLayer, Callable[[Tensor], None]]) -> Iterator[None]:
    """Pass the weights of each call of these layers to a function of the layer in the context.

    Weights are [..., heads, L, S] without dropout, detached, or [..., K, heads, L, S] for K sets of
    queries. Outputs do not change.
    """
    for layer, receive in receivers.items():
        layer.recorded = receive
    try:
        yield
    finally:
        for layer in receivers:
            layer.recorded = None


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of all `MultiHeadAttention` and `PoseAttention` layers in the context.

    Outputs do not change. Yields the weights of each call, as in `recording`, by the name of the
    layer in `model`. Warns if the model has no such layer.
    """
    record: dict[str, list[Tensor]] = {}

    def recorder(name: str) -> Callable[[Tensor], None]:
        def append(weights: Tensor) -> None:
            record.setdefault(name, []).append(weights)

        return append

    receivers = {}
    for name, module in model.named_modules():
        if isinstance(module, RecordedLayer):
            receivers[module] = recorder(name)
    if not receivers:
        reason = "has no MultiHeadAttention or PoseAttention; other layers are not recorded"
        warnings.warn(f"{type(model).__name__} {reason}", TrajformerWarning, stacklevel=3)
    with recording(receivers):
        yield record
