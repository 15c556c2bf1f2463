"""Converter for the weights of `attention-is-all-you-need-pytorch`."""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Converted, Options, StateDictReader
from trajformer.heads.translation.data import TextConfig
from trajformer.heads.translation.model import TransformerConfig
from trajformer.heads.translation.task import TranslationRecipe

HEADS = 8
_TOKENS = [1, 2, 3, 0]  # rows of padding, start, end and unknown in the foreign vocabulary
_PROJECTIONS = {"query": "w_qs", "key": "w_ks", "value": "w_vs", "out": "fc"}
_RULES = {"transformer.source.norm.*": "encoder.layer_norm.*", "transformer.target.norm.*": "decoder.layer_norm.*"}
for _stack, _kinds in (
    ("encoder", {"attention": "slf_attn"}),
    ("decoder", {"self_attention": "slf_attn", "cross_attention": "enc_attn"}),
):
    _here, _there = f"transformer.{_stack}.layers.{{n}}", f"{_stack}.layer_stack.{{n}}"
    for _kind, _foreign in _kinds.items():
        _RULES[f"{_here}.{_kind}.norm.*"] = f"{_there}.{_foreign}.layer_norm.*"
        for _part, _name in _PROJECTIONS.items():
            _RULES[f"{_here}.{_kind}.sublayer.{_part}.*"] = f"{_there}.{_foreign}.{_name}.*"
    _RULES[f"{_here}.feedforward.norm.*"] = f"{_there}.pos_ffn.layer_norm.*"
    _RULES[f"{_here}.feedforward.sublayer.0.*"] = f"{_there}.pos_ffn.w_1.*"
    _RULES[f"{_here}.feedforward.sublayer.3.*"] = f"{_there}.pos_ffn.w_2.*"


def attention_is_all_you_need(source: StateDictReader, options: Options) -> Converted:
    """Convert a post-norm `Transformer` with bias-free projections, a layer norm on embeddings and epsilon 1e-6.

    The first four foreign tokens are unknown, padding, start and end, so the rows of embeddings and projection are
    reordered. If embedding and projection share a matrix, the logits are scaled by 1 / sqrt(D), the default of that code.
    The converted model has no tokenizer.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    heads = options.heads or HEADS
    embeddings = [source.peek(f"{name}_word_emb.weight", 2) for name in ("encoder.src", "decoder.trg")]
    feedforward, width = source.peek("encoder.layer_stack.0.pos_ffn.w_1.weight", 2).shape[0], embeddings[1].shape[1]
    keys, values = (source.peek(f"encoder.layer_stack.0.slf_attn.{name}.weight", 2).shape[0] for name in ("w_qs", "w_vs"))
    layers = tuple(source.count(f"{stack}.layer_stack.{{}}.slf_attn.fc.weight") for stack in ("encoder", "decoder"))
    projection = source.take("trg_word_prj.weight", *embeddings[1].shape)
    from_source, from_target = (source.take(f"{name}_word_emb.weight", *embedding.shape)
                                for name, embedding in zip(("encoder.src", "decoder.trg"), embeddings, strict=True))  # fmt: skip
    tied = torch.equal(projection, from_target)
    all_tied = tied and torch.equal(projection, from_source)
    block = BlockConfig(
        width, heads, feedforward, norm_first=False, bias=False, norm_eps=1e-6, d_k=keys // heads, d_v=values // heads
    )
    config = TransformerConfig(
        source_tokens=len(from_source),
        target_tokens=len(projection),
        block=block,
        layers=(layers[0], layers[1]),
        tied=("all" if all_tied else "projection") if tied else "none",
        scale="projection" if tied else "none",
        embedding_norm=True,
    )
    for stack in ("encoder", "decoder"):
        key = f"{stack}.position_enc.pos_table"
        table = sinusoid(torch.arange(source.peek(key, 3).shape[1], dtype=torch.float64), width)
        source.take_constant(key, table[None].float())
    known = {
        "_extra_state": torch.zeros(1, dtype=torch.uint8),  # no tokenizer
        "transformer.projection.weight": _reorder(projection),
        "transformer.source.token.weight": _reorder(from_source),
        "transformer.target.token.weight": _reorder(from_target),
    }
    recipe = TranslationRecipe(model=config, data=TextConfig(vocabulary=0))
    return recipe, source.take_model(recipe.build_model, _RULES, known)


def _reorder(rows: Tensor) -> Tensor:
    return rows[[*_TOKENS, *range(len(_TOKENS), len(rows))]]
