"""Weights of the seeds' Transformer code, `attention-is-all-you-need-pytorch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Options, Source, under
from trajformer.heads.translation.model import TransformerConfig
from trajformer.heads.translation.task import TextConfig, TranslationRecipe

if TYPE_CHECKING:
    from trajformer.cli.convert import Converted

_HEADS = 8
_TOKENS = [1, 2, 3, 0]  # its padding, start, end and unknown, in our order; words come after them in both
_PROJECTIONS = {"w_qs": "query", "w_ks": "key", "w_vs": "value", "fc": "out"}
_SIDES = {"source": "encoder.src", "target": "decoder.trg"}


def attention_is_all_you_need(source: Source, options: Options) -> Converted:
    """Its `Transformer`: post-norm, projections without biases, a layer norm on embeddings, epsilon 1e-6.

    Its first four tokens are unknown, padding, start and end, so rows of the embeddings and of the projection change
    places. Where embedding and projection are the same matrix its logits are scaled by 1 / sqrt(D), its own default. It
    comes without a tokenizer.

    Raises:
        CheckpointError: as `Source.take`.
    """
    heads = options.heads or _HEADS
    embedding = {side: source.peek(f"{name}_word_emb.weight", 2) for side, name in _SIDES.items()}
    width, feedforward = embedding["target"].shape[1], source.peek("encoder.layer_stack.0.pos_ffn.w_1.weight", 2).shape[0]
    keys, values = (source.peek(f"encoder.layer_stack.0.slf_attn.{name}.weight", 2).shape[0] for name in ("w_qs", "w_vs"))
    projection = source.take("trg_word_prj.weight", *embedding["target"].shape)
    tied = torch.equal(projection, embedding["target"].float())
    same = embedding["source"].shape == projection.shape and torch.equal(embedding["source"].float(), projection)
    layers = tuple(source.count(f"{stack}.layer_stack.{{}}.slf_attn.fc.weight") for stack in ("encoder", "decoder"))
    block = BlockConfig(
        width, heads, feedforward, norm_first=False, bias=False, norm_eps=1e-6, d_k=keys // heads, d_v=values // heads
    )
    config = TransformerConfig(
        source_tokens=len(embedding["source"]),
        target_tokens=len(projection),
        block=block,
        layers=(layers[0], layers[1]),
        tied=("all" if same else "projection") if tied else "none",
        scale="projection" if tied else "none",
        embedding_norm=True,
    )
    weights = {"_extra_state": torch.zeros(1, dtype=torch.uint8), "transformer.projection.weight": _reorder(projection)}
    for side, name in _SIDES.items():
        token = source.take(f"{name}_word_emb.weight", *embedding[side].shape)
        weights |= under(f"transformer.{side}", {"token.weight": _reorder(token)})
        stack = name.partition(".")[0]
        weights |= under(f"transformer.{side}.norm", source.norm(f"{stack}.layer_norm", width))
        weights |= _stack(source, stack, config)
        places = source.peek(f"{stack}.position_enc.pos_table", 3).shape[1]
        table = sinusoid(torch.arange(places, dtype=torch.float64), width)
        source.take_derived(f"{stack}.position_enc.pos_table", table[None].float())
    return TranslationRecipe(model=config, data=TextConfig(vocabulary=0)), weights


def _reorder(rows: Tensor) -> Tensor:
    return rows[[*_TOKENS, *range(len(_TOKENS), len(rows))]]


def _stack(source: Source, stack: str, config: TransformerConfig) -> dict[str, Tensor]:
    """Layers of the encoder or of the decoder."""
    weights: dict[str, Tensor] = {}
    kinds = {"slf_attn": "attention"} if stack == "encoder" else {"slf_attn": "self_attention", "enc_attn": "cross_attention"}
    width, inner = config.block.width, config.block.feedforward
    assert config.block.d_k is not None and config.block.d_v is not None
    keys, values = config.block.heads * config.block.d_k, config.block.heads * config.block.d_v
    shapes = {"w_qs": (keys, width), "w_ks": (keys, width), "w_vs": (values, width), "fc": (width, values)}
    for number in range(config.layers[stack == "decoder"]):
        here, there = f"transformer.{stack}.layers.{number}", f"{stack}.layer_stack.{number}"
        for theirs, ours in kinds.items():
            for name, place in _PROJECTIONS.items():
                tensor = source.take(f"{there}.{theirs}.{name}.weight", *shapes[name])
                weights[f"{here}.{ours}.sublayer.{place}.weight"] = tensor
            weights |= under(f"{here}.{ours}.norm", source.norm(f"{there}.{theirs}.layer_norm", width))
        weights |= under(f"{here}.feedforward.norm", source.norm(f"{there}.pos_ffn.layer_norm", width))
        weights |= under(f"{here}.feedforward.sublayer.0", source.linear(f"{there}.pos_ffn.w_1", inner, width))
        weights |= under(f"{here}.feedforward.sublayer.3", source.linear(f"{there}.pos_ffn.w_2", width, inner))
    return weights
