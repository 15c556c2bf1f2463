"""The Vision Transformer against Hugging Face's and timm's: scores, gradients, other picture sizes; rollout in closed form."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig
from trajformer.core.record import recorded_weights
from trajformer.core.weights import Options, StateDictReader
from trajformer.heads.vit.model import (
    ViT,
    ViTConfig,
    attention_rollout,
    classify_with_rollout,
    interpolate_positions,
    resize_state,
)
from trajformer.heads.vit.weights import hf_vit, timm_vit

WIDTH, HEADS, INNER, LAYERS, CLASSES, PATCH, SIZE = 32, 4, 48, 3, 5, 4, 16
BLOCK = BlockConfig(width=WIDTH, heads=HEADS, feedforward=INNER, dropout=0.0, activation="gelu", norm_eps=1e-6)
CONFIG = ViTConfig(SIZE, PATCH, 3, CLASSES, LAYERS, BLOCK)


def images(batch: int = 2, height: int = SIZE, width: int = SIZE, seed: int = 1) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Every parameter away from its usual start, so that a forgotten or exchanged one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


def hugging_face(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER}
    config = transformers.ViTConfig(**sizes, image_size=SIZE, patch_size=PATCH, num_labels=CLASSES, **changes)
    model = transformers.ViTForImageClassification(config).eval()
    randomise(model)
    return model


def as_saved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of tensors in memory as in a saved file, which has the names of the published ones."""
    words = {"vit.layers.": "vit.encoder.layer.", ".o_proj.": ".output.dense.", ".mlp.fc1.": ".intermediate.dense."}
    words |= {".mlp.fc2.": ".output.dense."}
    words |= {f".{part[0]}_proj.": f".attention.{part}." for part in ("query", "key", "value")}
    for old, new in words.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


def converted(theirs: Any) -> ViT:
    recipe, weights = hf_vit(StateDictReader(as_saved(theirs.state_dict()), "theirs"), Options(heads=HEADS))
    model = ViT(recipe.model)
    model.load_state_dict(weights)
    return model.eval()


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_scores_and_gradients_are_hugging_faces(qkv_bias: bool) -> None:
    theirs = hugging_face(qkv_bias=qkv_bias)
    ours, x, y = converted(theirs), images(), torch.tensor([1, 3])
    assert ours.config.block.norm_eps == theirs.config.layer_norm_eps == 1e-12
    expected = theirs(x).logits
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=1e-5)
    F.cross_entropy(expected, y).backward()
    F.cross_entropy(ours(x), y).backward()
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    _, wanted = hf_vit(StateDictReader(as_saved(wanted), "gradients"), Options(heads=HEADS))  # the same mapping: it is linear
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert set(found) == set(wanted)
    for name in found:
        if qkv_bias or not name.endswith(("query.bias", "key.bias", "value.bias")):
            torch.testing.assert_close(found[name], wanted[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(24, 24), (8, 8), (12, 32), (16, 20)])
def test_another_picture_size_gives_the_scores_of_hugging_faces_interpolation(height: int, width: int) -> None:
    theirs = hugging_face()
    x = images(height=height, width=width)
    expected = theirs(x, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(converted(theirs)(x), expected, atol=1e-5, rtol=1e-5)


def test_a_model_made_for_another_size_scores_as_one_that_interpolates() -> None:
    small = ViT(CONFIG).eval()
    randomise(small)
    large = ViT(ViTConfig(24, PATCH, 3, CLASSES, LAYERS, BLOCK)).eval()
    large.load_state_dict(resize_state(small.state_dict(), large.config))
    x = images(height=24, width=24)
    torch.testing.assert_close(large(x), small(x))
    assert not torch.allclose(large(x), small(F.interpolate(x, 16)), atol=1e-2)


def test_interpolated_positions_keep_the_class_token_and_a_constant() -> None:
    position = torch.cat([torch.full((1, 6), 7.0), torch.arange(6.0).expand(9, 6)])
    found = interpolate_positions(position, (2, 5), 1)
    torch.testing.assert_close(found, torch.cat([position[:1], torch.arange(6.0).expand(10, 6)]))
    assert interpolate_positions(position, (3, 3), 1) is position


def timm_state(qkv_bias: bool = True) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of timm's VisionTransformer."""
    count = (SIZE // PATCH) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, count, WIDTH)}
    shapes |= {"patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,)}
    shapes |= {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,), "head.weight": (CLASSES, WIDTH), "head.bias": (CLASSES,)}
    linear = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH), "mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
    for layer in range(LAYERS):
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{layer}.{norm}.{part}": (WIDTH,) for part in ("weight", "bias")}
        for name, (outputs, inputs) in linear.items():
            shapes |= {f"blocks.{layer}.{name}.weight": (outputs, inputs), f"blocks.{layer}.{name}.bias": (outputs,)}
    if not qkv_bias:
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("qkv.bias")}
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def timm_forward(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """timm's forward pass in float64, written out: fused projection, then heads, then q, k, v."""
    w = {name: tensor.double() for name, tensor in state.items()}
    x = F.conv2d(x.double(), w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    for layer in range(LAYERS):
        b = f"blocks.{layer}"
        qkv = F.linear(norm(x, f"{b}.norm1"), w[f"{b}.attn.qkv.weight"], w.get(f"{b}.attn.qkv.bias"))
        q, k, v = qkv.reshape(len(x), -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).softmax(-1)
        branch = (weight @ v).transpose(1, 2).flatten(2)
        x = x + F.linear(branch, w[f"{b}.attn.proj.weight"], w[f"{b}.attn.proj.bias"])
        inner = F.gelu(F.linear(norm(x, f"{b}.norm2"), w[f"{b}.mlp.fc1.weight"], w[f"{b}.mlp.fc1.bias"]))
        x = x + F.linear(inner, w[f"{b}.mlp.fc2.weight"], w[f"{b}.mlp.fc2.bias"])
    return F.linear(norm(x, "norm")[:, 0], w["head.weight"], w["head.bias"])


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_timms_layout_gives_timms_scores(qkv_bias: bool) -> None:
    state = timm_state(qkv_bias)
    source = StateDictReader(state, "timm")
    recipe, weights = timm_vit(source, Options(heads=HEADS))
    source.check_all_used()
    model = ViT(recipe.model).eval()
    model.load_state_dict(weights)
    assert recipe.model == CONFIG
    torch.testing.assert_close(model(images()).double(), timm_forward(state, images()), atol=1e-5, rtol=1e-5)


def test_timm_itself_gives_the_same_scores() -> None:
    timm = pytest.importorskip("timm", exc_type=ImportError)
    sizes = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}
    theirs = timm.models.VisionTransformer(**sizes, mlp_ratio=INNER / WIDTH, num_classes=CLASSES).eval()
    randomise(theirs)
    recipe, weights = timm_vit(StateDictReader(theirs.state_dict(), "timm"), Options(heads=HEADS))
    ours = ViT(recipe.model).eval()
    ours.load_state_dict(weights)
    torch.testing.assert_close(ours(images()), theirs(images()), atol=1e-5, rtol=1e-5)


def test_the_strided_convolution_is_a_linear_map_of_each_patch() -> None:
    model, x = ViT(CONFIG), images(height=8, width=12)
    by_hand = F.unfold(x, PATCH, stride=PATCH).mT @ model.patches.weight.flatten(1).T + model.patches.bias
    patches = model.embed(x)[:, 1:] - interpolate_positions(model.position(), (2, 3), 1)[1:]
    torch.testing.assert_close(patches, by_hand, atol=1e-5, rtol=1e-5)


def test_without_positions_the_order_of_patches_does_not_matter_and_with_them_it_does() -> None:
    model = ViT(CONFIG).eval()
    randomise(model)
    x = images()
    swapped = torch.cat([x[..., PATCH:], x[..., :PATCH]], -1)  # columns of patches moved along
    assert not torch.allclose(model(x), model(swapped), atol=1e-3)
    nn.init.zeros_(model.position.tables[0])
    torch.testing.assert_close(model(x), model(swapped), atol=1e-5, rtol=1e-5)


def test_a_picture_scores_the_same_alone_and_in_a_batch() -> None:
    model = ViT(CONFIG).eval()
    torch.testing.assert_close(model(images(3))[1:2], model(images(3)[1:2]), atol=1e-6, rtol=1e-5)


def test_mean_pooling_has_no_class_token_and_reads_every_patch() -> None:
    model = ViT(ViTConfig(SIZE, PATCH, 3, CLASSES, 0, BLOCK, "mean")).eval()
    assert model.token is None and len(model.position()) == 16
    torch.testing.assert_close(model(images()), model.head(model.embed(images()).mean(1)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [SIZE, 24])
def test_half_precision_stays_finite_and_near(dtype: torch.dtype, size: int) -> None:
    model = ViT(CONFIG).eval()
    x = images(height=size, width=size)
    expected = model(x)
    found = model.to(dtype)(x.to(dtype))
    assert found.dtype == dtype and found.isfinite().all()
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("shape", [(1, 3, 18, 16), (1, 3, 16, 3), (1, 1, 16, 16), (1, 3, 0, 16)])
def test_pictures_that_the_patches_do_not_tile_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"cannot be divided into patches of 4 x 4|expected 3"):
        ViT(CONFIG)(torch.zeros(shape))


@pytest.mark.parametrize(("size", "patch"), [(18, 4), (4, 0), (2, 4), (0, 4)])
def test_sizes_that_cannot_be_are_refused(size: int, patch: int) -> None:
    with pytest.raises(ValueError, match="no multiple of patch_size"):
        ViT(ViTConfig(size, patch, 3, CLASSES, 1, BLOCK))


def test_the_defaults_are_the_papers_base_model() -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 86_567_656  # ViT-B/16 with 1,000 classes
    assert ViTConfig().block.norm_eps == 1e-6


def test_rollout_of_layers_that_attend_to_one_token_is_known() -> None:
    """Attention to token 0 alone: half of a token stays what it was at every layer, the rest has become token 0."""
    weight = torch.zeros(1, 2, 3, 3)
    weight[..., 0] = 1.0
    expected = torch.tensor([[1.0, 0, 0], [0.75, 0.25, 0], [0.75, 0, 0.25]])
    torch.testing.assert_close(attention_rollout([weight, weight])[0], expected)


def test_rollout_averages_heads_and_multiplies_later_layers_from_the_left() -> None:
    first, second = torch.rand(2, 1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mixed = [0.5 * w[0].mean(0) + 0.5 * torch.eye(4) for w in (first, second)]
    found = attention_rollout([first, second])
    torch.testing.assert_close(found[0], mixed[1] @ mixed[0])
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 4))


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_rollout_of_a_model_has_a_share_for_each_patch_and_changes_no_score(pooling: Any) -> None:
    model = ViT(ViTConfig(SIZE, PATCH, 3, CLASSES, LAYERS, BLOCK, pooling)).eval()
    randomise(model)
    x = images(height=8, width=20)
    with recorded_weights(model) as record:
        expected = model(x)
    scores, seen = classify_with_rollout(model, x)
    torch.testing.assert_close(scores, expected, atol=0, rtol=0)
    assert seen.shape == (2, 2, 5) and (seen >= 0).all()
    rollout = attention_rollout([record[f"encoder.layers.{layer}.attention.sublayer"][0] for layer in range(LAYERS)])
    row = rollout[:, 0, 1:] if pooling == "token" else rollout.mean(1)
    torch.testing.assert_close(seen.flatten(1), row)


def test_the_head_needs_neither_pillow_nor_scikit_learn() -> None:
    banned = "PIL sklearn lightning matplotlib av2 transformers timm"
    code = f"import sys, trajformer.heads.vit.model; print([m for m in '{banned}'.split() if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
