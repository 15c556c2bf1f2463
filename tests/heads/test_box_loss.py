"""Geometry of boxes, and the set loss of DETR."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trajformer.heads.detr import loss as losses
from trajformer.heads.detr.boxes import iou, suppress, to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.model import Detections

CLASSES = 4
QUERIES = 6
CONFIG = BoxLossConfig()


def draw_boxes(*shape: int, seed: int = 0) -> Tensor:
    """Boxes in the unit square, as centers."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.05 + 0.4 * torch.rand(*shape, 2, generator=generator)
    center = size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator)
    return torch.cat([center, size], -1)


def draw_detections(images: int, layers: int) -> Detections:
    """Random detections of several layers that require a gradient."""
    generator = torch.Generator().manual_seed(3)
    outputs = []
    for layer in range(layers):
        logit = torch.randn(images, QUERIES, CLASSES + 1, generator=generator)
        box = draw_boxes(images, QUERIES, seed=10 + layer)
        outputs.append(Detections(logit.requires_grad_(), box.requires_grad_()))
    return replace(outputs[-1], auxiliary=tuple(outputs[:-1]))


def draw_targets(counts: tuple[int, ...]) -> BoxTargets:
    """`counts` random labeled boxes per image, padded."""
    generator = torch.Generator().manual_seed(4)
    shape = (len(counts), max(counts))
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    label = torch.randint(CLASSES, shape, generator=generator) * mask
    box = draw_boxes(*shape, seed=5) * mask[..., None]
    return BoxTargets(label, box, mask)


def detections_and_targets(
    counts: tuple[int, ...] = (3, 0, 2), layers: int = 2
) -> tuple[Detections, BoxTargets]:
    """Random detections and targets for the same images."""
    return draw_detections(len(counts), layers), draw_targets(counts)


@pytest.mark.parametrize(
    ("other", "expected", "generalized"),
    [
        pytest.param([0.0, 0.0, 2.0, 2.0], 1.0, 1.0, id="equal"),
        pytest.param([1.0, 0.0, 3.0, 2.0], 1 / 3, 1 / 3, id="half"),
        pytest.param([1.0, 1.0, 3.0, 3.0], 1 / 7, 1 / 7 - 2 / 9, id="quarter"),
        pytest.param([4.0, 0.0, 6.0, 2.0], 0.0, -4 / 12, id="apart"),
        pytest.param([2.0, 0.0, 4.0, 2.0], 0.0, 0.0, id="touching"),
        pytest.param([0.5, 0.5, 1.5, 1.5], 0.25, 0.25, id="nested"),
    ],
)
def test_iou_in_closed_form(other: list[float], expected: float, generalized: float) -> None:
    a = torch.tensor([0.0, 0.0, 2.0, 2.0])
    b = torch.tensor(other)
    assert iou(a, b).item() == pytest.approx(expected, abs=1e-6)
    assert iou(b, a, generalized=True).item() == pytest.approx(generalized, abs=1e-6)


@pytest.mark.parametrize("generalized", [False, True])
def test_gradient_of_iou_is_correct_and_finite_for_empty_boxes(generalized: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return iou(x, y, generalized=generalized)

    a = to_corners(draw_boxes(8, seed=0).double()).requires_grad_()
    b = to_corners(draw_boxes(8, seed=1).double()).requires_grad_()
    assert torch.autograd.gradcheck(function, (a, b))

    empty = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.2, 0.9]]).requires_grad_()
    others = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.4, 0.4]])
    values = function(empty[:, None], others)
    assert values.isfinite().all()
    assert values[0, 0] == 0
    (gradient,) = torch.autograd.grad(values.sum(), empty)
    assert gradient.isfinite().all()


def test_nms_keeps_the_best_box_of_overlapping_boxes_of_a_class() -> None:
    # Boxes 0, 1 and 4 overlap; box 2 has another class, box 3 is apart.
    left = torch.tensor([0.0, 1.0, 0.0, 30.0, 2.0])
    box = torch.stack([left, torch.zeros(5), left + 10, torch.full((5,), 10.0)], -1)
    score = torch.tensor([0.6, 0.9, 0.5, 0.1, 0.8])
    label = torch.tensor([0, 0, 1, 0, 0])
    assert suppress(box, score, label, 0.5).tolist() == [1, 2, 3]
    assert suppress(box, score, label, 0.95).tolist() == [1, 4, 0, 2, 3]
    assert suppress(box[:0], score[:0], label[:0], 0.5).tolist() == []


def test_a_removed_box_removes_no_other_box() -> None:
    left = torch.tensor([0.0, 3.0, 6.0])  # neighbors have an IoU of 7/13
    box = torch.stack([left, torch.zeros(3), left + 10, torch.full((3,), 10.0)], -1)
    score = torch.tensor([0.9, 0.8, 0.7])
    assert suppress(box, score, torch.zeros(3), 0.5).tolist() == [0, 2]


@pytest.mark.parametrize("padding", [0, 2])
def test_images_without_boxes_train_only_the_no_object_class(padding: int) -> None:
    detections = draw_detections(images=3, layers=2)
    label = torch.zeros(3, padding, dtype=torch.int64)
    mask = torch.zeros(3, padding, dtype=torch.bool)
    targets = BoxTargets(label, torch.zeros(3, padding, 4), mask)
    terms = box_loss(detections, targets, CONFIG)
    no_object = detections.logit.log_softmax(-1)[..., -1]
    assert terms["classification"].item() == pytest.approx(-no_object.mean().item(), rel=1e-5)
    assert terms["l1"] == 0
    assert terms["giou"] == 0
    terms["loss"].backward()
    assert detections.logit.grad.isfinite().all()
    assert not detections.box.grad.any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_box_is_an_error_with_layer_image_and_query(value: float) -> None:
    detections, targets = detections_and_targets()
    (first,) = detections.auxiliary
    box = first.box.detach().clone()
    box[2, 4, 0] = value
    broken = replace(detections, auxiliary=(replace(first, box=box),))
    with pytest.raises(ValueError, match="layer 0, image 2, query 4, box 0"):
        box_loss(broken, targets, CONFIG)


def test_loss_is_averaged_over_the_boxes_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five boxes in this process and 35 in three others are ten boxes per process."""
    detections, targets = detections_and_targets()
    alone = box_loss(detections, targets, CONFIG)
    monkeypatch.setattr(losses.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(losses.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(losses.distributed, "all_reduce", lambda count: count.add_(35.0))
    together = box_loss(detections, targets, CONFIG)
    assert together["l1"].item() == pytest.approx(alone["l1"].item() * 5 / 10, rel=1e-5)
    assert together["classification"] == alone["classification"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_layer_is_trained_also_in_half_precision_and_with_more_boxes_than_queries(
    dtype: torch.dtype,
) -> None:
    detections, targets = detections_and_targets((QUERIES + 3, 1), layers=3)
    layers = (*detections.auxiliary, detections)
    converted = [Detections(one.logit.to(dtype), one.box.to(dtype)) for one in layers]
    last = replace(converted[-1], auxiliary=tuple(converted[:-1]))
    terms = box_loss(last, targets, CONFIG)
    for value in terms.values():
        assert value.isfinite()
        assert value > 0
        assert value.dtype == torch.float32
    assert [name for name, value in terms.items() if value.requires_grad] == ["loss"]
    terms["loss"].backward()
    for layer in layers:
        assert layer.logit.grad.any()
        assert layer.box.grad.any()
