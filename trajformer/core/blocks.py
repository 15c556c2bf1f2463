"""Transformer blocks with pre- or post-norm, and stacks of blocks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.attention import Groups
from trajformer.core.caches import KVCache
from trajformer.core.dropout import Dropout
from trajformer.core.multihead import MultiHeadAttention, RecordedLayer


@dataclass(frozen=True)
class SqueezeConfig(Config, positive=("reduction",)):
    """Options of squeeze-and-excite.

    Attributes:
        axis: a channel is a feature of the tokens, or a group of tokens (see `Groups`).
        channels: number of groups that have weights; unused for features.
        reduction: channels per hidden unit; the paper has 4 to 16.
    """

    axis: Literal["feature", "group"] = "feature"
    channels: int = 0
    reduction: int = 4


@dataclass(frozen=True)
class BlockConfig(
    Config,
    positive=("heads", "norm_eps", "d_k", "d_v"),
    fractions=("dropout", "attention_dropout"),
    # Larger ones exhaust the memory of one device.
    limits={"width": (1, 2_048), "feedforward": (1, 16_384)},
):
    """Sizes and options of a transformer block.

    Attributes:
        width: D.
        heads: attention heads.
        feedforward: inner width of the feed-forward layer.
        dropout: on every residual branch and inside the feed-forward.
        attention_dropout: on attention weights; above 0 the fused kernel is not used on a CPU.
        norm_first: normalise before each sub-layer (ViT, mmTransformer) instead of after it
            (Transformer, DETR).
        activation: of the feed-forward layer.
        bias: use biases in the attention projections.
        norm_eps: epsilon of the layer norms.
        d_k, d_v: key and value width of a head, D / heads by default.
        agent_aware: score tokens of the same group with separate projections (AgentFormer).
        squeeze: squeeze-and-excite after the attention of encoder blocks (Spatial-Channel
            Transformer).
    """

    width: int = 128
    heads: int = 4
    feedforward: int = 256
    dropout: float = 0.1
    attention_dropout: float = 0.0
    norm_first: bool = True
    activation: Literal["relu", "gelu"] = "relu"
    bias: bool = True
    norm_eps: float = 1e-5
    d_k: int | None = None
    d_v: int | None = None
    agent_aware: bool = False
    squeeze: SqueezeConfig | None = None

    def attention(self) -> MultiHeadAttention:
        """A multi-head attention with these sizes."""
        return MultiHeadAttention(
            self.width,
            self.heads,
            d_k=self.d_k,
            d_v=self.d_v,
            bias=self.bias,
            dropout=self.attention_dropout,
            agent_aware=self.agent_aware,
        )


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, linear: [..., D] -> [..., D]."""

    def __init__(self, config: BlockConfig) -> None:
        activation = nn.ReLU(inplace=True) if config.activation == "relu" else nn.GELU()
        super().__init__(
            nn.Linear(config.width, config.feedforward),
            activation,
            Dropout(config.dropout),
            nn.Linear(config.feedforward, config.width),
        )


class Residual(nn.Module):
    """A sub-layer with a residual connection and a layer norm; dropout on the branch.

    x + sublayer(norm(x)) when `norm_first`, else norm(x + sublayer(x)).
    """

    def __init__(self, config: BlockConfig, sublayer: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.sublayer = sublayer
        self.dropout = Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.post(x, self.sublayer(self.pre(x)))

    def pre(self, x: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.norm(x) if self.norm_first else x

    def post(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the sub-layer's output to x."""
        out = x + self.dropout(branch)
        return out if self.norm_first else self.norm(out)


def _add_position(x: Tensor, position: Tensor | None) -> Tensor:
    return x if position is None else x + position


def masked_mean(x: Tensor, mask: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean of x along `dim` where the mask is True; zero if it is True nowhere.

    The mask is broadcastable to x.
    """
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excite (Hu et al. 2018): multiplies channel c by s_c.

    s = sigmoid(W2 relu(W1 z)), and z_c is the mean of channel c over its positions.
    """

    def __init__(self, config: SqueezeConfig, width: int) -> None:
        super().__init__()
        self.axis = config.axis
        self.channels = width if config.axis == "feature" else config.channels
        hidden = max(self.channels // config.reduction, 1)
        self.squeeze = nn.Linear(self.channels, hidden, bias=False)
        self.excite = nn.Linear(hidden, self.channels, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, groups: Groups | None = None
    ) -> Tensor:
        """[..., L, D] -> [..., L, D].

        The mask, bool [..., 1, L], excludes padding (False) from means. Groups are required if they
        are channels; the mean is over the features of a group's tokens, and ungrouped tokens do not
        change. Raises ValueError: the mask differs between queries, or groups are channels and not
        given.
        """
        real = torch.ones_like(x[..., 0], dtype=torch.bool)  # [..., L]
        if mask is not None:
            if mask.shape[-2] != 1:
                raise ValueError(
                    "squeeze-and-excite needs a padding mask [..., 1, L]; "
                    "this mask differs between queries"
                )
            real = mask[..., 0, :].expand(x.shape[:-1])
        if self.axis == "feature":
            weights = self._weights(masked_mean(x, real[..., None], -2))  # [..., D]
            return x * weights[..., None, :]

        if groups is None:
            raise ValueError("axis is 'group': groups must be given")
        ungrouped = groups.ungrouped[1]
        grouped = x.shape[-2] - ungrouped
        value = x.mean(-1)[..., :grouped].unflatten(-1, (-1, groups.keys))  # [..., T, G]
        real = real[..., :grouped].unflatten(-1, (-1, groups.keys))
        weights = self._weights(masked_mean(value, real, -2))  # [..., G]
        of_tokens = weights[..., None, :].expand(value.shape).flatten(-2)  # [..., T * G]
        return x * F.pad(of_tokens, (0, ungrouped), value=1.0)[..., None]

    def _weights(self, z: Tensor) -> Tensor:
        """s of z [..., channels or fewer], same shape; missing channels are zeros."""
        count = z.shape[-1]
        full = F.pad(z, (0, self.channels - count))
        hidden = self.squeeze(full).relu()
        return self.excite(hidden).sigmoid()[..., :count]


class EncoderBlock(nn.Module):
    """Self-attention, optional squeeze-and-excite of its output, then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Residual(config, config.attention())
        self.squeeze = SqueezeExcite(config.squeeze, config.width) if config.squeeze else None
        self.feedforward = Residual(config, FeedForward(config))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        position: Tensor | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """[..., L, D] -> [..., L, D].

        The mask is bool, broadcastable to [..., L, L], True = may attend; squeeze-and-excite
        requires [..., 1, L]. `position`, broadcastable to x, is added to queries and keys, not to
        values. `groups` are for agent-aware attention, and for groups as channels.
        """
        value = self.attention.pre(x)
        query = _add_position(value, position)
        branch = self.attention.sublayer(query, query, value, mask, groups=groups)
        if self.squeeze is not None:
            branch = self.squeeze(branch, mask, groups)
        return self.feedforward(self.attention.post(x, branch))

    def token(self, x: Tensor, index: int, mask: Tensor | None = None) -> Tensor:
        """Token `index` of `forward` without groups, [..., L, D] -> [..., D].

        Other tokens are only keys, which saves time.
        """
        if self.squeeze is not None:  # it needs all tokens
            return self(x, mask)[..., index, :]
        value = self.attention.pre(x)
        query = value[..., index, None, :]
        if mask is not None and mask.shape[-2] > 1:
            mask = mask[..., index, None, :]
        branch = self.attention.sublayer(query, value, mask=mask).squeeze(-2)
        return self.feedforward(self.attention.post(x[..., index, :], branch))


class LatentBlock(nn.Module):
    """Learned queries attend to tokens, then feed-forward (Perceiver, Wayformer).

    L tokens are reduced to `count`.
    """

    def __init__(self, config: BlockConfig, count: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, config.width) * 0.02)
        self.norm = stack_norm(config)
        self.attention = Residual(config, config.attention())
        self.feedforward = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., L, D] -> [..., count, D]; mask bool, broadcastable to [..., count, L]."""
        latents = self.latents.expand(*x.shape[:-2], -1, -1)
        branch = self.attention.sublayer(self.attention.pre(latents), self.norm(x), mask=mask)
        return self.feedforward(self.attention.post(latents, branch))


class DecoderBlock(nn.Module):
    """Self-attention of the queries, cross-attention to a memory, then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.self_attention = Residual(config, config.attention())
        self.cross_attention = Residual(config, config.attention())
        self.feedforward = Residual(config, FeedForward(config))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        position: Tensor | None = None,
        memory_position: Tensor | None = None,
        cache: tuple[KVCache, KVCache] | None = None,
        groups: tuple[Groups, Groups] | None = None,
    ) -> Tensor:
        """Queries [..., Q, D] and memory [..., S, D] -> [..., Q, D].

        x may have one more axis than memory, [..., K, Q, D]: K sets of queries share the memory.

        Args:
            mask: bool, broadcastable to [..., Q, Q]; `memory_mask` to [..., Q, S].
            position: added to x where it is a query or a key; `memory_position` is added to the
                memory's keys.
            cache: of self- and cross-attention; x then has the newest tokens only, and `mask`
                covers all tokens so far.
            groups: of self- and cross-attention, for agent-aware attention.
        """
        self_cache, cross_cache = cache or (None, None)
        self_groups, cross_groups = groups or (None, None)
        value = self.self_attention.pre(x)
        query = _add_position(value, position)
        branch = self.self_attention.sublayer(query, query, value, mask, self_cache, self_groups)
        x = self.self_attention.post(x, branch)

        query = _add_position(self.cross_attention.pre(x), position)
        key = _add_position(memory, memory_position)
        branch = self.cross_attention.sublayer(
            query, key, memory, memory_mask, cross_cache, cross_groups
        )
        return self.feedforward(self.cross_attention.post(x, branch))


def stack_norm(config: BlockConfig, layers: int = 1, enabled: bool | None = None) -> nn.Module:
    """The layer norm at the end of a stack, by default of pre-norm blocks.

    The identity if there are no `layers`.
    """
    if enabled is None:
        enabled = config.norm_first
    if not enabled or not layers:
        return nn.Identity()
    return nn.LayerNorm(config.width, eps=config.norm_eps)


class Encoder(nn.Module):
    """A stack of encoder blocks.

    `final_norm` adds a layer norm at the end, by default after pre-norm blocks.
    """

    def __init__(self, config: BlockConfig, layers: int, *, final_norm: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(layers))
        self.norm = stack_norm(config, layers, final_norm)

    def attentions(self) -> list[RecordedLayer]:
        """The attention of each layer, for `recording`."""
        blocks = cast(Iterable[EncoderBlock], self.layers)
        return [cast(RecordedLayer, block.attention.sublayer) for block in blocks]

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        position: Tensor | None = None,
        groups: Groups | None = None,
    ) -> Tensor:
        """[..., L, D] -> [..., L, D]; arguments as for `EncoderBlock`."""
        for layer in self.layers:
            x = layer(x, mask, position, groups)
        return self.norm(x)

    def token(self, x: Tensor, index: int, mask: Tensor | None = None) -> Tensor:
        """Token `index` of `forward`, [..., L, D] -> [..., D].

        The last layer computes only this one.
        """
        if not self.layers:
            return self.norm(x[..., index, :])
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        last = cast(EncoderBlock, self.layers[-1])
        return self.norm(last.token(x, index, mask))


class DecoderCache:
    """Caches of all layers of a decoder.

    `layers[i]` has the caches of self-attention and cross-attention.
    """

    def __init__(self, layers: int) -> None:
        self.layers = [(KVCache(), KVCache(fixed=True)) for _ in range(layers)]

    @property
    def length(self) -> int:
        """Number of decoded tokens."""
        if not self.layers:
            return 0
        self_cache, _ = self.layers[0]
        return 0 if self_cache.key is None else self_cache.key.shape[-2]

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """As `KVCache.select`.

        If rows share one memory, pass `memory` False: the caches of the memory stay as they are.
        """
        for self_cache, cross_cache in self.layers:
            self_cache.select(rows)
            if memory:
                cross_cache.select(rows)


class Decoder(nn.Module):
    """A stack of decoder blocks.

    It returns the normalised output of each layer, for auxiliary losses.
    """

    def __init__(self, config: BlockConfig, layers: int, *, final_norm: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(layers))
        self.norm = stack_norm(config, layers, final_norm)

    def self_attentions(self) -> list[RecordedLayer]:
        """The attention among queries of each layer, for `recording`."""
        blocks = cast(Iterable[DecoderBlock], self.layers)
        return [cast(RecordedLayer, block.self_attention.sublayer) for block in blocks]

    def cross_attentions(self) -> list[RecordedLayer]:
        """The attention to the memory of each layer, for `recording`."""
        blocks = cast(Iterable[DecoderBlock], self.layers)
        return [cast(RecordedLayer, block.cross_attention.sublayer) for block in blocks]

    def forward(
        self, x: Tensor, memory: Tensor, *, cache: DecoderCache | None = None, **arguments: Any
    ) -> list[Tensor]:
        """Outputs [..., Q, D] of all layers, first to last; arguments as for `DecoderBlock`."""
        outputs = []
        for index, layer in enumerate(self.layers):
            layer_cache = cache.layers[index] if cache else None
            x = layer(x, memory, cache=layer_cache, **arguments)
            outputs.append(self.norm(x))
        return outputs
