"""Models of the reference heads: random weights, published layouts and their forward passes."""

from typing import Any

import pytest
import torch
from support.tensors import randomize
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig
from trajformer.heads.translation.tokenizer import PAD
from trajformer.heads.vit.model import ViTConfig

WIDTH, HEADS, INNER, LAYERS, CLASSES, PATCH, SIZE = (
    32,
    4,
    48,
    3,
    5,
    4,
    16,
)  # of the Vision Transformers
BLOCK = BlockConfig(
    width=WIDTH, heads=HEADS, feedforward=INNER, dropout=0.0, activation="gelu", norm_eps=1e-6
)
VIT = ViTConfig(SIZE, PATCH, 3, CLASSES, LAYERS, BLOCK)
EPS = torch.finfo(torch.float32).eps


def tolerance(sums: int, length: int, scale: float = 1.0) -> dict[str, float]:
    """Tolerances for two float32 implementations that add numbers in another order.

    A sum of `length` terms has a relative rounding error of about eps * sqrt(length), and the independent errors of `sums`
    successive sums add up to sqrt(sums) times this error. The factor 8 covers the largest of many values.

    Args:
        sums: number of successive sums (layers, matrix products) on the longest path.
        length: terms of the longest sum.
        scale: magnitude of the values.
    """
    bound = 8 * EPS * (sums * length) ** 0.5
    return {"atol": bound * scale, "rtol": bound}


def hf_vit(**changes: Any) -> Any:
    """A random Vision Transformer of Hugging Face."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
    }
    config = transformers.ViTConfig(
        **sizes, image_size=SIZE, patch_size=PATCH, num_labels=CLASSES, **changes
    )
    return randomize(transformers.ViTForImageClassification(config).eval())


def timm_state(qkv_bias: bool = True) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of timm's VisionTransformer."""
    count = (SIZE // PATCH) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, count, WIDTH),
    }
    shapes |= {
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
    }
    shapes |= {
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "head.weight": (CLASSES, WIDTH),
        "head.bias": (CLASSES,),
    }
    linear = {
        "attn.qkv": (3 * WIDTH, WIDTH),
        "attn.proj": (WIDTH, WIDTH),
        "mlp.fc1": (INNER, WIDTH),
        "mlp.fc2": (WIDTH, INNER),
    }
    for layer in range(LAYERS):
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{layer}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
        for name, (outputs, inputs) in linear.items():
            shapes |= {
                f"blocks.{layer}.{name}.weight": (outputs, inputs),
                f"blocks.{layer}.{name}.bias": (outputs,),
            }
    if not qkv_bias:
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("qkv.bias")}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def timm_forward(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The forward pass of timm in float64."""
    w = {name: tensor.double() for name, tensor in state.items()}
    x = (
        F.conv2d(x.double(), w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH)
        .flatten(2)
        .transpose(1, 2)
    )
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    for layer in range(LAYERS):
        b = f"blocks.{layer}"
        qkv = F.linear(
            norm(x, f"{b}.norm1"), w[f"{b}.attn.qkv.weight"], w.get(f"{b}.attn.qkv.bias")
        )
        q, k, v = qkv.reshape(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        branch = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + F.linear(branch, w[f"{b}.attn.proj.weight"], w[f"{b}.attn.proj.bias"])
        inner = F.gelu(
            F.linear(norm(x, f"{b}.norm2"), w[f"{b}.mlp.fc1.weight"], w[f"{b}.mlp.fc1.bias"])
        )
        x = x + F.linear(inner, w[f"{b}.mlp.fc2.weight"], w[f"{b}.mlp.fc2.bias"])
    return F.linear(norm(x, "norm")[:, 0], w["head.weight"], w["head.bias"])


def voc_annotation(*objects: tuple[str, float, float, float, float]) -> str:
    """The annotation file of an image: class and corners (left, top, right, bottom) of each object."""
    items = ""
    for name, *box in objects:
        sides = "".join(
            f"<{side}>{value}</{side}>"
            for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        )
        items += f"<object><name>{name}</name><bndbox>{sides}</bndbox></object>"
    return f"<annotation><size><width>40</width></size>{items}</annotation>"


def sentences(count: int, length: int, tokens: int, seed: int = 0) -> Tensor:
    """Sentences of 1 to `length` of the tokens 4 to `tokens` - 1, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, tokens, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    return torch.where(torch.arange(length) < lengths, source, PAD)
