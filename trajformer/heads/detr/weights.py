"""Converters for DETR with a ResNet backbone, from its authors or Hugging Face."""

from __future__ import annotations

from trajformer.core.blocks import BlockConfig
from trajformer.core.weights import Converted, Options, StateDictReader
from trajformer.heads.detr.backbone import BackboneConfig, ResNetConfig
from trajformer.heads.detr.model import DetrConfig
from trajformer.heads.detr.task import DetectionRecipe

HEADS = 8  # in all published sizes
_STATISTICS = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}


def _attention(ours: str, foreign: str, fused: bool) -> dict[str, str]:
    parts = {"query": "q", "key": "k", "value": "v"}
    rules = {f"{ours}.sublayer.out.*": f"{foreign}.out_proj.*"}
    for index, (part, letter) in enumerate(parts.items()):
        name = f"in_proj_*[{index}/3]" if fused else f"{letter}_proj.*"
        rules[f"{ours}.sublayer.{part}.*"] = f"{foreign}.{name}"
    return rules


def stack_rules(
    ours: str, foreign: str, attentions: dict[str, str], norms: tuple[str, ...], inner: tuple[str, str], fused: bool
) -> dict[str, str]:
    """Rules for all layers of the encoder or the decoder; `norms` are in the order in which a layer applies them."""
    here, there = f"{ours}.layers.{{n}}", f"{foreign}.layers.{{n}}"
    rules: dict[str, str] = {}
    for name, foreign_name in attentions.items():
        rules |= _attention(f"{here}.{name}", f"{there}.{foreign_name}", fused)
    for name, norm in zip((*attentions, "feedforward"), norms, strict=True):
        rules[f"{here}.{name}.norm.*"] = f"{there}.{norm}.*"
    return rules | {
        f"{here}.feedforward.sublayer.{index}.*": f"{there}.{name}.*" for index, name in zip((0, 3), inner, strict=True)
    }


def _rules(
    prefix: str, cross: str, norms: tuple[str, str, str], inner: tuple[str, str], others: dict[str, str]
) -> dict[str, str]:
    """Rules for a model: names of the cross-attention, the norms of decoder layers, the feed-forward layers, and all others."""
    fused = inner[0] == "linear1"
    encoder_norms = norms[:2] if fused else norms[::2]  # numbered from 1 in each layer, or named by their sublayer
    rules = stack_rules("encoder", f"{prefix}.encoder", {"attention": "self_attn"}, encoder_norms, inner, fused)
    attentions = {"self_attention": "self_attn", "cross_attention": cross}
    rules |= stack_rules("decoder", f"{prefix}.decoder", attentions, norms, inner, fused)
    return rules | {ours: foreign if ours.startswith("position") else f"{foreign}.*" for ours, foreign in others.items()}


_FACEBOOK = _rules(
    "transformer",
    "multihead_attn",
    ("norm1", "norm2", "norm3"),
    ("linear1", "linear2"),
    {
        "encoder.norm.*": "transformer.encoder.norm",
        "decoder.norm.*": "transformer.decoder.norm",
        "project.*": "input_proj",
        "queries.*": "query_embed",
        "classify.*": "class_embed",
        **{f"locate.{2 * layer}.*": f"bbox_embed.layers.{layer}" for layer in range(3)},
        "position.tables.0": "backbone.1.col_embed.weight",
        "position.tables.1": "backbone.1.row_embed.weight",
    },
)
_HUGGING_FACE = _rules(
    "model",
    "encoder_attn",
    ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    ("fc1", "fc2"),
    {
        "encoder.norm.*": "model.encoder.layernorm",
        "decoder.norm.*": "model.decoder.layernorm",
        "project.*": "model.input_projection",
        "queries.*": "model.query_position_embeddings",
        "classify.*": "class_labels_classifier",
        **{f"locate.{2 * layer}.*": f"bbox_predictor.layers.{layer}" for layer in range(3)},
        "position.tables.0": "model.position_embedding.column_embeddings.weight",
        "position.tables.1": "model.position_embedding.row_embeddings.weight",
    },
)
# Convolutions and norms of a ResNet. Stages, blocks and parts are numbered from 0; {stage1} and {part1} count from 1.
_TORCHVISION = {
    "stem": "conv1",
    "norm": "bn1",
    "stages.{stage}.{block}.convolutions.{part}": "layer{stage1}.{block}.conv{part1}",
    "stages.{stage}.{block}.norms.{part}": "layer{stage1}.{block}.bn{part1}",
    "stages.{stage}.{block}.shortcut.0": "layer{stage1}.{block}.downsample.0",
    "stages.{stage}.{block}.shortcut.1": "layer{stage1}.{block}.downsample.1",
}
_BLOCK = "encoder.stages.{stage}.layers.{block}"
_HF_RESNET = {
    "stem": "embedder.embedder.convolution",
    "norm": "embedder.embedder.normalization",
    "stages.{stage}.{block}.convolutions.{part}": f"{_BLOCK}.layer.{{part}}.convolution",
    "stages.{stage}.{block}.norms.{part}": f"{_BLOCK}.layer.{{part}}.normalization",
    "stages.{stage}.{block}.shortcut.0": f"{_BLOCK}.shortcut.convolution",
    "stages.{stage}.{block}.shortcut.1": f"{_BLOCK}.shortcut.normalization",
}


def facebook_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert the authors' `DETR` without segmentation heads.

    Raises:
        CheckpointError: a tensor is missing or has another shape. The caller checks that all tensors were used.
    """
    return _convert(source, options, _FACEBOOK, "backbone.0.body", _TORCHVISION)


def facebook_detr_dc5(source: StateDictReader, options: Options) -> Converted:
    """Convert the authors' DETR with dilation in the last stage of the backbone, which the shapes do not show.

    Raises:
        CheckpointError: as `facebook_detr`.
    """
    return _convert(source, options, _FACEBOOK, "backbone.0.body", _TORCHVISION, stride=16)


def hf_detr(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `DetrForObjectDetection` of Hugging Face, with timm's ResNet or its own.

    Raises:
        CheckpointError: as `facebook_detr`.
    """
    prefix = "model.backbone.conv_encoder.model"
    names = _TORCHVISION if f"{prefix}.conv1.weight" in source else _HF_RESNET
    return _convert(source, options, _HUGGING_FACE, prefix, names)


def _convert(
    source: StateDictReader, options: Options, layout: dict[str, str], prefix: str, names: dict[str, str], stride: int = 32
) -> Converted:
    """Convert with the names of a layout and of a ResNet below `prefix`."""
    first = names["stages.{stage}.{block}.convolutions.{part}"]
    counts = [
        source.count(f"{prefix}.{first.replace('{block}', '{{}}').format(stage=stage, stage1=stage + 1, part=0, part1=1)}.weight")
        for stage in range(4)
    ]
    stem = source.peek(f"{prefix}.{names['stem']}.weight", 4)
    resnet = ResNetConfig((counts[0], counts[1], counts[2], counts[3]), len(stem), 16 if stride == 16 else 32)
    foreign = {ours: name.replace("*", "weight") for ours, name in layout.items()}
    query, classes = source.peek(foreign["queries.*"], 2), len(source.peek(foreign["classify.*"], 2)) - 1
    encoder, decoder = (
        source.count(foreign[f"{stack}.layers.{{n}}.feedforward.norm.*"].replace("{n}", "{}")) for stack in ("encoder", "decoder")
    )
    block = BlockConfig(
        width=query.shape[1],
        heads=options.heads or HEADS,
        feedforward=len(source.peek(foreign["encoder.layers.{n}.feedforward.sublayer.0.*"].format(n=0), 2)),
        dropout=0.1,
        norm_first=foreign["encoder.norm.*"] in source,
    )
    model = DetrConfig(
        classes, len(query), block, (encoder, decoder), "learned" if foreign["position.tables.1"] in source else "sine",
        BackboneConfig(resnet=resnet),
    )  # fmt: skip
    options.check_labels(classes, source.name)
    rules = dict(layout)
    for ours, name in names.items():
        convolution = ours == "stem" or "convolutions" in ours or ours.endswith("shortcut.0")
        for part, statistic in {"weight": "weight"}.items() if convolution else _STATISTICS.items():
            rules[f"backbone.{ours}.{part}"] = f"{prefix}.{name}.{statistic}"
    recipe = DetectionRecipe(model=model, labels=options.labels)
    return recipe, source.take_model(recipe.build_model, rules)
