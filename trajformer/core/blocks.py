"""Feed-forward, encoder and decoder blocks (pre- or post-norm), and stacks that keep every layer's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.cache import DecoderCache, KVCache
from trajformer.core.dropout import Dropout
from trajformer.core.groups import Groups
from trajformer.core.squeeze import SqueezeConfig, SqueezeExcite
from trajformer.errors import check_numbers


@dataclass(frozen=True)
class BlockConfig:
    """The shape of a transformer block.

    Attributes:
        width: D.
        heads: attention heads.
        feedforward: inner width of the feed-forward layer.
        dropout: on every residual branch and inside the feed-forward.
        attention_dropout: on attention weights; above 0 it costs the fused kernel on CPU.
        norm_first: normalise before each sub-layer (ViT, mmTransformer) instead of after it (Transformer, DETR).
        activation: of the feed-forward layer.
        bias: biases in the attention projections.
        norm_eps: epsilon of the layer norms.
        d_k, d_v: widths of a head, D / heads by default.
        agent_aware: pairs of tokens of one group have a score term of their own (AgentFormer).
        squeeze: channels of an encoder block's attention are weighed before they are added (Spatial-Channel Transformer).
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

    def __post_init__(self) -> None:
        positive = ("width", "heads", "feedforward", "norm_eps", "d_k", "d_v")
        check_numbers(self, positive, shares=("dropout", "attention_dropout"))

    def attention(self) -> MultiHeadAttention:
        """A multi-head attention of this shape."""
        sizes = {"d_k": self.d_k, "d_v": self.d_v}
        return MultiHeadAttention(
            self.width, self.heads, bias=self.bias, dropout=self.attention_dropout, agent_aware=self.agent_aware, **sizes
        )


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, linear: [..., D] -> [..., D]."""

    def __init__(self, config: BlockConfig) -> None:
        activation = nn.ReLU(inplace=True) if config.activation == "relu" else nn.GELU()
        inner, outer = nn.Linear(config.width, config.feedforward), nn.Linear(config.feedforward, config.width)
        super().__init__(inner, activation, Dropout(config.dropout), outer)


class Residual(nn.Module):
    """x + sublayer(norm(x)) when `norm_first`, else norm(x + sublayer(x)); dropout on the branch."""

    def __init__(self, config: BlockConfig, sublayer: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.sublayer, self.dropout, self.norm_first = sublayer, Dropout(config.dropout), config.norm_first

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.post(x, self.sublayer(self.pre(x)))

    def pre(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self.norm(x) if self.norm_first else x

    def post(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the sub-layer's output back to x."""
        out = x + self.dropout(branch)
        return out if self.norm_first else self.norm(out)


def _plus(x: Tensor, position: Tensor | None) -> Tensor:
    return x if position is None else x + position


class EncoderBlock(nn.Module):
    """Self-attention (its output weighed by squeeze-and-excite where wanted), then feed-forward."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Residual(config, config.attention())
        self.squeeze = SqueezeExcite(config.squeeze, config.width) if config.squeeze else None
        self.feedforward = Residual(config, FeedForward(config))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, position: Tensor | None = None, groups: Groups | None = None
    ) -> Tensor:
        """[..., L, D] -> [..., L, D].

        Args:
            mask: bool, broadcastable to [..., L, L]; True = may attend. Squeeze-and-excite wants one row for all, [..., 1, L].
            position: added to queries and keys, not to values; broadcastable to x.
            groups: whose pairs have a score term of their own, or whose tokens are a channel, in a block that has this.
        """
        seen = self.attention.pre(x)
        placed = _plus(seen, position)
        branch = self.attention.sublayer(placed, placed, seen, mask, groups=groups)
        if self.squeeze is not None:
            branch = self.squeeze(branch, mask, groups)
        return self.feedforward(self.attention.post(x, branch))


class LatentBlock(nn.Module):
    """Learned queries attend to tokens, then feed-forward: L tokens become `count` (Perceiver, Wayformer)."""

    def __init__(self, config: BlockConfig, count: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, config.width) * 0.02)
        self.norm = _final_norm(config, None)
        self.attention = Residual(config, config.attention())
        self.feedforward = Residual(config, FeedForward(config))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., L, D] -> [..., count, D]; mask bool, broadcastable to [..., count, L]."""
        latents = self.latents.expand(*x.shape[:-2], -1, -1)
        branch = self.attention.sublayer(self.attention.pre(latents), self.norm(x), mask=mask)
        return self.feedforward(self.attention.post(latents, branch))


class DecoderBlock(nn.Module):
    """Self-attention among queries, cross-attention to a memory, then feed-forward."""

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
        """[..., Q, D] attending to itself and to memory [..., S, D]; returns [..., Q, D].

        x may have one axis more than memory, [..., K, Q, D]: K sets of queries share it.

        Args:
            mask: bool, broadcastable to [..., Q, Q]; `memory_mask` to [..., Q, S].
            position: added to the queries' own queries and keys; `memory_position` to the memory's keys.
            cache: of self- and cross-attention; x is then the newest tokens only, and `mask` is over all tokens so far.
            groups: of self- and cross-attention: whose pairs have a score term of their own, in a block that has one.
        """
        own, cross = cache or (None, None)
        inner, outer = groups or (None, None)
        seen = self.self_attention.pre(x)
        placed = _plus(seen, position)
        x = self.self_attention.post(x, self.self_attention.sublayer(placed, placed, seen, mask, own, inner))
        placed = _plus(self.cross_attention.pre(x), position)
        branch = self.cross_attention.sublayer(placed, _plus(memory, memory_position), memory, memory_mask, cross, outer)
        x = self.cross_attention.post(x, branch)
        return self.feedforward(x)


def _final_norm(config: BlockConfig, wanted: bool | None) -> nn.Module:
    wanted = config.norm_first if wanted is None else wanted
    return nn.LayerNorm(config.width, eps=config.norm_eps) if wanted else nn.Identity()


class Encoder(nn.Module):
    """A stack of encoder blocks; a pre-norm stack ends with a layer norm, another one where `final_norm` says so."""

    def __init__(self, config: BlockConfig, layers: int, *, final_norm: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(layers))
        self.norm = _final_norm(config, final_norm if layers else False)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, position: Tensor | None = None, groups: Groups | None = None
    ) -> Tensor:
        """[..., L, D] -> [..., L, D]; arguments as for `EncoderBlock`."""
        for layer in self.layers:
            x = layer(x, mask, position, groups)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder blocks that returns every layer's output, normalised alike, for auxiliary losses."""

    def __init__(self, config: BlockConfig, layers: int, *, final_norm: bool | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(layers))
        self.norm = _final_norm(config, final_norm if layers else False)

    def forward(self, x: Tensor, memory: Tensor, *, cache: DecoderCache | None = None, **arguments: Any) -> list[Tensor]:
        """Outputs [..., Q, D] of every layer, first to last; arguments as for `DecoderBlock`."""
        outputs = []
        for layer, kept in zip(self.layers, cache.layers if cache else [None] * len(self.layers), strict=True):
            x = layer(x, memory, cache=kept, **arguments)
            outputs.append(self.norm(x))
        return outputs
