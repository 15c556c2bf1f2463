"""Converters for Vision Transformers of timm and Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping

from trajformer.core.blocks import BlockConfig
from trajformer.core.weights import Converted, Options, StateDictReader
from trajformer.errors import CheckpointError
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import ClassificationRecipe

HEAD_WIDTH = 64  # channels per attention head in all published sizes (Dosovitskiy et al. 2021, table 1)
_LAYER, _ATTENTION = "encoder.layers.{n}", "encoder.layers.{n}.attention.sublayer"
_TIMM = {
    "patches.*": "patch_embed.proj.*",
    "encoder.norm.*": "norm.*",
    "head.*": "head.*",
    f"{_ATTENTION}.query.*": "blocks.{n}.attn.qkv.*[0/3]",
    f"{_ATTENTION}.key.*": "blocks.{n}.attn.qkv.*[1/3]",
    f"{_ATTENTION}.value.*": "blocks.{n}.attn.qkv.*[2/3]",
    f"{_ATTENTION}.out.*": "blocks.{n}.attn.proj.*",
    f"{_LAYER}.attention.norm.*": "blocks.{n}.norm1.*",
    f"{_LAYER}.feedforward.norm.*": "blocks.{n}.norm2.*",
    f"{_LAYER}.feedforward.sublayer.0.*": "blocks.{n}.mlp.fc1.*",
    f"{_LAYER}.feedforward.sublayer.3.*": "blocks.{n}.mlp.fc2.*",
}
_HF_LAYER = "vit.encoder.layer.{n}"
_HUGGING_FACE = {
    "patches.*": "vit.embeddings.patch_embeddings.projection.*",
    "encoder.norm.*": "vit.layernorm.*",
    "head.*": "classifier.*",
    f"{_ATTENTION}.out.*": f"{_HF_LAYER}.attention.output.dense.*",
    f"{_ATTENTION}.*": f"{_HF_LAYER}.attention.attention.*",
    f"{_LAYER}.attention.norm.*": f"{_HF_LAYER}.layernorm_before.*",
    f"{_LAYER}.feedforward.norm.*": f"{_HF_LAYER}.layernorm_after.*",
    f"{_LAYER}.feedforward.sublayer.0.*": f"{_HF_LAYER}.intermediate.dense.*",
    f"{_LAYER}.feedforward.sublayer.3.*": f"{_HF_LAYER}.output.dense.*",
}


def timm_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert timm's `VisionTransformer` with a class token. Layer norms have epsilon 1e-6, inputs lie in -1..1.

    Raises:
        CheckpointError: a tensor is missing or has another shape. The caller checks that all tensors were used.
    """
    bias = "blocks.0.attn.qkv.bias" in source
    return _convert(source, options, _TIMM, ("cls_token", "pos_embed"), norm_eps=1e-6, bias=bias)


def hf_vit(source: StateDictReader, options: Options) -> Converted:
    """Convert a saved `ViTForImageClassification` of Hugging Face. Layer norms have epsilon 1e-12, inputs lie in -1..1.

    Raises:
        CheckpointError: as `timm_vit`.
    """
    names = "vit.embeddings.cls_token", "vit.embeddings.position_embeddings"
    bias = "vit.encoder.layer.0.attention.attention.query.bias" in source
    return _convert(source, options, _HUGGING_FACE, names, norm_eps=1e-12, bias=bias)


def _convert(
    source: StateDictReader, options: Options, rules: Mapping[str, str], names: tuple[str, str], *, norm_eps: float, bias: bool
) -> Converted:
    """Convert with the rules of a layout.

    Args:
        names: names of the class token and the positions.
        norm_eps: epsilon of the layer norms.
        bias: whether the projections to queries, keys and values have biases; otherwise they are zero.
    """
    token, position = names
    layer, inner = rules[f"{_LAYER}.attention.norm.*"], rules[f"{_LAYER}.feedforward.sublayer.0.*"]
    patches, positions = source.peek(rules["patches.*"].replace("*", "weight"), 4), source.peek(position, 3)
    layers, width = source.count(layer.replace("*", "weight").replace("{n}", "{}")), len(patches)
    feedforward = len(source.peek(inner.format(n=0).replace("*", "weight"), 2))
    heads = options.heads or max(width // HEAD_WIDTH, 1)
    block = BlockConfig(
        width=width, heads=heads, feedforward=feedforward, dropout=0.0, norm_first=True, activation="gelu", norm_eps=norm_eps
    )
    classes = len(source.peek(rules["head.*"].replace("*", "weight"), 2))
    _, channels, height, columns = patches.shape
    side = round((positions.shape[1] - 1) ** 0.5)
    if height != columns or not side or side**2 + 1 != positions.shape[1]:
        raise CheckpointError(
            f"{source.name}: patches of {height} x {columns} pixels at {positions.shape[1]} positions, expected square patches, "
            "and one position per patch of a square image plus one for the class token"
        )
    model = ViTConfig(side * height, height, channels, classes, layers, block)
    options.check_labels(classes, source.name)
    recipe = ClassificationRecipe(model=model, labels=options.labels)
    known = {
        "token": source.take(token, 1, 1, width)[0],
        "position.tables.0": source.take(position, 1, positions.shape[1], width)[0],
    }
    if not bias:
        rules = {f"{_ATTENTION}.{part}.bias": "" for part in ("query", "key", "value")} | dict(rules)
    return recipe, source.take_model(recipe.build_model, rules, known)
