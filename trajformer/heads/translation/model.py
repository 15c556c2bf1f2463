"""The Transformer (Vaswani et al. 2017): an encoder-decoder over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Decoder, DecoderCache, Encoder
from trajformer.core.dropout import Dropout
from trajformer.core.positions import sinusoid
from trajformer.heads.translation.tokenizer import PAD


@dataclass(frozen=True)
class TransformerConfig(
    Config, limits=dict.fromkeys(("source_tokens", "target_tokens"), (1, 1_000_000))
):
    """Sizes of an encoder-decoder.

    Attributes:
        source_tokens: size of the source vocabulary.
        target_tokens: size of the target vocabulary.
        block: sizes of a layer; post-norm in the paper. `attention-is-all-you-need-pytorch` omits
            the biases.
        layers: number of layers in the encoder and in the decoder.
        tied: no weights are shared; target embedding and output projection share them; or the
            source embedding, too.
        scale: scaling of a shared matrix, which has to be small as an embedding and large as a
            projection: embeddings are scaled by sqrt(D) (section 3.4), or logits by 1 / sqrt(D).
        embedding_norm: apply a layer norm to embeddings with positions.
        final_norm: apply a layer norm after each stack; by default only with pre-norm blocks.
    """

    source_tokens: int = 8000
    target_tokens: int = 8000
    block: BlockConfig = BlockConfig(width=512, heads=8, feedforward=2048, norm_first=False)
    layers: tuple[int, int] = (6, 6)
    tied: Literal["none", "projection", "all"] = "all"
    scale: Literal["none", "embedding", "projection"] = "embedding"
    embedding_norm: bool = False
    final_norm: bool | None = None


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
        self.norm: nn.Module = nn.Identity()
        if config.embedding_norm:
            self.norm = nn.LayerNorm(width, eps=config.block.norm_eps)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens int64 [B, L] at positions `first`, `first` + 1, ... as [B, L, D]."""
        last = first + tokens.shape[1]
        index = torch.arange(first, last, device=tokens.device, dtype=torch.float32)
        x = self.token(tokens) * self.factor
        position = sinusoid(index, x.shape[-1]).to(x.dtype)
        return self.norm(self.dropout(x + position))


class Transformer(nn.Module):
    """Encoder-decoder over tokens. Sentences are padded with `PAD` at the end.

    A sentence that consists of padding gives finite outputs and gradients. Raises ValueError: all
    weights are shared but the vocabularies have different sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.tied == "all" and config.source_tokens != config.target_tokens:
            tokens = f"{config.source_tokens} source and {config.target_tokens} target tokens"
            raise ValueError(f"tied: {tokens} cannot share weights")
        width = config.block.width
        encoder_layers, decoder_layers = config.layers
        self.source = Embedding(config.source_tokens, config)
        self.target = Embedding(config.target_tokens, config)
        self.encoder = Encoder(config.block, encoder_layers, final_norm=config.final_norm)
        self.decoder = Decoder(config.block, decoder_layers, final_norm=config.final_norm)
        self.projection = nn.Linear(width, config.target_tokens, bias=False)
        if config.tied != "none":
            self.projection.weight = self.target.token.weight
        if config.tied == "all":
            self.source.token.weight = self.target.token.weight
        self.factor = width**-0.5 if config.scale == "projection" else 1.0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token.

        Args:
            source: tokens int64 [B, S].
            target: tokens int64 [B, L].

        Returns:
            [B, L, V].
        """
        memory, memory_mask = self.encode(source)
        return self.project(self.decode(target, memory, memory_mask))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Memory [B, S, D] of tokens int64 [B, S], and its mask bool [B, 1, S]."""
        mask = (source != PAD)[:, None]
        return self.encoder(self.source(source), mask), mask

    def decode(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: DecoderCache | None = None
    ) -> Tensor:
        """Features [B, L, D] of tokens int64 [B, L] with causal attention.

        With a cache, `target` holds only the tokens that follow the cached ones.
        """
        first = cache.length if cache else 0
        length = target.shape[1]
        mask = None  # a single new token attends to all tokens
        if length > 1:
            every = torch.ones(length, first + length, dtype=torch.bool, device=target.device)
            mask = every.tril(first)
        x = self.target(target, first)
        layers = self.decoder(x, memory, mask=mask, memory_mask=memory_mask, cache=cache)
        return layers[-1]

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., V] of features [..., D]."""
        return F.linear(x, self.projection.weight) * self.factor
