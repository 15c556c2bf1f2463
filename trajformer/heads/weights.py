"""Converters of published weights: Transformer, ViT and DETR. Each raises CheckpointError for a missing or misshaped tensor.

The caller checks that all tensors of the file were used. The rules are explained at `StateDictReader.take_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Converted, Options, StateDictReader
from trajformer.errors import CheckpointError
from trajformer.heads.detr.backbone import BackboneConfig, ResNetConfig
from trajformer.heads.detr.model import DetrConfig
from trajformer.heads.detr.task import DetectionRecipe
from trajformer.heads.translation.data import TextConfig
from trajformer.heads.translation.model import TransformerConfig
from trajformer.heads.translation.task import TranslationRecipe
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import ClassificationRecipe

HEADS = 8  # in all published sizes of the Transformer and of DETR
HEAD_WIDTH = 64  # channels per attention head in all published sizes of ViT (Dosovitskiy et al. 2021, table 1)
Rules = dict[str, str]
Attention = tuple[Sequence[str], str]  # foreign names of the four projections and of the norm


def layer_rules(ours: str, foreign: str, attentions: Mapping[str, Attention], feedforward: tuple[str, str, str]) -> Rules:
    """Rules for the layers of an encoder or a decoder.

    Args:
        ours: the stack.
        foreign: the foreign layer, with its number as `{n}`.
        attentions: names within a foreign layer, by the name of our attention.
        feedforward: foreign names of the norm and of the two linear maps.
    """
    rules = {}
    for name, (projections, norm) in attentions.items():
        for part, projection in zip(("query", "key", "value", "out"), projections, strict=True):
            rules[f"{ours}.layers.{{n}}.{name}.sublayer.{part}.*"] = f"{foreign}.{projection}"
        rules[f"{ours}.layers.{{n}}.{name}.norm.*"] = f"{foreign}.{norm}.*"
    for part, name in zip(("norm", "sublayer.0", "sublayer.3"), feedforward, strict=True):
        rules[f"{ours}.layers.{{n}}.feedforward.{part}.*"] = f"{foreign}.{name}.*"
    return rules


def _fused(joint: str, out: str) -> list[str]:
    """Projections of which the first three are the rows of one matrix."""
    return [*(f"{joint}[{index}/3]" for index in range(3)), out]


def _separate(name: str, *parts: str) -> list[str]:
    return [f"{name}.{part}.*" for part in parts]


def torch_layers(prefix: str) -> Rules:
    """Rules for encoder and decoder of PyTorch's `nn.Transformer`, also used by the authors of DETR."""
    own, cross = (_fused(f"{name}.in_proj_*", f"{name}.out_proj.*") for name in ("self_attn", "multihead_attn"))
    linear, decoder = ("linear1", "linear2"), {"self_attention": (own, "norm1"), "cross_attention": (cross, "norm2")}
    rules = layer_rules("encoder", f"{prefix}encoder.layers.{{n}}", {"attention": (own, "norm1")}, ("norm2", *linear))
    return rules | layer_rules("decoder", f"{prefix}decoder.layers.{{n}}", decoder, ("norm3", *linear))


def hugging_face_layers(prefix: str) -> Rules:
    """Rules for encoder and decoder of DETR and Marian of Hugging Face."""
    names = "self_attn", "encoder_attn"
    own, cross = ((_separate(name, "q_proj", "k_proj", "v_proj", "out_proj"), f"{name}_layer_norm") for name in names)
    feedforward = "final_layer_norm", "fc1", "fc2"
    rules = layer_rules("encoder", f"{prefix}encoder.layers.{{n}}", {"attention": own}, feedforward)
    decoder = {"self_attention": own, "cross_attention": cross}
    return rules | layer_rules("decoder", f"{prefix}decoder.layers.{{n}}", decoder, feedforward)


# translation

_WORDS = ("w_qs", "w_ks", "w_vs", "fc")
_SELF, _CROSS = ((_separate(name, *_WORDS), f"{name}.layer_norm") for name in ("slf_attn", "enc_attn"))
_DECODER = {"self_attention": _SELF, "cross_attention": _CROSS}
_FEEDFORWARD = ("pos_ffn.layer_norm", "pos_ffn.w_1", "pos_ffn.w_2")
_TRANSFORMER = {
    "transformer.source.norm.*": "encoder.layer_norm.*",
    "transformer.target.norm.*": "decoder.layer_norm.*",
    **layer_rules("transformer.encoder", "encoder.layer_stack.{n}", {"attention": _SELF}, _FEEDFORWARD),
    **layer_rules("transformer.decoder", "decoder.layer_stack.{n}", _DECODER, _FEEDFORWARD),
}


def attention_is_all_you_need(source: StateDictReader, options: Options) -> Converted:
    """Convert a post-norm `Transformer` with bias-free projections, a layer norm on embeddings and epsilon 1e-6.

    The first four foreign tokens are unknown, padding, start and end, so the rows of embeddings and projection are
    reordered. If embedding and projection share a matrix, the logits are scaled by 1 / sqrt(D), the default of that code.
    The converted model has no tokenizer.
    """
    heads = options.heads or HEADS
    names = {"source": "encoder.src_word_emb.weight", "target": "decoder.trg_word_emb.weight"}
    shapes = {name: source.peek(key, 2).shape for name, key in names.items()}
    feedforward, width = source.peek("encoder.layer_stack.0.pos_ffn.w_1.weight", 2).shape[0], shapes["target"][1]
    keys, values = (source.peek(f"encoder.layer_stack.0.slf_attn.{name}.weight", 2).shape[0] for name in ("w_qs", "w_vs"))
    encoder, decoder = (source.count(f"{stack}.layer_stack.{{}}.slf_attn.fc.weight") for stack in ("encoder", "decoder"))
    projection = source.take("trg_word_prj.weight", *shapes["target"])
    embeddings = {name: source.take(key, *shapes[name]) for name, key in names.items()}
    tied = torch.equal(projection, embeddings["target"])
    all_tied = tied and torch.equal(projection, embeddings["source"])
    block = BlockConfig(width, heads, feedforward, norm_first=False, bias=False, norm_eps=1e-6)
    config = TransformerConfig(
        len(embeddings["source"]), len(projection), replace(block, d_k=keys // heads, d_v=values // heads), (encoder, decoder),
        tied=("all" if all_tied else "projection") if tied else "none", scale="projection" if tied else "none",
        embedding_norm=True,
    )  # fmt: skip
    for stack in ("encoder", "decoder"):
        key = f"{stack}.position_enc.pos_table"
        table = sinusoid(torch.arange(source.peek(key, 3).shape[1], dtype=torch.float64), width)
        source.take_constant(key, table[None].float())
    known = {"projection": projection} | {f"{name}.token": rows for name, rows in embeddings.items()}
    # Rows of padding, start, end and unknown in the foreign vocabulary, then all others.
    known = {f"transformer.{name}.weight": rows[[1, 2, 3, 0, *range(4, len(rows))]] for name, rows in known.items()}
    known["_extra_state"] = torch.zeros(1, dtype=torch.uint8)  # no tokenizer
    recipe = TranslationRecipe(model=config, data=TextConfig(vocabulary=0))
    return recipe, source.take_model(recipe.build_model, _TRANSFORMER, known)


# classification

_TIMM_ATTENTION = _fused("attn.qkv.*", "attn.proj.*"), "norm1"
_TIMM = {
    "token": "cls_token",
    "position": "pos_embed",
    "patches.*": "patch_embed.proj.*",
    "encoder.norm.*": "norm.*",
    "head.*": "head.*",
    **layer_rules("encoder", "blocks.{n}", {"attention": _TIMM_ATTENTION}, ("norm2", "mlp.fc1", "mlp.fc2")),
}
_HF_ATTENTION = [*_separate("attention.attention", "query", "key", "value"), "attention.output.dense.*"], "layernorm_before"
_HF_FEEDFORWARD = "layernorm_after", "intermediate.dense", "output.dense"
_HF_VIT = {
    "token": "vit.embeddings.cls_token",
    "position": "vit.embeddings.position_embeddings",
    "patches.*": "vit.embeddings.patch_embeddings.projection.*",
    "encoder.norm.*": "vit.layernorm.*",
    "head.*": "classifier.*",
    **layer_rules("encoder", "vit.encoder.layer.{n}", {"attention": _HF_ATTENTION}, _HF_FEEDFORWARD),
}


def timm_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert timm's `VisionTransformer` with a class token. Layer norms have epsilon 1e-6, inputs lie in -1..1."""
    return _convert_vit(source, options, _TIMM, 1e-6)


def hf_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `ViTForImageClassification` of Hugging Face. Layer norms have epsilon 1e-12, inputs lie in -1..1."""
    return _convert_vit(source, options, _HF_VIT, 1e-12)


def _convert_vit(source: StateDictReader, options: Options, layout: Rules, norm_eps: float) -> Converted:
    """Convert with a layout. Without biases of queries, keys and values, these are zero."""
    name, rules = {ours: foreign.replace("*", "weight") for ours, foreign in layout.items()}, dict(layout)
    layer, attention = "encoder.layers.{n}", "encoder.layers.{n}.attention.sublayer"
    patches, positions = source.peek(name["patches.*"], 4), source.peek(name["position"], 3).shape[1]
    width, channels, height, columns = patches.shape
    layers = source.count(name[f"{layer}.attention.norm.*"].replace("{n}", "{}"))
    feedforward = len(source.peek(name[f"{layer}.feedforward.sublayer.0.*"].format(n=0), 2))
    heads = options.heads or max(width // HEAD_WIDTH, 1)
    block = BlockConfig(width, heads, feedforward, dropout=0.0, norm_first=True, activation="gelu", norm_eps=norm_eps)
    classes = len(source.peek(name["head.*"], 2))
    side = round((positions - 1) ** 0.5)
    if height != columns or not side or side**2 + 1 != positions:
        raise CheckpointError(
            f"{source.name}: patches of {height} x {columns} pixels at {positions} positions, expected square patches, "
            "and one position per patch of a square image plus one for the class token"
        )
    options.check_labels(classes, source.name)
    recipe = ClassificationRecipe(model=ViTConfig(side * height, height, channels, classes, layers, block), labels=options.labels)
    known = {"token": source.take(name["token"], 1, 1, width)[0]}
    known["position.tables.0"] = source.take(name["position"], 1, positions, width)[0]
    if layout[f"{attention}.query.*"].replace("*", "bias").removesuffix("[0/3]").format(n=0) not in source:
        rules = {f"{attention}.{part}.bias": "" for part in ("query", "key", "value")} | rules
    return recipe, source.take_model(recipe.build_model, rules, known)


# detection

_FACEBOOK = {
    "encoder.norm.*": "transformer.encoder.norm.*",
    "decoder.norm.*": "transformer.decoder.norm.*",
    "project.*": "input_proj.*",
    "queries.*": "query_embed.*",
    "classify.*": "class_embed.*",
    **{f"locate.{2 * layer}.*": f"bbox_embed.layers.{layer}.*" for layer in range(3)},
    "position.tables.0": "backbone.1.col_embed.weight",
    "position.tables.1": "backbone.1.row_embed.weight",
    **torch_layers("transformer."),
}
_HF_DETR = {
    "encoder.norm.*": "model.encoder.layernorm.*",
    "decoder.norm.*": "model.decoder.layernorm.*",
    "project.*": "model.input_projection.*",
    "queries.*": "model.query_position_embeddings.*",
    "classify.*": "class_labels_classifier.*",
    **{f"locate.{2 * layer}.*": f"bbox_predictor.layers.{layer}.*" for layer in range(3)},
    "position.tables.0": "model.position_embedding.column_embeddings.weight",
    "position.tables.1": "model.position_embedding.row_embeddings.weight",
    **hugging_face_layers("model."),
}
# Convolutions and norms of a ResNet. Stages, blocks and parts are numbered from 0; {stage1} and {part1} count from 1.
_HERE, _BLOCK = "stages.{stage}.{block}", "encoder.stages.{stage}.layers.{block}"
_TORCHVISION = {
    "stem": "conv1",
    "norm": "bn1",
    f"{_HERE}.convolutions.{{part}}": "layer{stage1}.{block}.conv{part1}",
    f"{_HERE}.norms.{{part}}": "layer{stage1}.{block}.bn{part1}",
    f"{_HERE}.shortcut.0": "layer{stage1}.{block}.downsample.0",
    f"{_HERE}.shortcut.1": "layer{stage1}.{block}.downsample.1",
}
_HF_RESNET = {
    "stem": "embedder.embedder.convolution",
    "norm": "embedder.embedder.normalization",
    f"{_HERE}.convolutions.{{part}}": f"{_BLOCK}.layer.{{part}}.convolution",
    f"{_HERE}.norms.{{part}}": f"{_BLOCK}.layer.{{part}}.normalization",
    f"{_HERE}.shortcut.0": f"{_BLOCK}.shortcut.convolution",
    f"{_HERE}.shortcut.1": f"{_BLOCK}.shortcut.normalization",
}
_STATISTICS = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


def facebook_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert the authors' `DETR` without segmentation heads."""
    return _convert_detr(source, options, _FACEBOOK, "backbone.0.body", _TORCHVISION)


def facebook_detr_dc5(source: StateDictReader, options: Options) -> Converted:
    """Convert the authors' DETR with dilation in the last stage of the backbone, which the shapes do not show."""
    return _convert_detr(source, options, _FACEBOOK, "backbone.0.body", _TORCHVISION, dilated=True)


def hf_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `DetrForObjectDetection` of Hugging Face, with timm's ResNet or its own."""
    prefix = "model.backbone.conv_encoder.model"
    names = _TORCHVISION if f"{prefix}.conv1.weight" in source else _HF_RESNET
    return _convert_detr(source, options, _HF_DETR, prefix, names)


def _convert_detr(
    source: StateDictReader, options: Options, layout: Rules, prefix: str, names: Rules, *, dilated: bool = False
) -> Converted:
    """Convert with the names of a layout and of a ResNet below `prefix`."""
    first = f"{prefix}.{names[f'{_HERE}.convolutions.{{part}}']}.weight".replace("{block}", "{{}}")
    blocks = [source.count(first.format(stage=stage, stage1=stage + 1, part=0, part1=1)) for stage in range(4)]
    stem = source.peek(f"{prefix}.{names['stem']}.weight", 4)
    resnet = ResNetConfig((blocks[0], blocks[1], blocks[2], blocks[3]), len(stem), 16 if dilated else 32)
    name = {ours: foreign.replace("*", "weight") for ours, foreign in layout.items()}
    query, classes = source.peek(name["queries.*"], 2), len(source.peek(name["classify.*"], 2)) - 1
    encoder, decoder = (
        source.count(name[f"{stack}.layers.{{n}}.feedforward.norm.*"].replace("{n}", "{}")) for stack in ("encoder", "decoder")
    )
    feedforward = len(source.peek(name["encoder.layers.{n}.feedforward.sublayer.0.*"].format(n=0), 2))
    heads, norm_first = options.heads or HEADS, name["encoder.norm.*"] in source
    model = DetrConfig(
        classes, len(query), BlockConfig(query.shape[1], heads, feedforward, dropout=0.1, norm_first=norm_first),
        (encoder, decoder), "learned" if name["position.tables.1"] in source else "sine", BackboneConfig(resnet=resnet),
    )  # fmt: skip
    options.check_labels(classes, source.name)
    rules = dict(layout)
    for ours, foreign in names.items():
        convolution = ours == "stem" or "convolutions" in ours or ours.endswith("shortcut.0")
        for part, statistic in {"weight": "weight"}.items() if convolution else _STATISTICS.items():
            rules[f"backbone.{ours}.{part}"] = f"{prefix}.{foreign}.{statistic}"
    recipe = DetectionRecipe(model=model, labels=options.labels)
    return recipe, source.take_model(recipe.build_model, rules)
