"""DETR equals Hugging Face's DETR and the published layouts; padding has no effect.

Also the postprocessing of predictions.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from support.heads import tolerance
from support.tensors import draw
from torch import Tensor, nn

from trajformer.cli.weights import convert
from trajformer.core.blocks import BlockConfig
from trajformer.core.weights import Options
from trajformer.errors import CheckpointError
from trajformer.heads.detr.backbone import BackboneConfig, CnnConfig, ResNetConfig
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.model import Detections, Detr, DetrConfig
from trajformer.heads.detr.objects import postprocess

WIDTH = 32
HEADS = 4
CLASSES = 3
QUERIES = 7
SIZES = ((96, 128), (70, 101))  # of the two images in a batch
# About 50 convolutions and matrix products lie on the longest path; the longest sum is a 3 x 3
# convolution of 32 channels.
DEPTH = 50
LENGTH = 288


def randomize(module: nn.Module) -> nn.Module:
    """Random weights that keep the variance of activations, and random biases and norms.

    So exchanged tensors are noticed.
    """
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if "var" in name:
            tensor.uniform_(0.5, 1.5, generator=generator)
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim < 2:
            tensor += 0.1 * noise
        else:
            inputs = tensor[0].numel()
            tensor.copy_(noise / inputs**0.5)
    return module.eval()


CNN = BackboneConfig(cnn=CnnConfig((8, 16, 24), blocks=2, groups=4))


def small(backbone: BackboneConfig = CNN, position: Literal["sine", "learned"] = "sine") -> Detr:
    """A small detector with random weights."""
    block = BlockConfig(width=WIDTH, heads=HEADS, feedforward=48, dropout=0.0, norm_first=False)
    config = DetrConfig(CLASSES, QUERIES, block, (2, 3), position=position, backbone=backbone)
    return randomize(Detr(config))


def two_images() -> tuple[Tensor, Tensor]:
    """Pixels and mask of two images of different size."""
    pixels = draw(2, 3, *SIZES[0])
    mask = torch.zeros(2, *SIZES[0], dtype=torch.bool)
    for index, (height, width) in enumerate(SIZES):
        mask[index, :height, :width] = True
    return pixels * mask[:, None], mask


def targets() -> BoxTargets:
    generator = torch.Generator().manual_seed(4)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    size = 0.1 + 0.3 * torch.rand(2, 3, 2, generator=generator)
    center = 0.3 + 0.4 * torch.rand(2, 3, 2, generator=generator)
    label = torch.randint(CLASSES, (2, 3), generator=generator)
    return BoxTargets(label, torch.cat([center, size], -1), mask)


def assert_equal(predicted: Detections, logit: Tensor, box: Tensor) -> None:
    torch.testing.assert_close(predicted.logit, logit, **tolerance(DEPTH, LENGTH))
    torch.testing.assert_close(predicted.box, box, **tolerance(DEPTH, LENGTH))


def hugging_face(position: str = "sine") -> Any:
    transformers = pytest.importorskip("transformers")
    resnet = transformers.ResNetConfig(
        embedding_size=4,
        hidden_sizes=[16, 32, 64, 128],
        depths=[1, 2, 1, 2],
        layer_type="bottleneck",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        backbone_config=resnet,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=QUERIES,
        num_labels=CLASSES,
        dropout=0.0,
        position_embedding_type=position,
    )
    torch.manual_seed(0)
    return randomize(transformers.DetrForObjectDetection(config))


def converted(model: Any, folder: Path) -> Detr:
    model.save_pretrained(folder)
    recipe, weights, _ = convert("hf_detr", folder / "model.safetensors", Options(heads=HEADS))
    result = recipe.build_model()
    result.load_state_dict(weights)
    return result.eval()


GRADIENTS = {  # our names, and those of Hugging Face
    "queries.weight": "model.query_position_embeddings.weight",
    "backbone.stages.1.0.convolutions.1.weight": (
        "model.backbone.model.encoder.stages.1.layers.0.layer.1.convolution.weight"
    ),
    "encoder.layers.0.attention.sublayer.value.weight": (
        "model.encoder.layers.0.self_attn.v_proj.weight"
    ),
    "decoder.layers.1.cross_attention.sublayer.query.weight": (
        "model.decoder.layers.1.encoder_attn.q_proj.weight"
    ),
    "locate.2.weight": "bbox_predictor.layers.1.weight",
}


@pytest.mark.parametrize("position", ["sine", "learned"])
def test_outputs_and_gradients_equal_hugging_face_in_padded_batches(
    position: str, tmp_path: Path
) -> None:
    reference = hugging_face(position).requires_grad_(True)  # its backbone is frozen by default
    model = converted(reference, tmp_path)
    model.backbone.padding = "in"  # as in the published code
    pixels, mask = two_images()
    expected = reference(pixels, mask.long())
    predicted = model(pixels, mask)
    assert_equal(predicted, expected.logits, expected.pred_boxes)
    assert expected.logits.std(0).max() > 0.05, "the test images give equal outputs"

    logit_weight = draw(*expected.logits.shape, seed=7)
    box_weight = draw(*expected.pred_boxes.shape, seed=8)

    def weighted_sum(logit: Tensor, box: Tensor) -> Tensor:
        return (logit * logit_weight).sum() + (box * box_weight).sum()

    weighted_sum(expected.logits, expected.pred_boxes).backward()
    weighted_sum(predicted.logit, predicted.box).backward()
    for name, reference_name in GRADIENTS.items():
        expected_gradient = reference.get_parameter(reference_name).grad
        largest = float(expected_gradient.abs().max())
        assert largest > 1e-3, reference_name
        gradient = model.get_parameter(name).grad
        limits = tolerance(2 * DEPTH, LENGTH, largest)
        torch.testing.assert_close(gradient, expected_gradient, **limits)


def test_loss_of_all_layers_equals_hugging_face() -> None:
    """Both criteria get the same outputs.

    The decoder of Hugging Face normalizes auxiliary outputs differently.
    """
    criterion = pytest.importorskip("transformers.loss.loss_for_object_detection")
    config = hugging_face().config
    config.auxiliary_loss = True
    with torch.no_grad():
        predicted = small()(*two_images())

    labeled = targets()
    labels = []
    for label, box, mask in zip(labeled.label, labeled.box, labeled.mask, strict=True):
        labels.append({"class_labels": label[mask], "boxes": box[mask]})
    layers = (*predicted.auxiliary, predicted)
    expected, expected_terms, _ = criterion.ForObjectDetectionLoss(
        predicted.logit,
        labels,
        torch.device("cpu"),
        predicted.box,
        config,
        torch.stack([one.logit for one in layers]),
        torch.stack([one.box for one in layers]),
    )
    terms = box_loss(predicted, labeled, BoxLossConfig())
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    for reference_name, name in (
        ("loss_ce", "classification"),
        ("loss_bbox", "l1"),
        ("loss_giou", "giou"),
    ):
        value = expected_terms[reference_name].item()
        assert terms[name].item() == pytest.approx(value, rel=1e-5)


TORCHVISION_NAMES = {  # of Hugging Face's ResNet
    r"embedder\.embedder\.convolution": "conv1",
    r"embedder\.embedder\.normalization": "bn1",
    r"shortcut\.convolution": "downsample.0",
    r"shortcut\.normalization": "downsample.1",
    r"layer\.0\.convolution": "conv1",
    r"layer\.1\.convolution": "conv2",
    r"layer\.2\.convolution": "conv3",
    r"layer\.0\.normalization": "bn1",
    r"layer\.1\.normalization": "bn2",
    r"layer\.2\.normalization": "bn3",
    r"encoder\.stages\.0\.layers": "layer1",
    r"encoder\.stages\.1\.layers": "layer2",
    r"encoder\.stages\.2\.layers": "layer3",
    r"encoder\.stages\.3\.layers": "layer4",
}
AUTHORS_NAMES = {  # of Hugging Face's DETR with the ResNet of torchvision
    "model.backbone.conv_encoder.model.": "backbone.0.body.",
    "model.encoder.": "transformer.encoder.",
    "model.decoder.": "transformer.decoder.",
    "self_attn_layer_norm": "norm1",
    "encoder_attn_layer_norm": "norm2",
    "encoder_attn": "multihead_attn",
    ".fc": ".linear",
    ".layernorm.": ".norm.",
    "model.input_projection": "input_proj",
    "model.query_position_embeddings": "query_embed",
    "class_labels_classifier": "class_embed",
    "bbox_predictor": "bbox_embed",
    "model.position_embedding.column_embeddings": "backbone.1.col_embed",
    "model.position_embedding.row_embeddings": "backbone.1.row_embed",
}


def with_torchvision_backbone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of Hugging Face's ResNet to the names of torchvision."""
    renamed = {}
    for name, tensor in state.items():
        if "conv_encoder" in name:
            for pattern, replacement in TORCHVISION_NAMES.items():
                name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def in_layout_of_authors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of Hugging Face's DETR to the names of its authors.

    Queries, keys and values become one tensor, in this order.
    """

    def order(name: str) -> str:
        return name.replace("k_proj", "r_proj")  # between q_proj and v_proj

    state = with_torchvision_backbone(state)
    renamed: dict[str, Tensor] = {}
    for foreign in sorted(state, key=order):
        name = foreign
        for old, new in AUTHORS_NAMES.items():
            name = name.replace(old, new)
        last_norm = "norm2" if "encoder" in name else "norm3"
        name = name.replace("final_layer_norm", last_norm)
        name = re.sub(r"[qkv]_proj\.", "in_proj_", name)
        if name in renamed:
            renamed[name] = torch.cat([renamed[name], state[foreign]])
        else:
            renamed[name] = state[foreign]
    return renamed


def load(
    state: dict[str, Tensor], folder: Path, layout: str = "facebook_detr"
) -> tuple[Any, dict[str, Tensor]]:
    torch.save({"model": state}, folder / "detr.pth")
    return convert(layout, folder / "detr.pth", Options(heads=HEADS))[:2]


@pytest.mark.parametrize("position", ["sine", "learned"])
@pytest.mark.parametrize(
    ("layout", "stride"),
    [("hf_detr", 32), ("facebook_detr", 32), ("facebook_detr_dc5", 16)],
)
def test_all_layouts_of_the_same_weights_give_the_same_model(
    layout: str, stride: int, position: str, tmp_path: Path
) -> None:
    expected = converted(hugging_face(position), tmp_path).state_dict()
    state = load_file(tmp_path / "model.safetensors")
    if layout == "hf_detr":
        tensors = with_torchvision_backbone(state)
    else:
        tensors = in_layout_of_authors(state)
    recipe, weights = load(tensors, tmp_path, layout)
    assert recipe.task == "detection"
    assert recipe.model.position == position
    assert recipe.model.layers == (2, 3)
    assert recipe.model.backbone.resnet.stride == stride
    assert not recipe.model.block.norm_first
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor)


def test_a_norm_after_the_encoder_shows_that_norms_are_first(tmp_path: Path) -> None:
    expected = converted(hugging_face(), tmp_path).state_dict()
    tensors = in_layout_of_authors(load_file(tmp_path / "model.safetensors"))
    tensors["transformer.encoder.norm.weight"] = torch.ones(WIDTH)
    tensors["transformer.encoder.norm.bias"] = torch.ones(WIDTH)
    recipe, weights = load(tensors, tmp_path, "facebook_detr")
    assert recipe.model.block.norm_first
    added = weights.keys() - expected.keys()
    assert added == {"encoder.norm.weight", "encoder.norm.bias"}
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor)


def test_conversion_rejects_segmentation_heads_and_a_wrong_number_of_labels(tmp_path: Path) -> None:
    converted(hugging_face(), tmp_path)
    state = in_layout_of_authors(load_file(tmp_path / "model.safetensors"))
    with pytest.raises(
        CheckpointError, match=r"detr\.pth: tensor 'mask_head\.lay1\.weight' has no place"
    ):
        load(state | {"mask_head.lay1.weight": torch.zeros(2, 2)}, tmp_path)
    load(state, tmp_path)
    with pytest.raises(CheckpointError, match="3 classes, but 2 labels"):
        convert("facebook_detr", tmp_path / "detr.pth", Options(labels=("a", "b")))


@torch.no_grad()
def test_dilation_computes_the_features_between_the_strided_ones() -> None:
    blocks = (1, 1, 1, 3)
    strided = small(BackboneConfig(resnet=ResNetConfig(blocks, 4, stride=32))).backbone
    dilated = small(BackboneConfig(resnet=ResNetConfig(blocks, 4, stride=16))).backbone
    dilated.load_state_dict(strided.state_dict())
    pixels, _ = two_images()
    expected, _ = strided(pixels)
    features, _ = dilated(pixels)
    torch.testing.assert_close(features[..., ::2, ::2], expected, **tolerance(DEPTH, LENGTH))


BACKBONES = {
    "cnn": CNN,
    "resnet": BackboneConfig(resnet=ResNetConfig((1, 2, 1, 2), 4)),
    "resnet dc5": BackboneConfig(resnet=ResNetConfig((1, 1, 1, 2), 4, stride=16)),
}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("position", ["sine", "learned"])
@torch.no_grad()
def test_predictions_do_not_depend_on_padding(
    backbone: str, position: Literal["sine", "learned"]
) -> None:
    model = small(BACKBONES[backbone], position)
    pixels, mask = two_images()
    pixels = pixels.masked_fill(~mask[:, None], torch.nan)  # the padding may hold any value
    together = model(pixels, mask)
    for index, (height, width) in enumerate(SIZES):
        alone = model(pixels[index : index + 1, :, :height, :width])
        layers = (alone, *alone.auxiliary)
        together_layers = (together, *together.auxiliary)
        for one, other in zip(layers, together_layers, strict=True):
            assert_equal(one, other.logit[index][None], other.box[index][None])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backbone", ["cnn", "resnet"])
def test_an_image_of_padding_gives_finite_loss_and_gradients(
    backbone: str, precision: torch.dtype
) -> None:
    model = small(BACKBONES[backbone]).train()
    pixels, mask = two_images()
    mask[1] = False
    labeled = targets()
    without_second = labeled.mask & torch.tensor([[True], [False]])
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        predicted = model(pixels, mask)
    loss = box_loss(predicted, replace(labeled, mask=without_second), BoxLossConfig())["loss"]
    loss.backward()
    assert loss.isfinite()
    for parameter in model.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()


def detections(*queries: tuple[list[float], int, float]) -> Detections:
    """Predictions for one image: centers, class and its probability for each query."""
    logit = torch.zeros(1, len(queries), CLASSES + 1)
    for index, (_, label, probability) in enumerate(queries):
        logit[0, index] = math.log((1 - probability) / CLASSES)
        logit[0, index, label] = math.log(probability)
    return Detections(logit, torch.tensor([[box for box, _, _ in queries]]))


def test_objects_are_in_pixels_and_sorted_by_score() -> None:
    predictions = detections(
        ([0.5, 0.5, 1.0, 0.5], 2, 0.6),
        ([0.25, 0.5, 0.1, 0.2], 0, 0.9),
        ([0.5, 0.5, 0.2, 0.2], CLASSES, 0.97),
    )
    size = torch.tensor([[100, 200]])
    (objects,) = postprocess(predictions, size)
    assert objects.label.tolist()[:2] == [0, 2]
    assert objects.query.tolist() == [1, 0, 2]
    torch.testing.assert_close(objects.score, torch.tensor([0.9, 0.6, 0.01]))
    expected = torch.tensor([[40.0, 40.0, 60.0, 60.0], [0.0, 25.0, 200.0, 75.0]])
    torch.testing.assert_close(objects.box[:2], expected)
    (probable,) = postprocess(predictions, size, score=0.7)
    assert probable.label.tolist() == [0]
    assert probable.box.shape == (1, 4)


def test_nms_joins_all_layers_and_removes_duplicates() -> None:
    box = [0.5, 0.5, 0.4, 0.4]
    near = [0.51, 0.5, 0.4, 0.4]
    far = [0.2, 0.2, 0.1, 0.1]
    last = detections((box, 0, 0.7), (far, CLASSES, 0.9))
    first = detections((near, 0, 0.8), (far, 1, 0.6))
    predictions = replace(last, auxiliary=(first,))
    size = torch.tensor([[100, 100]])

    (without_nms,) = postprocess(predictions, size, score=0.5)
    assert without_nms.label.tolist() == [0]
    assert without_nms.score.tolist() == pytest.approx([0.7])

    (joined,) = postprocess(predictions, size, score=0.5, nms=0.7)
    assert joined.label.tolist() == [0, 1]
    assert joined.score.tolist() == pytest.approx([0.8, 0.6])
    assert joined.query.tolist() == [0, 1]

    (with_duplicate,) = postprocess(predictions, size, score=0.5, nms=0.99)
    assert with_duplicate.label.tolist() == [0, 0, 1]
