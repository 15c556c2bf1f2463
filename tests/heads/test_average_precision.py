"""Average precision of detections, by hand."""

import numpy as np
import pytest
import torch
from support.heads import marked_example

from trajformer.errors import TrajformerError
from trajformer.heads.detr.data import collate, resize_example
from trajformer.heads.detr.metrics import BoxTable, average_precision, pair_with_labels
from trajformer.heads.detr.objects import Objects

Row = tuple[float, float, float, float, int]  # corners and class


def boxes(*rows: Row, scores: tuple[float, ...] = ()) -> BoxTable:
    """Boxes of an image; labels if there are no scores."""
    table = np.array(rows, np.float64).reshape(-1, 5)
    corner = table[:, :2]
    size = table[:, 2:4] - corner
    score = np.array(scores) if scores else np.ones(len(table))
    return np.column_stack([corner, size, score, table[:, 4]])


A: Row = (0, 0, 10, 10, 0)
A2: Row = (5, 5, 15, 15, 0)
B: Row = (20, 20, 40, 40, 1)
NONE = boxes()
TRUE = [boxes(A, B), boxes(A2), NONE]
FIRST = boxes(A, B, scores=(0.9, 0.8))
SECOND = boxes(A2, scores=(0.3,))


def score(*detected: BoxTable) -> dict[str, float]:
    """The average precision of detections in the three images; class "c" does not occur."""
    pytest.importorskip("pycocotools")
    pairs = list(zip(detected, TRUE, strict=True))
    return average_precision(pairs, ("a", "b", "c"))


def test_correct_detections_have_precision_one(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"AP": 1.0, "AP50": 1.0, "AP75": 1.0, "AP50 a": 1.0, "AP50 b": 1.0}
    assert score(FIRST, SECOND, NONE) == pytest.approx(expected)
    assert capsys.readouterr().out == ""  # pycocotools prints its progress


def test_a_box_with_iou_06_is_correct_at_three_of_ten_thresholds() -> None:
    six_of_ten_rows: Row = (0, 0, 10, 6, 0)
    result = score(boxes(six_of_ten_rows, B, scores=(0.9, 0.8)), SECOND, NONE)
    assert result["AP50"] == pytest.approx(1.0)
    # One of two labels is detected, after a detection that is wrong above 0.6.
    half = 51 / 101
    class_a = half / 2
    class_b = 1.0
    assert result["AP75"] == pytest.approx((class_a + class_b) / 2, abs=1e-6)


def test_a_wrong_detection_with_the_highest_score_halves_the_precision_of_later_ones() -> None:
    wrong = boxes((0, 0, 10, 10, 1), scores=(0.95,))
    assert score(FIRST, SECOND, wrong)["AP50 b"] == pytest.approx(0.5)


def test_no_detections_have_precision_zero_and_no_objects_are_an_error() -> None:
    assert score(NONE, NONE, NONE)["AP"] == 0.0
    with pytest.raises(TrajformerError, match="no image has an object"):
        average_precision([(FIRST, NONE)], ("a", "b", "c"))


def test_detections_and_labels_are_paired_in_pixels_of_the_original() -> None:
    resized = resize_example(marked_example(60, 90, (30, 15, 60, 45), label=2), 20, 100)
    batch = collate([resized, marked_example(20, 40, (0, 0, 4, 4))])
    box = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    label = torch.tensor([1])
    query = torch.tensor([0])
    objects = Objects(box, torch.tensor([0.7]), label, query)

    first, second = pair_with_labels(batch, [objects, objects])
    detected, true = first
    np.testing.assert_allclose(detected, [[1, 2, 2, 2, 0.7, 1]], rtol=1e-6)
    np.testing.assert_allclose(true, [[30, 15, 30, 30, 1, 2]], atol=1e-4)
    np.testing.assert_allclose(second[1], [[0, 0, 4, 4, 1, 1]], atol=1e-4)
