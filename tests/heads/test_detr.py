"""DETR equals Hugging Face's DETR and the published layouts; padding has no effect; postprocessing of predictions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from support.heads import tolerance
from support.tensors import draw
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.cli.weights import convert
from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid_image
from trajformer.core.weights import Options
from trajformer.errors import CheckpointError
from trajformer.heads.detr.backbone import BackboneConfig, CnnConfig, MaskedGroupNorm, ResNetConfig
from trajformer.heads.detr.boxes import to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.model import Detections, Detr, DetrConfig, postprocess

WIDTH, HEADS, CLASSES, QUERIES = 32, 4, 3, 7
SIZES = ((96, 128), (70, 101))  # of the two images in a batch


def randomize(module: nn.Module) -> nn.Module:
    """Weights that preserve the variance of the image, and random biases and norms, so that exchanged ones are noticed."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if "var" in name:
            tensor.uniform_(0.5, 1.5, generator=generator)
        else:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(tensor + 0.1 * noise if tensor.ndim < 2 else noise / tensor[0].numel() ** 0.5)
    return module.eval()


def small(backbone: BackboneConfig | None = None, **changes: Any) -> Detr:
    block = BlockConfig(width=WIDTH, heads=HEADS, feedforward=48, dropout=0.0, norm_first=False)
    cnn = BackboneConfig(cnn=CnnConfig((8, 16, 24), blocks=2, groups=4))
    return randomize(Detr(DetrConfig(CLASSES, QUERIES, block, (2, 3), backbone=backbone or cnn, **changes)))


def two_pictures() -> tuple[Tensor, Tensor]:
    """Pixels and mask of two images of different sizes."""
    pixels, mask = draw(2, 3, *SIZES[0]), torch.zeros(2, *SIZES[0], dtype=torch.bool)
    for picture, (height, width) in enumerate(SIZES):
        mask[picture, :height, :width] = True
    return pixels * mask[:, None], mask


def targets() -> BoxTargets:
    generator = torch.Generator().manual_seed(4)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    size = 0.1 + 0.3 * torch.rand(2, 3, 2, generator=generator)
    box = torch.cat([0.3 + 0.4 * torch.rand(2, 3, 2, generator=generator), size], -1)
    return BoxTargets(torch.randint(CLASSES, (2, 3), generator=generator), box, mask)


# About 50 convolutions and matrix products lie on the longest path; the longest sum is a 3 x 3 convolution of 32 channels.
DEPTH, LENGTH = 50, 288


def assert_equal(predicted: Detections, logit: Tensor, box: Tensor, **limits: float) -> None:
    limits = limits or tolerance(DEPTH, LENGTH)
    torch.testing.assert_close(predicted.logit, logit, **limits)
    torch.testing.assert_close(predicted.box, box, **limits)


# Hugging Face


def hugging_face(position: str = "sine") -> Any:
    transformers = pytest.importorskip("transformers")
    resnet = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[16, 32, 64, 128], depths=[1, 2, 1, 2], layer_type="bottleneck", out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=resnet, d_model=WIDTH, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=48, decoder_ffn_dim=48,
        num_queries=QUERIES, num_labels=CLASSES, dropout=0.0, position_embedding_type=position,
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(transformers.DetrForObjectDetection(config))


def converted(model: Any, folder: Path, layout: str = "hf_detr") -> Detr:
    model.save_pretrained(folder)
    recipe, weights = convert(layout, folder / "model.safetensors", Options(heads=HEADS))
    ours = recipe.build_model()
    ours.load_state_dict(weights)
    return ours.eval()


def let_padding_in(model: Detr, how: Literal["in", "out"] = "in") -> Detr:
    model.backbone.padding = how
    return model


@pytest.mark.parametrize("position", ["sine", "learned"])
def test_outputs_and_gradients_equal_hugging_face_in_padded_batches(position: str, tmp_path: Path) -> None:
    theirs = hugging_face(position).requires_grad_(True)  # its backbone is frozen by default
    ours = let_padding_in(converted(theirs, tmp_path))
    pixels, mask = two_pictures()
    expected, found = theirs(pixels, mask.long()), ours(pixels, mask)
    assert_equal(found, expected.logits, expected.pred_boxes)
    assert expected.logits.std(0).max() > 0.05, "the test images give equal outputs"
    weight = draw(*expected.logits.shape, seed=7), draw(*expected.pred_boxes.shape, seed=8)
    (expected.logits * weight[0]).sum().add((expected.pred_boxes * weight[1]).sum()).backward()
    (found.logit * weight[0]).sum().add((found.box * weight[1]).sum()).backward()
    pairs = {
        "model.query_position_embeddings.weight": "queries.weight",
        "model.input_projection.weight": "project.weight",
        "model.backbone.model.encoder.stages.1.layers.0.layer.1.convolution.weight": "backbone.stages.1.0.convolutions.1.weight",
        "model.encoder.layers.0.self_attn.k_proj.weight": "encoder.layers.0.attention.sublayer.key.weight",
        "model.encoder.layers.0.self_attn.v_proj.weight": "encoder.layers.0.attention.sublayer.value.weight",
        "model.decoder.layers.1.encoder_attn.q_proj.weight": "decoder.layers.1.cross_attention.sublayer.query.weight",
        "model.decoder.layers.2.mlp.fc1.weight": "decoder.layers.2.feedforward.sublayer.0.weight",
        "model.decoder.layernorm.weight": "decoder.norm.weight",
        "bbox_predictor.layers.1.weight": "locate.2.weight",
    }
    for theirs_name, name in pairs.items():
        gradient = theirs.get_parameter(theirs_name).grad
        assert gradient.abs().max() > 1e-3, theirs_name
        limits = tolerance(2 * DEPTH, LENGTH, float(gradient.abs().max()))
        torch.testing.assert_close(ours.get_parameter(name).grad, gradient, **limits)


def test_loss_of_all_layers_equals_hugging_face() -> None:
    """The criterion of Hugging Face on our outputs, because their decoder normalizes auxiliary outputs differently."""
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")
    config, wanted = hugging_face().config, targets()
    config.auxiliary_loss = True
    with torch.no_grad():
        found = small()(*two_pictures())
    labels = [{"class_labels": wanted.label[i][wanted.mask[i]], "boxes": wanted.box[i][wanted.mask[i]]} for i in range(2)]
    layers = (*found.auxiliary, found)
    every = torch.stack([one.logit for one in layers]), torch.stack([one.box for one in layers])
    loss, parts, _ = theirs.ForObjectDetectionLoss(found.logit, labels, torch.device("cpu"), found.box, config, *every)
    terms = box_loss(found, wanted, BoxLossConfig())
    assert terms["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    for name, term in (("loss_ce", "classification"), ("loss_bbox", "l1"), ("loss_giou", "giou")):
        assert terms[term].item() == pytest.approx(parts[name].item(), rel=1e-5)


def test_hugging_face_weights_with_timm_backbone_give_the_same_model(tmp_path: Path) -> None:
    torch_file = pytest.importorskip("safetensors.torch")
    theirs = hugging_face()
    expected = converted(theirs, tmp_path).state_dict()
    tensors, names = torch_file.load_file(tmp_path / "model.safetensors"), {"convolution": "conv", "normalization": "bn"}
    renamed = {}
    for name, tensor in tensors.items():
        head, _, tail = name.partition("conv_encoder.model.")
        part = tail.split(".")
        if tail.startswith("embedder"):
            tail = f"{names[part[2]]}1.{part[3]}"
        elif tail and part[5] == "layer":
            tail = f"layer{int(part[2]) + 1}.{part[4]}.{names[part[7]]}{int(part[6]) + 1}.{part[8]}"
        elif tail:
            tail = f"layer{int(part[2]) + 1}.{part[4]}.downsample.{0 if part[6] == 'convolution' else 1}.{part[7]}"
        renamed[f"{head}conv_encoder.model.{tail}" if tail else name] = tensor
    torch_file.save_file(renamed, tmp_path / "timm.safetensors")
    _, weights = convert("hf_detr", tmp_path / "timm.safetensors", Options(heads=HEADS))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


# the authors' layout


def published(position: str = "sine", norm_first: bool = False) -> dict[str, Tensor]:
    """Small random weights with the names of the authors' files."""
    state: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(2)

    def add(name: str, *shape: int) -> None:
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        state[name] = torch.randn(shape, generator=generator) * (1.4 / fan**0.5 if len(shape) > 1 else 0.1)

    def norm(name: str, width: int, *, batch: bool = False) -> None:
        add(f"{name}.bias", width)
        state[f"{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
        if batch:
            add(f"{name}.running_mean", width)
            state[f"{name}.running_var"] = 0.5 + torch.rand(width, generator=generator)

    body, before = "backbone.0.body", 4
    add(f"{body}.conv1.weight", 4, 3, 7, 7)
    norm(f"{body}.bn1", 4, batch=True)
    for stage, blocks in enumerate((1, 2, 1, 2)):
        inner = 4 * 2**stage
        for block in range(blocks):
            at = f"{body}.layer{stage + 1}.{block}"
            shapes = (inner, before, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)
            for part, shape in enumerate(shapes, 1):
                add(f"{at}.conv{part}.weight", *shape)
                norm(f"{at}.bn{part}", shape[0], batch=True)
            if block == 0:
                add(f"{at}.downsample.0.weight", 4 * inner, before, 1, 1)
                norm(f"{at}.downsample.1", 4 * inner, batch=True)
            before = 4 * inner
    for stack, layers, attentions in (("encoder", 2, ("self_attn",)), ("decoder", 3, ("self_attn", "multihead_attn"))):
        for layer in range(layers):
            at = f"transformer.{stack}.layers.{layer}"
            for attention in attentions:
                add(f"{at}.{attention}.in_proj_weight", 3 * WIDTH, WIDTH)
                add(f"{at}.{attention}.in_proj_bias", 3 * WIDTH)
                add(f"{at}.{attention}.out_proj.weight", WIDTH, WIDTH)
                add(f"{at}.{attention}.out_proj.bias", WIDTH)
            for name, shape in (("linear1", (48, WIDTH)), ("linear2", (WIDTH, 48))):
                add(f"{at}.{name}.weight", *shape)
                add(f"{at}.{name}.bias", shape[0])
            for number in range(len(attentions) + 1):
                norm(f"{at}.norm{number + 1}", WIDTH)
    norm("transformer.decoder.norm", WIDTH)
    if norm_first:
        norm("transformer.encoder.norm", WIDTH)
    add("input_proj.weight", WIDTH, 128, 1, 1)
    for name, outputs in (
        ("class_embed", CLASSES + 1),
        *((f"bbox_embed.layers.{i}", n) for i, n in enumerate((WIDTH, WIDTH, 4))),
    ):
        add(f"{name}.weight", outputs, WIDTH)
        add(f"{name}.bias", outputs)
    add("input_proj.bias", WIDTH)
    state["query_embed.weight"] = torch.randn(QUERIES, WIDTH, generator=generator)
    if position == "learned":
        for name in ("row_embed", "col_embed"):
            state[f"backbone.1.{name}.weight"] = torch.rand(50, WIDTH // 2, generator=generator)
    return state


class Reference:
    """The published forward pass with PyTorch's functions: logits and boxes of all layers."""

    def __init__(self, state: dict[str, Tensor], *, dilated: bool = False) -> None:
        self.state, self.dilated = state, dilated
        self.norm_first = "transformer.encoder.norm.weight" in state

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance, weight, bias = (self.state[f"{name}.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, variance, weight, bias)

    def backbone(self, pixels: Tensor) -> Tensor:
        body, state = "backbone.0.body", self.state
        x = F.relu(self.batch_norm(F.conv2d(pixels, state[f"{body}.conv1.weight"], stride=2, padding=3), f"{body}.bn1"))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage, blocks in enumerate((1, 2, 1, 2)):
            for block in range(blocks):
                at, last = f"{body}.layer{stage + 1}.{block}", self.dilated and stage == 3
                stride, dilation = (2 if stage and not block and not last else 1), (2 if last and block else 1)
                y = F.relu(self.batch_norm(F.conv2d(x, state[f"{at}.conv1.weight"]), f"{at}.bn1"))
                y = F.conv2d(y, state[f"{at}.conv2.weight"], stride=stride, padding=dilation, dilation=dilation)
                y = F.conv2d(F.relu(self.batch_norm(y, f"{at}.bn2")), state[f"{at}.conv3.weight"])
                if block == 0:
                    x = self.batch_norm(F.conv2d(x, state[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
                x = F.relu(x + self.batch_norm(y, f"{at}.bn3"))
        return x

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def attend(self, name: str, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
        layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        layer.load_state_dict({n: self.state[f"{name}.{n}"] for n in layer.state_dict()})
        return layer(query, key, value, key_padding_mask=padding)[0]

    def feedforward(self, x: Tensor, at: str) -> Tensor:
        first, second = ([self.state[f"{at}.{n}.{kind}"] for kind in ("weight", "bias")] for n in ("linear1", "linear2"))
        return F.linear(F.relu(F.linear(x, *first)), *second)

    def sublayer(self, x: Tensor, norm: str, branch: Any) -> Tensor:
        return x + branch(self.norm(x, norm)) if self.norm_first else self.norm(x + branch(x), norm)

    def positions(self, padding: Tensor) -> Tensor:
        _, height, width = padding.shape
        if "backbone.1.row_embed.weight" in self.state:
            column, row = (self.state[f"backbone.1.{n}_embed.weight"] for n in ("col", "row"))
            parts = column[None, :width].expand(height, -1, -1), row[:height, None].expand(-1, width, -1)
            return torch.cat(parts, -1).flatten(0, 1)[None]
        rate = 10_000 ** (2 * (torch.arange(WIDTH // 2) // 2) / (WIDTH // 2))
        parts = []
        for axis in (1, 2):
            count = (~padding).cumsum(axis).float()
            angle = (count / (count.amax(axis, keepdim=True) + 1e-6) * 2 * math.pi)[..., None] / rate
            parts.append(torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1).flatten(-2))
        return torch.cat(parts, -1).flatten(1, 2)

    def __call__(self, pixels: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        state, feature = self.state, self.backbone(pixels)
        grid = F.interpolate((~mask)[None].float(), size=feature.shape[-2:])[0].bool()
        padding, place = grid.flatten(1), self.positions(grid)
        x = F.conv2d(feature, state["input_proj.weight"], state["input_proj.bias"]).flatten(2).transpose(1, 2)
        for layer in range(2):
            at = f"transformer.encoder.layers.{layer}"
            x = self.sublayer(
                x, f"{at}.norm1", lambda y, at=at: self.attend(f"{at}.self_attn", y + place, y + place, y, padding)
            )  # fmt: skip
            x = self.sublayer(x, f"{at}.norm2", lambda y, at=at: self.feedforward(y, at))
        memory = self.norm(x, "transformer.encoder.norm") if self.norm_first else x
        query = state["query_embed.weight"].expand(len(pixels), -1, -1)
        x, outputs = torch.zeros_like(query), []
        for layer in range(3):
            at = f"transformer.decoder.layers.{layer}"
            x = self.sublayer(
                x, f"{at}.norm1", lambda y, at=at: self.attend(f"{at}.self_attn", y + query, y + query, y)
            )  # fmt: skip
            x = self.sublayer(
                x,
                f"{at}.norm2",
                lambda y, at=at: self.attend(f"{at}.multihead_attn", y + query, memory + place, memory, padding),
            )
            x = self.sublayer(x, f"{at}.norm3", lambda y, at=at: self.feedforward(y, at))
            seen = box = self.norm(x, "transformer.decoder.norm")
            for index in range(3):
                box = F.linear(box, state[f"bbox_embed.layers.{index}.weight"], state[f"bbox_embed.layers.{index}.bias"])
                box = F.relu(box) if index < 2 else box.sigmoid()
            outputs.append((F.linear(seen, state["class_embed.weight"], state["class_embed.bias"]), box))
        return outputs


def load_published(state: dict[str, Tensor], folder: Path, layout: str = "facebook_detr") -> Detr:
    torch.save({"model": state}, folder / "detr.pth")
    recipe, weights = convert(layout, folder / "detr.pth", Options(heads=HEADS))
    assert recipe.task == "detection"
    ours = recipe.build_model()
    ours.load_state_dict(weights)
    return ours.eval()


@pytest.mark.parametrize(
    ("position", "norm_first", "layout"),
    [
        ("sine", False, "facebook_detr"),
        ("learned", False, "facebook_detr"),
        ("sine", True, "facebook_detr"),
        ("sine", False, "facebook_detr_dc5"),
    ],
)
@torch.no_grad()
def test_published_weights_give_the_published_outputs_of_every_layer(
    position: str, norm_first: bool, layout: str, tmp_path: Path
) -> None:
    state, (pixels, mask) = published(position, norm_first), two_pictures()
    ours = let_padding_in(load_published(state, tmp_path, layout))
    expected = Reference(state, dilated=layout.endswith("dc5"))(pixels, mask)
    found = ours(pixels, mask)
    assert len(found.auxiliary) == len(expected) - 1 == 2
    for one, (logit, box) in zip((*found.auxiliary, found), expected, strict=True):
        assert_equal(one, logit, box)
    assert (expected[-1][0][0] - expected[-1][0][1]).abs().max() > 0.01, "the test images give equal outputs"


def test_conversion_rejects_missing_extra_and_misshaped_tensors(tmp_path: Path) -> None:
    state = published()
    load_published(state, tmp_path)
    with pytest.raises(CheckpointError, match=r"detr\.pth: tensor 'mask_head\.lay1\.weight' has no place"):
        load_published(state | {"mask_head.lay1.weight": torch.zeros(2, 2)}, tmp_path)
    for missing in ("transformer.decoder.layers.1.norm3.bias", "backbone.0.body.layer3.0.bn2.running_var", "query_embed.weight"):
        with pytest.raises(CheckpointError, match=f"no tensor '{missing}'"):
            load_published({name: tensor for name, tensor in state.items() if name != missing}, tmp_path)
    with pytest.raises(CheckpointError, match=r"'class_embed\.bias' has shape \[3\], expected \[4\]"):
        load_published(state | {"class_embed.bias": torch.zeros(3)}, tmp_path)
    load_published(state, tmp_path)
    with pytest.raises(CheckpointError, match="3 classes, but 2 labels"):
        convert("facebook_detr", tmp_path / "detr.pth", Options(labels=("a", "b")))


# padding

BACKBONES = {
    "cnn": BackboneConfig(cnn=CnnConfig((8, 16, 24), blocks=2, groups=4)),
    "resnet": BackboneConfig(resnet=ResNetConfig((1, 2, 1, 2), 4)),
    "resnet dc5": BackboneConfig(resnet=ResNetConfig((1, 1, 1, 2), 4, stride=16)),
}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("position", ["sine", "learned"])
@torch.no_grad()
def test_predictions_do_not_depend_on_padding(backbone: str, position: str) -> None:
    model = small(BACKBONES[backbone], position=position)
    pixels, mask = two_pictures()
    pixels = pixels.masked_fill(~mask[:, None], torch.nan)  # the padding may hold any value
    together = model(pixels, mask)
    for picture, (height, width) in enumerate(SIZES):
        alone = model(pixels[picture : picture + 1, :, :height, :width])
        for one, other in zip((alone, *alone.auxiliary), (together, *together.auxiliary), strict=True):
            assert_equal(one, other.logit[picture : picture + 1], other.box[picture : picture + 1])
    changed = model(pixels.square(), mask)
    assert (changed.logit - together.logit).abs().max() > 1e-3, "the pixels have no effect"


@torch.no_grad()
def test_padding_in_changes_predictions() -> None:
    """With the published behavior, the predictions for an image depend on the padding around it."""
    model = let_padding_in(small(BACKBONES["resnet"]))
    pixels, mask = two_pictures()
    height, width = SIZES[1]
    assert (model(pixels, mask).logit[1] - model(pixels[1:, :, :height, :width]).logit[0]).abs().max() > 1e-4


def test_masked_group_norm_ignores_padding() -> None:
    norm = randomize(MaskedGroupNorm(3, 6))
    x, mask = 5 + draw(2, 6, 5, 7), torch.zeros(2, 5, 7, dtype=torch.bool)
    mask[0, :4, :3], mask[1] = True, True
    out = norm(x, mask)
    expected = F.group_norm(x[:1, :, :4, :3], 3, norm.weight, norm.bias)
    torch.testing.assert_close(out[:1, :, :4, :3], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[1:], norm(x[1:]), atol=1e-5, rtol=1e-5)
    assert norm(x, torch.zeros_like(mask)).isfinite().all()


def test_positions_are_shares_of_the_image_without_padding() -> None:
    mask = torch.zeros(2, 6, 8, dtype=torch.bool)
    mask[0, :3, :4], mask[1] = True, True
    place = sinusoid_image(mask, 16)
    alone = sinusoid_image(mask[:1, :3, :4], 16)
    torch.testing.assert_close(place[:1, :3, :4], alone)
    # The last row and column lie at 2 pi: the fastest pair of channels of row and of column is (sin, cos) of that.
    torch.testing.assert_close(place[1, -1, -1, [0, 1, 8, 9]], torch.tensor([0.0, 1.0, 0.0, 1.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(place[1, 2, 1, [0, 8]], torch.tensor([math.pi, math.pi / 2]).sin(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backbone", ["cnn", "resnet"])
def test_an_image_of_padding_gives_finite_loss_and_gradients(backbone: str, precision: torch.dtype) -> None:
    model = small(BACKBONES[backbone]).train()
    pixels, mask = two_pictures()
    mask[1] = False
    wanted = replace(targets(), mask=targets().mask & torch.tensor([[True], [False]]))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        found = model(pixels, mask)
    loss = box_loss(found, wanted, BoxLossConfig())["loss"]
    loss.backward()
    assert loss.isfinite()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    with torch.no_grad():
        other = model(pixels.flip(-1), mask)
    assert_equal(Detections(found.logit[1].float(), found.box[1].float()), other.logit[1], other.box[1], atol=0.05, rtol=0.05)


# queries, sizes and postprocessing


def test_queries_are_permutation_equivariant() -> None:
    model, (pixels, mask) = small(), two_pictures()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    with torch.no_grad():
        before = model(pixels, mask)
        model.queries.weight.copy_(model.queries.weight[order])
        after = model(pixels, mask)
    assert_equal(after, before.logit[:, order], before.box[:, order])


def test_the_frozen_parts_of_a_resnet_have_no_gradient() -> None:
    model = small(BackboneConfig(resnet=ResNetConfig((1, 1, 1, 1), 4, frozen=2)))
    frozen = {name.split(".")[2] if "stages" in name else name.split(".")[1]
              for name, p in model.named_parameters() if not p.requires_grad}  # fmt: skip
    assert frozen == {"stem", "0", "1"}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".mean" in name or ".variance" in name}
    box_loss(model.train()(*two_pictures()), targets(), BoxLossConfig())["loss"].backward()
    assert before and all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize(
    "change", [{"layers": (1, 0)}, {"classes": 0}, {"queries": 0}, {"block": BlockConfig(width=30, heads=3)}]
)
def test_invalid_sizes_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|multiple of four"):
        Detr(replace(DetrConfig(CLASSES, QUERIES, BlockConfig(width=32), (1, 1)), **change))


def detections(*queries: tuple[list[float], int, float]) -> Detections:
    """Predictions for one image: (center x, center y, width, height), class and score of each query."""
    logit = torch.zeros(1, len(queries), CLASSES + 1)
    for index, (_, label, sure) in enumerate(queries):
        logit[0, index] = math.log((1 - sure) / CLASSES)
        logit[0, index, label] = math.log(sure)
    return Detections(logit, torch.tensor([[box for box, _, _ in queries]]))


def test_objects_are_in_pixels_and_sorted_by_score() -> None:
    one = detections(([0.5, 0.5, 1.0, 0.5], 2, 0.6), ([0.25, 0.5, 0.1, 0.2], 0, 0.9), ([0.5, 0.5, 0.2, 0.2], CLASSES, 0.97))
    (found,) = postprocess(one, torch.tensor([[100, 200]]))
    assert found.label.tolist()[:2] == [0, 2] and found.query.tolist() == [1, 0, 2]
    torch.testing.assert_close(found.score, torch.tensor([0.9, 0.6, 0.01]))
    torch.testing.assert_close(found.box[:2], torch.tensor([[40.0, 40.0, 60.0, 60.0], [0.0, 25.0, 200.0, 75.0]]))
    (sure,) = postprocess(one, torch.tensor([[100, 200]]), score=0.7)
    assert sure.label.tolist() == [0] and sure.box.shape == (1, 4)
    with torch.no_grad():
        every = small()(*two_pictures())
    several = postprocess(every, torch.tensor(SIZES))
    torch.testing.assert_close(
        several[1].box, to_corners(every.box[1])[several[1].query] * torch.tensor([101.0, 70.0, 101.0, 70.0])
    )


def test_nms_joins_all_layers_and_removes_duplicates() -> None:
    box, near, far = [0.5, 0.5, 0.4, 0.4], [0.51, 0.5, 0.4, 0.4], [0.2, 0.2, 0.1, 0.1]
    last = detections((box, 0, 0.7), (far, CLASSES, 0.9))
    early = detections((near, 0, 0.8), (far, 1, 0.6))
    size = torch.tensor([[100, 100]])
    (plain,) = postprocess(replace(last, auxiliary=(early,)), size, score=0.5)
    (merged,) = postprocess(replace(last, auxiliary=(early,)), size, score=0.5, nms=0.7)
    assert plain.label.tolist() == [0] and plain.score.tolist() == pytest.approx([0.7])
    assert merged.label.tolist() == [0, 1] and merged.score.tolist() == pytest.approx([0.8, 0.6])
    assert merged.query.tolist() == [0, 1]
    (two,) = postprocess(replace(last, auxiliary=(early,)), size, score=0.5, nms=0.99)
    assert two.label.tolist() == [0, 0, 1]
