"""The Transformer (Vaswani et al. 2017): an encoder-decoder that maps a sentence to its translation, token by token."""

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
from trajformer.heads.translation.text import PAD


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of an encoder-decoder.

    Attributes:
        source_tokens: size of the source vocabulary.
        target_tokens: size of the target vocabulary.
        block: of every layer; the paper's is post-norm, seeds and `attention-is-all-you-need-pytorch` leave out the biases.
        layers: of the encoder and of the decoder.
        tied: weights shared by nothing, by target embedding and output projection, or by both and the source embedding.
        scale: what a tied matrix is scaled by, as it must be large to project and small to embed: embeddings by
            sqrt(D) (section 3.4), or logits by 1 / sqrt(D), in training and in decoding alike.
        embedding_norm: a layer norm on embeddings with positions.
        final_norm: a layer norm after each stack; by default where the blocks are pre-norm.
    """

    source_tokens: int = 8000
    target_tokens: int = 8000
    block: BlockConfig = field(default_factory=lambda: BlockConfig(width=512, heads=8, feedforward=2048, norm_first=False))
    layers: tuple[int, int] = (6, 6)
    tied: Literal["none", "projection", "all"] = "all"
    scale: Literal["none", "embedding", "projection"] = "embedding"
    embedding_norm: bool = False
    final_norm: bool | None = None


class Embedding(nn.Module):
    """Token vectors plus sinusoids of their places, then dropout (section 5.4)."""

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
        """int64 [B, L], the first of them at place `first`, -> [B, L, D]."""
        place = torch.arange(first, first + tokens.shape[1], device=tokens.device, dtype=torch.float32)
        x = self.token(tokens) * self.factor
        return self.norm(self.dropout(x + sinusoid(place, x.shape[-1]).to(x.dtype)))


class Transformer(nn.Module):
    """Encoder-decoder over tokens; padding is `PAD` and lies behind a sentence.

    A sentence of padding alone gives finite outputs and gradients.

    Raises:
        ValueError: all weights are tied and the vocabularies differ.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.tied == "all" and config.source_tokens != config.target_tokens:
            raise ValueError(f"tied: {config.source_tokens} source and {config.target_tokens} target tokens share no weights")
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
        """Logits [B, L, V] of the token after each of `target` int64 [B, L], given `source` int64 [B, S]."""
        return self.project(self.decode(target, *self.encode(source)))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Memory [B, S, D] of int64 [B, S], and its mask bool [B, 1, S]."""
        mask = (source != PAD)[:, None]
        return self.encoder(self.source(source), mask), mask

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: DecoderCache | None = None) -> Tensor:
        """Features [B, L, D] of int64 [B, L], each token seeing those before it; with a cache, `target` is the newest one."""
        first, length = cache.length if cache else 0, target.shape[1]
        causal = torch.ones(length, first + length, dtype=torch.bool, device=target.device).tril(first)
        mask = causal if length > 1 else None  # the newest token sees everything
        return self.decoder(self.target(target, first), memory, mask=mask, memory_mask=memory_mask, cache=cache)[-1]

    def project(self, x: Tensor) -> Tensor:
        """Features [..., D] to logits [..., V]."""
        return F.linear(x, self.projection.weight) * self.factor


class Hypotheses:
    """What has been decoded of a batch of sentences, `copies` hypotheses each; for `heads.decoding`.

    Args:
        model: in evaluation mode.
        source: int64 [B, S].
        copies: hypotheses a sentence; B * copies rows in all, those of a sentence beside each other.
        cached: keep keys and values; otherwise every step decodes the whole prefix again (to compare with).
    """

    def __init__(self, model: Transformer, source: Tensor, copies: int = 1, *, cached: bool = True) -> None:
        self.model = model
        self.memory, self.mask = (x.repeat_interleave(copies, 0) for x in model.encode(source))
        self.cache = DecoderCache(len(model.decoder.layers)) if cached else None
        self.prefix = source.new_zeros(len(self.memory), 0)

    def step(self, tokens: Tensor) -> Tensor:
        """Append int64 [N] to the hypotheses; returns the logits [N, V] of what follows."""
        self.prefix = torch.cat([self.prefix, tokens[:, None]], 1)
        seen = self.prefix[:, -1:] if self.cache else self.prefix
        return self.model.project(self.model.decode(seen, self.memory, self.mask, self.cache)[:, -1])

    def select(self, rows: Tensor, *, same_sentence: bool) -> None:
        """Go on with these rows int64 [N']; `same_sentence` promises that none takes the place of another sentence's."""
        self.prefix = self.prefix[rows]
        if self.cache:
            self.cache.select(rows, memory=not same_sentence)
        if not same_sentence:
            self.memory, self.mask = self.memory[rows], self.mask[rows]
