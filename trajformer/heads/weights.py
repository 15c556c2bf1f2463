"""Converters of published weights: Transformer, ViT and DETR.

Each raises CheckpointError for a missing or misshaped tensor. The caller checks that all tensors of
the file were used. The rules are explained at `StateDictReader.take_model`.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import TORCH_LAYERS, Converted, Options, StateDictReader, foreign_name
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
# Channels per attention head in all published sizes of ViT (Dosovitskiy et al. 2021, table 1).
HEAD_WIDTH = 64
Rules = dict[str, str]  # see `StateDictReader.take_model`
Stride = Literal[16, 32]  # of the features of a ResNet

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
    """Convert a post-norm `Transformer` of `attention-is-all-you-need-pytorch`.

    It has bias-free projections, a layer norm on embeddings and epsilon 1e-6. The first four
    foreign tokens are unknown, padding, start and end, so the rows of embeddings and projection are
    reordered. If embedding and projection share a matrix, the logits are scaled by 1 / sqrt(D), the
    default of that code. The converted model has no tokenizer.
    """
    source_key = "encoder.src_word_emb.weight"
    target_key = "decoder.trg_word_emb.weight"
    source_tokens, width = source.peek(source_key, 2).shape
    target_tokens, _ = source.peek(target_key, 2).shape
    attention = "encoder.layer_stack.0.slf_attn"
    heads = options.heads or HEADS
    block = BlockConfig(
        width,
        heads,
        feedforward=len(source.peek("encoder.layer_stack.0.pos_ffn.w_1.weight", 2)),
        d_k=len(source.peek(f"{attention}.w_qs.weight", 2)) // heads,
        d_v=len(source.peek(f"{attention}.w_vs.weight", 2)) // heads,
        norm_first=False,
        bias=False,
        norm_eps=1e-6,
    )
    encoder_layers = source.count("encoder.layer_stack.{}.slf_attn.fc.weight")
    decoder_layers = source.count("decoder.layer_stack.{}.slf_attn.fc.weight")
    for stack in ("encoder", "decoder"):
        _take_positions(source, f"{stack}.position_enc.pos_table", width)

    # Matrices are shared if they are equal.
    projection = source.take("trg_word_prj.weight", target_tokens, width)
    source_embedding = source.take(source_key, source_tokens, width)
    target_embedding = source.take(target_key, target_tokens, width)
    tied: Literal["none", "projection", "all"] = "none"
    if torch.equal(projection, target_embedding):
        tied = "all" if torch.equal(projection, source_embedding) else "projection"
    model = TransformerConfig(
        source_tokens,
        target_tokens,
        block,
        (encoder_layers, decoder_layers),
        tied=tied,
        scale="none" if tied == "none" else "projection",
        embedding_norm=True,
    )
    recipe = TranslationRecipe(model=model, data=TextConfig(vocabulary=0))
    known = {
        "transformer.source.token.weight": _reorder_tokens(source_embedding),
        "transformer.target.token.weight": _reorder_tokens(target_embedding),
        "transformer.projection.weight": _reorder_tokens(projection),
        "_extra_state": torch.zeros(1, dtype=torch.uint8),  # no tokenizer
    }
    return recipe, source.take_model(recipe.build_model, _TRANSFORMER, known)


def _take_positions(source: StateDictReader, key: str, width: int) -> None:
    """Take a table of sinusoidal positions [1, L, D]."""
    length = source.peek(key, 3).shape[1]
    table = sinusoid(torch.arange(length, dtype=torch.float64), width)
    source.take_constant(key, table[None].float())


def _reorder_tokens(rows: Tensor) -> Tensor:
    """Rows of padding, start, end and unknown in the foreign vocabulary, then all others."""
    return torch.cat([rows[[1, 2, 3, 0]], rows[4:]])


_TIMM = {
    r"^token$": "cls_token",
    r"^position\..*": "pos_embed",
    r"^patches\.": "patch_embed.proj.",
    r"^encoder\.norm\.": "norm.",
    r"^encoder\.layers\.": "blocks.",
    r"attention\.norm": "norm1",
    r"attention\.sublayer\.out": "attn.proj",
    r"attention\.sublayer\.query\.(.*)": r"attn.qkv.\1[0/3]",
    r"attention\.sublayer\.key\.(.*)": r"attn.qkv.\1[1/3]",
    r"attention\.sublayer\.value\.(.*)": r"attn.qkv.\1[2/3]",
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
    """Convert timm's `VisionTransformer` with a class token.

    Layer norms have epsilon 1e-6, inputs lie in -1..1.
    """
    return _convert_vit(source, options, _TIMM, 1e-6)


def hf_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `ViTForImageClassification` of Hugging Face.

    Layer norms have epsilon 1e-12, inputs lie in -1..1.
    """
    return _convert_vit(source, options, _HF_VIT, 1e-12)


def _convert_vit(
    source: StateDictReader, options: Options, rules: Rules, norm_eps: float
) -> Converted:
    """Convert with the rules of a layout.

    Without biases of queries, keys and values, these are zero.
    """
    name = partial(foreign_name, rules=rules)
    width, channels, height, columns = source.peek(name("patches.weight"), 4).shape
    positions = source.peek(name("position.tables.0"), 3).shape[1]
    side = round((positions - 1) ** 0.5)
    if height != columns or not side or side**2 + 1 != positions:
        raise CheckpointError(
            f"{source.name}: patches of {height} x {columns} pixels at {positions} positions, "
            "expected square patches, and one position per patch of a square image plus one for "
            "the class token"
        )
    classes = len(source.peek(name("head.weight"), 2))
    options.check_labels(classes, source.name)
    layers = source.count(name("encoder.layers.{}.attention.norm.weight"))
    block = BlockConfig(
        width,
        options.heads or max(width // HEAD_WIDTH, 1),
        feedforward=_count_rows(source, name("encoder.layers.0.feedforward.sublayer.0.weight")),
        dropout=0.0,
        norm_first=True,
        activation="gelu",
        norm_eps=norm_eps,
    )
    model = ViTConfig(side * height, height, channels, classes, layers, block)
    recipe = ClassificationRecipe(model=model, labels=options.labels)

    # The foreign tensors have a leading axis of one image.
    known = {
        "token": source.take(name("token"), 1, 1, width)[0],
        "position.tables.0": source.take(name("position.tables.0"), 1, positions, width)[0],
    }
    bias = name("encoder.layers.0.attention.sublayer.query.bias").removesuffix("[0/3]")
    if bias not in source:
        rules = {r".*\.(query|key|value)\.bias": "", **rules}
    return recipe, source.take_model(recipe.build_model, rules, known)


def _count_rows(source: StateDictReader, key: str) -> int:
    return len(source.peek(key, 2))


_FACEBOOK = {
    r"^(en|de)coder\.": r"transformer.\1coder.",
    r"^project\.": "input_proj.",
    r"^queries\.": "query_embed.",
    r"^classify\.": "class_embed.",
    r"^locate\.0\.": "bbox_embed.layers.0.",
    r"^locate\.2\.": "bbox_embed.layers.1.",
    r"^locate\.4\.": "bbox_embed.layers.2.",
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
    r"^locate\.0\.": "bbox_predictor.layers.0.",
    r"^locate\.2\.": "bbox_predictor.layers.1.",
    r"^locate\.4\.": "bbox_predictor.layers.2.",
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
    r"^backbone\.stages\.0\.": "backbone.layer1.",
    r"^backbone\.stages\.1\.": "backbone.layer2.",
    r"^backbone\.stages\.2\.": "backbone.layer3.",
    r"^backbone\.stages\.3\.": "backbone.layer4.",
    r"\.convolutions\.0\.": ".conv1.",
    r"\.convolutions\.1\.": ".conv2.",
    r"\.convolutions\.2\.": ".conv3.",
    r"\.norms\.0\.": ".bn1.",
    r"\.norms\.1\.": ".bn2.",
    r"\.norms\.2\.": ".bn3.",
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


def facebook_detr(source: StateDictReader, options: Options, stride: Stride = 32) -> Converted:
    """Convert the authors' `DETR` without segmentation heads.

    The shapes do not show the stride: 16 is a dilated last stage.
    """
    rules = _FACEBOOK | _TORCHVISION | {r"^backbone\.(?!1\.)": "backbone.0.body."}
    return _convert_detr(source, options, rules, stride)


facebook_detr_dc5 = partial(facebook_detr, stride=16)


def hf_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `DetrForObjectDetection` of Hugging Face.

    The ResNet is that of timm or of Hugging Face.
    """
    prefix = "model.backbone.conv_encoder.model."
    resnet = _TORCHVISION if f"{prefix}conv1.weight" in source else _HF_RESNET
    return _convert_detr(source, options, _HF_DETR | resnet | {r"^backbone\.": prefix})


def _convert_detr(
    source: StateDictReader, options: Options, rules: Rules, stride: Stride = 32
) -> Converted:
    """Convert with the rules of a layout."""
    name = partial(foreign_name, rules=rules)

    def count_blocks(stage: int) -> int:
        return source.count(name(f"backbone.stages.{stage}.{{}}.convolutions.0.weight"))

    def count_layers(stack: str) -> int:
        return source.count(name(f"{stack}.layers.{{}}.feedforward.norm.weight"))

    resnet = ResNetConfig(
        blocks=(count_blocks(0), count_blocks(1), count_blocks(2), count_blocks(3)),
        width=len(source.peek(name("backbone.stem.weight"), 4)),
        stride=stride,
    )
    queries, width = source.peek(name("queries.weight"), 2).shape
    outputs = _count_rows(source, name("classify.weight"))
    classes = outputs - 1  # without "no object"
    options.check_labels(classes, source.name)
    block = BlockConfig(
        width,
        options.heads or HEADS,
        feedforward=_count_rows(source, name("encoder.layers.0.feedforward.sublayer.0.weight")),
        dropout=0.1,
        norm_first=name("encoder.norm.weight") in source,
    )
    model = DetrConfig(
        classes,
        queries,
        block,
        layers=(count_layers("encoder"), count_layers("decoder")),
        position="learned" if name("position.tables.1") in source else "sine",
        backbone=BackboneConfig(resnet=resnet),
    )
    recipe = DetectionRecipe(model=model, labels=options.labels)
    return recipe, source.take_model(recipe.build_model, rules)
