"""Converters of published weights: Transformer, ViT and DETR. Each raises CheckpointError for a missing or misshaped tensor.

The caller checks that all tensors of the file were used. The rules are explained at `StateDictReader.take_model`.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import TORCH_LAYERS, Converted, Options, StateDictReader, foreign_name
from trajformer.errors import CheckpointError
from trajformer.heads.detr.backbone import BackboneConfig, ResNetConfig
from trajformer.heads.detr.model import DetrConfig
from trajformer.heads.detr.task import DetectionRecipe
from trajformer.heads.translation import TextConfig, TransformerConfig, TranslationRecipe
from trajformer.heads.vit import ClassificationRecipe, ViTConfig

HEADS = 8  # in all published sizes of the Transformer and of DETR
HEAD_WIDTH = 64  # channels per attention head in all published sizes of ViT (Dosovitskiy et al. 2021, table 1)
Rules = dict[str, str]  # see `StateDictReader.take_model`


_TRANSFORMER = {
    r"^transformer\.source\.norm": "encoder.layer_norm",
    r"^transformer\.target\.norm": "decoder.layer_norm",
    r"^transformer\.(.*)\.layers\.": r"\1.layer_stack.",
    r"cross_attention\.(sublayer)?": "enc_attn.",
    r"(self_)?attention\.(sublayer)?": "slf_attn.",
    r"feedforward\.norm": "pos_ffn.norm",
    r"feedforward\.sublayer\.0": "pos_ffn.w_1",
    r"feedforward\.sublayer\.3": "pos_ffn.w_2",
    r"\.norm\.": ".layer_norm.",
    r"\.\.(q|k|v)\w+": r".w_\1s",
    r"\.\.out": ".fc",
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
    feedforward, width = (
        source.peek("encoder.layer_stack.0.pos_ffn.w_1.weight", 2).shape[0],
        shapes["target"][1],
    )
    keys, values = (
        source.peek(f"encoder.layer_stack.0.slf_attn.{name}.weight", 2).shape[0]
        for name in ("w_qs", "w_vs")
    )
    encoder, decoder = (
        source.count(f"{stack}.layer_stack.{{}}.slf_attn.fc.weight")
        for stack in ("encoder", "decoder")
    )
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
    known = {"projection": projection} | {
        f"{name}.token": rows for name, rows in embeddings.items()
    }
    # Rows of padding, start, end and unknown in the foreign vocabulary, then all others.
    known = {
        f"transformer.{name}.weight": rows[[1, 2, 3, 0, *range(4, len(rows))]]
        for name, rows in known.items()
    }
    known["_extra_state"] = torch.zeros(1, dtype=torch.uint8)  # no tokenizer
    recipe = TranslationRecipe(model=config, data=TextConfig(vocabulary=0))
    return recipe, source.take_model(recipe.build_model, _TRANSFORMER, known)


_TIMM = {
    r"^token$": "cls_token",
    r"^position\..*": "pos_embed",
    r"^patches\.": "patch_embed.proj.",
    r"^encoder\.norm\.": "norm.",
    r"^encoder\.layers\.": "blocks.",
    r"attention\.norm": "norm1",
    r"attention\.sublayer\.out": "attn.proj",
    **{
        rf"attention\.sublayer\.{part}\.(.*)": rf"attn.qkv.\1[{i}/3]"
        for i, part in enumerate(("query", "key", "value"))
    },
    r"feedforward\.norm": "norm2",
    r"feedforward\.sublayer\.0": "mlp.fc1",
    r"feedforward\.sublayer\.3": "mlp.fc2",
}
_HF_VIT = {
    r"^token$": "vit.embeddings.cls_token",
    r"^position\..*": "vit.embeddings.position_embeddings",
    r"^patches\.": "vit.embeddings.patch_embeddings.projection.",
    r"^encoder\.norm\.": "vit.layernorm.",
    r"^head\.": "classifier.",
    r"^encoder\.layers\.": "vit.encoder.layer.",
    r"attention\.norm": "layernorm_before",
    r"attention\.sublayer\.out": "attention.output.dense",
    r"attention\.sublayer": "attention.attention",
    r"feedforward\.norm": "layernorm_after",
    r"feedforward\.sublayer\.0": "intermediate.dense",
    r"feedforward\.sublayer\.3": "output.dense",
}


def timm_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert timm's `VisionTransformer` with a class token. Layer norms have epsilon 1e-6, inputs lie in -1..1."""
    return _convert_vit(source, options, _TIMM, 1e-6)


def hf_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `ViTForImageClassification` of Hugging Face. Layer norms have epsilon 1e-12, inputs lie in -1..1."""
    return _convert_vit(source, options, _HF_VIT, 1e-12)


def _convert_vit(
    source: StateDictReader, options: Options, rules: Rules, norm_eps: float
) -> Converted:
    """Convert with the rules of a layout. Without biases of queries, keys and values, these are zero."""
    name = partial(foreign_name, rules=rules)
    patches, positions = (
        source.peek(name("patches.weight"), 4),
        source.peek(name("position.tables.0"), 3).shape[1],
    )
    width, channels, height, columns = patches.shape
    layers = source.count(name("encoder.layers.{}.attention.norm.weight"))
    feedforward = len(source.peek(name("encoder.layers.0.feedforward.sublayer.0.weight"), 2))
    heads = options.heads or max(width // HEAD_WIDTH, 1)
    block = BlockConfig(
        width,
        heads,
        feedforward,
        dropout=0.0,
        norm_first=True,
        activation="gelu",
        norm_eps=norm_eps,
    )
    classes = len(source.peek(name("head.weight"), 2))
    side = round((positions - 1) ** 0.5)
    if height != columns or not side or side**2 + 1 != positions:
        raise CheckpointError(
            f"{source.name}: patches of {height} x {columns} pixels at {positions} positions, expected square patches, "
            "and one position per patch of a square image plus one for the class token"
        )
    options.check_labels(classes, source.name)
    recipe = ClassificationRecipe(
        model=ViTConfig(side * height, height, channels, classes, layers, block),
        labels=options.labels,
    )
    known = {"token": source.take(name("token"), 1, 1, width)[0]}
    known["position.tables.0"] = source.take(name("position.tables.0"), 1, positions, width)[0]
    if name("encoder.layers.0.attention.sublayer.query.bias").removesuffix("[0/3]") not in source:
        rules = {r".*\.(query|key|value)\.bias": "", **rules}
    return recipe, source.take_model(recipe.build_model, rules, known)


_FACEBOOK = {
    r"^(en|de)coder\.": r"transformer.\1coder.",
    r"^project\.": "input_proj.",
    r"^queries\.": "query_embed.",
    r"^classify\.": "class_embed.",
    **{rf"^locate\.{2 * layer}\.": f"bbox_embed.layers.{layer}." for layer in range(3)},
    r"^position\.tables\.0": "backbone.1.col_embed.weight",
    r"^position\.tables\.1": "backbone.1.row_embed.weight",
    **TORCH_LAYERS,
}
_HF_DETR = {
    r"^(en|de)coder\.norm\.": r"model.\1coder.layernorm.",
    r"^(en|de)coder\.": r"model.\1coder.",
    r"^project\.": "model.input_projection.",
    r"^queries\.": "model.query_position_embeddings.",
    r"^classify\.": "class_labels_classifier.",
    **{rf"^locate\.{2 * layer}\.": f"bbox_predictor.layers.{layer}." for layer in range(3)},
    r"^position\.tables\.0": "model.position_embedding.column_embeddings.weight",
    r"^position\.tables\.1": "model.position_embedding.row_embeddings.weight",
    r"feedforward\.norm": "final_layer_norm",
    r"feedforward\.sublayer\.0": "fc1",
    r"feedforward\.sublayer\.3": "fc2",
    r"cross_attention\.norm": "encoder_attn_layer_norm",
    r"(self_)?attention\.norm": "self_attn_layer_norm",
    r"cross_attention\.sublayer": "encoder_attn",
    r"(self_)?attention\.sublayer": "self_attn",
    r"attn\.(q|k|v|out)\w*\.": r"attn.\1_proj.",
}
# ResNets below the name `backbone`
_STATISTICS = {
    r"^backbone\.(.*)\.mean$": r"backbone.\1.running_mean",
    r"^backbone\.(.*)\.variance$": r"backbone.\1.running_var",
}
_TORCHVISION = {
    r"^backbone\.stem\.": "backbone.conv1.",
    r"^backbone\.norm\.": "backbone.bn1.",
    **{rf"^backbone\.stages\.{stage}\.": f"backbone.layer{stage + 1}." for stage in range(4)},
    **{rf"\.convolutions\.{part}\.": f".conv{part + 1}." for part in range(3)},
    **{rf"\.norms\.{part}\.": f".bn{part + 1}." for part in range(3)},
    r"\.shortcut\.": ".downsample.",
    **_STATISTICS,
}
_HF_RESNET = {
    r"^backbone\.stem\.": "backbone.embedder.embedder.convolution.",
    r"^backbone\.norm\.": "backbone.embedder.embedder.normalization.",
    r"^backbone\.stages\.(\d)\.": r"backbone.encoder.stages.\1.layers.",
    r"\.convolutions\.(\d)\.": r".layer.\1.convolution.",
    r"\.norms\.(\d)\.": r".layer.\1.normalization.",
    r"\.shortcut\.0\.": ".shortcut.convolution.",
    r"\.shortcut\.1\.": ".shortcut.normalization.",
    **_STATISTICS,
}


def facebook_detr(
    source: StateDictReader, options: Options, stride: Literal[16, 32] = 32
) -> Converted:
    """Convert the authors' `DETR` without segmentation heads; the shapes do not show the stride: 16 is a dilated last stage."""
    rules = _FACEBOOK | _TORCHVISION | {r"^backbone\.(?!1\.)": "backbone.0.body."}
    return _convert_detr(source, options, rules, stride)


facebook_detr_dc5 = partial(facebook_detr, stride=16)


def hf_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `DetrForObjectDetection` of Hugging Face, with timm's ResNet or its own."""
    prefix = "model.backbone.conv_encoder.model."
    names = _TORCHVISION if f"{prefix}conv1.weight" in source else _HF_RESNET
    return _convert_detr(source, options, _HF_DETR | names | {r"^backbone\.": prefix})


def _convert_detr(
    source: StateDictReader, options: Options, rules: Rules, stride: Literal[16, 32] = 32
) -> Converted:
    name = partial(foreign_name, rules=rules)
    first, *rest = (
        source.count(name(f"backbone.stages.{stage}.{{}}.convolutions.0.weight"))
        for stage in range(4)
    )
    resnet = ResNetConfig(
        (first, rest[0], rest[1], rest[2]),
        len(source.peek(name("backbone.stem.weight"), 4)),
        stride,
    )
    query, classes = (
        source.peek(name("queries.weight"), 2),
        len(source.peek(name("classify.weight"), 2)) - 1,
    )
    encoder, decoder = (
        source.count(name(f"{stack}.layers.{{}}.feedforward.norm.weight"))
        for stack in ("encoder", "decoder")
    )
    feedforward = len(source.peek(name("encoder.layers.0.feedforward.sublayer.0.weight"), 2))
    heads, norm_first = options.heads or HEADS, name("encoder.norm.weight") in source
    model = DetrConfig(
        classes, len(query), BlockConfig(query.shape[1], heads, feedforward, dropout=0.1, norm_first=norm_first),
        (encoder, decoder), "learned" if name("position.tables.1") in source else "sine", BackboneConfig(resnet=resnet),
    )  # fmt: skip
    options.check_labels(classes, source.name)
    recipe = DetectionRecipe(model=model, labels=options.labels)
    return recipe, source.take_model(recipe.build_model, rules)
