"""Images with boxes: shapes, Pascal VOC folders, augmentation, batches; average precision; boxes and their loss."""

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.heads import voc_annotation
from torch import Tensor

from trajformer.errors import ConfigError, TrajformerError
from trajformer.heads.detr import loss as losses
from trajformer.heads.detr.augment import BoxAugmentConfig, augment_example
from trajformer.heads.detr.boxes import iou, suppress, to_corners
from trajformer.heads.detr.data import BoxTargets, Example, collate, resize_example
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.metrics import BoxTable, average_precision, pair_with_labels
from trajformer.heads.detr.model import Detections
from trajformer.heads.detr.objects import Objects
from trajformer.heads.detr.shapes import (
    LABELS,
    ShapesConfig,
    ShapesDataset,
    draw_shape,
    draw_shapes,
)
from trajformer.heads.detr.voc import VocConfig, VocDataset, read_annotation

SMALL = ShapesConfig(height=40, width=56, train=6, val=4, test=4)


def test_a_shape_fills_its_box_and_has_its_area() -> None:
    rng, kinds = np.random.default_rng(0), set()
    config = replace(SMALL, height=200, width=200, radius=(0.1, 0.2))
    for _ in range(60):
        shape = draw_shape(rng, config)
        rows, columns = np.nonzero(shape.cover > 0.5)
        left, top = shape.window[1].start, shape.window[0].start
        images = [
            columns.min() + left,
            rows.min() + top,
            columns.max() + left + 1,
            rows.max() + top + 1,
        ]
        np.testing.assert_allclose(
            images, shape.box, atol=2.5
        )  # a sharp corner covers less than half of its pixels
        if shape.box.min() > 0 and shape.box.max() < 200:
            assert shape.cover.sum() == pytest.approx(shape.area, rel=0.02)
            width, height = shape.box[2:] - shape.box[:2]
            kinds.add((LABELS[shape.label], round(shape.area / (width * height), 1)))
    shares = {name: {share for kind, share in kinds if kind == name} for name in LABELS}
    assert shares["disc"] == {0.8} and max(shares["triangle"]) <= 0.5 < max(shares["rectangle"])


def test_an_image_follows_from_split_seed_epoch_and_index() -> None:
    train, val = ShapesDataset(SMALL, "train", seed=3), ShapesDataset(SMALL, "val", seed=3)
    again = ShapesDataset(SMALL, "train", seed=3)
    assert torch.equal(train[[2, 5]].pixels, again[[2, 5]].pixels)
    assert torch.equal(train[[6 * 4 + 2]].pixels[0], collate([train.example(2, epoch=4)]).pixels[0])
    different = [train.example(2), train.example(3), train.example(2, epoch=1), ShapesDataset(SMALL, "train", seed=4).example(2),
                 val.example(2), ShapesDataset(SMALL, "test").example(2)]  # fmt: skip
    for index, one in enumerate(different):
        assert not any(torch.equal(one.image, other.image) for other in different[:index])
    assert torch.equal(val.example(2).image, ShapesDataset(SMALL, "val", seed=9).example(2).image)
    assert (len(train), len(val), train.sizes(np.arange(2)).tolist()) == (6, 4, [[40, 56]] * 2)
    with pytest.raises(TrajformerError, match="no split 'tset'"):
        ShapesDataset(SMALL, "tset")
    with pytest.raises(ConfigError, match="objects: 3, 2: expected a positive number"):
        replace(SMALL, objects=(3, 2))


def marked(height: int, width: int, box: tuple[int, int, int, int], label: int = 1) -> Example:
    image = torch.zeros(3, height, width)
    left, top, right, bottom = box
    image[:, top:bottom, left:right] = 1.0
    return Example(
        "a", image, torch.tensor([box], dtype=torch.float32), torch.tensor([label]), (height, width)
    )


def white_box(image: torch.Tensor) -> list[float]:
    rows, columns = (image[0] > 0.5).nonzero().unbind(1)
    return [
        columns.min().item(),
        rows.min().item(),
        columns.max().item() + 1,
        rows.max().item() + 1,
    ]


def test_batches_are_padded_and_boxes_are_shares_of_their_image() -> None:
    one, two = marked(20, 30, (3, 4, 9, 16)), marked(10, 40, (0, 0, 40, 10), 2)
    none = replace(
        marked(5, 5, (0, 0, 5, 5)), box=torch.zeros(0, 4), label=torch.zeros(0, dtype=torch.int64)
    )
    batch = collate([one, two, none])
    assert batch.pixels.shape == (3, 3, 20, 40) and batch.mask is not None
    assert (
        [int(mask.sum()) for mask in batch.mask] == [600, 400, 25]
        and batch.mask[1, 9, 39]
        and not batch.mask[1, 10, 0]
    )
    assert not batch.pixels[~batch.mask[:, None].expand(-1, 3, -1, -1)].any()
    assert batch.targets.mask.tolist() == [[True], [True], [False]] and batch.targets.label[
        :, 0
    ].tolist() == [1, 2, 0]
    torch.testing.assert_close(
        batch.targets.box[:2, 0], torch.tensor([[0.2, 0.5, 0.2, 0.6], [0.5, 0.5, 1.0, 1.0]])
    )
    assert collate([one, one]).mask is None
    moved = batch.to(torch.device("cpu"))
    assert moved.name == batch.name and torch.equal(moved.targets.box, batch.targets.box)


def test_boxes_are_augmented_with_the_image() -> None:
    example = marked(60, 90, (30, 25, 50, 37))
    assert torch.equal(
        augment_example(example, BoxAugmentConfig(), np.random.default_rng(0)).image,
        example.image,
    )
    config = BoxAugmentConfig(flip=0.5, flip_vertical=0.5, crop=1.0, smallest=0.7, light=0.2)
    for seed in range(12):
        augmented = augment_example(example, config, np.random.default_rng(seed))
        assert white_box(augmented.image) == augmented.box[0].tolist()
        small = resize_example(augmented, 120, 150)
        assert max(small.image.shape) <= 150 and min(small.image.shape[1:]) <= 120
        np.testing.assert_allclose(white_box(small.image), small.box[0], atol=1.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four entries: two valid ones, one without annotation, one with a truncated image."""
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / part).mkdir(parents=True)
    for number, size in enumerate(((40, 30), (20, 50), (40, 30), (40, 30))):
        pixels = (
            np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
        )
        Image.fromarray(pixels).save(tmp_path / "JPEGImages" / f"p{number}.jpg")
        text = voc_annotation(("cell", 4, 5, 20, 25), ("cell", 7, 7, 7, 9), ("dust", 1, 1, 3, 3))
        (tmp_path / "Annotations" / f"p{number}.xml").write_text(text)
    (tmp_path / "Annotations" / "p1.xml").write_text(voc_annotation(("dish", 1.5, 2, 10, 40)))
    (tmp_path / "Annotations" / "p2.xml").unlink()
    cut = tmp_path / "JPEGImages" / "p3.jpg"
    cut.write_bytes(cut.read_bytes()[:700])
    (tmp_path / "ImageSets/Main/train.txt").write_text("p0 1\np1 -1\n\np2\np3\n")
    return tmp_path


def test_unusable_images_and_boxes_are_left_out_and_listed(folder: Path) -> None:
    found = VocDataset(VocConfig(str(folder)), "train", ("dish", "cell"), (60, 100))
    assert len(found) == 2 and found.sizes(np.array([1, 0])).tolist() == [[50, 20], [30, 40]]
    first, second = found.example(0), found.example(1)
    assert (first.name, first.label.tolist(), first.original) == ("p0", [1], (30, 40))
    torch.testing.assert_close(first.box, torch.tensor([[8.0, 10.0, 40.0, 50.0]]))  # twice as large
    assert second.label.tolist() == [0] and second.image.shape == (3, 100, 40)
    complaints = "\n".join(found.skipped)
    assert (
        "p0: 1 boxes without area left out" in complaints
        and "1 objects of class 'dust' left out" in complaints
    )
    assert f"skipped {folder}/Annotations/p2.xml: not an annotation: no such file" in complaints
    assert f"skipped {folder}/JPEGImages/p3.jpg: not a readable image" in complaints
    assert len(found.skipped) == 4
    kept = pickle.loads(pickle.dumps(found))
    assert not kept.cache and torch.equal(kept.example(0).image, first.image)
    batch = found[[0, 1]]
    assert batch.original.tolist() == [[30, 40], [50, 20]] and batch.mask is not None


def test_folders_without_usable_objects_are_rejected(folder: Path) -> None:
    config = VocConfig(str(folder))
    with pytest.raises(
        TrajformerError, match=r"ImageSets/Main/val\.txt: cannot be read \(splits here: train\)"
    ):
        VocDataset(config, "val", ("cell",), (60, 100))
    with pytest.raises(
        TrajformerError, match="no object of the classes bird; 1 objects of class 'cell' left out"
    ):
        VocDataset(config, "train", ("bird",), (60, 100))
    with pytest.raises(TrajformerError, match=r"cannot be read \(splits here: none\)"):
        VocDataset(VocConfig(str(folder / "nowhere")), "train", ("cell",), (60, 100))


def test_augmentation_differs_between_epochs_and_is_reproducible(folder: Path) -> None:
    config = VocConfig(str(folder), vary=BoxAugmentConfig(flip=0.5, crop=1.0, light=0.3))
    plain, augmented = (
        VocDataset(config, "train", ("cell", "dish"), (60, 100), seed) for seed in (None, 7)
    )
    images = [augmented.example(0, epoch).image for epoch in range(4)]
    assert not any(
        a.shape == b.shape and torch.equal(a, b) for i, a in enumerate(images) for b in images[:i]
    )
    assert torch.equal(augmented.example(0, 2).image, images[2])
    assert torch.equal(plain.example(0, 2).image, plain.example(0).image)
    uncached = VocDataset(replace(config, cache=False), "train", ("cell", "dish"), (60, 100), 7)
    assert not uncached.cache and torch.equal(uncached.example(0, 2).image, images[2])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "document type"),
        ("<annotation><object>", "no element found"),
        (voc_annotation(("", 1, 2, 3, 4)), "no name"),
        (voc_annotation(("cell", 1, 2, float("nan"), 4)), "not finite"),
        (voc_annotation(("cell", 1, 2, 3, 4)).replace("<xmax>3", "<xmax>wide"), "wide"),
        (voc_annotation(("cell", 1, 2, 3, 4)).replace("ymin", "y"), "no bndbox/ymin"),
        ("", "no element found"),
        ("\0", "not UTF-8"),  # UTF-16 contains zeros and could hide a document type
    ],
)
def test_invalid_annotations_are_rejected_with_the_file_name(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(text)
    with pytest.raises(TrajformerError, match=rf"a\.xml: not an annotation: .*{reason}"):
        read_annotation(path)


def test_all_blood_cells_are_read_except_two_boxes_without_area(real_data: Path) -> None:
    config, labels = (
        VocConfig(str(real_data / "bccd" / "BCCD"), cache=False),
        ("RBC", "WBC", "Platelets"),
    )
    counts, complaints = dict.fromkeys(labels, 0), []
    for split, pictures in (("train", 205), ("val", 87), ("test", 72)):
        found = VocDataset(config, split, labels, (240, 320))
        assert len(found) == pictures
        complaints += found.skipped
        for _, _, label, size in found.images:
            assert size == (480, 640)
            for index in label.tolist():
                counts[labels[index]] += 1
    assert counts == {"RBC": 4153, "WBC": 372, "Platelets": 361}
    assert sorted(complaints) == [
        f"BloodImage_00{n}: 1 boxes without area left out" for n in (338, 343)
    ]


def boxes(
    *rows: tuple[float, float, float, float, int], scores: tuple[float, ...] = ()
) -> BoxTable:
    """Boxes with the corners and classes of `rows`; labels if there are no scores."""
    table = np.array(rows, np.float64).reshape(-1, 5)
    score = np.array(scores) if scores else np.ones(len(table))
    return np.column_stack([table[:, :2], table[:, 2:4] - table[:, :2], score, table[:, 4]])


def test_average_precision_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    true = [boxes((0, 0, 10, 10, 0), (20, 20, 40, 40, 1)), boxes((5, 5, 15, 15, 0)), boxes()]
    right = [
        boxes((0, 0, 10, 10, 0), (20, 20, 40, 40, 1), scores=(0.9, 0.8)),
        boxes((5, 5, 15, 15, 0), scores=(0.3,)),
        boxes(),
    ]

    def score(*detected: BoxTable) -> dict[str, float]:
        return average_precision(list(zip(detected, true, strict=True)), ("a", "b", "c"))

    assert score(*right) == pytest.approx(
        {"AP": 1.0, "AP50": 1.0, "AP75": 1.0, "AP50 a": 1.0, "AP50 b": 1.0}
    )
    # 6 of 10 rows: IoU 0.6 is correct at three of ten thresholds (0.5, 0.55, 0.6).
    result = score(boxes((0, 0, 10, 6, 0), (20, 20, 40, 40, 1), scores=(0.9, 0.8)), *right[1:])
    assert result["AP50"] == pytest.approx(1.0)
    half = 51 / 101  # one of two labels is detected, after a detection that is wrong above 0.6
    assert result["AP75"] == pytest.approx((half / 2 + 1.0) / 2, abs=1e-6)
    # A wrong detection with the highest score halves the precision of later ones.
    assert score(*right[:2], boxes((0, 0, 10, 10, 1), scores=(0.95,)))["AP50 b"] == pytest.approx(
        0.5
    )
    assert score(boxes(), boxes(), boxes())["AP"] == 0.0
    with pytest.raises(TrajformerError, match="no image has an object"):
        average_precision([(right[0], boxes())], ("a", "b", "c"))
    assert capsys.readouterr().out == ""


def test_detections_and_labels_are_paired_in_pixels_of_the_original() -> None:
    example = resize_example(marked(60, 90, (30, 15, 60, 45), 2), 20, 100)
    batch = collate([example, marked(20, 40, (0, 0, 4, 4))])
    detected = [
        Objects(
            torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
            torch.tensor([0.7]),
            torch.tensor([1]),
            torch.tensor([0]),
        )
    ] * 2
    (one, true), (_, other) = pair_with_labels(batch, detected)
    np.testing.assert_allclose(true, [[30, 15, 30, 30, 1, 2]], atol=1e-4)
    np.testing.assert_allclose(other, [[0, 0, 4, 4, 1, 1]], atol=1e-4)
    np.testing.assert_allclose(one, [[1, 2, 2, 2, 0.7, 1]], rtol=1e-6)


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
        return Detections(
            logit.requires_grad_(), draw_boxes(len(counts), QUERIES, seed=seed).requires_grad_()
        )

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
    assert iou(torch.tensor(other), box, generalized=True).item() == pytest.approx(
        generalized, abs=1e-6
    )


@pytest.mark.parametrize("most", [0, 2])
def test_images_without_boxes_train_only_the_no_object_class(most: int) -> None:
    detections, _ = make()
    targets = BoxTargets(
        torch.zeros(3, most, dtype=torch.int64),
        torch.zeros(3, most, 4),
        torch.zeros(3, most, dtype=torch.bool),
    )
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
    monkeypatch.setattr(
        losses.distributed, "all_reduce", lambda count: count.add_(35.0)
    )  # boxes of the other three
    together = box_loss(detections, targets, CONFIG)
    assert together["l1"].item() == pytest.approx(alone["l1"].item() * 5 / 10, rel=1e-5)
    assert together["classification"] == alone["classification"]


@pytest.mark.parametrize("generalized", [False, True])
def test_gradient_of_iou_is_correct_and_finite_for_empty_boxes(generalized: bool) -> None:
    a, b = (to_corners(draw_boxes(8, seed=s).double()).requires_grad_() for s in (0, 1))
    assert torch.autograd.gradcheck(lambda x, y: iou(x, y, generalized=generalized), (a, b))
    empty = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.2, 0.9]]).requires_grad_()
    values = iou(
        empty[:, None],
        torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.1, 0.4, 0.4]]),
        generalized=generalized,
    )
    assert values.isfinite().all() and values[0, 0] == 0
    assert torch.autograd.grad(values.sum(), empty)[0].isfinite().all()


def test_nms_keeps_the_best_box_of_overlapping_boxes_of_a_class() -> None:
    box = torch.tensor(
        [[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [30, 0, 40, 10], [2, 0, 12, 10.0]]
    )
    score, label = torch.tensor([0.6, 0.9, 0.5, 0.1, 0.8]), torch.tensor([0, 0, 1, 0, 0])
    assert suppress(box, score, label, 0.5).tolist() == [
        1,
        2,
        3,
    ]  # boxes 0 and 4 overlap box 1; box 2 has another class
    assert suppress(box, score, label, 0.95).tolist() == [1, 4, 0, 2, 3]
    chain = torch.tensor(
        [[0, 0, 10, 10], [3, 0, 13, 10], [6, 0, 16, 10.0]]
    )  # IoU of neighbors 7/13
    kept = suppress(chain, torch.tensor([0.9, 0.8, 0.7]), torch.zeros(3), 0.5)
    assert kept.tolist() == [0, 2]  # removed boxes remove none
    assert suppress(box[:0], score[:0], label[:0], 0.5).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_layer_is_trained_also_in_half_precision_and_with_more_boxes_than_queries(
    dtype: torch.dtype,
) -> None:
    detections, targets = make((QUERIES + 3, 1), layers=3)
    outputs = (detections, *detections.auxiliary)
    last, *others = (Detections(one.logit.to(dtype), one.box.to(dtype)) for one in outputs)
    terms = box_loss(replace(last, auxiliary=tuple(others)), targets, CONFIG)
    assert all(
        value.isfinite() and value > 0 and value.dtype == torch.float32 for value in terms.values()
    )
    assert [name for name, value in terms.items() if value.requires_grad] == ["loss"]
    terms["loss"].backward()
    assert all(one.logit.grad.any() and one.box.grad.any() for one in outputs)


def test_shapes_larger_than_the_image_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"radius: 22\.0, expected shares of the image"):
        replace(SMALL, radius=(8.0, 22.0))


def test_generated_images_follow_the_config() -> None:
    examples = [draw_shapes(SMALL, (1, index)) for index in range(60)]
    assert {len(example.label) for example in examples} == set(range(1, 9))
    for example in examples:
        assert (
            example.image.shape == (3, 40, 56)
            and example.image.min() >= 0
            and example.image.max() <= 1
        )
        assert (example.box[:, :2] < example.box[:, 2:]).all() and example.box.min() >= 0
        assert (example.box[:, 2:] <= torch.tensor([56, 40])).all()
