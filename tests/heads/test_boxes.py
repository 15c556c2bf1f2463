"""Boxes by hand and against pycocotools, and DETR's loss: by hand, against plain loops, its gradients and its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from trajformer.heads.detr import loss as losses
from trajformer.heads.detr.boxes import iou, suppress, to_centers, to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_cost, box_loss
from trajformer.heads.detr.model import Detections

CLASSES, QUERIES = 4, 6
CONFIG = BoxLossConfig()


def draw_boxes(*shape: int, seed: int = 0) -> Tensor:
    """Centres of boxes inside the unit square."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.05 + 0.4 * torch.rand(*shape, 2, generator=generator)
    return torch.cat([size / 2 + (1 - size) * torch.rand(*shape, 2, generator=generator), size], -1)


def make(counts: tuple[int, ...] = (3, 0, 2), layers: int = 2) -> tuple[Detections, BoxTargets]:
    """Random detections of several layers, and targets with so many boxes an image, the last of a row padding."""
    generator = torch.Generator().manual_seed(3)

    def detections(seed: int) -> Detections:
        logit = torch.randn(len(counts), QUERIES, CLASSES + 1, generator=generator)
        return Detections(logit.requires_grad_(), draw_boxes(len(counts), QUERIES, seed=seed).requires_grad_())

    every = [detections(10 + layer) for layer in range(layers)]
    most = max(counts)
    mask = torch.arange(most) < torch.tensor(counts)[:, None]
    label = torch.randint(CLASSES, (len(counts), most), generator=generator) * mask
    targets = BoxTargets(label, draw_boxes(len(counts), most, seed=5) * mask[..., None], mask)
    return replace(every[-1], auxiliary=tuple(every[:-1])), targets


def giou_by_hand(a: list[float], b: list[float]) -> float:
    """Generalised overlap of two boxes given as corners, in plain Python."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    around = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return common / union - (around - union) / around


def test_corners_and_centres_are_two_ways_to_write_a_box() -> None:
    centres = torch.tensor([[2.0, 3.0, 2.0, 4.0], [0.5, 0.5, 1.0, 0.0]])
    assert to_corners(centres).tolist() == [[1.0, 1.0, 3.0, 5.0], [0.0, 0.5, 1.0, 0.5]]
    torch.testing.assert_close(to_centers(to_corners(draw_boxes(50))), draw_boxes(50))


@pytest.mark.parametrize(
    ("other", "share", "generalized"),
    [
        ([0.0, 0.0, 2.0, 2.0], 1.0, 1.0),
        ([1.0, 0.0, 3.0, 2.0], 1 / 3, 1 / 3),  # the box around both is their union
        ([1.0, 1.0, 3.0, 3.0], 1 / 7, 1 / 7 - 2 / 9),
        ([4.0, 0.0, 6.0, 2.0], 0.0, -4 / 12),  # the gap decides
        ([2.0, 0.0, 4.0, 2.0], 0.0, 0.0),  # they touch
        ([0.5, 0.5, 1.5, 1.5], 0.25, 0.25),  # one inside the other
    ],
)
def test_overlap_by_hand(other: list[float], share: float, generalized: float) -> None:
    box = torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert iou(box, torch.tensor(other)).item() == pytest.approx(share, abs=1e-6)
    assert iou(torch.tensor(other), box, generalized=True).item() == pytest.approx(generalized, abs=1e-6)


def test_overlap_equals_pycocotools() -> None:
    mask = pytest.importorskip("pycocotools.mask")
    a, b = to_corners(draw_boxes(40).double()), to_corners(draw_boxes(30, seed=1).double())
    expected = mask.iou(*(np.concatenate([x[:, :2], x[:, 2:] - x[:, :2]], 1) for x in (a.numpy(), b.numpy())), [0] * 30)
    np.testing.assert_allclose(iou(a[:, None], b[None]).numpy(), expected, atol=1e-9)


def test_the_gradient_of_overlap_is_that_of_differences() -> None:
    a, b = (to_corners(draw_boxes(8, seed=s).double()).requires_grad_() for s in (0, 1))
    for generalized in (False, True):
        assert torch.autograd.gradcheck(lambda x, y, g=generalized: iou(x, y, generalized=g), (a, b))


def test_empty_boxes_have_a_finite_overlap_and_gradient() -> None:
    a = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.2, 0.9]]).requires_grad_()
    b = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.4, 0.4]])
    for generalized in (False, True):
        values = iou(a[:, None], b[None], generalized=generalized)
        assert values.isfinite().all() and values[0, 0] == 0
        (gradient,) = torch.autograd.grad(values.sum(), a)
        assert gradient.isfinite().all()


def test_suppression_keeps_the_surest_of_a_class() -> None:
    box = torch.tensor([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [30, 0, 40, 10], [2, 0, 12, 10.0]])
    score, label = torch.tensor([0.6, 0.9, 0.5, 0.1, 0.8]), torch.tensor([0, 0, 1, 0, 0])
    assert suppress(box, score, label, 0.5).tolist() == [1, 2, 3]  # 0 and 4 repeat 1; 2 is of another class
    assert suppress(box, score, label, 0.95).tolist() == [1, 4, 0, 2, 3]
    chain = torch.tensor([[0, 0, 10, 10], [3, 0, 13, 10], [6, 0, 16, 10.0]])  # each overlaps the next by 7/13
    assert suppress(chain, torch.tensor([0.9, 0.8, 0.7]), torch.zeros(3), 0.5).tolist() == [
        0,
        2,
    ]  # removed boxes suppress none
    assert suppress(box[:0], score[:0], label[:0], 0.5).tolist() == []


def test_the_cost_is_that_of_the_paper_for_every_pair() -> None:
    detections, targets = make()
    cost = box_cost(detections.logit, detections.box, targets, replace(CONFIG, cost_class=0.7))
    assert cost.shape == (3, QUERIES, 3) and not cost.requires_grad
    probability = detections.logit.softmax(-1)
    for image, query, target in np.ndindex(*cost.shape):
        found, true = detections.box[image, query], targets.box[image, target]
        if targets.mask[image, target]:
            expected = -0.7 * probability[image, query, targets.label[image, target]] + 5 * (found - true).abs().sum()
            expected = expected - 2 * giou_by_hand(to_corners(found).tolist(), to_corners(true).tolist())
            assert cost[image, query, target].item() == pytest.approx(expected.item(), abs=1e-5)


def loss_by_hand(detections: Detections, targets: BoxTargets) -> dict[str, Tensor]:
    """One layer's terms, image by image, as the paper describes them."""
    weight = torch.ones(CLASSES + 1)
    weight[-1] = CONFIG.no_object
    logits, wanted, l1, giou = [], [], torch.zeros(()), torch.zeros(())
    for image, logit in enumerate(detections.logit):
        real = targets.mask[image]
        box, label = targets.box[image, real], targets.label[image, real]
        cost = torch.tensor(
            [
                [
                    -logit.softmax(-1)[q, label[g]].item()
                    + 5 * (detections.box[image, q] - box[g]).abs().sum().item()
                    - 2 * giou_by_hand(to_corners(detections.box[image, q]).tolist(), to_corners(box[g]).tolist())
                    for g in range(len(box))
                ]
                for q in range(QUERIES)
            ]
        ).reshape(QUERIES, len(box))
        classes = torch.full((QUERIES,), CLASSES)
        for query, target in zip(*linear_sum_assignment(cost.numpy()), strict=True):
            classes[query] = label[target]
            l1 = l1 + (detections.box[image, query] - box[target]).abs().sum()
            giou = giou + 1 - giou_by_hand(
                to_corners(detections.box[image, query]).tolist(), to_corners(box[target]).tolist()
            )  # fmt: skip
        logits.append(logit)
        wanted.append(classes)
    count = max(int(targets.mask.sum()), 1)
    entropy = F.cross_entropy(torch.cat(logits), torch.cat(wanted), weight)
    return {"classification": entropy, "l1": l1 / count, "giou": giou / count}


def test_the_loss_equals_plain_loops_and_auxiliary_layers_have_matches_of_their_own() -> None:
    detections, targets = make(layers=3)
    terms = box_loss(detections, targets, CONFIG)
    last, *others = (loss_by_hand(one, targets) for one in (detections, *detections.auxiliary))
    for name in ("classification", "l1", "giou"):
        assert terms[name].item() == pytest.approx(last[name].item(), rel=1e-5)
    sums = [(one["classification"] + 5 * one["l1"] + 2 * one["giou"]).item() for one in (last, *others)]
    assert terms["auxiliary"].item() == pytest.approx(sum(sums[1:]), rel=1e-5)
    assert terms["loss"].item() == pytest.approx(sum(sums), rel=1e-5)
    assert [name for name, value in terms.items() if value.requires_grad] == ["loss"]
    terms["loss"].backward()
    for one in (detections, *detections.auxiliary):
        assert one.logit.grad.abs().sum() > 0 and one.box.grad.abs().sum() > 0


def test_padding_of_targets_and_the_order_of_boxes_do_not_matter() -> None:
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
def test_without_boxes_every_query_is_no_object(most: int) -> None:
    detections, _ = make()
    targets = BoxTargets(torch.zeros(3, most, dtype=torch.int64), torch.zeros(3, most, 4), torch.zeros(3, most, dtype=torch.bool))
    terms = box_loss(detections, targets, CONFIG)
    nothing = -detections.logit.log_softmax(-1)[..., -1].mean()
    assert terms["classification"].item() == pytest.approx(nothing.item(), rel=1e-5)
    assert terms["l1"] == terms["giou"] == 0
    terms["loss"].backward()
    assert detections.logit.grad.isfinite().all() and not detections.box.grad.any()


def test_more_boxes_than_queries_are_matched_as_far_as_queries_go() -> None:
    detections, targets = make((QUERIES + 3, 1))
    terms = box_loss(detections, targets, CONFIG)
    assert all(value.isfinite() for value in terms.values())
    assert terms["l1"].item() > 0


def test_half_precision_detections_give_the_loss_in_single_precision() -> None:
    detections, targets = make(layers=1)
    half = Detections(detections.logit.half(), detections.box.half())
    for name, value in box_loss(half, targets, CONFIG).items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(box_loss(detections, targets, CONFIG)[name].item(), rel=2e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_box_that_is_not_finite_is_named_by_layer_image_and_query(value: float) -> None:
    detections, targets = make()
    box = detections.auxiliary[0].box.detach().clone()
    box[2, 4, 0] = value
    broken = replace(detections, auxiliary=(replace(detections.auxiliary[0], box=box),))
    with pytest.raises(ValueError, match="layer 0, image 2, query 4, box 0"):
        box_loss(broken, targets, CONFIG)


def test_terms_are_means_over_the_boxes_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    detections, targets = make()
    alone = box_loss(detections, targets, CONFIG)
    monkeypatch.setattr(losses.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(losses.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(losses.distributed, "all_reduce", lambda count: count.add_(35.0))  # the other three have so many
    together = box_loss(detections, targets, CONFIG)
    assert together["l1"].item() == pytest.approx(alone["l1"].item() * 5 / 10, rel=1e-5)
    assert together["classification"] == alone["classification"]
