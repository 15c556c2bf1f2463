"""DETR with a ResNet backbone, of its authors and of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.weights import Options, Source, under
from trajformer.errors import CheckpointError
from trajformer.heads.detr.backbone import BackboneConfig, ResNetConfig
from trajformer.heads.detr.model import LEARNED, DetrConfig
from trajformer.heads.detr.task import DetectionRecipe

HEADS = 8  # in all published sizes
Converted = tuple[DetectionRecipe, dict[str, Tensor]]


@dataclass(frozen=True)
class _ResNetNames:
    """Where a ResNet's convolutions and norms are; `stage` and `part` count from 0, `stage1` and `part1` from 1."""

    stem: str
    stem_norm: str
    convolution: str
    norm: str
    shortcut: str
    shortcut_norm: str


@dataclass(frozen=True)
class _Names:
    """Where the rest is; {} stands for the number of a layer.

    `query_key_value` is one matrix, or three. The norms of a layer are in the order in which they are applied; the last two
    are those after encoder (pre-norm alone has one) and decoder.
    """

    encoder: str
    decoder: str
    query_key_value: tuple[str, ...]
    cross: str
    encoder_norms: tuple[str, str]
    decoder_norms: tuple[str, str, str]
    feedforward: tuple[str, str]
    last_norms: tuple[str, str]
    project: str
    queries: str
    classify: str
    locate: str
    rows: str
    columns: str


_TORCHVISION = _ResNetNames(
    "conv1",
    "bn1",
    "layer{stage1}.{block}.conv{part1}",
    "layer{stage1}.{block}.bn{part1}",
    "layer{stage1}.{block}.downsample.0",
    "layer{stage1}.{block}.downsample.1",
)
_HF_RESNET = _ResNetNames(
    "embedder.embedder.convolution",
    "embedder.embedder.normalization",
    "encoder.stages.{stage}.layers.{block}.layer.{part}.convolution",
    "encoder.stages.{stage}.layers.{block}.layer.{part}.normalization",
    "encoder.stages.{stage}.layers.{block}.shortcut.convolution",
    "encoder.stages.{stage}.layers.{block}.shortcut.normalization",
)
_FACEBOOK = _Names(
    encoder="transformer.encoder.layers.{}",
    decoder="transformer.decoder.layers.{}",
    query_key_value=("in_proj_",),
    cross="multihead_attn",
    encoder_norms=("norm1", "norm2"),
    decoder_norms=("norm1", "norm2", "norm3"),
    feedforward=("linear1", "linear2"),
    last_norms=("transformer.encoder.norm", "transformer.decoder.norm"),
    project="input_proj",
    queries="query_embed",
    classify="class_embed",
    locate="bbox_embed",
    rows="backbone.1.row_embed",
    columns="backbone.1.col_embed",
)
_HUGGING_FACE = _Names(
    encoder="model.encoder.layers.{}",
    decoder="model.decoder.layers.{}",
    query_key_value=("q_proj.", "k_proj.", "v_proj."),
    cross="encoder_attn",
    encoder_norms=("self_attn_layer_norm", "final_layer_norm"),
    decoder_norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    feedforward=("fc1", "fc2"),
    last_norms=("model.encoder.layernorm", "model.decoder.layernorm"),
    project="model.input_projection",
    queries="model.query_position_embeddings",
    classify="class_labels_classifier",
    locate="bbox_predictor",
    rows="model.position_embedding.row_embeddings",
    columns="model.position_embedding.column_embeddings",
)


def facebook_detr(source: Source, options: Options) -> Converted:
    """The authors' `DETR`, without segmentation heads.

    Raises:
        CheckpointError: a tensor is missing or of another shape; what is left over is for the caller to refuse.
    """
    resnet, weights = _resnet(source, "backbone.0.body", _TORCHVISION)
    return _detr(source, options, _FACEBOOK, resnet, weights)


def facebook_detr_dc5(source: Source, options: Options) -> Converted:
    """The same with dilation in the last stage of the backbone, which no shape tells.

    Raises:
        CheckpointError: as `facebook_detr`.
    """
    resnet, weights = _resnet(source, "backbone.0.body", _TORCHVISION)
    return _detr(source, options, _FACEBOOK, replace(resnet, stride=16), weights)


def hf_detr(source: Source, options: Options) -> Converted:
    """Hugging Face's `DetrForObjectDetection` as it is saved, with timm's ResNet or its own.

    Raises:
        CheckpointError: as `facebook_detr`.
    """
    prefix = "model.backbone.conv_encoder.model"
    names = _TORCHVISION if f"{prefix}.conv1.weight" in source else _HF_RESNET
    return _detr(source, options, _HUGGING_FACE, *_resnet(source, prefix, names))


def _resnet(source: Source, prefix: str, names: _ResNetNames) -> tuple[ResNetConfig, dict[str, Tensor]]:
    """Sizes and weights of the backbone."""

    def place(template: str, stage: int = 0, block: int | str = 0, part: int = 0) -> str:
        filled = template.format(stage=stage, block=block, part=part, stage1=stage + 1, part1=part + 1)
        return f"{prefix}.{filled}"

    def take(convolution: str, norm: str, *shape: int) -> list[dict[str, Tensor]]:
        statistics = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
        taken = {ours: source.take(f"{norm}.{theirs}", shape[0]) for theirs, ours in statistics.items()}
        return [{"weight": source.take(f"{convolution}.weight", *shape)}, taken]

    stem = place(names.stem)
    width = before = len(source.peek(f"{stem}.weight", 4))
    counts = [source.count(f"{place(names.convolution, stage, '{}')}.weight") for stage in range(4)]
    convolution, norm = take(stem, place(names.stem_norm), width, 3, 7, 7)
    weights = under("backbone.stem", convolution) | under("backbone.norm", norm)
    for stage, count in enumerate(counts):
        inner = width * 2**stage
        for block in range(count):
            ours, at = f"backbone.stages.{stage}.{block}", (stage, block)
            shapes = (inner, before, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)
            for part, shape in enumerate(shapes):
                convolution, norm = take(place(names.convolution, *at, part), place(names.norm, *at, part), *shape)
                weights |= under(f"{ours}.convolutions.{part}", convolution) | under(f"{ours}.norms.{part}", norm)
            if block == 0:
                convolution, norm = take(place(names.shortcut, *at), place(names.shortcut_norm, *at), 4 * inner, before, 1, 1)
                weights |= under(f"{ours}.shortcut.0", convolution) | under(f"{ours}.shortcut.1", norm)
            before = 4 * inner
    return ResNetConfig((counts[0], counts[1], counts[2], counts[3]), width), weights


def _detr(source: Source, options: Options, names: _Names, resnet: ResNetConfig, weights: dict[str, Tensor]) -> Converted:
    query, rows = source.peek(f"{names.queries}.weight", 2), f"{names.rows}.weight"
    width, classes = query.shape[1], len(source.peek(f"{names.classify}.weight", 2)) - 1
    inner = len(source.peek(f"{names.encoder.format(0)}.{names.feedforward[0]}.weight", 2))
    layers = tuple(source.count(f"{stack}.{names.decoder_norms[0]}.weight") for stack in (names.encoder, names.decoder))
    norm_first, heads = f"{names.last_norms[0]}.weight" in source, options.heads or HEADS
    block = BlockConfig(width=width, heads=heads, feedforward=inner, dropout=0.1, norm_first=norm_first)
    model = DetrConfig(classes, len(query), block, (layers[0], layers[1]), backbone=BackboneConfig(resnet=resnet))
    for stack, cross, count in ((names.encoder, None, layers[0]), (names.decoder, names.cross, layers[1])):
        for layer in range(count):
            ours = f"{'encoder' if cross is None else 'decoder'}.layers.{layer}"
            weights |= under(ours, _block(source, stack.format(layer), names, block, cross))
    if norm_first:
        weights |= under("encoder.norm", source.norm(names.last_norms[0], width))
    weights |= under("decoder.norm", source.norm(names.last_norms[1], width))
    weights["project.weight"] = source.take(f"{names.project}.weight", width, 32 * resnet.width, 1, 1)
    weights["project.bias"] = source.take(f"{names.project}.bias", width)
    weights["queries.weight"] = source.take(f"{names.queries}.weight", len(query), width)
    weights |= under("classify", source.linear(names.classify, classes + 1, width))
    for index, outputs in enumerate((width, width, 4)):
        weights |= under(f"locate.{2 * index}", source.linear(f"{names.locate}.layers.{index}", outputs, width))
    if rows in source:
        model = replace(model, position="learned")
        for axis, table in enumerate((names.columns, names.rows)):
            weights[f"position.tables.{axis}"] = source.take(f"{table}.weight", LEARNED, width // 2)
    if options.labels and len(options.labels) != classes:
        raise CheckpointError(f"{source.name}: {classes} classes, but {len(options.labels)} labels")
    return DetectionRecipe(model=model, labels=options.labels), weights


def _block(source: Source, theirs: str, names: _Names, block: BlockConfig, cross: str | None) -> dict[str, Tensor]:
    """Weights of a layer of the encoder, or, with the name of its cross-attention, of the decoder."""
    if cross is None:
        attentions, norms = {"attention": "self_attn"}, dict(zip(("attention", "feedforward"), names.encoder_norms, strict=True))
    else:
        attentions = {"self_attention": "self_attn", "cross_attention": cross}
        norms = dict(zip(("self_attention", "cross_attention", "feedforward"), names.decoder_norms, strict=True))
    width, inner = block.width, block.feedforward
    weights: dict[str, Tensor] = {}
    for ours, name in attentions.items():
        weights |= under(f"{ours}.sublayer", _attention(source, f"{theirs}.{name}", names, width))
    for ours, name in norms.items():
        weights |= under(f"{ours}.norm", source.norm(f"{theirs}.{name}", width))
    weights |= under("feedforward.sublayer.0", source.linear(f"{theirs}.{names.feedforward[0]}", inner, width))
    return weights | under("feedforward.sublayer.3", source.linear(f"{theirs}.{names.feedforward[1]}", width, inner))


def _attention(source: Source, theirs: str, names: _Names, width: int) -> dict[str, Tensor]:
    weights = under("out", source.linear(f"{theirs}.out_proj", width, width))
    rows = 3 * width // len(names.query_key_value)
    parts = [(source.take(f"{theirs}.{name}weight", rows, width), source.take(f"{theirs}.{name}bias", rows))
             for name in names.query_key_value]  # fmt: skip
    weight, bias = (torch.cat(tensors).chunk(3) for tensors in zip(*parts, strict=True))
    for index, part in enumerate(("query", "key", "value")):
        weights |= {f"{part}.weight": weight[index], f"{part}.bias": bias[index]}
    return weights
