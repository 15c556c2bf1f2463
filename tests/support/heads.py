"""Models of the reference heads: random weights, published layouts and their forward passes."""

from typing import Any

import pytest
import torch
from support.tensors import randomize
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig
from trajformer.heads.detr.data import Example
from trajformer.heads.translation.tokenizer import PAD
from trajformer.heads.vit.model import ViTConfig

# Sizes of the Vision Transformers.
WIDTH = 32
HEADS = 4
INNER = 48
LAYERS = 3
CLASSES = 5
PATCH = 4
SIZE = 16
BLOCK = BlockConfig(
    width=WIDTH, heads=HEADS, feedforward=INNER, dropout=0.0, activation="gelu", norm_eps=1e-6
)
VIT = ViTConfig(SIZE, PATCH, 3, CLASSES, LAYERS, BLOCK)
EPS = torch.finfo(torch.float32).eps


def tolerance(sums: int, length: int, scale: float = 1.0) -> dict[str, float]:
    """Tolerances for two float32 implementations that add numbers in another order.

    A sum of `length` terms has a relative rounding error of about eps * sqrt(length), and the
    independent errors of `sums` successive sums add up to sqrt(sums) times this error. The factor 8
    covers the largest of many values.

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
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        image_size=SIZE,
        patch_size=PATCH,
        num_labels=CLASSES,
        **changes,
    )
    return randomize(transformers.ViTForImageClassification(config).eval())


def timm_state(qkv_bias: bool = True) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of timm's VisionTransformer."""
    positions = (SIZE // PATCH) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, positions, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "head.weight": (CLASSES, WIDTH),
        "head.bias": (CLASSES,),
    }
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        shapes |= {
            f"{block}.norm1.weight": (WIDTH,),
            f"{block}.norm1.bias": (WIDTH,),
            f"{block}.norm2.weight": (WIDTH,),
            f"{block}.norm2.bias": (WIDTH,),
            f"{block}.attn.qkv.weight": (3 * WIDTH, WIDTH),
            f"{block}.attn.proj.weight": (WIDTH, WIDTH),
            f"{block}.attn.proj.bias": (WIDTH,),
            f"{block}.mlp.fc1.weight": (INNER, WIDTH),
            f"{block}.mlp.fc1.bias": (INNER,),
            f"{block}.mlp.fc2.weight": (WIDTH, INNER),
            f"{block}.mlp.fc2.bias": (WIDTH,),
        }
        if qkv_bias:
            shapes[f"{block}.attn.qkv.bias"] = (3 * WIDTH,)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def timm_forward(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The forward pass of timm in float64."""
    w = {name: tensor.double() for name, tensor in state.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    kernel = w["patch_embed.proj.weight"]
    patches = F.conv2d(images.double(), kernel, w["patch_embed.proj.bias"], stride=PATCH)
    x = patches.flatten(2).transpose(1, 2)
    token = w["cls_token"].expand(len(x), -1, -1)
    x = torch.cat([token, x], 1) + w["pos_embed"]
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        qkv = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        by_head = qkv.reshape(len(x), -1, 3, HEADS, WIDTH // HEADS)
        q, k, v = by_head.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(attended, f"{block}.attn.proj")
        inner = F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + linear(inner, f"{block}.mlp.fc2")
    return linear(norm(x, "norm")[:, 0], "head")


def marked_example(
    height: int, width: int, box: tuple[int, int, int, int], label: int = 1
) -> Example:
    """A black image with one white box (left, top, right, bottom; pixels)."""
    image = torch.zeros(3, height, width)
    left, top, right, bottom = box
    image[:, top:bottom, left:right] = 1.0
    corners = torch.tensor([box], dtype=torch.float32)
    return Example("a", image, corners, torch.tensor([label]), (height, width))


def voc_annotation(*objects: tuple[str, float, float, float, float]) -> str:
    """The annotation file of objects: class, left, top, right and bottom of each."""
    items = []
    for name, left, top, right, bottom in objects:
        sides = f"<xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax>"
        items.append(f"<object><name>{name}</name><bndbox>{sides}</bndbox></object>")
    return f"<annotation><size><width>40</width></size>{''.join(items)}</annotation>"


def sentences(count: int, length: int, tokens: int, seed: int = 0) -> Tensor:
    """Sentences of 1 to `length` of the tokens 4 to `tokens` - 1, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, tokens, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    return torch.where(torch.arange(length) < lengths, source, PAD)


def corpus(count: int = 400) -> list[str]:
    """Sentences of a small language."""
    subjects = ("a man", "the dog", "two girls", "Grün")
    verbs = ("runs", "sleeps", "sings")
    places = ("here", "in the park", "ÄÖÜ")
    texts = []
    for index in range(count):
        subject = subjects[index % 4]
        verb = verbs[index % 3]
        texts.append(f"{subject} {verb} {places[(index // 3) % 3]}.")
    return texts
