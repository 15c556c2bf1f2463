"""The Transformer encoder-decoder for translation (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.cache import DecoderCache
from trajformer.core.dropout import Dropout
from trajformer.core.positions import sinusoid
from trajformer.errors import check_numbers
from trajformer.heads.translation.data import PAD


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of an encoder-decoder.

    Attributes:
        source_tokens: size of the source vocabulary.
        target_tokens: size of the target vocabulary.
        block: sizes of a layer; post-norm in the paper. `attention-is-all-you-need-pytorch` omits the biases.
        layers: number of layers in the encoder and in the decoder.
        tied: no weights are shared; target embedding and output projection share them; or the source embedding, too.
        scale: scaling of a shared matrix, which has to be small as an embedding and large as a projection: embeddings are
            scaled by sqrt(D) (section 3.4), or logits by 1 / sqrt(D).
        embedding_norm: apply a layer norm to embeddings with positions.
        final_norm: apply a layer norm after each stack; by default only with pre-norm blocks.
    """

    source_tokens: int = 8000
    target_tokens: int = 8000
    block: BlockConfig = field(default_factory=lambda: BlockConfig(width=512, heads=8, feedforward=2048, norm_first=False))
    layers: tuple[int, int] = (6, 6)
    tied: Literal["none", "projection", "all"] = "all"
    scale: Literal["none", "embedding", "projection"] = "embedding"
    embedding_norm: bool = False
    final_norm: bool | None = None

    def __post_init__(self) -> None:
        check_numbers(self, positive=("source_tokens", "target_tokens"))


class Embedding(nn.Module):
    """Token vectors plus sinusoidal positions, then dropout (section 5.4)."""

    def __init__(self, tokens: int, config: TransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.token = nn.Embedding(tokens, width, padding_idx=PAD)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        nn.init.zeros_(self.token.weight[PAD])
        self.factor = width**0.5 if config.scale == "embedding" else 1.0
        self.dropout = Dropout(config.block.dropout)
        self.norm = nn.LayerNorm(width, eps=config.block.norm_eps) if config.embedding_norm else nn.Identity()

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens int64 [B, L] at positions `first`, `first` + 1, ... as [B, L, D]."""
        position = torch.arange(first, first + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        x = self.token(tokens) * self.factor
        return self.norm(self.dropout(x + sinusoid(position, x.shape[-1]).to(x.dtype)))


class Transformer(nn.Module):
    """Encoder-decoder over tokens. Sentences are padded with `PAD` at the end.

    A sentence that consists of padding gives finite outputs and gradients.

    Raises:
        ValueError: all weights are shared but the vocabularies have different sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.tied == "all" and config.source_tokens != config.target_tokens:
            raise ValueError(f"tied: {config.source_tokens} source and {config.target_tokens} target tokens cannot share weights")
        self.source = Embedding(config.source_tokens, config)
        self.target = Embedding(config.target_tokens, config)
        self.encoder = Encoder(config.block, config.layers[0], final_norm=config.final_norm)
        self.decoder = Decoder(config.block, config.layers[1], final_norm=config.final_norm)
        self.projection = nn.Linear(config.block.width, config.target_tokens, bias=False)
        if config.tied != "none":
            self.projection.weight = self.target.token.weight
        if config.tied == "all":
            self.source.token.weight = self.target.token.weight
        self.factor = config.block.width**-0.5 if config.scale == "projection" else 1.0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, L, V] of the token after each token of `target` int64 [B, L], given `source` int64 [B, S]."""
        return self.project(self.decode(target, *self.encode(source)))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Memory [B, S, D] of tokens int64 [B, S], and its mask bool [B, 1, S]."""
        mask = (source != PAD)[:, None]
        return self.encoder(self.source(source), mask), mask

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: DecoderCache | None = None) -> Tensor:
        """Features [B, L, D] of tokens int64 [B, L] with causal attention.

        With a cache, `target` holds only the tokens that follow the cached ones.
        """
        first, length = cache.length if cache else 0, target.shape[1]
        causal = torch.ones(length, first + length, dtype=torch.bool, device=target.device).tril(first)
        mask = causal if length > 1 else None  # a single new token attends to all tokens
        return self.decoder(self.target(target, first), memory, mask=mask, memory_mask=memory_mask, cache=cache)[-1]

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., V] of features [..., D]."""
        return F.linear(x, self.projection.weight) * self.factor
