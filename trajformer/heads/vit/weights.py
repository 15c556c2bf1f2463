"""Vision Transformers of timm and of Hugging Face."""

from __future__ import annotations

from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.weights import Options, Source, under
from trajformer.errors import CheckpointError
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import ClassificationRecipe

CHANNELS_A_HEAD = 64  # in all published sizes (Dosovitskiy et al. 2021, table 1)
Converted = tuple[ClassificationRecipe, dict[str, Tensor]]


def timm_vit(source: Source, options: Options) -> Converted:
    """timm's `VisionTransformer` with a class token: queries, keys and values are one matrix; layer norms have epsilon 1e-6.

    Pictures are normalised to -1..1, as for timm's own ViTs.

    Raises:
        CheckpointError: a tensor is missing or of another shape; what is left over is for the caller to refuse.
    """
    patches, position = source.peek("patch_embed.proj.weight", 4), source.peek("pos_embed", 3)
    layers, width = source.count("blocks.{}.norm1.weight"), len(patches)
    inner = len(source.peek("blocks.0.mlp.fc1.weight", 2))
    block = _block(width, inner, options, norm_eps=1e-6)
    classes = len(source.peek("head.weight", 2))
    model = _sizes(source, patches, position, classes, layers, block)
    weights = _ends(source, model, ("cls_token", "pos_embed", "patch_embed.proj", "norm", "head"))
    bias = "blocks.0.attn.qkv.bias" in source  # all layers have one, or none
    for layer in range(layers):
        ours, theirs = f"encoder.layers.{layer}", f"blocks.{layer}"
        fused = source.linear(f"{theirs}.attn.qkv", 3 * width, width, bias=bias)
        parts = {name: tensor.chunk(3) for name, tensor in fused.items()}
        for index, part in enumerate(("query", "key", "value")):
            split = {name: tensors[index] for name, tensors in parts.items()}
            weights |= under(f"{ours}.attention.sublayer.{part}", split)
        weights |= under(f"{ours}.attention.sublayer.out", source.linear(f"{theirs}.attn.proj", width, width))
        weights |= under(f"{ours}.attention.norm", source.norm(f"{theirs}.norm1", width))
        weights |= under(f"{ours}.feedforward.norm", source.norm(f"{theirs}.norm2", width))
        weights |= under(f"{ours}.feedforward.sublayer.0", source.linear(f"{theirs}.mlp.fc1", inner, width))
        weights |= under(f"{ours}.feedforward.sublayer.3", source.linear(f"{theirs}.mlp.fc2", width, inner))
    return _recipe(source, model, options), weights


def hf_vit(source: Source, options: Options) -> Converted:
    """Hugging Face's `ViTForImageClassification` as it is saved; layer norms have epsilon 1e-12.

    Pictures are normalised to -1..1, as by its image processor.

    Raises:
        CheckpointError: a tensor is missing or of another shape; what is left over is for the caller to refuse.
    """
    embeddings, encoder = "vit.embeddings", "vit.encoder.layer"
    patches = source.peek(f"{embeddings}.patch_embeddings.projection.weight", 4)
    position = source.peek(f"{embeddings}.position_embeddings", 3)
    layers, width = source.count(f"{encoder}.{{}}.layernorm_before.weight"), len(patches)
    inner = len(source.peek(f"{encoder}.0.intermediate.dense.weight", 2))
    block = _block(width, inner, options, norm_eps=1e-12)
    classes = len(source.peek("classifier.weight", 2))
    model = _sizes(source, patches, position, classes, layers, block)
    places = ("cls_token", "position_embeddings", "patch_embeddings.projection")
    weights = _ends(source, model, (*(f"{embeddings}.{place}" for place in places), "vit.layernorm", "classifier"))
    bias = f"{encoder}.0.attention.attention.query.bias" in source  # all layers have three, or none
    for layer in range(layers):
        ours, theirs = f"encoder.layers.{layer}", f"{encoder}.{layer}"
        for part in ("query", "key", "value"):
            projection = source.linear(f"{theirs}.attention.attention.{part}", width, width, bias=bias)
            weights |= under(f"{ours}.attention.sublayer.{part}", projection)
        weights |= under(f"{ours}.attention.sublayer.out", source.linear(f"{theirs}.attention.output.dense", width, width))
        weights |= under(f"{ours}.attention.norm", source.norm(f"{theirs}.layernorm_before", width))
        weights |= under(f"{ours}.feedforward.norm", source.norm(f"{theirs}.layernorm_after", width))
        weights |= under(f"{ours}.feedforward.sublayer.0", source.linear(f"{theirs}.intermediate.dense", inner, width))
        weights |= under(f"{ours}.feedforward.sublayer.3", source.linear(f"{theirs}.output.dense", width, inner))
    return _recipe(source, model, options), weights


def _block(width: int, inner: int, options: Options, *, norm_eps: float) -> BlockConfig:
    heads = options.heads or max(width // CHANNELS_A_HEAD, 1)
    return BlockConfig(
        width=width, heads=heads, feedforward=inner, dropout=0.0, norm_first=True, activation="gelu", norm_eps=norm_eps
    )


def _sizes(source: Source, patches: Tensor, position: Tensor, classes: int, layers: int, block: BlockConfig) -> ViTConfig:
    _, channels, height, width = patches.shape
    side = round((position.shape[1] - 1) ** 0.5)
    if height != width or not side or side**2 + 1 != position.shape[1]:
        raise CheckpointError(
            f"{source.name}: patches of {height} x {width} pixels at {position.shape[1]} positions, expected square patches "
            "and the positions of a square of them and of a class token"
        )
    return ViTConfig(side * height, height, channels, classes, layers, block)


def _ends(source: Source, model: ViTConfig, names: tuple[str, ...]) -> dict[str, Tensor]:
    """All but the blocks; `names` of the class token, the positions, the patches, the last norm and the head."""
    token, position, patches, norm, head = names
    width, size = model.block.width, model.patch_size
    count = (model.image_size // size) ** 2 + 1
    weights = {
        "token": source.take(token, 1, 1, width)[0],
        "position.tables.0": source.take(position, 1, count, width)[0],
        "patches.weight": source.take(f"{patches}.weight", width, model.channels, size, size),
        "patches.bias": source.take(f"{patches}.bias", width),
    }
    return weights | under("encoder.norm", source.norm(norm, width)) | under("head", source.linear(head, model.classes, width))


def _recipe(source: Source, model: ViTConfig, options: Options) -> ClassificationRecipe:
    if options.labels and len(options.labels) != model.classes:
        raise CheckpointError(f"{source.name}: {model.classes} classes, but {len(options.labels)} labels")
    return ClassificationRecipe(model=model, labels=options.labels)
