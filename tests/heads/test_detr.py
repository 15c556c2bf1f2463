"""DETR equals Hugging Face's DETR and the published layouts; padding has no effect; postprocessing of predictions."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

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

WIDTH, HEADS, CLASSES, QUERIES = 32, 4, 3, 7
SIZES = ((96, 128), (70, 101))  # of the two images in a batch


def randomize(module: nn.Module) -> nn.Module:
    """Random weights that keep the variance of activations, and random biases and norms; exchanged tensors are noticed."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if "var" in name:
            tensor.uniform_(0.5, 1.5, generator=generator)
        else:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(
                tensor + 0.1 * noise if tensor.ndim < 2 else noise / tensor[0].numel() ** 0.5
            )
    return module.eval()


def small(backbone: BackboneConfig | None = None, **changes: Any) -> Detr:
    block = BlockConfig(width=WIDTH, heads=HEADS, feedforward=48, dropout=0.0, norm_first=False)
    cnn = BackboneConfig(cnn=CnnConfig((8, 16, 24), blocks=2, groups=4))
    return randomize(
        Detr(DetrConfig(CLASSES, QUERIES, block, (2, 3), backbone=backbone or cnn, **changes))
    )


def two_images() -> tuple[Tensor, Tensor]:
    pixels, mask = draw(2, 3, *SIZES[0]), torch.zeros(2, *SIZES[0], dtype=torch.bool)
    for index, (height, width) in enumerate(SIZES):
        mask[index, :height, :width] = True
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
        use_timm_backbone=False, backbone_config=resnet, d_model=WIDTH, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=48, decoder_ffn_dim=48,
        num_queries=QUERIES, num_labels=CLASSES, dropout=0.0, position_embedding_type=position,
    )  # fmt: skip
    torch.manual_seed(0)
    return randomize(transformers.DetrForObjectDetection(config))


def converted(model: Any, folder: Path) -> Detr:
    model.save_pretrained(folder)
    recipe, weights, _ = convert("hf_detr", folder / "model.safetensors", Options(heads=HEADS))
    result = recipe.build_model()
    result.load_state_dict(weights)
    return result.eval()


@pytest.mark.parametrize("position", ["sine", "learned"])
def test_outputs_and_gradients_equal_hugging_face_in_padded_batches(
    position: str, tmp_path: Path
) -> None:
    reference = hugging_face(position).requires_grad_(True)  # its backbone is frozen by default
    model = converted(reference, tmp_path)
    model.backbone.padding = "in"  # as in the published code
    pixels, mask = two_images()
    expected, predicted = reference(pixels, mask.long()), model(pixels, mask)
    assert_equal(predicted, expected.logits, expected.pred_boxes)
    assert expected.logits.std(0).max() > 0.05, "the test images give equal outputs"
    weight = draw(*expected.logits.shape, seed=7), draw(*expected.pred_boxes.shape, seed=8)
    (expected.logits * weight[0]).sum().add((expected.pred_boxes * weight[1]).sum()).backward()
    (predicted.logit * weight[0]).sum().add((predicted.box * weight[1]).sum()).backward()
    pairs = {
        "model.query_position_embeddings.weight": "queries.weight",
        "model.backbone.model.encoder.stages.1.layers.0.layer.1.convolution.weight": "backbone.stages.1.0.convolutions.1.weight",
        "model.encoder.layers.0.self_attn.v_proj.weight": "encoder.layers.0.attention.sublayer.value.weight",
        "model.decoder.layers.1.encoder_attn.q_proj.weight": "decoder.layers.1.cross_attention.sublayer.query.weight",
        "bbox_predictor.layers.1.weight": "locate.2.weight",
    }
    for reference_name, name in pairs.items():
        gradient = reference.get_parameter(reference_name).grad
        assert gradient.abs().max() > 1e-3, reference_name
        limits = tolerance(2 * DEPTH, LENGTH, float(gradient.abs().max()))
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, **limits)


def test_loss_of_all_layers_equals_hugging_face() -> None:
    """Both criteria get the same outputs, because the decoder of Hugging Face normalizes auxiliary outputs differently."""
    criterion = pytest.importorskip("transformers.loss.loss_for_object_detection")
    config, labeled = hugging_face().config, targets()
    config.auxiliary_loss = True
    with torch.no_grad():
        predicted = small()(*two_images())
    labels = [
        {
            "class_labels": labeled.label[i][labeled.mask[i]],
            "boxes": labeled.box[i][labeled.mask[i]],
        }
        for i in range(2)
    ]
    layers = (*predicted.auxiliary, predicted)
    outputs = torch.stack([one.logit for one in layers]), torch.stack([one.box for one in layers])
    arguments = (predicted.logit, labels, torch.device("cpu"), predicted.box, config, *outputs)
    loss, parts, _ = criterion.ForObjectDetectionLoss(*arguments)
    terms = box_loss(predicted, labeled, BoxLossConfig())
    assert terms["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    for name, term in (("loss_ce", "classification"), ("loss_bbox", "l1"), ("loss_giou", "giou")):
        assert terms[term].item() == pytest.approx(parts[name].item(), rel=1e-5)


def with_torchvision_backbone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of Hugging Face's ResNet to the names of torchvision."""
    words, renamed = {"convolution": "conv", "normalization": "bn"}, {}
    for name, tensor in state.items():
        head, _, tail = name.partition("conv_encoder.model.")
        part = tail.split(".")
        if tail.startswith("embedder"):
            tail = f"{words[part[2]]}1.{part[3]}"
        elif tail and part[5] == "layer":
            tail = f"layer{int(part[2]) + 1}.{part[4]}.{words[part[7]]}{int(part[6]) + 1}.{part[8]}"
        elif tail:
            tail = f"layer{int(part[2]) + 1}.{part[4]}.downsample.{0 if part[6] == 'convolution' else 1}.{part[7]}"
        renamed[f"{head}conv_encoder.model.{tail}" if tail else name] = tensor
    return renamed


def in_layout_of_authors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of Hugging Face's DETR to the names of its authors, and join queries, keys and values."""
    words = {
        "model.backbone.conv_encoder.model.": "backbone.0.body.", "model.encoder.": "transformer.encoder.",
        "model.decoder.": "transformer.decoder.", "self_attn_layer_norm": "norm1", "encoder_attn_layer_norm": "norm2",
        "encoder_attn": "multihead_attn", ".fc": ".linear", ".layernorm.": ".norm.", "model.input_projection": "input_proj",
        "model.query_position_embeddings": "query_embed", "class_labels_classifier": "class_embed",
        "bbox_predictor": "bbox_embed", "model.position_embedding.column_embeddings": "backbone.1.col_embed",
        "model.position_embedding.row_embeddings": "backbone.1.row_embed",
    }  # fmt: skip
    renamed: dict[str, Tensor] = {}
    state = with_torchvision_backbone(state)
    for name in sorted(
        state, key=lambda name: name.replace("k_proj", "r_proj")
    ):  # queries, keys, values
        tensor = state[name]
        for old, new in words.items():
            name = name.replace(old, new)
        name = name.replace("final_layer_norm", "norm2" if "encoder" in name else "norm3")
        projection = re.sub(r"[qkv]_proj\.", "in_proj_", name)
        renamed[projection] = (
            torch.cat([renamed[projection], tensor]) if projection in renamed else tensor
        )
    return renamed


def load(
    state: dict[str, Tensor], folder: Path, layout: str = "facebook_detr"
) -> tuple[Any, dict[str, Tensor]]:
    torch.save({"model": state}, folder / "detr.pth")
    return convert(layout, folder / "detr.pth", Options(heads=HEADS))[:2]


@pytest.mark.parametrize("position", ["sine", "learned"])
def test_all_layouts_of_the_same_weights_give_the_same_model(position: str, tmp_path: Path) -> None:
    model = hugging_face(position)
    expected, state = (
        converted(model, tmp_path).state_dict(),
        load_file(tmp_path / "model.safetensors"),
    )
    norm = {f"transformer.encoder.norm.{part}": torch.ones(WIDTH) for part in ("weight", "bias")}
    authors = in_layout_of_authors(state)
    for layout, tensors, stride, norm_first in (
        ("hf_detr", with_torchvision_backbone(state), 32, False),
        ("facebook_detr", authors, 32, False),
        ("facebook_detr", authors | norm, 32, True),
        ("facebook_detr_dc5", authors, 16, False),
    ):
        recipe, weights = load(tensors, tmp_path, layout)
        assert (recipe.task, recipe.model.position, recipe.model.layers) == (
            "detection",
            position,
            (2, 3),
        )
        assert (recipe.model.backbone.resnet.stride, recipe.model.block.norm_first) == (
            stride,
            norm_first,
        )
        assert weights.keys() - expected.keys() == (
            {"encoder.norm.weight", "encoder.norm.bias"} if norm_first else set()
        )
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


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
    strided, dilated = (
        small(BackboneConfig(resnet=ResNetConfig((1, 1, 1, 3), 4, stride=s))).backbone
        for s in (32, 16)
    )
    dilated.load_state_dict(strided.state_dict())
    pixels = two_images()[0]
    torch.testing.assert_close(
        dilated(pixels)[0][..., ::2, ::2], strided(pixels)[0], **tolerance(DEPTH, LENGTH)
    )


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
    pixels, mask = two_images()
    pixels = pixels.masked_fill(~mask[:, None], torch.nan)  # the padding may hold any value
    together = model(pixels, mask)
    for index, (height, width) in enumerate(SIZES):
        alone = model(pixels[index : index + 1, :, :height, :width])
        for one, other in zip(
            (alone, *alone.auxiliary), (together, *together.auxiliary), strict=True
        ):
            assert_equal(one, other.logit[index : index + 1], other.box[index : index + 1])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backbone", ["cnn", "resnet"])
def test_an_image_of_padding_gives_finite_loss_and_gradients(
    backbone: str, precision: torch.dtype
) -> None:
    model = small(BACKBONES[backbone]).train()
    pixels, mask = two_images()
    mask[1] = False
    labeled = replace(targets(), mask=targets().mask & torch.tensor([[True], [False]]))
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        found = model(pixels, mask)
    loss = box_loss(found, labeled, BoxLossConfig())["loss"]
    loss.backward()
    assert loss.isfinite()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert all(
        gradient is not None and gradient.isfinite().all() for gradient in gradients.values()
    )


def detections(*queries: tuple[list[float], int, float]) -> Detections:
    """Predictions for one image: (center x, center y, width, height), class and score of each query."""
    logit = torch.zeros(1, len(queries), CLASSES + 1)
    for index, (_, label, sure) in enumerate(queries):
        logit[0, index] = math.log((1 - sure) / CLASSES)
        logit[0, index, label] = math.log(sure)
    return Detections(logit, torch.tensor([[box for box, _, _ in queries]]))


def test_objects_are_in_pixels_and_sorted_by_score() -> None:
    one = detections(
        ([0.5, 0.5, 1.0, 0.5], 2, 0.6),
        ([0.25, 0.5, 0.1, 0.2], 0, 0.9),
        ([0.5, 0.5, 0.2, 0.2], CLASSES, 0.97),
    )
    (found,) = postprocess(one, torch.tensor([[100, 200]]))
    assert found.label.tolist()[:2] == [0, 2] and found.query.tolist() == [1, 0, 2]
    torch.testing.assert_close(found.score, torch.tensor([0.9, 0.6, 0.01]))
    torch.testing.assert_close(
        found.box[:2], torch.tensor([[40.0, 40.0, 60.0, 60.0], [0.0, 25.0, 200.0, 75.0]])
    )
    (sure,) = postprocess(one, torch.tensor([[100, 200]]), score=0.7)
    assert sure.label.tolist() == [0] and sure.box.shape == (1, 4)


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
