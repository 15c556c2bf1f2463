"""Boxes in closed form and against pycocotools, and the set loss. test_detr.py compares the loss with Hugging Face."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.heads.detr import model as losses
from trajformer.heads.detr.data import BoxTargets, iou, suppress, to_corners
from trajformer.heads.detr.model import BoxLossConfig, Detections, box_loss

CLASSES, QUERIES = 4, 6
CONFIG = BoxLossConfig()


def draw_boxes(*shape: int, seed: int = 0) -> Tensor:
    """Boxes in the unit square, as centers."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.05 + 0.4 * torch.rand(*shape, 2, generator=generator)
    return torch.cat([size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator), size], -1)


def make(counts: tuple[int, ...] = (3, 0, 2), layers: int = 2) -> tuple[Detections, BoxTargets]:
    """Random detections of several layers, and `counts` labeled boxes per image, padded."""
    generator = torch.Generator().manual_seed(3)

    def detections(seed: int) -> Detections:
        logit = torch.randn(len(counts), QUERIES, CLASSES + 1, generator=generator)
        return Detections(logit.requires_grad_(), draw_boxes(len(counts), QUERIES, seed=seed).requires_grad_())

    layer_outputs = [detections(10 + layer) for layer in range(layers)]
    most = max(counts)
    mask = torch.arange(most) < torch.tensor(counts)[:, None]
    label = torch.randint(CLASSES, (len(counts), most), generator=generator) * mask
    targets = BoxTargets(label, draw_boxes(len(counts), most, seed=5) * mask[..., None], mask)
    return replace(layer_outputs[-1], auxiliary=tuple(layer_outputs[:-1])), targets


@pytest.mark.parametrize(
    ("other", "share", "generalized"),
    [
        ([0.0, 0.0, 2.0, 2.0], 1.0, 1.0),
        ([1.0, 0.0, 3.0, 2.0], 1 / 3, 1 / 3),
        ([1.0, 1.0, 3.0, 3.0], 1 / 7, 1 / 7 - 2 / 9),
        ([4.0, 0.0, 6.0, 2.0], 0.0, -4 / 12),  # apart
        ([2.0, 0.0, 4.0, 2.0], 0.0, 0.0),  # touching
        ([0.5, 0.5, 1.5, 1.5], 0.25, 0.25),  # nested
    ],
)
def test_iou_in_closed_form(other: list[float], share: float, generalized: float) -> None:
    box = torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert iou(box, torch.tensor(other)).item() == pytest.approx(share, abs=1e-6)
    assert iou(torch.tensor(other), box, generalized=True).item() == pytest.approx(generalized, abs=1e-6)


def test_loss_is_independent_of_target_padding_and_order() -> None:
    detections, targets = make()
    expected = box_loss(detections, targets, CONFIG)
    order = torch.tensor([2, 0, 1])
    for other in (
        BoxTargets(*(F.pad(x, (0, 0) * (x.ndim - 2) + (0, 4)) for x in (targets.label, targets.box, targets.mask))),
        BoxTargets(targets.label[:, order], targets.box[:, order], targets.mask[:, order]),
    ):
        for name, value in box_loss(detections, other, CONFIG).items():
            torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("most", [0, 2])
def test_images_without_boxes_train_only_the_no_object_class(most: int) -> None:
    detections, _ = make()
    targets = BoxTargets(torch.zeros(3, most, dtype=torch.int64), torch.zeros(3, most, 4), torch.zeros(3, most, dtype=torch.bool))
    terms = box_loss(detections, targets, CONFIG)
    nothing = -detections.logit.log_softmax(-1)[..., -1].mean()
    assert terms["classification"].item() == pytest.approx(nothing.item(), rel=1e-5)
    assert terms["l1"] == terms["giou"] == 0
    terms["loss"].backward()
    assert detections.logit.grad.isfinite().all() and not detections.box.grad.any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_box_is_an_error_with_layer_image_and_query(value: float) -> None:
    detections, targets = make()
    box = detections.auxiliary[0].box.detach().clone()
    box[2, 4, 0] = value
    broken = replace(detections, auxiliary=(replace(detections.auxiliary[0], box=box),))
    with pytest.raises(ValueError, match="layer 0, image 2, query 4, box 0"):
        box_loss(broken, targets, CONFIG)


def test_loss_is_averaged_over_the_boxes_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    detections, targets = make()
    alone = box_loss(detections, targets, CONFIG)
    monkeypatch.setattr(losses.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(losses.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(losses.distributed, "all_reduce", lambda count: count.add_(35.0))  # boxes of the other three
    together = box_loss(detections, targets, CONFIG)
    assert together["l1"].item() == pytest.approx(alone["l1"].item() * 5 / 10, rel=1e-5)
    assert together["classification"] == alone["classification"]


@pytest.mark.parametrize("generalized", [False, True])
def test_gradient_of_iou_is_correct_and_finite_for_empty_boxes(generalized: bool) -> None:
    a, b = (to_corners(draw_boxes(8, seed=s).double()).requires_grad_() for s in (0, 1))
    assert torch.autograd.gradcheck(lambda x, y: iou(x, y, generalized=generalized), (a, b))
    empty = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.2, 0.9]]).requires_grad_()
    values = iou(empty[:, None], torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.4, 0.4]]), generalized=generalized)
    assert values.isfinite().all() and values[0, 0] == 0
    assert torch.autograd.grad(values.sum(), empty)[0].isfinite().all()


def test_nms_keeps_the_best_box_of_overlapping_boxes_of_a_class() -> None:
    box = torch.tensor([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [30, 0, 40, 10], [2, 0, 12, 10.0]])
    score, label = torch.tensor([0.6, 0.9, 0.5, 0.1, 0.8]), torch.tensor([0, 0, 1, 0, 0])
    assert suppress(box, score, label, 0.5).tolist() == [1, 2, 3]  # boxes 0 and 4 overlap box 1; box 2 has another class
    assert suppress(box, score, label, 0.95).tolist() == [1, 4, 0, 2, 3]
    chain = torch.tensor([[0, 0, 10, 10], [3, 0, 13, 10], [6, 0, 16, 10.0]])  # IoU of neighbors 7/13
    assert suppress(chain, torch.tensor([0.9, 0.8, 0.7]), torch.zeros(3), 0.5).tolist() == [0, 2]  # removed boxes remove none
    assert suppress(box[:0], score[:0], label[:0], 0.5).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_layer_is_trained_also_in_half_precision_and_with_more_boxes_than_queries(dtype: torch.dtype) -> None:
    detections, targets = make((QUERIES + 3, 1), layers=3)
    outputs = (detections, *detections.auxiliary)
    last, *others = (Detections(one.logit.to(dtype), one.box.to(dtype)) for one in outputs)
    terms = box_loss(replace(last, auxiliary=tuple(others)), targets, CONFIG)
    assert all(value.isfinite() and value > 0 and value.dtype == torch.float32 for value in terms.values())
    assert [name for name, value in terms.items() if value.requires_grad] == ["loss"]
    terms["loss"].backward()
    assert all(one.logit.grad.any() and one.box.grad.any() for one in outputs)
