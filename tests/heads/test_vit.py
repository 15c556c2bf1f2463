"""The Vision Transformer equals Hugging Face's and timm's, also at other image sizes.

Attention rollout is checked in closed form.
"""

from typing import Any

import pytest
import torch
from support import heads
from support.heads import BLOCK, CLASSES, HEADS, INNER, LAYERS, PATCH, SIZE, VIT, tolerance
from support.tensors import draw, randomize
from torch import Tensor
from torch.nn import functional as F

from trajformer.core.multihead import recorded_weights
from trajformer.core.weights import Options, StateDictReader
from trajformer.heads import weights as layouts
from trajformer.heads.vit.model import ViT, ViTConfig, attention_rollout, classify_with_rollout


def images(batch: int = 2, height: int = SIZE, width: int = SIZE) -> Tensor:
    return draw(batch, 3, height, width, seed=1)


SAVED_NAMES = {
    "vit.layers.": "vit.encoder.layer.",
    ".o_proj.": ".output.dense.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
    ".q_proj.": ".attention.query.",
    ".k_proj.": ".attention.key.",
    ".v_proj.": ".attention.value.",
}


def as_saved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors as `save_pretrained` does."""
    saved = {}
    for name, tensor in tensors.items():
        for old, new in SAVED_NAMES.items():
            name = name.replace(old, new)
        saved[name] = tensor
    return saved


def convert(tensors: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Tensors of Hugging Face's model by our names, and the config."""
    reader = StateDictReader(as_saved(tensors), "reference")
    recipe, weights = layouts.hf_vit(reader, Options(heads=HEADS))
    return recipe.model, weights


def converted(reference: Any) -> ViT:
    config, weights = convert(reference.state_dict())
    model = ViT(config)
    model.load_state_dict(weights)
    return model.eval()


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_scores_and_gradients_equal_hugging_face(qkv_bias: bool) -> None:
    reference = heads.hf_vit(qkv_bias=qkv_bias)
    model = converted(reference)
    assert model.config.block.norm_eps == reference.config.layer_norm_eps == 1e-12
    x = images()
    label = torch.tensor([1, 3])
    expected = reference(x).logits
    scores = model(x)
    torch.testing.assert_close(scores, expected, **tolerance(20, INNER))

    F.cross_entropy(expected, label).backward()
    F.cross_entropy(scores, label).backward()
    reference_gradients = {name: tensor.grad for name, tensor in reference.named_parameters()}
    _, expected_gradients = convert(reference_gradients)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        if not qkv_bias and name.endswith(("query.bias", "key.bias", "value.bias")):
            continue
        limits = tolerance(40, INNER, 10.0)
        torch.testing.assert_close(gradient, expected_gradients[name], **limits)


@pytest.mark.parametrize(("height", "width"), [(24, 24), (8, 8), (12, 32), (16, 20)])
def test_other_image_sizes_equal_hugging_face(height: int, width: int) -> None:
    reference = heads.hf_vit()
    x = images(height=height, width=width)
    expected = reference(x, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(converted(reference)(x), expected, **tolerance(20, INNER))


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_scores_equal_timm(qkv_bias: bool) -> None:
    state = heads.timm_state(qkv_bias)
    source = StateDictReader(state, "timm")
    recipe, weights = layouts.timm_vit(source, Options(heads=HEADS))
    source.check_all_used()
    model = ViT(recipe.model).eval()
    model.load_state_dict(weights)
    assert recipe.model == VIT
    expected = heads.timm_forward(state, images())
    torch.testing.assert_close(model(images()).double(), expected, **tolerance(20, INNER))


def test_rollout_of_layers_that_attend_to_one_token_is_known() -> None:
    """If all tokens attend to token 0, each layer moves half of a token to token 0."""
    weight = torch.zeros(1, 2, 3, 3)
    weight[..., 0] = 1.0
    expected = torch.tensor([[1.0, 0, 0], [0.75, 0.25, 0], [0.75, 0, 0.25]])
    torch.testing.assert_close(attention_rollout([weight, weight])[0], expected)


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_rollout_covers_all_patches_and_keeps_the_scores(pooling: Any) -> None:
    model = ViT(ViTConfig(SIZE, PATCH, 3, CLASSES, LAYERS, BLOCK, pooling)).eval()
    randomize(model)
    x = images(height=8, width=20)
    with recorded_weights(model) as record:
        expected = model(x)
    scores, fraction = classify_with_rollout(model, x)
    torch.testing.assert_close(scores, expected, atol=0, rtol=0)
    assert fraction.shape == (2, 2, 5)
    assert (fraction >= 0).all()

    layers = [record[f"encoder.layers.{layer}.attention.sublayer"][0] for layer in range(LAYERS)]
    rollout = attention_rollout(layers)
    row = rollout[:, 0, 1:] if pooling == "token" else rollout.mean(1)
    torch.testing.assert_close(fraction.flatten(1), row)
